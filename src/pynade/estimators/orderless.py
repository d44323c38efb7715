"""DeepNADE and EoNADE: one network, every ordering, every question."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from pynade.control_variate import CorrectedEnsemble, corrected_ensemble
from pynade.estimators.base import torch_device
from pynade.estimators.domain import BinaryTable
from pynade.estimators.gradient import GradientEstimator
from pynade.estimators.questions import Questions
from pynade.evaluation import OrderingScores, score_orderings
from pynade.families import Family
from pynade.likelihood import Estimate, orderless_estimate
from pynade.models import Density, Orderless
from pynade.nets import AnyOrderNet, MaskedMLP, Net
from pynade.ordering import Ordering
from pynade.precision import fast_matmul
from pynade.training import Callback, pretrain


@dataclass(eq=False, repr=False)
class AnyOrderDensity(GradientEstimator, Questions):
    """What estimators of any-order nets share: training on random orderings, and every question afterwards.

    NaN marks a missing value, in training, scoring and queries alike.

    Attributes:
        stratified: spread the prefix lengths evenly over each minibatch.
    """

    stratified: bool = field(default=True, kw_only=True)
    patience: int | None = field(default=30, kw_only=True)  # the validation score is an estimate: wait longer

    @property
    def along(self) -> bool:
        """Whether the model has orderings of its own, rather than answers for any set of known columns."""
        return False

    def score_samples(self, X: Any, orderings: int | Ordering | None = None) -> np.ndarray:
        """Exact log p of each row, in nats: (N, D) -> (N,); missing cells are marginalised.

        Args:
            X: rows, NaN = missing.
            orderings: a number K or a batch of orderings: exact for that ensemble. None takes the
                estimator's own (one ordering, or its `n_orderings`). For a row with missing cells these
                are taken with its observed cells moved to the front.
        """
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        chosen = self.orderings(orderings)
        model = self._orderless()
        complete = ~np.isnan(rows).any(1)
        out = np.empty(len(rows))
        with fast_matmul():
            if complete.any():
                out[complete] = score_orderings(model, rows[complete], chosen).ensemble_rows()
            if not complete.all():
                out[~complete] = self._marginal(model, rows[~complete], chosen)
        return out

    def score_orderings(
        self,
        X: Any,
        orderings: int | Ordering,
        folder: Path | str | None = None,
        progress: Any = None,
        precision: str = "tf32",
    ) -> OrderingScores:
        """Exact log p of each complete row under each ordering (see `pynade.evaluation.score_orderings`)."""
        return score_orderings(
            self._orderless(),
            self._complete_rows(X),
            self.orderings(orderings),
            folder=folder,
            progress=progress,
            precision=precision,
        )

    def estimate(
        self, X: Any, draws: int = 16, random_state: int = 0, precision: str = "tf32", progress: Any = None
    ) -> Estimate:
        """Unbiased estimate of the mean log-likelihood over rows and all orderings: `draws` passes a row.

        It is for nets that run as a whole at every step (images), where an exact score of one ordering
        costs as many passes as there are variables; see `pynade.likelihood.orderless_estimate`. In float32 on
        a CPU too: the error of the draws is larger by far.
        """
        model = self._orderless().float()
        rows = self._rows(X, reset=False)
        return orderless_estimate(model, rows, draws, random_state, precision=precision, progress=progress)

    def corrected_ensemble(
        self,
        X: Any,
        orderings: int | Ordering,
        draws: int = 16,
        every: int = 10,
        folder: Path | str | None = None,
        progress: Any = None,
        precision: str = "tf32",
    ) -> CorrectedEnsemble:
        """The ensemble on all rows, exact on every tenth (see `pynade.control_variate`)."""
        return corrected_ensemble(
            self._orderless(),
            self._complete_rows(X),
            self.orderings(orderings),
            every=every,
            draws=draws,
            precision=precision,
            folder=folder,
            progress=progress,
        )

    def _complete_rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        if np.isnan(rows).any():
            raise ValueError(
                "scoring under given orderings needs complete rows; score_samples takes missing values"
            )
        return rows

    def orderings(self, k: int | Ordering | None = None) -> Ordering:
        """The first k of this estimator's random orderings; k orderings begin with the k-1 orderings."""
        check_is_fitted(self, "model_")
        if isinstance(k, Ordering):
            if k.n_variables != self.n_features_in_:
                raise ValueError(
                    f"the orderings have {k.n_variables} variables, the data {self.n_features_in_}"
                )
            return k if k.is_batch else Ordering.trusted(k.order[None])
        k = self._default_orderings() if k is None else k
        if k < 1:
            raise ValueError(f"the number of orderings must be at least 1, not {k}")
        return self._ordering(self.n_features_in_, torch.Generator().manual_seed(self.seed_), k)

    def density(self) -> Density:
        """The density of the estimator's own orderings, on its device."""
        chosen = self.orderings()
        model: Orderless = copy.deepcopy(self.model_).to(torch_device(self.device))
        return model.under(chosen[0]) if len(chosen) == 1 else model.ensemble(chosen)

    def _orderless(self) -> Orderless:
        model = self._asked()
        assert isinstance(model, Orderless)
        return model

    def _query_orderings(self) -> Ordering:
        return self.orderings()

    def _default_orderings(self) -> int:
        return 1

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Density | Orderless:
        self._ordering(net.n_variables, generator, k=self._default_orderings())  # refuses what is bad early
        assert isinstance(net, AnyOrderNet)
        return Orderless(net, family, self.stratified)


