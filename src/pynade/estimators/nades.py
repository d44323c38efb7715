"""Estimators of nets over tables, along a fixed ordering or for any ordering."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pynade.estimators.cells import BinaryTable, RealTable
from pynade.estimators.modules import families, models, nets, ordering, torch
from pynade.estimators.net import NetEstimator, OrderlessEstimator
from pynade.estimators.parameters import documented
from pynade.estimators.questions import Orders
from pynade.training.history import History

if TYPE_CHECKING:
    from pynade.estimators.rbm import RBM


@documented
class NADE(BinaryTable, NetEstimator):
    """Neural autoregressive distribution estimator of binary data: one hidden layer, a fixed ordering.

    Example:
        >>> X = np.random.default_rng(0).integers(0, 2, (200, 1)).repeat(5, axis=1)  # five equal columns
        >>> model = NADE(hidden=16, learning_rate=0.05, random_state=0).fit(X)
        >>> bool(model.score(X) > -1.0)  # the entropy is log 2 = 0.69; independent columns give 3.5
        True
        >>> model.sample(3, random_state=1).shape
        (3, 5)
    """

    hidden: int = 500
    activation: str = "sigmoid"
    learning_rate: float = field(default=0.003, kw_only=True)  # sigmoid units need larger steps
    warm_start: bool = field(default=False, kw_only=True)

    _net_class = "NADENet"

    @classmethod
    def from_rbm(cls, rbm: RBM, **parameters: Any) -> Self:
        """A fitted NADE with the weights of an RBM (section "Relationship with the RBM").

        Each conditional is one mean-field pass in the RBM: its W, b and c, and V = Wᵀ. The model can be used
        as it is or trained further: `warm_start` is set, so that `fit` starts from these weights.

        Args:
            rbm: a fitted `pynade.RBM`.
            **parameters: of the NADE, such as `ordering`, `random_state` or `learning_rate`; the number of
                hidden units is that of the RBM.

        Example:
            >>> from pynade import RBM
            >>> X = np.random.default_rng(0).integers(0, 2, (200, 1)).repeat(5, axis=1)
            >>> rbm = RBM(hidden=8, learning_rate=0.05, epochs=20, random_state=0).fit(X)
            >>> model = NADE.from_rbm(rbm, learning_rate=0.05, random_state=0)
            >>> before = model.score(X)
            >>> model.fit(X).score(X) > before
            True
        """
        from pynade.classical import nade_from_rbm

        if not hasattr(rbm, "machine"):
            raise TypeError(
                f"from_rbm takes a fitted pynade.RBM, not {type(rbm).__name__}; a machine alone is what "
                "pynade.classical.nade_from_rbm takes"
            )
        machine = rbm.machine().float()
        fixed: dict[str, Any] = {"hidden": machine.n_hidden, "activation": "sigmoid", "warm_start": True}
        for name in fixed.keys() & parameters.keys():
            raise ValueError(f"{name} is {fixed[name]!r} in a NADE made from this RBM, and cannot be given")
        model = cls(**{"binarize": rbm.binarize} | fixed | parameters)
        seed = model._seed()
        ordering = model._ordering(machine.n_visible, torch.Generator().manual_seed(seed))
        model._remember(machine.n_visible, rbm._names(), rbm.frame_)
        return model.adopt(nade_from_rbm(machine, ordering), History(stopped="made from an RBM"), seed)

    def build(self, train: np.ndarray, seed: int) -> Any:
        """The untrained model for these training rows; with `warm_start`, a copy of the fitted model."""
        if not self.warm_start or not hasattr(self, "model_"):
            return super().build(train, seed)
        sizes = self.model_.n_variables, self.model_.net.hidden
        if sizes != (train.shape[1], self.hidden):
            raise ValueError(
                f"a warm start keeps the {sizes[0]} variables and {sizes[1]} hidden units of the last fit, "
                f"and cannot have {train.shape[1]} and {self.hidden}"
            )
        return copy.deepcopy(self.model_)


@documented
class RNADE(RealTable, NetEstimator):
    """Real-valued NADE: one hidden layer, a fixed ordering, a mixture (or another family) per conditional.

    Example:
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

    _net_class = "NADENet"


@documented
class MADE(BinaryTable, NetEstimator):
    """Masked autoencoder for distribution estimation; with several orderings, the ensemble MADE-E.

    On the command line, `--model made-e` is this estimator with 32 orderings.

    Example:
        >>> X = np.eye(4).repeat(50, axis=0)
        >>> model = MADE(hidden=(32,), n_orderings=2, epochs=20, random_state=0).fit(X)
        >>> model.score_samples(X[:3]).shape
        (3,)
    """

    hidden: int | Sequence[int] = (500,)
    activation: str = "relu"
    direct: bool = False
    input_observed: bool = False
    dropout: float = 0.0
    n_orderings: int = 1

    _net_class = "MADENet"


