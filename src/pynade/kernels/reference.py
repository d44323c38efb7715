"""The NADE recurrence and its sampler in plain torch: the reference for the tests of all other kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


class Weights(NamedTuple):
    """The parameters of a NADE and its ordering; the kernels of M members take one more leading axis."""

    weight: Tensor  # W, (D, F, H), or (D, H) where F = 1
    hidden_bias: Tensor  # c, (H,)
    output: Tensor  # V, (D, P, H)
    bias: Tensor  # b, (D, P)
    order: Tensor  # (D,), the variable at each step; (1, D) for all members, or (M, D)


BLOCK = 32  # steps whose pre-activations are formed together; bounds the working set, not the result


def recurrence(features: Tensor, weights: Weights, activation: str) -> Tensor:
    """As `pynade.kernels.recurrence`; any number of features.

    The sum over earlier steps is a running sum, formed block by block so that it stays in cache.
    """
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
