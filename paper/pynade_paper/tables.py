"""The paper's tables beside ours, made from the records (`pynade report` writes them).

What the paper printed stands in `protocols/*.toml`, what we measured in results/*/*/*.json; this module only
lays the two side by side. The README shows some highlights, and a test fails when a document and the records
disagree.
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

TABLES = ("binary", "orderings", "mnist", "uci", "patches", "speech")
SIGNIFICANCE = 0.05  # of the paired t-test over folds
ODD = 3.0  # a fold without which the folds spread so many times less is named
README_MARKS = ("<!-- highlights: written by pynade report -->", "<!-- end of highlights -->")
RULES = {
    "overlap": "Bold: the best of a column and whatever overlaps it within two standard errors.",
    "paired": "Bold: the best of a column and whatever is not significantly worse by a two-sided paired "
    f"t-test over folds, at {SIGNIFICANCE}.",
    "none": "Marks: the same within two standard errors, otherwise smaller or larger; nothing is bold.",
}
DEVIATION_MARKS = {"▲": "larger", "=": "same", "▼": "smaller"}  # neither is better


@dataclass(frozen=True)
class Row:
    """One model of a table: the paper's values by data set, and where ours are recorded."""

    model: str
    record: str  # file under results/, with {data} for the data set
    paper: dict[str, float] = field(default_factory=dict)
    bold: list[str] = field(default_factory=list)  # data sets whose value the paper prints in bold
    entry: tuple[str, ...] = ("test",)  # where in the record
    fit: dict[str, Any] | None = None  # how the record is made: one run …
    sweep: dict[str, Any] | None = None  # … or a grid chosen on validation
    orderings: int | None = None  # scored under so many …
    draws: int | None = None  # … exactly on some rows only, and estimated with so many draws on all
    every: int = 10  # which rows: every so manieth
    precision: str = "tf32"  # of the nets while they are scored
    quick: dict[str, Any] = field(default_factory=dict)  # what a trial takes instead: parameters, grid, every
    minutes: float = 5.0  # about, on an H200
    why: str | None = None  # it is not measured, where that is not a matter of time

    def sweep_on(self, data: str) -> dict[str, Any]:
        """The sweep on one data set: what stands under `own` for it takes the place of the row's."""
        assert self.sweep is not None
        sweep = {name: value for name, value in self.sweep.items() if name != "own"}
        for own in self._own(self.sweep, data, {"fixed", "grid"}):
            fixed, grid = own.get("fixed", {}), own.get("grid", {})
            sweep["fixed"] = {k: v for k, v in sweep["fixed"].items() if k not in grid} | fixed
            sweep["grid"] = {k: v for k, v in sweep["grid"].items() if k not in fixed} | grid
        return sweep

    def fit_on(self, data: str) -> dict[str, Any]:
        """The fit on one data set, in the same way."""
        assert self.fit is not None
        fit = {name: value for name, value in self.fit.items() if name != "own"}
        for own in self._own(self.fit, data, {"parameters"}):
            fit["parameters"] = fit["parameters"] | own["parameters"]
        return fit

    def _own(self, protocol: dict[str, Any], data: str, known: set[str]) -> list[dict[str, Any]]:
        for own in protocol.get("own", []):
            if unknown := set(own) - known - {"on"}:
                raise ValueError(f"{self.model}: an own protocol has no {', '.join(sorted(unknown))}")
        return [own for own in protocol.get("own", []) if data in own["on"]]

    @property
    def deviation(self) -> bool:
        """Whether its number is a standard deviation over seeds, not a log-likelihood."""
        return self.entry[-1] == "std"


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    title: str
    about: str
    columns: list[str]
    rows: list[Row]
    bold_by: str  # "overlap" of two standard errors, "paired" t-test over folds, or "none"
    number: list[int]  # in the paper
    unavailable: dict[str, str] = field(default_factory=dict)  # data sets that cannot be had, and why
    compare: bool = True  # False where ours are other data than the paper's …
    papers_data: str = "TIMIT"  # … which were these

    @property
    def deviations(self) -> bool:
        """Whether it is a table of standard deviations over seeds, not of log-likelihoods."""
        return all(row.deviation for row in self.rows)


