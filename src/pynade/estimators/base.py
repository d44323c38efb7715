"""The scikit-learn door: arrays or data frames in, NumPy out.

Estimators are dataclasses, so the constructor stores and does nothing else, and each parameter is
declared, typed and defaulted once. What all of them share is here; `domain` says what the cells of a table
may be, `gradient` how nets are trained, `questions` what may be asked of models that answer everything.
"""

from __future__ import annotations

import copy
import operator
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from pynade.likelihood import Estimate, row_log_probs
from pynade.models import Density
from pynade.ordering import Ordering
from pynade.store import save_density
from pynade.training import Callback


@dataclass(kw_only=True, eq=False, repr=False)
class DensityEstimator(DensityMixin, BaseEstimator):
    """What all estimators share: validated rows in, a fitted density, its scores and its samples.

    Attributes:
        validation_fraction: share of the rows held out for early stopping when no X_valid is given;
            0 trains on everything.
        device: "auto" takes a GPU if there is one, else the CPU; or a torch device such as "cuda:1".
        random_state: seeds everything that is random in training.
    """

    validation_fraction: float = 0.1
    device: str = "auto"
    random_state: Any = None

    _facts: ClassVar[tuple[str, ...]] = ()  # further fitted attributes that JSON can hold, saved and loaded

    @abstractmethod
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
        """Fit to rows X (N, D), with early stopping on X_valid or on a seeded share of X."""

    @abstractmethod
    def check_request(self, X: Any, X_valid: Any = None) -> None:
        """Raise whatever `fit` would raise about its input and parameters, without training."""

    @abstractmethod
    def _convert(self, X: np.ndarray, *, reset: bool) -> np.ndarray:
        """Numbers as the model takes them, or one clear sentence; `reset` when these are to be fitted."""

    @abstractmethod
    def _native(self, draws: torch.Tensor) -> np.ndarray:
        """Draws as a user's table holds them."""

    def score_samples(self, X: Any) -> np.ndarray:
        """Exact log p of each row, in nats: (N, D) -> (N,); in float64 (GPU: float32, summed in float64)."""
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        density = self.density()
        if density.device.type == "cpu":
            return row_log_probs(density.double(), rows).numpy()
        scores = row_log_probs(density, rows, batch_size=20_000).numpy()
        lost = ~np.isfinite(scores)  # beyond what float32 can hold
        if lost.any():
            scores[lost] = row_log_probs(density.double(), rows[lost]).numpy()
        return scores

    def summary(self, log_probs: Any) -> Estimate:
        """The mean of scores this model gave, with its standard error and whether it is exact."""
        return Estimate.from_rows(log_probs)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood per row, in nats; higher is better."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Exact draws from the model, (n_samples, D): integers 0/1 of a binary table, else floats."""
        check_is_fitted(self, "model_")
        return self._native(self.density().sample(_count(n_samples), self._generator(random_state)))

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
        fitted: dict[str, Any] = {
            "n_features_in_": self.n_features_in_,
            "history_": vars(self.history_),
            "seed_": self.seed_,
        }
        fitted |= {name: getattr(self, name) for name in self._facts}
        if hasattr(self, "feature_names_in_"):
            fitted["feature_names_in_"] = self.feature_names_in_.tolist()
        extra = {"estimator": {"name": type(self).__name__, "params": parameters, "fitted": fitted}} | facts
        save_density(self.model_, path, extra)

    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        """Valid rows, or one clear sentence."""
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
        return self._convert(X, reset=reset)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _hold_out(self, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be in [0, 1), not {self.validation_fraction}")
        held = round(self.validation_fraction * len(rows))
        if held < 2 or len(rows) - held < 2:  # too few for a score with a standard error
            return rows, None
        shuffled = np.random.default_rng(seed).permutation(len(rows))
        return rows[np.sort(shuffled[held:])], rows[np.sort(shuffled[:held])]


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


def device_here(name: str) -> str:
    """The device of a model made elsewhere: as it was, or "auto" where this machine has no such thing."""
    return "auto" if name.startswith("cuda") and not torch.cuda.is_available() else name
