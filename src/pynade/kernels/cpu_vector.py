"""Inner loops of the CPU kernels over hidden units, written so that LLVM vectorises them.

All functions work on *lanes*: `LANE` consecutive values of a flat, aligned buffer. The lanes of one row's
state, or of a tile, have constant distances, so that LLVM can exclude overlaps by one comparison; for
separate arrays it emits scalar code. For the same reason divisions by zero do not raise, and offsets are
unsigned. A lane is given as a buffer and an offset: (s, o), (w, i), (v, j).
"""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

import numpy as np

from pynade.kernels.cpu_scalar import FAST, LARGEST_ODDS, PRECISE, bits, jit, power, value_of
from pynade.kernels.reference import CODES

SIGMOID, RELU = CODES["sigmoid"], CODES["relu"]
ODDS = len(CODES)  # code of a faster method for the sigmoid of binary data, see `advance`

SEGMENT = 512  # steps between the pre-activations kept for the backward pass
LANE = 512  # hidden units of a lane: a few lanes per row fit the first two cache levels
GROUP = 32  # rows that the forward pass computes together
FOUR = 4  # rows that `dots` computes together
ROUND = 64  # widths are padded to multiples of this, the step of the unrolled vector loop
SHORT = 256  # hidden units of a lane in the backward pass, where a row has four lanes
FORWARD_STATE = 2 * LANE  # lanes of a row in the forward pass: pre-activation a, activation h
BACKWARD_STATE = 4 * SHORT  # lanes of a row in the backward pass: a, h, g = d/da, q = d/dh not yet in g
PAIR = 2 * SHORT  # a tile row of the backward pass: weights, then their gradients
# offsets of h in a forward state; of h, g and q in a backward state; of gradients and tile rows in tiles
H = np.uint64(LANE)
BACK_H, G, Q, GRAD, TWIN, ROW = (np.uint64(n * SHORT) for n in (1, 2, 3, 1, 2, 4))


@jit(inline=True)
def squash(a, one, code):
    """The activation; LLVM moves the branch on its code out of the calling loop. NaN stays NaN."""
    if code == SIGMOID:
        return one / (one + power(-a, FAST))
    if code == RELU:
        return one - one if a < 0 else a
    if code == ODDS:
        return one / (one + a)
    return (one + one) / (one + power(-(a + a), FAST)) - one


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
    """Copy `width` values of a matrix, from i on, into a tile; returns 0, or NaN if one is not finite."""
    zero = to.dtype.type(0)
    zeros = zero
    for k in range(width):
        value = rows[i + k]
        to[j + k] = value
        zeros += zero * value
    return zeros


@jit(inline=True)
def load(to, j, rows, i, width, code):
    """Copy values (`ODDS`: e^-value); returns 0 if one is invalid, else 1 (`ODDS`: the smallest e^-value)."""
    zero, one = to.dtype.type(0), to.dtype.type(1)
    if code != ODDS:
        return one if copy(to, j, rows, i, width) == zero else zero
    low = high = bits(one)
    for k in range(width):
        odds = power(-rows[i + k], PRECISE)
        to[j + k] = odds
        low, high = min(low, bits(odds)), max(high, bits(odds))  # LLVM does not vectorise minima of floats
    usable = (low > bits(one / to.dtype.type(LARGEST_ODDS))) & (high < bits(to.dtype.type(LARGEST_ODDS)))
    return value_of(low) if usable else zero  # the bits of a NaN are out of range


@jit(inline=True)
def fetch(w, v, at_w, at_v, stride, weights, outputs, i, n_params, hidden, k0, width, code):
    """Copy variable i's rows of W and V, units from k0 on, to padded tiles; returns as `load`."""
    zero, one = w.dtype.type(0), w.dtype.type(1)
    units = max(0, min(width, hidden - k0))
    unsigned_units = np.uint64(units)
    mark = load(w, np.uint64(at_w), weights, np.uint64(i * hidden + k0), unsigned_units, code)
    w[at_w + units : at_w + width] = one if code == ODDS else zero
    for p in range(n_params):
        start = at_v + p * stride
        copy(v, np.uint64(start), outputs, np.uint64((i * n_params + p) * hidden + k0), unsigned_units)
        v[start + units : start + width] = zero
    return mark


@jit(inline=True)
def add(to, i, tile, j, width, first):
    """Add a tile's values to a matrix; `first` overwrites instead."""
    for k in range(width):
        to[i + k] = tile[j + k] if first else to[i + k] + tile[j + k]


@jit(inline=True)
def permute(to, rows, order, n_params):
    """Write rows (D, P), flattened, in the order of steps."""
    for d in range(len(order)):
        i = order[d] * n_params
        for p in range(n_params):
            to[d * n_params + p] = rows[i + p]


