"""Making the paper's tables again, cell by cell.

A cell is a row of `protocols/*.toml` on one data set. Its `fit` (one run, settings chosen before or by the
estimator itself) or `sweep` (a grid chosen on validation) says how its record is made. Work in progress lives
in a folder of its own, so an interrupted cell goes on; a finished one leaves its record under results/ and is
skipped the next time.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from pynade.atomic import write_json
from pynade.estimators import ESTIMATORS, AnyOrderDensity
from pynade.runs.run import estimator_named, read_spec, resume_run, start_run
from pynade.runs.score import forget_chunks, score_run, write_record
from pynade.runs.sweep import TRIAL, OtherSweep, run_sweep
from pynade.training import Callback
from pynade_paper.tables import TABLES, Row, Table, measured, read_json, table

QUICK = {
    "epochs": 2,
    "iterations": 2,
    "updates_per_epoch": 5,
    "batch_size": 100,
    "n_orderings": 2,
}  # at most: a laptop minute for every cell
TRIAL_MINUTES = 0.5  # about what one takes
NOT_COMPARABLE = {"quick": True, "note": "a trial of the path: not comparable"}


class OutOfTime(Exception):
    """A cell was not begun, since it would not have been done in time."""


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    table: str
    row: Row
    data: str

    @property
    def name(self) -> str:
        """Such as "uci/red_wine/rnade-mog"."""
        return self.row.record.format(data=self.data).removesuffix(".json")

    @property
    def runnable(self) -> bool:
        """Whether a protocol is written down for it."""
        return self.row.fit is not None or self.row.sweep is not None


def table_named(word: str) -> list[str]:
    """The tables a word stands for: a name, "table-2" and the like, or "all".

    Example:
        >>> table_named("table-6"), table_named("uci")
        (['uci'], ['uci'])
    """
    if word == "all":
        return list(TABLES)
    number = re.fullmatch(r"table-(\d+)", word)
    found = [n for n in TABLES if n == word or (number and int(number[1]) in table(n).number)]
    if not found:
        numbers = ", ".join(f"table-{k} ({n})" for n in TABLES for k in table(n).number)
        raise ValueError(f"unknown table {word!r}; known: {', '.join(TABLES)}, all, or {numbers}")
    return found


def cells(tables: list[str], model: str | None = None, data: str | None = None) -> list[Cell]:
    """The cells of some tables, each record once; `model` is a row's name or the name of its record.

    Example:
        >>> [cell.name for cell in cells(["uci"], model="rnade-mog", data="red_wine")]
        ['uci/red_wine/rnade-mog']
    """
    made: dict[str, Cell] = {}
    for name in tables:
        shown = table(name)
        if data in shown.unavailable:
            raise ValueError(f"{data} is not measured: {shown.unavailable[data]}")
        for row in (row for row in shown.rows if row.why is None):
            for column in shown.columns:
                cell = Cell(name, row, column)
                wanted = (data in (None, column)) and (model in (None, row.model, Path(cell.name).name))
                if wanted and column not in shown.unavailable and (cell.runnable or cell.name not in made):
                    made[cell.name] = cell
    if not made and model is None and data is None:
        raise ValueError(f"no cell of {', '.join(tables)} can be run yet")
    if not made:
        asked = [f"model {model!r}"] if model is not None else []
        asked += [f"data set {data!r}"] if data is not None else []
        every = [Path(cell.name) for cell in cells(tables)]
        raise ValueError(
            f"no cell of {', '.join(tables)} has {' and '.join(asked)}; models: "
            f"{', '.join(dict.fromkeys(path.name for path in every))}; data sets: "
            f"{', '.join(dict.fromkeys(path.parent.name for path in every))}"
        )
    return list(made.values())


def expected_minutes(cell: Cell, results: Path, device: str = "auto", quick: bool = False) -> float:
    """How long a cell will take: what its record says of the same kind of device, else its row's guess.

    The guess is for an H200, that of a trial for any machine.
    """
    if quick:
        return TRIAL_MINUTES
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = measured(results, cell.row, cell.data)
    if ours is None or not ours.present or not ours.seconds:
        return cell.row.minutes
    same = ours.device.startswith("cpu") == (device == "cpu")
    return (ours.seconds + ours.scoring) / 60 if same else cell.row.minutes


def plan(
    todo: list[Cell],
    results: Path,
    minutes: float | None,
    device: str = "auto",
    workers: int = 1,
    quick: bool = False,
) -> tuple[list[Cell], list[Cell]]:
    """What fits into the minutes, and what is left out: the widest gap to the paper first.

    Cells without a number of ours come before those with one, and of those the ones that the paper has first;
    among cells with a number, the one furthest below the paper. Several workers have the minutes each.
    """

    def rank(cell: Cell) -> tuple[int, float, float]:
        ours, paper = measured(results, cell.row, cell.data), cell.row.paper.get(cell.data)
        if ours is None:
            return int(paper is None), 0.0, times[cell.name]
        beside = paper is not None and table(cell.table).compare and not cell.row.deviation
        return 2, ours.mean - (paper or 0.0) if beside else 0.0, times[cell.name]

    times = {cell.name: expected_minutes(cell, results, device, quick) for cell in todo}
    order = sorted((c for c in todo if c.runnable), key=rank)
    taken, left, spent = [], [c for c in todo if not c.runnable], 0.0
    for cell in order:
        time_of = times[cell.name]
        if minutes is None or (time_of <= minutes and spent + time_of <= workers * minutes):
            taken.append(cell)
            spent += time_of
        else:
            left.append(cell)
    return taken, left


def reproduce(
    cell: Cell,
    results: Path,
    work: Path,
    *,
    device: str = "auto",
    quick: bool = False,
    again: bool = False,
    outdated: bool = False,
    keep: bool = False,
    data_dir: Path | None = None,
    seed: int = 0,
    callbacks: list[Callback] | None = None,
    told: Callable[..., None] | None = None,
) -> dict[str, Any]:
    """Make one cell's record, or read it back if it is there (a trial is always made).

    Args:
        cell: which.
        results: folder of the records.
        work: folder of runs and sweeps; removed for this cell when its record is written.
        device: where to compute.
        quick: the same path with a few epochs; the record stays in the work folder and says that it does not
            compare.
        again: make it anew, from the start.
        outdated: make it anew; what was begun by the protocol of today goes on.
        keep: leave the run (model, metrics) in the work folder when its record is written.
        data_dir: folder of the data sets.
        seed: of everything random; a grid's own seeds are counted from it.
        callbacks: told of a run's progress.
        told: told of a sweep's progress.
    """
    record = (work if quick else results) / f"{cell.name}.json"
    known = read_json(record)
    if known and not (again or outdated or quick or in_progress(cell, work)):
        return known
    place = work / ("quick" if quick else "full") / cell.name
    if (again or (quick and known)) and place.exists():
        shutil.rmtree(place)
    record.parent.mkdir(parents=True, exist_ok=True)
    if again and not quick:
        _anew(cell, work).parent.mkdir(parents=True, exist_ok=True)
        _anew(cell, work).touch()
    if cell.row.sweep is not None:
        spec = cell.row.sweep_on(cell.data)
        grid = {k: v[:2] if quick else v for k, v in spec["grid"].items()}
        grid |= cell.row.quick.get("grid", {}) if quick else {}
        grid |= {k: [seed + own for own in v] for k, v in grid.items() if k == "random_state"}
        few = _few(spec["model"], spec["fixed"]) if quick else {}
        fixed = {**spec["fixed"], "device": device} | {k: v for k, v in few.items() if k not in grid}
        repeats = spec.get("repeats", 1)

        def sweep() -> dict[str, Any]:
            return run_sweep(
                place,
                spec["model"],
                cell.data,
                fixed,
                grid,
                seed=seed,
                data_dir=data_dir,
                retrain=spec["retrain"],
                repeats=min(repeats, 2) if quick else repeats,
                quick=quick,
                told=told,
            )

        try:
            content = sweep()
        except OtherSweep:
            if not outdated:
                words = "was begun with other settings, data, device or seed; --again starts it anew"
                raise ValueError(f"{cell.name} {words}") from None
            shutil.rmtree(place)
            content = sweep()
        write_json(record, (NOT_COMPARABLE if quick else {}) | content)
    elif cell.row.fit is not None:
        _fit(cell, place, record, device, quick, outdated, data_dir, seed, callbacks or [])
    else:
        raise ValueError(f"no protocol is written down yet for {cell.name}")
    if not keep:
        shutil.rmtree(place)
    if not quick:
        _anew(cell, work).unlink(missing_ok=True)
    return dict(json.loads(record.read_text(encoding="utf-8")))


def _anew(cell: Cell, work: Path) -> Path:
    return work / "full" / f"{cell.name}.anew"


def in_progress(cell: Cell, work: Path) -> bool:
    """Whether a cell that has a record is being made anew (`again`) and was interrupted."""
    return _anew(cell, work).is_file() and (work / "full" / cell.name).is_dir()


def reproduce_all(
    todo: list[Cell], workers: int, results: Path, work: Path, **how: Any
) -> Iterator[tuple[Cell, dict[str, Any] | Exception, float]]:
    """Make several cells at a time, each in a process of its own: the cell, its record or error, seconds.

    Two on a GPU hide each other's starting up; more help only models that leave most of it idle.
    """
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        jobs = {pool.submit(_alone, cell, results, work, how): cell for cell in todo}
        for job in as_completed(jobs):
            record, seconds = job.result()
            yield jobs[job], record, seconds
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()  # Ctrl-C reaches it too, a signal to this process alone does not
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _alone(
    cell: Cell, results: Path, work: Path, how: dict[str, Any]
) -> tuple[dict[str, Any] | Exception, float]:
    torch.set_num_threads(1)
    return attempt(cell, results, work, **how)


def attempt(
    cell: Cell, results: Path, work: Path, deadline: float | None = None, **how: Any
) -> tuple[dict[str, Any] | Exception, float]:
    """Make one cell: its record, or what went wrong with it (others may go on), and the seconds it took.

    Args:
        cell: which.
        results: folder of the records.
        work: folder of runs in progress.
        deadline: by time.time(); a cell that would not be done by then is not begun: `OutOfTime`.
        **how: see `reproduce`.
    """
    begin = time.monotonic()
    minutes = expected_minutes(cell, results, how.get("device", "auto"), how.get("quick", False))
    if deadline is not None and time.time() + 60 * minutes > deadline:
        return OutOfTime(f"about {minutes:g} min are more than the budget has left"), 0.0
    try:
        return reproduce(cell, results, work, **how), time.monotonic() - begin
    except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
        return error, time.monotonic() - begin


def _fit(
    cell: Cell,
    place: Path,
    record: Path,
    device: str,
    quick: bool,
    outdated: bool,
    data_dir: Path | None,
    seed: int,
    callbacks: list[Callback],
) -> None:
    fit = cell.row.fit_on(cell.data)
    model, parameters = fit["model"], dict(fit["parameters"])
    data = fit.get("data", cell.data)  # a variant of the column's, with the same test part
    orderings, draws, every = cell.row.orderings, cell.row.draws, cell.row.every
    if orderings is None and issubclass(ESTIMATORS[model], AnyOrderDensity):
        orderings = parameters.get("n_orderings")  # smaller ensembles come for nothing
    if quick:
        parameters |= _few(model, parameters) | cell.row.quick.get("parameters", {})
        every = cell.row.quick.get("every", every)
        orderings, draws = orderings and 2, draws and 2
    other = []
    if (place / "spec.json").is_file():
        begun = read_spec(place)["parameters"]
        wanted = {k: v for k, v in parameters.items() if k != "binarize"} | {"random_state": seed}
        other = [k for k, v in wanted.items() if begun.get(k) != v]  # (binarize is the data's by now)
    if other and not outdated:
        raise ValueError(f"{cell.name} was begun with another {', '.join(other)}; --again starts it anew")
    if other:
        shutil.rmtree(place)
    if (place / "spec.json").is_file():
        resume_run(place, data_dir=data_dir, callbacks=callbacks)
    else:
        parameters |= {"device": device, "random_state": seed}
        few = TRIAL if quick else None
        start_run(place, model, parameters, data, data_dir=data_dir, valid_rows=few, callbacks=callbacks)
    score = score_run(
        place,
        data,
        "valid" if quick else "test",
        data_dir,
        orderings,
        draws=draws,
        precision=cell.row.precision,
        every=every,
        first=TRIAL if quick else None,
    )
    write_record(record, place, score)
    if score.orderings is not None:
        forget_chunks(place, score)
    if quick:
        content = json.loads(record.read_text(encoding="utf-8"))
        write_json(record, NOT_COMPARABLE | content)


def _few(model: str, given: dict[str, Any]) -> dict[str, int]:
    """What makes a model's learning short; one ordering stays one."""
    known = estimator_named(model, {}).get_params()
    single = "n_orderings" not in given
    return {
        name: min(few, (known | given)[name] or few)
        for name, few in QUICK.items()
        if name in known and not (name == "n_orderings" and single)
    }


