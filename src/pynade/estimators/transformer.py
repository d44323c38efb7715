"""Transformers over the columns of a table, of real numbers or of zeros and ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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
