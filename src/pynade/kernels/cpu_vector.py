"""Vector primitives of the CPU kernels: the inner loops over hidden units, written so that LLVM vectorises
them.

Everything here works on *lanes*: flat, aligned buffers cut into runs of `LANE` values. The lanes of one
row's state (pre-activation, activation, …) lie at constant distances from each other, and so do the rows of
a tile of weights. That is what lets the compiler see, with one comparison, that the arrays do not overlap;
with separate arrays it gives up and emits scalar code. For the same reason nothing here raises on division
by zero, and buffers come whole with unsigned offsets (s, o): no index can be negative, and no view has to be
counted.

Rounding may be reordered (`reassoc`) and fused (`contract`), but NaN and infinity keep their meaning.
"""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.extending import overload

from pynade.kernels.reference import ACTIVATIONS

Compiled = Callable[..., Any]
STAMP = zlib.crc32(Path(__file__).read_bytes())

REORDER = {"reassoc", "contract", "nsz"}
STRICT = {"contract", "nsz"}  # for sums whose order is the algorithm
CODES = {name: code for code, name in enumerate(ACTIVATIONS)}
SIGMOID, RELU = CODES["sigmoid"], CODES["relu"]
ODDS = len(CODES)  # the sigmoid of binary data, see `advance`

LANE = 512  # hidden units worked on together: a few such lanes per row fit the first two cache levels
GROUP = 32  # rows that go forward side by side …
FOUR = 4  # … so many at a time in `dots`
ROUND = 64  # widths are padded to this many units, the step of the unrolled vector loop
SHORT = 256  # the same going back, where a row has more of them
FORWARD_STATE = 2 * LANE  # a row's lanes: pre-activation a, activation h
BACKWARD_STATE = 4 * SHORT  # … then g = d/da, and q = d/dh not yet in g
PAIR = 2 * SHORT  # a tile row of the backward pass: the weights, then their gradient
H = np.uint64(LANE)  # offset of h going forward, and of the lanes going back
BACK_H, G, Q, GRAD, TWIN = (np.uint64(n * SHORT) for n in (1, 2, 3, 1, 2))


def jit(
    fastmath: set[str] = REORDER, inline: bool = False, allocates: bool = False
) -> Callable[[Compiled], Compiled]:
    """Compile with our options, cached on disk wherever a cache can be written.

    Whatever another compiled function calls is forced into it (`inline`). Left to LLVM, a process that
    compiles would call the callee's own copy where a process that loads from the cache calls the copy
    compiled into its caller, and the two may round differently: a run resumed by another process would no
    longer be identical.

    numba counts references to arrays whenever one function hands them to another, even inlined, with atomic
    instructions that cost as much as a lane's arithmetic. The functions here get all their memory from
    outside, so the counting is left out (`_nrt`); one that makes arrays of its own says `allocates`.

    numba renews its cache when the file of a function changes, but not when a function it calls does; so the
    state of this file, whose functions go into all others, becomes part of their names.
    """
    options: dict[str, Any] = {"fastmath": fastmath, "error_model": "numpy", "nogil": True}
    options["forceinline"], options["_nrt"] = inline, allocates

    def decorate(function: Compiled) -> Compiled:
        function.__qualname__ += f"_{STAMP:x}"
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no writable place for its cache
            return numba.njit(**options)(function)

    return decorate


# e^z = 2^n 2^f with n whole and |f| <= 1/2: 2^f by a polynomial, 2^n by adding n to the exponent bits.
# Adding MAGIC rounds to a whole number and leaves it in the low bits.
LOG2E, MAGIC, LIMIT, ONE = (
    np.float32(1.4426950408889634),
    np.float32(12582912.0),
    np.float32(125.0),
    np.float32(1),
)
E1, E2, E3 = np.float32(0.693147), np.float32(0.24022242), np.float32(0.055507336)
E4, E5 = np.float32(0.009671513), np.float32(0.0013264727)
# one degree more, where errors of many factors would add up
F1, F2, F3 = np.float32(0.6931472), np.float32(0.24022648), np.float32(0.055503324)
F4, F5, F6 = np.float32(0.009618437), np.float32(0.0013398875), np.float32(0.00015353362)

STEEPEST = 80.0  # weights beyond it are not for `ODDS`
NEVER = np.float32(-104)  # the sigmoid of less is zero in float32

