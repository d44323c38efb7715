"""The NADE recurrence on the CPU, backwards.

Pre-activations are recovered by subtracting the updates again. Rounding errors would accumulate, and ReLU is
sensitive to them at zero, so the forward pass writes a *tape* of the pre-activations every `SEGMENT` steps,
and the first update of a segment is undone by copying the earlier value, not by subtracting. Threads divide
the work by hidden units, so that each has its own columns of the gradients (by rows too, if there are more
threads than lanes). Gradients depend on the number of threads, never on timing.

With many parameters per variable almost all work is in the gradients of V h, for which matrix products are
fastest (`_by_products`): hidden states are computed once more, for a few rows at a time, so that they stay in
the cache.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu_vector as vec
from pynade.kernels.cpu_scalar import jit
from pynade.kernels.reference import Weights
from pynade.kernels.threads import arrays, borrowed, forked, share, thread_count

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
TILE = 8  # outputs in a tile (at least one step)
ROWS = 128  # rows whose states fit the second cache level
LEAST_ROWS = 16  # fewer rows than this are not worth a thread of their own
LEAST_PARAMS = 24  # P from which matrix products were measured to be faster
MOST_VARIABLES = 256  # for more they are not
CACHED = 2**19  # bytes of hidden states that are worked on together
BLOCK = 32  # rows whose states are computed together


def backward(
    x: Tensor, weights: Weights, tape: Tensor, grad_eta: Tensor, activation: str, need_x: bool
) -> Gradients:
    """Gradients of x (empty unless `need_x`), W, c and V; the arguments are as for `cpu.forward`."""
    if suits_products(x, weights.output.shape[2]):
        return _by_products(x, weights, grad_eta, activation, need_x)
    weight, hidden_bias, output, _, order = weights
    members, batch, _ = x.shape
    hidden, threads = weight.shape[2], torch.get_num_threads()
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

    n_variables, n_params, block = *output.shape[1:3], min(rows, ROWS)
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


@jit()
def _backward(
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


def suits_products(x: Tensor, n_params: int) -> bool:
    """Whether matrix products are likely to be faster for rows x (M, B, D)."""
    _, batch, n_variables = x.shape
    if forked():  # torch's matrix products would wait there for threads that were not forked
        return False
    return n_params >= LEAST_PARAMS and batch >= LEAST_ROWS and 0 < n_variables <= MOST_VARIABLES


def _by_products(x: Tensor, weights: Weights, grad_eta: Tensor, activation: str, need_x: bool) -> Gradients:
    """As `backward`, without a tape."""
    given = (t.detach().contiguous() for t in (x, *weights, grad_eta))
    x, weight, hidden_bias, output, _, order, grad_eta = given
    (members, batch, n_variables), hidden, code = x.shape, weight.shape[2], vec.CODES[activation]
    rows = -(-batch // max(1, min(torch.get_num_threads() // members, batch // LEAST_ROWS)))
    parts = -(-batch // rows)  # each thread has a part of a member's rows …
    most = max(BLOCK, CACHED // (n_variables * hidden * x.element_size()))
    steps = -(-rows // -(-rows // most))  # … and works on so many at a time
    gw, gc, gv = (x.new_zeros(parts, *t.shape) for t in (weight, hidden_bias, output))
    gx = x.new_zeros(x.shape if need_x else (members, 0, 0))
    inputs, (first_bias,), results = arrays(x, order, weight), arrays(hidden_bias), arrays(gw, gc, gx)
    size, wide = n_variables * steps * hidden, vec.padded(hidden)

    def task(number: int) -> None:
        m, part = divmod(number, parts)
        end = min(batch, (part + 1) * rows)
        with borrowed(2 * size + (BLOCK + 4) * wide, inputs[0].dtype) as scratch:
            for first in range(part * rows, end, steps):
                where = (m, part, first, min(first + steps, end), wide, scratch[2 * size :])
                shape = (n_variables, where[3] - first, hidden)
                h, q = (scratch[n : n + math.prod(shape)].reshape(shape) for n in (0, size))
                _states(*inputs, first_bias, h, code, *where)
                g = grad_eta[m, first : where[3]].transpose(0, 1)
                gv[part, m].baddbmm_(g.mT, torch.from_numpy(h))
                torch.bmm(g, output[m], out=torch.from_numpy(q))
                _back(*inputs, h, q, *results, code, need_x, *where)

    share(task, members * parts, thread_count("products", x, torch.get_num_threads()))
    gw, gc, gv = (t[0] if parts == 1 else t.sum(0) for t in (gw, gc, gv))
    return gx, gw, gc, gv


@jit()
def _states(x, order, weight, hidden_bias, h, code, m, split, first, last, padded, s):
    """Hidden activations of rows first … last - 1 of member m. s: weights, activations, BLOCK states."""
    n_variables, hidden = weight.shape[1:]
    zero, none = x.dtype.type(0), np.uint64(0)
    order = order[m % len(order)]
    wide, units = np.uint64(padded), np.uint64(hidden)
    for start in range(first, last, BLOCK):
        some = min(BLOCK, last - start)
        s[:padded] = zero
        for r in range(some):
            o = np.uint64(r + 2) * wide
            vec.copy(s, o, hidden_bias[m], none, units)
            s[o + units : o + wide] = zero
        for d in range(n_variables):
            i = order[d]
            vec.copy(s, none, weight[m, i], none, units)
            for r in range(some):
                o, out, xt = np.uint64(r + 2) * wide, h[i, start + r - first], x[m, start + r, i]
                for k in range(wide):
                    a = s[o + k]
                    s[wide + k] = vec.squash(a, code)
                    s[o + k] = a + xt * s[k]
                vec.copy(out, none, s, wide, units)


@jit()
def _back(x, order, weight, h, q, gw, gc, gx, code, need_x, m, split, first, last, padded, s):
    """Gradients of W, c, x. s: weights, their gradient, h, q, BLOCK lanes of dL/da."""
    n_variables, hidden = weight.shape[1:]
    zero, one, none = x.dtype.type(0), x.dtype.type(1), np.uint64(0)
    order = order[m % len(order)]
    wide, units = np.uint64(padded), np.uint64(hidden)
    H, Q, G = wide + wide, wide + wide + wide, wide + wide + wide + wide
    s[: 4 * padded] = zero
    for start in range(first, last, BLOCK):
        some = min(BLOCK, last - start)
        s[4 * padded :] = zero
        for t in range(n_variables):
            i = order[n_variables - 1 - t]
            to = gw[split, m, i]
            vec.copy(s, none, weight[m, i], none, units)
            vec.copy(s, wide, to, none, units)
            for r in range(some):
                o, xt = G + np.uint64(r) * wide, x[m, start + r, i]
                vec.copy(s, H, h[i, start + r - first], none, units)
                vec.copy(s, Q, q[i, start + r - first], none, units)
                if need_x:
                    gx[m, start + r, i] = vec.dot(s, o, s, none, wide)
                for k in range(wide):
                    g = s[o + k]
                    s[wide + k] += xt * g
                    s[o + k] = g + s[Q + k] * vec.slope(s[H + k], one, code)
            vec.copy(to, none, s, wide, units)
        for r in range(some):
            vec.add(gc[split, m], none, s, G + np.uint64(r) * wide, units, False)
