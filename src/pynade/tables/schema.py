"""What each column of a table is: its name and its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

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
    def uniform(cls, kind: Kind, n: int, names: Sequence[str] | None = None) -> Schema:
        """Return a schema of ``n`` columns of one kind.

        Args:
            kind: The kind of every column.
            n: Number of columns.
            names: Their names; ``x1`` … ``xn`` when left out.

        Example:
            >>> Schema.uniform("real", 1, ["height"]).columns
            (Column(name='height', kind='real'),)
        """
        return cls.from_kinds([kind] * n, names)

    @classmethod
    def binary(cls, n: int, names: Sequence[str] | None = None) -> Schema:
        """Return a schema of ``n`` columns of zeros and ones.

        Example:
            >>> Schema.binary(2, ["rain", "wind"]).kinds
            ('binary', 'binary')
        """
        return cls.uniform("binary", n, names)

    @classmethod
    def from_kinds(cls, kinds: Sequence[Kind], names: Sequence[str] | None = None) -> Schema:
        """Return a schema from one kind per column, and names if there are any.

        Example:
            >>> Schema.from_kinds(["real", "binary"]).names
            ('x1', 'x2')
        """
        names = default_names(len(kinds)) if names is None else names
        if len(names) != len(kinds):
            raise ValueError(f"{len(names)} column names were given for {len(kinds)} columns")
        return cls(tuple(Column(str(name), kind) for name, kind in zip(names, kinds, strict=True)))

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The column kinds, in order."""
        return tuple(column.kind for column in self.columns)

    def to_json(self) -> list[dict[str, str]]:
        """Return plain lists and dicts that ``json`` can write.

        Example:
            >>> Schema.binary(1).to_json()
            [{'name': 'x1', 'kind': 'binary'}]
        """
        return [{"name": column.name, "kind": column.kind} for column in self.columns]

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        """Return the schema that `to_json` wrote.

        Example:
            >>> Schema.from_json([{"name": "a", "kind": "real"}]) == Schema.uniform("real", 1, ["a"])
            True
        """
        if not isinstance(value, list):
            raise TypeError(f"a schema is a list of columns, but {type(value).__name__} was given")
        for item in value:
            if not isinstance(item, dict) or set(item) != {"name", "kind"}:
                raise ValueError(f"a column of a schema needs 'name' and 'kind', but {item!r} was given")
        return cls(tuple(Column(item["name"], item["kind"]) for item in value))