@jit(inline=True)
def activate(s, o, to, width, code):
    """h = act(a), stored `to` values after a."""
    one = s.dtype.type(1)
    for k in range(width):
        s[o + to + k] = squash(s[o + k], one, code)


@jit(inline=True)
def advance(s, o, x, w, i, v, j, width, code):
    """a += x w; h = act(a); returns h · v, which the compiler omits where it is not used.

    With `ODDS` the state is e^-a, w holds e^-w, and x is one: a step of the sigmoid is then a multiplication,
    an addition and a division, without an exponential. States must not become so small that they lose digits
    (`shrunk`); a state that becomes infinite stays infinite.
    """
    y, one = s.dtype.type(0), s.dtype.type(1)
    for k in range(width):
        a = s[o + k] * w[i + k] if code == ODDS else s[o + k] + x * w[i + k]
        s[o + k] = a
        h = squash(a, one, code)
        s[o + H + k] = h
        y += h * v[j + k]
    return y


@jit(inline=True)
def shrunk(bounds, r, factor, s, o, lanes, width):
    """Whether a state (`ODDS`) of row r is too small after a step whose smallest e^-w is `factor`."""
    tiny = s.dtype.type(8 * np.finfo(s.dtype).tiny)
    bounds[r] *= factor  # a lower bound of the states, which are read only when it becomes too small
    if bounds[r] < tiny:
        low = bits(s.dtype.type(1))
        for _ in range(lanes):
            for k in range(width):
                low = min(low, bits(s[o + k]))  # LLVM does not vectorise minima of floats
            o += np.uint64(FORWARD_STATE)
        bounds[r] = value_of(low)
    return bounds[r] < tiny


@jit(inline=True)
def dot(s, o, v, j, width):
    """Dot product of the lane of s at o and the lane of v at j."""
    y = s.dtype.type(0)
    for k in range(width):
        y += s[o + k] * v[j + k]
    return y


@jit(inline=True)
def dots(s, o, row, v, j, width, out, q, r):
    """`dot` for four rows of state, `row` apart, and two consecutive rows of v, added to out[q:, r:]."""
    a0, b0, c0, d0 = out[q, r], out[q, r + 1], out[q, r + 2], out[q, r + 3]
    a1, b1, c1, d1 = out[q + 1, r], out[q + 1, r + 1], out[q + 1, r + 2], out[q + 1, r + 3]
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
    """g += q act'(h); q = 0. It has to be done before h changes."""
    one = s.dtype.type(1)
    for k in range(width):
        s[o + G + k] += s[o + Q + k] * slope(s[o + BACK_H + k], one, code)
        s[o + Q + k] = one - one


@jit(inline=True)
def retreat(s, o, x, w, i, e, v, j, width, code):
    """One step of the backward pass: `flush`, gW += x g, a -= x W, h = act(a), `gather` of one output."""
    one = s.dtype.type(1)
    for k in range(width):
        g = s[o + G + k] + s[o + Q + k] * slope(s[o + BACK_H + k], one, code)
        s[o + G + k] = g
        w[i + GRAD + k] += x * g
        a = s[o + k] - x * w[i + k]
        s[o + k] = a
        h = squash(a, one, code)
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
def four(e, p):
    """Four numbers of a row."""
    return e[p], e[p + 1], e[p + 2], e[p + 3]


@jit(inline=True)
def fours(e, r, p):
    """Four numbers of each of four rows."""
    return four(e[r], p), four(e[r + 1], p), four(e[r + 2], p), four(e[r + 3], p)


@jit(inline=True)
def gather4(s, o, rows, v, j, width):
    """`gather` of four outputs; `rows` has their four gradients for each row of states from o on."""
    zero, j1, j2, j3 = s.dtype.type(0), j + TWIN, j + TWIN + TWIN, j + TWIN + TWIN + TWIN
    for k in range(width):
        v0, v1, v2, v3 = v[j + k], v[j1 + k], v[j2 + k], v[j3 + k]
        g0, g1, g2, g3, i = zero, zero, zero, zero, o + k
        for e0, e1, e2, e3 in rows:
            h = s[i + BACK_H]
            s[i + Q] += e0 * v0 + e1 * v1 + e2 * v2 + e3 * v3
            g0, g1, g2, g3 = g0 + e0 * h, g1 + e1 * h, g2 + e2 * h, g3 + e3 * h
            i += ROW
        v[j + GRAD + k] += g0
        v[j1 + GRAD + k] += g1
        v[j2 + GRAD + k] += g2
        v[j3 + GRAD + k] += g3
