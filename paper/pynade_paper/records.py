"""Our numbers, read from the records (`paper/results/*/*/*.json`), and how they compare with the paper's."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pynade.runs.groups import grouped_stderr
from pynade_paper.tables import Row, Table

SIGNIFICANCE = 0.05  # of the paired tests over folds
ODD = 3.0  # a cell is unstable if the standard deviation without one of its folds is this many times smaller
UNSTABLE = "unstable"


@dataclass(frozen=True)
class Groups:
    """Means over groups of test rows that are not independent, such as the patches of an image."""

    by: str  # what a group is: "image", "speaker"
    stderr: float  # standard error of the mean over all rows, if only the groups are independent
    rows: tuple[int, ...]  # of each group
    means: tuple[float, ...]  # of each group


@dataclass(frozen=True)
class Measured:
    """One number of a record."""

    mean: float
    stderr: float
    kind: str  # "exact", "estimate" or "bound"
    file: str  # the record, below the folder of records
    folds: tuple[float, ...] = ()  # the mean of each
    present: bool = True  # whether it was made by the protocol that is in the table today
    seconds: float = 0.0  # of training, including the choice of settings
    scoring: float = 0.0  # seconds of scoring
    device: str = ""  # on which it was trained
    valid: float = -math.inf  # validation score (see `_validation`), used to choose among models
    beside: dict[str, tuple[float, float]] = field(default_factory=dict)  # other numbers: mean and error
    bf16: str = ""  # what was computed in bfloat16: "bf16" (training and scores) or "trained in bf16"
    note: str = ""  # on how it was made
    groups: Groups | None = None  # of exact scores of data whose rows come in groups


def measured(results: Path, row: Row, data: str) -> Measured | None:
    """Our number, if it has been recorded (records of trial runs do not count)."""
    file = row.record.format(data=data)
    record = read_record(results / file)
    value = None if record is None else number_of(row, record)
    if record is None or value is None:
        return None
    beside = {
        kind: (other["mean"], other["stderr"])
        for kind, other in record.get("test", {}).items()
        if kind != row.entry[-1] and isinstance(other, dict) and other.get("kind") == kind
    }
    second = record.get("composition", {}).get("second_opinion")
    if second and value["mean"] == record["test"]["mean"]:
        beside["second estimate"] = second["mean"], second["stderr"]
    trained = record.get("spec", {}).get("parameters", {}).get("precision") == "bf16"
    bf16 = "bf16" if record.get("precision") == "bf16" else "trained in bf16" if trained else ""
    seconds = dict(record.get("wall_seconds", {}))
    scoring = seconds.pop("score", 0.0)
    return Measured(
        value["mean"],
        value["stderr"],
        value.get("kind") or ("exact" if value["exact"] else "estimate"),
        file,
        folds=tuple(value.get("folds", ())),
        present=_by_protocol(row, data, record),
        seconds=sum(seconds.values()),
        scoring=scoring,
        device=record.get("device", ""),
        valid=_validation(record, row.entry[-1]),
        beside=beside,
        bf16=bf16,
        note=record.get("note") or "",
        groups=_groups(record) if row.entry == ("test",) else None,
    )


def _groups(record: dict[str, Any]) -> Groups | None:
    found = record.get("groups")
    return found and Groups(found["by"], found["stderr"], tuple(found["rows"]), tuple(found["means"]))


def column(results: Path, shown: Table, data: str) -> dict[str, Measured]:
    """The log-likelihoods that have been measured on one data set, by model."""
    if shown.deviations:
        return {}
    return {row.model: m for row in shown.rows if (m := measured(results, row, data))}


def _validation(record: dict[str, Any], kind: str = "test") -> float:
    """The validation score of a record; of a sweep over folds, the mean of the chosen settings' scores.

    For an ensemble over orderings it is the ensemble's score only where the record has it (`valid` of a sweep
    without retraining). Elsewhere it is an estimate for single orderings, which is lower. A comparator has
    one for each kind of score.

    Example:
        >>> _validation({"chosen": [{"valid": -1.0}, {"valid": -2.0}]})
        -1.5
    """
    if record.get("valid"):
        return float(record["valid"].get(kind, record["valid"])["mean"])
    chosen = record.get("chosen", [])
    if not isinstance(chosen, list) or not chosen:
        return -math.inf
    return float(np.mean([line["valid"] for line in chosen]))


def number_of(row: Row, record: dict[str, Any]) -> dict[str, Any] | None:
    """A row's number in a record: its mean, stderr, exact or kind; None where the record does not have it.

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
        exact = (record.get("test") or record["valid"])["exact"]  # a trial run has no test
        return {"mean": value, "stderr": whole["stderr_of_std"], "exact": exact}
    return dict(value)


