"""The NADE recurrence on the CPU: numba loops that never store a (B, D, H) tensor.

Steps are processed in short chunks, whose rows of W and V are copied once, in step order, into a small tile
that all data rows of a block use: weights are read from the first cache level. Hidden units are divided into
lanes. Where x is zero the state does not change, so a run of zeros costs only its dot products.

The backward pass recovers pre-activations by subtracting the updates again. Rounding errors would accumulate,
and ReLU is sensitive to them at zero, so the forward pass writes a *tape* of the pre-activations every
`SEGMENT` steps, and the first update of a segment is undone by copying the earlier value, not by subtracting.
Threads divide the backward pass by hidden units, so that each has its own columns of the gradients (by rows
too, if there are more threads than lanes). Gradients depend on the number of threads, never on timing.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu_vector as vec
from pynade.kernels.cpu_scalar import jit
from pynade.kernels.reference import Weights
from pynade.kernels.threads import borrowed, share

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
SEGMENT = 512  # steps between the pre-activations kept for the backward pass
CHUNK = 16  # outputs after which the next rows come
TILE = 8  # outputs in a tile of the backward pass (at least one step)
FORWARD_ROWS, BACKWARD_ROWS = 64, 128  # rows whose states fit the second cache level
SPLIT_ROWS = 16  # fewer rows than this are not worth a thread of their own


def forward(x: Tensor, weights: Weights, activation: str, with_tape: bool = True) -> tuple[Tensor, Tensor]:
    """Eta (M, B, D, P) and the tape (M, S, B, H), the pre-activations at the end of each segment.

    Args:
        x: (M, B, D), of M members, each with its own weights.
        weights: W (M, D, H), c (M, H), V (M, D, P, H), b (M, D, P), and the order, (1, D) or (M, D).
        activation: its name.
        with_tape: False leaves the tape empty (S = 0), which allows a faster method for binary data.
    """
    weight, hidden_bias, output, bias, order = weights
    members, batch, n_variables = x.shape
    check_order(order, n_variables)
    segments = -(-n_variables // SEGMENT) if with_tape else 0
    tape = x.new_empty(members, segments, batch, weight.shape[2])
    code = vec.CODES[activation]
    bad = torch.zeros(members, batch, dtype=torch.bool)
    if not with_tape and suits_odds(weight, activation):
        _not_binary(*arrays(x, bad))
        code = code if bad.all() else vec.ODDS
    n_params, hidden = output.shape[2:]
    eta = x.new_empty(members, batch, n_variables, n_params)
    buffers = arrays(x, order, weight, hidden_bias, output, bias, eta, tape, bad)
    threads = torch.get_num_threads()
    rows = max(1, min(FORWARD_ROWS, batch, -(-members * batch // threads)))
    blocks = -(-batch // rows)
    steps = max(2, 2 ** int(math.log2(max(1, CHUNK // n_params))))  # the last of a segment ends it
    padded, (_, width) = -(-rows // vec.FOUR) * vec.FOUR, lanes_of(hidden)
    tiles = width * (steps * (1 + n_params) + 1) + steps
    size = tiles + padded * (vec.FORWARD_STATE + n_variables + 1) + vec.GROUP * (steps * n_params + 1)

    def task(number: int) -> None:
        member, first = number // blocks, number % blocks * rows
        where = (member, first, min(batch, first + rows))
        with borrowed(size, buffers[0].dtype) as scratch:
            _forward(*buffers, code, steps, width, *where, scratch, np.empty(vec.GROUP, np.int64))

    share(task, members * blocks, thread_count("forward", x, threads))
    for member in bad.any(1).nonzero().flatten().tolist() if code == vec.ODDS else []:
        again, one = bad[member].nonzero().flatten(), slice(member, member + 1)
        own = Weights._make((*(t[one] for t in weights[:4]), order[member % len(order)].unsqueeze(0)))
        eta[member, again] = forward(x[one, again], own, activation)[0][0]
    return eta, tape


def suits_odds(weight: Tensor, activation: str) -> bool:
    """Whether `ODDS` may be used; float64 stays exact."""
    return activation == "sigmoid" and weight.dtype == torch.float32


def lanes_of(hidden: int) -> tuple[int, int]:
    """The number of lanes of so many hidden units, and their padded width."""
    lanes = -(-hidden // vec.LANE)
    return lanes, _padded(-(-hidden // lanes))


def backward(
    x: Tensor, weights: Weights, tape: Tensor, grad_eta: Tensor, activation: str, need_x: bool
) -> Gradients:
    """Gradients of x (empty unless `need_x`), W, c and V."""
    weight, hidden_bias, output, _, order = weights
    members, batch, _ = x.shape
    hidden, threads = weight.shape[2], torch.get_num_threads()
    lanes = max(-(-hidden // vec.SHORT), min(-(-hidden // vec.ROUND), threads // members))
    width = _padded(-(-hidden // lanes))
    lanes = -(-hidden // width)
    splits = max(1, min(threads // (members * lanes), batch // SPLIT_ROWS))
    rows = max(1, -(-batch // splits))
    splits = max(1, -(-batch // rows))
    new = x.new_empty if batch else x.new_zeros
    grad_weight, grad_output = new(splits, *weight.shape), new(splits, *output.shape)
    grad_bias = x.new_zeros(splits, *hidden_bias.shape)
    grad_x = x.new_zeros(lanes, *(x.shape if need_x else (members, 0, 0)))
    inputs = arrays(x, order, weight, hidden_bias, output, grad_eta, tape)
    results = arrays(grad_x, grad_weight, grad_bias, grad_output)

    n_variables, n_params, block = *output.shape[1:3], min(rows, BACKWARD_ROWS)
    tiles = max(1, TILE // n_params) * (1 + n_params) * vec.PAIR
    size = block * (vec.BACKWARD_STATE + n_variables * (1 + n_params)) + tiles

    def task(number: int) -> None:
        member, split, lane = np.unravel_index(number, (members, splits, lanes))
        rows_of_task = (split * rows, min(batch, (split + 1) * rows))
        units = (lane * width, min(hidden, (lane + 1) * width), width)
        where = (member, split, lane, *rows_of_task, *units)
        first_update = np.empty(block, np.int64)  # of a segment, where the tape replaces subtraction
        with borrowed(size, inputs[0].dtype) as scratch:
            _backward(*inputs, *results, need_x, vec.CODES[activation], *where, scratch, first_update)

    share(task, members * splits * lanes if batch else 0, thread_count("backward", x, threads))
    grads = (grad_weight, grad_bias, grad_output)
    gw, gc, gv = (g[0] if splits == 1 else g.sum(0) for g in grads)
    return grad_x.sum(0), gw, gc, gv


_compiled: set[tuple[str, str]] = set()


def thread_count(what: str, x: Tensor | np.ndarray, threads: int) -> int:
    """One the first time: two threads that compile the same function may wait for each other for ever."""
    key = (what, str(x.dtype).removeprefix("torch."))
    if key in _compiled or 0 in x.shape:
        return threads
    _compiled.add(key)
    return 1


def check_order(order: Tensor, n_variables: int) -> None:
    """Compiled loops do not check indexes."""
    if int(order.min()) < 0 or int(order.max()) >= n_variables:
        raise ValueError(f"order holds variables outside 0 … {n_variables - 1}")


def arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """The tensors as contiguous arrays, without copying where they already are."""
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)


def _padded(width: int) -> int:
    return -(-width // vec.ROUND) * vec.ROUND


@jit()
def _not_binary(x, found):  # type: ignore[no-untyped-def]
    """Marks the rows that hold anything but zeros and ones."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for m in range(len(x)):
        for r in range(x.shape[1]):
            row, others = x[m, r], 0
            for k in range(len(row)):
                others += (row[k] != zero) & (row[k] != one)
            found[m, r] = others > 0


