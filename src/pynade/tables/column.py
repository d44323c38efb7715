"""One column of a table: what it is, how its values become numbers for a model, and values again.

A model sees a *code* for each cell. What the code leaves out of a cell's probability is its *offset*, a
logarithm that is added to the model's: log p(cell) = log p(code) + offset.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import numpy as np

Kind = Literal["binary", "real", "category", "constant", "ordinal", "integer", "rounded", "date"]
LEVELS = ("constant", "binary", "category", "ordinal")  # kinds whose cells are one of a few values
MAX_STEPS = 1 << 20  # of a lattice; finer ones are coarsened, or treated as real
FAR = 1e6  # a real value this many deviations away is scored by the rule for values out of range
FAR_STEPS = 1e8  # likewise of a lattice without an end
LARGEST = 2.0**63 - 1024  # whole number of a column that has no lattice
WORDS = {"true": True, "false": False, "yes": True, "no": False}
UNROUNDED = 15  # decimals: values of a lattice are then not rounded
DAY = 86_400_000_000  # microseconds
MOST_LEVELS = 100  # of a category; others are rare
FEW_CODES = 10  # whole numbers with at most so many values are ordered levels
TIES = 0.95  # share of different values below which a column of reals is rounded
TEXT = 20  # at least so many different texts make a column of identifiers or free text
CODE = re.compile(r"\s*[+-]?(0\d|\d{16,}\s*$)")  # text such as 00123, or with too many digits: no number
IDENTIFIER = re.compile(r"(^|[_\s])(id|uuid|guid|key|index|number|nr|no)$|^(id|uuid)([_\s]|$)", re.IGNORECASE)
UNITS = (DAY, 3_600_000_000, 60_000_000, 1_000_000, 1000)  # usual steps of dates, in microseconds
Codes = tuple[np.ndarray, np.ndarray]  # codes and offsets
Wanted = Kind | None  # the kind that a user asks for; None finds it out
Type = dict[str, Any]  # what `frames.cells` knows of the type of a column, as JSON values
Cells = np.ndarray | Sequence[Any]  # numbers with NaN, or a list with None


@dataclass(frozen=True)
class Column:
    """One column: a name and the kind of values it holds; with more fields, how they become codes.

    The code of a level is its index; of a number on a lattice (integers, rounded reals, dates) the number of
    steps from the origin; of a real value its standardised value. With n training cells:

    - A level that did not occur in training has probability 1 / (n + 1); the known levels share the rest.
    - Rare levels share one code; given this code, each has its share of their training cells.
    - Values outside the range of an integer column or beyond the ends of another (without an end: a million
      deviations, a hundred million steps away) have probability 1 / (n + 1) in all, half of it on each side,
      spread over the distance with a heavy tail.

    A cell that training has not seen is treated as missing for the other columns.
    """

    name: str
    kind: Kind
    reason: str = ""  # why it was understood so, in words
    n: int = 0  # training cells that are not missing
    levels: tuple[Any, ...] = ()  # values of the codes 0, 1, …; after them comes the code of the rare levels
    rare: tuple[tuple[Any, float], ...] = ()  # with their shares of the last code, most frequent first
    resolution: float = 0.0  # step of a lattice, in units of the data (of dates: microseconds); else 0
    origin: float = 0.0  # value of code 0 of a lattice
    low: float | None = None  # smallest code of a lattice, or lower end of a real column; None has none
    high: float | None = None  # largest code, or upper end, likewise
    loc: float = 0.0  # of a real column, after the logarithm or logit that its ends ask for
    scale: float = 1.0  # likewise
    decimals: int = 0  # that a value of a lattice is rounded to
    per_step: int = 1  # equally likely values in a step: more of integers with too wide a range for codes
    dtype: Type = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            expected = ", ".join(get_args(Kind))
            raise ValueError(f"column {self.name!r} has kind {self.kind!r}; expected one of: {expected}")
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "rare", tuple((value, float(share)) for value, share in self.rare))

    @property
    def n_levels(self) -> int:
        """Codes of a column of levels; 0 of a column of numbers."""
        return len(self.levels) + bool(self.rare) if self.kind in LEVELS else 0

    @property
    def numeric(self) -> bool:
        """Whether values are numbers, so that they have a mean."""
        return self.kind != "date" and all(is_number(v) for v in (*self.levels, *self.known_rare))

    @property
    def known_rare(self) -> tuple[Any, ...]:
        """The rare levels."""
        return tuple(value for value, _ in self.rare)

    def encode(self, values: Cells, density: bool = False) -> Codes:
        """Codes (NaN where missing or out of range) and offsets (0 where missing).

        Args:
            values: of a column of levels a list with None for missing cells, otherwise float64 with NaN (of
                dates: microseconds since 1970).
            density: of a lattice, divide probabilities by the resolution.
        """
        if self.kind in LEVELS:
            return self._encode_levels(values)
        x = np.asarray(values, dtype=np.float64)
        return self._encode_real(x) if self.resolution == 0 else self._encode_lattice(x, density)

    def _encode_levels(self, values: Any) -> Codes:
        seen, unseen = math.log1p(-1 / (self.n + 1)), math.log(1 / (self.n + 1))
        table: dict[Any, Any] = {value: (code, seen) for code, value in enumerate(self.levels)}
        table |= {value: (len(self.levels), seen + math.log(share)) for value, share in self.rare}
        table[None] = (math.nan, 0.0)
        pairs = [table.get(value, (math.nan, unseen)) for value in values]
        codes, offsets = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        return codes, offsets

    def _encode_lattice(self, x: np.ndarray, density: bool) -> Codes:
        low, high = self._ends()
        with np.errstate(all="ignore"):
            codes = (x - self.origin) / self.resolution
            codes = np.round(codes) if self.per_step == 1 else np.floor(codes)
            beyond = np.maximum(low - codes, codes - high) - 1
        span = min(high - low + 1, float(MAX_STEPS))
        offset = self._offsets(codes, beyond, span, 1.0)
        each = self.resolution if density else float(self.per_step)
        return codes, np.where(np.isnan(x), 0.0, offset - math.log(each))

    def _encode_real(self, x: np.ndarray) -> Codes:
        low, high = self._ends()
        with np.errstate(all="ignore"):
            below, above = np.log(np.maximum(x - low, 0)), np.log(np.maximum(high - x, 0))
            if self.low is None:
                y, log_slope = x, np.zeros_like(x)
            elif self.high is None:
                y, log_slope = below, -below
            else:
                y, log_slope = below - above, math.log(high - low) - below - above
            codes = (0.5 * y - 0.5 * self.loc) / (0.5 * self.scale)  # no overflow at the largest numbers
            first, last = self._axis(np.array([-FAR, FAR]))
            beyond = np.maximum(first - x, x - last)
        offset = self._offsets(codes, beyond, self.unit, 0.0)
        return codes, np.where(np.isnan(codes), offset, log_slope - math.log(self.scale) + offset)

    def _offsets(self, codes: np.ndarray, beyond: np.ndarray, unit: float, step: float) -> np.ndarray:
        """Offsets of values by their distance beyond the range (< 0: inside), where codes become missing."""
        outside, missing, share = beyond >= 0, np.isnan(beyond), 1 / (self.n + 1)
        d = np.clip(np.nan_to_num(beyond), 0, 1e300)
        # each side has half of 1 / (n + 1), of which unit / (unit + d) is left beyond a distance d
        tail = math.log(unit) - np.log(unit + d) - np.log(unit + d + step)
        codes[outside] = math.nan
        return np.where(outside, math.log(share / 2) + tail, np.where(missing, 0.0, math.log1p(-share)))

    @property
    def unit(self) -> float:
        """A usual size of the values of a real column."""
        if self.low is None:
            return self.scale
        return 1.0 if self.high is not None else math.exp(min(self.loc, 700.0))

    def _ends(self) -> tuple[float, float]:
        none = FAR_STEPS if self.resolution else math.inf
        return (-none if self.low is None else self.low), (none if self.high is None else self.high)

    def decode(self, codes: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Values of codes: an object array of levels, int64 of integers and dates, else float64.

        Args:
            codes: without NaN.
            rng: draws among the rare levels of a code; without it the most frequent one is taken.
        """
        codes = np.asarray(codes, dtype=np.float64)
        if self.kind in LEVELS:
            values, places = np.empty(len(self.levels) + len(self.rare), object), codes.astype(np.int64)
            values[:] = [*self.levels, *self.known_rare]
            if self.rare and rng is not None:
                rows = np.flatnonzero(places == len(self.levels))
                shares = np.array([share for _, share in self.rare])
                places[rows] += rng.choice(len(shares), size=len(rows), p=shares / shares.sum())
            return values[places]
        if self.resolution:
            if self.kind in ("integer", "date") and self.resolution == int(self.resolution):
                return int(self.origin) + np.round(codes).astype(np.int64) * int(self.resolution)
            x = self.origin + codes * self.resolution
            return np.round(x, self.decimals) if self.decimals < UNROUNDED else x
        x = self._axis(codes)
        if self.low is not None:
            x = np.clip(x, np.nextafter(self.low, math.inf), np.nextafter(self._ends()[1], -math.inf))
        return np.clip(np.round(x), -LARGEST, LARGEST).astype(np.int64) if self.kind == "date" else x

    def _axis(self, codes: np.ndarray) -> np.ndarray:
        """Finite values of the codes of a real column."""
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            y = np.clip(self.loc + self.scale * codes, -largest, largest)
            if self.low is None:
                return y
            x = np.exp(y) if self.high is None else (self.high - self.low) / (1 + np.exp(-y))
        return np.minimum(self.low + x, largest)

    def parse(self, value: Any) -> Any:
        """A user's value, or its text, as `encode` takes it; a ValueError says what was expected."""
        if self.kind == "date":
            return float(_microseconds(value, self.name))
        if self.kind not in LEVELS:
            try:
                if (number := float(value)) == number:
                    return number
            except (TypeError, ValueError, OverflowError):
                pass
            raise ValueError(f"column {self.name!r} is given as {value!r:.60}, which is no number")
        value = value.item() if isinstance(value, np.generic) else value
        known = (*self.levels, *self.known_rare)
        if value in known:
            return known[known.index(value)]
        text, number = str(value).strip(), as_float(value)
        for level in known:
            word = isinstance(level, bool) and level == WORDS.get(text.lower())
            if str(level) == text or word or (is_number(level) and level == number):
                return level
        some = ", ".join(map(str, known[:8])) + ", …" * (len(known) > 8)
        raise ValueError(f"column {self.name!r} has no level {value!r}; its levels are: {some}")

    def bins(self, low: float, high: float, most: int) -> np.ndarray:
        """Ends of ranges of about one width that cover the values from low to high; dates in microseconds.

        A range holds the values above its first end up to its last. On a lattice ranges are whole steps.

        Args:
            low, high: the smallest and the largest value to cover.
            most: how many ranges at most.
        """
        step = self.resolution
        count = min(most, round((high - low) / step) + 1) if step else most
        edges = np.linspace(low - step, high, count + 1)
        return low + np.round((edges - low) / step) * step if step else edges

    def domain(self) -> str:
        """The values, in words."""
        if self.kind in LEVELS:
            shown = ", ".join(map(str, self.levels[:6])) + ", …" * (len(self.levels) > 6)
            return " + ".join(filter(None, [shown, f"{len(self.rare)} rare" * bool(self.rare)]))
        step = self.resolution
        if self.kind == "date":
            steps = f"{step / DAY:g} days" if step >= DAY else f"{step / 1e6:g} s"
            return f"steps of {steps}" if step else "any time"
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        low, high = (round(self.origin + end * (step or 1), 12) + 0.0 for end in (low, high))
        steps = f", steps of {step:g}" if step else ""
        if math.isinf(high):
            return ("any number" if math.isinf(low) else f"at least {low:g}") + steps
        return f"{low:g} … {high:g}{steps}"


