"""Questions about tables larger than memory: answered part by part, in order, and written atomically.

Answers go into a hidden folder beside the output, a file for each part, and are joined when all are there; so
a call that was killed goes on where it was, and gives the same output. The name of the folder has a digest of
all that the answers depend on, and a part that was changed since it was written is computed again. Whatever
engine answers the parts, it writes the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pynade._version import __version__
from pynade.arguments import check_positive
from pynade.atomic import LOCK, InUse, sole_writer, write_json
from pynade.digest import add_digest, read_header, read_json
from pynade.engines import check_engine, run_jobs
from pynade.estimators import TabularNADE
from pynade.estimators.table_questions import odd_cells_frame
from pynade.likelihood import Estimate
from pynade.runs.answers import Facts, answer, estimate
from pynade.tables import files
from pynade.tables.modules import polars
from pynade.tables.stream import Part, Reader, check_output, check_unchanged, list_parts, part_size

Progress = Callable[..., None] | None  # called with rows done, all rows; bytes and "reading" before
AT_ONCE = 65_536  # rows that are drawn together


@dataclass(frozen=True)
class Result:
    """What a question gave, besides the rows that were written.

    Attributes:
        rows: how many rows were read or drawn.
        scores: mean log-likelihood of a row (score).
        gain: the same, less that of independent columns (score, of mixed tables).
        gaps: how many cells were filled (impute).
        notes: warnings.
        cells: the oddest cells of all parts (surprise).
        parts: how many parts there were.
    """

    rows: int
    scores: Estimate | None = None
    gain: Estimate | None = None
    gaps: int = 0
    notes: tuple[str, ...] = ()
    cells: Any = None
    parts: int = 1


def ask(
    model: Any,
    question: str,
    data: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    rows: int | None = None,
    progress: Progress = None,
    engine: str = "local",
    workers: int | None = None,
    **options: Any,
) -> Result:
    """Answer a question about all rows of a table, and write the answer.

    Args:
        model: a fitted estimator.
        question: as for `answer`.
        data: a CSV or Parquet file, a folder of them, a pattern, or a polars frame; of a sample the number of
            rows.
        out: a .csv or .parquet file, or a folder to make, with a file for each part; None writes nothing.
        rows: of a part, at most; by default 65,536, or fewer of a table of more than 256 columns.
        progress: called with the rows done, all rows, and "rows"; while types are found out, with bytes.
        engine, workers: where parts are answered, as for `pynade.engines.run_jobs`.
        options: as for `answer`.
    """
    out, top = None if out is None else Path(out), options.get("top")
    show: Callable[..., None] = progress or (lambda *_: None)
    to_folder = out is not None and not out.suffix
    check_engine(engine, workers)
    if out is not None:
        arrays = question == "score" or (question == "impute" and not isinstance(model, TabularNADE))
        endings = files.TABLE_ENDINGS if arrays else files.FRAME_ENDINGS
        files.check_destination(out, *(() if to_folder else endings))
        if question != "sample" and isinstance(data, str | os.PathLike):
            check_output(out, data)
        options["raw"] = out.suffix == ".npy"
    parts, sizes = _parts_of(model, question, data, rows, show)
    if len(parts) > 1 and options.get("raw"):
        message = f"{sum(sizes):,} rows in {len(parts)} parts are written as .csv or .parquet"
        raise ValueError(f"cannot write {out}: {message}")
    in_memory = len(parts) == 1 and not to_folder
    keep = top is not None or in_memory
    context: Any = nullcontext()
    if out is not None and not in_memory:
        context = _folder_of_parts(out, _key(model, question, parts, options))
    answers, paths = dict[int, tuple[Any, Facts]](), list[Any]([None] * len(parts))  # of each part
    with context as folder:
        if out is not None and folder is not None:
            paths = _part_paths(folder / "parts", parts, out.suffix if top is None else ".parquet")
        for number, path in enumerate(paths):
            if earlier := path and _read_facts(path):
                answers[number] = polars.read_parquet(path, glob=False) if keep else None, earlier
        left = [number for number in range(len(parts)) if number not in answers]
        jobs = [(number, parts[number], paths[number], to_folder or number == 0) for number in left]
        worker = _Worker(model, question, options, len(parts) > 1, keep)
        done = sum(sizes[number] for number in answers)
        show(done, sum(sizes))
        results = run_jobs(worker, jobs, engine, workers, getattr(model, "device", "cpu"))
        with closing(worker.read), closing(results):
            for job, result in results:
                answers[left[job]] = result
                done += result[1]["rows"]
                show(done, sum(sizes))
        tables, facts = zip(*(answers[number] for number in range(len(parts))), strict=True)
        cells = None if top is None else _oddest_cells(parts, tables, top)
        if out is not None and in_memory:
            files.write_table(out, None, tables[0] if top is None else cells)
        elif out is not None:
            check_unchanged(part for part in parts if isinstance(part, Part))
            _write_output(paths, out, cells)
    notes = dict.fromkeys(note for part in facts for note in part.get("notes", ()))
    scores, gain = (estimate(model, facts, name) for name in ("scores", "gain"))
    gaps, count = (sum(part.get(name, 0) for part in facts) for name in ("gaps", "rows"))
    return Result(count, scores, gain, gaps, tuple(notes), cells, len(parts))


@dataclass(frozen=True)
class _Worker:
    """Answers a question about parts of a table, in any process, and writes the answers."""

    model: Any
    question: str
    options: Facts
    name_files: bool  # in errors, because there are several parts
    keep: bool  # give the answers back too
    read: Reader = field(default_factory=Reader)

    def __call__(self, number: int, part: Any, path: Path | None, header: bool) -> tuple[Any, Facts]:
        table, options = part, self.options
        if isinstance(part, Part):
            table, options = self.read(part), options | {"where": f"{part.file}, part 'train'"}
        try:
            rows, facts = answer(self.model, self.question, table, number, **options)
        except ValueError as error:
            if not (isinstance(part, Part) and self.name_files) or str(part.file) in str(error):
                raise
            raise ValueError(f"{part.file}: {error}") from error
        if path is not None:
            _write_part(path, rows, facts, header)
        return rows if self.keep else None, facts


def _parts_of(
    model: Any, question: str, data: Any, rows: int | None, show: Callable[..., None]
) -> tuple[list[Any], list[int]]:
    """The parts of a table in files, a whole table, or numbers of rows to draw; and the rows of each."""
    if question == "sample":
        check_positive(**{"the number of rows": data})
        step = part_size(rows, AT_ONCE)
        sizes = [min(data - first, step) for first in range(0, data, step)]
        return sizes, sizes
    if not isinstance(data, str | os.PathLike):
        return [data], [len(data)]
    numbers, missing = not isinstance(model, TabularNADE), getattr(model, "missing", None)
    parts = list_parts(data, rows, missing, numbers, lambda done, total: show(done, total, "reading"))
    return parts, [part.rows for part in parts]


def _part_paths(folder: Path, parts: Sequence[Any], suffix: str) -> list[Path]:
    """Files for the answers of all parts; by default they are of the kind of the files that are read."""
    first = parts[0].file.name.lower() if isinstance(parts[0], Part) else ""
    suffix = suffix or (".csv" if first.endswith((".csv", ".csv.gz")) else ".parquet")
    return [folder / f"part-{number:06}{suffix}" for number in range(len(parts))]


def _oddest_cells(parts: Sequence[Any], tables: Sequence[Any], top: int) -> Any:
    """The first so many of the odd cells of all parts."""
    firsts = [part.first if isinstance(part, Part) else 0 for part in parts]
    numbered = [cells.with_columns(polars.col("row") + n) for cells, n in zip(tables, firsts, strict=True)]
    cells = polars.concat(numbered, how="vertical_relaxed")
    order = np.argsort(-np.nan_to_num(cells["log_odds"].to_numpy(), nan=-np.inf), kind="stable")
    return odd_cells_frame({column.name: column.to_numpy() for column in cells[order[:top]]}, "polars")


def _write_part(path: Path, rows: Any, facts: Facts, header: bool) -> None:
    """Write the answer of a part, a .csv or .parquet file, and before it its facts; again is harmless.

    When the file exists, all is there. The header has the names of the columns of a CSV file.
    """

    def write(temporary: Path) -> None:
        if path.suffix == ".csv":
            rows.write_csv(temporary, include_header=header)
        else:
            rows.write_parquet(temporary)
        write_json(_facts_path(path), add_digest(facts | {"sha256": _sha256(temporary)}))

    files.write_by_polars(path, write)


def _read_facts(path: Path) -> Facts | None:
    """The facts of a part that an earlier call wrote; None if it is not there, or was changed since."""
    with suppress(OSError, ValueError):
        facts = read_json(_facts_path(path), sha256=str)
        return facts if facts["sha256"] == _sha256(path) else None
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _facts_path(path: Path) -> Path:
    return path.parent.parent / "facts" / f"{path.stem}.json"


def _write_output(paths: Sequence[Path], out: Path, table: Any) -> None:
    """Make the output of a table, or (None) of the files of all parts, in order."""
    folder = paths[0].parent
    if table is None and not out.suffix:
        for file in {*folder.iterdir()} - {*paths}:  # of a process that was killed
            file.unlink()
        return os.replace(folder, out)
    output = folder.parent / f"output{out.suffix}"

    def join(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for path in paths:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)

    if table is not None:
        files.write_table(output, None, table)
    elif out.suffix == ".csv":
        files.write_by_polars(output, join)
    else:
        files.write_by_polars(output, polars.scan_parquet(list(paths), glob=False).sink_parquet)
    os.replace(output, out)


def _key(model: Any, question: str, parts: Sequence[Any], options: Facts) -> str:
    """A digest of all that the answers depend on."""
    with TemporaryDirectory() as folder:
        model.save(file := Path(folder) / "model.safetensors")
        facts = json.dumps(read_header(file).facts, sort_keys=True)  # (the file has it in any order)
    named = isinstance(parts[0], Part | int)  # else one table in memory, which no later call goes on with
    rows = list(map(str, parts)) if named else secrets.token_hex()
    digest = hashlib.sha256(f"{facts} {__version__} {question} {rows} {options}".encode())
    for name, tensor in sorted(model.model_.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def _folder_of_parts(out: Path, key: str) -> Iterator[Path]:
    """The hidden folder of the parts of an output, with one writer; removed when all is done, or refused."""
    folder = out.with_name(f".{out.name}.{key}.parts")
    for old in out.parent.glob(f".{escape(out.name)}.*.parts"):  # of another model, or of other files
        if old != folder:
            with suppress(InUse, OSError):
                with sole_writer(old, wait=0):
                    _clear(old)
                old.rmdir()
    with _locked(folder):
        try:
            for name in ("parts", "facts"):
                (folder / name).mkdir(exist_ok=True)
            yield folder
        except ValueError:
            _clear(folder)
            raise
        _clear(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make a folder and hold its lock; afterwards the folder is removed if it is empty.

    The lock is the last that leaves the folder, so that nobody writes into a folder that another removes.
    """
    try:
        with ExitStack() as stack:
            locked = False
            while not locked:  # again if a process that had the lock removed the folder
                folder.mkdir(exist_ok=True)
                with suppress(FileNotFoundError):
                    stack.enter_context(sole_writer(folder))
                    locked = True
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def _clear(folder: Path) -> None:
    """Remove all of a folder but its lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in LOCK:
            path.unlink()
