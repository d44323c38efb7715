"""NADE, MADE and FVSBN as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pynade.estimators.domain import BinaryTable
from pynade.estimators.gradient import GradientEstimator
from pynade.families import Family
from pynade.models import Density, Ensemble, Orderless
from pynade.nets import FVSBNNet, MADENet, NADENet, Net


@dataclass(eq=False, repr=False)
class NADE(BinaryTable, GradientEstimator):
    """Neural autoregressive distribution estimator with one hidden layer and a fixed ordering.

    Args:
        hidden: H, hidden units.
        activation: "sigmoid" (the paper's), "relu" or "tanh".
        **parameters: see `GradientEstimator` and `BinaryTable`.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (200, 1)).repeat(5, axis=1)  # five equal columns
        >>> model = NADE(hidden=16, learning_rate=0.05, random_state=0).fit(X)
        >>> bool(model.score(X) > -1.0)  # the entropy is log 2 = 0.69; independent columns give 3.5
        True
        >>> model.sample(3, random_state=1).shape
        (3, 5)
    """

    hidden: int = 500
    activation: str = "sigmoid"
    learning_rate: float = field(default=0.003, kw_only=True)  # sigmoid units bear, and want, larger steps

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        return NADENet(n_variables, hidden=self.hidden, activation=self.activation, generator=generator)


@dataclass(eq=False, repr=False)
class MADE(BinaryTable, GradientEstimator):
    """Masked autoencoder for distribution estimation; with several orderings, the ensemble MADE-E.

    Args:
        hidden: units of each layer, or an int for one layer.
        activation: "relu", "sigmoid" or "tanh".
        direct: direct input-to-output connections.
        n_orderings: 1 for a fixed ordering; K > 1 trains K orderings (and masks) jointly and averages
            their probabilities.
        **parameters: see `GradientEstimator` and `BinaryTable`.

    Example:
        >>> import numpy as np
        >>> X = np.eye(4).repeat(50, axis=0)
        >>> model = MADE(hidden=(32,), n_orderings=2, epochs=20, random_state=0).fit(X)
        >>> model.score_samples(X[:3]).shape
        (3,)
    """

    hidden: int | Sequence[int] = (500,)
    activation: str = "relu"
    direct: bool = False
    n_orderings: int = 1

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        return MADENet(
            n_variables,
            hidden=self.hidden,
            activation=self.activation,
            direct=self.direct,
            generator=generator,
        )

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Density | Orderless:
        if self.n_orderings < 1:
            raise ValueError(f"n_orderings must be at least 1, not {self.n_orderings}")
        if self.n_orderings == 1:
            return super()._model(net, family, generator)
        return Ensemble(net, family, self._ordering(net.n_variables, generator, k=self.n_orderings))


@dataclass(eq=False, repr=False)
class FVSBN(BinaryTable, GradientEstimator):
    """Fully visible sigmoid belief network: one logistic regression per variable.

    Args:
        **parameters: see `GradientEstimator` and `BinaryTable`.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (100, 3))
        >>> round(FVSBN(random_state=0, epochs=5).fit(X).score(X), 1)  # three fair coins: 3 log 2 = 2.08
        -2.1
    """

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        return FVSBNNet(n_variables)
