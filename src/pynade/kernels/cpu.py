"""The NADE recurrence on the CPU: conditionals of given rows and their gradients, ancestral sampling.

The forward pass works on short chunks of steps. The rows of W and V of a chunk are copied into a tile, which
all data rows of a block use. Where x is zero the state does not change, so two steps are computed at once as
if x were zero, and the second is computed again where it is not.

In the backward pass threads divide the work by hidden units, then by rows, and pre-activations are recovered
by subtracting updates. To keep rounding errors from accumulating, the forward pass stores the pre-activations
every `SEGMENT` steps (the *tape*), and the first update of a segment is undone by copying the stored value.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu_vector as vec
from pynade.kernels.backends import Uniforms
from pynade.kernels.cpu_scalar import PRECISE, ZERO_BELOW, Compiled, jit, power, uniform_number
from pynade.kernels.reference import CODES, Weights
from pynade.kernels.threads import as_arrays, run_tasks, scratch_arrays, thread_count

CHUNK = 16  # outputs of a chunk of steps in the forward pass
TILE = 8  # outputs of a tile in the backward pass (at least one step)
ROWS = 128  # rows of a block: their states fit the second cache level
LEAST_ROWS = 16  # rows of a thread, at least
NUMBERS = 2**16  # uniform numbers of one task
SUBSET_ROWS = 64  # rows of one task of `random_subsets`
DATA, BERNOULLI, MIXTURE = range(3)  # source of x: given, or drawn (a new family needs a branch in `_walk`)


def sample(weights: Weights, uniforms: Tensor | Uniforms, noise: Tensor | None, activation: str) -> Tensor:
    """Rows (B, D), as `pynade.kernels.sample`: Bernoulli variables without noise, mixtures with it."""
    batched = Weights._make(tensor.unsqueeze(0) for tensor in weights)
    x = weights.weight.new_empty(1, len(uniforms), len(weights.weight))
    forward(x, batched, activation, False, uniforms, noise)
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

    There are M members, with x (M, B, D), W (M, D, H), c (M, H), V (M, D, P, H), b (M, D, P) and the order
    (M, D), or (1, D) for all of them. With uniform numbers, rows are drawn into x and eta is not set. Without
    a tape (S = 0), binary data in float32 are computed by a faster method (`vec.ODDS`); rows that it cannot
    take, or whose states leave its range, are marked and computed by the ordinary method.
    """
    (members, batch, n_variables), (n_params, hidden) = x.shape, weights.output.shape[2:]
    family = DATA if uniforms is None else BERNOULLI if noise is None else MIXTURE
    odds = not with_tape and family != MIXTURE and activation == "sigmoid" and x.dtype == torch.float32
    marked = torch.full((members, batch), not odds)
    if odds and family == DATA and not torch.equal(x * x, x):
        marked = (x * x != x).any(2)
    eta = x.new_empty(members, batch if family == DATA else 0, n_variables, n_params)
    tape = x.new_empty(members, -(-n_variables // vec.SEGMENT) if with_tape else 0, batch, hidden)
    seed = np.uint64(uniforms.seed if isinstance(uniforms, Uniforms) else 0)
    random_numbers = (numbers if isinstance(numbers, Tensor) else x[0, :0] for numbers in (uniforms, noise))
    tensors, threads = as_arrays(*weights, x, marked, eta, tape, *random_numbers), torch.get_num_threads()
    order, rows_marked = tensors[4], tensors[6]
    if order.min() < 0 or order.max() >= n_variables:  # loops do not check indexes
        raise ValueError(f"order holds variables outside 0 … {n_variables - 1}")
    steps = max(2, 2 ** int(math.log2(max(1, CHUNK // n_params))))  # of a chunk; it divides a segment
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
        is_marked = rows_marked[member, first : first + rows]
        with scratch_arrays(tensors[0].dtype, *shapes) as scratch:
            for code, selected in ((vec.ODDS, ~is_marked), (CODES[activation], is_marked)):
                if selected.any():
                    options = (seed, family, code, steps, width, member, numbers[selected])
                    _walk(*tensors, *options, *scratch, np.empty(vec.GROUP, np.int64))

    run_tasks(task, members * blocks, thread_count("walk", x, threads))
    return eta, tape


@jit(inline=True)
def _mixture(eta, r, components, uniform, noise):
    """A draw from the mixture of row r, whose eta is [K logits | K locations | K log scales]."""
    largest = eta[0, r]
    for k in range(1, components):
        largest = max(largest, eta[k, r])
    total = 0.0
    for k in range(components):
        total += math.exp(eta[k, r] - largest)
    cumulative, component = 0.0, components - 1
    for k in range(components - 1):
        cumulative += math.exp(eta[k, r] - largest)
        if uniform * total < cumulative:
            component = k
            break
    return eta[component + components, r] + math.exp(eta[component + 2 * components, r]) * noise


@jit(inline=True)
def _bernoulli(values, eta):
    """Replace uniform numbers by one with probability sigmoid(eta), else by zero."""
    zero, one = values.dtype.type(0), values.dtype.type(1)
    for r in range(np.uint64(len(values))):
        success = (values[r] * (one + power(-eta[r], PRECISE)) < one) & (eta[r] > ZERO_BELOW)
        values[r] = one if success else zero


@jit()
def _walk(
    weight, hidden_bias, output, bias, order, x, marked, eta, tape, uniforms, noise,
    seed, family, code, steps, width, m, selected, state, w, v, bounds, marks, out, xs, changed,
):  # fmt: skip
    """Forward pass of selected rows of member m; xs (D, rows) has uniform numbers, then values, by step."""
    (n_variables, n_params), hidden, rows = bias.shape[1:], hidden_bias.shape[1], len(selected)
    x, marked, eta, tape, order = x[m], marked[m], eta[m], tape[m], order[m % len(order)]
    weights, outputs = weight[m].reshape(-1), output[m].reshape(-1)
    hidden_bias, bias = hidden_bias[m], bias[m]
    lanes, wide, zero, one = -(-hidden // width), np.uint64(width), x.dtype.type(0), x.dtype.type(1)
    padded = -(-rows // vec.FOUR) * vec.FOUR
    row, lane_of_w, lane_of_v = lanes * vec.FORWARD_STATE, steps * width, (steps * n_params + 1) * width
    for d in range(n_variables):  # in a loop of its own, where loads from memory overlap
        i = order[d]
        for r in range(rows):
            if family == DATA:
                xs[d, r] = x[selected[r], i]
            elif len(uniforms):
                xs[d, r] = uniforms[selected[r], d]
            else:
                xs[d, r] = uniform_number(seed, selected[r] * np.uint64(n_variables) + np.uint64(d), zero)
    bounds[:] = one
    together = 2 if n_params == 1 else 1  # steps computed together
    for r in range(padded):
        for lane in range(lanes):
            o, k0 = r * row + lane * vec.FORWARD_STATE, lane * width
            n_units = max(0, min(width, hidden - k0)) if r < rows else 0
            state[o + n_units : o + width] = one if code == vec.ODDS else zero
            offset = np.uint64(o)
            least = vec.load(state, offset, hidden_bias, np.uint64(k0), np.uint64(n_units), code)
            bounds[r] = min(bounds[r], least)
            vec.activate(state, offset, vec.H, wide, code)
    for r in range(rows):
        marked[selected[r]] |= bounds[r] == zero
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
                    marked[selected[r]] = True
        for r0 in range(0, rows, vec.GROUP):
            present = min(vec.GROUP, rows - r0)
            for d1 in range(d0, end, together):
                stop = min(n_variables, d1 + together)
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
                    always = code != vec.ODDS and marks[t] == zero
                    if family == DATA:
                        i = np.uint64(order[d])
                        for p in range(np.uint64(n_params)):
                            for r in range(present):
                                eta[selected[r0 + r], i, p] = out[d - d1 + p, r]
                    elif family == BERNOULLI:
                        _bernoulli(value, out[d - d1])
                    else:
                        for r in range(present):
                            value[r] = _mixture(out, r, n_params // 3, value[r], noise[selected[r0 + r], d])
                    number = 0
                    for r in range(present):  # a list of rows first: mispredicted branches are expensive
                        changed[number] = r
                        number += (value[r] != zero) | always
                    for k in range(number):
                        r = changed[k]
                        total = bias[order[stop - 1], 0]
                        for lane in range(lanes):
                            o = np.uint64((r0 + r) * row + lane * vec.FORWARD_STATE)
                            offset = np.uint64(lane * lane_of_w + t * width)
                            if d + 1 < stop:  # compute the output of the second step again
                                j = np.uint64(lane * lane_of_v + (t + 1) * width)
                                total += vec.advance(state, o, value[r], w, offset, v, j, wide, code)
                                out[1, r] = total
                            else:
                                vec.advance(state, o, value[r], w, offset, w, offset, wide, code)
                        o = np.uint64((r0 + r) * row)
                        if code == vec.ODDS and vec.shrunk(bounds, r0 + r, marks[t], state, o, lanes, wide):
                            marked[selected[r0 + r]] = True
        if len(tape) and (end % vec.SEGMENT == 0 or end == n_variables):
            for r in range(rows):
                for lane in range(lanes):
                    o, k0 = np.uint64(r * row + lane * vec.FORWARD_STATE), lane * width
                    n_units = np.uint64(max(0, min(width, hidden - k0)))
                    vec.copy(tape[(end - 1) // vec.SEGMENT, selected[r]], np.uint64(k0), state, o, n_units)
    for r in range(rows):
        for lane in range(lanes if code == vec.ODDS else 0):  # (`copy` returns NaN if a value is not finite)
            o = np.uint64(r * row + lane * vec.FORWARD_STATE)
            marked[selected[r]] |= vec.copy(state, o + vec.H, state, o, wide) != zero
        for d in range(0 if family == DATA else n_variables):
            x[selected[r], order[d]] = xs[d, r]


def backward(
    x: Tensor, weights: Weights, tape: Tensor, grad_eta: Tensor, activation: str, need_x: bool
) -> tuple[Tensor, ...]:
    """Gradients of x (empty unless `need_x`), W, c and V; for the arguments see `forward`."""
    weight, hidden_bias, output, _, order = weights
    (members, batch, n_variables), threads = x.shape, torch.get_num_threads()
    n_params, hidden = output.shape[2:]
    lanes = max(-(-hidden // vec.SHORT), min(-(-hidden // vec.ROUND), threads // members))
    width = -(-hidden // (lanes * vec.ROUND)) * vec.ROUND
    lanes = -(-hidden // width)
    splits = max(1, min(threads // (members * lanes), batch // LEAST_ROWS))
    rows = max(1, -(-batch // splits))
    splits = max(1, -(-batch // rows))
    allocate = x.new_empty if batch else x.new_zeros
    grad_weight, grad_output = allocate(splits, *weight.shape), allocate(splits, *output.shape)
    grad_bias = x.new_zeros(splits, *hidden_bias.shape)
    grad_x = x.new_zeros(lanes, *(x.shape if need_x else (members, 0, 0)))
    inputs = as_arrays(x, order, weight, hidden_bias, output, grad_eta, tape)
    results = as_arrays(grad_x, grad_weight, grad_bias, grad_output)
    block = min(-(-rows // vec.FOUR) * vec.FOUR, ROWS)
    steps = max(1, TILE // n_params)
    states, tiles = block * vec.BACKWARD_STATE, steps * vec.PAIR
    shapes = (states,), (tiles,), (tiles * n_params,), (block, n_variables), (block, n_variables * n_params)

    def task(number: int) -> None:
        member, split, lane = np.unravel_index(number, (members, splits, lanes))
        row_range = (split * rows, min(batch, (split + 1) * rows))
        part = (member, split, lane, *row_range, lane * width, min(hidden, (lane + 1) * width))
        first_update = np.empty(block, np.int64)  # of a segment, where the tape replaces subtraction
        with scratch_arrays(inputs[0].dtype, *shapes) as scratch:
            _backward(*inputs, *results, need_x, CODES[activation], *part, steps, *scratch, first_update)

    run_tasks(task, members * splits * lanes if batch else 0, thread_count("backward", x, threads))
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
    padded_units = np.uint64(-(-(k1 - k0) // 16) * 16)  # LLVM sees that whole vectors suffice
    block = len(first_update)
    weights, outputs = weight[m].reshape(-1), output[m].reshape(-1)
    grad_weights, grad_outputs = grad_weight[split, m].reshape(-1), grad_output[split, m].reshape(-1)
    whole = n_params // 4 * 4 if steps == 1 else 0  # outputs that `gather4` takes for four rows at once
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
                vec.activate(state, o, vec.BACK_H, padded_units, code)
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
                            stop = (t + 1) * n_params  # outputs before it remain to be gathered
                            if need_x:
                                vec.flush(state, o, padded_units, code)
                                grad_x[b0 + r, order[d0 + t]] = vec.dot(state, o + vec.G, w, i, padded_units)
                            if xt != zero:
                                replaced, j = d0 + t == first_update[r], np.uint64((stop - 1) * vec.PAIR)
                                e = zero if replaced or stop <= whole else es[r, d0 * n_params + stop - 1]
                                vec.retreat(state, o, xt, w, i, e, v, j, padded_units, code)
                                if replaced:
                                    before = hidden_bias if segment == 0 else tape[segment - 1, b0 + r]
                                    vec.copy(state, o, before, start, units)
                                    vec.activate(state, o, vec.BACK_H, padded_units, code)
                                else:
                                    stop -= 1
                            run_start = t  # of the run of steps that share h
                            while not need_x and run_start > 0 and xs[r, d0 + run_start - 1] == zero:
                                run_start -= 1
                            p = max(run_start * n_params, whole)
                            while p < stop:
                                q, j = d0 * n_params + p, np.uint64(p * vec.PAIR)
                                if p + 4 <= stop:
                                    vec.gather4(state, o, (vec.four(es[r], q),), v, j, padded_units)
                                    p += 4
                                else:
                                    vec.gather(state, o, es[r, q], v, j, padded_units)
                                    p += 1
                            t = run_start - 1
                    for p in range(0, whole, 4):
                        o, j = np.uint64(r0 * vec.BACKWARD_STATE), np.uint64(p * vec.PAIR)
                        vec.gather4(state, o, vec.fours(es, r0, d0 * n_params + p), v, j, padded_units)
                for t in range(n):
                    i = order[d0 + t]
                    q, j = np.uint64(i * hidden + k0), np.uint64(t * vec.PAIR + vec.SHORT)
                    vec.add(grad_weights, q, w, j, units, b0 == first)
                    for p in range(n_params):
                        q = np.uint64((i * n_params + p) * hidden + k0)
                        j = np.uint64((t * n_params + p) * vec.PAIR + vec.SHORT)
                        vec.add(grad_outputs, q, v, j, units, b0 == first)
            for r in range(rows):
                vec.flush(state, np.uint64(r * vec.BACKWARD_STATE), padded_units, code)
        for r in range(rows):
            vec.add(grad_bias, start, state, np.uint64(r * vec.BACKWARD_STATE) + vec.G, units, False)


def fill(out: Tensor, seed: int) -> Tensor:
    """Fill a tensor with uniform numbers strictly between 0 and 1; seed and k determine the k-th."""
    _run_by_rows(_fill, NUMBERS, seed, out.view(-1))
    return out


@jit()
def _fill(out, seed, first):
    zero = out.dtype.type(0)
    for k in range(len(out)):
        out[k] = uniform_number(seed, first + np.uint64(k), zero)


def random_subsets(count: Tensor, n_variables: int, seed: int, exists: Tensor | None = None) -> Tensor:
    """A uniformly random subset of count[b] of the variables that exist in each row b: bool (B, D)."""
    out = torch.empty(len(count), n_variables, dtype=torch.bool)
    exists = torch.ones_like(out) if exists is None else exists
    _run_by_rows(_random_subsets, SUBSET_ROWS, seed, count, exists, out)
    return out


@jit()
def _random_subsets(count, exists, out, seed, first):
    """Knuth's algorithm S: each variable is taken with probability needed / remaining."""
    rows, n = out.shape
    for b in range(rows):
        needed, remaining = count[b], exists[b].sum()
        for d in range(n):
            take = False
            if exists[b, d]:
                u = uniform_number(seed, (first + np.uint64(b)) * np.uint64(n) + np.uint64(d), np.float64(0))
                take = needed >= remaining or u * remaining < needed
                remaining -= 1
                needed -= take
            out[b, d] = take


def _run_by_rows(loop: Compiled, size: int, seed: int, *tensors: Tensor) -> None:
    """Call a loop for `size` rows of the tensors at a time, with the number of the first, on all threads."""
    all_rows = as_arrays(*tensors)

    def task(number: int) -> None:
        part = slice(number * size, (number + 1) * size)
        loop(*(array[part] for array in all_rows), np.uint64(seed), np.uint64(part.start))

    run_tasks(task, -(-len(all_rows[0]) // size), torch.get_num_threads())
