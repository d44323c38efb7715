"""Compilation of the CPU kernels, and their scalar functions, which numba inlines into loops."""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba.extending import overload

from pynade.kernels.private import reference_counts

Compiled = Callable[..., Any]
COMMON = ("cpu_scalar.py", "cpu_vector.py", "reference.py")
STAMP = zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in COMMON))
REORDER = {"reassoc", "contract", "nsz"}
STRICT = {"contract", "nsz"}  # where the order of a sum must not change


def jit(inline: bool = False, allocates: bool = False) -> Any:
    """A decorator that compiles a function with numba, and caches it on disk where a cache can be written.

    `inline` forces inlining: if LLVM decides, a process that compiles and one that loads from the cache may
    round differently. `allocates` turns on (slow) reference counting, for functions that create arrays. numba
    does not recompile when a called function has changed, so names include a checksum of the common files.
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


LARGEST_ODDS = math.exp(80)  # `ODDS` needs every e^w between the inverse of this number and this number
ZERO_BELOW = np.float32(-104)  # the sigmoid of smaller numbers is zero in float32

INLINE: Any = {"fastmath": STRICT, "error_model": "numpy", "forceinline": True} | reference_counts(False)


def scalar(build: Compiled) -> Compiled:
    """A function that compiled code can call; `build` returns its implementation for given argument types."""

    @functools.wraps(build)
    def function(*_: Any) -> Any:
        raise NotImplementedError("compiled code only")

    overload(function, jit_options=INLINE)(build)
    return function


# e^x = 2^n e^f with an integer n and |f| <= log(2) / 2. Adding `magic` rounds to an integer and leaves it in
# the low bits. log 2 is the sum of `first` and `second`; n times the first is exact. The series (highest
# power first) is from Cephes in float32, and the Taylor series in float64.
SINGLE = SimpleNamespace(
    kind=np.float32, whole=np.int32, bits=23, magic=12582912.0, high=88.37, low=-87.0,
    first=0.693359375, second=-2.12194440e-4, root=0x3F3504F3, terms=4,
    series=(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5),
)  # fmt: skip
DOUBLE = SimpleNamespace(
    kind=np.float64, whole=np.int64, bits=52, magic=6755399441055744.0,
    high=709.0, low=-708.0, first=6.93145751953125e-1, second=1.42860682030941723212e-6,
    root=0x3FE6A09E667F3BCD, terms=10, series=[1 / math.factorial(n) for n in range(13, 1, -1)],
)  # fmt: skip


def _constants(x: Any) -> SimpleNamespace:
    return SINGLE if x == numba.float32 else DOUBLE


@scalar
def polynomial(x, coefficients):
    """The value at x of the polynomial with these coefficients (a tuple, highest power first)."""

    def compute(x, coefficients):
        y = coefficients[0]
        for c in coefficients[1:]:
            y = y * x + c
        return y

    return compute


@scalar
def at_most(x):
    """The smaller of x and the largest number with a finite exponential; NaN stays NaN."""
    high = _constants(x).kind(_constants(x).high - 1)
    return lambda x: high if x > high else x


@scalar
def exponential(x):
    """e^x, correct to the last bit or two; infinite above `high`, 0 below `low`; NaN stays NaN."""
    constants = _constants(x)
    kind, whole, shift = constants.kind, constants.whole, constants.whole(constants.bits)
    magic, high, low = kind(constants.magic), kind(constants.high), kind(constants.low)
    first, second, series = kind(constants.first), kind(constants.second), tuple(map(kind, constants.series))
    factor, zero, one, infinity = kind(1 / math.log(2)), kind(0), kind(1), kind(np.inf)

    def compute(x):
        z = high if x > high else x  # NaN passes these comparisons unchanged
        z = low if z < low else z
        shifted = kind(z * factor + magic)
        n = shifted - magic
        f = z - n * first - n * second
        power = polynomial(f, series) * (f * f) + f + one
        y = whole(kind(power).view(whole) + (shifted.view(whole) << shift)).view(kind)
        y = infinity if x > high else y
        y = zero if x < low else y
        return y if x == x else x  # of a NaN, y may be any number

    return compute


@scalar
def logarithm(x):
    """Log x of a positive normal number, correct to the last bit or two; infinity and NaN are returned."""
    constants = _constants(x)
    kind, whole, shift = constants.kind, constants.whole, constants.whole(constants.bits)
    root, one, two, infinity = whole(constants.root), kind(1), kind(2), kind(np.inf)
    log2, series = kind(math.log(2)), tuple(kind(2 / (2 * n + 1)) for n in range(constants.terms, 0, -1))

    def compute(x):
        pattern = kind(x).view(whole)
        e = whole(whole(pattern - root) >> shift)  # x = 2^e m, m from sqrt(1/2) to sqrt(2)
        m = whole(pattern - whole(e << shift)).view(kind)
        s = (m - one) / (m + one)
        t = s * s
        y = kind(e) * log2 + (two * s + s * t * polynomial(t, series))
        return y if x < infinity else x

    return compute


# A faster exponential in float32, which is never infinite: e^x = 2^n 2^f, where 2^f is a polynomial in f.
LOG2E, MAGIC, LIMIT = np.array((1.4426950408889634, 12582912.0, 125.0), np.float32)
FAST = tuple(np.array((0.0013264727, 0.009671513, 0.055507336, 0.24022242, 0.693147, 1), np.float32))
PRECISE = tuple(  # for products of many factors, whose errors add up
    np.array((0.00015353362, 0.0013398875, 0.009618437, 0.055503324, 0.24022648, 0.6931472, 1), np.float32)
)


@scalar
def power(x, series):
    """e^x, in float32 for |x| up to 86; relative error with `PRECISE`: at most 2e-7 max(1, |x|)."""

    def single(x, series):
        z = np.float32(LOG2E * x)
        z = LIMIT if z > LIMIT else z  # NaN passes these comparisons unchanged
        z = -LIMIT if z < -LIMIT else z
        whole = np.float32(z + MAGIC)
        y = np.float32(polynomial(z - (whole - MAGIC), series)).view(np.int32)
        return np.int32(y + (np.float32(whole).view(np.int32) << np.int32(23))).view(np.float32)

    return single if x == numba.float32 else lambda x, series: exponential(x)


GOLDEN, FIRST, SECOND = np.array((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), np.uint64)


@scalar
def uniform_number(seed, k, like):
    """The k-th uniform number of a seed (SplitMix64), strictly between 0 and 1, in the type of `like`."""
    kind, bits = _constants(like).kind, _constants(like).bits
    shift, scale, half = np.uint64(64 - bits), kind(0.5**bits), kind(0.5 ** (bits + 1))

    def number(seed, k, like):
        z = seed + (k + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * FIRST
        z = (z ^ (z >> np.uint64(27))) * SECOND
        return kind(np.int64((z ^ (z >> np.uint64(31))) >> shift)) * scale + half

    return number


@scalar
def bits(x):
    """The bits of a float as an integer; for positive floats the order is the same."""
    kind, whole = _constants(x).kind, _constants(x).whole
    return lambda x: kind(x).view(whole)


@scalar
def value_of(whole):
    """The float that has these bits."""
    kind, size = (np.float32, np.int32) if whole == numba.int32 else (np.float64, np.int64)
    return lambda whole: size(whole).view(kind)
