"""The NADE recurrence as three matrix products: for few variables with many parameters each.

Where D is small and P large (a mixture of K Gaussians has P = 3K), almost all work is V h, and matrix units
do that best. The pre-activations of all D steps come from one product of masked inputs with W: D times the
arithmetic of the recurrence, but little beside V h. The (D, B, H) activations are stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pynade.kernels.reference import ACTIVATIONS

MOST_VARIABLES = 256
LEAST_PARAMS = 4
MOST_BYTES = 2**30  # of the activations


def suits(features: Tensor, output: Tensor) -> bool:
    """Whether this way is likely to be the fastest, from the shapes alone."""
    batch, n_variables = features.shape[:2]
    _, n_params, hidden = output.shape
    stored = batch * n_variables * hidden * features.element_size()
    return n_variables <= MOST_VARIABLES and n_params >= LEAST_PARAMS and stored <= MOST_BYTES


def recurrence(
    features: Tensor,
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    activation: str,
) -> Tensor:
    """As `pynade.kernels.recurrence`; any number of features."""
    rank = order.argsort()
    before = (rank[None] < rank[:, None]).to(features.dtype)  # [d, j]: j is seen before d is predicted
    seen = before[:, None, :, None] * features[None]  # (D, B, D, F)
    a = torch.addmm(hidden_bias, seen.flatten(2).flatten(0, 1), weight.flatten(0, 1))
    h = ACTIVATIONS[activation](a).unflatten(0, seen.shape[:2])  # (D, B, H)
    return torch.bmm(h, output.transpose(1, 2)).transpose(0, 1) + bias