INLINE: Any = {"fastmath": STRICT, "error_model": "numpy", "forceinline": True, "_nrt": False}


def power(x: float) -> float:
    """e^x in float32, relative error at most 3e-7, for |x| up to 86; exact in float64."""
    raise NotImplementedError("compiled code only")


def logistic(x: float) -> float:
    """1 / (1 + e^-x). In float32 an approximation, error at most 2e-7 everywhere; exact in float64."""
    raise NotImplementedError("compiled code only")


def rectify(x: float) -> float:
    """max(x, 0), NaN staying NaN."""
    raise NotImplementedError("compiled code only")


def tanh(x: float) -> float:
    """2 logistic(2x) - 1."""
    raise NotImplementedError("compiled code only")


def apart(x: Any) -> tuple[Any, Any]:
    """f and n + MAGIC of e^x = 2^n 2^f."""
    raise NotImplementedError("compiled code only")


def joined(p: Any, whole: Any) -> Any:
    """2^n p from n + MAGIC."""
    raise NotImplementedError("compiled code only")


@overload(apart, jit_options=INLINE)
def _apart(x):
    def single(x):
        z = np.float32(LOG2E * x)
        z = LIMIT if z > LIMIT else z  # these comparisons let NaN through
        z = -LIMIT if z < -LIMIT else z
        whole = np.float32(z + MAGIC)
        return z - (whole - MAGIC), whole

    return single


@overload(joined, jit_options=INLINE)
def _joined(p, whole):
    def single(p, whole):
        both = np.float32(p).view(np.int32) + (np.float32(whole).view(np.int32) << np.int32(23))
        return np.int32(both).view(np.float32)

    return single


@overload(power, jit_options=INLINE)
def _power(x):
    def single(x):
        f, whole = apart(x)
        return joined((((((F6 * f + F5) * f + F4) * f + F3) * f + F2) * f + F1) * f + ONE, whole)

    return single if x == numba.float32 else lambda x: math.exp(x)


@overload(logistic, jit_options=INLINE)
def _logistic(x):
    def single(x):
        f, whole = apart(-x)
        return ONE / (ONE + joined(((((E5 * f + E4) * f + E3) * f + E2) * f + E1) * f + ONE, whole))

    def double(x):
        return 1.0 / (1.0 + math.exp(-x))

    return single if x == numba.float32 else double


GOLDEN, FIRST, SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def nth(seed: Any, k: Any, like: Any) -> Any:
    """The k-th number of a seed, in the type of `like`.

    It has 23 bits in float32 and 52 in float64, plus a half: so none is rounded, least of all to one.
    """
    raise NotImplementedError("compiled code only")


