"""RNADE and its deep, order-agnostic form as scikit-learn estimators."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pynade.estimators.domain import RealTable
from pynade.estimators.gradient import FixedOrderEstimator
from pynade.estimators.orderless import OrderlessDensity
from pynade.families import Family
from pynade.nets import NADENet, Net


@dataclass(eq=False, repr=False)
class RNADE(RealTable, FixedOrderEstimator):
    """Real-valued NADE: one hidden layer, a fixed ordering, a mixture (or another law) per conditional.

    Args:
        hidden: H, hidden units.
        activation: "relu" (the paper's), "sigmoid" or "tanh".
        **parameters: see `RealTable` and `GradientEstimator`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(500, 1))
        >>> X = np.hstack([x, x**2 + 0.1 * rng.normal(size=x.shape)])  # a parabola
        >>> model = RNADE(hidden=32, n_components=5, epochs=100, random_state=0).fit(X)
        >>> bool(model.score(X) > -1.4)  # the best Gaussian has -3.1
        True
        >>> model.sample(3, random_state=1).shape
        (3, 2)
    """

    hidden: int = 200
    activation: str = "relu"
    patience: int | None = field(default=20, kw_only=True)

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        net = NADENet(
            n_variables,
            family.n_params,
            self.hidden,
            n_features=family.n_features,
            activation=self.activation,
            generator=generator,
        )
        return self._quiet(net)


@dataclass(eq=False, repr=False)
class DeepRNADE(RealTable, OrderlessDensity):
    """Deep, order-agnostic RNADE: any conditional, gaps filled, missing values in training too.

    Args:
        n_orderings: K, orderings whose densities are averaged in scores and samples.
        **parameters: see `RealTable`, `OrderlessDensity` and `GradientEstimator`.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 1))
        >>> X = np.hstack([x, -x, 2 * x]) + 0.1 * np.random.default_rng(1).normal(size=(500, 3))
        >>> model = DeepRNADE(hidden=(32, 32), n_components=3, epochs=60, random_state=0).fit(X)
        >>> filled = model.impute(np.array([[1.0, np.nan, np.nan]]))
        >>> bool(abs(filled[0, 1] + 1) < 0.3), bool(abs(filled[0, 2] - 2) < 0.5)
        (True, True)
    """

    n_orderings: int = 1

    def _default_orderings(self) -> int:
        return self.n_orderings

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        return self._quiet(super()._net(n_variables, family, generator))
