"""DeepNADE, EoNADE and DeepRNADE: one network for every ordering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.estimators.base import FitRequest
from pynade.estimators.cells import BinaryTable, RealTable
from pynade.estimators.net import OrderlessEstimator
from pynade.estimators.parameters import documented

if TYPE_CHECKING:
    pass


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

    _net_class = "MaskedMLP"

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
class DeepNADE(BinaryTable, FeedForwardEstimator):
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


@documented
@dataclass(eq=False, repr=False)
class EoNADE(BinaryTable, FeedForwardEstimator):
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


@documented
@dataclass(eq=False, repr=False)
class DeepRNADE(RealTable, FeedForwardEstimator):
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