def read_record(path: Path) -> dict[str, Any] | None:
    """A record's content, or None if there is none or it is of a trial run."""
    record = read_json(path)
    if record is None or record.get("quick"):
        return None
    return _of_comparator(record) if "stages" in record else record


def _of_comparator(record: dict[str, Any]) -> dict[str, Any]:
    """A result of `pynade_paper.comparators`, which has negative log-likelihoods, as another record."""
    parts: dict[str, Any] = {"valid": {}, "test": {}}
    for part, found in parts.items():
        for name, v in record[part].items():
            kind = "exact" if name == "nll" else name
            found[kind] = {"mean": -v["mean"], "stderr": v["stderr"], "kind": kind}
    training = sum(stage["seconds"] for stage in record["stages"])
    runs = [run["seconds"] for run in (record, *record.get("earlier", ()))]
    whole = sum(run["all"] if isinstance(run, dict) else run for run in runs)
    seconds = {"train": training, "score": max(0.0, whole - training)}
    note = record.get("note") or ""
    if z := record.get("log_z"):
        note += f" log Z by AIS: {z['forward']:.2f} ± {z['stderr']:.2f}, backwards {z['backward']:.2f}."
    return record | parts | {"wall_seconds": seconds, "device": f"cuda ({record['device']})", "note": note}


def read_json(path: Path) -> dict[str, Any] | None:
    """A file's content, None if there is no file, or an error that names it."""
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is not a record: {error}") from None


def _by_protocol(row: Row, data: str, record: dict[str, Any]) -> bool:
    """Whether a record was made by the protocol that the row has today."""
    spec = record.get("spec", {})
    if row.sweep is not None:
        sweep = row.sweep_on(data)
        same = spec.get("model") == sweep["model"]
        fixed = current_names(spec.get("fixed", {}))
        same = same and all(fixed.get(k) == v for k, v in sweep["fixed"].items())
        grid = seeded_grid(sweep["grid"], record.get("seed", 0))
        same = same and spec.get("repeats", 1) == sweep.get("repeats", 1)
        return same and spec.get("grid") == grid and spec.get("retrain") == sweep["retrain"]
    if row.fit is not None:
        given = current_names(spec.get("parameters", {}))
        scored = record.get("test", {}).get("orderings")
        under = row.orderings is None or scored in (None, row.orderings)
        fit = row.fit_on(data)
        same = spec.get("model") == fit["model"] and spec.get("data") == fit.get("data", data)
        return same and under and all(given.get(k) == v for k, v in fit["parameters"].items())
    return True


