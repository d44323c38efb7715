"""FVSBN: each conditional is a (log-)linear model of the variables before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pynade.nets.base import Net, State
from pynade.ordering import Ordering


class FVSBNNet(Net):
    """Fully visible sigmoid belief network: eta_i = b_i + Σ_{j before i} W[i, j] x_j.

    With Bernoulli conditionals this is one logistic regression per variable; training is convex and
    starts at zero. W holds all D × D blocks, of which an ordering uses those with j before i.

    Example:
        >>> import torch
        >>> from pynade.ordering import Ordering
        >>> FVSBNNet(3)(torch.zeros(2, 3, 1), Ordering.natural(3)).shape
        torch.Size([2, 3, 1])
    """

    input_weights = ("weight",)

    def __init__(self, n_variables: int, n_params: int = 1, *, n_features: int = 1) -> None:
        super().__init__(n_variables, n_params, n_features)
        self.weight = nn.Parameter(torch.zeros(n_variables, n_params, n_variables, n_features))

    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P): one matrix product with the forbidden blocks set to zero."""
        before = ordering.before.to(features.device)
        return masked_direct(features, self.weight, before) + self.bias

    def start(self, groups: int, rows: int) -> State:
        """Nothing observed: every eta is its bias."""
        return {"eta": self.bias.expand(groups, rows, -1, -1)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The sum for variable i so far."""
        return state["eta"][torch.arange(len(i), device=i.device), :, i]

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Add variable i's share to all variables, O(D)."""
        return {"eta": state["eta"] + torch.einsum("gnf,dpgf->gndp", features, self.weight[:, :, i])}


def masked_direct(features: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """Σ_j before[i, j] W[i, :, j] x_j for all i: features (B, D, F), weight (D, P, D, F) -> (B, D, P)."""
    allowed = weight * before[:, None, :, None]
    return torch.tensordot(features, allowed, dims=([1, 2], [2, 3]))
