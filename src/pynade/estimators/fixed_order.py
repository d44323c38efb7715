"""NADE, RNADE, MADE and FVSBN as scikit-learn estimators."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pynade.estimators.cells import BinaryTable, RealTable
from pynade.estimators.net import NetEstimator
from pynade.estimators.parameters import documented

if TYPE_CHECKING:
    import torch

    from pynade.estimators.rbm import RBM
    from pynade.families import Family
    from pynade.models import Model
    from pynade.nets import Net


@documented
@dataclass(eq=False, repr=False)
class NADE(BinaryTable, NetEstimator):
    """Neural autoregressive distribution estimator of binary data: one hidden layer, a fixed ordering.

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
    learning_rate: float = field(default=0.003, kw_only=True)  # sigmoid units need larger steps
    warm_start: bool = field(default=False, kw_only=True)

    _net_class = "NADENet"

    @classmethod
    def from_rbm(cls, rbm: RBM, **parameters: Any) -> Self:
        """A fitted NADE that starts where an RBM ended (section "Relationship with the RBM").

        Each conditional is one mean-field pass in the RBM: its W, b and c, and V = Wᵀ. It can be used as it
        is or trained on: `warm_start` is set, so that `fit` begins from these weights.

        Args:
            rbm: a fitted `pynade.RBM`.
            **parameters: of the NADE, such as `ordering`, `random_state` or `learning_rate`; its hidden units
                are the RBM's.

        Example:
            >>> import numpy as np
            >>> from pynade import RBM
            >>> X = np.random.default_rng(0).integers(0, 2, (200, 1)).repeat(5, axis=1)
            >>> rbm = RBM(hidden=8, learning_rate=0.05, epochs=20, random_state=0).fit(X)
            >>> model = NADE.from_rbm(rbm, learning_rate=0.05, random_state=0)
            >>> before = model.score(X)
            >>> model.fit(X).score(X) > before
            True
        """
        import torch

        from pynade.classical import nade_from_rbm
        from pynade.training import History

        if not hasattr(rbm, "machine"):
            raise TypeError(
                f"from_rbm takes a fitted pynade.RBM, not {type(rbm).__name__}; a machine alone is what "
                "pynade.classical.nade_from_rbm takes"
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

    def build(self, train: np.ndarray, seed: int) -> Model:
        """The untrained model for rows like `train`; with `warm_start`, a copy of the fitted one."""
        if not self.warm_start or not hasattr(self, "model_"):
            return super().build(train, seed)
        was = self.model_.n_variables, self.model_.net.hidden
        if was != (train.shape[1], self.hidden):
            raise ValueError(
                f"a warm start keeps the {was[0]} variables and {was[1]} hidden units of the last fit, "
                f"and cannot have {train.shape[1]} and {self.hidden}"
            )
        model: Model = copy.deepcopy(self.model_)
        return model


@documented
@dataclass(eq=False, repr=False)
class RNADE(RealTable, NetEstimator):
    """Real-valued NADE: one hidden layer, a fixed ordering, a mixture (or another family) per conditional.

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

    _net_class = "NADENet"


@documented
@dataclass(eq=False, repr=False)
class MADE(BinaryTable, NetEstimator):
    """Masked autoencoder for distribution estimation; with several orderings, the ensemble MADE-E.

    On the command line MADE-E has a name of its own, `--model made-e`: this estimator with 32 orderings.

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

    _net_class = "MADENet"

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Model:
        from pynade.models import Ensemble

        if self.n_orderings < 1:
            raise ValueError(f"n_orderings must be at least 1, not {self.n_orderings}")
        if self.n_orderings == 1:
            return super()._model(net, family, generator)
        return Ensemble(net, family, self._ordering(net.n_variables, generator, k=self.n_orderings))


@documented
@dataclass(eq=False, repr=False)
class FVSBN(BinaryTable, NetEstimator):
    """Fully visible sigmoid belief network: one logistic regression per variable.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (100, 3))
        >>> round(FVSBN(random_state=0, epochs=5).fit(X).score(X), 1)  # three fair coins: 3 log 2 = 2.08
        -2.1
    """

    _net_class = "FVSBNNet"
