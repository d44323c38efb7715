"""A data set: what its columns are, its train, validation and test parts, and where they came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from pynade.tables.column import Kind as Kind
from pynade.tables.modules import polars
from pynade.tables.schema import Schema as Schema

if TYPE_CHECKING:  # torch takes a second to import, and a list of names should not wait for it
    import torch

PARTS = ("train", "valid", "test")
Rows = Any  # a 2-D array, or a polars frame


class RowSource(Protocol):
    """Something that draws training rows on one device; `draw` can be captured in a CUDA graph."""

    @property
    def n_variables(self) -> int:
        """Number of columns of a row."""

    def draw(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Return ``n`` rows, independent and uniform over all there are, as (n, n_variables) float32."""

    def to(self, device: torch.device | str) -> Self:
        """Return the source on another device; the generator must be on the same."""


def validation_rows(n: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of n rows are for training, and which share, at least one, for validation; ascending."""
    if not 0 < fraction < 1:
        raise ValueError(f"the validation fraction must lie between 0 and 1, but {fraction} was given")
    if n < 2:
        raise ValueError(f"{n} row was given; two are needed for a split into training and validation rows")
    chosen = np.zeros(n, dtype=bool)
    n_valid = min(max(round(fraction * n), 1), n - 1)
    chosen[np.random.Generator(np.random.PCG64(seed)).permutation(n)[:n_valid]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table cut into parts, with its schema and its provenance.

    Binary data are ``uint8`` zeros and ones, and grey levels of images ``uint8`` from 0 to 255; any other
    table is ``float64``, where NaN means missing. With a `source` (patches of images, windows of speech)
    training may take fresh rows for every update; ``train`` is then a fixed sample, ``float32`` as drawn. The
    parts of a table of mixed columns are polars frames; its schema has the kinds that their types suggest.

    Example:
        >>> data = Dataset("toy", np.eye(3, dtype=np.uint8), None, None, Schema.binary(3), {})
        >>> data.n_variables, data.sizes
        (3, {'train': 3})
    """

    name: str  # a short one, such as "adult"
    train: Rows  # as in the other parts
    valid: Rows | None
    test: Rows | None
    schema: Schema  # one column for each variable
    provenance: dict[str, Any] = field(default_factory=dict)  # where the rows came from, as JSON values
    image_shape: tuple[int, ...] | None = None  # (height, width) or (channels, height, width) of a row
    source: RowSource | None = None  # what draws training rows, where there are more than `train` holds
    test_groups: np.ndarray | None = None  # a number for each test row: rows of one group are not independent
    grouped_by: str = ""  # what a group is, such as "image" or "speaker"

    def __post_init__(self) -> None:
        name, n = f"data set {self.name!r}", len(self.schema)
        for part, rows in self.parts.items():
            if len(rows.shape) != 2:
                raise ValueError(f"the {part!r} part of {name} has shape {rows.shape}; expected two axes")
            if (width := rows.shape[1]) != n:
                raise ValueError(f"the {part!r} part of {name} has {width} columns, but its schema has {n}")
        if len(self.train) == 0:
            raise ValueError(f"{name} has no training rows")
        if self.source is not None and (width := self.source.n_variables) != n:
            raise ValueError(f"the source of {name} draws rows of {width} columns, but its schema has {n}")
        groups, rows = self.test_groups, self.test
        if groups is not None and (rows is None or groups.shape != (len(rows),)):
            size = "has no test part" if rows is None else f"has {len(rows)} rows in its 'test' part"
            raise ValueError(f"{name} {size}, but its test groups have shape {groups.shape}")
        if (shape := self.image_shape) is not None and int(np.prod(shape)) != n:
            raise ValueError(f"{name} has {n} variables, which do not fill an image of shape {shape}")

    @classmethod
    def of_frame(cls, name: str, train: polars.DataFrame, provenance: dict[str, Any]) -> Dataset:
        """Return a data set of one part, a polars frame."""
        schema = Schema.from_kinds([_kind(column.dtype) for column in train], train.columns)
        return cls(name, train, None, None, schema, provenance)

    @property
    def framed(self) -> bool:
        """Whether the parts are polars frames."""
        return not isinstance(self.train, np.ndarray)

    def as_frames(self) -> Dataset:
        """Return the data set with polars frames as its parts."""
        if self.framed:
            return self
        parts: Any = {k: polars.DataFrame(v, list(self.schema.names)) for k, v in self.parts.items()}
        return replace(self, **parts, source=None)

    @property
    def parts(self) -> dict[str, Rows]:
        """The parts that exist, by name, in the order train, valid, test."""
        return {part: getattr(self, part) for part in PARTS if getattr(self, part) is not None}

    @property
    def n_variables(self) -> int:
        """Number of columns, D."""
        return len(self.schema)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each part that exists."""
        return {part: len(rows) for part, rows in self.parts.items()}

    def split(self, name: str) -> Rows:
        """Return one part, or all rows.

        Args:
            name: A part that exists, or ``"all"`` for the parts one after the other; otherwise a ValueError.
        """
        if name == "all":
            return _stack(list(self.parts.values()))
        if name not in self.parts:
            raise ValueError(f"data set {self.name!r} has no {name!r} part; it has: {', '.join(self.parts)}")
        return self.parts[name]

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the content, the same whatever file format the rows came from.

        For each part that exists, in the order train, valid, test, the digest takes an ASCII line such as
        ``"train uint8 5000x123\\n"``, and then the values row by row, little-endian. Of a frame it takes its
        columns one after the other (`_column_bytes`). A table of files that is not in memory has its own.
        """
        if isinstance(checksum := getattr(self.train, "checksum", None), str):
            return checksum
        digest = hashlib.sha256()
        for part, rows in self.parts.items():
            kind = "frame" if self.framed else rows.dtype.name
            digest.update(f"{part} {kind} {rows.shape[0]}x{rows.shape[1]}\n".encode("ascii"))
            if self.framed:
                for column in rows:
                    digest.update(_column_bytes(column))
            else:
                digest.update(np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<")).data)
        return digest.hexdigest()

    def folds(self, n: int, seed: int) -> list[Dataset]:
        """Return n data sets: of n pieces of all rows each is the test part once, another for validation.

        Args:
            n: Number of folds, at least 3.
            seed: Seed of the permutation.

        Example:
            >>> data = Dataset("toy", np.eye(20, dtype=np.uint8), None, None, Schema.binary(20))
            >>> data.folds(10, seed=0)[0].sizes
            {'train': 16, 'valid': 2, 'test': 2}
        """
        rows = self.split("all")
        if n < 3:
            raise ValueError(f"cross-validation needs at least 3 folds, not {n}")
        if len(rows) < 2 * n:
            size = f"data set {self.name!r} has {len(rows)} rows"
            raise ValueError(f"{size}, too few for {n} folds of two rows or more")
        order, folds = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows)), []
        pieces = [rows[part] for part in np.array_split(order, n)]
        for k, test in enumerate(pieces):
            *train, valid = pieces[k + 1 :] + pieces[:k]
            facts = {"fold": k + 1, "folds": n, "fold_seed": seed}
            folds.append(self._cut(facts, train=_stack(train), valid=valid, test=test))
        return folds

    def _cut(self, facts: dict[str, Any], **parts: Any) -> Dataset:
        groups = self.test_groups if "test" not in parts else None
        return replace(self, **parts, provenance=self.provenance | facts, source=None, test_groups=groups)

    def with_validation(self, fraction: float, seed: int) -> Dataset:
        """Return this data set, or without a validation part one that has it, cut at random from train.

        Args:
            fraction: Share of the training rows that become validation rows, between 0 and 1.
            seed: Seed of the draw.

        Example:
            >>> data = Dataset("toy", np.eye(10, dtype=np.uint8), None, None, Schema.binary(10))
            >>> data.with_validation(0.2, seed=0).sizes
            {'train': 8, 'valid': 2}
        """
        if self.valid is not None:
            return self
        train, valid = validation_rows(len(self.train), fraction, seed)
        facts = {"validation": {"fraction": fraction, "seed": seed}}
        return self._cut(facts, train=self.train[train], valid=self.train[valid])


