"""Gaussians, their mixtures and mixtures of factor analysers as scikit-learn estimators."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import clone

from pynade.classical import (
    EMHistory,
    EMProgress,
    FactorTask,
    em_factors_batch,
    em_gaussian,
    gaussian,
    minibatch_em,
)
from pynade.estimators.baselines import Found, Task
from pynade.estimators.gaussians import Entering, GaussianTable, Inside
from pynade.estimators.settings import Setting, check_loop, choices, needs_validation, positive, whole

FOLDS_AT_ONCE = 5  # learned by one EM in a sweep: bounds what is lost when it is interrupted, and the memory


@dataclass(eq=False, repr=False)
class Gaussian(GaussianTable):
    """One Gaussian with a full covariance: in closed form, with missing values by EM.

    Args:
        shrinkage: None is maximum likelihood; a number a from 0 to 1 gives (1 - a) Σ + a (tr Σ / D) I;
            "ledoit-wolf" chooses a (complete rows only).
        covariance_floor: added to the diagonal of the covariance.
        validation_fraction: 0, since nothing is chosen: all rows are fitted.
        **parameters: see `GaussianTable`, `Baseline` and `DensityEstimator`.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 1))
        >>> X = np.hstack([x, 3 * x + 0.1 * np.random.default_rng(1).normal(size=x.shape)])
        >>> model = Gaussian(random_state=0).fit(X)
        >>> model.impute(np.array([[1.0, np.nan]])).round(1).tolist()
        [[1.0, 3.0]]
    """

    shrinkage: str | float | None = None
    covariance_floor: float = 0.0
    validation_fraction: float = field(default=0.0, kw_only=True)

    def check_request(self, X: Any, X_valid: Any = None) -> None:
        """Raise whatever `fit` would raise; learning is quick, so it is tried where no value is missing."""
        super().check_request(X, X_valid)
        rows = self._rows(X, reset=False)
        if not np.isnan(rows).any():
            clone(self).set_params(device="cpu").fit(rows)

    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        positive("covariance_floor", self.covariance_floor, zero=True)
        return [{}]

    def _fit_all(self, inside: Inside) -> list[tuple[Any, EMHistory]]:
        x, valid = inside.x, inside.valid
        model = gaussian(x, self.shrinkage, covariance_floor=self.covariance_floor)
        scores = [
            None if rows is None else float(model.marginal_log_prob(rows, ~torch.isnan(rows)).mean())
            for rows in (x, valid)
        ]
        train, score = scores
        assert train is not None
        history = EMHistory([train], stopped="closed form" if not torch.isnan(x).any() else "converged")
        if score is not None:
            history.valid, history.valid_at = [score], [0]
        inside.told(EMProgress(0, 0, train, train, score, 0.0))
        return [(model, history)]


@dataclass(eq=False, repr=False)
class GaussianMixture(GaussianTable):
    """Mixture of full-covariance Gaussians by EM, or in minibatches as the paper did for patches and speech.

    Args:
        n_components: K, or several to choose from on the validation rows.
        covariance_floor: added to the diagonal of every covariance at every M-step.
        init: "k-means++", or "rows": random rows as means, the pooled covariance.
        iterations: M-steps at most; None is 200, in minibatches 1000.
        patience: M-steps (in minibatches: validations) without a better validation score before stopping;
            None runs on.
        tolerance: stop when the training log-likelihood changes by less; not in minibatches.
        stop_at_train: stop when the training log-likelihood reaches this value; not in minibatches.
        minibatch: draw `batch_size` rows at random for every update, and step towards their EM update.
        batch_size: rows per update, in minibatches.
        step_size: of the first update; falls linearly to 0.
        zero_means: keep all means at zero, in minibatches.
        **parameters: see `GaussianTable`, `Baseline` and `DensityEstimator`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = np.vstack([rng.normal(-4, 1, (200, 2)), rng.normal(4, 1, (200, 2))])
        >>> model = GaussianMixture(n_components=(1, 2), random_state=0).fit(X)
        >>> model.chosen_, bool(abs(model.conditional(1, given={0: 4.0}).mean() - 4) < 0.3)
        ({'n_components': 2}, True)
    """

    n_components: int | Sequence[int] = 10
    covariance_floor: float = 1e-6
    init: str = "k-means++"
    iterations: int | None = None
    patience: int | None = 10
    tolerance: float = 1e-4
    stop_at_train: float | None = None
    minibatch: bool = False
    batch_size: int = 20_000
    step_size: float = 0.1
    zero_means: bool = False

    _floor = "covariance_floor"

    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        check_loop(self._iterations(), self.patience, self.tolerance)
        positive("covariance_floor", self.covariance_floor, zero=True)
        whole("batch_size", self.batch_size)
        if not 0 < self.step_size <= 1:
            raise ValueError(f"step_size must be above 0 and at most 1, not {self.step_size}")
        if self.zero_means and not self.minibatch:
            raise ValueError("zero_means is for learning in minibatches: set minibatch too")
        if self.stop_at_train is not None and self.minibatch:
            raise ValueError("stop_at_train is not for learning in minibatches, whose scores are noisy")
        check_init(self.init)
        return components(self.n_components, len(train), validated)

    def _fit_all(self, inside: Inside) -> list[tuple[Any, EMHistory]]:
        found, task, x = [], inside.task, inside.x
        for number, setting in enumerate(task.settings):
            shared: dict[str, Any] = {
                "x_valid": inside.valid,
                "iterations": self._iterations(),
                "patience": self.patience,
                "covariance_floor": self.covariance_floor,
                "init": self.init,
                "generator": task.generator(),
                "callback": partial(inside.told, setting=number),
                **setting,
            }
            if self.minibatch:
                source = x if task.source is None else Entering(task.source.to(task.device), inside.units)
                size = max(self.batch_size, setting["n_components"])
                learned = minibatch_em(
                    source,
                    batch_size=size,
                    step_size=self.step_size,
                    zero_means=self.zero_means,
                    keeper=task.keeper(number),
                    **shared,
                )
            else:
                stop = None if self.stop_at_train is None else self.stop_at_train + inside.cut
                learned = em_gaussian(x, tol=self.tolerance, stop_at_train=stop, **shared)
            found.append(learned)
        return found

    def _iterations(self) -> int:
        return (1000 if self.minibatch else 200) if self.iterations is None else self.iterations


@dataclass(eq=False, repr=False)
class MFA(GaussianTable):
    """Mixture of factor analysers by EM: Gaussians whose covariance is low rank plus diagonal.

    Where several numbers of components or factors are given, all combinations are learned as one batched
    EM, each stopping for itself, and the validation rows choose.

    Args:
        n_components: K, or several.
        n_factors: Q, from 1 to D, or several.
        noise_floor: the smallest noise variance an M-step may choose.
        init: "rows": random rows as means, loadings from the pooled covariance; or "k-means++".
        iterations: M-steps at most.
        patience: M-steps without a better validation score before stopping; None runs on.
        tolerance: stop when the training log-likelihood changes by less.
        stop_at_train: stop when the training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `history_.train_log_likelihood` of the validated fit).
        **parameters: see `GaussianTable`, `Baseline` and `DensityEstimator`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 1)) * [1.0, 2.0, -1.0, 0.5] + 0.1 * rng.normal(size=(400, 4))
        >>> model = MFA(n_components=1, n_factors=(1, 2), random_state=0).fit(X)
        >>> [sorted(setting) for setting in model.choices_]
        [['n_components', 'n_factors', 'valid'], ['n_components', 'n_factors', 'valid']]
        >>> model.impute(np.array([[1.0, np.nan, np.nan, np.nan]])).round().tolist()
        [[1.0, 2.0, -1.0, 0.0]]
    """

    n_components: int | Sequence[int] = 5
    n_factors: int | Sequence[int] = 2
    noise_floor: float = 1e-6
    init: str = "rows"
    iterations: int = 500
    patience: int | None = 20
    tolerance: float = 1e-4
    stop_at_train: float | None = None

    _floor = "noise_floor"
    _folds_at_once: ClassVar[int] = FOLDS_AT_ONCE

    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        check_loop(self.iterations, self.patience, self.tolerance)
        positive("noise_floor", self.noise_floor, zero=True)
        check_init(self.init)
        counts = components(self.n_components, len(train), True)
        most, why = train.shape[1], ", the number of columns"
        factors = [whole("n_factors", q, 1, most, why) for q in choices("n_factors", self.n_factors)]
        grid = [k | {"n_factors": q} for k, q in itertools.product(counts, factors)]
        return needs_validation(grid, validated)

    def _fit_all(self, inside: Inside) -> list[tuple[Any, EMHistory]]:
        return self._em([self], [inside])[0]

    @classmethod
    def _learn_together(cls, estimators: Sequence[Self], tasks: Sequence[Task]) -> list[Found]:
        loops = [
            (task.device, *estimator._loop().items())
            for estimator, task in zip(estimators, tasks, strict=True)
        ]
        if any(loop != loops[0] for loop in loops):
            return super()._learn_together(estimators, tasks)
        insides = [estimator._inside(task) for estimator, task in zip(estimators, tasks, strict=True)]
        found = cls._em(estimators, insides)
        return [inside.found(fitted) for inside, fitted in zip(insides, found, strict=True)]

    @staticmethod
    def _em(estimators: Sequence[MFA], insides: Sequence[Inside]) -> list[list[tuple[Any, EMHistory]]]:
        """All settings of all tasks as one EM; the first task's callbacks are told, in its units."""
        tasks = []
        for estimator, inside in zip(estimators, insides, strict=True):
            inside.task.watch.n_settings = 1  # all are learned together
            target = estimator.stop_at_train
            tasks += [
                FactorTask(
                    inside.x,
                    x_valid=inside.valid,
                    init=estimator.init,
                    stop_at_train=None if target is None else target + inside.cut,
                    generator=inside.task.generator(),
                    **setting,
                )
                for setting in inside.task.settings
            ]
        fitted = iter(em_factors_batch(tasks, callback=insides[0].told, **estimators[0]._loop()))
        return [list(itertools.islice(fitted, len(inside.task.settings))) for inside in insides]

    def _loop(self) -> dict[str, Any]:
        """What all members of one EM have in common."""
        return {
            "iterations": self.iterations,
            "tol": self.tolerance,
            "patience": self.patience,
            "noise_floor": self.noise_floor,
        }


def components(n_components: int | Sequence[int], n_rows: int, validated: bool) -> list[Setting]:
    """The numbers of components to choose from; each component needs a row to start from."""
    counts = [
        whole("n_components", k, 1, n_rows, ", the number of training rows")
        for k in choices("n_components", n_components)
    ]
    return needs_validation([{"n_components": k} for k in counts], validated)


def check_init(init: str) -> None:
    """A known way to start EM."""
    if init not in ("k-means++", "rows"):
        raise ValueError(f"unknown init {init!r}; known: 'k-means++', 'rows'")