def current_names(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a record by their present names.

    Example:
        >>> current_names({"iterations": 300, "hidden": 5})
        {'epochs': 300, 'hidden': 5}
    """
    names = {"iterations": "epochs", "tolerance": "tol", "n_hidden": "hidden"}
    return {names.get(name, name): value for name, value in parameters.items()}


def seeded_grid(grid: dict[str, Any], seed: int) -> dict[str, list[Any]]:
    """A grid whose seeds are counted from the experiment's seed.

    Example:
        >>> seeded_grid({"random_state": [0, 1], "dropout": [0.0]}, 5)
        {'random_state': [5, 6], 'dropout': [0.0]}
    """
    return {k: [seed + own for own in v] if k == "random_state" else list(v) for k, v in grid.items()}


def best(cells: dict[str, Measured], rule: str) -> set[str]:
    """The models of a column that the paper's rule prints in bold, never one whose error one fold makes.

    Example:
        >>> ours = {"a": Measured(-1.0, 0.1, "exact", ""), "b": Measured(-1.1, 0.1, "exact", "")}
        >>> sorted(best(ours | {"c": Measured(-9.0, 0.1, "exact", "")}, "overlap"))
        ['a', 'b']
    """
    cells = stable(cells)
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
    return min(paired_p(cell, top), signed_rank_p(cell, top)) < SIGNIFICANCE


def stable(cells: dict[str, Measured]) -> dict[str, Measured]:
    """The cells of a column whose error is not made by one fold."""
    return {model: cell for model, cell in cells.items() if odd_fold(cell) is None}


def paired_p(a: Measured, b: Measured) -> float:
    """P-value of the paired t-test over folds; 1 where the two are the same on every fold.

    Example:
        >>> a = Measured(-1.0, 0.1, "exact", "", (-1.0, -1.1, -0.9))
        >>> paired_p(a, a)
        1.0
    """
    from scipy.stats import ttest_rel

    return 1.0 if a.folds == b.folds else float(ttest_rel(a.folds, b.folds).pvalue)


def signed_rank_p(a: Measured, b: Measured) -> float:
    """P-value of Wilcoxon's signed-rank test over folds, which one exploding fold cannot blind.

    Example:
        >>> a = Measured(0.0, 0.1, "exact", "", (-1.0, -1.1, -1.3, -0.9, -1.2, -900.0))
        >>> b = Measured(0.0, 0.1, "exact", "", (-0.9, -0.8, -0.7, -0.4, -0.5, -0.6))
        >>> round(paired_p(a, b), 2), signed_rank_p(a, b)
        (0.36, 0.03125)
    """
    from scipy.stats import wilcoxon

    return 1.0 if a.folds == b.folds else float(wilcoxon(a.folds, b.folds).pvalue)


def between(a: Measured, b: Measured) -> tuple[float, float]:
    """How far one of our numbers is above another, and the standard error of that.

    It is over the pairs of folds or of groups (images, speakers) where both have them. Otherwise the errors
    are added as those of independent numbers; on the same test rows, where scores go up and down together,
    that is more than it is.

    Example:
        >>> a, b = (Measured(m, 0.3, "exact", "", (m - 1, m, m + 1)) for m in (-1.0, -1.5))
        >>> between(a, b)
        (0.5, 0.0)
    """
    error = math.hypot(a.stderr, b.stderr)
    if len(a.folds) == len(b.folds) > 1:
        error = float(np.std(np.subtract(a.folds, b.folds), ddof=1)) / math.sqrt(len(a.folds))
    elif a.groups and b.groups and paired_groups(a, b):
        error = grouped_stderr(np.subtract(a.groups.means, b.groups.means), a.groups.rows)
    return a.mean - b.mean, error


def paired_groups(a: Measured, b: Measured) -> bool:
    """Whether two numbers have means over the same groups of test rows."""
    return a.groups is not None and b.groups is not None and a.groups.rows == b.groups.rows


def mark(ours: Measured, paper: float) -> str:
    """Better, the same within two standard errors of the difference, worse; or that one fold decides it.

    The paper prints no errors. Its numbers are means over as many test rows or folds as ours, of scores with
    about the same spread, so that the error of the difference is √2 times ours, or less on the same rows.
    """
    if odd_fold(ours) is not None:
        return UNSTABLE
    gap, slack = ours.mean - paper, 2 * math.sqrt(2) * ours.stderr
    return "▲" if gap > slack else "▼" if gap < -slack else "="


def difference(ours: Measured, paper: float) -> str:
    """Ours minus the paper's, with its sign.

    Example:
        >>> ours = Measured(-1.0, 0.1, "exact", "")
        >>> difference(ours, -1.25), difference(ours, -0.999)
        ('+0.25', '0.00')
    """
    text = f"{ours.mean - paper:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def with_error(ours: Measured, digits: int = 2) -> str:
    """A number and its standard error, with as many more digits as make the error differ from zero.

    Example:
        >>> [with_error(Measured(-11.784, error, "exact", "")) for error in (0.021, 0.0043)]
        ['-11.78 ± 0.02', '-11.78 ± 0.004']
    """
    error = f"{ours.stderr:.{digits}f}"
    if ours.stderr > 0 and float(error) == 0:
        error = f"{ours.stderr:.{-math.floor(math.log10(ours.stderr))}f}"
    return f"{ours.mean:.{digits}f} ± {error}"


def odd_fold(ours: Measured) -> float | None:
    """The mean of a fold that causes most of the standard error over folds, if there is one.

    Example:
        >>> odd_fold(Measured(-30.0, 20.0, "exact", "", (-10.0, -11.0, -10.5, -90.0)))
        -90.0
    """
    if len(ours.folds) < 4:
        return None
    folds = np.asarray(ours.folds)
    far = int(np.abs(folds - np.median(folds)).argmax())
    alone = folds.std() > ODD * np.delete(folds, far).std()
    return float(folds[far]) if alone else None
