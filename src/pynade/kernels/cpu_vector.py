"""Inner loops of the CPU kernels over hidden units, written so that LLVM vectorises them.

Everything works on *lanes*, runs of `LANE` values in flat, aligned buffers. Those of a row's state, or of a
tile, lie at constant distances, so one comparison shows that they do not overlap; for separate arrays LLVM
emits scalar code. For the same reason nothing raises on division by zero, and offsets (s, o) are unsigned.
"""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

import numpy as np

from pynade.kernels.cpu_scalar import FAST, PRECISE, STEEPEST, bits, jit, power, value_of
from pynade.kernels.reference import CODES

SIGMOID, RELU = CODES["sigmoid"], CODES["relu"]
ODDS = len(CODES)  # the sigmoid of binary data, see `advance`

SEGMENT = 512  # steps between the pre-activations kept for the backward pass
LANE = 512  # hidden units worked on together: a few such lanes per row fit the first two cache levels
GROUP = 32  # rows that go forward side by side …
FOUR = 4  # … so many at a time in `dots`
ROUND = 64  # widths are padded to this many units, the step of the unrolled vector loop
SHORT = 256  # the same going back, where a row has more of them
FORWARD_STATE = 2 * LANE  # a row's lanes: pre-activation a, activation h
BACKWARD_STATE = 4 * SHORT  # … then g = d/da, and q = d/dh not yet in g
PAIR = 2 * SHORT  # a tile row of the backward pass: the weights, then their gradient
# offsets in a row's state: of h going forward; of h, g and q going back; of gradients and rows in tiles
H = np.uint64(LANE)
BACK_H, G, Q, GRAD, TWIN, ROW = (np.uint64(n * SHORT) for n in (1, 2, 3, 1, 2, 4))


@jit(inline=True)
def squash(a, one, code):
    """The activation; the branch on its code is lifted out of the loops that call this. NaN stays NaN."""
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
    """So many values of a matrix from i on into a tile; returns 0, or NaN if they are not finite."""
    zero = to.dtype.type(0)
    nothing = zero
    for k in range(width):
        value = rows[i + k]
        to[j + k] = value
        nothing += zero * value
    return nothing


@jit(inline=True)
def load(to, j, rows, i, width, code):
    """`copy`, of e^-value for `ODDS`; returns 1 (`ODDS`: the least), 0 if one is not finite or too large."""
    zero, one = to.dtype.type(0), to.dtype.type(1)
    if code != ODDS:
        return one if copy(to, j, rows, i, width) == zero else zero
    low = high = bits(one)
    for k in range(width):
        odds = power(-rows[i + k], PRECISE)
        to[j + k] = odds
        low, high = min(low, bits(odds)), max(high, bits(odds))  # of floats they would not become vector code
    usable = (low > bits(one / to.dtype.type(STEEPEST))) & (high < bits(to.dtype.type(STEEPEST)))
    return value_of(low) if usable else zero  # NaN is beyond one or the other


@jit(inline=True)
def fetch(w, v, at_w, at_v, stride, weights, outputs, i, n_params, hidden, k0, width, code):
    """One step's weights into tiles: variable i's units from k0 on, padded to `width`; returns as `load`."""
    zero, one = w.dtype.type(0), w.dtype.type(1)
    units = max(0, min(width, hidden - k0))
    some = np.uint64(units)
    mark = load(w, np.uint64(at_w), weights, np.uint64(i * hidden + k0), some, code)
    w[at_w + units : at_w + width] = one if code == ODDS else zero
    for p in range(n_params):
        start = at_v + p * stride
        copy(v, np.uint64(start), outputs, np.uint64((i * n_params + p) * hidden + k0), some)
        v[start + units : start + width] = zero
    return mark


@jit(inline=True)
def add(to, i, tile, j, width, first):
    """The other way, adding to what is there unless this is the first."""
    for k in range(width):
        to[i + k] = tile[j + k] if first else to[i + k] + tile[j + k]


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
        s[o + to + k] = squash(s[o + k], one, code)


@jit(inline=True)
def advance(s, o, x, w, i, v, j, width, code):
    """a += x w; h = act(a); returns h v, which takes no time where it is not used.

    With `ODDS` the state is e^-a, w holds e^-w, and x is one: a step of the sigmoid is then a multiplication,
    an addition and a division, without an exponential. States must not become too small to be exact
    (`shrunk`); one that becomes infinite stays so.
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
    """Whether row r has a state of `ODDS` that is too small, after a step whose least e^-w is `factor`."""
    tiny = s.dtype.type(8 * np.finfo(s.dtype).tiny)
    bounds[r] *= factor  # at most the least state; the states are looked at only when this becomes too small
    if bounds[r] < tiny:
        low = bits(s.dtype.type(1))
        for _ in range(lanes):
            for k in range(width):
                low = min(low, bits(s[o + k]))  # a minimum of floats would not become vector code
            o += np.uint64(FORWARD_STATE)
        bounds[r] = value_of(low)
    return bounds[r] < tiny


@jit(inline=True)
def dot(s, o, v, j, width):
    """The lane of s at o, times v."""
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
    """g += q act'(h); q = 0: to be done before h changes."""
    one = s.dtype.type(1)
    for k in range(width):
        s[o + G + k] += s[o + Q + k] * slope(s[o + BACK_H + k], one, code)
        s[o + Q + k] = one - one


@jit(inline=True)
def retreat(s, o, x, w, i, e, v, j, width, code):
    """A step back in one pass: `flush`, gW += x g, a -= x W, h = act(a), `gather` one output of that h."""
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
    """`gather` for four tile rows; `rows` has their four gradients for each row of state from o on."""
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
