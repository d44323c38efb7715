"""NADE, MADE and FVSBN as scikit-learn estimators."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from pynade.classical import nade_from_rbm
from pynade.estimators.domain import BinaryTable
from pynade.estimators.gradient import FixedOrderEstimator
from pynade.families import Family
from pynade.models import Density, Ensemble, Orderless
from pynade.nets import FVSBNNet, MADENet, NADENet, Net
from pynade.training import History

if TYPE_CHECKING:
    from pynade.estimators.rbm import RBM


@dataclass(eq=False, repr=False)
class NADE(BinaryTable, FixedOrderEstimator):
    """Neural autoregressive distribution estimator with one hidden layer and a fixed ordering.

    Args:
        hidden: H, hidden units.
        activation: "sigmoid" (the paper's), "relu" or "tanh".
        warm_start: `fit` goes on from the weights and the ordering of the last fit (or of `from_rbm`).
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
    warm_start: bool = field(default=False, kw_only=True)

    @classmethod
    def from_rbm(cls, rbm: RBM, **parameters: Any) -> Self:
        """A fitted NADE that starts where an RBM ended (section "Relationship with the RBM").

        Each conditional is one mean-field pass in the RBM: its W, b and c, and V = Wᵀ. It can be used as it
        is or trained on: `warm_start` is set, so that `fit` begins from these weights. Whether that beats
        random weights was measured by benchmarks/from_rbm.py, see results/benchmarks/from-rbm.json.

        Args:
            rbm: a fitted `pynade.RBM`.
            **parameters: of the NADE, such as `ordering`, `random_state` or `learning_rate`; its hidden units
                are the RBM's.

        Example:
            >>> import numpy as np
            >>> from pynade import RBM
            >>> X = np.random.default_rng(0).integers(0, 2, (200, 1)).repeat(5, axis=1)
            >>> rbm = RBM(n_hidden=8, learning_rate=0.05, epochs=20, random_state=0).fit(X)
            >>> model = NADE.from_rbm(rbm, learning_rate=0.05, random_state=0)
            >>> before = model.score(X)
            >>> model.fit(X).score(X) > before
            True
        """
        if not hasattr(rbm, "machine"):
            raise TypeError(
                f"from_rbm takes a fitted pynade.RBM, not {type(rbm).__name__}; a machine alone is what "
                "pynade.models.nade_from_rbm takes"
            )
        machine = rbm.machine().float()
        own: dict[str, Any] = {"hidden": machine.n_hidden, "activation": "sigmoid", "warm_start": True}
        for name in own.keys() & parameters.keys():
            raise ValueError(f"{name} is {own[name]!r} in a NADE made from this RBM, and cannot be given")
        model = cls(**{"binarize": rbm.binarize} | own | parameters)
        seed = model._seed()
        ordering = model._ordering(machine.n_visible, torch.Generator().manual_seed(seed))
        model.n_features_in_ = machine.n_visible
        if hasattr(rbm, "feature_names_in_"):
            model.feature_names_in_ = rbm.feature_names_in_
        return model.adopt(nade_from_rbm(machine, ordering), History(stopped="made from an RBM"), seed)

    def build(self, train: np.ndarray, seed: int) -> Density | Orderless:
        """The untrained model for rows like `train`; with `warm_start`, a copy of the fitted one."""
        if not self.warm_start or not hasattr(self, "model_"):
            return super().build(train, seed)
        was = self.model_.n_variables, self.model_.net.hidden
        if was != (train.shape[1], self.hidden):
            raise ValueError(
                f"a warm start keeps the {was[0]} variables and {was[1]} hidden units of the last fit, "
                f"and cannot have {train.shape[1]} and {self.hidden}"
            )
        model: Density = copy.deepcopy(self.model_)
        return model

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        return NADENet(n_variables, hidden=self.hidden, activation=self.activation, generator=generator)


@dataclass(eq=False, repr=False)
class MADE(BinaryTable, FixedOrderEstimator):
    """Masked autoencoder for distribution estimation; with several orderings, the ensemble MADE-E.

    On the command line MADE-E has a name of its own, `--model made-e`: this estimator with 32 orderings.

    Args:
        hidden: units of each layer, or an int for one layer.
        activation: "relu", "sigmoid" or "tanh".
        direct: direct input-to-output connections.
        input_observed: give the net weights for *which* variables come before, beside those for their values;
            worth having with several orderings (see `MADENet`).
        dropout: share of hidden activations dropped in training.
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
    input_observed: bool = False
    dropout: float = 0.0
    n_orderings: int = 1

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        return MADENet(
            n_variables,
            hidden=self.hidden,
            activation=self.activation,
            direct=self.direct,
            input_observed=self.input_observed,
            dropout=self.dropout,
            generator=generator,
        )

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Density | Orderless:
        if self.n_orderings < 1:
            raise ValueError(f"n_orderings must be at least 1, not {self.n_orderings}")
        if self.n_orderings == 1:
            return super()._model(net, family, generator)
        return Ensemble(net, family, self._ordering(net.n_variables, generator, k=self.n_orderings))


@dataclass(eq=False, repr=False)
class FVSBN(BinaryTable, FixedOrderEstimator):
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
