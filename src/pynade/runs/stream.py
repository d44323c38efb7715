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
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pynade._version import __version__
from pynade.arguments import check_positive
from pynade.atomic import LOCK, InUse, sole_writer, write_json
from pynade.digest import read_header, read_json, sealed
from pynade.engines import check_engine, each
from pynade.estimators import TabularNADE
from pynade.estimators.table_questions import listed
from pynade.likelihood import Estimate
from pynade.runs.answers import Facts, answer, estimate
from pynade.tables import files
from pynade.tables.modules import polars
from pynade.tables.stream import Part, Reader, check_output, check_unchanged, list_parts, part_size

Progress = (
    Callable[..., None] | None
)  # called with what is done, the total, and "reading" while types are found
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
        engine, workers: where parts are answered, as for `pynade.engines.each`.
        options: as for `answer`.
    """
    out, top = None if out is None else Path(out), options.get("top")
    folder = out is not None and not out.suffix
    check_engine(engine, workers)
    if out is not None:
        arrays = question == "score" or (question == "impute" and not isinstance(model, TabularNADE))
        endings = files.TABLE_ENDINGS if arrays else files.FRAME_ENDINGS
        files.check_destination(out, *(() if folder else endings))
        if question != "sample" and isinstance(data, str | os.PathLike):
            check_output(out, data)
        options["raw"] = out.suffix == ".npy"
    pieces = _pieces(model, question, data, rows, progress)
    several, total, found = len(pieces) > 1, sum(map(_size, pieces)), dict[int, tuple[Any, Facts]]()
    if several and options.get("raw"):
        what = f"{total:,} rows in {len(pieces)} parts"
        raise ValueError(f"cannot write {out}: {what} are written as .csv or .parquet")
    at_once = out is not None and not (several or folder)

    def answer_all(names: Sequence[Path | None]) -> None:
        """Answer what is not found; the first call of `progress` has what an earlier command did."""
        left = [number for number in range(len(pieces)) if number not in found]
        jobs = [(number, pieces[number], names[number], folder or number == 0) for number in left]
        worker = _Worker(model, question, options, several, top is not None or at_once)
        done = total - sum(_size(pieces[number]) for number in left)
        made = each(worker, jobs, engine, workers, getattr(model, "device", "cpu"))
        with closing(worker.read), closing(made) as answers:
            for job, answered in chain([(None, None)], answers):
                if job is not None:
                    found[left[job]] = answered
                    done += answered[1]["rows"]
                if progress is not None:
                    progress(done, total)

    def cells() -> Any:
        return None if top is None else _listed(_oddest(pieces, [found[k][0] for k in sorted(found)], top))

    if out is None or at_once:
        answer_all([None] * len(pieces))
        if out is not None:
            files.write_table(out, found[0][1]["header"], found[0][0] if top is None else cells())
    else:
        with _place(out, _key(model, question, pieces, options)) as place:
            names = _part_names(place / "parts", pieces, ".parquet" if top is not None else out.suffix)
            for number, (name, facts) in enumerate(zip(names, map(_kept, names), strict=True)):
                if facts:
                    found[number] = (None if top is None else polars.read_parquet(name, glob=False)), facts
            answer_all(names)
            check_unchanged(piece for piece in pieces if isinstance(piece, Part))
            if top is None:
                _join(names, out)
            else:
                files.write_table(place / out.name, None, cells())
                os.replace(place / out.name, out)
    every = [found[number][1] for number in sorted(found)]
    notes = dict.fromkeys(note for facts in every for note in facts.get("notes", ()))
    scores, gain = (estimate(model, every, name) for name in ("scores", "gain"))
    gaps, count = (sum(facts.get(name, 0) for facts in every) for name in ("gaps", "rows"))
    return Result(count, scores, gain, gaps, tuple(notes), cells(), len(pieces))


@dataclass(frozen=True)
class _Worker:
    """Answers a question about parts of a table, in any process, and writes the answers."""

    model: Any
    question: str
    options: Facts
    several: bool  # there are more parts than one
    keep: bool  # give the answers back too
    read: Reader = field(default_factory=Reader)

    def __call__(self, number: int, piece: Any, name: Path | None, header: bool) -> tuple[Any, Facts]:
        options = self.options
        if isinstance(piece, Part):
            options = {**options, "where": f"{piece.file}, part 'train'"}
        table = self.read(piece) if isinstance(piece, Part) else piece
        try:
            made, facts = answer(self.model, self.question, table, number, **options)
        except ValueError as error:
            if not (isinstance(piece, Part) and self.several) or str(piece.file) in str(error):
                raise
            raise ValueError(f"{piece.file}: {error}") from error
        if name is not None:
            write_part(name, made, facts, header)
        return made if self.keep else None, facts


def _pieces(model: Any, question: str, data: Any, rows: int | None, progress: Progress) -> list[Any]:
    """The parts of a table in files; a whole table; or numbers of rows to draw."""
    if question == "sample":
        check_positive(**{"the number of rows": data})
        step = part_size(rows, AT_ONCE)
        return [min(data - at, step) for at in range(0, data, step)]
    if not isinstance(data, str | os.PathLike):
        return [data]

    def reading(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total, "reading")

    numbers = not isinstance(model, TabularNADE)
    return list_parts(data, rows, getattr(model, "missing", None), numbers, reading)


def _size(piece: Any) -> int:
    return piece.rows if isinstance(piece, Part) else piece if isinstance(piece, int) else len(piece)


def _part_names(folder: Path, pieces: Sequence[Any], kind: str) -> list[Path]:
    """Files for the answers of all parts; in a folder they are of the kind of the files that are read."""
    first = pieces[0].file.name.lower() if isinstance(pieces[0], Part) else ""
    kind = kind or (".csv" if first.endswith((".csv", ".csv.gz")) else ".parquet")
    return [folder / f"part-{number:06}{kind}" for number in range(len(pieces))]


def _oddest(pieces: Sequence[Any], cells: Sequence[Any], top: int) -> Any:
    """The first so many of the odd cells of all parts."""
    firsts = [piece.first if isinstance(piece, Part) else 0 for piece in pieces]
    numbered = [some.with_columns(polars.col("row") + at) for some, at in zip(cells, firsts, strict=True)]
    both = polars.concat(numbered, how="vertical_relaxed")
    order = np.argsort(-np.nan_to_num(both["log_odds"].to_numpy(), nan=-np.inf), kind="stable")
    return both[order[:top]]


def _listed(cells: Any) -> Any:
    return listed({cell.name: cell.to_numpy() for cell in cells}, "polars")


def write_part(path: Path, made: Any, facts: Facts, header: bool = True) -> None:
    """Write the answer of a part, a .csv or .parquet file, and before it its facts; again is harmless.

    Args:
        path: the file; when it exists, all is there.
        made, facts: what `answer` gave; the facts go into a folder `facts` beside that of the file.
        header: write the names of the columns of a CSV file.
    """

    def write(place: Path) -> None:
        made.write_csv(place, include_header=header) if path.suffix == ".csv" else made.write_parquet(place)
        write_json(_facts_of(path), sealed(facts | {"sha256": _sha256(place)}))

    files.write_by_polars(path, write)


def _kept(path: Path) -> Facts | None:
    """The facts of a part that an earlier call wrote; None if it is not there, or was changed since."""
    with suppress(OSError, ValueError):
        facts = read_json(_facts_of(path), sha256=str)
        return facts if facts["sha256"] == _sha256(path) else None
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _facts_of(path: Path) -> Path:
    return path.parent.parent / "facts" / f"{path.stem}.json"


def _join(names: Sequence[Path], out: Path) -> None:
    """Make the output of the files of all parts, in order."""
    place = names[0].parent
    if not out.suffix:
        for file in {*place.iterdir()} - {*names}:  # of a process that was killed
            file.unlink()
        return os.replace(place, out)
    whole = place.parent / f"whole{out.suffix}"

    def join(path: Path) -> None:
        with path.open("wb") as file:
            for name in names:
                with name.open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)

    csv = out.suffix == ".csv"
    files.write_by_polars(whole, join if csv else polars.scan_parquet(list(names), glob=False).sink_parquet)
    os.replace(whole, out)


def _key(model: Any, question: str, pieces: Sequence[Any], options: Facts) -> str:
    """A digest of all that the answers depend on."""
    with TemporaryDirectory() as folder:
        model.save(file := Path(folder) / "model.safetensors")
        facts = json.dumps(read_header(file).facts, sort_keys=True)  # (the file has it in any order)
    named = isinstance(pieces[0], Part | int)  # else one table in memory, which no later call goes on with
    rows = list(map(str, pieces)) if named else secrets.token_hex()
    digest = hashlib.sha256(f"{facts} {__version__} {question} {rows} {options}".encode())
    for name, tensor in sorted(model.model_.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def _place(out: Path, key: str) -> Iterator[Path]:
    """The hidden folder of the parts of an output, with one writer; removed when all is done, or refused."""
    place = out.with_name(f".{out.name}.{key}.parts")
    for old in out.parent.glob(f".{escape(out.name)}.*.parts"):  # of another model, or of other files
        if old != place:
            with suppress(InUse, OSError):
                with sole_writer(old, wait=0):
                    _clear(old)
                old.rmdir()
    with _locked(place):
        try:
            for kind in ("parts", "facts"):
                (place / kind).mkdir(exist_ok=True)
            yield place
        except ValueError:
            _clear(place)
            raise
        _clear(place)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Make a folder and hold its lock; afterwards the folder is removed if it is empty.

    The lock is the last that leaves the folder, so that nobody writes into a folder that another removes.
    """
    try:
        with ExitStack() as held:
            entered = False
            while not entered:  # again if a process that had the lock removed the folder
                place.mkdir(exist_ok=True)
                with suppress(FileNotFoundError):
                    held.enter_context(sole_writer(place))
                    entered = True
            yield
    finally:
        with suppress(OSError):
            place.rmdir()


def _clear(place: Path) -> None:
    """Remove all of a folder but its lock."""
    for path in place.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in LOCK:
            path.unlink()
