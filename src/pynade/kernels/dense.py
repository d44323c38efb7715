"""The NADE recurrence as three matrix products: for few variables with many parameters each.

Where D is small and P large (a mixture of K Gaussians has P = 3K), almost all work is V h, for which
matrix units are fastest. The pre-activations of all D steps come from one product of masked inputs with W: D
times the arithmetic of the recurrence, but little beside V h. The (D, B, H) activations are stored.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pynade.kernels.reference import ACTIVATIONS, Weights
from pynade.kernels.threads import forked

# by device: the largest D, the least P, the most bytes of activations (on a CPU they stay in the cache)
LIMITS = {"cuda": (256, 4, 2**30), "cpu": (32, 24, 2**20)}


def suits(features: Tensor, output: Tensor) -> bool:
    """Whether this is likely to be the fastest kernel, judged by the shapes."""
    if features.device.type not in LIMITS or forked():  # matrix products would wait for threads that are lost
        return False
    most_variables, least_params, most_bytes = LIMITS[features.device.type]
    n_variables, n_params, hidden = output.shape
    stored = len(features) * n_variables * hidden * features.element_size()
    return n_variables <= most_variables and n_params >= least_params and stored <= most_bytes


def recurrence(features: Tensor, weights: Weights, activation: str) -> Tensor:
    """As `pynade.kernels.recurrence`; any number of features.

    Matrix units need rows that begin at multiples of four numbers, so the products are padded with zeros. The
    hidden bias is the weight of one more input that is always one, so the product computes its gradient too.
    """
    weight, hidden_bias, output, bias, order = weights
    D, F, H = weight.shape
    more = _up(D + 1) - D
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
    V = functional.pad(output, (0, 0, 0, _up(P) - P)) if _up(P) > P else output
    return torch.bmm(h, V.transpose(1, 2))[..., :P].transpose(0, 1) + bias


def _up(n: int) -> int:
    """The next multiple of four."""
    return -(-n // 4) * 4
