"""The page docs/tables.md and its figure, from the record that `tables.py report` makes."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- written by benchmarks/tables.py report -->", "<!-- end of what was written -->"
OURS = "pynade"
FLOORS = ("marginals", "bootstrap", "pynade-10s")  # stand beside the systems that are compared
#: Title, name of the measure, whether higher is better, and what it is.
MEASURES = (
    ("Root mean squared error of hidden numbers", "rmse_30", False, "in deviations of the column"),
    ("Accuracy of hidden levels", "accuracy_30", True, "share of right guesses"),
    (
        "Continuous ranked probability score",
        "crps_30",
        False,
        "of 20 draws for hidden numbers, in deviations",
    ),
    ("Log-probability of hidden cells", "log_p_30", True, "in nats per cell, as densities"),
    (
        "Samples: two-sample AUC",
        "two_sample_auc",
        False,
        "of boosting that tells samples from test rows; 0.5 is best",
    ),
    (
        "Samples: trained on synthetic rows",
        "train_on_synthetic",
        True,
        "accuracy or R² of the target on test rows",
    ),
    ("Error of the target, complete rows", "target_error_complete", False, "share of errors, or RMSE"),
    (
        "Error of the target, complete rows that no training row equals",
        "target_error_complete_unseen",
        False,
        "the same, of test rows that differ from every training row in some other column",
    ),
    ("Error of the target, 30 % of the cells hidden", "target_error_30", False, "share of errors, or RMSE"),
    ("Planted errors found", "surprise_auc_all", True, "AUC over cells"),
)


def write(record: dict, docs: Path = DOCS) -> None:
    """Write the measured part of the page, between its two marks, and the figure."""
    page = docs / "tables.md"
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{measured_part(record)}\n{END}{after}")
    figure(record).savefig(docs / "tables.png", dpi=110)


def measured_part(record: dict) -> str:
    """Tables of the likelihood, of each measure, of coverage and time, and of what failed."""
    codes = {c for t in record["tables"].values() for c in t["systems"].get(OURS, {}).get("code", [])}
    code = f"Ours by {' and '.join(sorted(codes))}; made again by `{record['command']}`."
    parts = [code, likelihoods(record)]
    parts += [one_measure(record, *measure) for measure in MEASURES]
    parts += [synthetic(record), coverage(record), failures(record)]
    return "\n\n".join(part for part in parts if part) + "\n"


def likelihoods(record: dict) -> str:
    """Log-density of test rows: ours, the best other system, and the difference with its paired error."""
    rows = []
    for name, table in record["tables"].items():
        systems = {s: f["log_density"] for s, f in table["systems"].items() if "log_density" in f}
        ours = systems.pop(OURS, None)
        others = {s: f for s, f in systems.items() if s not in FLOORS and "to_pynade" in f}
        if ours is None or not others:
            continue
        best = max(others, key=lambda s: others[s]["to_pynade"])
        difference, error = -others[best]["to_pynade"], others[best]["to_pynade_stderr"]
        mixture = others.get("gaussian-mixture", {})
        first = [name, f"{table['rows']['train']:,} × {table['columns']}"]
        first += [f"{ours['mean']:.2f} ± {ours['stderr']:.2f}", f"{others[best]['mean']:.2f} ({best})"]
        first += [f"{difference:+.2f} ± {error:.2f}", verdict(difference, error)]
        rows.append([*first, _number(-mixture["to_pynade"] if mixture else None, "+.2f")])
    head = [
        "table",
        "training rows × columns",
        "ours",
        "best other",
        "difference",
        "",
        "to the mixture of Gaussians",
    ]
    words = "In nats per row, as densities; differences are of the same rows, ± their standard error by rows."
    return f"### Log-density of test rows\n\n{words}\n\n{markdown(head, rows)}"


def one_measure(record: dict, title: str, name: str, higher: bool, what: str) -> str:
    """Ours and the best other system of one measure, with the mean difference over the seeds of both."""
    rows, sign = [], 1 if higher else -1
    for table, facts in record["tables"].items():
        systems = {s: f for s, f in facts["systems"].items() if name in f}
        ours = systems.pop(OURS, None)
        others = {s: f for s, f in systems.items() if s not in FLOORS and f"{name}_to_pynade" in f}
        if ours is None or not others:
            continue
        best = max(others, key=lambda s: sign * others[s][f"{name}_to_pynade"])
        difference = -sign * others[best][f"{name}_to_pynade"]
        error = others[best].get(f"{name}_to_pynade_stderr")
        theirs, own = others[best][f"{name}_paired"]
        gain = f"{difference:+.3f}" + (f" ± {error:.3f}" if error is not None else "")
        first = [table, f"{own:.3f}", f"{theirs:.3f} ({best})", gain, verdict(difference, error)]
        rows.append([*first, str(others[best][f"{name}_pairs"])])
    head = ["table", "ours", "best other", "gain (+ is better)", "", "seeds"]
    return f"### {title}\n\n{what[0].upper() + what[1:]}.\n\n{markdown(head, rows)}" if rows else ""


def synthetic(record: dict) -> str:
    """Test scores of learners of the target: trained on real rows, on our samples, and the difference."""
    rows = []
    for table, facts in record["tables"].items():
        ours, cells = facts["systems"].get(OURS, {}), [table]
        for suffix in ("", "_unseen"):
            real, made = (ours.get(f"train_on_{word}{suffix}") for word in ("real", "synthetic"))
            cells += [_number(real, ".3f"), _number(made, ".3f")]
            cells.append("" if real is None or made is None else f"{made - real:+.3f}")
        rows.append(cells)
    head = ["table", "real rows", "our samples", "difference"]
    head += [f"{word}, no duplicates" for word in head[1:]]
    words = "Accuracy or R² of the target on test rows; the last three columns leave out rows that equal a "
    words += "training row."
    return f"### Samples in place of real rows\n\n{words}\n\n{markdown(head, rows)}"


def coverage(record: dict) -> str:
    """Coverage of 90 % intervals, disagreement of orderings, and times of our fits where a CPU made them."""
    rows = []
    for table, facts in record["tables"].items():
        ours = facts["systems"].get(OURS, {})
        shown = [_number(ours.get(f"coverage_{gap}"), ".3f") for gap in ("10", "30", "50", "pattern")]
        rows.append(
            [table, *shown, _number(ours.get("disagreement"), ".2f"), _number(ours.get("fit_seconds"), ".0f")]
        )
    head = ["table", "10 %", "30 %", "50 %", "pattern", "disagreement, nats", "seconds of fit"]
    words = "Share of hidden numbers between the ends of 20 draws, of which 19/21 = 0.905 is right."
    return f"### Calibration\n\n{words}\n\n{markdown(head, rows)}"


def failures(record: dict) -> str:
    """What other systems could not do, once for each kind of failure."""
    seen: dict[tuple[str, str], list[str]] = {}
    for table, facts in record["tables"].items():
        for system, found in facts["systems"].items():
            for stage, words in found.get("errors", {}).items():
                seen.setdefault((system, f"{stage.split('-')[0]}: {words}"[:160]), []).append(table)
    rows = [
        [s, words.replace("|", "/"), ", ".join(dict.fromkeys(tables))] for (s, words), tables in seen.items()
    ]
    return f"### What failed\n\n{markdown(['system', 'error', 'tables'], rows)}" if rows else ""


def verdict(difference: float, error: float | None) -> str:
    """Whether a gain is more than two standard errors."""
    if error is None:
        return ""
    return "better" if difference > 2 * error else "worse" if difference < -2 * error else "tied"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def figure(record: dict):
    """How far each system is behind ours in log-density on each table, and its RMSE over ours."""
    from matplotlib import pyplot

    drawn, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    names, styles = list(record["tables"]), {}
    for k, facts in enumerate(record["tables"].values()):
        for system, found in facts["systems"].items():
            behind, rmse = found.get("log_density", {}).get("to_pynade"), found.get("rmse_30_to_pynade")
            if system in (OURS, *FLOORS) or (behind is None and rmse is None):
                continue
            new = {"color": f"C{len(styles) % 10}", "marker": "os^vDP*X<>ph"[len(styles) % 12], "ls": ""}
            style = styles.setdefault(system, new) | {"label": system}
            if behind is not None:
                left.plot(behind, k, **style)
            if rmse is not None:
                right.plot(found["rmse_30"] / (found["rmse_30"] - rmse), k, **style)
    left.set_xscale("symlog", linthresh=1)
    left.set_yticks(range(len(names)), names)
    left.set_xlabel("log-density less ours, nats per row (left: ours is better)")
    right.set_xscale("log")
    right.set_xticks([1, 1.5, 2, 3], ["1", "1.5", "2", "3"])
    right.minorticks_off()
    right.set_xlabel("RMSE of hidden numbers over ours (right: ours is better)")
    for axes, line in ((left, 0), (right, 1)):
        axes.axvline(line, color="black", lw=1)
        axes.grid(axis="x", alpha=0.3)
    handles = {
        label: h for axes in (left, right) for h, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False)
    return drawn
