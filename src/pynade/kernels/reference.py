"""The NADE recurrence in plain torch: right first, and the yardstick for every faster kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 32  # steps whose pre-activations are formed together; bounds the working set, not the result


def recurrence(
    features: Tensor,
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    activation: Callable[[Tensor], Tensor],
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
        activation: applied to the pre-activations.

    Returns:
        eta (B, D, P), indexed by variable (not by step).
    """
    batch, n_variables, _ = features.shape
    steps = features.transpose(0, 1)[order]  # (D, B, F)
    weight, output = weight[order], output[order].transpose(1, 2)  # (D, F, H), (D, H, P)
    before = hidden_bias.expand(batch, -1)  # pre-activation at the first step of the block
    etas = []
    for first in range(0, n_variables, BLOCK):
        block = slice(first, first + BLOCK)
        update = torch.bmm(steps[block], weight[block])  # (d, B, H)
        running = torch.cumsum(torch.cat((before.unsqueeze(0), update)), dim=0)
        etas.append(torch.bmm(activation(running[:-1]), output[block]))
        before = running[-1]
    eta = torch.cat(etas)[order.argsort()]
    return eta.transpose(0, 1) + bias
