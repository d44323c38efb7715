"""The NADE recurrence and its samplers in plain torch: right first, the yardstick for every faster kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
}
BLOCK = 32  # steps whose pre-activations are formed together; bounds the working set, not the result


def recurrence(
    features: Tensor,
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    activation: str,
) -> Tensor:
    """All D conditionals in O(HD) per row (eqs. 2, 4, 5).

    With a_1 = c and a_d = a_{d-1} + W[:, o_{d-1}] x_{o_{d-1}}, the outputs are
    eta_{o_d} = V[o_d] act(a_d) + b_{o_d}. The sum over earlier steps is a running sum, formed block by
    block so that it stays in cache.

    Args:
        features: (B, D, F).
        weight: W, (D, F, H).
        hidden_bias: c, (H,).
        output: V, (D, P, H).
        bias: b, (D, P).
        order: (D,), the variable at each step.
        activation: name of what is applied to the pre-activations.

    Returns:
        eta (B, D, P), indexed by variable (not by step).
    """
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


def sample_bernoulli(
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    uniforms: Tensor,
    activation: str,
) -> Tensor:
    """Binary rows (B, D): at step d, x = 1 where uniforms[:, d] < sigmoid(eta).

    Args:
        weight: W, (D, H).
        hidden_bias: c, (H,).
        output: V, (D, 1, H).
        bias: b, (D, 1).
        order: (D,).
        uniforms: (B, D), by step.
        activation: as for `recurrence`.
    """

    def draw(eta: Tensor, step: int) -> Tensor:
        return (uniforms[:, step] < torch.sigmoid(eta[:, 0])).to(eta.dtype)

    return _sample(weight, hidden_bias, output, bias, order, len(uniforms), activation, draw)


def sample_mixture(
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    uniforms: Tensor,
    noise: Tensor,
    activation: str,
) -> Tensor:
    """Real rows (B, D) from mixtures of a location-scale law, eta = [K logits | K locations | K log scales].

    At step d, uniforms[:, d] picks the component by the inverse of the mixture weights' cumulative sum, and
    x = location + scale × noise[:, d]. Standard normal noise gives mixtures of Gaussians, standard Laplace
    noise mixtures of Laplaces. The other arguments are those of `sample_bernoulli`, with V (D, 3K, H) and b
    (D, 3K).
    """

    def draw(eta: Tensor, step: int) -> Tensor:
        logits, location, log_scale = eta.chunk(3, dim=1)
        below = torch.softmax(logits, 1).cumsum(1)[:, :-1] <= uniforms[:, step, None]
        component = below.sum(1, keepdim=True)
        chosen = location.gather(1, component), log_scale.gather(1, component)
        return chosen[0][:, 0] + chosen[1][:, 0].exp() * noise[:, step]

    return _sample(weight, hidden_bias, output, bias, order, len(uniforms), activation, draw)


def _sample(
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    batch: int,
    activation: str,
    draw: Callable[[Tensor, int], Tensor],
) -> Tensor:
    """Ancestral sampling: draw each variable from its eta, then add it to the pre-activation."""
    act = ACTIVATIONS[activation]
    x = weight.new_empty(batch, len(order))
    a = hidden_bias.expand(batch, -1)
    for step, i in enumerate(order.tolist()):
        x[:, i] = draw(act(a) @ output[i].T + bias[i], step)
        a = a + x[:, i, None] * weight[i]
    return x
