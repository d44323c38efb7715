"""One column of a table: what it is, how its values become numbers for a model, and values again.

A model sees a *code* for each cell. What the code leaves out of a cell's probability is its *offset*, a
logarithm that is added to the model's: log p(cell) = log p(code) + offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
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
Codes = tuple[np.ndarray, np.ndarray]  # codes and offsets
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
        return self.kind != "date" and all(map(is_number, (*self.levels, *self.known_rare)))

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
        pairs = [(float(code), seen) for code in range(len(self.levels))]
        pairs += [(float(len(self.levels)), seen + math.log(share)) for _, share in self.rare]
        pairs += [(math.nan, 0.0), (math.nan, unseen)]
        indices = {value: i for i, value in enumerate((*self.levels, *self.known_rare, None))}
        rows = np.fromiter(map(indices.get, values, repeat(len(pairs) - 1)), np.int64, len(values))
        codes, offsets = np.array(pairs)[rows].T
        return codes, offsets

    def _encode_lattice(self, x: np.ndarray, density: bool) -> Codes:
        low, high = self._ends()
        with np.errstate(all="ignore"):
            codes = (x - self.origin) / self.resolution
            codes = np.round(codes) if self.per_step == 1 else np.floor(codes)
            beyond = np.maximum(low - codes, codes - high) - 1
        span = min(high - low + 1, float(MAX_STEPS))
        offset = self._offsets(codes, beyond, span, 1.0)
        divisor = self.resolution if density else float(self.per_step)
        return codes, np.where(np.isnan(x), 0.0, offset - math.log(divisor))

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
        far = FAR_STEPS if self.resolution else math.inf
        return (-far if self.low is None else self.low), (far if self.high is None else self.high)

    def decode(self, codes: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Values of codes: an object array of levels, int64 of integers and dates, else float64.

        Args:
            codes: a ValueError says where one is NaN.
            rng: draws among the rare levels of a code, or the values in a step; without it the most frequent
                level and the first value are taken.
        """
        codes = np.asarray(codes, dtype=np.float64)
        if np.isnan(codes).any():
            fault = f"the model's answer for column {self.name!r} is no number"
            raise ValueError(f"{fault}: its weights are too large, or the values it is given too far")
        if self.kind in LEVELS:
            values, indices = np.empty(len(self.levels) + len(self.rare), object), codes.astype(np.int64)
            values[:] = [*self.levels, *self.known_rare]
            if self.rare and rng is not None:
                rows = np.flatnonzero(indices == len(self.levels))
                shares = np.array([share for _, share in self.rare])
                indices[rows] += rng.choice(len(shares), size=len(rows), p=shares / shares.sum())
            return values[indices]
        if self.resolution:
            if self.kind in ("integer", "date") and self.resolution == int(self.resolution):
                integers = int(self.origin) + np.round(codes).astype(np.int64) * int(self.resolution)
                if rng is None or self.per_step == 1:
                    return integers
                within = rng.integers(self.per_step, size=integers.shape)
                return integers + within * (int(self.resolution) // self.per_step)
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
            if math.isnan(number := as_float(value)):
                raise ValueError(f"column {self.name!r} is given as {value!r:.60}, which is no number")
            return number
        value = value.item() if isinstance(value, np.generic) else value
        levels = (*self.levels, *self.known_rare)
        if value in levels:
            return levels[levels.index(value)]
        text, number = str(value).strip(), as_float(value)
        for level in levels:
            is_word = isinstance(level, bool) and level == WORDS.get(text.lower())
            if str(level) == text or is_word or (is_number(level) and level == number):
                return level
        listed = ", ".join(map(str, levels[:8])) + ", …" * (len(levels) > 8)
        raise ValueError(f"column {self.name!r} has no level {value!r}; its levels are: {listed}")

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
    except (TypeError, ValueError, OverflowError):
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
        expected = "which is no date such as 2024-05-31"
        raise ValueError(f"column {name!r} is given as {value!r}, {expected}") from None
