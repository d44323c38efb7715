"""The base class of estimators of classical models, whose settings are chosen on validation rows."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import operator
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from pynade.atomic import write_atomically
from pynade.device import torch_device
from pynade.estimators.base import DensityEstimator, FitRequest
from pynade.estimators.modules import likelihood, torch, training

#: Ranges of parameters: minima of integers; names of finite numbers above zero, some of which may be zero.
MINIMUM = {"epochs": 0, "ais_chains": 2} | dict.fromkeys(("n_components", "n_factors", "hidden", "n_init"), 1)
MINIMUM |= dict.fromkeys(("patience", "batch_size", "cd_steps", "ais_steps", "gibbs_steps"), 1)
MINIMUM |= dict.fromkeys(("updates_per_epoch", "evaluate_every"), 1)
MAY_BE_ZERO = ("tol", "covariance_floor", "noise_floor")
POSITIVE = ("smoothing", "alpha", "learning_rate", *MAY_BE_ZERO)

Setting = dict[str, Any]
Results = list[tuple[Any, Any]]  # a model and its `History` for each setting


@dataclass(frozen=True)
class Problem:
    """Input of the learning algorithms: settings, training and validation rows, seed, device, request."""

    settings: list[Setting]
    train: np.ndarray
    valid: np.ndarray | None
    seed: int
    device: torch.device
    request: FitRequest
    identity: dict[str, Any]

    def rows(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Training and validation rows on the device."""
        valid = None if self.valid is None else torch.as_tensor(self.valid).to(self.device)
        return torch.as_tensor(self.train).to(self.device), valid

    def generator(self) -> torch.Generator:
        """A new random generator with the seed of the problem."""
        return torch.Generator(self.device).manual_seed(self.seed)

    def loop(self, number: int | None = None) -> dict[str, Any]:
        """Arguments `callbacks` and `checkpoint` of `run`: for all settings together, or for one of them."""
        from pynade.training.checkpoint import Checkpoint
        from pynade.training.loop import for_part

        request, n, checkpoint = self.request, number or 0, None
        callbacks = (
            request.callbacks if number is None else for_part(request.callbacks, n, len(self.settings))
        )
        if request.folder is not None:
            path, identity = request.folder / f"checkpoint-{n}.safetensors", {"setting": self.settings[n]}
            checkpoint = Checkpoint(path, request.resume, self.identity | identity)
        return {"callbacks": callbacks, "checkpoint": checkpoint}

    def learn_each(
        self, learner: Callable[..., tuple[Any, Any]], numbers: Sequence[int] | None = None, **options: Any
    ) -> Results:
        """The results of a learning function for the settings with these numbers (None: all), in turn."""
        source, (rows, valid) = self.request.source, self.rows()
        x: Any = rows if source is None else source.to(self.device)
        results = []
        for n in range(len(self.settings)) if numbers is None else numbers:
            arguments = options | self.settings[n] | self.loop(n) | {"generator": self.generator()}
            results.append(learner(x, valid=valid, **arguments))
        return results

    def closed_form(
        self, train: float, valid: float | None, stopped: str = "closed form", report: bool = True
    ) -> training.History:
        """The history of a model that is fitted without iteration; `report` calls the callbacks once."""
        score = None if valid is None else likelihood.Estimate(valid, math.nan, 0)
        for callback in self.loop(0)["callbacks"] if report else ():
            callback(training.Progress(None, 1, 1, 1, 1, math.nan, train, True, score, valid))
        line = {"epoch": 1, "train": train, "valid": valid, "best": True}
        return training.History([line], 1, valid, stopped=stopped)


