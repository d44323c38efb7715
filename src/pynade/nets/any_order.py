"""Nets that predict any variable given any others, and so along every ordering."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Generator, Tensor

from pynade.nets.base import Net, State
from pynade.nets.walk import stepwise
from pynade.ordering import Ordering


class AnyOrderNet(Net):
    """Abstract net whose outputs depend on *which* variables are observed, not on their order.

    The stepper here keeps what has been observed and runs the whole net at every step. A net that can do
    better overrides it; tests hold the two equal.
    """

    @abstractmethod
    def conditionals(self, features: Tensor, observed: Tensor, noise: Generator | None = None) -> Tensor:
        """Eta (B, D, P) of every variable given the observed ones, in one pass.

        Args:
            features: (B, D, F); those of unobserved variables have no influence, whatever they are.
            observed: bool (B, D), True = given. Outputs of observed variables have no meaning.
            noise: source of training noise such as dropout; None evaluates without any.
        """

    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P) by the stepper, since each step conditions on another set."""
        return stepwise(self, features, ordering)

    def start(self, groups: int, rows: int) -> State:
        """Nothing observed."""
        shape = (groups, rows, self.n_variables)
        return {
            "features": self.bias.new_zeros(*shape, self.n_features),
            "observed": torch.zeros(shape, dtype=torch.bool, device=self.bias.device),
        }

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The whole net, of which one variable per group is kept."""
        features, observed = state["features"], state["observed"]
        eta = self.conditionals(features.flatten(0, 1), observed.flatten(0, 1))
        eta = eta.unflatten(0, observed.shape[:2])
        return eta[torch.arange(len(i), device=i.device), :, i]

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Remember variable i."""
        group = torch.arange(len(i), device=i.device)
        new = {name: tensor.clone() for name, tensor in state.items()}
        new["features"][group, :, i] = features
        new["observed"][group, :, i] = torch.ones_like(group, dtype=torch.bool)[:, None]  # no host constant
        return new
