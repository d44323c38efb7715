"""Making the paper's tables again, cell by cell: each by its `fit` (one run) or its `sweep` (a grid).

Runs in progress are in a folder of their own, so that an interrupted cell is resumed. A finished cell leaves
its record in the folder of records and is skipped the next time.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pynade.engines import run_jobs
from pynade_paper.cells import Cell, expected_minutes
from pynade_paper.records import current_names, read_json, seeded_grid

#: Largest values in a trial run, so that every cell takes about a minute on a laptop.
QUICK = {"epochs": 2, "updates_per_epoch": 5, "batch_size": 100, "n_orderings": 2}
TRIAL_ROWS = 200  # of validation in a trial run, at most
NOT_COMPARABLE = {"quick": True, "note": "a trial of the path: not comparable"}

#: A record or the error of a cell, and the seconds it took.
Outcome = tuple[dict[str, Any] | Exception, float]


class OutOfTime(Exception):
    """A cell was not started, because it would not have been finished in time."""


@dataclass(frozen=True)
class Options:
    """How cells are made."""

    device: str = "auto"  # where to compute
    quick: bool = False  # a trial run; its record stays in the work folder, marked as not comparable
    again: bool = False  # make it again from the start, even if it has a record
    outdated: bool = False  # make it again; what was started by the protocol of today is resumed
    keep: bool = False  # leave the run (model, metrics) in the work folder when its record is written
    data_dir: Path | None = None  # folder of the data sets
    seed: int = 0  # of everything random; the seeds of a grid are counted from it
    deadline: float | None = None  # in seconds since 1970; a cell that takes longer is not started


def reproduce(
    cell: Cell,
    results: Path,
    work: Path,
    options: Options = Options(),
    callbacks: list[Callable[..., Any]] | None = None,
    progress: Callable[..., None] | None = None,
) -> dict[str, Any]:
    """Make one cell's record, or read it if it exists (a trial run is always made).

    Args:
        cell: which.
        results: folder of the records.
        work: folder of runs and sweeps; removed for this cell when its record is written.
        options: how.
        callbacks: of a run's training.
        progress: called with the progress of a sweep.
    """
    quick, again = options.quick, options.again
    path = (work if quick else results) / f"{cell.name}.json"
    known = read_json(path)
    if known and not (again or options.outdated or quick or in_progress(cell, work)):
        return known
    folder = work / ("quick" if quick else "full") / cell.name
    if (again or (quick and known)) and folder.exists():
        shutil.rmtree(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    if again and not quick:
        _restart_mark(cell, work).parent.mkdir(parents=True, exist_ok=True)
        _restart_mark(cell, work).touch()
    if cell.row.sweep is not None:
        _sweep(cell, folder, path, options, progress)
    elif cell.row.fit is not None:
        _fit(cell, folder, path, options, callbacks or [])
    else:
        raise ValueError(f"{cell.name} has no protocol yet")
    if not options.keep:
        shutil.rmtree(folder)
    if not quick:
        _restart_mark(cell, work).unlink(missing_ok=True)
    record = read_json(path)
    assert record is not None
    return record


def _restart_mark(cell: Cell, work: Path) -> Path:
    return work / "full" / f"{cell.name}.anew"


def in_progress(cell: Cell, work: Path) -> bool:
    """Whether a cell that has a record was being made again (`again`) and was interrupted."""
    return _restart_mark(cell, work).is_file() and (work / "full" / cell.name).is_dir()


def reproduce_all(
    todo: list[Cell],
    workers: int | None,
    results: Path,
    work: Path,
    options: Options = Options(),
    engine: str = "local",
) -> Iterator[tuple[Cell, Outcome]]:
    """Make several cells at a time, by a process each; yields cells and outcomes as they finish.

    Two on a GPU overlap their start-up; more help only models that leave most of it idle.
    """
    jobs = [(cell, results, work, options) for cell in todo]
    with closing(run_jobs(attempt, jobs, engine, workers, options.device)) as made:
        for number, outcome in made:
            yield todo[number], outcome


def attempt(cell: Cell, results: Path, work: Path, options: Options = Options(), **watch: Any) -> Outcome:
    """`reproduce` one cell: its record or the error (so that others go on), and the seconds it took.

    A cell that would not be done by the deadline has the outcome `OutOfTime`.
    """
    begin = time.monotonic()
    minutes = expected_minutes(cell, results, options.device, options.quick)
    if options.deadline is not None and time.time() + 60 * minutes > options.deadline:
        return OutOfTime(f"about {minutes:g} min are more than the budget has left"), 0.0
    try:
        return reproduce(cell, results, work, options, **watch), time.monotonic() - begin
    except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
        return error, time.monotonic() - begin


def write_log(work: Path, command: str, elapsed: float, **facts: Any) -> None:
    """Append a line to `log.jsonl` in the work folder.

    Args:
        work: folder of runs and sweeps.
        command: when the command began, which names it.
        elapsed: seconds since then.
        facts: what happened, such as a cell and its outcome.
    """
    work.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"command": command, "elapsed": round(elapsed, 1)} | facts)
    with (work / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def logged_hours(work: Path) -> str:
    """The hours of all commands in the log, each up to its last line, and how many cells are done.

    A command that is interrupted writes a last line; one that is killed outright counts to its last cell.

    Example:
        >>> import tempfile
        >>> work = Path(tempfile.mkdtemp())
        >>> for command, elapsed in (("first", 600), ("first", 5400), ("second", 1800)):
        ...     write_log(work, command, elapsed, cell="a", outcome="done")
        >>> logged_hours(work)
        '2.00 h; commands: 2, cells done: 3'
    """
    lines = [json.loads(line) for line in (work / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    longest = {line["command"]: line["elapsed"] for line in lines}  # the last line of each
    done = sum(line.get("outcome") == "done" for line in lines)
    return f"{sum(longest.values()) / 3600:.2f} h; commands: {len(longest)}, cells done: {done}"


def _sweep(
    cell: Cell, folder: Path, path: Path, options: Options, progress: Callable[..., None] | None
) -> None:
    """Sweep the grid of a cell and write its record."""
    from pynade.atomic import write_json
    from pynade.runs.sweep import OtherSweep, Sweep

    quick, seed = options.quick, options.seed
    spec = cell.row.sweep_on(cell.data)
    grid = {k: v[:2] if quick else v for k, v in spec["grid"].items()}
    grid = seeded_grid(grid | (cell.row.quick.get("grid", {}) if quick else {}), seed)
    few = _few(spec["model"], spec["fixed"]) if quick else {}
    fixed = {**spec["fixed"], "device": options.device} | {k: v for k, v in few.items() if k not in grid}
    repeats = spec.get("repeats", 1)
    how: dict[str, Any] = {"seed": seed, "data_dir": options.data_dir, "retrain": spec["retrain"]}
    how |= {"repeats": min(repeats, 2) if quick else repeats, "quick": quick, "report": progress}

    def sweep() -> dict[str, Any]:
        return Sweep(folder, spec["model"], cell.data, fixed, grid, **how).run()

    try:
        record = sweep()
    except OtherSweep:
        if not options.outdated:
            reason = "was started with other settings, data, device or seed; --again starts it again"
            raise ValueError(f"{cell.name} {reason}") from None
        shutil.rmtree(folder)
        record = sweep()
    write_json(path, (NOT_COMPARABLE if quick else {}) | record)


def _fit(cell: Cell, folder: Path, path: Path, options: Options, callbacks: list[Callable[..., Any]]) -> None:
    """Train and score the run of a cell and write its record."""
    from pynade.atomic import write_json
    from pynade.runs.run import resume_run, start_run
    from pynade.runs.score import forget_chunks, score_run, write_record
    from pynade.runs.summary import read_spec

    quick = options.quick
    fit = cell.row.fit_on(cell.data)
    model, parameters = fit["model"], dict(fit["parameters"])
    data = fit.get("data", cell.data)  # a variant of the column's data set, with the same test set
    orderings, draws, every = cell.row.orderings, cell.row.draws, cell.row.every
    if quick:
        parameters |= _few(model, parameters) | cell.row.quick.get("parameters", {})
        every = cell.row.quick.get("every", every)
        orderings, draws = orderings and 2, draws and 2
    other = []
    if (folder / "spec.json").is_file():
        started = current_names(read_spec(folder)["parameters"])
        wanted = {k: v for k, v in parameters.items() if k != "binarize"} | {"random_state": options.seed}
        other = [k for k, v in wanted.items() if started.get(k) != v]  # (binarize is part of the data there)
    if other and not options.outdated:
        raise ValueError(f"{cell.name} was started with another {', '.join(other)}; --again starts it again")
    if other:
        shutil.rmtree(folder)
    first = TRIAL_ROWS if quick else None
    where: dict[str, Any] = {"data_dir": options.data_dir, "callbacks": callbacks}
    if (folder / "spec.json").is_file():
        resume_run(folder, **where)
    else:
        parameters |= {"device": options.device, "random_state": options.seed}
        start_run(folder, model, parameters, data, valid_rows=first, **where)
    how: dict[str, Any] = {"draws": draws, "precision": cell.row.precision, "every": every, "first": first}
    score = score_run(folder, data, "valid" if quick else "test", options.data_dir, orderings, **how)
    write_record(path, folder, score)
    forget_chunks(score)
    if quick:
        write_json(path, NOT_COMPARABLE | (read_json(path) or {}))


def _few(model: str, given: dict[str, Any]) -> dict[str, int]:
    """The parameters that make the training of a model short; one ordering stays one."""
    from pynade.estimators.registry import estimator_named

    known = estimator_named(model, {}).flat_parameters()
    single = "n_orderings" not in given
    return {
        name: min(few, (known | given)[name] or few)
        for name, few in QUICK.items()
        if name in known and not (name == "n_orderings" and single)
    }
