"""The NADE recurrence and its sampler in plain torch: the reference for the tests of all other kernels.

`dense` is for few variables with many parameters each: almost all work is V h there, for which matrix units
are fastest. Pre-activations are one product of masked inputs with W: more arithmetic, but little beside V h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pynade.kernels.threads import forked

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
}
CODES = {name: code for code, name in enumerate(ACTIVATIONS)}


class Weights(NamedTuple):
    """The parameters of a NADE and its ordering; the kernels of M members take one more leading axis."""

    weight: Tensor  # W, (D, F, H), or (D, H) where F = 1
    hidden_bias: Tensor  # c, (H,)
    output: Tensor  # V, (D, P, H)
    bias: Tensor  # b, (D, P)
    order: Tensor  # (D,), the variable at each step; (1, D) for all members, or (M, D)


BLOCK = 32  # steps whose pre-activations are formed together; bounds the working set, not the result
# of `dense` by device: the largest D, the least P, the most bytes of activations (on a CPU, of a cache)
LIMITS = {"cuda": (256, 4, 2**30), "cpu": (32, 24, 2**20)}


def recurrence(features: Tensor, weights: Weights, activation: str) -> Tensor:
    """As `pynade.kernels.recurrence`, any number of features; a running sum, by blocks that stay in cache."""
    weight, hidden_bias, output, bias, order = weights
    act = ACTIVATIONS[activation]
    batch, n_variables, _ = features.shape
    steps = features.transpose(0, 1)[order]  # (D, B, F)
    weight, output = weight[order], output[order].transpose(1, 2)  # (D, F, H), (D, H, P)
    before = hidden_bias.expand(batch, -1)  # pre-activation at the first step of the block
    etas = []
    for first in range(0, n_variables, BLOCK):
        block = slice(first, first + BLOCK)
        update = torch.bmm(steps[block], weight[block])  # (d, B, H)
        running = torch.cumsum(torch.cat((before.unsqueeze(0), update)), dim=0)
        etas.append(torch.bmm(act(running[:-1]), output[block]))
        before = running[-1]
    eta = torch.cat(etas)[order.argsort()]
    return eta.transpose(0, 1) + bias


def suits_dense(features: Tensor, output: Tensor) -> bool:
    """Whether `dense` is likely to be the fastest kernel, judged by the shapes."""
    if features.device.type not in LIMITS or forked():  # matrix products would wait for threads that are lost
        return False
    most_variables, least_params, most_bytes = LIMITS[features.device.type]
    n_variables, n_params, hidden = output.shape
    stored = len(features) * n_variables * hidden * features.element_size()
    return n_variables <= most_variables and n_params >= least_params and stored <= most_bytes


def dense(features: Tensor, weights: Weights, activation: str) -> Tensor:
    """As `pynade.kernels.recurrence`, any number of features; the (D, B, H) activations are stored."""
    weight, hidden_bias, output, bias, order = weights
    D, F, H = weight.shape
    more = 1 + -(D + 1) % 4  # an input for the bias, always one; matrix units need multiples of four numbers
    extra = functional.pad(features.new_ones(1, 1), (0, F - 1, 0, more - 1))
    inputs = torch.cat((features, extra.expand(len(features), -1, -1)), 1)
    bias_row = functional.pad(hidden_bias.view(1, 1, H), (0, 0, 0, F - 1, 0, more - 1))
    steps = torch.arange(D, device=order.device)
    rank = steps.scatter(0, order, steps)
    before = functional.pad((rank[None] < rank[:, None]).to(features.dtype), (0, more), value=1)
    seen = before[:, None, :, None] * inputs  # (D, B, D + more, F): j counts where it comes before d
    a = seen.flatten(2).flatten(0, 1) @ torch.cat((weight, bias_row)).flatten(0, 1)
    h = ACTIVATIONS[activation](a).unflatten(0, seen.shape[:2])  # (D, B, H)
    P = output.shape[1]
    V = functional.pad(output, (0, 0, 0, -P % 4)) if P % 4 else output
    return torch.bmm(h, V.transpose(1, 2))[..., :P].transpose(0, 1) + bias


def sample(weights: Weights, uniforms: Tensor, noise: Tensor | None, activation: str) -> Tensor:
    """Rows (B, D), as `pynade.kernels.sample`: Bernoulli variables without noise, mixtures with it."""
    weight, hidden_bias, output, bias, order = weights
    act, batch = ACTIVATIONS[activation], len(uniforms)
    x = weight.new_empty(batch, len(order))
    a = hidden_bias.expand(batch, -1)
    for step, i in enumerate(order.tolist()):
        eta = act(a) @ output[i].T + bias[i]
        if noise is None:
            x[:, i] = (uniforms[:, step] < torch.sigmoid(eta[:, 0])).to(eta.dtype)
        else:
            logits, location, log_scale = eta.chunk(3, dim=1)
            below = torch.softmax(logits, 1).cumsum(1)[:, :-1] <= uniforms[:, step, None]
            component = below.sum(1, keepdim=True)
            chosen = location.gather(1, component), log_scale.gather(1, component)
            x[:, i] = chosen[0][:, 0] + chosen[1][:, 0].exp() * noise[:, step]
        a = a + x[:, i, None] * weight[i]
    return x
