"""The scikit-learn door: arrays or data frames in, NumPy out.

Estimators are dataclasses, so the constructor stores and does nothing else, and each parameter is
declared, typed and defaulted once. What they share is here; a concrete one says how to build its model.
"""

from __future__ import annotations

import copy
import operator
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from pynade.families import Bernoulli
from pynade.learn import Callback, Gradient, fit
from pynade.likelihood import row_log_probs
from pynade.models import Autoregressive, Density, Orderless
from pynade.nets import Net
from pynade.ordering import Ordering
from pynade.store import save_density

_HOW = {f.name for f in fields(Gradient)}


@dataclass(kw_only=True, eq=False, repr=False)
class BinaryDensity(DensityMixin, BaseEstimator):
    """What the estimators for binary tables share.

    Training parameters are those of `pynade.learn.Gradient`. The others:

    Attributes:
        ordering: "random" (seeded by random_state), "natural", a permutation of 0 … D-1, or an `Ordering`.
        validation_fraction: share of the rows held out for early stopping when no X_valid is given;
            0 trains on everything for all epochs.
        binarize: threshold; values above it become 1, the others 0. None expects exact 0/1.
        device: "auto" takes a GPU if there is one, else the CPU; or a torch device such as "cuda:1".
        random_state: seeds the ordering, the initial weights and the shuffling.
    """

    ordering: str | Sequence[int] | Ordering = "random"
    optimizer: str = "adam"
    learning_rate: float = 0.001
    schedule: str = "constant"
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
    stop_at_train: float | None = None
    validation_fraction: float = 0.1
    binarize: float | None = None
    device: str = "auto"
    random_state: Any = None

    @abstractmethod
    def _net(self, n_variables: int, generator: torch.Generator) -> Net:
        """The untrained net."""

    def _model(self, net: Net, generator: torch.Generator) -> Density | Orderless:
        """The model over the net; one fixed ordering unless an estimator says otherwise."""
        return Autoregressive(net, Bernoulli(), self._ordering(net.n_variables, generator))

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_valid: Any = None,
        folder: Path | str | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Fit by maximum likelihood, with early stopping on validation rows.

        Args:
            X: rows (N, D) of zeros and ones: array or data frame.
            y: ignored.
            X_valid: rows for early stopping; without them a seeded share of X is held out.
            folder: keep metrics.jsonl and checkpoints here (see `pynade.learn.fit`).
            resume: go on from the checkpoint in `folder`.
            callbacks: told of progress (see `pynade.learn.fit`).
        """
        how = self.how()
        rows = self._rows(X, reset=True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        train, valid = (
            self._hold_out(rows, seed) if X_valid is None else (rows, self._rows(X_valid, reset=False))
        )
        model = self.build(train, seed).to(torch_device(self.device))
        if not resume:
            model = self._warm_up(model, train, seed, folder, callbacks)
        history = fit(
            model,
            train,
            valid,
            how,
            seed=seed,
            folder=folder,
            resume=resume,
            callbacks=callbacks,
        )
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
        self.build(train[:2], seed=0)

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
        net = self._net(train.shape[1], generator)
        net.set_output_bias(Bernoulli().eta_from_marginal(torch.as_tensor(train)))
        return self._model(net, generator)

    def how(self) -> Gradient:
        """The training parameters as an option object."""
        return Gradient(**{name: getattr(self, name) for name in sorted(_HOW)})

    def score_samples(self, X: Any) -> np.ndarray:
        """Exact log p of each row, in nats, computed in float64: (N, D) -> (N,)."""
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        return row_log_probs(self.density().double(), rows).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood per row, in nats; higher is better."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Exact draws from the model: integers 0/1, (n_samples, D)."""
        check_is_fitted(self, "model_")
        draws = self.density().sample(_count(n_samples), self._generator(random_state))
        return draws.cpu().numpy().astype(np.int64)

    def density(self) -> Density:
        """The fitted density, a copy on this estimator's device: what `score_samples` and `sample` ask."""
        check_is_fitted(self, "model_")
        density: Density = copy.deepcopy(self.model_).to(torch_device(self.device))
        return density

    def _generator(self, random_state: Any) -> torch.Generator:
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return torch.Generator(torch_device(self.device)).manual_seed(seed)

    def save(self, path: Path | str, **facts: Any) -> None:
        """Write the fitted model as safetensors; `pynade.load(path)` gives this estimator back.

        Args:
            path: the file to write.
            **facts: further JSON facts to keep in the metadata.
        """
        check_is_fitted(self, "model_")
        parameters = {name: _plain(value) for name, value in self.get_params().items()}
        fitted = {
            "n_features_in_": self.n_features_in_,
            "history_": vars(self.history_),
            "seed_": self.seed_,
        }
        if hasattr(self, "feature_names_in_"):
            fitted["feature_names_in_"] = self.feature_names_in_.tolist()
        extra = {"estimator": {"name": type(self).__name__, "params": parameters, "fitted": fitted}} | facts
        save_density(self.model_, path, extra)

    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        """Valid zeros and ones as uint8, or one clear sentence."""
        least = 2 if reset else 1
        X = validate_data(
            self,
            X,
            reset=reset,
            dtype="numeric",
            ensure_all_finite=False,
            ensure_min_samples=least,
            ensure_min_features=least,
        )
        return self._binary(X)

    def _binary(self, X: np.ndarray) -> np.ndarray:
        """Zeros and ones as uint8, thresholded if asked for."""
        if X.dtype.kind == "f" and not np.isfinite(X).all():
            row, column = np.argwhere(~np.isfinite(X))[0]
            kind = "NaN" if np.isnan(X[row, column]) else "inf"
            raise ValueError(
                f"{type(self).__name__} takes zeros and ones, but row {row}, column {column} is {kind}"
                + ("; an orderless model (DeepNADE) takes missing values" if kind == "NaN" else "")
            )
        if self.binarize is not None:
            return (self.binarize < X).astype(np.uint8)
        Bernoulli().check(torch.as_tensor(np.ascontiguousarray(X)))
        return X.astype(np.uint8)

    def _hold_out(self, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be in [0, 1), not {self.validation_fraction}")
        held = round(self.validation_fraction * len(rows))
        if held < 2 or len(rows) - held < 2:  # too few for a score with a standard error
            return rows, None
        shuffled = np.random.default_rng(seed).permutation(len(rows))
        return rows[np.sort(shuffled[held:])], rows[np.sort(shuffled[:held])]

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
        if k is None:
            return first
        others = Ordering.random(n_variables, k, generator)
        return Ordering(torch.cat((first.order[None], others.order[1:])))


def _plain(value: Any) -> Any:
    """A parameter as JSON can hold it; a generator given as random_state cannot be held and becomes None."""
    if isinstance(value, Ordering):
        value = value.order
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, torch.device):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else None


def _count(n: int) -> int:
    if operator.index(n) < 1:
        raise ValueError(f"n_samples must be at least 1, not {n}")
    return n


def torch_device(name: str) -> torch.device:
    """The device a user means; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}: use 'auto', 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU here")
    return device
