"""What each column of a table is: its name and its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pynade.tables.frames import default_names

Kind = Literal["binary", "real", "category"]


@dataclass(frozen=True)
class Column:
    """One column: a name and the kind of values it holds.

    Example:
        >>> Column("age", "real")
        Column(name='age', kind='real')
    """

    name: str
    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            expected = ", ".join(get_args(Kind))
            raise ValueError(f"column {self.name!r} has kind {self.kind!r}; expected one of: {expected}")


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order.

    Example:
        >>> schema = Schema.binary(3)
        >>> len(schema), schema.names
        (3, ('x1', 'x2', 'x3'))
        >>> Schema.uniform("real", 1, ["height"]).columns
        (Column(name='height', kind='real'),)
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"column name {twice!r} occurs more than once; column names must differ")

    def __len__(self) -> int:
        return len(self.columns)

    @classmethod
    def from_kinds(cls, kinds: Sequence[Kind], names: Sequence[str] | None = None) -> Schema:
        """Return a schema from one kind for each column.

        Args:
            kinds: The kinds.
            names: The names of the columns; ``x1``, ``x2``, … when left out.

        Example:
            >>> Schema.from_kinds(["real", "binary"]).names
            ('x1', 'x2')
        """
        names = default_names(len(kinds)) if names is None else names
        if len(names) != len(kinds):
            raise ValueError(f"{len(names)} column names were given for {len(kinds)} columns")
        return cls(tuple(Column(str(name), kind) for name, kind in zip(names, kinds, strict=True)))

    @classmethod
    def uniform(cls, kind: Kind, n: int, names: Sequence[str] | None = None) -> Schema:
        """Return a schema of ``n`` columns of one kind; `names` as in `from_kinds`."""
        return cls.from_kinds([kind] * n, names)

    @classmethod
    def binary(cls, n: int, names: Sequence[str] | None = None) -> Schema:
        """Return a schema of ``n`` columns of zeros and ones; `names` as in `from_kinds`."""
        return cls.uniform("binary", n, names)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The column kinds, in order."""
        return tuple(column.kind for column in self.columns)
