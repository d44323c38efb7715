"""The distribution of one variable given others, with the functions a one-dimensional distribution has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from pynade.families import Family


@dataclass(frozen=True)
class Conditional:
    """The distribution of one variable given others.

    Its functions take a number and return a float, or take an array (a sequence) and return an array.

    Example:
        >>> import torch
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
        """Log-probability (of a discrete variable) or log-density, in nats.

        Args:
            value: a number or an array of them.
        """
        x = self._numbers(value, "a value")
        self.family.check(x.flatten()[:, None])
        return self._each(self.family.log_prob, x)

    def pmf(self, value: Any) -> Any:
        """Probability or density at a value (also called `pdf`).

        Args:
            value: a number or an array of them.
        """
        p = np.exp(self.log_prob(value))
        return p if p.ndim else float(p)

    pdf = pmf

    def cdf(self, value: Any) -> Any:
        """P(X <= value).

        Args:
            value: a number or an array of them.
        """
        return self._each(self.family.cdf, self._numbers(value, "a value"))

    def quantile(self, q: Any) -> Any:
        """Smallest value whose cdf is at least q.

        Args:
            q: a probability or an array of them.
        """
        x = self._numbers(q, "a probability")
        outside = ~((x >= 0) & (x <= 1))
        if outside.any():
            raise ValueError(f"a quantile needs q between 0 and 1, not {x[outside][0].item():g}")
        return self._each(self.family.quantile, x)

    def sample(self, n: int = 1, generator: Generator | None = None) -> Tensor:
        """n draws.

        Args:
            n: how many.
            generator: source of randomness.
        """
        return self.family.sample(self.eta.expand(n, -1), self.i.expand(n), generator)

    def _numbers(self, values: Any, what: str) -> Tensor:
        try:
            return torch.from_numpy(np.asarray(values, dtype=np.float64).copy()).to(self.eta)
        except (TypeError, ValueError):
            raise TypeError(f"{what} must be a number or an array of numbers, not {values!r}") from None

    def _each(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor) -> Any:
        n = x.numel()
        with torch.no_grad():
            y = function(x.reshape(n), self.eta.expand(n, -1), self.i.expand(n))
        return y.double().cpu().numpy().reshape(x.shape) if x.ndim else float(y)