@dataclass(eq=False, repr=False)
class OrderlessDensity(AnyOrderDensity):
    """What DeepNADE and its relatives share: a feed-forward net, layer-wise pretraining.

    Attributes:
        hidden: units of each layer; an int for one layer.
        activation: "relu", "tanh", "sigmoid" or "silu".
        input_observed: tell the net which inputs are observed (False: the paper's "no input masks").
        residual: residual connections between layers of equal width.
        layer_norm: normalise every layer's pre-activations.
        dropout: share of hidden activations dropped in training.
        pretrain_epochs: epochs after each new layer of layer-wise pretraining (Algorithm 2 uses 20); 0 starts
            the whole net from random weights.
    """

    hidden: int | Sequence[int] = (500, 500)
    activation: str = "relu"
    input_observed: bool = True
    residual: bool = False
    layer_norm: bool = False
    dropout: float = 0.0
    pretrain_epochs: int = 0

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
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

    def _warm_up(
        self,
        model: Density | Orderless,
        train: np.ndarray,
        seed: int,
        folder: Path | str | None,
        callbacks: Sequence[Callback],
    ) -> Density | Orderless:
        if self.pretrain_epochs < 0:
            raise ValueError(f"pretrain_epochs must be at least 0, not {self.pretrain_epochs}")
        if self.pretrain_epochs == 0:
            return model
        assert isinstance(model, Orderless)
        return pretrain(
            model,
            train,
            self.how(),
            iterations=self.pretrain_epochs,
            seed=seed,
            folder=folder,
            callbacks=callbacks,
        )


@dataclass(eq=False, repr=False)
class DeepNADE(BinaryTable, OrderlessDensity):
    """Deep, order-agnostic NADE; scored and sampled along one ordering, asked any conditional.

    Args:
        **parameters: see `OrderlessDensity`, `GradientEstimator` and `BinaryTable`.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)  # four equal columns
        >>> model = DeepNADE(hidden=(32, 32), learning_rate=0.01, epochs=60, random_state=0).fit(X)
        >>> model.impute(np.array([[1.0, np.nan, np.nan, 1.0]])).tolist()
        [[1, 1, 1, 1]]
        >>> bool(model.conditional(2, given={0: 0}).mean() < 0.1)
        True
    """


@dataclass(eq=False, repr=False)
class EoNADE(BinaryTable, OrderlessDensity):
    """Ensemble of orderings of one deep NADE: p(x) is the mean of their probabilities.

    The number of orderings costs nothing in training and may be changed afterwards. With one hidden
    layer of 500 units and 16 orderings this is the paper's NADE-E.

    Args:
        n_orderings: K.
        **parameters: see `OrderlessDensity`, `GradientEstimator` and `BinaryTable`.

    Example:
        >>> import numpy as np
        >>> X = np.eye(4).repeat(50, axis=0)
        >>> model = EoNADE(hidden=32, n_orderings=4, epochs=5, random_state=0).fit(X)
        >>> model.score_samples(X[:2]).shape
        (2,)
    """

    n_orderings: int = 8

    def _default_orderings(self) -> int:
        return self.n_orderings
