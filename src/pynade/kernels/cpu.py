"""The NADE recurrence on the CPU, forwards: conditionals of given rows, rows drawn by ancestral sampling.

Steps go in short chunks, whose rows of W and V are copied into a tile that all data rows of a block use. If x
is zero the state does not change: two steps are computed as if x were, the second again where it is not.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu_vector as vec
from pynade.kernels.backends import Uniforms
from pynade.kernels.cpu_back import backward as backward  # the other half of this kernel
from pynade.kernels.cpu_scalar import NEVER, PRECISE, jit, nth, power
from pynade.kernels.reference import CODES, Weights
from pynade.kernels.threads import arrays, borrowed, share, thread_count

CHUNK = 16  # outputs after which the next rows come
ROWS = 128  # rows whose states fit the second cache level
DRAWN = 2**16  # uniform numbers of one task
CHOSEN = 64  # rows of one task of `choose`
GIVEN, BERNOULLI, MIXTURE = range(3)  # where x comes from; a new family is a new code and a branch in `_walk`


def forward(x: Tensor, weights: Weights, activation: str, with_tape: bool = True) -> tuple[Tensor, Tensor]:
    """Eta (M, B, D, P) and the tape (M, S, B, H), the pre-activations at the end of each segment.

    x is (M, B, D), of M members with their own W (M, D, H), c (M, H), V (M, D, P, H), b (M, D, P), and one
    order (1, D) or their own (M, D). An empty tape (S = 0) allows a faster method for binary data.
    """
    members, batch, n_variables = x.shape
    segments = -(-n_variables // vec.SEGMENT) if with_tape else 0
    tape = x.new_empty(members, segments, batch, weights.weight.shape[2])
    eta = x.new_empty(*x.shape, weights.bias.shape[2])
    bad = torch.zeros(members, batch, dtype=torch.bool)
    odds = not with_tape and activation == "sigmoid" and x.dtype == torch.float32  # float64 stays exact
    if odds:
        square = x * x
        bad = bad if torch.equal(square, x) else (square != x).any(2)
    _share(x, weights, activation, bad if odds and not bad.all() else None, eta, tape)
    return eta, tape


def sample(weights: Weights, uniforms: Tensor | Uniforms, noise: Tensor | None, activation: str) -> Tensor:
    """Rows (B, D), as `pynade.kernels.sample`: Bernoulli variables without noise, mixtures with it."""
    own = Weights._make(tensor.unsqueeze(0) for tensor in weights)
    x = weights.weight.new_zeros(1, len(uniforms), len(weights.weight))
    odds = noise is None and activation == "sigmoid" and x.dtype == torch.float32
    bad = torch.zeros(x.shape[:2], dtype=torch.bool) if odds else None
    _share(x, own, activation, bad, x[..., :0, None], x[:, None, :, :0][:, :0], uniforms, noise)
    return x[0]


def _share(
    x: Tensor,
    weights: Weights,
    activation: str,
    bad: Tensor | None,
    eta: Tensor,
    tape: Tensor,
    uniforms: Tensor | Uniforms | None = None,
    noise: Tensor | None = None,
) -> None:
    """Go through all steps of rows x (M, B, D), given, or drawn in the place of zeros, on all threads.

    Outputs of given rows go to eta (M, B, D, P), pre-activations to the tape. With `bad` (M, B) the method is
    `ODDS`; rows that it marks there, since they leave its range, are gone through again.
    """
    (members, batch, n_variables), (n_params, hidden) = x.shape, weights.output.shape[2:]
    if int(weights.order.min()) < 0 or int(weights.order.max()) >= n_variables:  # loops do not check indexes
        raise ValueError(f"order holds variables outside 0 … {n_variables - 1}")
    family = GIVEN if uniforms is None else BERNOULLI if noise is None else MIXTURE
    code = CODES[activation] if bad is None else vec.ODDS
    bad = torch.zeros(members, batch, dtype=torch.bool) if bad is None else bad
    seed = np.uint64(uniforms.seed if isinstance(uniforms, Uniforms) else 0)
    drawn = (numbers if isinstance(numbers, Tensor) else x[0, :, :0] for numbers in (uniforms, noise))
    tensors, threads = arrays(*weights, x, bad, eta, tape, *drawn), torch.get_num_threads()
    steps = max(2, 2 ** int(math.log2(max(1, CHUNK // n_params))))  # the last of a segment ends it
    lanes = -(-hidden // vec.LANE)
    width = vec.padded(-(-hidden // lanes))
    rows = max(1, min(ROWS, batch, -(-members * batch // threads)))
    blocks = -(-batch // rows)
    tiles = lanes * width * (steps * (1 + n_params) + 1) + steps
    size = tiles + (rows + vec.FOUR) * (lanes * vec.FORWARD_STATE + 1) + vec.GROUP * (n_params + 2)
    size += rows * n_variables

    def task(number: int) -> None:
        member, first = number // blocks, number % blocks * rows
        options = (seed, family, code, steps, width, member, first, min(batch, first + rows))
        with borrowed(size, tensors[0].dtype) as scratch:
            _walk(*tensors, *options, scratch, np.empty(vec.GROUP, np.int64))

    share(task, members * blocks, thread_count("walk", x, threads))
    for m in bad.any(1).nonzero().flatten().tolist():
        again, order = bad[m], weights.order[m % len(weights.order)]
        own = Weights._make(t[m].unsqueeze(0) for t in (*weights[:4], order.expand(m + 1, -1)))
        some, results = (t[m, again].unsqueeze(0) for t in (x, eta))
        empty = tape[m, :, again].unsqueeze(0)
        if uniforms is None:
            _share(some, own, activation, None, results, empty)
            eta[m, again] = results[0]
        else:
            given = uniforms if isinstance(uniforms, Tensor) else uniforms.tensor(x.dtype, x.device)
            _share(some.zero_(), own, activation, None, results, empty, given[again])
            x[m, again] = some[0]


@jit(inline=True)
def _mixture(eta, r, components, uniform, noise):
    """One value from row r's [K logits | K locations | K log scales]."""
    top = eta[0, r]
    for k in range(1, components):
        top = max(top, eta[k, r])
    total = 0.0
    for k in range(components):
        total += math.exp(eta[k, r] - top)
    cumulative, chosen = 0.0, components - 1
    for k in range(components - 1):
        cumulative += math.exp(eta[k, r] - top)
        if uniform * total < cumulative:
            chosen = k
            break
    return eta[chosen + components, r] + math.exp(eta[chosen + 2 * components, r]) * noise


