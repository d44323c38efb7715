"""Ancestral sampling on the CPU: each row walks once through the variables, many rows through each tile of
weights.

A step needs eta over all hidden units before the next can begin, so a row keeps all its lanes. For binary
data the outputs of the next four steps are computed together on the guess that x stays zero; what comes
after a one is computed again.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu import arrays, check_order, thread_count
from pynade.kernels.cpu_vector import (
    CODES,
    FORWARD_STATE,
    LANE,
    ROUND,
    H,
    activate,
    advance,
    aligned,
    copy,
    dot4,
    jit,
    permute,
)
from pynade.kernels.threads import share

ROWS = 128  # rows that share a tile of weights
STEPS = 8  # steps in a tile
BERNOULLI, MIXTURE = 0, 1  # what is drawn from eta; a new family is a new code and a branch in `_sample`


def sample(
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    uniforms: Tensor,
    noise: Tensor | None,
    activation: str,
) -> Tensor:
    """Rows (B, D): Bernoulli without noise, location-scale mixtures with it. Shapes as in `reference`."""
    batch = len(uniforms)
    check_order(order, len(weight))
    family = BERNOULLI if noise is None else MIXTURE
    if noise is None:
        uniforms = torch.logit(uniforms)  # u < sigmoid(eta) without an exponential per draw
    x = torch.empty_like(uniforms, memory_format=torch.contiguous_format)
    inputs = arrays(
        weight, hidden_bias, output, bias, order, uniforms, uniforms if noise is None else noise, x
    )
    threads = torch.get_num_threads()
    rows = max(1, min(ROWS, -(-batch // threads)))

    def task(number: int) -> None:
        first = number * rows
        _sample(*inputs, family, CODES[activation], first, min(batch, first + rows))

    share(task, -(-batch // rows), thread_count("sample", x, threads))
    return x


@jit(inline=True)
def _mixture(eta, start, components, uniform, noise):  # type: ignore[no-untyped-def]
    """One value from [K logits | K locations | K log scales], which begin at eta[start]."""
    top = eta[start : start + components].max()
    total = 0.0
    for k in range(components):
        total += math.exp(eta[start + k] - top)
    cumulative, chosen = 0.0, start + components - 1
    for k in range(components - 1):
        cumulative += math.exp(eta[start + k] - top)
        if uniform * total < cumulative:
            chosen = start + k
            break
    return eta[chosen + components] + math.exp(eta[chosen + 2 * components]) * noise


@jit()
def _sample(  # type: ignore[no-untyped-def]
    weight, hidden_bias, output, bias, order, uniforms, noise, x, family, code, first, last
):
    """Rows first … last - 1."""
    n_variables, n_params, hidden = output.shape
    rows, zero, one = last - first, weight.dtype.type(0), weight.dtype.type(1)
    lanes = -(-hidden // LANE)
    width = -(-hidden // lanes)
    width = -(-width // ROUND) * ROUND
    lanes, wide = -(-hidden // width), np.uint64(width)
    steps = max(1, STEPS // n_params)
    outputs_of_tile = steps * n_params + 3  # dot4 may look past the last
    state = aligned(rows * lanes * FORWARD_STATE, weight)
    w, v = aligned(lanes * steps * LANE, weight), aligned(lanes * outputs_of_tile * LANE, weight)
    eta = np.empty(outputs_of_tile)
    drawn = np.empty((rows, n_variables), weight.dtype)  # in step order, as are the biases
    biases = np.empty(n_variables * n_params, weight.dtype)
    permute(biases, bias.reshape(-1), order, n_params)
    weights, outputs = weight.reshape(-1), output.reshape(-1)
    for r in range(rows):
        for lane in range(lanes):
            k0 = lane * width
            units = min(width, hidden - k0)
            o = (r * lanes + lane) * FORWARD_STATE
            state[o : o + units] = hidden_bias[k0 : k0 + units]
            activate(state, np.uint64(o), wide, code)
    for d0 in range(0, n_variables, steps):
        n = min(steps, n_variables - d0)
        for lane in range(lanes):
            k0 = lane * width
            units = np.uint64(min(width, hidden - k0))
            for t in range(n):
                i = order[d0 + t]
                copy(w, np.uint64((lane * steps + t) * LANE), weights, np.uint64(i * hidden + k0), units)
                for p in range(n_params):
                    j = np.uint64((lane * outputs_of_tile + t * n_params + p) * LANE)
                    copy(v, j, outputs, np.uint64((i * n_params + p) * hidden + k0), units)
        for r in range(rows):
            known = 0  # outputs computed with the present activations, up to here
            for t in range(n):
                while known < (t + 1) * n_params:
                    y0, y1, y2, y3 = 0.0, 0.0, 0.0, 0.0
                    for lane in range(lanes):
                        o = np.uint64((r * lanes + lane) * FORWARD_STATE)
                        j = np.uint64((lane * outputs_of_tile + known) * LANE)
                        z0, z1, z2, z3 = dot4(state, o + H, v, j, wide)
                        y0, y1, y2, y3 = y0 + z0, y1 + z1, y2 + z2, y3 + z3
                    eta[known], eta[known + 1], eta[known + 2], eta[known + 3] = y0, y1, y2, y3
                    known += 4
                uniform = uniforms[first + r, d0 + t]
                if family == BERNOULLI:
                    value = one if uniform < eta[t] + biases[d0 + t] else zero
                else:
                    for p in range(n_params):
                        eta[t * n_params + p] += biases[(d0 + t) * n_params + p]
                    z = noise[first + r, d0 + t]
                    value = zero + weight.dtype.type(_mixture(eta, t * n_params, n_params // 3, uniform, z))
                drawn[r, d0 + t] = value
                if value != zero:
                    for lane in range(lanes):
                        o = np.uint64((r * lanes + lane) * FORWARD_STATE)
                        advance(state, o, value, w, np.uint64((lane * steps + t) * LANE), wide, code)
                    known = (t + 1) * n_params
    for r in range(rows):
        for d in range(n_variables):
            x[first + r, order[d]] = drawn[r, d]
