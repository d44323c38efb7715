"""The NADE recurrence and its sampler in plain torch: the reference for the tests of all other kernels.

`dense` is for few variables with many parameters each. Almost all work is then the product V h, for which
matrix units are fastest; computing all pre-activations by one product of masked inputs with W costs little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pynade.kernels.threads import is_forked_child

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
}
CODES = {name: code for code, name in enumerate(ACTIVATIONS)}


class Weights(NamedTuple):
    """The parameters of a NADE and its ordering; the kernels of M members have one more leading axis."""

    weight: Tensor  # W, (D, F, H), or (D, H) where F = 1
    hidden_bias: Tensor  # c, (H,)
    output: Tensor  # V, (D, P, H)
    bias: Tensor  # b, (D, P)
    order: Tensor  # (D,), the variable at each step; (1, D) for all members, or (M, D)


BLOCK = 32  # steps whose pre-activations are computed together, which limits the memory
# limits of `dense` by device: largest D, smallest P, most bytes of activations (on a CPU those of a cache)
LIMITS = {"cuda": (256, 4, 2**30), "cpu": (32, 24, 2**20)}


def recurrence(features: Tensor, weights: Weights, activation: str) -> Tensor:
    """As `pynade.kernels.recurrence`, with any number of features, by cumulative sums of blocks of steps."""
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
    if features.device.type not in LIMITS or is_forked_child():  # after a fork matrix products would hang
        return False
    most_variables, least_params, most_bytes = LIMITS[features.device.type]
    n_variables, n_params, hidden = output.shape
    n_bytes = len(features) * n_variables * hidden * features.element_size()
    return n_variables <= most_variables and n_params >= least_params and n_bytes <= most_bytes


def dense(features: Tensor, weights: Weights, activation: str) -> Tensor:
    """As `pynade.kernels.recurrence`, with any number of features; it stores the activations (D, B, H)."""
    weight, hidden_bias, output, bias, order = weights
    D, F, H = weight.shape
    n_extra = 1 + -(D + 1) % 4  # a constant input for the bias, and padding to a multiple of four
    extra = functional.pad(features.new_ones(1, 1), (0, F - 1, 0, n_extra - 1))
    inputs = torch.cat((features, extra.expand(len(features), -1, -1)), 1)
    bias_row = functional.pad(hidden_bias.view(1, 1, H), (0, 0, 0, F - 1, 0, n_extra - 1))
    steps = torch.arange(D, device=order.device)
    rank = steps.scatter(0, order, steps)
    before = functional.pad((rank[None] < rank[:, None]).to(features.dtype), (0, n_extra), value=1)
    visible = before[:, None, :, None] * inputs  # (D, B, D + n_extra, F): zero unless j comes before d
    a = visible.flatten(2).flatten(0, 1) @ torch.cat((weight, bias_row)).flatten(0, 1)
    h = ACTIVATIONS[activation](a).unflatten(0, visible.shape[:2])  # (D, B, H)
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
            skipped = torch.softmax(logits, 1).cumsum(1)[:, :-1] <= uniforms[:, step, None]
            component = skipped.sum(1, keepdim=True)
            selected = location.gather(1, component), log_scale.gather(1, component)
            x[:, i] = selected[0][:, 0] + selected[1][:, 0].exp() * noise[:, step]
        a = a + x[:, i, None] * weight[i]
    return x
