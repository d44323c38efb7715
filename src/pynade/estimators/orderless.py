"""DeepNADE, EoNADE and DeepRNADE: one network for every ordering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.estimators.base import FitRequest
from pynade.estimators.cells import Binary, RealFamily
from pynade.estimators.fixed_order import real_cells
from pynade.estimators.net import OrderlessEstimator, small_output
from pynade.estimators.parameters import documented

if TYPE_CHECKING:
    import torch

    from pynade.families import Family
    from pynade.nets import Net


@dataclass(eq=False, repr=False)
class FeedForwardEstimator(OrderlessEstimator):
    """Abstract estimator of a feed-forward net for every ordering."""

    hidden: int | Sequence[int] = (500, 500)
    activation: str = "relu"
    input_observed: bool = True
    residual: bool = False
    layer_norm: bool = False
    dropout: float = 0.0
    pretrain_epochs: int = 0

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        from pynade.nets import MaskedMLP

        return MaskedMLP(
            n_variables,
            family.n_params,
            n_features=family.n_features,
            hidden=self.hidden,
            activation=self.activation,
            input_observed=self.input_observed,
            residual=self.residual,
            layer_norm=self.layer_norm,
            dropout=self.dropout,
            generator=generator,
        )

    def _pretrained(self, model: Any, train: np.ndarray, seed: int, request: FitRequest) -> Any:
        from pynade.training import pretrain

        if self.pretrain_epochs < 0:
            raise ValueError(f"pretrain_epochs must be at least 0, not {self.pretrain_epochs}")
        if self.pretrain_epochs == 0:
            return model
        return pretrain(
            model,
            train,
            self.options(),
            epochs=self.pretrain_epochs,
            seed=seed,
            folder=request.folder,
            callbacks=request.callbacks,
        )


@documented
@dataclass(eq=False, repr=False)
class DeepNADE(FeedForwardEstimator):
    """Deep, order-agnostic NADE of binary data: scored along one ordering, any conditional.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)  # four equal columns
        >>> model = DeepNADE(hidden=(32, 32), learning_rate=0.01, epochs=60, random_state=0).fit(X)
        >>> model.impute(np.array([[1.0, np.nan, np.nan, 1.0]])).tolist()
        [[1, 1, 1, 1]]
        >>> bool(model.conditional(2, given={0: 0}).mean() < 0.1)
        True
    """

    binarize: float | None = field(default=None, kw_only=True)

    def _cells(self) -> Binary:
        return Binary(self.binarize)


@documented
@dataclass(eq=False, repr=False)
class EoNADE(FeedForwardEstimator):
    """Ensemble of orderings of one deep NADE: p(x) is the mean of their probabilities.

    The number of orderings costs nothing in training and may be changed afterwards. With one hidden
    layer of 500 units and 16 orderings this is the paper's NADE-E.

    Example:
        >>> import numpy as np
        >>> X = np.eye(4).repeat(50, axis=0)
        >>> model = EoNADE(hidden=32, n_orderings=4, epochs=5, random_state=0).fit(X)
        >>> model.score_samples(X[:2]).shape
        (2,)
    """

    n_orderings: int = 8
    binarize: float | None = field(default=None, kw_only=True)

    def _cells(self) -> Binary:
        return Binary(self.binarize)


@documented
@dataclass(eq=False, repr=False)
class DeepRNADE(FeedForwardEstimator):
    """Deep, order-agnostic RNADE of real numbers: any conditional, gaps filled, missing values in training.

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
    family: str = field(default="mog", kw_only=True)
    n_components: int = field(default=10, kw_only=True)
    standardise: bool = field(default=True, kw_only=True)
    sigma_floor: float = field(default=0.001, kw_only=True)
    scale_mean_gradient: bool = field(default=False, kw_only=True)

    def _cells(self) -> RealFamily:
        return real_cells(self)

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        return small_output(super()._net(n_variables, family, generator))
