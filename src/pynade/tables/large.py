"""Tables in files, larger than memory, that a model is fitted to: their columns, and the codes of their rows.

There are two passes over the files, some rows at a time. The first counts the values of every column, so that
the schema is that of the table in memory, and takes a random sample of the rows. The second writes the codes
of all rows into a file without a name, from which training draws rows at random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from pynade.atomic import report_write_errors
from pynade.tables.files import Words
from pynade.tables.frames import cells
from pynade.tables.infer import Tally
from pynade.tables.modules import nw, polars
from pynade.tables.registry import Place
from pynade.tables.schema import Schema, missing_tokens
from pynade.tables.stream import Part, check_unchanged, list_parts, read_parts

if TYPE_CHECKING:
    import torch

VALUES = 1 << 24  # different values of all columns together that are counted, at most
TEXTS = 1 << 17  # different texts of a column, at most
SAMPLED, SAMPLED_CELLS = 200_000, 1 << 24  # rows of the sample, and its cells, at most
HELD = 20_000  # rows held out, at most
CODED = 16  # bytes in memory of a cell of an encoded table: its code and its offset
Progress = Callable[[int, int, str], None] | None


class FileTable:
    """A table in CSV or Parquet files, of which some rows are read at a time.

    Args:
        data: A file, a folder, or a pattern such as ``data/*.parquet``.
        missing: As in `pynade.tables.files.read_frame`.
        drop: Names of columns that are not looked at.
        held: Share of the rows that are held out, at most 20,000; always the same ones.
        progress: Called with the rows done, all rows, and "counting" or "encoding"; with bytes and "reading"
            while the rows of CSV files are found.

    Raises:
        ValueError: As in `pynade.tables.stream.list_parts`; a file has changed, or a part of it is damaged.
    """

    def __init__(
        self,
        data: Place,
        missing: Words = None,
        drop: Sequence[str] = (),
        held: float = 0.0,
        progress: Progress = None,
    ) -> None:
        self.missing, self.drop, self.progress = missing, drop, progress
        self.parts = list_parts(data, missing=missing, progress=partial(self._show, step="reading"))
        self.names = self.parts[0].columns.names
        n, width = self.shape = sum(part.rows for part in self.parts), len(self.names)
        n_held = min(HELD, round(held * n))
        n_held = n_held if 2 <= n_held <= n - 2 else 0
        n_drawn = n_held + min(SAMPLED, SAMPLED_CELLS // width, n - n_held)
        drawn = np.random.default_rng(0).choice(n, n_drawn, replace=False)
        self._held_rows, self._sample_rows = (np.sort(rows) for rows in np.split(drawn, [n_held]))
        self._tallies: dict[str, Tally] = {}  # of the columns that no schema has used yet
        self._schema: tuple[str, Schema] | None = None  # with the kinds that were asked for

    def __len__(self) -> int:
        return self.shape[0]

    def fits(self, gib: float) -> bool:
        """Whether the encoded table takes at most so many GiB of memory."""
        return CODED * self.shape[0] * self.shape[1] <= gib * 2**30

    def read(self) -> polars.DataFrame:
        """Return all rows, in memory."""
        return polars.concat([frame for _, frame in read_parts(self.parts)])

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file, by its whole path."""
        digests = {}
        for file in dict.fromkeys(part.file for part in self.parts):
            with file.open("rb") as stream:
                digests[str(file.resolve())] = hashlib.file_digest(stream, "sha256").hexdigest()
        check_unchanged(self.parts)
        return digests

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the digests of all files, in order."""
        return hashlib.sha256(b"".join(map(bytes.fromhex, self.digests.values()))).hexdigest()

    def schema(self, overrides: Mapping[str, Any] | None = None) -> Schema:
        """Return what the columns are, by all rows; `overrides` as in `Schema.inferred`."""

        def tally(name: str) -> Tally:
            if name not in self._tallies:
                self._frames = self._survey()
            return self._tallies.pop(name)

        if self._schema is None or self._schema[0] != repr(overrides):
            options: Any = overrides, self.missing, self.drop
            self._schema = repr(overrides), Schema.of_tallies(self.names, tally, "polars", *options)
        return self._schema[1]

    @property
    def valid(self) -> polars.DataFrame | None:
        """The rows held out, if any are."""
        return self._frames[0] if len(self._held_rows) else None

    @property
    def sample(self) -> polars.DataFrame:
        """A random sample of the others: all of them, of a table of at most 200,000 rows."""
        return self._frames[1]

    @cached_property
    def _frames(self) -> tuple[polars.DataFrame, polars.DataFrame]:
        return self._survey()

    def _survey(self) -> tuple[polars.DataFrame, polars.DataFrame]:
        """Count the values of all columns; return the rows that are held out, and those of the sample."""
        tokens, left_out, most = missing_tokens(self.missing), set(self.drop), VALUES // len(self.names)
        self._tallies = {n: Tally(most, min(most, TEXTS)) for n in self.names if n not in left_out}
        held, sample = [], []

        def count(part: Part, frame: polars.DataFrame) -> None:
            held.append(frame[_rows_inside(self._held_rows, part)])
            sample.append(frame[_rows_inside(self._sample_rows, part)])
            for name, tally in self._tallies.items():
                column, repeats = frame[name], None
                if not (column.dtype.is_numeric() or column.dtype.is_temporal()):
                    groups = column.alias("value").to_frame().group_by("value", maintain_order=True)
                    column, counts = groups.agg(polars.len().alias("n"))
                    column, repeats = column.alias(name), counts.to_list()
                tally.add(*cells(nw.from_native(column, series_only=True), tokens), repeats)

        self._for_each_part("counting", count)
        return polars.concat(held), polars.concat(sample)

    @contextmanager
    def codes(self, schema: Schema, folder: Path | None = None) -> Iterator[CodeRows]:
        """Yield the codes of all rows that are not held out and have a value, which are gone afterwards.

        Args:
            schema: Gives the codes.
            folder: Where they are kept, in a file without a name that takes four bytes for every cell; None
                takes the folder for temporary files.
        """
        folder = folder if folder is not None and folder.is_dir() else Path(gettempdir())
        with report_write_errors(folder / "codes"):
            file = TemporaryFile(dir=folder)  # noqa: SIM115

        def write(part: Part, frame: polars.DataFrame) -> None:
            codes = schema.encode(frame)[0]
            kept = np.array(~np.isnan(codes).all(1))
            kept[_rows_inside(self._held_rows, part)] = False
            with report_write_errors(folder / "codes"):
                file.write(codes[kept].astype(np.float32).tobytes())

        with file:
            self._for_each_part("encoding", write)
            check_unchanged(self.parts)
            if not (n := file.tell() // (4 * len(schema))):
                raise ValueError("there are no rows to train on")
            yield CodeRows(file, n, len(schema))

    def _for_each_part(self, step: str, function: Callable[[Part, polars.DataFrame], None]) -> None:
        """Call a function with the rows of each part; an error about them names their file."""
        for part, frame in read_parts(self.parts):
            self._show(part.first, len(self), step)
            try:
                function(part, frame)
            except ValueError as error:
                raise ValueError(f"{part.file}: {error}") from error
        self._show(len(self), len(self), step)

    def _show(self, done: int, total: int, step: str) -> None:
        if self.progress is not None:
            self.progress(done, total, step)


def _rows_inside(rows: np.ndarray, part: Part) -> np.ndarray:
    """Those of ascending row numbers that are in a part, counted from its first row."""
    return rows[slice(*np.searchsorted(rows, [part.first, part.first + part.rows]))] - part.first


@dataclass(frozen=True)
class CodeRows:
    """Rows of codes in a file, float32, of which training draws some at a time (a `RowSource`)."""

    file: BinaryIO  # has the rows, one after the other
    n: int  # how many
    n_variables: int  # codes in a row
    device: Any = "cpu"  # where `draw` puts them

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of these numbers, (n, n_variables); they are read in ascending order."""
        size, order, texts = 4 * self.n_variables, np.argsort(rows, kind="stable"), []
        for row in rows[order].tolist():
            self.file.seek(row * size)
            texts.append(self.file.read(size))
        codes = np.empty((len(rows), self.n_variables), np.float32)
        codes[order] = np.frombuffer(b"".join(texts), np.float32).reshape(codes.shape)
        return codes

    def draw(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Return ``n`` rows, independent and uniform over all."""
        import torch

        rows = torch.randint(self.n, (n,), generator=generator, device=generator.device)
        return torch.from_numpy(self.read(rows.cpu().numpy())).to(self.device)

    def to(self, device: torch.device | str) -> Self:
        """Return the rows for another device."""
        return replace(self, device=device)