@dataclass(frozen=True)
class Measured:
    """What a record says about one cell."""

    mean: float
    stderr: float
    exact: bool
    file: str
    folds: tuple[float, ...] = ()
    present: bool = True  # made by the protocol that stands in the table today
    seconds: float = 0.0  # of training, with the choice of settings
    scoring: float = 0.0  # seconds
    device: str = ""
    valid: float = -math.inf  # validation score (see `_validation`), by which models are chosen among


def table(name: str) -> Table:
    """One of the paper's tables as a data file.

    Example:
        >>> table("uci").columns
        ['red_wine', 'white_wine', 'parkinsons']
    """
    content = tomllib.loads(files("pynade_paper").joinpath(f"protocols/{name}.toml").read_text("utf-8"))
    rows = [Row(**{**row, "entry": tuple(row.get("entry", ("test",)))}) for row in content.pop("row")]
    return Table(rows=rows, **content)


def measured(results: Path, row: Row, data: str) -> Measured | None:
    """Our number, if it has been recorded (and is no trial)."""
    file = row.record.format(data=data)
    record = read_record(results / file)
    if record is None:
        return None
    value = number_of(row, record)
    if value is None:
        return None
    seconds = dict(record.get("wall_seconds", {}))
    scoring = seconds.pop("score", 0.0)
    return Measured(
        value["mean"],
        value["stderr"],
        value["exact"],
        file,
        folds=tuple(value.get("folds", ())),
        present=_by_protocol(row, data, record),
        seconds=sum(seconds.values()),
        scoring=scoring,
        device=record.get("device", ""),
        valid=_validation(record),
    )


def _validation(record: dict[str, Any]) -> float:
    """The validation score of a record; of a sweep over folds the mean of those that were chosen.

    That of an ensemble over orderings is the ensemble's only where its record says so (`valid` of a sweep
    without retraining); elsewhere it is an estimate for single orderings, which holds the ensemble back.

    Example:
        >>> _validation({"chosen": [{"valid": -1.0}, {"valid": -2.0}]})
        -1.5
    """
    if record.get("valid"):
        return float(record["valid"]["mean"])
    chosen = record.get("chosen", [])
    return (
        float(np.mean([line["valid"] for line in chosen]))
        if isinstance(chosen, list) and chosen
        else -math.inf
    )


def number_of(row: Row, record: dict[str, Any]) -> dict[str, Any] | None:
    """What a record says of a row's number: its mean, stderr, exact; None where it says nothing.

    Example:
        >>> row = Row("NADE", "a.json", entry=("repeats", "std"))
        >>> number_of(row, {"test": {"exact": True}, "repeats": {"std": 0.05, "stderr_of_std": 0.01}})
        {'mean': 0.05, 'stderr': 0.01, 'exact': True}
    """
    whole: Any = {}
    value: Any = record
    for key in row.entry:
        if key not in value:  # such as an ensemble of more orderings than were scored
            return None
        whole, value = value, value[key]
    if row.deviation:
        exact = (record.get("test") or record["valid"])["exact"]  # a trial has no test
        return {"mean": value, "stderr": whole["stderr_of_std"], "exact": exact}
    return dict(value)


def read_record(path: Path) -> dict[str, Any] | None:
    """A record's content, or None if there is none or it is a trial."""
    record = read_json(path)
    return None if record is None or record.get("quick") else record


def read_json(path: Path) -> dict[str, Any] | None:
    """A file's content, None if there is no file, or an error that names it."""
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is no record: {error}") from None


def _by_protocol(row: Row, data: str, record: dict[str, Any]) -> bool:
    """Whether a record was made as its row says today."""
    spec = record.get("spec", {})
    if row.sweep is not None:
        sweep = row.sweep_on(data)
        same = spec.get("model") == sweep["model"]
        same = same and all(spec.get("fixed", {}).get(k) == v for k, v in sweep["fixed"].items())
        seeds = record.get("seed", 0)  # those of a grid are counted from the record's
        grid = {
            k: [seeds + own for own in v] if k == "random_state" else list(v)
            for k, v in sweep["grid"].items()
        }
        same = same and spec.get("repeats", 1) == sweep.get("repeats", 1)
        return same and spec.get("grid") == grid and spec.get("retrain") == sweep["retrain"]
    if row.fit is not None:
        given = spec.get("parameters", {})
        scored = record.get("test", {}).get("orderings")
        under = row.orderings is None or scored in (None, row.orderings)
        fit = row.fit_on(data)
        same = spec.get("model") == fit["model"] and spec.get("data") == fit.get("data", data)
        return same and under and all(given.get(k) == v for k, v in fit["parameters"].items())
    return True


