"""The NADE recurrence on the CPU, backwards: threads divide the work by hidden units, then by rows.

Pre-activations are recovered by subtracting updates. Rounding errors would accumulate, so the forward pass
writes a *tape* every `SEGMENT` steps, and a segment's first update is undone by copying the earlier value.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu_vector as vec
from pynade.kernels.cpu_scalar import jit
from pynade.kernels.reference import CODES, Weights
from pynade.kernels.threads import arrays, borrowed, share, thread_count

TILE = 8  # outputs in a tile (at least one step)
ROWS = 128  # rows whose states fit the second cache level
LEAST_ROWS = 16  # fewer rows than this are not worth a thread of their own


def backward(
    x: Tensor, weights: Weights, tape: Tensor, grad_eta: Tensor, activation: str, need_x: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty unless `need_x`), W, c and V; the arguments are as for `cpu.forward`."""
    weight, hidden_bias, output, _, order = weights
    (members, batch, n_variables), threads = x.shape, torch.get_num_threads()
    n_params, hidden = output.shape[2:]
    lanes = max(-(-hidden // vec.SHORT), min(-(-hidden // vec.ROUND), threads // members))
    width = vec.padded(-(-hidden // lanes))
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
    tiles = max(1, TILE // n_params) * (1 + n_params) * vec.PAIR
    size = block * (vec.BACKWARD_STATE + n_variables * (1 + n_params)) + tiles

    def task(number: int) -> None:
        member, split, lane = np.unravel_index(number, (members, splits, lanes))
        some = (split * rows, min(batch, (split + 1) * rows))
        where = (member, split, lane, *some, lane * width, min(hidden, (lane + 1) * width))
        first_update = np.empty(block, np.int64)  # of a segment, where the tape replaces subtraction
        with borrowed(size, inputs[0].dtype) as scratch:
            _backward(*inputs, *results, need_x, CODES[activation], *where, scratch, first_update)

    share(task, members * splits * lanes if batch else 0, thread_count("backward", x, threads))
    grads = (grad_x, grad_weight, grad_bias, grad_output)
    gx, gw, gc, gv = (g[0] if len(g) == 1 else g.sum(0) for g in grads)
    return gx, gw, gc, gv


@jit()
def _backward(
    x, order, weight, hidden_bias, output, grad_eta, tape,
    grad_x, grad_weight, grad_bias, grad_output,
    need_x, code, m, split, lane, first, last, k0, k1, scratch, first_update,
):  # fmt: skip
    """Rows first … last - 1 and hidden units k0 … k1 - 1 of member m."""
    n_variables, n_params, hidden = output.shape[1], output.shape[2], output.shape[3]
    x, tape, grad_eta = x[m], tape[m], grad_eta[m]
    weight, hidden_bias, output, order = weight[m], hidden_bias[m], output[m], order[m % len(order)]
    grad_x, grad_weight, grad_bias = grad_x[lane, m], grad_weight[split, m], grad_bias[split, m]
    grad_output = grad_output[split, m]
    units, start, zero = np.uint64(k1 - k0), np.uint64(k0), x.dtype.type(0)
    wide = np.uint64(-(-(k1 - k0) // 16) * 16)  # so written that LLVM knows: whole vectors, no remainder
    steps, block = max(1, TILE // n_params), len(first_update)
    weights, outputs = weight.reshape(-1), output.reshape(-1)
    grad_weights, grad_outputs = grad_weight.reshape(-1), grad_output.reshape(-1)
    a, b, c = block * vec.BACKWARD_STATE, steps * vec.PAIR, steps * n_params * vec.PAIR
    state, w, v, rest = scratch[:a], scratch[a : a + b], scratch[a + b : a + b + c], scratch[a + b + c :]
    a = block * n_variables
    xs = rest[:a].reshape(block, n_variables)
    es = rest[a : a + a * n_params].reshape(block, n_variables * n_params)
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
                                    vec.gather4(state, o, es[r], q, v, j, wide)
                                    p += 4
                                else:
                                    vec.gather(state, o, es[r, q], v, j, wide)
                                    p += 1
                            t = begun - 1
                    for p in range(0, whole, 4):
                        o, j = np.uint64(r0 * vec.BACKWARD_STATE), np.uint64(p * vec.PAIR)
                        vec.gather_rows(state, o, es, r0, d0 * n_params + p, v, j, wide)
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
