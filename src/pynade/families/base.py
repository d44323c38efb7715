"""What a family is: one-dimensional laws for all D variables at once, given raw parameters eta.

A family knows the domain of the data, how a net should see it (`encode`), and what the net's raw
outputs mean. Nets know nothing of families; densities put the two together.

Shapes: data x is (B, D), features are (B, D, F), eta is (B, D, P). Where a stepper speaks about one
variable per row, the same methods take x of shape (G, N), eta of shape (G, N, P) and `i`, the variable
each row is at, broadcast against x. A family whose variables differ (their own scale, their own number
of levels) looks its constants up by `i`; `i=None` means "all D of them, in the last axis".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn


class Family(nn.Module, ABC):
    """Abstract one-dimensional law for every variable.

    Attributes:
        n_params: P, raw parameters per variable (the largest, where variables differ).
        n_features: F, input features per variable.
    """

    n_params: int
    n_features: int = 1

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise a ValueError in one sentence if `x` has values outside the domain."""

    @abstractmethod
    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Features a net sees: (…) -> (…, F)."""

    @abstractmethod
    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-probability or log-density of each value, in nats: the shape of x."""

    @abstractmethod
    def sample(
        self, eta: Tensor, i: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """One draw for each eta: (…, P) -> (…)."""

    @abstractmethod
    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Expected value: (…, P) -> (…)."""

    @abstractmethod
    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The single value to fill in: mode of a discrete variable, mean of a real one: (…, P) -> (…)."""

    @abstractmethod
    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """P(X <= x): the shape of x."""

    @abstractmethod
    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Smallest value whose cdf is at least q: the shape of q."""

    @abstractmethod
    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Eta (D, P) of the best constant prediction for data x (N, D): a net's initial output bias."""

    def unwrap(self, x: Tensor, dtype: torch.dtype) -> tuple[Family, Tensor, Tensor | None]:
        """The law a model computes with, the values (B, D) it sees in `dtype`, and log dy/dx of each, if any.

        A family of transformed variables maps in the type of x, so that float64 data far from zero are
        rounded to the model's type only after their location has been taken off.
        """
        return self, x.to(dtype), None

    def fit_constants(self, x: Tensor) -> None:
        """Start the family's own parameters from data x (N, D), NaN = missing; most families have none.

        They (a sigma shared by all rows, say) are no outputs of a net, so not in `eta_from_marginal`.
        """

    def fill(self, x: Tensor, keep: Tensor) -> Tensor:
        """x with every cell that is not to be kept replaced by some value of the domain: rows (B, D).

        For cells that are missing or not asked for, which still pass through `check` and `encode`.
        """
        return torch.where(keep, x, 0)

    def config(self) -> dict[str, Any]:
        """Constructor arguments, as JSON; what a saved model needs to build this again."""
        return {}
