"""The NADE recurrence on the CPU: conditionals of given rows and their gradients, ancestral sampling.

Steps go in short chunks, whose rows of W and V are copied into a tile that all data rows of a block use. If x
is zero the state does not change: two steps are computed as if x were, the second again where it is not.

Going back, threads divide the work by hidden units, then by rows, and pre-activations are recovered by
subtracting updates. Rounding errors would accumulate, so the forward pass writes a *tape* every `SEGMENT`
steps, and a segment's first update is undone by copying the earlier value.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu_vector as vec
from pynade.kernels.backends import Uniforms
from pynade.kernels.cpu_scalar import NEVER, PRECISE, Compiled, jit, nth, power
from pynade.kernels.reference import CODES, Weights
from pynade.kernels.threads import arrays, borrowed, share, thread_count

CHUNK = 16  # outputs after which the next rows come
TILE = 8  # outputs in a tile of the backward pass (at least one step)
ROWS = 128  # rows whose states fit the second cache level
LEAST_ROWS = 16  # fewer rows than this are not worth a thread of their own
DRAWN = 2**16  # uniform numbers of one task
CHOSEN = 64  # rows of one task of `choose`
GIVEN, BERNOULLI, MIXTURE = range(3)  # where x comes from; a new family is a new code and a branch in `_walk`


def sample(weights: Weights, uniforms: Tensor | Uniforms, noise: Tensor | None, activation: str) -> Tensor:
    """Rows (B, D), as `pynade.kernels.sample`: Bernoulli variables without noise, mixtures with it."""
    own = Weights._make(tensor.unsqueeze(0) for tensor in weights)
    x = weights.weight.new_empty(1, len(uniforms), len(weights.weight))
    forward(x, own, activation, False, uniforms, noise)
    return x[0]


def forward(
    x: Tensor,
    weights: Weights,
    activation: str,
    with_tape: bool = True,
    uniforms: Tensor | Uniforms | None = None,
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Eta (M, B, D, P) and the tape (M, S, B, H), the pre-activations at the end of each segment.

    x is (M, B, D), of M members with their own W (M, D, H), c (M, H), V (M, D, P, H), b (M, D, P), and one
    order (1, D) or their own (M, D). With uniform numbers rows are drawn into x instead, and eta is not set.
    An empty tape (S = 0) allows a faster method (`vec.ODDS`) for binary data in float32; float64 stays exact.
    Rows that are not for this method, or leave its range, are marked and computed by the other one.
    """
    (members, batch, n_variables), (n_params, hidden) = x.shape, weights.output.shape[2:]
    family = GIVEN if uniforms is None else BERNOULLI if noise is None else MIXTURE
    odds = not with_tape and family != MIXTURE and activation == "sigmoid" and x.dtype == torch.float32
    marked = torch.full((members, batch), not odds)
    if odds and family == GIVEN and not torch.equal(x * x, x):
        marked = (x * x != x).any(2)
    eta = x.new_empty(members, batch if family == GIVEN else 0, n_variables, n_params)
    tape = x.new_empty(members, -(-n_variables // vec.SEGMENT) if with_tape else 0, batch, hidden)
    seed = np.uint64(uniforms.seed if isinstance(uniforms, Uniforms) else 0)
    given = (numbers if isinstance(numbers, Tensor) else x[0, :0] for numbers in (uniforms, noise))
    tensors, threads = arrays(*weights, x, marked, eta, tape, *given), torch.get_num_threads()
    order, rows_marked = tensors[4], tensors[6]
    if order.min() < 0 or order.max() >= n_variables:  # loops do not check indexes
        raise ValueError(f"order holds variables outside 0 … {n_variables - 1}")
    steps = max(2, 2 ** int(math.log2(max(1, CHUNK // n_params))))  # the last of a segment ends it
    lanes = -(-hidden // vec.LANE)
    width = -(-hidden // (lanes * vec.ROUND)) * vec.ROUND
    rows = max(1, min(ROWS, batch, -(-members * batch // threads)))
    blocks, padded = -(-batch // rows), -(-rows // vec.FOUR) * vec.FOUR
    states, outputs = padded * lanes * vec.FORWARD_STATE, lanes * (steps * n_params + 1) * width
    flat = ((size,) for size in (states, lanes * steps * width, outputs, padded, steps))
    shapes = (*flat, (n_params + 1, vec.GROUP), (n_variables, rows))

    def task(number: int) -> None:
        member, first = number // blocks, number % blocks * rows
        numbers = np.arange(first, min(batch, first + rows), dtype=np.uint64)
        plain = rows_marked[member, first : first + rows]
        with borrowed(tensors[0].dtype, *shapes) as scratch:
            for code, chosen in ((vec.ODDS, ~plain), (CODES[activation], plain)):
                if chosen.any():
                    options = (seed, family, code, steps, width, member, numbers[chosen])
                    _walk(*tensors, *options, *scratch, np.empty(vec.GROUP, np.int64))

    share(task, members * blocks, thread_count("walk", x, threads))
    return eta, tape


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
def _toss(drawn, eta):
    """From uniform numbers to ones with probability sigmoid(eta), and zeros."""
    zero, one = drawn.dtype.type(0), drawn.dtype.type(1)
    for r in range(np.uint64(len(drawn))):
        hit = (drawn[r] * (one + power(-eta[r], PRECISE)) < one) & (eta[r] > NEVER)
        drawn[r] = one if hit else zero


@jit()
def _walk(
    weight, hidden_bias, output, bias, order, x, marked, eta, tape, uniforms, noise,
    seed, family, code, steps, width, m, chosen, state, w, v, bounds, marks, out, xs, moved,
):  # fmt: skip
    """The chosen rows of member m; xs (D, rows) are their values by step, uniform numbers before they are."""
    (n_variables, n_params), hidden, rows = bias.shape[1:], hidden_bias.shape[1], len(chosen)
    x, marked, eta, tape, order = x[m], marked[m], eta[m], tape[m], order[m % len(order)]
    weights, outputs = weight[m].reshape(-1), output[m].reshape(-1)
    hidden_bias, bias = hidden_bias[m], bias[m]
    lanes, wide, zero, one = -(-hidden // width), np.uint64(width), x.dtype.type(0), x.dtype.type(1)
    padded = -(-rows // vec.FOUR) * vec.FOUR
    row, lane_of_w, lane_of_v = lanes * vec.FORWARD_STATE, steps * width, (steps * n_params + 1) * width
    for d in range(n_variables):  # here, where no load waits for another
        i = order[d]
        for r in range(rows):
            if family == GIVEN:
                xs[d, r] = x[chosen[r], i]
            elif len(uniforms):
                xs[d, r] = uniforms[chosen[r], d]
            else:
                xs[d, r] = nth(seed, chosen[r] * np.uint64(n_variables) + np.uint64(d), zero)
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
        marked[chosen[r]] |= bounds[r] == zero
    for d0 in range(0, n_variables, steps):
        end = min(n_variables, d0 + steps)
        for t in range(end - d0):
            marks[t] = one
            for lane in range(lanes):
                places = (lane * lane_of_w + t * width, lane * lane_of_v + t * n_params * width, width)
                sizes = (order[d0 + t], n_params, hidden, lane * width, width, code)
                marks[t] = min(marks[t], vec.fetch(w, v, *places, weights, outputs, *sizes))
            if marks[t] == zero:
                for r in range(rows):
                    marked[chosen[r]] = True
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
                    t, value = d - d0, xs[d, r0 : r0 + present]
                    forced = code != vec.ODDS and marks[t] == zero
                    if family == GIVEN:
                        i = np.uint64(order[d])
                        for p in range(np.uint64(n_params)):
                            for r in range(present):
                                eta[chosen[r0 + r], i, p] = out[d - d1 + p, r]
                    elif family == BERNOULLI:
                        _toss(value, out[d - d1])
                    else:
                        for r in range(present):
                            value[r] = _mixture(out, r, n_params // 3, value[r], noise[chosen[r0 + r], d])
                    number = 0
                    for r in range(present):  # first a list: a branch that cannot be foreseen is expensive
                        moved[number] = r
                        number += (value[r] != zero) | forced
                    for k in range(number):
                        r = moved[k]
                        total = bias[order[stop - 1], 0]
                        for lane in range(lanes):
                            o = np.uint64((r0 + r) * row + lane * vec.FORWARD_STATE)
                            at = np.uint64(lane * lane_of_w + t * width)
                            if d + 1 < stop:  # the output of the second step anew
                                j = np.uint64(lane * lane_of_v + (t + 1) * width)
                                total += vec.advance(state, o, value[r], w, at, v, j, wide, code)
                                out[1, r] = total
                            else:
                                vec.advance(state, o, value[r], w, at, w, at, wide, code)
                        o = np.uint64((r0 + r) * row)
                        if code == vec.ODDS and vec.shrunk(bounds, r0 + r, marks[t], state, o, lanes, wide):
                            marked[chosen[r0 + r]] = True
        if len(tape) and (end % vec.SEGMENT == 0 or end == n_variables):
            for r in range(rows):
                for lane in range(lanes):
                    o, k0 = np.uint64(r * row + lane * vec.FORWARD_STATE), lane * width
                    units = np.uint64(max(0, min(width, hidden - k0)))
                    vec.copy(tape[(end - 1) // vec.SEGMENT, chosen[r]], np.uint64(k0), state, o, units)
    for r in range(rows):
        for lane in range(lanes if code == vec.ODDS else 0):  # (a copy tells whether all is finite)
            o = np.uint64(r * row + lane * vec.FORWARD_STATE)
            marked[chosen[r]] |= vec.copy(state, o + vec.H, state, o, wide) != zero
        for d in range(0 if family == GIVEN else n_variables):
            x[chosen[r], order[d]] = xs[d, r]


def backward(
    x: Tensor, weights: Weights, tape: Tensor, grad_eta: Tensor, activation: str, need_x: bool
) -> tuple[Tensor, ...]:
    """Gradients of x (empty unless `need_x`), W, c and V; the arguments are as for `forward`."""
    weight, hidden_bias, output, _, order = weights
    (members, batch, n_variables), threads = x.shape, torch.get_num_threads()
    n_params, hidden = output.shape[2:]
    lanes = max(-(-hidden // vec.SHORT), min(-(-hidden // vec.ROUND), threads // members))
    width = -(-hidden // (lanes * vec.ROUND)) * vec.ROUND
    lanes = -(-hidden // width)
    splits = max(1, min(threads // (members * lanes), batch // LEAST_ROWS))
    rows = max(1, -(-batch // splits))
    splits = max(1, -(-batch // rows))
    new = x.new_empty if batch else x.new_zeros
    grad_weight, grad_output = new(splits, *weight.shape), new(splits, *output.shape)
    grad_bias = x.new_zeros(splits, *hidden_bias.shape)
    grad_x = x.new_zeros(lanes, *(x.shape if need_x else (members, 0, 0)))
    inputs = arrays(x, order, weight, hidden_bias, output, grad_eta, tape)
    results = arrays(grad_x, grad_weight, grad_bias, grad_output)
    block = min(-(-rows // vec.FOUR) * vec.FOUR, ROWS)
    steps = max(1, TILE // n_params)
    states, tiles = block * vec.BACKWARD_STATE, steps * vec.PAIR
    shapes = (states,), (tiles,), (tiles * n_params,), (block, n_variables), (block, n_variables * n_params)

    def task(number: int) -> None:
        member, split, lane = np.unravel_index(number, (members, splits, lanes))
        some = (split * rows, min(batch, (split + 1) * rows))
        where = (member, split, lane, *some, lane * width, min(hidden, (lane + 1) * width))
        first_update = np.empty(block, np.int64)  # of a segment, where the tape replaces subtraction
        with borrowed(inputs[0].dtype, *shapes) as scratch:
            _backward(*inputs, *results, need_x, CODES[activation], *where, steps, *scratch, first_update)

    share(task, members * splits * lanes if batch else 0, thread_count("backward", x, threads))
    grads = (grad_x, grad_weight, grad_bias, grad_output)
    return tuple(part[0] if len(part) == 1 else part.sum(0) for part in grads)


@jit()
def _backward(
    x, order, weight, hidden_bias, output, grad_eta, tape,
    grad_x, grad_weight, grad_bias, grad_output,
    need_x, code, m, split, lane, first, last, k0, k1, steps, state, w, v, xs, es, first_update,
):  # fmt: skip
    """Rows first … last - 1 and hidden units k0 … k1 - 1 of member m."""
    n_variables, n_params, hidden = output.shape[1:]
    x, tape, grad_eta, hidden_bias, order = x[m], tape[m], grad_eta[m], hidden_bias[m], order[m % len(order)]
    grad_x, grad_bias = grad_x[lane, m], grad_bias[split, m]
    units, start, zero = np.uint64(k1 - k0), np.uint64(k0), x.dtype.type(0)
    wide = np.uint64(-(-(k1 - k0) // 16) * 16)  # so written that LLVM knows: whole vectors, no remainder
    block = len(first_update)
    weights, outputs = weight[m].reshape(-1), output[m].reshape(-1)
    grad_weights, grad_outputs = grad_weight[split, m].reshape(-1), grad_output[split, m].reshape(-1)
    whole = n_params // 4 * 4 if steps == 1 else 0  # outputs gathered for four rows at once
    for b0 in range(first, last, block):
        rows = min(block, last - b0)
        state[:], es[rows:] = zero, zero
        for r in range(rows):
            vec.permute(xs[r], x[b0 + r], order, 1)
            vec.permute(es[r], grad_eta[b0 + r].reshape(-1), order, n_params)
        for segment in range(len(tape) - 1, -1, -1):
            begin, finish = segment * vec.SEGMENT, min(n_variables, (segment + 1) * vec.SEGMENT)
            for r in range(rows):
                o = np.uint64(r * vec.BACKWARD_STATE)
                vec.copy(state, o, tape[segment, b0 + r], start, units)
                vec.activate(state, o, vec.BACK_H, wide, code)
                d = begin
                while d < finish and xs[r, d] == zero:
                    d += 1
                first_update[r] = d
            for chunk in range((finish - begin - 1) // steps, -1, -1):
                d0 = begin + chunk * steps
                n = min(steps, finish - d0)
                w[:], v[:] = zero, zero
                for t in range(n):
                    places = (t * vec.PAIR, t * n_params * vec.PAIR, vec.PAIR)
                    sizes = (n_params, hidden, k0, k1 - k0, code)
                    vec.fetch(w, v, *places, weights, outputs, order[d0 + t], *sizes)
                for r0 in range(0, rows, vec.FOUR):
                    for r in range(r0, min(rows, r0 + vec.FOUR)):
                        o = np.uint64(r * vec.BACKWARD_STATE)
                        t = n - 1
                        while t >= 0:
                            xt, i = xs[r, d0 + t], np.uint64(t * vec.PAIR)
                            stop = (t + 1) * n_params  # outputs below it are still to be gathered
                            if need_x:
                                vec.flush(state, o, wide, code)
                                grad_x[b0 + r, order[d0 + t]] = vec.dot(state, o + vec.G, w, i, wide)
                            if xt != zero:
                                exact, j = d0 + t == first_update[r], np.uint64((stop - 1) * vec.PAIR)
                                e = zero if exact or stop <= whole else es[r, d0 * n_params + stop - 1]
                                vec.retreat(state, o, xt, w, i, e, v, j, wide, code)
                                if exact:
                                    before = hidden_bias if segment == 0 else tape[segment - 1, b0 + r]
                                    vec.copy(state, o, before, start, units)
                                    vec.activate(state, o, vec.BACK_H, wide, code)
                                else:
                                    stop -= 1
                            begun = t  # of the run of steps that share h
                            while not need_x and begun > 0 and xs[r, d0 + begun - 1] == zero:
                                begun -= 1
                            p = max(begun * n_params, whole)
                            while p < stop:
                                q, j = d0 * n_params + p, np.uint64(p * vec.PAIR)
                                if p + 4 <= stop:
                                    vec.gather4(state, o, (vec.four(es[r], q),), v, j, wide)
                                    p += 4
                                else:
                                    vec.gather(state, o, es[r, q], v, j, wide)
                                    p += 1
                            t = begun - 1
                    for p in range(0, whole, 4):
                        o, j, q = (
                            np.uint64(r0 * vec.BACKWARD_STATE),
                            np.uint64(p * vec.PAIR),
                            d0 * n_params + p,
                        )
                        vec.gather4(state, o, vec.fours(es, r0, d0 * n_params + p), v, j, wide)
                for t in range(n):
                    i = order[d0 + t]
                    q, j = np.uint64(i * hidden + k0), np.uint64(t * vec.PAIR + vec.SHORT)
                    vec.add(grad_weights, q, w, j, units, b0 == first)
                    for p in range(n_params):
                        q = np.uint64((i * n_params + p) * hidden + k0)
                        j = np.uint64((t * n_params + p) * vec.PAIR + vec.SHORT)
                        vec.add(grad_outputs, q, v, j, units, b0 == first)
            for r in range(rows):
                vec.flush(state, np.uint64(r * vec.BACKWARD_STATE), wide, code)
        for r in range(rows):
            vec.add(grad_bias, start, state, np.uint64(r * vec.BACKWARD_STATE) + vec.G, units, False)


def fill(out: Tensor, seed: int) -> Tensor:
    """Fill a tensor with uniform numbers strictly between 0 and 1; the seed and k give the k-th."""
    _by_parts(_fill, DRAWN, seed, out.view(-1))
    return out


@jit()
def _fill(out, seed, first):
    zero = out.dtype.type(0)
    for k in range(len(out)):
        out[k] = nth(seed, first + np.uint64(k), zero)


def choose(count: Tensor, n_variables: int, seed: int, exists: Tensor | None = None) -> Tensor:
    """Bool (B, D): count[b] of the variables that exist in row b, every set of so many equally likely."""
    out = torch.empty(len(count), n_variables, dtype=torch.bool)
    _by_parts(_choose, CHOSEN, seed, count, torch.ones_like(out) if exists is None else exists, out)
    return out


@jit()
def _choose(count, exists, out, seed, first):
    """Knuth's algorithm S: of `left` variables to come `need` are taken, the next with chance need / left."""
    rows, n = out.shape
    for b in range(rows):
        need, left = count[b], exists[b].sum()
        for d in range(n):
            take = False
            if exists[b, d]:
                u = nth(seed, (first + np.uint64(b)) * np.uint64(n) + np.uint64(d), np.float64(0))
                take = need >= left or u * left < need
                left -= 1
                need -= take
            out[b, d] = take


def _by_parts(loop: Compiled, size: int, seed: int, *tensors: Tensor) -> None:
    """Call a loop with `size` rows of the tensors at a time, and the number of the first, on all threads."""
    whole = arrays(*tensors)

    def task(number: int) -> None:
        part = slice(number * size, (number + 1) * size)
        loop(*(array[part] for array in whole), np.uint64(seed), np.uint64(part.start))

    share(task, -(-len(whole[0]) // size), torch.get_num_threads())
