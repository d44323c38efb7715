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
FOLDER = Path(__file__).parent
STAMP = zlib.crc32(
    b"".join((FOLDER / name).read_bytes() for name in ("cpu_scalar.py", "cpu_vector.py", "reference.py"))
)

REORDER = {"reassoc", "contract", "nsz"}
STRICT = {"contract", "nsz"}  # for sums whose order is the algorithm


def jit(fastmath: set[str] = REORDER, inline: bool = False, allocates: bool = False) -> Any:
    """Compile with our options, cached on disk wherever a cache can be written.

    numba renews its cache when the file of a function changes, but not when a function it calls does; so the
    state of the files whose functions and numbers go into all others becomes part of their names.

    Args:
        fastmath: what LLVM may assume.
        inline: force it into its callers. Left to LLVM, a process that compiles and one that loads from the
            cache may use different copies, which may round differently: a resumed run would not be identical.
        allocates: it creates arrays, whose references must be counted. The others get their memory from
            outside, and the atomic instructions of counting would cost as much as a lane's arithmetic.
    """
    options: dict[str, Any] = {"fastmath": fastmath, "error_model": "numpy", "nogil": True}
    options |= {"forceinline": inline} | reference_counts(allocates)

    def decorate(function: Compiled) -> Compiled:
        function.__qualname__ += f"_{STAMP:x}"
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no writable place for its cache
            return numba.njit(**options)(function)

    return decorate


# e^z = 2^n 2^f with n whole and |f| <= 1/2: 2^f by a polynomial, 2^n by adding n to the exponent bits.
# Adding MAGIC rounds to a whole number and leaves it in the low bits.
LOG2E, MAGIC, LIMIT, ONE = np.array((1.4426950408889634, 12582912.0, 125.0, 1), np.float32)
E1, E2, E3, E4, E5 = np.array((0.693147, 0.24022242, 0.055507336, 0.009671513, 0.0013264727), np.float32)
F1, F2, F3, F4, F5, F6 = np.array(  # one degree more, where errors of many factors would add up
    (0.6931472, 0.24022648, 0.055503324, 0.009618437, 0.0013398875, 0.00015353362), np.float32
)

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


@scalar
def apart(x):
    """f and n + MAGIC of e^x = 2^n 2^f, in float32."""

    def single(x):
        z = np.float32(LOG2E * x)
        z = LIMIT if z > LIMIT else z  # these comparisons let NaN through
        z = -LIMIT if z < -LIMIT else z
        whole = np.float32(z + MAGIC)
        return z - (whole - MAGIC), whole

    return single


@scalar
def joined(p, whole):
    """2^n p from n + MAGIC, in float32."""

    def single(p, whole):
        both = np.float32(p).view(np.int32) + (np.float32(whole).view(np.int32) << np.int32(23))
        return np.int32(both).view(np.float32)

    return single


@scalar
def power(x):
    """e^x; in float32 for |x| up to 86, relative error at most 2e-7 max(1, |x|)."""

    def single(x):
        f, whole = apart(x)
        return joined((((((F6 * f + F5) * f + F4) * f + F3) * f + F2) * f + F1) * f + ONE, whole)

    return single if x == numba.float32 else lambda x: math.exp(x)


@scalar
def logistic(x):
    """1 / (1 + e^-x). In float32 an approximation, error at most 2e-7 everywhere; exact in float64."""

    def single(x):
        f, whole = apart(-x)
        return ONE / (ONE + joined(((((E5 * f + E4) * f + E3) * f + E2) * f + E1) * f + ONE, whole))

    return single if x == numba.float32 else lambda x: 1.0 / (1.0 + math.exp(-x))


@scalar
def rectify(x):
    """max(x, 0), NaN staying NaN."""
    zero = np.float32(0) if x == numba.float32 else np.float64(0)
    return lambda x: zero if x < zero else x


@scalar
def tanh(x):
    """2 logistic(2x) - 1."""
    kind = np.float32 if x == numba.float32 else np.float64
    one, two = kind(1), kind(2)
    return lambda x: two * logistic(two * x) - one


GOLDEN, FIRST, SECOND = np.array((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), np.uint64)


@scalar
def nth(seed, k, like):
    """The k-th uniform number of a seed (SplitMix64), in the type of `like`.

    It has 23 bits in float32 and 52 in float64, plus a half, so it is never rounded and never 0 or 1.
    """
    kind, bits = (np.float32, 23) if like == numba.float32 else (np.float64, 52)
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
    kind, whole = (np.float32, np.int32) if x == numba.float32 else (np.float64, np.int64)
    return lambda x: kind(x).view(whole)


@scalar
def value_of(whole):
    """The float that has these bits."""
    kind, size = (np.float32, np.int32) if whole == numba.int32 else (np.float64, np.int64)
    return lambda whole: size(whole).view(kind)