@jit()
def _forward(  # type: ignore[no-untyped-def]
    x, order, weight, hidden_bias, output, bias, eta, tape, bad,
    code, steps, width, m, first, last, scratch, moved,
):  # fmt: skip
    """Rows first … last - 1 of member m."""
    (n_variables, n_params), hidden, rows = bias.shape[1:], hidden_bias.shape[1], last - first
    x, eta, tape, bad = x[m, first:last], eta[m, first:last], tape[m, :, first:last], bad[m, first:last]
    weights, outputs = weight[m].reshape(-1), output[m].reshape(-1)
    hidden_bias, bias, order = hidden_bias[m], bias[m], order[m % len(order)]
    zero, one, padded = x.dtype.type(0), x.dtype.type(1), -(-rows // vec.FOUR) * vec.FOUR
    a, b = padded * vec.FORWARD_STATE, padded * n_variables
    state, xs, scratch = scratch[:a], scratch[a : a + b].reshape(n_variables, padded), scratch[a + b :]
    a, b = steps * width, (steps * n_params + 1) * width
    w, v, scratch = scratch[:a], scratch[a : a + b], scratch[a + b :]
    bounds, marks, scratch = scratch[:padded], scratch[padded : padded + steps], scratch[padded + steps :]
    out = scratch[: vec.GROUP * (steps * n_params + 1)].reshape(-1, vec.GROUP)
    for d in range(n_variables):
        i = order[d]
        for r in range(rows):
            xs[d, r] = x[r, i]
        xs[d, rows:] = zero
    for k0 in range(0, hidden, width):
        units = np.uint64(min(width, hidden - k0))
        state[:], bounds[:] = one if code == vec.ODDS else zero, one
        for r in range(rows):
            o = np.uint64(r * vec.FORWARD_STATE)
            bounds[r] = vec.load(state, o, hidden_bias, np.uint64(k0), units, code)
            bad[r] |= (code == vec.ODDS) & (bounds[r] == zero)
            vec.activate(state, o, vec.H, np.uint64(width), code)
        for d0 in range(0, n_variables, steps):
            n = min(steps, n_variables - d0)
            for t in range(n):
                places = (t * width, t * n_params * width)
                sizes = (order[d0 + t], n_params, hidden, k0, width, code)
                marks[t] = vec.fetch(w, v, *places, weights, outputs, *sizes)
                if code == vec.ODDS and marks[t] == zero:
                    bad[:] = True
            for r0 in range(0, rows, vec.GROUP):
                r1 = min(padded, r0 + vec.GROUP)
                _group(state, r0, r1, xs, d0, n, n_params, w, v, out, width, code, bounds, marks, bad, moved)
                for t in range(n):
                    i = order[d0 + t]
                    for p in range(n_params):
                        for r in range(r0, min(rows, r0 + vec.GROUP)):
                            so_far = bias[i, p] if k0 == 0 else eta[r, i, p]
                            eta[r, i, p] = so_far + out[t * n_params + p, r - r0]
            d = d0 + n
            if len(tape) and (d % SEGMENT == 0 or d == n_variables):
                for r in range(rows):
                    o = np.uint64(r * vec.FORWARD_STATE)
                    vec.copy(tape[(d - 1) // SEGMENT, r], np.uint64(k0), state, o, units)
        if code == vec.ODDS:
            for r in range(rows):
                bad[r] |= vec.infinite(state, np.uint64(r * vec.FORWARD_STATE), np.uint64(width))


@jit(inline=True)
def _group(  # type: ignore[no-untyped-def]
    state, r0, r1, xs, d0, n, n_params, w, v, out, width, code, bounds, marks, bad, moved
):
    """Steps d0 … d0 + n - 1 of the rows r0 … r1 - 1: their outputs without biases."""
    zero, row = state.dtype.type(0), np.uint64(vec.FORWARD_STATE)
    together = 2 if n_params == 1 else 1  # steps computed at once as if x stayed zero
    wide = np.uint64(width)
    for t0 in range(0, n, together):
        j = np.uint64(t0 * n_params) * wide
        for r in range(r0, r1, vec.FOUR):
            o = np.uint64(r * vec.FORWARD_STATE) + vec.H
            for p in range(0, n_params, 2):
                vec.dots(state, o, row, v, j + np.uint64(p) * wide, wide, out, t0 * n_params + p, r - r0)
        for t in range(t0, min(n, t0 + together)):
            number, i, forced = 0, np.uint64(t) * wide, code != vec.ODDS and marks[t] == zero
            for r in range(r0, r1):  # first a list: a branch that cannot be foreseen is expensive
                moved[number] = r
                number += (xs[d0 + t, r] != zero) | forced
            for k in range(number):
                r = moved[k]
                o, xt = np.uint64(r * vec.FORWARD_STATE), xs[d0 + t, r]
                if t - t0 + 1 < together:  # the output of the next step anew
                    out[t + 1, r - r0] = vec.advance(state, o, xt, w, i, v, i + wide, wide, code)
                else:
                    vec.advance(state, o, xt, w, i, w, i, wide, code)
                if code == vec.ODDS and vec.shrunk(bounds, r, marks[t], state, o, wide):
                    bad[r] = True


@jit()
def _backward(  # type: ignore[no-untyped-def]
    x, order, weight, hidden_bias, output, grad_eta, tape,
    grad_x, grad_weight, grad_bias, grad_output,
    need_x, code, m, split, lane, first, last, k0, k1, width, scratch, first_update,
):  # fmt: skip
    """Rows first … last - 1 and hidden units k0 … k1 - 1 of member m."""
    n_variables, n_params, hidden = output.shape[1], output.shape[2], output.shape[3]
    x, tape, grad_eta = x[m], tape[m], grad_eta[m]
    weight, hidden_bias, output, order = weight[m], hidden_bias[m], output[m], order[m % len(order)]
    grad_x, grad_weight, grad_bias = grad_x[lane, m], grad_weight[split, m], grad_bias[split, m]
    grad_output = grad_output[split, m]
    units, zero, wide, start = np.uint64(k1 - k0), x.dtype.type(0), np.uint64(width), np.uint64(k0)
    steps, block = max(1, TILE // n_params), len(first_update)
    weights, outputs = weight.reshape(-1), output.reshape(-1)
    grad_weights, grad_outputs = grad_weight.reshape(-1), grad_output.reshape(-1)
    a, b, c = block * vec.BACKWARD_STATE, steps * vec.PAIR, steps * n_params * vec.PAIR
    state, w, v, rest = scratch[:a], scratch[a : a + b], scratch[a + b : a + b + c], scratch[a + b + c :]
    a = block * n_variables
    xs = rest[:a].reshape(block, n_variables)
    es = rest[a : a + a * n_params].reshape(block, n_variables * n_params)

    for b0 in range(first, last, block):
        rows = min(block, last - b0)
        state[:] = zero
        for r in range(rows):
            vec.permute(xs[r], x[b0 + r], order, 1)
            vec.permute(es[r], grad_eta[b0 + r].reshape(-1), order, n_params)
        for segment in range(len(tape) - 1, -1, -1):
            begin, finish = segment * SEGMENT, min(n_variables, (segment + 1) * SEGMENT)
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
                    i = order[d0 + t]
                    vec.copy(w, np.uint64(t * vec.PAIR), weights, np.uint64(i * hidden + k0), units)
                    for p in range(n_params):
                        q = np.uint64((i * n_params + p) * hidden + k0)
                        vec.copy(v, np.uint64((t * n_params + p) * vec.PAIR), outputs, q, units)
                for r in range(rows):
                    o = np.uint64(r * vec.BACKWARD_STATE)
                    t = n - 1
                    while t >= 0:
                        xt, i = xs[r, d0 + t], np.uint64(t * vec.PAIR)
                        stop = (t + 1) * n_params  # outputs below it are still to be gathered
                        if need_x:
                            vec.flush(state, o, wide, code)
                            grad_x[b0 + r, order[d0 + t]] = vec.dot(state, o + vec.G, w, i, wide)
                        if d0 + t == first_update[r]:
                            vec.flush(state, o, wide, code)
                            vec.collect(state, o, xt, w, i, wide)
                            before = hidden_bias if segment == 0 else tape[segment - 1, b0 + r]
                            vec.copy(state, o, before, start, units)
                            vec.activate(state, o, vec.BACK_H, wide, code)
                        elif xt != zero:
                            stop -= 1
                            e, j = es[r, d0 * n_params + stop], np.uint64(stop * vec.PAIR)
                            vec.retreat(state, o, xt, w, i, e, v, j, wide, code)
                        begun = t  # of the run of steps that share h
                        while not need_x and begun > 0 and xs[r, d0 + begun - 1] == zero:
                            begun -= 1
                        p, first_param = begun * n_params, d0 * n_params
                        while p + 4 <= stop:
                            e0, e1 = es[r, first_param + p], es[r, first_param + p + 1]
                            e2, e3 = es[r, first_param + p + 2], es[r, first_param + p + 3]
                            vec.gather4(state, o, e0, e1, e2, e3, v, np.uint64(p * vec.PAIR), wide)
                            p += 4
                        while p < stop:
                            vec.gather(state, o, es[r, first_param + p], v, np.uint64(p * vec.PAIR), wide)
                            p += 1
                        t = begun - 1
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
            for k in range(k1 - k0):
                grad_bias[k0 + k] += state[r * vec.BACKWARD_STATE + 2 * vec.SHORT + k]