@dataclass(kw_only=True, eq=False, repr=False)
class ClassicalEstimator(DensityEstimator):
    """Abstract estimator of a model without a net, which answers every query exactly, in float64.

    Some parameters may be sequences of candidate values: a model is then fitted for every combination, with
    the same seed, and the one with the best validation score is kept.

    Attributes:
        chosen_: the setting with the best validation score.
        choices_: all settings, each with its validation log-likelihood.
        history_: the training history of the best setting.
    """

    _facts: ClassVar[tuple[str, ...]] = ("chosen_", "choices_")
    _double: ClassVar[bool] = True
    _grid_parameters: ClassVar[tuple[str, ...]] = ()  # parameters that may be sequences of values
    _limited_by_data: ClassVar[bool] = False  # at most as many components as rows, factors as columns
    _trains_jointly: ClassVar[bool] = False  # all settings are learned by one loop
    _folds_at_once: ClassVar[int] = 1  # the best number of estimators for a call of `fit_folds`

    @abstractmethod
    def _learn(self, problem: Problem) -> Results:
        """Learn every setting; the models may be on any device."""

    @classmethod
    def _learn_folds(cls, estimators: Sequence[Any], folds: Sequence[Problem]) -> list[Results]:
        """The results of several estimators, each for its own problem."""
        return [e._learn(problem) for e, problem in zip(estimators, folds, strict=True)]

    def _grid(self, train: np.ndarray, validated: bool) -> dict[str, list[Any]]:
        """The candidate values of each grid parameter."""
        return {name: choices(name, getattr(self, name)) for name in self._grid_parameters}

    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        """All combinations of the candidate values; raises a ValueError for values out of range."""
        self._training_options()
        grid, limits = self._grid(train, validated), dict[str, tuple[int, str]]()
        if self._limited_by_data:
            limits["n_components"] = len(train), ", the number of training rows"
            limits["n_factors"] = train.shape[1], ", the number of columns"
        check_ranges(self, exclude=grid)
        grid = {name: [in_range(name, value, *limits.get(name, ())) for value in grid[name]] for name in grid}
        several = [name for name, values in grid.items() if len(values) > 1]
        if several and not validated:
            raise ValueError(
                f"{' and '.join(several)} can only be chosen on validation rows: give X_valid, a "
                "validation_fraction that leaves at least two rows, or a single value"
            )
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]

    def _em_options(self, *names: str) -> dict[str, Any]:
        """Arguments of EM: patience, tol, epochs (M-steps and the start), and the parameters named here."""
        options = {name: getattr(self, name) for name in ("patience", "tol", *names)}
        return options | {"epochs": self.epochs + 1}

    def _check(self, train: np.ndarray, valid: np.ndarray | None) -> None:
        for part, rows in (("", train), ("validation ", valid)):
            if not self._fits_missing and rows is not None and np.isnan(rows).any():
                row, column = np.argwhere(np.isnan(rows))[0]
                raise ValueError(
                    f"{type(self).__name__} is fitted to complete rows, but {part}row {row}, column {column} "
                    "is NaN; BernoulliMixture and DeepNADE are fitted to rows with missing values too"
                )
        self._settings(train, valid is not None)

    def _problem(self, train: np.ndarray, valid: Any, seed: int, request: FitRequest) -> Problem:
        settings = self._settings(train, valid is not None)
        if request.source is not None and not getattr(self._training_options(), "minibatch", False):
            raise ValueError(f"{type(self).__name__} learns from all rows at once, not from a source of rows")
        digest = hashlib.sha256()
        for rows in (train, valid) if request.folder is not None else ():
            digest.update(b"none" if rows is None else np.ascontiguousarray(rows).tobytes())
        identity = {"model": type(self).__name__, **self.flat_parameters()}
        del identity["device"], identity["random_state"]
        identity |= {"seed": seed, "data": digest.hexdigest()}
        return Problem(settings, train, valid, seed, torch_device(self.device), request, identity)

    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: FitRequest) -> None:
        if request.folder is not None and not request.folder.is_dir():
            raise FileNotFoundError(f"there is no folder {request.folder}")
        problem, began = self._problem(train, valid, seed, request), time.perf_counter()
        self._adopt(problem, self._learn(problem))
        if not self.history_.seconds:  # a closed form has no loop that measures its time
            self.history_.seconds = time.perf_counter() - began
        if request.folder is not None:
            lines = "".join(json.dumps(line) + "\n" for line in self.history_.epochs)
            write_atomically(request.folder / "metrics.jsonl", lambda p: p.write_text(lines, "utf-8"))

    def _adopt(self, problem: Problem, results: Results) -> None:
        """Keep the model with the best validation score (the first of equals, or without validation rows)."""
        histories = [history for _, history in results]
        scores = [-math.inf if h.best_valid is None else h.best_valid for h in histories]
        best = scores.index(max(scores))
        self.model_: Any = results[best][0].cpu()
        self.history_, self.chosen_ = histories[best], problem.settings[best]
        self.history_.seconds = (max if self._trains_jointly else sum)([h.seconds for h in histories])
        pairs = zip(problem.settings, histories, strict=True)
        self.choices_ = [setting | {"valid": history.best_valid} for setting, history in pairs]

    def _seed(self, request: FitRequest | None = None) -> int:
        from pynade.training.checkpoint import load_checkpoint, numbered_checkpoints

        if request is not None and request.folder is not None and request.folder.is_dir():
            paths = numbered_checkpoints(request.folder)
            if request.resume and paths and self.random_state is None:
                return int(load_checkpoint(paths[0])[1]["identity"]["seed"])
            for path in () if request.resume else paths:
                path.unlink()  # from an earlier fit
        return super()._seed()


