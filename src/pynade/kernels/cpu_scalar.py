"""How the CPU kernels are compiled, and their functions of single numbers, which numba inlines into loops."""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.extending import overload

from pynade.kernels.private import reference_counts

Compiled = Callable[..., Any]
COMMON = ("cpu_scalar.py", "cpu_vector.py", "reference.py")
STAMP = zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in COMMON))
REORDER = {"reassoc", "contract", "nsz"}
STRICT = {"contract", "nsz"}  # for sums whose order is the algorithm


def jit(inline: bool = False, allocates: bool = False) -> Any:
    """Compile with our options, cached on disk wherever a cache can be written.

    Inlining is forced: left to LLVM, a process that compiles and one that loads from the cache may round
    differently. References are counted, in the time of a lane's arithmetic, only where arrays are made. numba
    does not renew its cache when a called function changes, so the state of the common files is in names.
    """
    options: dict[str, Any] = {"fastmath": REORDER, "error_model": "numpy", "nogil": True}
    options |= {"forceinline": inline} | reference_counts(allocates)

    def decorate(function: Compiled) -> Compiled:
        function.__qualname__ += f"_{STAMP:x}"
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no writable place for its cache
            return numba.njit(**options)(function)

    return decorate


STEEPEST = math.exp(80)  # no e^w beyond it, or below its inverse, is for `ODDS`
NEVER = np.float32(-104)  # the sigmoid of less is zero in float32

INLINE: Any = {"fastmath": STRICT, "error_model": "numpy", "forceinline": True} | reference_counts(False)


def scalar(build: Compiled) -> Compiled:
    """A function for compiled code only; `build` returns its implementation for the given argument types."""

    @functools.wraps(build)
    def function(*_: Any) -> Any:
        raise NotImplementedError("compiled code only")

    overload(function, jit_options=INLINE)(build)
    return function


# e^x = 2^n e^f with n whole and |f| <= log(2) / 2. Adding `magic` rounds to a whole number and leaves it in
# the low bits; log 2 comes in two parts, of which n times the first is exact. The series, highest power
# first, are those of Cephes in float32, of Taylor in float64.
SINGLE = {
    "kind": np.float32, "whole": np.int32, "bits": 23, "magic": 12582912.0, "high": 88.37, "low": -87.0,
    "first": 0.693359375, "second": -2.12194440e-4, "root": 0x3F3504F3, "terms": 4,
    "series": (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5),
}  # fmt: skip
DOUBLE = {
    "kind": np.float64, "whole": np.int64, "bits": 52, "magic": 6755399441055744.0,
    "high": 709.0, "low": -708.0, "first": 6.93145751953125e-1, "second": 1.42860682030941723212e-6,
    "root": 0x3FE6A09E667F3BCD, "terms": 10, "series": [1 / math.factorial(n) for n in range(13, 1, -1)],
}  # fmt: skip


def _of(x: Any) -> dict[str, Any]:
    return SINGLE if x == numba.float32 else DOUBLE


@scalar
def polynomial(x, coefficients):
    """Of a tuple of coefficients, the highest power first."""

    def compute(x, coefficients):
        y = coefficients[0]
        for c in coefficients[1:]:
            y = y * x + c
        return y

    return compute


@scalar
def at_most(x):
    """The smaller of x and the largest number with a finite exponential; NaN stays NaN."""
    high = _of(x)["kind"](_of(x)["high"] - 1)
    return lambda x: high if x > high else x


