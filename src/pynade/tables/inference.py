"""What the columns of a table are, found out from their values."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pynade.tables.column import DAY, FAR_STEPS, LARGEST, LEVELS, MAX_STEPS, UNROUNDED, Column, Kind, as_float

Cells = np.ndarray | Sequence[Any]  # numbers with NaN, or a list with None
MOST_LEVELS = 100  # of a category; others are rare
FEW_CODES = 10  # whole numbers with at most so many values are ordered levels
TIES = 0.95  # share of different values below which a column of reals is rounded
TEXT = 20  # at least so many different texts make a column of identifiers or free text
CODE = re.compile(r"\s*[+-]?0\d")  # text such as 00123, which is no number
IDENTIFIER = re.compile(r"(^|[_\s])(id|uuid|guid|key|index|number|nr|no)$|^(id|uuid)([_\s]|$)", re.IGNORECASE)
UNITS = (DAY, 3_600_000_000, 60_000_000, 1_000_000, 1000)  # usual steps of dates, in microseconds


class Unsuitable(Exception):
    """A column that cannot be modelled: identifiers, free text, or no value; the message says why."""


def infer(
    name: str, values: Cells, sort: str, wanted: Kind | None = None, dtype: Mapping[str, Any] | None = None
) -> Column:
    """What a column is, from what `native.cells` says of it.

    Args:
        name: of the column.
        values: numbers as float64 with NaN (of dates: microseconds), anything else as a list with None.
        sort: "number", "text", "boolean" or "date": what the frame says the cells are.
        wanted: the kind that a user asks for; None finds it out.
        dtype: the type of the column in the frame.
    """
    dtype = dtype or {}
    if sort in ("number", "date"):
        known = np.asarray(values, dtype=np.float64)
        known = known[~np.isnan(known)]
        if not len(known):
            raise Unsuitable("every cell is missing")
        if wanted in LEVELS:
            return _levels(name, [int(v) if v == round(v) else v for v in known.tolist()], wanted, "as asked")
        return _date(name, known) if sort == "date" else _number(name, known, wanted)
    cells = [value for value in values if value is not None]
    if not cells:
        raise Unsuitable("every cell is missing")
    counts, order = Counter(cells), dtype.get("categories", ())
    if wanted is None and dtype.get("ordered") and 2 < len(order) <= MOST_LEVELS:
        wanted = "ordinal"
    if wanted in ("integer", "rounded", "real") or (wanted is None and sort == "text" and not order):
        odd = [value for value in counts if not math.isfinite(as_float(value))]
        if not odd and (wanted is not None or not any(CODE.match(str(value)) for value in counts)):
            found = _number(name, np.array([float(value) for value in cells]), wanted)
            return replace(found, reason=f"text that holds numbers: {found.reason}")
        if wanted is not None:
            raise ValueError(f"column {name!r} cannot be {wanted}: it holds {odd[0]!r}")
    if order:
        kind: Kind = wanted or ("binary" if len(order) == 2 else "category")
        return _levels(name, cells, kind, "categories of the frame", order)
    if wanted is None and len(counts) > max(TEXT, 0.5 * len(cells)):
        example = str(next(iter(counts)))[:30]
        raise Unsuitable(f"{len(counts):,} different texts in {len(cells):,} rows, such as {example!r}")
    return _levels(name, cells, wanted, "true or false" if sort == "boolean" else "text")


def _levels(name: str, cells: list[Any], wanted: Kind | None, why: str, order: Sequence[Any] = ()) -> Column:
    counts = Counter(cells)
    kinds: Mapping[int, Kind] = {1: "constant", 2: "binary"}
    kind = wanted or kinds.get(len(counts), "category")
    least = min(5, max(2, len(cells) // 100))
    frequent = {value for value, count in counts.most_common(MOST_LEVELS) if count >= least}
    rare = [(value, count) for value, count in counts.most_common() if value not in frequent]
    few = kind in ("binary", "constant") or len(rare) < 2 or len(frequent) < 2
    if kind == "ordinal" or (few and len(counts) <= MOST_LEVELS):
        frequent, rare = set(counts), []
    place = {value: k for k, value in enumerate(order)}
    levels = sorted(frequent, key=lambda value: (place.get(value, len(place)), value))
    total = sum(count for _, count in rare)
    why += f", {len(counts):,} level{'s' * (len(counts) > 1)}"
    if rare:
        why += f", {len(rare):,} of them in fewer than {least} rows"
        why += f" or not among the {MOST_LEVELS} most frequent"
    shares = tuple((value, count / total) for value, count in rare)
    return Column(name, kind, why, len(cells), tuple(levels), shares)


def _number(name: str, known: np.ndarray, wanted: Kind | None) -> Column:
    distinct, repeats = np.unique(known, return_counts=True)
    n, spike = len(known), bool(repeats.max() >= max(5, 0.01 * len(known)))
    whole = bool((distinct == np.round(distinct)).all()) and bool((np.abs(distinct) < LARGEST).all())
    few, origin = whole and len(distinct) <= FEW_CODES, float(distinct[0])
    cells = [int(v) for v in known] if few else known.tolist()
    if wanted is None and len(distinct) <= 2:
        return _levels(name, cells, None, "always the same" if len(distinct) == 1 else "two values")
    if wanted is None and few and n >= 5 * len(distinct):
        return _levels(name, cells, "ordinal", f"whole numbers with at most {FEW_CODES} values")
    if wanted is None and whole and len(distinct) > 0.9 * n and n > TEXT:
        if len(distinct) == n and (np.diff(known) == 1).all():
            raise Unsuitable("it counts the rows")
        if IDENTIFIER.search(name):
            raise Unsuitable("an identifier by its name, and hardly a value occurs twice")
    if wanted == "integer" and not whole:
        odd = distinct[distinct != np.round(distinct)][0]
        raise ValueError(f"column {name!r} cannot be integer: it holds {odd:g}")
    step, decimals = _lattice(distinct, n, whole, spike) if wanted != "real" else (0.0, 0)
    if wanted in ("integer", "rounded") and not step:
        step, decimals = _fine(distinct), UNROUNDED
    span = float((distinct[-1] - origin) / step) if step else 0.0  # in steps
    if not step or (span > MAX_STEPS and wanted is None and not whole):
        return _real(name, known, f"{len(distinct):,} different values in {n:,} rows")
    if whole and wanted in (None, "integer"):
        wide = max(1, math.ceil(span / MAX_STEPS))  # steps to a code, where there are more steps than codes
        ends = {"resolution": step * wide, "origin": origin, "low": 0.0, "high": span // wide}
        why = "whole numbers" + f", multiples of {step:g} apart" * (step > 1)
        return Column(name, "integer", why + f", {wide} to a step" * (wide > 1), n, **ends, per_step=wide)
    steps = np.floor(origin / step + 1e-9)  # from 0 to the first value
    low = None if origin < 0 or steps > FAR_STEPS else -float(steps)
    why = f"values repeat, and are multiples of {step:g}" if decimals < UNROUNDED else "values repeat"
    return Column(name, "rounded", why, n, resolution=step, origin=origin, low=low, decimals=decimals)


def _real(name: str, known: np.ndarray, reason: str) -> Column:
    low: float | None = None
    high: float | None = None
    y = known
    if known.min() > 0 and known.max() - known.min() > 1e-4 * known.max():  # else a logarithm loses digits
        low, high = (0.0, 1.0) if (known < 1).all() else (0.0, None)
        reason += ", all between 0 and 1" if high else ", all above 0"
        y = np.log(known) - (np.log1p(-known) if high else 0.0)
    loc, scale = _moments(y)
    return Column(name, "real", reason, len(known), low=low, high=high, loc=loc, scale=scale)


def _moments(y: np.ndarray) -> tuple[float, float]:
    """Mean and deviation, which overflow at no number; a deviation of 0 is 1."""
    largest = max(float(np.abs(y).max()), 1e-300)
    mean = float((y / largest).mean()) * largest
    half = 0.5 * y - 0.5 * mean
    reach = max(float(np.abs(half).max()), 1e-300)
    return mean, 2 * float(np.std(half / reach)) * reach or 1.0


def _date(name: str, known: np.ndarray) -> Column:
    distinct = np.unique(known).astype(np.int64)
    step = int(np.gcd.reduce(np.diff(distinct))) if len(distinct) > 1 else DAY
    step = next((unit for unit in UNITS if step % unit == 0), step)  # a usual one, not 3 days by chance
    n, span = len(known), int(distinct[-1] - distinct[0])
    if span / step > MAX_STEPS:
        loc, scale = _moments(known)
        return Column(name, "date", "dates", n, loc=loc, scale=scale)
    lattice = {"resolution": float(step), "origin": float(distinct[0]), "low": 0.0, "high": span / step}
    return Column(name, "date", "dates", n, **lattice)


def _lattice(distinct: np.ndarray, n: int, whole: bool, spike: bool) -> tuple[float, int]:
    """The step of the lattice that nearly all of the different values are on, and its decimals; or (0, 0).

    A spike, a value so frequent that it has a probability of its own, makes one of a column without ties.
    """
    if whole:
        step = int(np.gcd.reduce(np.diff(distinct.astype(np.int64))))
        return float(step if len(distinct) >= 10 else 1), 0
    if (len(distinct) > TIES * n and not spike) or np.abs(distinct).max() > 1e300:
        return 0.0, 0
    for decimals in range(1, 7):
        scaled = distinct * 10**decimals
        near = np.abs(scaled - np.round(scaled)) < 1e-6 * np.maximum(1, np.abs(scaled) * 1e-6)
        near &= np.abs(scaled) < 2**53
        if near.mean() >= 0.99:
            steps = np.diff(np.unique(np.round(scaled[near]).astype(np.int64)))
            size = int(np.gcd.reduce(steps)) / 10**decimals
            if size and (distinct[-1] - distinct[0]) / size <= MAX_STEPS:
                return size, decimals
            break
    return _fine(distinct), UNROUNDED


def _fine(distinct: np.ndarray) -> float:
    """The smallest difference between values, but no finer than the codes of a lattice."""
    span = distinct[-1] - distinct[0]
    return float(max(np.diff(distinct).min(), span / MAX_STEPS)) if len(distinct) > 1 else 1.0
