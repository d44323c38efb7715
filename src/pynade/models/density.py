"""Base classes of densities, with exact log-probabilities and samples; independent variables and mixtures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pynade.arguments import Part
from pynade.families import Family
from pynade.nets.base import Random


class Model(Part, ABC):
    """Abstract model of D variables that can be saved: a density, an orderless model, an RBM."""

    n_variables: int

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise a ValueError if rows x (B, D) cannot be scored."""

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        tensors = (*self.parameters(), *self.buffers())
        return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next((t.device for t in (*self.parameters(), *self.buffers())), torch.device("cpu"))


class Density(Model):
    """Abstract normalised density of D variables, with exact `log_prob` and samples."""

    family: Family  # of the conditionals, for densities that have one

    def check(self, x: Tensor) -> None:
        """Columns must match, values must be in the family's domain."""
        check_columns(x, self.n_variables)
        self.family.check(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """Exact log p(x) of each row in nats, summed in float64: (B, D) -> (B,); the rows are checked."""
        self.check(x)
        return self._log_prob(self._to_dtype(x))

    def _to_dtype(self, x: Tensor) -> Tensor:
        """Rows in the dtype of the computation."""
        return x.to(self.dtype)

    @abstractmethod
    def _log_prob(self, x: Tensor) -> Tensor:
        """`log_prob` of checked and converted rows."""

    @abstractmethod
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n independent exact draws (n, D)."""

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """Training loss of each row (B,); its mean is the negative log-likelihood or a bound on it.

        Rows must have been checked. The generator is the source of random orderings and masks.
        """
        return -self._log_prob(self._to_dtype(x))


class Marginalisable(Density):
    """Abstract density whose marginals and conditionals are all exact and fast (mixtures, trees, …).

    Rows x (B, D) are checked by `pynade.queries`; values of cells that are not `observed` (bool) are ignored.
    """

    @abstractmethod
    def check_cells(self, x: Tensor, observed: Tensor) -> None:
        """Raise a ValueError if an observed cell is outside the domain."""

    @abstractmethod
    def marginal_log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells of each row, with the others marginalised: (B,), float64."""

    @abstractmethod
    def sample_given(self, x: Tensor, observed: Tensor, n: int = 1, generator: Random = None) -> Tensor:
        """n joint draws of the unobserved cells of each row: (n, B, D), equal to x where observed."""

    @abstractmethod
    def best_guess(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows with unobserved cells set to the mode (discrete) or mean (real) of their conditionals."""

    @abstractmethod
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells) as a one-dimensional family and its eta (B, P)."""


def refuse_nan(has_nan: Tensor) -> None:
    """Raise a ValueError if parameters of distributions are NaN."""
    if has_nan:
        reason = "its weights are too large, or the values that are given too far from those of training"
        raise ValueError(f"the model's answers are no numbers: {reason}")


def check_columns(x: Tensor, n_variables: int) -> None:
    """Raise a ValueError unless rows are (B, D)."""
    if x.ndim != 2 or x.shape[1] != n_variables:
        raise ValueError(f"expected rows of {n_variables} columns, got an array of shape {tuple(x.shape)}")


class Independent(Density):
    """Independent variables: p(x) = Π_i p(x_i), with one distribution of the family for each.

    Example:
        >>> from pynade.families import Bernoulli
        >>> coins = Independent.fitted(Bernoulli(), torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
        >>> coins.log_prob(torch.tensor([[0.0, 1.0]])).exp().item()
        0.375...
    """

    def __init__(self, family: Family, n_variables: int) -> None:
        super().__init__()
        self.family, self.n_variables = family, n_variables
        self.eta = nn.Parameter(torch.zeros(n_variables, family.n_params))

    @classmethod
    def fitted(cls, family: Family, x: Tensor) -> Independent:
        """Fit in closed form to rows x (N, D)."""
        model = cls(family, x.shape[1])
        model.eta.data.copy_(family.eta_from_marginal(x))
        return model

    def _log_prob(self, x: Tensor) -> Tensor:
        return self.family.log_prob(x, self.eta.expand(len(x), -1, -1)).sum(-1, dtype=torch.float64)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n independent exact draws (n, D)."""
        return self.family.sample(self.eta.expand(n, -1, -1), generator=generator)


class Mixture(Density):
    """p(x) = Σ_k w_k p_k(x) for any densities over the same variables.

    Args:
        components: the densities p_k.
        weights: positive numbers, which are normalised; None: equal weights.

    Example:
        >>> from pynade.families import Bernoulli
        >>> fair, sure = Independent(Bernoulli(), 2), Independent(Bernoulli(), 2)
        >>> _ = sure.eta.data.fill_(50.0)
        >>> round(Mixture([fair, sure]).log_prob(torch.ones(1, 2)).exp().item(), 6)
        0.625
    """

    components: Any  # nn.ModuleList of densities

    def __init__(self, components: Sequence[Density], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.n_variables, log_weights = check_components(components, weights)
        self.components, self.log_weights = nn.ModuleList(components), nn.Buffer(log_weights)

    def _log_prob(self, x: Tensor) -> Tensor:
        each = torch.stack([c._log_prob(x) for c in self.components], dim=-1)
        return torch.logsumexp(each + self.log_weights, dim=-1)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Draw a component for each row, then the row from it."""
        weights = self.log_weights.exp()
        choice = torch.multinomial(weights, n, replacement=True, generator=generator) if n else weights[:0]
        x = torch.empty(n, self.n_variables, dtype=self.dtype, device=self.device)
        for k, component in enumerate(self.components):
            rows = (choice == k).nonzero().squeeze(-1)
            if len(rows):
                x[rows] = component.sample(len(rows), generator).to(x.dtype)
        return x

    def check(self, x: Tensor) -> None:
        """Rows must be in the domain of every component."""
        for component in self.components:
            component.check(x)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the components."""
        return self.components[0].dtype

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {"components": list(self.components), "weights": self.log_weights.exp().tolist()}


def check_components(components: Sequence[Density], weights: Sequence[float] | None) -> tuple[int, Tensor]:
    """The number of variables of all components, and their normalised log-weights (K,), float64."""
    if not components:
        raise ValueError("a mixture needs at least one component")
    sizes = {c.n_variables for c in components}
    if len(sizes) > 1:
        raise ValueError(f"all components must have the same number of variables, not {sorted(sizes)}")
    try:
        w = [1.0] * len(components) if weights is None else [float(v) for v in weights]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        w = []
    if len(w) != len(components) or not all(0 < v < math.inf for v in w):
        raise ValueError("a mixture needs one positive finite weight for each component")
    return sizes.pop(), torch.tensor(w, dtype=torch.float64).log().log_softmax(0)  # (avoids overflow of sums)
