"""The schema of a table: what each column is, how rows become numbers for a model, and a table again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from pynade.tables.column import DAY, Codes, Column, Kind
from pynade.tables.frames import build_frame, cells, check_columns, check_names, default_names, native_frame
from pynade.tables.infer import Tally, Unsuitable, infer, set_range

#: Other words for the kinds.
KINDS = {"categorical": "category", "boolean": "binary", "count": "integer", "ordered": "ordinal"}
KINDS |= {"datetime": "date"}
PERIODS = (DAY, 7 * DAY, 365.2425 * DAY)  # of dates, in microseconds


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order.

    Example:
        >>> schema = Schema.binary(3)
        >>> len(schema), schema.names
        (3, ('x1', 'x2', 'x3'))
        >>> print(Schema.inferred([[1, "a"], [2, "b"], [1, None]], names=["k", "t"]))
        column  kind    values  why
        k       binary  1, 2    two values, 2 levels
        t       binary  a, b    text, 2 levels
    """

    columns: tuple[Column, ...]  # those that a model has
    ignored: tuple[tuple[str, str], ...] = ()  # names of the others, with the reason
    order: tuple[str, ...] = ()  # names of all columns of the table, in its order
    frame: str = "numpy"  # what tables are given back as: pandas, polars, pyarrow or numpy
    missing: tuple[str, ...] | None = None  # texts that mean "missing", in lower case; None: the usual ones

    def __post_init__(self) -> None:
        check_names(self.names)

    def __len__(self) -> int:
        return len(self.columns)

    @classmethod
    def from_kinds(cls, kinds: Sequence[Kind], names: Sequence[str] | None = None) -> Schema:
        """Return a schema from a kind and a name (``x1``, ``x2``, … when left out) of each column."""
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

    @classmethod
    def inferred(
        cls,
        X: Any,
        overrides: Mapping[str, Any] | None = None,
        missing: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        names: Sequence[str] | None = None,
    ) -> Schema:
        """What the columns of a table are, from its cells.

        Args:
            X: a frame of pandas, polars or pyarrow, or an array.
            overrides: by column name a kind ("category", "integer", "real", …), or a dictionary with a kind
                and `low` and `high`, the ends of its range.
            missing: texts that mean "missing"; by default blank, NA, NaN, null, none and ?.
            drop: columns to leave out.
            names: of the columns of an array.
        """
        frame, kind = native_frame(X, names)
        labels = {str(label): label for label in X.columns} if kind == "pandas" else {}
        labels = {name: {"label": label} for name, label in labels.items() if isinstance(label, int | float)}
        tokens = missing_tokens(missing)

        def tally(name: str) -> Tally:
            values, value_kind, dtype = cells(frame[name], tokens)
            return Tally.of(values, value_kind, dtype | labels.get(name, {}))

        return cls.of_tallies(frame.columns, tally, kind, overrides, missing, drop)

    @classmethod
    def of_tallies(
        cls,
        names: Sequence[str],
        tally: Callable[[str], Tally],
        kind: str,
        overrides: Mapping[str, Any] | None = None,
        missing: Sequence[str] | None = None,
        drop: Sequence[str] = (),
    ) -> Schema:
        """What columns are, from their different values.

        Args:
            names: of all columns.
            tally: gives that of a column.
            kind: of the table: pandas, polars, pyarrow or numpy.
            overrides, missing, drop: as for `inferred`.
        """
        tokens = missing_tokens(missing)
        if isinstance(drop, str):
            raise ValueError(f"drop is a list of texts, not {drop!r}")
        overrides, columns, ignored = dict(overrides or {}), [], []
        for option, option_names in (("schema", overrides), ("drop", drop)):
            for name in option_names:
                if name not in names:
                    raise ValueError(f"{option} names a column {name!r} that the table does not have")
        left_out = set(drop)
        for name in names:
            if name in left_out:
                ignored.append((name, "left out as asked"))
                continue
            cells_tally, override = tally(name), overrides.get(name)
            ends = dict(override) if isinstance(override, Mapping) else {"kind": override}
            wanted = ends.pop("kind", None)
            word: Any = KINDS.get(str(wanted).lower(), str(wanted).lower())
            wanted = None if wanted is None else Column(name, word).kind  # refuses an unknown kind
            try:
                column = _with_ends(infer(name, cells_tally, wanted), cells_tally, ends)
                columns.append(replace(column, dtype=cells_tally.dtype))
            except Unsuitable as reason:
                ignored.append((name, str(reason)))
        if not columns:
            reasons = "; ".join(f"{name!r}: {reason}" for name, reason in ignored[:3])
            raise ValueError(f"the table has no column that can be modelled ({reasons or 'it has none'})")
        return cls(tuple(columns), tuple(ignored), tuple(names), kind, tokens)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the model's columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The column kinds, in order."""
        return tuple(column.kind for column in self.columns)

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def index(self, name: str | int) -> int:
        """The index of a column of the model; a ValueError that lists the columns if it is unknown."""
        if isinstance(name, str):
            if name in self._indices:
                return self._indices[name]
            if name in dict(self.ignored):
                reason = dict(self.ignored)[name]
                raise ValueError(f"column {name!r} is not part of the model: {reason}")
            raise ValueError(f"there is no column {name!r} among {list(self.names[:8])}")
        if not 0 <= int(name) < len(self):
            raise ValueError(f"there is no column {name}: the model has columns 0 … {len(self) - 1}")
        return int(name)

    def encode(self, X: Any, density: bool = False, without: int | None = None) -> Codes:
        """Codes (N, D), NaN where a cell is missing, and offsets (N, D); see `pynade.tables.column`.

        Args:
            X: a table that has the model's columns, in any order; others are passed over.
            density: divide the probabilities of values on a lattice by its resolution.
            without: the index of a column that is not looked at, and need not be there.
        """
        frame, _ = native_frame(X, self.order or self.names)
        used = [(i, column) for i, column in enumerate(self.columns) if i != without]
        check_columns(frame.columns, [column.name for _, column in used])
        codes, offsets = np.full((len(frame), len(self)), np.nan), np.zeros((len(frame), len(self)))
        for i, column in used:
            codes[:, i], offsets[:, i] = column.encode(self._values(frame, column), density)
        return codes, offsets

    def _values(self, frame: Any, column: Column) -> Any:
        """The cells of a column of a frame, as `Column.encode` takes them."""
        values, value_kind, _ = cells(frame[column.name], self.missing)
        if all(v is None for v in values) if isinstance(values, list) else np.isnan(values).all():
            return [None] * len(values) if column.n_levels else np.full(len(values), np.nan)
        dates = column.kind == "date" or column.dtype.get("type") in ("Date", "Datetime")
        if (value_kind == "date") != dates and value_kind in ("date", "number"):
            was = "dates" if dates else "levels" if column.n_levels else "numbers"
            raise ValueError(f"column {column.name!r} held {was} in training, but holds {value_kind}s")
        if column.n_levels:
            if value_kind in ("number", "date"):
                values = [None if v != v else int(v) if v.is_integer() else v for v in values.tolist()]
            levels = (*column.levels, *column.known_rare)
            if any(isinstance(v, str) for v in levels) != any(isinstance(v, str) for v in values):
                by_text = {str(level).lower(): level for level in levels}
                values = [None if v is None else by_text.get(str(v).lower(), v) for v in values]
        elif value_kind in ("text", "boolean"):
            values = np.array([np.nan if v is None else column.parse(v) for v in values])
            if np.isinf(values).any():
                raise ValueError(f"column {column.name!r} holds an infinite value; expected finite numbers")
        return values

    def decode(self, codes: np.ndarray, rng: np.random.Generator | None = None) -> Any:
        """A table of the model's columns from codes (N, D) without NaN; rng draws among rare levels."""
        columns = {c.name: c.decode(codes[:, i], rng) for i, c in enumerate(self.columns)}
        return build_frame(columns, {c.name: c.dtype for c in self.columns}, self.frame)

    def periods(self) -> np.ndarray:
        """Lengths of a day, a week and a year in codes of each column (D, 3); 0 where one does not repeat."""
        lengths = np.zeros((len(self), len(PERIODS)))
        for i, column in enumerate(self.columns):
            if column.kind == "date":
                step = column.resolution or column.scale
                span = (4.0 if column.high is None else column.high) * step
                repeated = [column.resolution <= period / 2 and span > 2 * period for period in PERIODS]
                lengths[i] = np.where(repeated, np.divide(PERIODS, step), 0)
        return lengths

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Schema:
        """The schema that `to_json` gave."""
        names = {f.name for f in fields(Column)}
        columns = tuple(Column(**{k: v for k, v in c.items() if k in names}) for c in facts["columns"])
        ignored: Any = tuple(map(tuple, facts["ignored"]))
        missing = None if facts.get("missing") is None else tuple(facts["missing"])
        return cls(columns, ignored, tuple(facts["order"]), facts["frame"], missing)

    def table(self) -> list[tuple[str, str, str, str]]:
        """Name, kind, values and reason of every column, the ignored ones last."""
        rows = [(c.name, c.kind, c.domain(), c.reason) for c in self.columns]
        return rows + [(name, "ignored", "", reason) for name, reason in self.ignored]

    def __str__(self) -> str:
        rows = [("column", "kind", "values", "why"), *self.table()]
        widths = [min(40, max(len(row[k]) for row in rows)) for k in range(3)]
        lines = ([cell[:40].ljust(w) for cell, w in zip(row, widths, strict=False)] for row in rows)
        return "\n".join("  ".join([*line, row[3]]).rstrip() for line, row in zip(lines, rows, strict=True))


def missing_tokens(missing: Sequence[str] | None) -> tuple[str, ...] | None:
    """Texts that mean "missing", in lower case; None: the usual ones."""
    if isinstance(missing, str):
        raise ValueError(f"missing is a list of texts, not {missing!r}")
    return None if missing is None else tuple(str(token).strip().lower() for token in missing)


def _with_ends(column: Column, tally: Tally, ends: dict[str, Any]) -> Column:
    """The column of these values with the ends of its range that a user gives, in units of the data."""
    if not ends:
        return column
    if set(ends) - {"low", "high"} or column.n_levels:
        expected = "a column of numbers takes a kind, low and high"
        raise ValueError(f"column {column.name!r} is {column.kind}; {expected}")
    if not column.resolution:
        return set_range(column, tally, **{k: float(v) for k, v in ends.items()})
    codes: Any = {k: round((float(v) - column.origin) / column.resolution) for k, v in ends.items()}
    return replace(column, **codes)