@scalar
def exponential(x):
    """e^x to the last bit or two; 0 and infinity a little before they must be, NaN stays NaN."""
    kind, whole, shift = _of(x)["kind"], _of(x)["whole"], _of(x)["whole"](_of(x)["bits"])
    magic, high, low, first, second = (kind(_of(x)[n]) for n in ("magic", "high", "low", "first", "second"))
    factor, zero, one, infinity = kind(1 / math.log(2)), kind(0), kind(1), kind(np.inf)
    series = tuple(map(kind, _of(x)["series"]))

    def compute(x):
        z = high if x > high else x  # these comparisons let NaN through
        z = low if z < low else z
        moved = kind(z * factor + magic)
        n = moved - magic
        f = z - n * first - n * second
        power = polynomial(f, series) * (f * f) + f + one
        y = whole(kind(power).view(whole) + (moved.view(whole) << shift)).view(kind)
        y = infinity if x > high else y
        y = zero if x < low else y
        return y if x == x else x  # the low bits of a NaN may be anything

    return compute


@scalar
def logarithm(x):
    """Log x to the last bit or two, of positive normal numbers; infinity and NaN stay."""
    kind, whole, shift = _of(x)["kind"], _of(x)["whole"], _of(x)["whole"](_of(x)["bits"])
    root, one, two, infinity = whole(_of(x)["root"]), kind(1), kind(2), kind(np.inf)
    log2, series = kind(math.log(2)), tuple(kind(2 / (2 * n + 1)) for n in range(_of(x)["terms"], 0, -1))

    def compute(x):
        given = kind(x).view(whole)
        e = whole(whole(given - root) >> shift)  # x = 2^e m, m from sqrt(1/2) to sqrt(2)
        m = whole(given - whole(e << shift)).view(kind)
        s = (m - one) / (m + one)
        t = s * s
        y = kind(e) * log2 + (two * s + s * t * polynomial(t, series))
        return y if x < infinity else x

    return compute


# Faster in float32, without infinity: e^x = 2^n 2^f with 2^f by a polynomial.
LOG2E, MAGIC, LIMIT = np.array((1.4426950408889634, 12582912.0, 125.0), np.float32)
FAST = tuple(np.array((0.0013264727, 0.009671513, 0.055507336, 0.24022242, 0.693147, 1), np.float32))
PRECISE = tuple(  # where errors of many factors would add up
    np.array((0.00015353362, 0.0013398875, 0.009618437, 0.055503324, 0.24022648, 0.6931472, 1), np.float32)
)


@scalar
def power(x, series):
    """e^x; in float32 for |x| up to 86, with a relative error of at most 2e-7 max(1, |x|) if `PRECISE`."""

    def single(x, series):
        z = np.float32(LOG2E * x)
        z = LIMIT if z > LIMIT else z  # these comparisons let NaN through
        z = -LIMIT if z < -LIMIT else z
        whole = np.float32(z + MAGIC)
        y = np.float32(polynomial(z - (whole - MAGIC), series)).view(np.int32)
        return np.int32(y + (np.float32(whole).view(np.int32) << np.int32(23))).view(np.float32)

    return single if x == numba.float32 else lambda x, series: exponential(x)


GOLDEN, FIRST, SECOND = np.array((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), np.uint64)


@scalar
def nth(seed, k, like):
    """The k-th uniform number of a seed (SplitMix64), in the type of `like`; never rounded, 0 or 1."""
    kind, bits = _of(like)["kind"], _of(like)["bits"]
    shift, scale, half = np.uint64(64 - bits), kind(0.5**bits), kind(0.5 ** (bits + 1))

    def number(seed, k, like):
        z = seed + (k + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * FIRST
        z = (z ^ (z >> np.uint64(27))) * SECOND
        return kind(np.int64((z ^ (z >> np.uint64(31))) >> shift)) * scale + half

    return number


@scalar
def bits(x):
    """The bits of a float as an integer: of two positive floats the smaller has the smaller integer."""
    kind, whole = _of(x)["kind"], _of(x)["whole"]
    return lambda x: kind(x).view(whole)


@scalar
def value_of(whole):
    """The float that has these bits."""
    kind, size = (np.float32, np.int32) if whole == numba.int32 else (np.float64, np.int64)
    return lambda whole: size(whole).view(kind)