def is_number(value: Any) -> bool:
    """Whether a value is a number, and neither a boolean nor NaN."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and value == value


def as_float(value: Any) -> float:
    """The number that a value or a text stands for; NaN if there is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _microseconds(value: Any, name: str) -> int:
    """Microseconds since 1970 of a date in any of its forms; without a time zone, UTC."""
    try:
        if isinstance(value, np.datetime64) and not np.isnat(value):
            return int(value.astype("datetime64[us]").astype(np.int64))
        value = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return round(moment.timestamp() * 1e6)
    except (ValueError, AttributeError, TypeError):
        given = f"column {name!r} is given as {value!r}"
        raise ValueError(f"{given}, which is no date such as 2024-05-31") from None


class Unsuitable(Exception):
    """A column that cannot be modelled: identifiers, free text, or no value; the message says why."""


def infer(name: str, values: Cells, sort: str, wanted: Wanted = None, dtype: Type | None = None) -> Column:
    """What a column is, from what `frames.cells` says of it, and from the kind that a user wants."""
    dtype = dtype or {}
    if dtype.get("inexact") and wanted != "real":
        known = np.asarray(values)[~np.isnan(values)]
        if np.ptp(known) < MAX_STEPS * np.spacing(np.abs(known).max()):
            raise Unsuitable("whole numbers beyond 2^53 so close together are no numbers of float64")
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
        dates = "; read dates as dates" if re.match(r"\d{4}-\d\d-\d\d", example) else ""
        raise Unsuitable(
            f"{len(counts):,} different texts in {len(cells):,} rows, such as {example!r}{dates}"
        )
    return _levels(name, cells, wanted, "true or false" if sort == "boolean" else "text")