def fit_folds(
    estimators: Sequence[ClassicalEstimator],
    train: Sequence[Any],
    valid: Sequence[Any],
    callbacks: Sequence[training.Callback] = (),
) -> None:
    """Fit several estimators of one class, each to its own rows; `MFA` fits them by one batched EM.

    Args:
        estimators: estimators of one class, at least one.
        train: training rows (N, D) of each estimator.
        valid: validation rows of each estimator, or None.
        callbacks: called after each epoch; for estimators learned together, with the best one so far.

    Example:
        >>> from pynade import MFA
        >>> X = np.random.default_rng(0).normal(size=(90, 2)) @ [[1.0, 2.0], [0.0, 1.0]]
        >>> folds = [MFA(n_components=(1, 2), n_factors=1, random_state=0) for _ in range(2)]
        >>> fit_folds(folds, [X[:60], X[30:]], [X[60:], X[:30]])
        >>> alone = MFA(n_components=(1, 2), n_factors=1, random_state=0).fit(X[30:], X_valid=X[:30])
        >>> bool(abs(folds[1].score(X) - alone.score(X)) < 1e-9)
        True
    """
    request = FitRequest(callbacks=tuple(callbacks))
    problems = []
    for estimator, x, x_valid in zip(estimators, train, valid, strict=True):
        rows, seed = estimator._rows(x, fitting=True), estimator._seed()
        parts = estimator._split(rows, x_valid, seed)
        estimator._check(*parts)
        problems.append(estimator._problem(*parts, seed, request))
    began = time.perf_counter()
    results = type(estimators[0])._learn_folds(estimators, problems)
    seconds = (time.perf_counter() - began) / len(problems)
    for estimator, problem, result in zip(estimators, problems, results, strict=True):
        estimator._adopt(problem, result)
        estimator.seed_, estimator.n_iter_ = problem.seed, len(estimator.history_.epochs)
        estimator.history_.seconds = seconds


def choices(name: str, value: Any) -> list[Any]:
    """The distinct candidate values of a parameter that is one value or a sequence of values."""
    several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    values = list(dict.fromkeys(value)) if several else [value]
    if not values:
        raise ValueError(f"{name} is an empty sequence; give at least one value")
    return values


def in_range(name: str, value: Any, maximum: int | None = None, reason: str = "") -> Any:
    """The value of a parameter; a ValueError if it is a number out of its range."""
    if name in POSITIVE:
        zero, number = name in MAY_BE_ZERO, float(value)
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise ValueError(f"{name} must be {'at least' if zero else 'above'} 0, not {value}")
        return number
    if name not in MINIMUM:
        return value
    try:
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if whole < MINIMUM[name]:
        raise ValueError(f"{name} must be at least {MINIMUM[name]}, not {whole}")
    if maximum is not None and whole > maximum:
        raise ValueError(f"{name} must be at most {maximum}{reason}, not {whole}")
    return whole


def check_ranges(owner: Any, exclude: Collection[str] = ()) -> None:
    """Raise a ValueError if a field of a dataclass is out of range; None is valid if the type allows it."""
    for parameter in fields(owner):
        name, value = parameter.name, getattr(owner, parameter.name)
        if name not in exclude and not (value is None and "None" in str(parameter.type)):
            in_range(name, value)