def describe_cell(cell: Cell, shown: Table) -> str:
    """A cell's protocol as a sentence.

    Example:
        >>> cell = cells(["uci"], model="gaussian", data="red_wine")[0]
        >>> describe_cell(cell, table("uci"))
        'Gaussian on red_wine: sweep gaussian with standardise False, then retrain on train + valid'
    """
    row = cell.row
    if row.sweep is not None:
        sweep = row.sweep_on(cell.data)
        words = ", ".join(f"{k} {v}" for k, v in sweep["fixed"].items())
        tried = ", ".join(f"{k} in {v}" for k, v in sweep["grid"].items())
        end = ", then retrain on train + valid" if sweep["retrain"] else ""
        end += f", with {sweep['repeats']} seeds" if "repeats" in sweep else ""
        over = f", over {tried}" if tried else ""
        return f"{row.model} on {cell.data}: sweep {sweep['model']} with {words}{over}{end}"
    if row.fit is not None:
        words = ", ".join(f"{k} {v}" for k, v in row.fit_on(cell.data)["parameters"].items())
        end = f"; {row.orderings} orderings" if row.orderings else ""
        if row.orderings and row.draws:
            end += f", exact on test[::{row.every}], corrected by {row.draws} draws on all rows"
        return (
            f"{row.model} on {cell.data}: fit {row.fit['model']}" + (f" with {words}" if words else "") + end
        )
    return f"{row.model} on {cell.data}: no protocol yet ({shown.title})"
