"""What a column of a table is, from its different values and how often each occurs.

A `Tally` has these, of a column in memory or added up part by part; so a table means the same either way.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pynade.tables.column import (
    DAY,
    FAR_STEPS,
    LARGEST,
    LEVELS,
    MAX_STEPS,
    UNROUNDED,
    Cells,
    Column,
    Kind,
    Type,
    as_float,
)

MOST_LEVELS = 100  # of a category; others are rare
FEW_CODES = 10  # whole numbers with at most so many values are ordered levels
TIES = 0.95  # share of different values below which a column of reals is rounded
TEXT = 20  # at least so many different texts make a column of identifiers or free text
CODE = re.compile(r"\s*[+-]?(0\d|\d{16,}\s*$)")  # text such as 00123, or with too many digits: no number
IDENTIFIER = re.compile(r"(^|[_\s])(id|uuid|guid|key|index|number|nr|no)$|^(id|uuid)([_\s]|$)", re.IGNORECASE)
UNITS = (DAY, 3_600_000_000, 60_000_000, 1_000_000, 1000)  # usual steps of dates, in microseconds
CODES = 100  # that the middle 90 % of an integer column have, if cells far away allow it
FAR_SPREADS = 1000  # how far away they are at least, in ranges of the middle 90 %
WIDE = 1e4  # deviations of the middle 90 % that one deviation of a real column may be
FREQUENT = 0.001  # share of the cells from which on a number is always counted
Wanted = Kind | None  # the kind that a user asks for; None finds it out


class Unsuitable(Exception):
    """A column that cannot be modelled: identifiers, free text, or no value; the message says why."""


class Tally:
    """The different values of a column, and how often each occurs.

    With a limit, counts are exact up to so many different values. Beyond it, a text is given up. Of numbers
    a random part of the values is then kept (by a hash, so that each has all of its cells) besides frequent
    and extreme ones; how many cells, which ends and which common step there are stays exact.

    Args:
        max_numbers: how many different numbers are kept; by default all.
        max_texts: how many different texts, likewise.

    Example:
        >>> tally = Tally()
        >>> tally.add(np.array([2.0, np.nan, 0.5]), "number")
        >>> tally.add(np.array([2.0]), "number")
        >>> tally.n, tally.values, tally.repeats
        (3, array([0.5, 2. ]), array([1, 2]))
    """

    def __init__(self, max_numbers: float = math.inf, max_texts: float = math.inf) -> None:
        self.max_numbers, self.max_texts = max_numbers, max_texts
        self.value_kind, self.n = "text", 0
        self.counting = True  # whether every number is the one before plus 1
        self.dtype: Type = {}
        self.counts: Counter[Any] = Counter()  # of texts and booleans
        self.given_up = False
        self.numbers: np.ndarray | None = None  # in their order, where they are in memory
        self.fraction = math.nan  # the smallest number that is not whole
        self.step, self.halvings = 0, 0
        self._last, self._pending, self._parts = math.nan, 0, list[tuple[np.ndarray, np.ndarray]]()

    @classmethod
    def of(cls, values: Cells, value_kind: str, dtype: Type | None = None) -> Tally:
        """That of all cells of a column, as `frames.cells` gives them."""
        tally = cls()
        tally.add(values, value_kind, dtype)
        if value_kind in ("number", "date"):
            x = np.asarray(values, dtype=np.float64)
            tally.numbers = x[~np.isnan(x)]
        return tally

    def add(
        self, values: Cells, value_kind: str, dtype: Type | None = None, repeats: Sequence[int] | None = None
    ) -> None:
        """Add cells: those that follow the ones before, or of texts different values with their numbers.

        Args:
            values, value_kind, dtype: as `frames.cells` gives them.
            repeats: how often each text occurs.
        """
        categories, self.value_kind = self.dtype.get("categories"), value_kind
        self.dtype = dict(dtype or {}) | ({"inexact": True} if self.dtype.get("inexact") else {})
        if categories is not None and categories != self.dtype.get("categories"):
            self.dtype["categories"] = sorted({*categories, *self.dtype["categories"]})
        if value_kind in ("number", "date"):
            return self._add_numbers(np.asarray(values, dtype=np.float64))
        counts: Counter[Any] = Counter()
        for value, n in zip(values, repeats or [1] * len(values), strict=True):
            counts[value] += n
        del counts[None]
        self.n += counts.total()
        if not self.given_up:
            self.counts.update(counts)
            self.given_up = len(self.counts) > self.max_texts
            if self.given_up:
                self.counts = Counter([next(iter(self.counts))])

    def _add_numbers(self, x: np.ndarray) -> None:
        x = x[~np.isnan(x)]
        if not len(x):
            return
        with np.errstate(all="ignore"):
            follows = not self.n or x[0] - self._last == 1
            self.counting = self.counting and follows and bool((np.diff(x) == 1).all())
        self.n, self._last = self.n + len(x), x[-1]
        values, repeats = np.unique(x, return_counts=True)
        fractions = values[values != np.round(values)]
        self.fraction = float(np.fmin(self.fraction, fractions[0])) if len(fractions) else self.fraction
        if self.halvings:
            self._note_step(values)
            values, repeats = self._sampled(values, repeats, len(x))
        self._parts.append((values, repeats))
        self._pending += len(values)
        if self._pending > self.max_numbers / 4:
            self._merge()

    def _merge(self) -> tuple[np.ndarray, np.ndarray]:
        """All values so far, ascending, with their numbers."""
        if len(self._parts) > 1:
            values, repeats = map(np.concatenate, zip(*self._parts, strict=True))
            order = np.argsort(values, kind="stable")  # (fast where pieces are in order)
            values, repeats = values[order], repeats[order]
            first = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
            values, repeats = values[first], np.add.reduceat(repeats, first)
            while len(values) > self.max_numbers:
                self._note_step(values)
                self.halvings += 1
                values, repeats = self._sampled(values, repeats, self.n)
            self._parts = [(values, repeats)]
        self._pending = 0
        return self._parts[0]

    def _sampled(self, values: np.ndarray, repeats: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """A sample of the values of n cells, which always has the frequent values and both extremes."""
        bits = (values + 0.0).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # (0.0: there is no -0)
        bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        kept = (bits >> np.uint64(64 - self.halvings)) == 0
        kept |= repeats >= max(2.0, FREQUENT * n)
        ends = self._parts[0][0][[0, -1]]
        kept[[0, -1]] |= [values[0] <= ends[0], values[-1] >= ends[1]]
        return values[kept], repeats[kept]

    def _note_step(self, values: np.ndarray) -> None:
        """Keep the greatest common divisor of differences of whole numbers that will not all be kept."""
        if self.is_whole and len(values):
            integers = np.append(self._parts[0][0][:1], values).astype(np.int64)
            self.step = int(np.gcd.reduce(np.append(np.diff(integers), self.step)))

    @property
    def values(self) -> np.ndarray:
        """The distinct numbers that are stored, ascending."""
        return self._merge()[0]

    @property
    def repeats(self) -> np.ndarray:
        """How often each of them occurs."""
        return self._merge()[1]

    @property
    def is_whole(self) -> bool:
        """Whether all numbers are whole, and of a size that 64 bits can hold."""
        ends = [abs(float(v)) for part, _ in self._parts for v in part[[0, -1]]]
        return math.isnan(self.fraction) and max(ends) < LARGEST

    @property
    def stands_for(self) -> np.ndarray | int:
        """Number of distinct values that each stored value represents."""
        return np.where(self.repeats >= FREQUENT * self.n, 1, 1 << self.halvings) if self.halvings else 1

    @property
    def n_distinct(self) -> int:
        """Number of distinct numbers; an estimate if not all are stored."""
        return min(self.n, int((self.stands_for * np.ones(len(self.values), np.int64)).sum()))

    def moments(self, axis: Any) -> tuple[float, float]:
        """Mean and deviation of the numbers on another axis.

        Args:
            axis: a function of an array of numbers.
        """
        if self.numbers is not None:
            return _moments(axis(self.numbers), None)
        return _moments(axis(self.values), self.repeats * self.stands_for)

    def quantiles(self, axis: Any, shares: Sequence[float]) -> list[float]:
        """Numbers on another axis below which these shares of the cells are; `axis` as for `moments`."""
        below = np.cumsum(self.repeats * self.stands_for)
        return list(map(float, axis(self.values[np.searchsorted(below, np.multiply(shares, below[-1]))])))

    def as_counts(self, kind: Any = None) -> Counter[Any]:
        """Numbers as levels of a type; without one those that are whole are integers."""
        if self.halvings:
            raise Unsuitable(f"more than {self.max_numbers:,} different values in {self.n:,} rows")
        pairs = zip(self.values.tolist(), self.repeats.tolist(), strict=True)
        return Counter({(kind or (int if v == round(v) else float))(v): n for v, n in pairs})

    def as_numbers(self) -> Tally:
        """That of the numbers that texts stand for."""
        tally, values = Tally(), np.array([float(value) for value in self.counts])
        tally.add(np.repeat(values, list(self.counts.values())), "number")
        return tally


def infer(name: str, tally: Tally, wanted: Wanted = None) -> Column:
    """What a column is, from its different values, and from the kind that a user wants."""
    counts, n, order = tally.counts, tally.n, tally.dtype.get("categories", ())
    if not n:
        raise Unsuitable("every cell is missing")
    if tally.value_kind in ("number", "date"):
        ends = tally.values[[0, -1]]
        near = MAX_STEPS * np.spacing(np.abs(ends).max())
        if tally.dtype.get("inexact") and wanted != "real" and ends[1] - ends[0] < near:
            raise Unsuitable("whole numbers beyond 2^53 so close together are no numbers of float64")
        if wanted in LEVELS:
            return _levels(name, tally.as_counts(), wanted, "as asked")
        return _date(name, tally) if tally.value_kind == "date" else _number(name, tally, wanted)
    if tally.given_up:
        raise Unsuitable(f"more than {tally.max_texts:,} different texts in {n:,} rows, {_example(counts)}")
    if wanted is None and tally.dtype.get("ordered") and 2 < len(order) <= MOST_LEVELS:
        wanted = "ordinal"
    is_plain_text = tally.value_kind == "text" and not order
    if wanted in ("integer", "rounded", "real") or (wanted is None and is_plain_text):
        texts = [value for value in counts if not math.isfinite(as_float(value))]
        if not texts and (wanted is not None or not any(CODE.match(str(value)) for value in counts)):
            column = _number(name, tally.as_numbers(), wanted)
            return replace(column, reason=f"text that holds numbers: {column.reason}")
        if wanted is not None:
            raise ValueError(f"column {name!r} cannot be {wanted}: it holds {texts[0]!r}")
    if order:
        kind: Kind = wanted or ("binary" if len(order) == 2 else "category")
        return _levels(name, counts, kind, "categories of the frame", order)
    if wanted is None and len(counts) > max(TEXT, 0.5 * n):
        raise Unsuitable(f"{len(counts):,} different texts in {n:,} rows, {_example(counts)}")
    return _levels(name, counts, wanted, "true or false" if tally.value_kind == "boolean" else "text")


def _example(counts: Counter[Any]) -> str:
    text = str(next(iter(counts)))[:30]
    return f"such as {text!r}" + ("; read dates as dates" if re.match(r"\d{4}-\d\d-\d\d", text) else "")


def _levels(
    name: str, counts: Counter[Any], wanted: Wanted, reason: str, order: Sequence[Any] = ()
) -> Column:
    n = counts.total()
    kinds: Mapping[int, Kind] = {1: "constant", 2: "binary"}
    kind = wanted or kinds.get(len(counts), "category")
    least = min(5, max(2, n // 100))
    frequent = {value for value, count in counts.most_common(MOST_LEVELS) if count >= least}
    rare = [(value, count) for value, count in counts.most_common() if value not in frequent]
    few = kind in ("binary", "constant") or len(rare) < 2 or len(frequent) < 2
    if kind == "ordinal" or (few and len(counts) <= MOST_LEVELS):
        frequent, rare = set(counts), []
    ranks = {value: rank for rank, value in enumerate(order)}
    levels = sorted(frequent, key=lambda value: (ranks.get(value, len(ranks)), value))
    n_rare = sum(count for _, count in rare)
    shares = tuple((value, count / n_rare) for value, count in rare)
    reason += f", {len(counts):,} level{'s' * (len(counts) > 1)}"
    if rare:
        reason += f", {len(rare):,} in fewer than {least} rows or not among the {MOST_LEVELS} most frequent"
    return Column(name, kind, reason, n, tuple(levels), shares)


def _number(name: str, tally: Tally, wanted: Wanted) -> Column:
    distinct, repeats, n, is_whole = tally.values, tally.repeats, tally.n, tally.is_whole
    spike = bool(repeats.max() >= max(5, 0.01 * n))
    few, origin = is_whole and len(distinct) <= FEW_CODES, float(distinct[0])
    if wanted is None and len(distinct) <= 2:
        reason = "always the same" if len(distinct) == 1 else "two values"
        return _levels(name, tally.as_counts(int if few else float), None, reason)
    if wanted is None and few and n >= 5 * len(distinct):
        reason = f"whole numbers with at most {FEW_CODES} values"
        return _levels(name, tally.as_counts(), "ordinal", reason)
    if wanted is None and is_whole and tally.n_distinct > 0.9 * n and n > TEXT:
        if tally.counting:
            raise Unsuitable("it counts the rows")
        if IDENTIFIER.search(name):
            raise Unsuitable("an identifier by its name, and hardly a value occurs twice")
    if wanted == "integer" and tally.fraction == tally.fraction:
        raise ValueError(f"column {name!r} cannot be integer: it holds {tally.fraction:g}")
    step, decimals = _lattice(tally, spike) if wanted != "real" else (0.0, 0)
    if wanted in ("integer", "rounded") and not step:
        step, decimals = _finest_step(distinct), UNROUNDED
    span = float((distinct[-1] - origin) / step) if step else 0.0  # in steps
    if not step or (span > MAX_STEPS and wanted is None and not is_whole):
        about = "about " if tally.halvings else ""
        return _real(name, tally, f"{about}{tally.n_distinct:,} different values in {n:,} rows")
    if is_whole and wanted in (None, "integer"):
        reason = "whole numbers" + f", multiples of {step:g} apart" * (step > 1)
        origin, span, beyond = _usual_range(tally, step, origin, span)
        reason += f", {beyond:,} cell{'s' * (beyond > 1)} far out of range" * (beyond > 0)
        wide = max(1, math.ceil(span / MAX_STEPS))  # steps to a code, where there are more steps than codes
        ends: Any = {"resolution": step * wide, "origin": origin, "low": 0.0, "high": span // wide}
        return Column(name, "integer", reason + f", {wide} to a step" * (wide > 1), n, **ends, per_step=wide)
    steps = np.floor(origin / step + 1e-9)  # from 0 to the first value
    low = None if origin < 0 or steps > FAR_STEPS else -float(steps)
    reason = f"values repeat, and are multiples of {step:g}" if decimals < UNROUNDED else "values repeat"
    return Column(name, "rounded", reason, n, resolution=step, origin=origin, low=low, decimals=decimals)


def _usual_range(tally: Tally, step: float, origin: float, span: float) -> tuple[float, float, int]:
    """The first of a column's whole numbers, their range in steps, and how many cells it leaves out.

    A few are left out, far away from all others, where with them the others would share a few codes.
    """
    first, middle, last = tally.quantiles(lambda x: x, (0.05, 0.5, 0.95))
    if first == last or span <= MAX_STEPS or span / MAX_STEPS < (last - first) / step / CODES:
        return origin, span, 0
    reach = max(MAX_STEPS / 2 * step, FAR_SPREADS * (last - first))
    kept = np.abs(tally.values - middle) <= reach
    values, beyond = tally.values[kept], int((tally.repeats * tally.stands_for)[~kept].sum())
    return float(values[0]), float((values[-1] - values[0]) / step), beyond


def _real(name: str, tally: Tally, reason: str) -> Column:
    ends: dict[str, Any] = {}
    least, most = tally.values[[0, -1]]
    if least > 0 and most - least > 1e-4 * most:  # else a logarithm loses digits
        ends = {"low": 0.0, "high": 1.0} if most < 1 else {"low": 0.0}
        reason += ", all between 0 and 1" if "high" in ends else ", all above 0"
    return set_range(Column(name, "real", reason, tally.n), tally, **ends)


def set_range(column: Column, tally: Tally, low: float | None = None, high: float | None = None) -> Column:
    """A real column with the ends of its range, neither of which is among its values."""
    least, most = map(float, tally.values[[0, -1]])
    if low is None and high is not None:
        raise ValueError(f"column {column.name!r} has an upper end, so it needs a lower one (low) too")
    if (low is not None and least <= low) or (high is not None and most >= high):
        expected = f"above {low:g}" + (f" and below {high:g}" if high is not None else "")
        raise ValueError(
            f"column {column.name!r} holds values from {least:g} to {most:g}; expected {expected}"
        )

    def axis(x: np.ndarray) -> np.ndarray:
        y = x if low is None else np.log(x - low)
        return y if high is None else y - np.log(high - x)

    loc, scale = tally.moments(axis)
    first, middle, last = tally.quantiles(axis, (0.05, 0.5, 0.95))
    if 0 < 0.5 * last - 0.5 * first < 0.5 * scale / WIDE:  # else a few cells far away leave others one code
        loc, scale = middle, 0.3 * (last - first)
    return replace(column, low=low, high=high, loc=loc, scale=scale)


def _moments(y: np.ndarray, weights: np.ndarray | None) -> tuple[float, float]:
    """Mean and deviation, which overflow at no number; a deviation of 0 is 1."""
    largest = max(float(np.abs(y).max()), 1e-300)
    mean = float(np.average(y / largest, weights=weights)) * largest
    half = 0.5 * y - 0.5 * mean
    reach = max(float(np.abs(half).max()), 1e-300)
    half = half / reach
    squares = (half - np.average(half, weights=weights)) ** 2
    return mean, 2 * float(np.sqrt(np.average(squares, weights=weights))) * reach or 1.0


def _date(name: str, tally: Tally) -> Column:
    n, distinct = tally.n, tally.values.astype(np.int64)
    step = _common_step(tally) if len(distinct) > 1 else DAY
    step = next((unit for unit in UNITS if step % unit == 0), step)  # a usual one, not 3 days by chance
    span = int(distinct[-1] - distinct[0])
    if span / step > MAX_STEPS:
        return set_range(Column(name, "date", "dates", n), tally)
    lattice: Any = {"resolution": float(step), "origin": float(distinct[0]), "low": 0.0, "high": span / step}
    return Column(name, "date", "dates", n, **lattice)


def _common_step(tally: Tally) -> int:
    """The greatest step of which all differences of whole numbers are multiples."""
    return int(np.gcd.reduce(np.append(np.diff(tally.values.astype(np.int64)), tally.step)))


def _lattice(tally: Tally, spike: bool) -> tuple[float, int]:
    """The step and decimals of the lattice that nearly all cells are on, if there are ties or a spike."""
    distinct, repeats = tally.values, tally.repeats
    if tally.is_whole:
        return float(_common_step(tally) if len(distinct) >= 10 else 1), 0
    if (tally.n_distinct > TIES * tally.n and not spike) or np.abs(distinct).max() > 1e300:
        return 0.0, 0
    # of nearly all values, or where there is none, of nearly all cells: a few are averages of others
    for decimals, by_cells in [*((d, False) for d in range(1, 7)), *((d, True) for d in range(7))]:
        scaled = distinct * 10**decimals
        near = np.abs(scaled - np.round(scaled)) < 1e-6 * np.maximum(1, np.abs(scaled) * 1e-6)
        near &= np.abs(scaled) < 2**53
        if near.mean() >= (0.9 if by_cells else 0.99) and near @ repeats >= 0.99 * repeats.sum() * by_cells:
            steps = np.diff(np.unique(np.round(scaled[near]).astype(np.int64)))
            size = int(np.gcd.reduce(steps)) / 10**decimals
            if size and (distinct[-1] - distinct[0]) / size <= MAX_STEPS:
                return size, decimals
    return _finest_step(distinct), UNROUNDED


def _finest_step(distinct: np.ndarray) -> float:
    """The smallest difference between values, but no finer than the codes of a lattice."""
    span = distinct[-1] - distinct[0]
    return float(max(np.diff(distinct).min(), span / MAX_STEPS)) if len(distinct) > 1 else 1.0
