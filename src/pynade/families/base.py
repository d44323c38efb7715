"""Base class of families: one-dimensional distributions of all D variables, given parameters eta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor, nn

from pynade.arguments import Part

Draw = Callable[[Tensor | None], Tensor]  # a function from noise to rows of a NADE


class Family(Part, ABC):
    """Abstract one-dimensional distribution of each variable: its domain, and its parameters eta.

    Data x are (B, D), features (the inputs of a net) are (B, D, F), eta is (B, D, P). For one variable of
    each row, as in the steps of a net, the methods take x (G, N), eta (G, N, P) and the variables' indexes
    `i`, which broadcast against x and select the constants of these variables. None stands for all D
    variables, in the last axis.

    Attributes:
        n_params: P, parameters per variable (the maximum, if variables differ).
        n_features: F, input features per variable.
        discrete: whether the best guess is the mode; otherwise it is the mean. None: the mode if and only if
            `best_guess` differs from `mean`.
        affine: whether `to_data` is affine, so that it maps means to means.
    """

    n_params: int
    n_features: int = 1
    discrete: bool | None = None
    affine: bool = True

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise a ValueError if `x` has values outside the domain."""

    def encode(self, x: Tensor, i: Tensor | None = None) -> Tensor:
        """Input features of a net: (…) -> (…, F); by default the value itself."""
        return x.unsqueeze(-1)

    @abstractmethod
    def log_prob(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Log-probability or log-density of each value, in nats: the shape of x."""

    @abstractmethod
    def sample(self, eta: Tensor, i: Tensor | None = None, generator: Generator | None = None) -> Tensor:
        """One draw for each eta: (…, P) -> (…)."""

    @abstractmethod
    def mean(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Expected value: (…, P) -> (…)."""

    def best_guess(self, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """The value for imputation, (…, P) -> (…): mean of a real variable, mode of a discrete one."""
        return self.mean(eta, i)

    @abstractmethod
    def cdf(self, x: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """P(X <= x): the shape of x."""

    @abstractmethod
    def quantile(self, q: Tensor, eta: Tensor, i: Tensor | None = None) -> Tensor:
        """Smallest value whose cdf is at least q: the shape of q."""

    @abstractmethod
    def eta_from_marginal(self, x: Tensor) -> Tensor:
        """Eta (D, P) of the marginal distributions of data x (N, D), the initial output bias of a net."""

    def fit_constants(self, x: Tensor) -> None:
        """Initialise parameters of the family itself from data x (N, D), NaN = missing."""

    def fill(self, x: Tensor, keep: Tensor) -> Tensor:
        """x (B, D) with cells outside the mask `keep`, such as missing ones, set to a value of the domain."""
        return torch.where(keep, x, 0)

    @property
    def inner(self) -> Family:
        """The family in whose variables a model computes: the base of a transformed family, or this one."""
        return self

    def unwrap(self, x: Tensor, dtype: torch.dtype) -> tuple[Family, Tensor, Tensor | None]:
        """The inner family, its values y (B, D) in `dtype`, and log dy/dx of each value (None for y = x).

        A map is computed in the dtype of x, so that float64 data far from zero are centred before rounding.
        """
        return self, x.to(dtype), None

    def to_data(self, y: Tensor) -> Tensor:
        """Values (…, D) of the inner family's variables as values of the data."""
        return y

    def best_guess_from_draws(self, values: Tensor, means: Tensor, weights: Tensor) -> Tensor:
        """Mode (discrete) or mean (real) of each variable over M weighted draws: (B, M, D) -> (B, D).

        Args:
            values: the draws, (B, M, D).
            means: conditional mean of each cell in its draw if known, else its value; (B, M, D).
            weights: (B, M), with sum 1 in each row.
        """
        weights = weights.unsqueeze(-1)
        if not (self._has_modes(means) if self.discrete is None else self.discrete):
            return (weights * means).sum(1).to(values.dtype)
        largest = weights.new_full(values[:, 0].shape, -1.0)
        guess = torch.zeros_like(values[:, 0])
        for level in values.unique():
            weight = (weights * (values == level)).sum(1)
            guess, largest = torch.where(weight > largest, level, guess), torch.maximum(weight, largest)
        return guess

    def _has_modes(self, like: Tensor) -> bool:
        """Whether `best_guess` differs from `mean` for any of 64 random eta."""
        eta = torch.randn(64, self.n_params, generator=torch.Generator().manual_seed(0)).to(like)
        first = torch.zeros(64, dtype=torch.long, device=like.device)  # index of the first variable
        guess, mean = self.best_guess(eta, first), self.mean(eta, first)
        return not torch.allclose(guess, mean, rtol=1e-3, atol=1e-3, equal_nan=True)

    def sample_nade(self, draw: Draw, like: Tensor, generator: Generator | None) -> Tensor | None:
        """Rows (B, D) of a NADE by a compiled loop; None if there is none for this family.

        Args:
            draw: the loop: takes noise (B, D) for mixtures, None for binary rows (`pynade.kernels.sample`).
            like: a tensor with the shape and dtype of the rows.
            generator: source of the noise.
        """
        return None


@dataclass(frozen=True)
class Conditional:
    """The distribution of one variable given others.

    Its methods take a number and return a float, or take an array (a sequence) and return an array.

    Example:
        >>> from pynade.families import Gaussian
        >>> x = Conditional(Gaussian(), torch.zeros(1, 2), torch.tensor([0]))
        >>> x.quantile(0.5), x.cdf([-1e9, 0, 1e9]).tolist()
        (0.0, [0.0, 0.5, 1.0])
    """

    family: Family
    eta: Tensor  # (1, P)
    i: Tensor  # (1,)

    def mean(self) -> float:
        """Expected value."""
        return float(self.family.mean(self.eta, self.i))

    def log_prob(self, value: Any) -> Any:
        """Log-probability (of a discrete variable) or log-density, in nats, at each value."""
        x = self._to_tensor(value, "a value")
        self.family.check(x.flatten()[:, None])
        return self._evaluate(self.family.log_prob, x)

    def pmf(self, value: Any) -> Any:
        """Probability or density at each value (also called `pdf`)."""
        p = np.exp(self.log_prob(value))
        return p if p.ndim else float(p)

    pdf = pmf

    def cdf(self, value: Any) -> Any:
        """P(X <= value), at each value."""
        return self._evaluate(self.family.cdf, self._to_tensor(value, "a value"))

    def quantile(self, q: Any) -> Any:
        """Smallest value whose cdf is at least q, for each probability q."""
        x = self._to_tensor(q, "a probability")
        invalid = ~((x >= 0) & (x <= 1))
        if invalid.any():
            raise ValueError(f"a quantile needs q between 0 and 1, not {x[invalid][0].item():g}")
        return self._evaluate(self.family.quantile, x)

    def sample(self, n: int = 1, generator: Generator | None = None) -> Tensor:
        """n draws (n,)."""
        return self.family.sample(self.eta.expand(n, -1), self.i.expand(n), generator)

    def _to_tensor(self, values: Any, what: str) -> Tensor:
        try:
            return torch.from_numpy(np.asarray(values, dtype=np.float64).copy()).to(self.eta)
        except (TypeError, ValueError):
            raise TypeError(f"{what} must be a number or an array of numbers, not {values!r}") from None

    def _evaluate(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor) -> Any:
        n = x.numel()
        with torch.no_grad():
            y = function(x.reshape(n), self.eta.expand(n, -1), self.i.expand(n))
        return y.double().cpu().numpy().reshape(x.shape) if x.ndim else float(y)


class KeepsTypes(nn.Module):
    """Mixin for modules whose buffers keep their dtype when a model is converted (maps stay in float64)."""

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        before: Any = dict(self._buffers)
        after: Any = super()._apply(fn, recurse)._buffers
        after |= {n: before[n].to(t.device) for n, t in after.items() if t.dtype != before[n].dtype}
        return self


def at(constants: Tensor, i: Tensor | None) -> Tensor:
    """The constants (D, …) of all variables, or of the variables i."""
    return constants if i is None else constants[i]


def refuse(x: Tensor, wrong: Tensor, rule: str) -> None:
    """Raise a ValueError with the rule and the first cell of x (B, D) in the mask `wrong`, if any."""
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        value = x[row, column].item()
        text = "missing or not a number" if value != value else f"{value:g}"
        raise ValueError(f"{rule}, but row {row}, column {column} is {text}")
