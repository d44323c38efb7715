"""The NADE recurrence on the CPU where P is large: hidden states by compiled loops, V h by matrix products.

With mixtures for conditionals almost all work is V h and its gradients, for which matrix products are
fastest. Hidden states are computed for a few rows at a time, so that they stay in the cache, and again in the
backward pass. Other sizes go to `kernels.cpu`, whose functions have the same signatures.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu, threads
from pynade.kernels.cpu import arrays, check_order, thread_count
from pynade.kernels.cpu_scalar import jit
from pynade.kernels.cpu_vector import CODES, ROUND, slope, squash
from pynade.kernels.reference import Weights
from pynade.kernels.threads import borrowed, share

LEAST_PARAMS = 24  # P from which matrix products were measured to be faster
LEAST_ROWS = 16  # of a minibatch, or of a thread's part of it
MOST_VARIABLES = 256  # for more, the fused backward pass is as fast
MOST_UNITS = 128  # for more, the fused forward pass is faster, since its units stay in registers
ENOUGH_ROWS = 64  # for the forward pass
CACHED = 2**19  # bytes of hidden states that are worked on together
BLOCK = 32  # rows processed together


def suits(x: Tensor, n_params: int) -> bool:
    """Whether the backward pass of rows x (M, B, D) is likely to be faster by matrix products."""
    _, batch, n_variables = x.shape
    if threads.forked():  # torch's matrix products would wait there for threads that were not forked
        return False
    return n_params >= LEAST_PARAMS and batch >= LEAST_ROWS and 0 < n_variables <= MOST_VARIABLES


def suits_forward(x: Tensor, n_params: int, hidden: int) -> bool:
    """Whether the forward pass is too; never if the backward pass, which would need a tape, is not."""
    return suits(x, n_params) and x.shape[1] >= ENOUGH_ROWS and hidden <= MOST_UNITS


def forward(x: Tensor, weights: Weights, activation: str, with_tape: bool = True) -> tuple[Tensor, Tensor]:
    """As `cpu.forward`; the tape is empty, since the backward pass computes the states again."""
    if not suits_forward(x, weights.bias.shape[2], weights.weight.shape[2]):
        return cpu.forward(x, weights, activation, with_tape)
    x, weight, hidden_bias, output, bias, order = (t.detach().contiguous() for t in (x, *weights))
    members, batch, n_variables = x.shape
    check_order(order, n_variables)
    hidden, n_params = weight.shape[2], bias.shape[2]
    eta = x.new_empty(members, batch, n_variables, n_params)
    steps, parts, padded = _plan(x, hidden)
    buffers, size = arrays(x, order, weight, hidden_bias), n_variables * steps * hidden

    def task(number: int) -> None:
        m, part = divmod(number, len(parts))
        with borrowed(size + (BLOCK + 2) * padded, buffers[0].dtype) as scratch:
            for first in range(parts[part].start, parts[part].stop, steps):
                last = min(first + steps, parts[part].stop)
                shape = (n_variables, last - first, hidden)
                h = scratch[: math.prod(shape)].reshape(shape)
                _walk(*buffers, h, CODES[activation], m, first, last, padded, scratch[size:])
                to = eta[m, first:last].transpose(0, 1)
                torch.baddbmm(bias[m].unsqueeze(1), torch.from_numpy(h), output[m].mT, out=to)

    share(task, members * len(parts), thread_count("wide forward", x, torch.get_num_threads()))
    return eta, x.new_empty(members, int(with_tape), 0)


def backward(
    x: Tensor, weights: Weights, tape: Tensor, grad_eta: Tensor, activation: str, need_x: bool
) -> cpu.Gradients:
    """As `cpu.backward`."""
    if not suits(x, weights.output.shape[2]):
        return cpu.backward(x, weights, tape, grad_eta, activation, need_x)
    given = (t.detach().contiguous() for t in (x, *weights, grad_eta))
    x, weight, hidden_bias, output, _, order, grad_eta = given
    members, _, n_variables = x.shape
    hidden = weight.shape[2]
    steps, parts, padded = _plan(x, hidden)
    gw, gc, gv = (x.new_empty(len(parts), *t.shape) for t in (weight, hidden_bias, output))
    gx = x.new_zeros(x.shape if need_x else (members, 0, 0))
    inputs, results = arrays(x, order, weight), arrays(gw, gc, gx)
    first_bias = arrays(hidden_bias)[0]
    size = n_variables * steps * hidden

    def task(number: int) -> None:
        m, part = divmod(number, len(parts))
        begin, end = parts[part].start, parts[part].stop
        gw[part, m], gc[part, m] = 0, 0
        with borrowed(2 * size + (BLOCK + 4) * padded, inputs[0].dtype) as scratch:
            for first in range(begin, end, steps):
                last = min(first + steps, end)
                shape = (n_variables, last - first, hidden)
                n, rest = math.prod(shape), scratch[2 * size :]
                h, q = scratch[:n].reshape(shape), scratch[size : size + n].reshape(shape)
                _walk(*inputs, first_bias, h, CODES[activation], m, first, last, padded, rest)
                g = grad_eta[m, first:last].transpose(0, 1)
                gv[part, m].baddbmm_(g.mT, torch.from_numpy(h), beta=int(first > begin))
                torch.bmm(g, output[m], out=torch.from_numpy(q))
                where = (m, part, first, last, padded)
                _back(*inputs, h, q, *results, CODES[activation], need_x, *where, rest)

    share(task, members * len(parts), thread_count("wide backward", x, torch.get_num_threads()))
    gw, gc, gv = (t[0] if len(parts) == 1 else t.sum(0) for t in (gw, gc, gv))
    return gx, gw, gc, gv


def _plan(x: Tensor, hidden: int) -> tuple[int, list[range], int]:
    """Rows at a time, each thread's part of a member's rows, and the padded number of units."""
    members, batch, n_variables = x.shape
    splits = max(1, min(torch.get_num_threads() // members, batch // LEAST_ROWS))
    rows = -(-batch // splits)
    parts = [range(first, min(batch, first + rows)) for first in range(0, batch, rows)]
    most = max(BLOCK, CACHED // (n_variables * hidden * x.element_size()))
    steps = -(-rows // -(-rows // most))
    return steps, parts, -(-hidden // ROUND) * ROUND


@jit()
def _walk(x, order, weight, hidden_bias, h, code, m, first, last, padded, s):
    """Hidden activations of rows first … last - 1 of member m. s: weights, activations, BLOCK states."""
    hidden, n_variables = weight.shape[2], weight.shape[1]
    zero = x.dtype.type(0)
    order = order[m % len(order)]
    wide, units = np.uint64(padded), np.uint64(hidden)
    for start in range(first, last, BLOCK):
        some = min(BLOCK, last - start)
        s[:padded] = zero
        for r in range(some):
            o = np.uint64(r + 2) * wide
            for k in range(units):
                s[o + k] = hidden_bias[m, k]
            for k in range(units, wide):
                s[o + k] = zero
        for d in range(n_variables):
            i = order[d]
            w = weight[m, i]
            for k in range(units):
                s[k] = w[k]
            for r in range(some):
                o, out, xt = np.uint64(r + 2) * wide, h[i, start + r - first], x[m, start + r, i]
                for k in range(wide):
                    a = s[o + k]
                    s[wide + k] = squash(a, code)
                    s[o + k] = a + xt * s[k]
                for k in range(units):
                    out[k] = s[wide + k]


@jit()
def _back(x, order, weight, h, q, gw, gc, gx, code, need_x, m, split, first, last, padded, s):
    """Gradients of W, c, x. s: weights, their gradient, h, q, BLOCK lanes of dL/da."""
    hidden, n_variables = weight.shape[2], weight.shape[1]
    zero, one = x.dtype.type(0), x.dtype.type(1)
    order = order[m % len(order)]
    wide, units = np.uint64(padded), np.uint64(hidden)
    H, Q, G = wide + wide, wide + wide + wide, wide + wide + wide + wide
    s[: 4 * padded] = zero
    for start in range(first, last, BLOCK):
        some = min(BLOCK, last - start)
        s[4 * padded :] = zero
        for t in range(n_variables):
            i = order[n_variables - 1 - t]
            w, to = weight[m, i], gw[split, m, i]
            for k in range(units):
                s[k] = w[k]
                s[wide + k] = to[k]
            for r in range(some):
                o, xt = G + np.uint64(r) * wide, x[m, start + r, i]
                hs, qs = h[i, start + r - first], q[i, start + r - first]
                for k in range(units):
                    s[H + k] = hs[k]
                for k in range(units):
                    s[Q + k] = qs[k]
                if need_x:
                    total = zero
                    for k in range(wide):
                        total += s[o + k] * s[k]
                    gx[m, start + r, i] = total
                for k in range(wide):
                    g = s[o + k]
                    s[wide + k] += xt * g
                    s[o + k] = g + s[Q + k] * slope(s[H + k], one, code)
            for k in range(units):
                to[k] = s[wide + k]
        for r in range(some):
            o = G + np.uint64(r) * wide
            for k in range(units):
                gc[split, m, k] += s[o + k]