def _stack(parts: list[Any]) -> Any:
    """Rows of several parts, one after the other."""
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else polars.concat(parts)


def _kind(dtype: Any) -> Kind:
    """What the type of a column of a polars frame suggests."""
    if dtype.is_numeric():
        return "integer" if dtype.is_integer() else "real"
    dates = dtype in (polars.Date, polars.Datetime)
    return "date" if dates else "binary" if dtype == polars.Boolean else "category"


def _column_bytes(column: Any) -> bytes:
    """Name, kind, missing cells and values of a column of a polars frame, whatever its width in memory is."""
    kind = _kind(column.dtype)
    if kind == "real":
        column = column.cast(polars.Float64).fill_nan(None)
    missing = np.packbits(column.is_null().to_numpy()).tobytes()
    if kind == "category":
        texts = [str(value).encode() for value in column.to_list()]
        values = np.array([len(text) for text in texts], dtype="<i8").tobytes() + b"".join(texts)
    else:
        if kind == "date":
            column = column.cast(polars.Datetime("us", getattr(column.dtype, "time_zone", None)))
        numbers = column.cast(polars.Float64 if kind == "real" else polars.Int64).fill_null(0).to_numpy()
        values = numbers.astype("<f8" if kind == "real" else "<i8").tobytes()
    return f"{column.name}\0{kind}\n".encode() + missing + values
