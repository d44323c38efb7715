"""Tables larger than memory, in CSV and Parquet files: where some of their rows are, and reading these.

A table is a file, a folder of files, or a pattern such as ``data/*.parquet``. Files follow each other in the
order of their names, and have the same columns. The types of the columns of CSV files follow from all cells
of all files, so that a table means the same whether it is read at once or part by part.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from glob import glob
from itertools import accumulate, zip_longest
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.files import Words, ending, missing_words, parquet_errors
from pynade.tables.frames import default_names
from pynade.tables.modules import polars
from pynade.tables.parquet import check_parquet
from pynade.tables.registry import Place, is_registered
from pynade.tables.text import TYPES, CsvText, as_type, open_csv, packed_errors, rows_of, types_of

ENDINGS = (".csv", ".csv.gz", ".parquet")
ROWS, CELLS = 1 << 16, 1 << 24  # of a part, at most
BLOCK = 1 << 23  # bytes of a CSV file that are looked at together
LONGEST = 1 << 28  # bytes of a row of a CSV file, at most


@dataclass(frozen=True)
class Columns:
    """What the files of a table have in common."""

    names: tuple[str, ...]
    types: tuple[str, ...]  # of a CSV file, as in `pynade.tables.text`; of a Parquet file, of polars
    missing: tuple[str, ...]  # texts of CSV files that mean "missing", in lower case
    numbers: bool  # whether all cells of CSV files are read as numbers


@dataclass(frozen=True)
class Part:
    """Rows that follow each other in one file of a table; `read_part` reads them."""

    file: Path
    first: int  # its first row, counted from 0 over all files
    rows: int
    begin: int  # in the file: the first row (Parquet), or the first byte, unpacked (CSV)
    end: int  # likewise, where the next part begins
    line: int  # of a CSV file: how many lines come before
    size: int  # bytes of the file when its rows were counted
    mtime: int  # nanoseconds: when it had been changed last
    columns: Columns


Piece = tuple[int, int, int, int]  # rows, begin, end and line of a part
Progress = Callable[[int, int], None] | None  # called with the bytes done, and all


def is_table(data: Place) -> bool:
    """Whether this is a CSV or Parquet file, a folder that has some, or a pattern; no registered name."""
    if isinstance(data, str) and is_registered(data):
        return False
    path = Path(os.path.expanduser(data))
    if path.is_dir():
        return bool(_files_in(path))
    return path.name.lower().endswith(ENDINGS) if path.exists() else _is_pattern(data)


def _is_pattern(data: Place) -> bool:
    return any(mark in str(data) for mark in "*?[")


def _files_in(folder: Path) -> list[Path]:
    """The CSV and Parquet files in a folder and its folders, but for hidden ones (``.name``, ``_name``)."""
    paths = (path for path in folder.rglob("*") if path.name.lower().endswith(ENDINGS) and not path.is_dir())
    return sorted(p for p in paths if not any(n.startswith((".", "_")) for n in p.relative_to(folder).parts))


def table_files(data: Place) -> list[Path]:
    """The files of a table, in the order of their names."""
    path = Path(os.path.expanduser(data))
    if path.is_dir():
        files = _files_in(path)
    elif not path.exists() and _is_pattern(data):
        files = sorted(map(Path, glob(str(path), recursive=True)))
    else:
        files = [path]
    if not files:
        raise ValueError(f"there is no CSV or Parquet file ({', '.join(ENDINGS)}) in {data}")
    first = ending(files[0])
    expected = f"like {files[0].name}" if first in ENDINGS else "CSV or Parquet"
    for file in files:
        if (kind := ending(file)) not in ENDINGS or kind != first:
            raise ValueError(f"{file} is a {kind} file; expected all files of a table to be {expected}")
    return files


def check_output(out: Path, data: Place) -> None:
    """Raise a ValueError if an output would be one of the files of a table that is read.

    Args:
        out: Where to write.
        data: As for `list_parts`.
    """
    folder = Path(os.path.expanduser(data))
    inside = folder.is_dir() and out.resolve().is_relative_to(folder.resolve())
    if inside or (out.is_file() and any(map(out.samefile, table_files(data)))):
        raise ValueError(f"cannot write {out}: it would be a file of the table that is read, {data}")


def part_size(rows: Any, usual: int) -> int:
    """How many rows a part has at most: as asked for, or else the usual number."""
    if rows is None:
        return usual
    if not isinstance(rows, Integral) or rows < 1:
        raise ValueError(f"the rows of a part must be a whole number from 1 on, not {rows!r}")
    return int(rows)


def list_parts(
    data: Place,
    rows: int | None = None,
    missing: Words = None,
    numbers: bool = False,
    progress: Progress = None,
) -> list[Part]:
    """Return where the rows of a table are, some of them at a time, in order.

    Of Parquet files only the metadata are read. CSV files are read through once, for the types of their
    columns; each part ends at the end of a row.

    Args:
        data: A file, a folder, or a pattern such as ``data/*.parquet``.
        rows: How many in a part, at most; by default 65,536, or fewer of a table of more than 256 columns.
        missing: As in `pynade.tables.files.read_frame`.
        numbers: Read all cells of CSV files as numbers; `Part.rows` then counts blank lines too.
        progress: Called as ``progress(done_bytes, total_bytes)``.

    Raises:
        ValueError: A file is damaged, has other columns than the first, or no rows; the message names it.
    """
    files, tokens = table_files(data), missing_words(missing)
    states = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    done, total, pieces = 0, sum(size for size, _ in states), list[tuple[Path, Piece, tuple[int, int]]]()
    schema: dict[str, str] = {}
    kinds: Any = None
    for file, state in zip(files, states, strict=True):

        def show(byte: int, before: int = done) -> None:
            if progress is not None:
                progress(before + byte, total)

        with _unchanged(file, *state):
            if ending(file) == ".parquet":
                columns, file_pieces = _scan_parquet(file, rows)
            else:
                columns, file_pieces, kinds = _scan_csv(file, rows, kinds, tokens, numbers, show)
        schema = schema or columns
        for column, expected in zip_longest(columns.items(), schema.items()):
            if column != expected:
                words = [f"{c[0]!r} {c[1]}".strip() if c else "no column" for c in (column, expected)]
                raise ValueError(f"{file} has other columns than {files[0]}: {' in place of '.join(words)}")
        done += state[0]
        pieces += [(file, piece, state) for piece in file_pieces]
    if not pieces:
        raise ValueError(f"{files[0]} has column names but no rows")
    types = schema.values() if kinds is None else ("text" if kind == TYPES else kind[0] for kind in kinds)
    common = Columns(tuple(schema), tuple(types), tokens, numbers)
    firsts = accumulate((piece[0] for _, piece, _ in pieces), initial=0)
    return [
        Part(file, first, *piece, *state, common)
        for (file, piece, state), first in zip(pieces, firsts, strict=False)
    ]


def _max_rows(rows: int | None, width: int) -> int:
    return part_size(rows, max(1, min(ROWS, CELLS // max(1, width))))


def _scan_parquet(file: Path, rows: int | None) -> tuple[dict[str, str], list[Piece]]:
    """Names with types, and the parts of a Parquet file."""
    with parquet_errors(file):
        n, schema = check_parquet(file), polars.scan_parquet(file, glob=False).collect_schema()
    if not schema:
        raise ValueError(f"{file} has no columns")
    step = _max_rows(rows, len(schema))
    pieces = [(min(step, n - at), at, min(n, at + step), 0) for at in range(0, n, step)]
    return {name: str(dtype) for name, dtype in schema.items()}, pieces


def _scan_csv(
    file: Path,
    rows: int | None,
    kinds: Any,
    missing: Sequence[str],
    numbers: bool,
    show: Callable[[int], None],
) -> tuple[dict[str, str], list[Piece], Any]:
    """Names and parts of a CSV file; and the types that its columns and those of earlier files can have."""
    head, pieces = _head(file), []
    kinds = kinds or (None if numbers else [TYPES] * len(head.cells))
    for begin, line, raw in _csv_parts(file, head, _max_rows(rows, len(head.cells)), show):
        count = _count_lines(raw) + (not raw.endswith((b"\n", b"\r")))
        if not numbers:
            texts = head.part(raw, begin, line).texts(missing)
            count = len(texts[0])
            kinds = [tuple(types_of(*column)) for column in zip(texts, kinds, strict=False)]
        if count:  # else there are blanks in quotes only
            pieces.append((count, begin, begin + len(raw), line))
    return dict.fromkeys(head.names or default_names(len(head.cells)), ""), pieces, kinds


def _head(file: Path) -> CsvText:
    """The beginning of a CSV file: its delimiter and the names of its columns."""
    with packed_errors(file), open_csv(file) as stream:
        raw = stream.read(BLOCK)
        return CsvText(file, raw[: raw.rfind(b"\n") + 1 or None] if stream.read(1) else raw)


def _csv_parts(
    file: Path, head: CsvText, rows: int, show: Callable[[int], None]
) -> Iterator[tuple[int, int, bytes]]:
    """Of each part of a CSV file the byte and the line where it begins, and its text."""
    begin, line, text = head.start, head.line, b""
    with packed_errors(file), open_csv(file) as stream:
        stream.seek(begin)
        while True:
            block, cut = stream.read(BLOCK), 0
            text += block
            ends, broken = _row_ends(text, head.delimiter, last=not block)
            if len(text) - (complete := ends[-1] if ends else 0) > LONGEST:
                where = f"{file}, after line {line + _count_lines(text[:complete])}"
                raise ValueError(f"{where}: a row has more than {LONGEST:,} bytes; do its quotes match?")
            for end in ends[rows - 1 :: rows]:
                part = text[cut:end]
                if part.strip():  # else blank lines
                    yield begin + cut, line, part
                line += _count_lines(part)
                cut = end
            begin, text = begin + cut, text[cut:]
            show(getattr(stream, "fileobj", stream).tell())
            if not block or broken:
                if text.strip():
                    yield begin, line, text
                return


def _count_lines(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def _row_ends(text: bytes, delimiter: str, last: bool) -> tuple[list[int], bool]:
    """Where the rows of a CSV text end, the complete ones; and whether quotes do not match after these."""
    if b'"' not in text and text.count(b"\r") == text.count(b"\r\n"):
        return (np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1).tolist(), False
    ends: list[int] = []
    text = text if last else text[: max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1]
    try:  # (in this encoding every byte is a character)
        ends.extend(end for _, _, end in rows_of(text.decode("latin-1"), delimiter))
    except csv.Error as error:
        return ends, "end of data" not in str(error)
    return ends, False


class Reader:
    """Reads parts; of a CSV file whose parts are asked for in order, it unpacks each byte once."""

    file: Path | None = None  # the CSV file that is open
    head: Any = None  # its beginning
    stream: Any = None

    def __call__(self, part: Part) -> polars.DataFrame:
        """Return the rows of a part; a file that changed, vanished or is damaged is named by the error."""
        file, columns = part.file, part.columns
        with _unchanged(file, part.size, part.mtime):
            if ending(file) == ".parquet":
                with parquet_errors(file):
                    rows = polars.scan_parquet(file, glob=False).slice(part.begin, part.rows).collect()
                    if len(rows) != part.rows:
                        raise ValueError(f"{len(rows)} rows were found where {part.rows} are expected")
                    return rows
            if file != self.file:
                self.close()
                self.file, self.head, self.stream = file, _head(file), open_csv(file)
            with packed_errors(file):
                self.stream.seek(part.begin)
                raw = self.stream.read(part.end - part.begin)
            text = self.head.part(raw, part.begin, part.line)
            if columns.numbers:
                return polars.DataFrame(text.numbers(), columns.names)
            texts = text.texts(columns.missing)
            return polars.DataFrame([as_type(t, kind) for t, kind in zip(texts, columns.types, strict=True)])

    def close(self) -> None:
        """Close the file that is open."""
        if self.stream is not None:
            self.stream.close()
        self.file = None


def read_part(part: Part) -> polars.DataFrame:
    """Return the rows of one part of a table, as `Reader` does."""
    with closing(Reader()) as read:
        return read(part)


def read_parts(parts: Iterable[Part]) -> Iterator[tuple[Part, polars.DataFrame]]:
    """The parts with their rows, one after the other; a file is unpacked once."""
    with closing(Reader()) as read:
        for part in parts:
            yield part, read(part)


def check_unchanged(parts: Iterable[Part]) -> None:
    """Raise an error if a file is not what it was when its rows were counted."""
    for file, size, mtime in {(part.file, part.size, part.mtime) for part in parts}:
        with _unchanged(file, size, mtime):
            pass


@contextmanager
def _unchanged(file: Path, size: int, mtime: int) -> Iterator[None]:
    """Raise an error if a file is not the same after this block, instead of any error in the block."""
    try:
        yield
    finally:
        try:
            facts = os.stat(file)
        except FileNotFoundError:
            raise FileNotFoundError(f"{file} has disappeared since its rows were counted") from None
        if (facts.st_size, facts.st_mtime_ns) != (size, mtime):
            bytes_ = f"it had {size:,} bytes and has {facts.st_size:,}"
            raise ValueError(
                f"{file} has changed since its rows were counted ({bytes_}): start again"
            ) from None