def _levels(name: str, cells: list[Any], wanted: Wanted, why: str, order: Sequence[Any] = ()) -> Column:
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
        why += f", {len(rare):,} in fewer than {least} rows or not among the {MOST_LEVELS} most frequent"
    shares = tuple((value, count / total) for value, count in rare)
    return Column(name, kind, why, len(cells), tuple(levels), shares)


def _number(name: str, known: np.ndarray, wanted: Wanted) -> Column:
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
    step, decimals = _lattice(distinct, repeats, whole, spike) if wanted != "real" else (0.0, 0)
    if wanted in ("integer", "rounded") and not step:
        step, decimals = _fine(distinct), UNROUNDED
    span = float((distinct[-1] - origin) / step) if step else 0.0  # in steps
    if not step or (span > MAX_STEPS and wanted is None and not whole):
        return _real(name, known, f"{len(distinct):,} different values in {n:,} rows")
    if whole and wanted in (None, "integer"):
        wide = max(1, math.ceil(span / MAX_STEPS))  # steps to a code, where there are more steps than codes
        ends: Any = {"resolution": step * wide, "origin": origin, "low": 0.0, "high": span // wide}
        why = "whole numbers" + f", multiples of {step:g} apart" * (step > 1)
        return Column(name, "integer", why + f", {wide} to a step" * (wide > 1), n, **ends, per_step=wide)
    steps = np.floor(origin / step + 1e-9)  # from 0 to the first value
    low = None if origin < 0 or steps > FAR_STEPS else -float(steps)
    why = f"values repeat, and are multiples of {step:g}" if decimals < UNROUNDED else "values repeat"
    return Column(name, "rounded", why, n, resolution=step, origin=origin, low=low, decimals=decimals)


def _real(name: str, known: np.ndarray, reason: str) -> Column:
    ends: dict[str, Any] = {}
    if known.min() > 0 and known.max() - known.min() > 1e-4 * known.max():  # else a logarithm loses digits
        ends = {"low": 0.0, "high": 1.0} if (known < 1).all() else {"low": 0.0}
        reason += ", all between 0 and 1" if "high" in ends else ", all above 0"
    return bounded(Column(name, "real", reason, len(known)), known, **ends)


def bounded(column: Column, known: np.ndarray, low: float | None = None, high: float | None = None) -> Column:
    """A real column with the ends of its range, none of which is among its known values."""
    least, most = float(known.min()), float(known.max())
    if low is None and high is not None:
        raise ValueError(f"column {column.name!r} has an upper end, so it needs a lower one (low) too")
    if (low is not None and least <= low) or (high is not None and most >= high):
        expected = f"above {low:g}" + (f" and below {high:g}" if high is not None else "")
        raise ValueError(
            f"column {column.name!r} holds values from {least:g} to {most:g}; expected {expected}"
        )
    y = known if low is None else np.log(known - low)
    loc, scale = _moments(y if high is None else y - np.log(high - known))
    return replace(column, low=low, high=high, loc=loc, scale=scale)


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
        return bounded(Column(name, "date", "dates", n), known)
    lattice: Any = {"resolution": float(step), "origin": float(distinct[0]), "low": 0.0, "high": span / step}
    return Column(name, "date", "dates", n, **lattice)


def _lattice(distinct: np.ndarray, repeats: np.ndarray, whole: bool, spike: bool) -> tuple[float, int]:
    """The step and decimals of the lattice that nearly all cells are on, if there are ties or a spike."""
    if whole:
        step = int(np.gcd.reduce(np.diff(distinct.astype(np.int64))))
        return float(step if len(distinct) >= 10 else 1), 0
    if (len(distinct) > TIES * repeats.sum() and not spike) or np.abs(distinct).max() > 1e300:
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
    return _fine(distinct), UNROUNDED


def _fine(distinct: np.ndarray) -> float:
    """The smallest difference between values, but no finer than the codes of a lattice."""
    span = distinct[-1] - distinct[0]
    return float(max(np.diff(distinct).min(), span / MAX_STEPS)) if len(distinct) > 1 else 1.0