def best(cells: dict[str, Measured], rule: str) -> set[str]:
    """The models of a column that the paper's rule prints in bold.

    Example:
        >>> ours = {"a": Measured(-1.0, 0.1, True, ""), "b": Measured(-1.1, 0.1, True, "")}
        >>> sorted(best(ours | {"c": Measured(-9.0, 0.1, True, "")}, "overlap"))
        ['a', 'b']
    """
    if not cells:
        return set()
    first = max(cells, key=lambda model: cells[model].mean)
    top = cells[first]
    if rule == "overlap":
        edge = top.mean - 2 * top.stderr
        return {model for model, cell in cells.items() if cell.mean + 2 * cell.stderr >= edge}
    return {model for model, cell in cells.items() if model == first or not _worse(cell, top)}


def _worse(cell: Measured, top: Measured) -> bool:
    if len(cell.folds) != len(top.folds) or len(cell.folds) < 2 or not np.isfinite(cell.folds).all():
        return True
    return paired_p(cell, top) < SIGNIFICANCE


def paired_p(a: Measured, b: Measured) -> float:
    """P-value of the paired t-test over folds; 1 where the two are the same on every fold.

    Example:
        >>> a = Measured(-1.0, 0.1, True, "", (-1.0, -1.1, -0.9))
        >>> paired_p(a, a)
        1.0
    """
    if a.folds == b.folds:
        return 1.0
    return float(ttest_rel(a.folds, b.folds).pvalue)


def mark(ours: Measured, paper: float) -> str:
    """Better, the same within two standard errors of ours, or worse."""
    gap = ours.mean - paper
    slack = 2 * ours.stderr
    return "▲" if gap > slack else "▼" if gap < -slack else "="


def difference(ours: Measured, paper: float) -> str:
    """Ours minus the paper's, with its sign.

    Example:
        >>> ours = Measured(-1.0, 0.1, True, "")
        >>> difference(ours, -1.25), difference(ours, -0.999)
        ('+0.25', '0.00')
    """
    text = f"{ours.mean - paper:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def with_error(ours: Measured, digits: int = 2) -> str:
    """A number and its standard error, which has as many more digits as it needs to be seen.

    Example:
        >>> with_error(Measured(-11.784, 0.021, True, "")), with_error(Measured(-11.784, 0.0043, True, ""))
        ('-11.78 ± 0.02', '-11.78 ± 0.004')
    """
    error = f"{ours.stderr:.{digits}f}"
    if ours.stderr > 0 and float(error) == 0:
        error = f"{ours.stderr:.{-math.floor(math.log10(ours.stderr))}f}"
    return f"{ours.mean:.{digits}f} ± {error}"


def odd_fold(ours: Measured) -> float | None:
    """The mean of a fold that makes most of the standard error over folds, if there is one.

    Example:
        >>> odd_fold(Measured(-30.0, 20.0, True, "", (-10.0, -11.0, -10.5, -90.0)))
        -90.0
    """
    if len(ours.folds) < 4:
        return None
    folds = np.asarray(ours.folds)
    far = int(np.abs(folds - np.median(folds)).argmax())
    alone = folds.std() > ODD * np.delete(folds, far).std()
    return float(folds[far]) if alone else None


def same_by_one_fold(ours: Measured, paper: float) -> bool:
    """Whether only the error that a single fold makes keeps a number from being worse than the paper's.

    Example:
        >>> ours = Measured(-30.4, 19.9, True, "", (-10.0, -11.0, -10.5, -90.0))
        >>> same_by_one_fold(ours, -10.0), same_by_one_fold(ours, -31.0)
        (True, False)
    """
    odd = odd_fold(ours)
    if odd is None or mark(ours, paper) != "=":
        return False
    others = [fold for fold in ours.folds if fold != odd]
    return ours.mean - paper < -2 * float(np.std(others, ddof=1)) / math.sqrt(len(others))