@documented
class FVSBN(BinaryTable, NetEstimator):
    """Fully visible sigmoid belief network: one logistic regression per variable.

    Example:
        >>> X = np.random.default_rng(0).integers(0, 2, (100, 3))
        >>> round(FVSBN(random_state=0, epochs=5).fit(X).score(X), 1)  # three fair coins: 3 log 2 = 2.08
        -2.1
    """

    _net_class = "FVSBNNet"


@dataclass(eq=False, repr=False)
class FeedForwardEstimator(OrderlessEstimator):
    """Abstract estimator of a feed-forward net for any ordering."""

    hidden: int | Sequence[int] = (500, 500)
    activation: str = "relu"
    input_observed: bool = True
    residual: bool = False
    layer_norm: bool = False
    dropout: float = 0.0
    pretrain_epochs: int = 0

    _net_class = "MaskedMLP"


@documented
class DeepNADE(BinaryTable, FeedForwardEstimator):
    """Deep, order-agnostic NADE of binary data: every conditional; scores under one ordering.

    Example:
        >>> X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)  # four equal columns
        >>> model = DeepNADE(hidden=(32, 32), learning_rate=0.01, epochs=60, random_state=0).fit(X)
        >>> model.impute(np.array([[1.0, np.nan, np.nan, 1.0]])).tolist()
        [[1, 1, 1, 1]]
        >>> bool(model.conditional(2, given={0: 0}).mean() < 0.1)
        True
    """


@documented
class EoNADE(BinaryTable, FeedForwardEstimator):
    """Ensemble of orderings of one deep NADE: p(x) is the mean of their probabilities.

    The number of orderings has no effect on training and may be changed afterwards. With one hidden layer
    of 500 units and 16 orderings this is the paper's NADE-E.

    Example:
        >>> X = np.eye(4).repeat(50, axis=0)
        >>> model = EoNADE(hidden=32, n_orderings=4, epochs=5, random_state=0).fit(X)
        >>> model.score_samples(X[:2]).shape
        (2,)
    """

    n_orderings: int = 8


@documented
class DeepRNADE(RealTable, FeedForwardEstimator):
    """Deep, order-agnostic RNADE of real numbers: every conditional; missing values, also in training.

    Example:
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
    """Abstract estimator of a transformer with one token per column.

    By default every query has an exact answer, and a score takes one pass of the net per column. A causal
    transformer computes all conditionals along an ordering in one pass; it is trained on random orderings
    (`causal`) or on a single one (`fixed_order`).
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
    def takes_missing(self) -> bool:  # type: ignore[override]
        """A causal transformer needs complete rows."""
        return not (self.fixed_order or self.causal)

    @property
    def _net_class(self) -> str:  # type: ignore[override]
        return "Transformer" if self.takes_missing else "CausalTransformer"

    def _model(self, net: nets.Net, family: families.Family, generator: torch.Generator) -> models.Model:
        if self.fixed_order and self.causal:
            raise ValueError("give fixed_order=True or causal=True, not both: one ordering, or all of them")
        if self.fixed_order and (k := self.n_orderings) != 1:
            raise ValueError(f"fixed_order=True has one ordering, so n_orderings is 1, not {k}")
        if self.fixed_order:
            return NetEstimator._model(self, net, family, generator)
        if self.causal:
            restarted = torch.Generator().manual_seed(generator.initial_seed())  # as in `orderings`
            orders = self._ordering(net.n_variables, restarted, k=self.n_orderings)
            return models.Ensemble(net, family, orders, fresh=True)
        return super()._model(net, family, generator)

    def orderings(self, k: Orders | None = None) -> ordering.Ordering:
        """The first k orderings of this estimator's fixed random sequence; an error with `fixed_order`.

        Args:
            k: their number, or a batch of orderings that is returned instead; None takes `n_orderings`.
        """
        if self.fixed_order:
            raise ValueError("a causal transformer has one ordering only; fixed_order=False has all of them")
        return super().orderings(k)


@documented
class TransformerNADE(RealTable, TransformerEstimator):
    """Transformer over the columns of a table of real numbers, for any ordering or along a fixed one.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(400, 1))
        >>> X = np.hstack([x, -x]) + 0.1 * np.random.default_rng(1).normal(size=(400, 2))
        >>> small = {"width": 16, "depth": 1, "heads": 2, "n_components": 2, "random_state": 0}
        >>> model = TransformerNADE(**small, fixed_order=True, epochs=60, learning_rate=0.01).fit(X)
        >>> bool(model.score(X) > -1.5)  # independent columns: -2.8
        True
    """

    _small_output: ClassVar[bool] = False


@documented
class BinaryTransformerNADE(BinaryTable, TransformerEstimator):
    """Transformer over the columns of a table of zeros and ones, for any ordering or along a fixed one.

    Example:
        >>> X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)  # four equal columns
        >>> small = {"width": 16, "depth": 1, "heads": 2, "random_state": 0}
        >>> model = BinaryTransformerNADE(**small, epochs=40, learning_rate=0.01).fit(X)
        >>> model.impute(np.array([[1.0, np.nan, np.nan, 1.0]])).tolist()
        [[1, 1, 1, 1]]
    """