@overload(nth, jit_options=INLINE)
def _nth(seed, k, like):
    kind, bits = (np.float32, 23) if like == numba.float32 else (np.float64, 52)
    shift, scale, half = np.uint64(64 - bits), kind(0.5**bits), kind(0.5 ** (bits + 1))

    def number(seed, k, like):
        z = seed + (k + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * FIRST
        z = (z ^ (z >> np.uint64(27))) * SECOND
        return kind(np.int64((z ^ (z >> np.uint64(31))) >> shift)) * scale + half

    return number


@overload(rectify, jit_options=INLINE)
def _rectify(x):
    zero = np.float32(0) if x == numba.float32 else np.float64(0)
    return lambda x: zero if x < zero else x


@overload(tanh, jit_options=INLINE)
def _tanh(x):
    kind = np.float32 if x == numba.float32 else np.float64
    one, two = kind(1), kind(2)
    return lambda x: two * logistic(two * x) - one


@jit(inline=True)
def squash(x, code):
    """The activation; the branch on its code is lifted out of the loops that call this."""
    if code == SIGMOID:
        return logistic(x)
    if code == RELU:
        return rectify(x)
    return tanh(x)


@jit(inline=True)
def slope(h, one, code):
    """d act / d a, from the activation h itself."""
    if code == SIGMOID:
        return h * (one - h)
    if code == RELU:
        return one if h > 0 else one - one
    return one - h * h


@jit(inline=True)
def copy(to, j, rows, i, width):
    """So many values of a matrix from i on into a tile; returns 0, or NaN if they are not finite."""
    zero = to.dtype.type(0)
    nothing = zero
    for k in range(width):
        value = rows[i + k]
        to[j + k] = value
        nothing += zero * value
    return nothing


@jit(inline=True)
def copy_odds(to, j, rows, i, width):
    """`copy` of e^-value, for `ODDS`; returns the least, or 0 if some value is too large for that."""
    others = 0
    for k in range(width):
        value = rows[i + k]
        to[j + k] = power(-value)
        others += not abs(value) < STEEPEST
    return to.dtype.type(0) if others else least(to, j, width)


@jit(inline=True)
def fetch(w, v, at_w, at_v, weights, outputs, i, n_params, hidden, k0, width, code):
    """One step's weights into tiles: variable i's units from k0 on, padded to `width`.

    Returns the least e^-w for `ODDS`, 0 if one is unusable; otherwise 1, or 0 if some weight is not finite
    (then even 0 w is no zero).
    """
    zero, one = w.dtype.type(0), w.dtype.type(1)
    units = max(0, min(width, hidden - k0))
    some, j, q = np.uint64(units), np.uint64(at_w), np.uint64(i * hidden + k0)
    if code == ODDS:
        mark = copy_odds(w, j, weights, q, some)
    else:
        mark = one if copy(w, j, weights, q, some) == zero else zero
    w[at_w + units : at_w + width] = one if code == ODDS else zero
    for p in range(n_params):
        start = at_v + p * width
        copy(v, np.uint64(start), outputs, np.uint64((i * n_params + p) * hidden + k0), some)
        v[start + units : start + width] = zero
    return mark


@jit(inline=True)
def add(to, i, tile, j, width, first):
    """The other way, adding to what is there unless this is the first."""
    if first:
        for k in range(width):
            to[i + k] = tile[j + k]
    else:
        for k in range(width):
            to[i + k] += tile[j + k]


@jit(inline=True)
def permute(to, rows, order, n_params):
    """rows (D, P) flattened in step order."""
    for d in range(len(order)):
        i = order[d] * n_params
        for p in range(n_params):
            to[d * n_params + p] = rows[i + p]


@jit(inline=True)
def activate(s, o, to, width, code):
    """h = act(a), `to` values further on."""
    one = s.dtype.type(1)
    for k in range(width):
        s[o + to + k] = one / (one + s[o + k]) if code == ODDS else squash(s[o + k], code)


def bits(x: float) -> int:
    """The bits of a float as a whole number: of positive floats the smaller has the smaller."""
    raise NotImplementedError("compiled code only")


@overload(bits, jit_options=INLINE)
def _bits(x):
    kind, whole = (np.float32, np.int32) if x == numba.float32 else (np.float64, np.int64)
    return lambda x: kind(x).view(whole)


def value_of(whole: int) -> float:
    """The float that has these bits."""
    raise NotImplementedError("compiled code only")


@overload(value_of, jit_options=INLINE)
def _value_of(whole):
    kind, size = (np.float32, np.int32) if whole == numba.int32 else (np.float64, np.int64)
    return lambda whole: size(whole).view(kind)


@jit(inline=True)
def advance(s, o, x, w, i, width, code):
    """a += x w; h = act(a).

    With `ODDS` the state is e^-a, w holds e^-w, and x is one: a step of the sigmoid is then a multiplication,
    an addition and a division, without an exponential. States must not become too small to be exact
    (`shrunk`); one that becomes infinite stays so (`infinite`).
    """
    one = s.dtype.type(1)
    if code == ODDS:
        for k in range(width):
            a = s[o + k] * w[i + k]
            s[o + k] = a
            s[o + H + k] = one / (one + a)
    else:
        for k in range(width):
            a = s[o + k] + x * w[i + k]
            s[o + k] = a
            s[o + H + k] = squash(a, code)


@jit(inline=True)
def advance_dot(s, o, x, w, i, v, j, width, code):
    """`advance`, and the first output of the new h in the same pass."""
    y, one = s.dtype.type(0), s.dtype.type(1)
    if code == ODDS:
        for k in range(width):
            a = s[o + k] * w[i + k]
            s[o + k] = a
            h = one / (one + a)
            s[o + H + k] = h
            y += h * v[j + k]
    else:
        for k in range(width):
            a = s[o + k] + x * w[i + k]
            s[o + k] = a
            h = squash(a, code)
            s[o + H + k] = h
            y += h * v[j + k]
    return y


@jit(inline=True)
def least(s, o, width):
    """The least of some positive values, or 1. (A minimum of floats would not become vector code.)"""
    low = bits(s.dtype.type(1))
    for k in range(width):
        low = min(low, bits(s[o + k]))
    return value_of(low)


@jit(inline=True)
def shrunk(bounds, r, factor, s, o, width):
    """Whether row r has a state of `ODDS` that is too small, after a step whose least e^-w is `factor`.

    bounds[r] is at most the least state; only when it becomes too small itself are the states looked at.
    """
    tiny = s.dtype.type(8 * np.finfo(s.dtype).tiny)
    bounds[r] *= factor
    if bounds[r] < tiny:
        bounds[r] = least(s, o, width)
    return bounds[r] < tiny


@jit(inline=True)
def infinite(s, o, width):
    """Whether some value is infinite."""
    found = False
    for k in range(width):
        found |= s[o + k] == np.inf
    return found


@jit(inline=True)
def dot(s, o, v, j, width):
    """The lane of s at o, times v."""
    y = s.dtype.type(0)
    for k in range(width):
        y += s[o + k] * v[j + k]
    return y


@jit(inline=True)
def dots(s, o, row, v, j, width, out, q, r):
    """`dot` for four rows of state, `row` apart, and two rows of v, which follow each other, to out[q:, r:].

    Eight sums in registers and six loads for eight products: the rate of a matrix product.
    """
    zero = s.dtype.type(0)
    a0, a1, b0, b1, c0, c1, d0, d1 = zero, zero, zero, zero, zero, zero, zero, zero
    o1, o2, o3, j1 = o + row, o + row + row, o + row + row + row, j + width
    for k in range(width):
        v0, v1 = v[j + k], v[j1 + k]
        a0 += s[o + k] * v0
        a1 += s[o + k] * v1
        b0 += s[o1 + k] * v0
        b1 += s[o1 + k] * v1
        c0 += s[o2 + k] * v0
        c1 += s[o2 + k] * v1
        d0 += s[o3 + k] * v0
        d1 += s[o3 + k] * v1
    out[q, r], out[q, r + 1], out[q, r + 2], out[q, r + 3] = a0, b0, c0, d0
    out[q + 1, r], out[q + 1, r + 1], out[q + 1, r + 2], out[q + 1, r + 3] = a1, b1, c1, d1


@jit(inline=True)
def flush(s, o, width, code):
    """g += q act'(h); q = 0: to be done before h changes."""
    one = s.dtype.type(1)
    for k in range(width):
        s[o + G + k] += s[o + Q + k] * slope(s[o + BACK_H + k], one, code)
        s[o + Q + k] = one - one


@jit(inline=True)
def collect(s, o, x, w, i, width):
    """gW += x g."""
    for k in range(width):
        w[i + GRAD + k] += x * s[o + G + k]


@jit(inline=True)
def retreat(s, o, x, w, i, e, v, j, width, code):
    """A step back in one pass: `flush`, `collect`, a -= x W, h = act(a), `gather` one output of that h."""
    one = s.dtype.type(1)
    for k in range(width):
        g = s[o + G + k] + s[o + Q + k] * slope(s[o + BACK_H + k], one, code)
        s[o + G + k] = g
        w[i + GRAD + k] += x * g
        a = s[o + k] - x * w[i + k]
        s[o + k] = a
        h = squash(a, code)
        s[o + BACK_H + k] = h
        s[o + Q + k] = e * v[j + k]
        v[j + GRAD + k] += e * h


@jit(inline=True)
def gather(s, o, e, v, j, width):
    """q += e V; gV += e h, for one output whose gradient is e."""
    for k in range(width):
        s[o + Q + k] += e * v[j + k]
        v[j + GRAD + k] += e * s[o + BACK_H + k]


@jit(inline=True)
def gather4(s, o, e0, e1, e2, e3, v, j, width):
    """`gather` for four tile rows at once."""
    j1, j2, j3 = j + TWIN, j + TWIN + TWIN, j + TWIN + TWIN + TWIN
    for k in range(width):
        h = s[o + BACK_H + k]
        s[o + Q + k] += e0 * v[j + k] + e1 * v[j1 + k] + e2 * v[j2 + k] + e3 * v[j3 + k]
        v[j + GRAD + k] += e0 * h
        v[j1 + GRAD + k] += e1 * h
        v[j2 + GRAD + k] += e2 * h
        v[j3 + GRAD + k] += e3 * h
