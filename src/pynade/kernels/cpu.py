"""The NADE recurrence on the CPU: numba loops that never store a (B, D, H) tensor.

Steps are taken in short chunks. A chunk's rows of W and V are copied once, in step order, into a small tile,
and every data row of the block walks through it before the next chunk is fetched, so weights are read from
the first cache level. Hidden units are cut into lanes; the recurrences of two lanes meet only in the sum
over hidden units of eta. Where x is zero nothing changes, so a run of zeros costs only its dot products.

Going back, the pre-activation is recovered by subtracting the updates again. Rounding would let it drift,
and ReLU at exactly zero would notice, so the forward pass leaves a *tape* of the pre-activations every
`SEGMENT` steps, and the first update of a segment is undone by copying the earlier value, not by
subtracting. The backward pass is shared between threads by hidden units: each owns its columns of the
gradients, none has to be added up (only when there are more threads than lanes are the rows shared too).
Results depend on the input and, for the gradients, on the number of threads, never on timing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu_vector import (
    BACKWARD_STATE,
    CODES,
    FORWARD_STATE,
    LANE,
    PAIR,
    ROUND,
    G,
    H,
    activate,
    add,
    advance,
    advance_dot,
    aligned,
    collect,
    copy,
    dot,
    dot4,
    flush,
    gather,
    gather4,
    jit,
    permute,
    retreat,
)
from pynade.kernels.threads import share

SEGMENT = 512  # steps between the pre-activations kept for the backward pass
CHUNK = 8  # outputs in a tile (at least one step)
FORWARD_ROWS, BACKWARD_ROWS = 64, 128  # rows whose state stays in the second cache level
SPLIT_ROWS = 16  # fewer rows than this are not worth a thread of their own


def forward(
    x: Tensor,
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Eta (M, B, D, P) and the tape (M, S, B, H), the pre-activations at the end of each segment.

    Args:
        x: (M, B, D), one axis more than a single model: M members, each with its own weights.
        weight: W, (M, D, H).
        hidden_bias: c, (M, H).
        output: V, (M, D, P, H).
        bias: b, (M, D, P).
        order: (1, D) for all members or (M, D).
        activation: its name.
    """
    members, batch, n_variables = x.shape
    check_order(order, n_variables)
    eta = x.new_empty(members, batch, n_variables, output.shape[2])
    tape = x.new_empty(members, -(-n_variables // SEGMENT), batch, weight.shape[2])
    threads = torch.get_num_threads()
    rows = max(1, min(FORWARD_ROWS, batch, -(-members * batch // threads)))
    blocks = -(-batch // rows)
    buffers = arrays(x, order, weight, hidden_bias, output, bias, eta, tape)

    def task(number: int) -> None:
        member, first = number // blocks, number % blocks * rows
        _forward(*buffers, CODES[activation], member, first, min(batch, first + rows))

    share(task, members * blocks, thread_count("forward", x, threads))
    return eta, tape


def backward(
    x: Tensor,
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    order: Tensor,
    tape: Tensor,
    grad_eta: Tensor,
    activation: str,
    need_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty unless `need_x`), W, c and V."""
    members, batch, _ = x.shape
    hidden, threads = weight.shape[2], torch.get_num_threads()
    lanes = max(-(-hidden // LANE), min(-(-hidden // ROUND), threads // members))
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

    def task(number: int) -> None:
        member, split, lane = np.unravel_index(number, (members, splits, lanes))
        rows_of_task = (split * rows, min(batch, (split + 1) * rows))
        units = (lane * width, min(hidden, (lane + 1) * width), width)
        _backward(*inputs, *results, need_x, CODES[activation], member, split, lane, *rows_of_task, *units)

    share(task, members * splits * lanes if batch else 0, thread_count("backward", x, threads))
    grads = (grad_weight, grad_bias, grad_output)
    gw, gc, gv = (g[0] if splits == 1 else g.sum(0) for g in grads)
    return grad_x.sum(0), gw, gc, gv


_compiled: set[tuple[str, torch.dtype]] = set()


def thread_count(what: str, x: Tensor, threads: int) -> int:
    """One the first time: two threads that compile the same function may wait for each other for ever."""
    if (what, x.dtype) in _compiled or not x.numel():
        return threads
    _compiled.add((what, x.dtype))
    return 1


def check_order(order: Tensor, n_variables: int) -> None:
    """Compiled loops do not look where they read."""
    if int(order.min()) < 0 or int(order.max()) >= n_variables:
        raise ValueError(f"order holds variables outside 0 … {n_variables - 1}")


def arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """The tensors as contiguous arrays, without copying where they already are."""
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)


def _padded(width: int) -> int:
    return -(-width // ROUND) * ROUND


@jit()
def _forward(x, order, weight, hidden_bias, output, bias, eta, tape, code, m, first, last):  # type: ignore[no-untyped-def]
    """Rows first … last - 1 of member m."""
    n_variables, n_params, hidden = output.shape[1], output.shape[2], output.shape[3]
    x, eta, tape = x[m, first:last], eta[m, first:last], tape[m, :, first:last]
    weight, hidden_bias, output, bias = weight[m], hidden_bias[m], output[m], bias[m]
    order = order[m % len(order)]
    rows, zero = last - first, x.dtype.type(0)
    lanes = -(-hidden // LANE)
    width = -(-hidden // lanes)
    width = -(-width // ROUND) * ROUND
    lane = np.uint64(width)
    steps = max(1, CHUNK // n_params)
    state = aligned(rows * FORWARD_STATE, x)
    w, v = aligned(steps * LANE, x), aligned(steps * n_params * LANE, x)
    forced = np.empty(steps, np.bool_)  # W is not finite: 0 W is then no zero
    xs = np.empty((rows, n_variables), x.dtype)  # in step order, like y
    y = np.empty((rows, n_variables * n_params), x.dtype)
    out = np.empty(steps * n_params, x.dtype)
    biases = np.empty(n_variables * n_params, x.dtype)
    permute(biases, bias.reshape(-1), order, n_params)
    for r in range(rows):
        permute(xs[r], x[r], order, 1)
        y[r] = biases
    weights, outputs = weight.reshape(-1), output.reshape(-1)

    for k0 in range(0, hidden, width):
        units = min(width, hidden - k0)
        w[:], v[:] = zero, zero
        for r in range(rows):
            a = r * FORWARD_STATE
            state[a : a + FORWARD_STATE] = zero
            state[a : a + units] = hidden_bias[k0 : k0 + units]
            activate(state, np.uint64(a), lane, code)
        for d0 in range(0, n_variables, steps):
            n = min(steps, n_variables - d0)
            for t in range(n):
                i = order[d0 + t]
                nothing = copy(w, np.uint64(t * LANE), weights, np.uint64(i * hidden + k0), np.uint64(units))
                forced[t] = nothing != zero
                for p in range(n_params):
                    q = np.uint64((i * n_params + p) * hidden + k0)
                    copy(v, np.uint64((t * n_params + p) * LANE), outputs, q, np.uint64(units))
            for r in range(rows):
                o = np.uint64(r * FORWARD_STATE)
                t, j = 0, 0  # step; next output to be computed
                while t < n:
                    end = t  # of a run of steps that share h
                    while end < n - 1 and xs[r, d0 + end] == zero and not forced[end]:
                        end += 1
                    stop = (end + 1) * n_params
                    while j + 4 <= stop:
                        q = np.uint64(j * LANE)
                        out[j], out[j + 1], out[j + 2], out[j + 3] = dot4(state, o + H, v, q, lane)
                        j += 4
                    while j < stop:
                        out[j] = dot(state, o + H, v, np.uint64(j * LANE), lane)
                        j += 1
                    xe, i, q = xs[r, d0 + end], np.uint64(end * LANE), np.uint64(j * LANE)
                    if xe != zero or forced[end]:
                        if end < n - 1:
                            out[j] = advance_dot(state, o, xe, w, i, v, q, lane, code)
                            j += 1
                        else:
                            advance(state, o, xe, w, i, lane, code)
                    t = end + 1
                for j in range(n * n_params):
                    y[r, d0 * n_params + j] += out[j]
            d = d0 + n
            if d % SEGMENT == 0 or d == n_variables:
                for r in range(rows):
                    a = r * FORWARD_STATE
                    tape[(d - 1) // SEGMENT, r, k0 : k0 + units] = state[a : a + units]

    for r in range(rows):
        for d in range(n_variables):
            for p in range(n_params):
                eta[r, order[d], p] = y[r, d * n_params + p]


@jit()
def _backward(  # type: ignore[no-untyped-def]
    x, order, weight, hidden_bias, output, grad_eta, tape,
    grad_x, grad_weight, grad_bias, grad_output,
    need_x, code, m, split, lane, first, last, k0, k1, width,
):  # fmt: skip
    """Rows first … last - 1 and hidden units k0 … k1 - 1 of member m."""
    n_variables, n_params, hidden = output.shape[1], output.shape[2], output.shape[3]
    x, tape, grad_eta = x[m], tape[m], grad_eta[m]
    weight, hidden_bias, output, order = weight[m], hidden_bias[m], output[m], order[m % len(order)]
    grad_x, grad_weight, grad_bias = grad_x[lane, m], grad_weight[split, m], grad_bias[split, m]
    grad_output = grad_output[split, m]
    units, zero, wide = k1 - k0, x.dtype.type(0), np.uint64(width)
    steps = max(1, CHUNK // n_params)
    block = min(last - first, BACKWARD_ROWS)
    state = aligned(block * BACKWARD_STATE, x)
    w, v = aligned(steps * PAIR, x), aligned(steps * n_params * PAIR, x)
    xs = np.empty((block, n_variables), x.dtype)
    es = np.empty((block, n_variables * n_params), x.dtype)
    weights, outputs = weight.reshape(-1), output.reshape(-1)
    grad_weights, grad_outputs = grad_weight.reshape(-1), grad_output.reshape(-1)
    first_update = np.empty(block, np.int64)  # of the segment, where the tape replaces subtraction

    for b0 in range(first, last, block):
        rows = min(block, last - b0)
        state[:] = zero
        for r in range(rows):
            permute(xs[r], x[b0 + r], order, 1)
            permute(es[r], grad_eta[b0 + r].reshape(-1), order, n_params)
        for segment in range(len(tape) - 1, -1, -1):
            begin, finish = segment * SEGMENT, min(n_variables, (segment + 1) * SEGMENT)
            for r in range(rows):
                a = r * BACKWARD_STATE
                state[a : a + units] = tape[segment, b0 + r, k0:k1]
                activate(state, np.uint64(a), wide, code)
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
                    copy(w, np.uint64(t * PAIR), weights, np.uint64(i * hidden + k0), np.uint64(units))
                    for p in range(n_params):
                        q = np.uint64((i * n_params + p) * hidden + k0)
                        copy(v, np.uint64((t * n_params + p) * PAIR), outputs, q, np.uint64(units))
                for r in range(rows):
                    o = np.uint64(r * BACKWARD_STATE)
                    t = n - 1
                    while t >= 0:
                        xt, i = xs[r, d0 + t], np.uint64(t * PAIR)
                        stop = (t + 1) * n_params  # outputs below it are still to be gathered
                        if need_x:
                            flush(state, o, wide, code)
                            grad_x[b0 + r, order[d0 + t]] = dot(state, o + G, w, i, wide)
                        if d0 + t == first_update[r]:
                            flush(state, o, wide, code)
                            collect(state, o, xt, w, i, wide)
                            a = r * BACKWARD_STATE
                            if segment == 0:
                                state[a : a + units] = hidden_bias[k0:k1]
                            else:
                                state[a : a + units] = tape[segment - 1, b0 + r, k0:k1]
                            activate(state, o, wide, code)
                        elif xt != zero:
                            stop -= 1
                            e, j = es[r, d0 * n_params + stop], np.uint64(stop * PAIR)
                            retreat(state, o, xt, w, i, e, v, j, wide, code)
                        start = t  # of the run of steps that share h
                        if not need_x:
                            while start > 0 and xs[r, d0 + start - 1] == zero:
                                start -= 1
                        p, first_param = start * n_params, d0 * n_params
                        while p + 4 <= stop:
                            e0, e1 = es[r, first_param + p], es[r, first_param + p + 1]
                            e2, e3 = es[r, first_param + p + 2], es[r, first_param + p + 3]
                            gather4(state, o, e0, e1, e2, e3, v, np.uint64(p * PAIR), wide)
                            p += 4
                        while p < stop:
                            gather(state, o, es[r, first_param + p], v, np.uint64(p * PAIR), wide)
                            p += 1
                        t = start - 1
                for t in range(n):
                    i = order[d0 + t]
                    q = np.uint64(i * hidden + k0)
                    add(grad_weights, q, w, np.uint64(t * PAIR + LANE), np.uint64(units), b0 == first)
                    for p in range(n_params):
                        q = np.uint64((i * n_params + p) * hidden + k0)
                        j = np.uint64((t * n_params + p) * PAIR + LANE)
                        add(grad_outputs, q, v, j, np.uint64(units), b0 == first)
            for r in range(rows):
                flush(state, np.uint64(r * BACKWARD_STATE), wide, code)
        for r in range(rows):
            for k in range(units):
                grad_bias[k0 + k] += state[r * BACKWARD_STATE + 2 * LANE + k]
