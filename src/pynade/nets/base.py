"""What a net is: a producer of raw parameters eta, with two views that must agree.

*Parallel*: `net(features, ordering)` gives eta of all D variables at once, each a function of the
variables before it only. *Sequential* (the stepper): `start`, then `predict` and `observe` in turn;
sampling, conditioning and imputing are loops over it, and each row may be at its own variable.
Tests hold the two views equal for every net.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pynade.ordering import Ordering

State = dict[str, Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


class Net(nn.Module, ABC):
    """Abstract net over D variables.

    Attributes:
        n_variables: D.
        n_params: P, raw outputs per variable.
        n_features: F, inputs per variable.
        input_weights: names of the parameters that multiply the inputs (for weight decay on these alone).
    """

    input_weights: tuple[str, ...] = ()

    def __init__(self, n_variables: int, n_params: int, n_features: int) -> None:
        super().__init__()
        for name, value in (
            ("n_variables", n_variables),
            ("n_params", n_params),
            ("n_features", n_features),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.n_variables, self.n_params, self.n_features = n_variables, n_params, n_features
        self.bias = nn.Parameter(torch.zeros(n_variables, n_params))

    @abstractmethod
    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P) from features (B, D, F) under one ordering shared by all rows."""

    @abstractmethod
    def start(self, batch: int) -> State:
        """State of `batch` rows of which nothing is observed yet."""

    @abstractmethod
    def predict(self, state: State, i: Tensor) -> Tensor:
        """Eta (B, P) of variable i[b] for row b, given what row b has observed."""

    @abstractmethod
    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """State after row b has also seen the features (B, F) of its variable i[b]."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Constructor arguments, as JSON; what a saved model needs to build this again."""

    def forward(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P); rows may share one ordering or have one each, (B, D)."""
        return stepwise(self, features, ordering) if ordering.is_batch else self.parallel(features, ordering)

    def set_output_bias(self, eta: Tensor) -> None:
        """Start from the constant prediction eta (D, P), usually `family.eta_from_marginal(train)`."""
        with torch.no_grad():
            self.bias.copy_(eta)


def stepwise(net: Net, features: Tensor, ordering: Ordering) -> Tensor:
    """Eta (B, D, P) by walking the stepper along the ordering(s): the sequential view of a whole batch."""
    batch = features.shape[0]
    ordering = ordering.rows(batch).to(features.device)
    row = torch.arange(batch, device=features.device)
    state, etas = net.start(batch), []
    for i in ordering.order.unbind(1):
        etas.append(net.predict(state, i))
        state = net.observe(state, i, features[row, i])
    rank = ordering.rank.unsqueeze(-1).expand(-1, -1, net.n_params)
    return torch.stack(etas, 1).gather(1, rank)


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name, or a ValueError that lists the known ones."""
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(ACTIVATIONS)}") from None


def glorot(*shape: int, fan_in: int, fan_out: int, generator: torch.Generator | None = None) -> nn.Parameter:
    """A parameter drawn uniformly from ±sqrt(6 / (fan_in + fan_out))."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))