def markdown(results: Path, shown: Table, link: str) -> str:
    """One table; rows without any number of ours or the paper's are left out (the plan has them)."""
    bold = {data: best(column(results, shown, data), shown.bold_by) for data in shown.columns}
    head = " | ".join(["model", *shown.columns])
    lines = [f"| {head} |", "|---" * (1 + len(shown.columns)) + "|"]
    for row in shown.rows:
        ours = [measured(results, row, data) for data in shown.columns]
        if row.paper or any(ours):
            cells = [
                _cell(shown, row, data, cell, row.model in bold[data], link)
                for data, cell in zip(shown.columns, ours, strict=True)
            ]
            lines.append(f"| {row.model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def column(results: Path, shown: Table, data: str) -> dict[str, Measured]:
    """The log-likelihoods that have been measured on one data set, by model."""
    if shown.deviations:
        return {}
    return {row.model: m for row in shown.rows if (m := measured(results, row, data))}


def why_not(shown: Table, row: Row, data: str) -> str:
    """Why a cell has no number of ours."""
    makers = [r for r in shown.rows if r.record == row.record]
    if data in shown.unavailable:
        return shown.unavailable[data]
    if row.why is not None:
        return row.why
    return "not run yet" if any(r.fit or r.sweep for r in makers) else "no protocol yet"


def _cell(shown: Table, row: Row, data: str, ours: Measured | None, bold: bool, link: str) -> str:
    paper = row.paper.get(data)
    if paper is None:
        theirs = ""
    elif row.deviation:
        theirs = f"{paper:g}"
    else:
        theirs = f"{paper:.2f}" if shown.compare else f"{paper:.1f}"
        theirs = f"**{theirs}**" if data in row.bold else theirs
        theirs = theirs if shown.compare else f"{shown.papers_data}: {theirs}"
    if ours is None:
        return f"– not measured: {why_not(shown, row, data)}" + (f" ({theirs})" if theirs else "")
    number = with_error(ours, 3 if row.deviation else 2) + ("" if ours.exact else " (estimate)")
    number += "" if ours.present else "†"
    number += f", one fold {odd:.2f}" if (odd := odd_fold(ours)) is not None else ""
    text = f"[{f'**{number}**' if bold else number}]({link}/{ours.file})"
    if paper is None:
        return text
    if not shown.compare:
        return f"{text} ({theirs})"
    if row.deviation:
        return f"{text} ({theirs}) {DEVIATION_MARKS[mark(ours, paper)]}"
    return f"{text} ({theirs}; {difference(ours, paper)}) {mark(ours, paper)}"


HIGHLIGHTS = (
    ("binary", "NADE", "ocr_letters"),
    ("binary", "Deep orderless ensemble, 2 layers, 32 orderings", "web"),
    ("mnist", "NADE, fixed order", "binarized_mnist"),
    ("mnist", "DeepNADE 2hl", "binarized_mnist"),
    ("mnist", "EoNADE 2hl, 128 orderings", "binarized_mnist"),
    ("mnist", "ConvNADE + DeepNADE, ensemble of 128 orderings", "binarized_mnist"),
    ("mnist", "U-Net, ensemble of 16 orderings", "binarized_mnist"),
    ("uci", "Deep orderless RNADE-MoG, 32 orderings", "white_wine"),
    ("patches", "RNADE-MoG, K = 10, 1024 units", "bsds300"),
    ("patches", "Transformer, fixed order, 20 Gaussians", "bsds300"),
)


def highlights(results: Path) -> str:
    """The README's table."""
    lines = ["| model | data | paper | ours (test, nats) |", "|---|---|---|---|"]
    for name, model, data in HIGHLIGHTS:
        row = next(row for row in table(name).rows if row.model == model)
        ours, paper = measured(results, row, data), row.paper.get(data)
        if ours is not None:
            kind = "" if ours.exact else " (estimate)"
            number = f"[{with_error(ours)}{kind}](paper/results/{ours.file})"
            lines.append(f"| {model} | {data} | {'' if paper is None else f'{paper:.2f}'} | {number} |")
    return "\n".join(lines)


def with_highlights(text: str, results: Path) -> str:
    """The README with the table between its two marks written anew; as it is where there are no marks."""
    first, last = README_MARKS
    before, start, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not start or not end:
        return text
    return f"{before}{first}\n\n{highlights(results)}\n\n{last}{after}"