@jit(inline=True)
def draw(to, seed, start, stride):
    """Every stride-th number of a seed."""
    zero = to.dtype.type(0)
    for r in range(np.uint64(vec.GROUP)):
        to[r] = nth(seed, start + r * stride, zero)


@jit(inline=True)
def toss(drawn, eta):
    """From uniform numbers to ones with probability sigmoid(eta), and zeros."""
    zero, one = drawn.dtype.type(0), drawn.dtype.type(1)
    for r in range(np.uint64(vec.GROUP)):
        hit = (drawn[r] * (one + power(-eta[r], PRECISE)) < one) & (eta[r] > NEVER)
        drawn[r] = one if hit else zero


@jit()
def _walk(
    weight, hidden_bias, output, bias, order, x, bad, eta, tape, uniforms, noise,
    seed, family, code, steps, width, m, first, last, scratch, moved,
):  # fmt: skip
    """Rows first … last - 1 of member m."""
    (n_variables, n_params), hidden, rows = bias.shape[1:], hidden_bias.shape[1], last - first
    x, bad, eta, tape = x[m, first:last], bad[m, first:last], eta[m, first:last], tape[m, :, first:last]
    uniforms, noise, order = uniforms[first:last], noise[first:last], order[m % len(order)]
    weights, outputs = weight[m].reshape(-1), output[m].reshape(-1)
    hidden_bias, bias = hidden_bias[m], bias[m]
    lanes, wide, zero, one = -(-hidden // width), np.uint64(width), x.dtype.type(0), x.dtype.type(1)
    padded = -(-rows // vec.FOUR) * vec.FOUR
    row, lane_of_w, lane_of_v = lanes * vec.FORWARD_STATE, steps * width, (steps * n_params + 1) * width
    a, b = padded * row, padded * row + vec.GROUP
    state, drawn, scratch = scratch[:a], scratch[a:b], scratch[b:]
    a, b = lanes * lane_of_w, lanes * lane_of_v
    w, v, scratch = scratch[:a], scratch[a : a + b], scratch[a + b :]
    bounds, marks, scratch = scratch[:padded], scratch[padded : padded + steps], scratch[padded + steps :]
    out = scratch[: vec.GROUP * (n_params + 1)].reshape(-1, vec.GROUP)
    xs = scratch[vec.GROUP * (n_params + 1) :][: rows * n_variables].reshape(n_variables, rows)
    for d in range(n_variables if family == GIVEN else 0):  # here, where no load waits for another
        i = order[d]
        for r in range(rows):
            xs[d, r] = x[r, i]
    bounds[:] = one
    pair = 2 if n_params == 1 else 1  # steps computed together
    for r in range(padded):
        for lane in range(lanes):
            o, k0 = r * row + lane * vec.FORWARD_STATE, lane * width
            units = max(0, min(width, hidden - k0)) if r < rows else 0
            state[o + units : o + width] = one if code == vec.ODDS else zero
            at = np.uint64(o)
            least = vec.load(state, at, hidden_bias, np.uint64(k0), np.uint64(units), code)
            bounds[r] = min(bounds[r], least)
            vec.activate(state, at, vec.H, wide, code)
    for r in range(rows):
        bad[r] |= (code == vec.ODDS) & (bounds[r] == zero)
    for d0 in range(0, n_variables, steps):
        end = min(n_variables, d0 + steps)
        for t in range(end - d0):
            marks[t] = one
            for lane in range(lanes):
                places = (lane * lane_of_w + t * width, lane * lane_of_v + t * n_params * width, width)
                sizes = (order[d0 + t], n_params, hidden, lane * width, width, code)
                marks[t] = min(marks[t], vec.fetch(w, v, *places, weights, outputs, *sizes))
            if code == vec.ODDS and marks[t] == zero:
                bad[:] = True
        for r0 in range(0, rows, vec.GROUP):
            present = min(vec.GROUP, rows - r0)
            for d1 in range(d0, end, pair):
                stop = min(n_variables, d1 + pair)
                for d in range(d1, stop):
                    for p in range(n_params):
                        for r in range(vec.GROUP):
                            out[d - d1 + p, r] = bias[order[d], p]
                for q in range(0, min(vec.GROUP, padded - r0), vec.FOUR):
                    for p in range(0, n_params, 2):
                        for lane in range(lanes):
                            o = np.uint64((r0 + q) * row + lane * vec.FORWARD_STATE) + vec.H
                            j = np.uint64(lane * lane_of_v + ((d1 - d0) * n_params + p) * width)
                            vec.dots(state, o, np.uint64(row), v, j, wide, out, p, q)
                for d in range(d1, stop):
                    i, t, forced = order[d], d - d0, code != vec.ODDS and marks[d - d0] == zero
                    if family == GIVEN:
                        for r in range(present):
                            drawn[r] = xs[d, r0 + r]
                        for p in range(n_params):
                            for r in range(present):
                                eta[r0 + r, i, p] = out[d - d1 + p, r]
                    elif family == BERNOULLI:
                        if uniforms.shape[1] > 0:
                            for r in range(present):
                                drawn[r] = uniforms[r0 + r, d]
                        else:
                            start = np.uint64((first + r0) * n_variables + d)
                            draw(drawn, seed, start, np.uint64(n_variables))
                        toss(drawn, out[d - d1])
                    else:
                        for r in range(present):
                            uniform, z = uniforms[r0 + r, d], noise[r0 + r, d]
                            drawn[r] = _mixture(out, r, n_params // 3, uniform, z)
                    number = 0
                    for r in range(present):  # first a list: a branch that cannot be foreseen is expensive
                        moved[number] = r
                        number += (drawn[r] != zero) | forced
                    for k in range(number):
                        r = moved[k]
                        o, value = np.uint64((r0 + r) * row), drawn[r]
                        if family != GIVEN:
                            x[r0 + r, i] = value
                        total = bias[order[stop - 1], 0]
                        for lane in range(lanes):
                            at = np.uint64(lane * lane_of_w + t * width)
                            if d + 1 < stop:  # the output of the second step anew
                                j = np.uint64(lane * lane_of_v + (t + 1) * width)
                                total += vec.advance(state, o, value, w, at, v, j, wide, code)
                                out[1, r] = total
                            else:
                                vec.advance(state, o, value, w, at, w, at, wide, code)
                            o += np.uint64(vec.FORWARD_STATE)
                        o = np.uint64((r0 + r) * row)
                        if code == vec.ODDS and vec.shrunk(bounds, r0 + r, marks[t], state, o, lanes, wide):
                            bad[r0 + r] = True
        if len(tape) and (end % vec.SEGMENT == 0 or end == n_variables):
            for r in range(rows):
                for lane in range(lanes):
                    o, k0 = np.uint64(r * row + lane * vec.FORWARD_STATE), lane * width
                    units = np.uint64(max(0, min(width, hidden - k0)))
                    vec.copy(tape[(end - 1) // vec.SEGMENT, r], np.uint64(k0), state, o, units)
    if code == vec.ODDS:
        for r in range(rows):
            bad[r] |= vec.infinite(state, np.uint64(r * row), lanes, wide)


def fill(out: Tensor, seed: int) -> Tensor:
    """Fill a tensor with uniform numbers strictly between 0 and 1; the seed and k give the k-th."""
    array = out.view(-1).numpy()

    def task(number: int) -> None:
        first = number * DRAWN
        _fill(array[first : first + DRAWN], np.uint64(seed), np.uint64(first))

    share(task, -(-len(array) // DRAWN), torch.get_num_threads())
    return out


@jit()
def _fill(out, seed, first):
    zero = out.dtype.type(0)
    for k in range(len(out)):
        out[k] = nth(seed, first + np.uint64(k), zero)


def choose(count: Tensor, n_variables: int, seed: int, exists: Tensor | None = None) -> Tensor:
    """Bool (B, D): count[b] of the variables that exist in row b, every set of so many equally likely."""
    out = torch.empty(len(count), n_variables, dtype=torch.bool)
    given = arrays(count, out if exists is None else exists, out)

    def task(number: int) -> None:
        part = slice(number * CHOSEN, (number + 1) * CHOSEN)
        _choose(*(array[part] for array in given), exists is None, np.uint64(seed), np.uint64(part.start))

    share(task, -(-len(count) // CHOSEN), torch.get_num_threads())
    return out


@jit()
def _choose(count, exists, out, every, seed, first):
    """Knuth's algorithm S: of `left` variables to come `need` are taken, the next with chance need / left."""
    rows, n = out.shape
    for b in range(rows):
        need, left = count[b], n if every else exists[b].sum()
        for d in range(n):
            take = False
            if every or exists[b, d]:
                u = nth(seed, (first + np.uint64(b)) * np.uint64(n) + np.uint64(d), np.float64(0))
                take = need >= left or u * left < need
                left -= 1
                need -= take
            out[b, d] = take
