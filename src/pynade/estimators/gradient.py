"""Estimators of nets that learn by gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.utils import check_random_state

from pynade.estimators.base import DensityEstimator, torch_device
from pynade.estimators.questions import impute_along
from pynade.families import Family
from pynade.models import Autoregressive, Density, Orderless
from pynade.nets import Net
from pynade.ordering import Ordering
from pynade.particles import PARTICLES
from pynade.training import Callback, Gradient, History, fit

if TYPE_CHECKING:
    from pynade.tables.source import RowSource

_HOW = {f.name for f in fields(Gradient)}


@dataclass(kw_only=True, eq=False, repr=False)
class GradientEstimator(DensityEstimator):
    """What the estimators of nets share; a concrete one says how to build its net and its model.

    Training parameters are those of `pynade.training.Gradient`. The others:

    Attributes:
        ordering: "random" (seeded by random_state), "natural", a permutation of 0 … D-1, or an `Ordering`.
        validation_fraction: share of the rows held out for early stopping when no X_valid is given;
            0 trains on everything for all epochs.
        device: "auto" takes a GPU if there is one, else the CPU; or a torch device such as "cuda:1".
        random_state: seeds the ordering, the initial weights and the shuffling.
    """

    ordering: str | Sequence[int] | Ordering = "random"
    optimizer: str = "adam"
    learning_rate: float = 0.001
    schedule: str = "constant"
    warm_up: int = 0
    gamma: float = 0.0
    momentum: float = 0.0
    momentum_after: int = 0
    weight_decay: float = 0.0
    decay_on: str = "all"
    clip: float | None = None
    batch_size: int = 100
    epochs: int = 200
    updates_per_epoch: int | None = None
    patience: int | None = 10
    ema: float | None = None
    precision: str = "float32"
    stop_at_train: float | None = None
    score_train: int = 0

    @abstractmethod
    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        """The untrained net."""

    @abstractmethod
    def _family(self, train: np.ndarray) -> Family:
        """What is said about each variable, for rows like `train`."""

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Density | Orderless:
        """The model over the net; one fixed ordering unless an estimator says otherwise."""
        return Autoregressive(net, family, self._ordering(net.n_variables, generator))

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_valid: Any = None,
        folder: Path | str | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        source: RowSource | None = None,
    ) -> Self:
        """Fit by maximum likelihood, with early stopping on validation rows.

        Args:
            X: rows (N, D): array or data frame.
            y: ignored.
            X_valid: rows for early stopping; without them a seeded share of X is held out.
            folder: keep metrics.jsonl and checkpoints here (see `pynade.training.fit`).
            resume: go on from the checkpoint in `folder`.
            callbacks: told of progress (see `pynade.training.fit`).
            source: draw fresh training rows from here, `updates_per_epoch` minibatches an epoch; X then only
                sets what is taken from the data before training (scales, initial biases).
        """
        how = self.how()
        rows = self._rows(X, reset=True)
        seed = self._seed()
        train, valid = (
            self._hold_out(rows, seed) if X_valid is None else (rows, self._rows(X_valid, reset=False))
        )
        model = self.build(train, seed).to(torch_device(self.device))
        if not resume:
            model = self._warm_up(model, train, seed, folder, callbacks)
        history = fit(
            model,
            train if source is None else source,
            valid,
            how,
            seed=seed,
            folder=folder,
            resume=resume,
            callbacks=callbacks,
        )
        return self.adopt(model, history, seed)

    def adopt(self, model: Density | Orderless, history: History, seed: int) -> Self:
        """Take a trained model as this estimator's own."""
        self.model_: Any = model.cpu()
        self.seed_ = seed
        self.history_ = history
        self.n_iter_ = len(history.epochs)
        return self

    def check_request(self, X: Any, X_valid: Any = None) -> None:
        """Raise whatever `fit` would raise about its input and parameters, without training."""
        self.how()
        torch_device(self.device)
        check_random_state(self.random_state)
        train = self._rows(X, reset=True)
        if X_valid is not None:
            self._rows(X_valid, reset=False)
        self.build(train, seed=0)

    def _warm_up(
        self,
        model: Density | Orderless,
        train: np.ndarray,
        seed: int,
        folder: Path | str | None,
        callbacks: Sequence[Callback],
    ) -> Density | Orderless:
        """What is done to the untrained model before training proper: nothing, unless overridden."""
        return model

    def build(self, train: np.ndarray, seed: int) -> Density | Orderless:
        """The untrained model for rows like `train`; its output bias starts at their marginals."""
        generator = torch.Generator().manual_seed(seed)
        family = self._family(train)
        net = self._net(train.shape[1], family, generator)
        net.set_output_bias(family.eta_from_marginal(torch.as_tensor(train)))
        return self._model(net, family, generator)

    def how(self) -> Gradient:
        """The training parameters as an option object."""
        return Gradient(**{name: getattr(self, name) for name in sorted(_HOW)})

    def _ordering(self, n_variables: int, generator: torch.Generator, k: int | None = None) -> Ordering:
        """One ordering, or k of them: the first as asked, the rest random."""
        if isinstance(self.ordering, Ordering):
            first = self.ordering
        elif isinstance(self.ordering, str):
            if self.ordering not in ("random", "natural"):
                raise ValueError(f"ordering is 'random', 'natural' or a permutation, not {self.ordering!r}")
            if self.ordering == "random":
                return Ordering.random(n_variables, k, generator)
            first = Ordering.natural(n_variables)
        else:
            first = Ordering([int(i) for i in self.ordering])
        if first.n_variables != n_variables:
            raise ValueError(f"the ordering has {first.n_variables} variables, the data {n_variables}")
        if first.is_batch:
            raise ValueError(f"ordering is one permutation, not a batch of {len(first)}")
        if k is None:
            return first
        others = Ordering.random(n_variables, k, generator)
        return Ordering(torch.cat((first.order[None], others.order[1:])))


@dataclass(kw_only=True, eq=False, repr=False)
class FixedOrderEstimator(GradientEstimator):
    """What the estimators of nets with a fixed ordering (or a few of them, averaged) share."""

    def impute(
        self, X: Any, n: int | None = None, random_state: Any = None, particles: int = PARTICLES
    ) -> np.ndarray:
        """Fill missing cells (NaN) by an estimate, since a fixed ordering puts them before observed ones.

        Many weighted walkers complete each row (see `pynade.particles`). Where observed cells come after
        missing ones and say much about them, few walkers count, and a warning says so. Only draws for rows
        whose observed cells come first in the ordering are exact; an orderless model (DeepNADE, DeepRNADE)
        needs no walkers, and learns from rows with gaps.

        Args:
            X: rows with NaN. With `binarize`, observed cells come back thresholded.
            n: None fills in each cell's best guess given the observed cells (the likelier value of a binary
                cell, the mean of a real one), (N, D); a number gives that many joint draws, (n, N, D), for
                multiple imputation.
            random_state: seed of the walkers, of the best guess too.
            particles: walkers of each row; more are better and take longer. An ensemble shares them out
                among its orderings.
        """
        return impute_along(self, X, n, random_state, particles)
