"""What the estimators of the paper's baselines share: no net, and settings chosen on validation rows."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from pynade.atomic import write_atomically
from pynade.classical import RBM, EMHistory, EMProgress
from pynade.estimators.base import torch_device
from pynade.estimators.questions import Questions
from pynade.estimators.settings import Setting
from pynade.likelihood import Estimate, row_log_probs
from pynade.models import Marginalisable
from pynade.training import Callback, History, Progress
from pynade.training.checkpoint import Keeper, checkpoints_in, load_checkpoint

if TYPE_CHECKING:
    from pynade.tables.source import RowSource

ROWS = 4096  # scored at a time


class Found(NamedTuple):
    """What learning found: the chosen setting's model and history, and every setting's validation score."""

    chosen: int
    model: Marginalisable | RBM
    history: History
    scores: list[float | None]


class Watch:
    """Tells callbacks of a `Progress`, whatever the learner; settings are learned one after the other.

    Attributes:
        asked: whether a callback has asked for the end.
    """

    def __init__(self, callbacks: Sequence[Callback], n_valid: int, n_settings: int = 1) -> None:
        self.callbacks, self.n_valid, self.n_settings = callbacks, n_valid, n_settings
        self.best: float | None = None
        self.asked = False
        self._notes: dict[str, Any] = {}

    def note(self, notes: dict[str, Any]) -> None:
        """Remember the best score in these notes, which may know one of earlier sessions."""
        known = [best for best in (self.best, notes.get("best")) if best is not None]
        self.best, self._notes = max(known, default=None), notes

    def tell(
        self, step: int, steps: int, train: float, valid: float | None, seconds: float, setting: int = 0
    ) -> bool:
        """Report step 1, 2, …, of a setting; True if a callback has asked for the end."""
        if valid is not None and (self.best is None or valid > self.best):
            self.best = self._notes["best"] = valid
        for callback in self.callbacks:
            now = Progress(
                None,  # type: ignore[arg-type]  # there is no net to look at
                epoch=step,
                epochs=steps,
                update=setting * steps + step,
                updates=self.n_settings * steps,
                learning_rate=math.nan,
                train_nll=-train,
                epoch_done=True,
                valid=None if valid is None else Estimate(valid, math.nan, self.n_valid),
                best_valid=self.best,
                seconds=seconds,
            )
            self.asked = bool(callback(now)) or self.asked
        return self.asked

    def em(self, now: EMProgress, setting: int = 0) -> bool:
        """Report an iteration of EM, the start being the first."""
        return self.tell(
            now.iteration + 1, now.iterations + 1, now.train, now.valid, now.seconds, setting=setting
        )


@dataclass(frozen=True)
class Task:
    """What is to be learned: settings, rows to learn from and to choose on, whom to tell."""

    settings: list[Setting]
    train: np.ndarray
    valid: np.ndarray | None
    seed: int
    device: torch.device
    watch: Watch
    source: RowSource | None = None
    folder: Path | None = None
    resume: bool = False
    learning: dict[str, Any] = field(default_factory=dict)  # what checkpoints are known by
    keepers: list[Keeper] = field(default_factory=list)

    def keeper(self, number: int = 0) -> Keeper | None:
        """What keeps the state of the number-th setting's learning, if there is a folder to keep it in."""
        if self.folder is None:
            return None
        path = self.folder / f"checkpoint-{number}.safetensors"
        keeper = Keeper(path, self.resume, {**self.learning, "setting": self.settings[number]})
        self.keepers.append(keeper)
        self.watch.note(keeper.notes)
        return keeper

    def rows(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Training and validation rows on the device."""
        valid = None if self.valid is None else torch.as_tensor(self.valid).to(self.device)
        return torch.as_tensor(self.train).to(self.device), valid

    def generator(self) -> torch.Generator:
        """A fresh generator, the same every time."""
        return torch.Generator(self.device).manual_seed(self.seed)


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(Questions):
    """Abstract estimator of a model that is learned without a net and answers every question.

    A parameter that may be a sequence is chosen from it: every setting is learned on the training rows, and
    the one that scores best on the validation rows is kept. Each is learned from the same seed, so its result
    does not depend on what else was tried. Scores are exact and in float64; missing cells (NaN) are
    integrated out.

    Attributes:
        chosen_: the setting that was kept.
        choices_: all settings, each with the validation log-likelihood that chose it.
        history_: how the chosen one was learned; a line ("epoch") is one pass over the rows, in EM the
            scores before one M-step, the first line being the start.
    """

    _facts: ClassVar[tuple[str, ...]] = ("chosen_", "choices_")
    _fits_missing: ClassVar[bool] = True
    _folds_at_once: ClassVar[int] = 1  # that `fit_folds` is best given

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._fits_missing
        return tags

    @abstractmethod
    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        """The settings to choose from; refuses parameters that do not fit the training rows."""

    @abstractmethod
    def _learn(self, task: Task) -> Found:
        """Learn every setting and choose; the model may be on any device."""

    @classmethod
    def _learn_together(cls, estimators: Sequence[Self], tasks: Sequence[Task]) -> list[Found]:
        """What each would learn from its own task; one after the other, unless a baseline can do better."""
        return [estimator._learn(task) for estimator, task in zip(estimators, tasks, strict=True)]

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
        """Fit; validation rows choose among settings and end the learning early.

        Args:
            X: rows (N, D): array or data frame.
            y: ignored.
            X_valid: validation rows; without them a seeded share of X is held out.
            folder: keep checkpoints of long learnings here, and metrics.jsonl at the end.
            resume: go on from the checkpoints in `folder`, to the identical result. Learnings that have none
                (Chow–Liu trees, EM of Gaussians on all rows) start over.
            callbacks: told of each iteration (see `pynade.training.fit`); one that returns True ends it.
            source: draw fresh training rows from here, for learning in minibatches (`GaussianMixture`).
        """
        if source is not None and not getattr(self, "minibatch", False):
            raise ValueError(f"{type(self).__name__} learns from all rows at once, not from a source of rows")
        place = None if folder is None else Path(folder)
        if place is not None and not place.is_dir():
            raise FileNotFoundError(f"there is no folder {place}")
        for checkpoint in checkpoints_in(place) if place is not None and not resume else []:
            checkpoint.unlink()  # of an earlier learning
        task = self._task(X, X_valid, callbacks, source, place if resume else None)
        if place is not None:
            task = replace(task, folder=place, resume=resume, learning=self._identity(task))
        began = time.perf_counter()
        found = self._learn(task)
        seconds = time.perf_counter() - began + sum(keeper.before for keeper in task.keepers)
        self._take(task, found, seconds)
        if folder is not None:
            lines = "".join(json.dumps(line) + "\n" for line in self.history_.epochs)
            path = Path(folder) / "metrics.jsonl"
            write_atomically(path, lambda p: p.write_text(lines, encoding="utf-8"))
        return self

    def _task(
        self,
        X: Any,
        X_valid: Any,
        callbacks: Sequence[Callback],
        source: RowSource | None = None,
        begun: Path | None = None,
    ) -> Task:
        """What `fit` is to learn; refuses what it would refuse. `begun`: the folder of what goes on."""
        rows = self._to_fit(X, reset=True)
        kept = checkpoints_in(begun) if begun is not None and self.random_state is None else []
        seed = load_checkpoint(kept[0])[1]["learning"]["seed"] if kept else self._seed()
        train, valid = (
            self._hold_out(rows, seed) if X_valid is None else (rows, self._to_fit(X_valid, reset=False))
        )
        settings = self._settings(train, valid is not None)
        watch = Watch(callbacks, 0 if valid is None else len(valid), len(settings))
        return Task(settings, train, valid, seed, torch_device(self.device), watch, source)

    def _identity(self, task: Task) -> dict[str, Any]:
        """What decides the result of a learning, and so whom a checkpoint belongs to."""
        digest = hashlib.sha256()
        for rows in (task.train, task.valid):
            digest.update(b"none" if rows is None else np.ascontiguousarray(rows).tobytes())
        parameters = {k: v for k, v in self.get_params().items() if k not in ("device", "random_state")}
        return {"model": type(self).__name__, **parameters, "seed": task.seed, "data": digest.hexdigest()}

    def _take(self, task: Task, found: Found, seconds: float) -> None:
        """Be the fitted estimator of what was found."""
        self.model_: Any = found.model.cpu()
        self.seed_ = task.seed
        self.chosen_ = task.settings[found.chosen]
        self.choices_ = [
            {**setting, "valid": score} for setting, score in zip(task.settings, found.scores, strict=True)
        ]
        self.history_ = found.history
        self.history_.seconds = seconds
        self.n_iter_ = len(self.history_.epochs)

    def check_request(self, X: Any, X_valid: Any = None) -> None:
        """Raise whatever `fit` would raise about its input and parameters, without learning."""
        torch_device(self.device)
        check_random_state(self.random_state)
        rows = self._to_fit(X, reset=True)
        if X_valid is not None:
            self._to_fit(X_valid, reset=False)
            self._settings(rows, True)
        else:
            train, valid = self._hold_out(rows, 0)
            self._settings(train, valid is not None)

    def score_samples(self, X: Any) -> np.ndarray:
        """Exact log p of each row, in nats: (N, D) -> (N,), float64; missing cells are integrated out."""
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        model = self._asked()
        complete = ~np.isnan(rows).any(1)
        out = np.empty(len(rows))
        if complete.any():
            out[complete] = row_log_probs(model, rows[complete], ROWS).numpy()
        if not complete.all():
            out[~complete] = self._marginal(model, rows[~complete], 1)
        return out

    def density(self) -> Marginalisable:
        """The fitted density in float64, a copy on this estimator's device."""
        check_is_fitted(self, "model_")
        density: Marginalisable = copy.deepcopy(self.model_)
        return density.double().to(torch_device(self.device))

    def _asked(self) -> Marginalisable:
        return self.density()

    def _to_fit(self, X: Any, *, reset: bool) -> np.ndarray:
        """Rows to learn from, complete where learning needs that."""
        rows = self._rows(X, reset=reset)
        if not self._fits_missing and np.isnan(rows).any():
            row, column = np.argwhere(np.isnan(rows))[0]
            raise ValueError(
                f"{type(self).__name__} is fitted to complete rows, but row {row}, column {column} is NaN; "
                "BernoulliMixture and DeepNADE are fitted to rows with missing values too"
            )
        return rows


def fit_folds(
    estimators: Sequence[Baseline],
    train: Sequence[Any],
    valid: Sequence[Any],
    callbacks: Sequence[Callback] = (),
) -> None:
    """Fit estimators of one class, each to its own rows, as `fit` would one by one; MFA batches their EM.

    Args:
        estimators: at least one.
        train: rows (N, D) of each.
        valid: validation rows of each, or None.
        callbacks: told of each iteration; where several are learned at once, of the one that is ahead.

    Example:
        >>> from pynade import MFA
        >>> X = np.random.default_rng(0).normal(size=(90, 2)) @ [[1.0, 2.0], [0.0, 1.0]]
        >>> folds = [MFA(n_components=(1, 2), n_factors=1, random_state=0) for _ in range(2)]
        >>> fit_folds(folds, [X[:60], X[30:]], [X[60:], X[:30]])
        >>> alone = MFA(n_components=(1, 2), n_factors=1, random_state=0).fit(X[30:], X_valid=X[:30])
        >>> bool(abs(folds[1].score(X) - alone.score(X)) < 1e-9)
        True
    """
    tasks = [e._task(x, held, callbacks) for e, x, held in zip(estimators, train, valid, strict=True)]
    began = time.perf_counter()
    found = type(estimators[0])._learn_together(estimators, tasks)
    seconds = (time.perf_counter() - began) / len(tasks)
    for estimator, task, own in zip(estimators, tasks, found, strict=True):
        estimator._take(task, own, seconds)


def best_of(found: Sequence[tuple[Marginalisable, EMHistory]]) -> Found:
    """The model that scored best on validation rows (the first of equals); without any, the first."""
    scores = [history.best_valid for _, history in found]
    chosen = best_index(scores)
    model, history = found[chosen]
    return Found(chosen, model, history_of(history), scores)


def best_index(scores: Sequence[float | None]) -> int:
    """Where the best score is; None is no score."""
    known = [-math.inf if score is None else score for score in scores]
    return known.index(max(known))


def history_of(em: EMHistory) -> History:
    """What EM did, in the lines of a `History`: line t + 1 belongs to the parameters after t M-steps.

    Example:
        >>> em = EMHistory(train=[-3.0, -2.0], valid=[-3.1, -2.2], valid_at=[0, 1], best_iteration=1)
        >>> history_of(em).epochs[1]
        {'epoch': 2, 'train_nll': 2.0, 'valid_nll': 2.2, 'best': True}
    """
    valid, best = dict(zip(em.valid_at, em.valid, strict=True)), -math.inf
    lines = []
    for t in range(max(len(em.train), em.best_iteration + 1)):
        score = valid.get(t)
        better = not em.valid or (score is not None and score > best)
        best = best if score is None else max(best, score)
        train = em.train[min(t, len(em.train) - 1)]  # minibatch EM ends with parameters no batch has seen
        lines.append(
            {
                "epoch": t + 1,
                "train_nll": -train,
                "valid_nll": None if score is None else -score,
                "best": better,
            }
        )
    return History(lines, em.best_iteration + 1, em.best_valid, em.seconds, em.stopped, em.messages)
