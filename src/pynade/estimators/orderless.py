"""One network for every ordering: DeepNADE, EoNADE, DeepRNADE, transformers over the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pynade.estimators.base import FitRequest
from pynade.estimators.cells import BinaryTable, RealTable
from pynade.estimators.net import NetEstimator, OrderlessEstimator
from pynade.estimators.parameters import documented

if TYPE_CHECKING:
    import torch

    from pynade.families import Family
    from pynade.models import Model
    from pynade.nets import Net
    from pynade.ordering import Ordering


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


@dataclass(eq=False, repr=False)
class TransformerEstimator(OrderlessEstimator):
    """Abstract estimator of a transformer: one token per column.

    There are three. By default a conditional depends on *which* other columns are known, and every question
    has an exact answer at the price of a pass of the net for every column that is scored. A causal one gives
    the conditionals of all columns along an ordering in one pass: `causal` learns all orderings,
    `fixed_order` one.
    """

    width: int = 256
    depth: int = 6
    heads: int = 8
    mlp_ratio: int = 4
    dropout: float = 0.0
    fixed_order: bool = False
    causal: bool = False
    n_orderings: int = 1

    @property
    def takes_missing(self) -> bool:
        """A causal transformer needs complete rows."""
        return not (self.fixed_order or self.causal)

    @property
    def _net_class(self) -> str:  # type: ignore[override]
        return "Transformer" if self.takes_missing else "CausalTransformer"

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Model:
        import torch

        from pynade.models import Ensemble

        if self.fixed_order and self.causal:
            raise ValueError("give fixed_order=True or causal=True, not both: one ordering, or all of them")
        if self.fixed_order and self.n_orderings != 1:
            raise ValueError(
                f"fixed_order=True has one ordering, so n_orderings is 1, not {self.n_orderings}"
            )
        if self.fixed_order:
            return NetEstimator._model(self, net, family, generator)
        if self.causal:
            again = torch.Generator().manual_seed(generator.initial_seed())  # those of `orderings`
            chosen = self._ordering(net.n_variables, again, k=self.n_orderings)
            return Ensemble(net, family, chosen, fresh=True)
        return super()._model(net, family, generator)

    def orderings(self, k: int | Ordering | None = None) -> Ordering:
        """The first k of this estimator's random orderings; a fixed one has no others."""
        if self.fixed_order:
            raise ValueError("a causal transformer has one ordering only; fixed_order=False has all of them")
        return super().orderings(k)


@documented
@dataclass(eq=False, repr=False)
class TransformerNADE(RealTable, TransformerEstimator):
    """Transformer over the columns of a table of real numbers, for any ordering or along a fixed one.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(400, 1))
        >>> X = np.hstack([x, -x]) + 0.1 * np.random.default_rng(1).normal(size=(400, 2))
        >>> small = {"width": 16, "depth": 1, "heads": 2, "n_components": 2, "random_state": 0}
        >>> model = TransformerNADE(**small, fixed_order=True, epochs=60, learning_rate=0.01).fit(X)
        >>> bool(model.score(X) > -1.5)  # independent columns: -2.8
        True
    """

    _small_output: ClassVar[bool] = False


@documented
@dataclass(eq=False, repr=False)
class BinaryTransformerNADE(BinaryTable, TransformerEstimator):
    """Transformer over the columns of a table of zeros and ones, for any ordering or along a fixed one.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)  # four equal columns
        >>> small = {"width": 16, "depth": 1, "heads": 2, "random_state": 0}
        >>> model = BinaryTransformerNADE(**small, epochs=40, learning_rate=0.01).fit(X)
        >>> model.impute(np.array([[1.0, np.nan, np.nan, 1.0]])).tolist()
        [[1, 1, 1, 1]]
    """
