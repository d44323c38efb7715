"""The training loop: early stopping, callbacks, checkpoints, divergence and one history, for every learner.

A `Learner` does one epoch (a pass of minibatches, an iteration of EM) at a time and scores its parameters. It
may train several members at once (a population, EM on several settings); each member stops for itself.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pynade.atomic import write_atomically
from pynade.likelihood import Estimate
from pynade.training.checkpoint import Checkpoint, State
from pynade.training.history import History

REPORT_SECONDS = 0.2  # between progress reports within an epoch


class Diverged(ArithmeticError):
    """A log-likelihood or a parameter stopped being finite; the last good parameters were put back."""


@dataclass(frozen=True)
class Stopping:
    """When one member stops, besides the last epoch.

    Attributes:
        patience: after this many validations without a better score; None never.
        tol: when the objective changes by less from one epoch to the next, in nats per row; None never.
        stop_at_train: when the mean log-likelihood of the training rows reaches this value; None never.
    """

    patience: int | None = None
    tol: float | None = None
    stop_at_train: float | None = None


@dataclass(frozen=True)
class Progress:
    """What a callback gets, several times a second and at the end of every epoch.

    Attributes:
        model: what is trained; None where there is no single model.
        epoch: 1, 2, …
        epochs: the most epochs.
        update: updates done, over all epochs.
        updates: updates if training runs to its last epoch.
        learning_rate: of the last update; NaN where there is none.
        train: mean log-likelihood of the rows of this epoch so far; of several members, of the leading one.
        epoch_done: False within an epoch.
        valid: validation score of this epoch, where there is one.
        best_valid: best validation score so far.
        seconds: since the beginning, earlier sessions included.
        histories: of all members.
    """

    model: Any
    epoch: int
    epochs: int
    update: int
    updates: int
    learning_rate: float
    train: float
    epoch_done: bool
    valid: Estimate | None = None
    best_valid: float | None = None
    seconds: float = 0.0
    histories: Sequence[History] = ()


#: Called with a `Progress`; one that returns True ends training after the epoch.
Callback = Callable[[Progress], "bool | None"]

#: What a learner calls within an epoch: updates done, learning rate, mean log-likelihood so far.
Report = Callable[[int, float, Callable[[], float]], None]


class Learner(ABC):
    """Abstract: something that improves the parameters of one or more members, one epoch at a time.

    Attributes:
        model: the model in training, for callbacks; None if there are several.
        unit: what an epoch is called: "epoch" or "iteration".
        updates: updates in an epoch.
        stopping: one `Stopping` for each member.
        validated: whether there are validation rows.
        active: the members that `advance` and `score` report on, in this order.
        raises: whether `Diverged` is raised when no member is left with finite parameters; otherwise such
            members stop as "diverged", like any member that diverges beside others.
        advice: the end of the sentence that says that training diverged.
    """

    model: Any = None
    unit = "epoch"
    updates = 1
    stopping: Sequence[Stopping]
    validated = False
    active: list[int]
    raises = True
    advice = ""

    @abstractmethod
    def advance(self, report: Report) -> list[float | None]:
        """One epoch; the mean training log-likelihood of each active member.

        NaN or an infinity means that the member has diverged, None that the value is not known.
        """

    @abstractmethod
    def accept(self, better: Sequence[int]) -> None:
        """Keep the present parameters of these members as their best; all active ones are sound."""

    @abstractmethod
    def state(self) -> State:
        """Everything needed to go on: groups of tensors, and facts as JSON."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Put back what `state` gave."""

    def score(self, epoch: int) -> list[Estimate] | None:
        """Validation scores of the active members after this epoch; None where it is not validated."""
        return None

    def objective(self, train: list[float | None]) -> list[float | None]:
        """What `tol` is compared with: the training log-likelihood, unless there is a prior."""
        return train

    def converged(self, change: float, tol: float) -> bool:
        """Whether this change of the objective in an epoch is so small that training may end."""
        return abs(change) < tol

    def train_score(self, train: list[float | None]) -> list[float | None]:
        """What `stop_at_train` is compared with, where the value of `advance` is only a running mean."""
        return train

    def line(self, position: int) -> dict[str, Any]:
        """Further entries for the history's line of the member at this position of `active`."""
        return {}

    def drop(self, members: Sequence[int]) -> None:  # noqa: B027
        """These members have stopped and need not advance any more."""

    def revert(self, epoch: int, folder: Path | None) -> str:
        """After divergence in this epoch: put back the last good parameters; which these are, in words."""
        return "the last good parameters were kept"

    def messages(self) -> list[str]:
        """What else to know at the end."""
        return []

    def finish(self) -> None:  # noqa: B027
        """Put the best parameters into the models."""


def run(
    learner: Learner,
    epochs: int,
    *,
    checkpoint: Checkpoint | None = None,
    metrics: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[History]:
    """Train until every member has stopped; ends with the best parameters of each.

    Args:
        learner: what is trained.
        epochs: how many at most.
        checkpoint: keeps the state in a file, and gives it back where an interrupted training goes on.
        metrics: file that gets one JSON line per epoch (of the first member).
        callbacks: called with a `Progress`; one that returns True ends training after the epoch.

    Raises:
        Diverged: no member has finite parameters any more.
    """
    histories = [History() for _ in learner.stopping]
    objectives: list[float | None] = [None] * len(histories)
    epoch, folder = 0, None if checkpoint is None else checkpoint.path.parent
    if checkpoint is not None and checkpoint.found is not None:
        tensors, facts = checkpoint.found
        learner.restore((tensors, facts))
        histories = [History.from_json(h) for h in facts.get("histories", [facts.get("history")])]
        objectives = facts.get("objectives", objectives)
        epoch = facts["epoch"]
    if metrics is not None:
        lines = "".join(json.dumps(line) + "\n" for line in histories[0].epochs)
        write_atomically(metrics, lambda path: path.write_text(lines, encoding="utf-8"))
    began = time.monotonic() - max(history.seconds for history in histories)
    reporter = _Reporter(learner, epochs, callbacks, began, histories)

    while not all(history.stopped for history in histories):
        epoch += 1
        reporter.epoch = epoch
        train = learner.advance(reporter.within)
        sound = [value is None or math.isfinite(value) for value in train]
        scores = learner.score(epoch) if any(sound) else None
        if scores is not None:
            sound = [ok and math.isfinite(s.mean) for ok, s in zip(sound, scores, strict=True)]
        limits = [learner.stopping[m].stop_at_train for m in learner.active]
        reached = learner.train_score(train) if any(v is not None for v in limits) and any(sound) else train
        objective = learner.objective(train)
        seconds = time.monotonic() - began

        running = [k for k, m in enumerate(learner.active) if not histories[m].stopped]
        good = [k for k in running if sound[k]]
        better = []
        for k in good:
            m, score = learner.active[k], None if scores is None else scores[k]
            if _improved(histories[m], score, learner.validated):
                better.append(m)
                histories[m].best_epoch = epoch
                histories[m].best_valid = None if score is None else score.mean
            histories[m].epochs.append(_line(learner, k, epoch, train[k], score, m in better, seconds))
            histories[m].seconds = seconds
        if good:
            learner.accept(better)
        elif learner.raises and all(h.best_epoch == 0 or len(histories) == 1 for h in histories):
            kept = learner.revert(epoch, folder)
            raise Diverged(f"training diverged in {learner.unit} {epoch}; {kept}. {learner.advice}".rstrip())
        asked = reporter.after([train[k] for k in good], scores and [scores[k] for k in good])
        for k in running:
            m = learner.active[k]
            previous, objectives[m] = objectives[m], objective[k]
            histories[m].stopped = (
                "diverged"
                if not sound[k]
                else _reason(histories[m], learner, m, (previous, objective[k]), reached[k])
                or ("a callback stopped it" if asked else "")
                or (f"all {learner.unit}s done" if epoch == epochs else "")
            )
        if metrics is not None and any(learner.active[k] == 0 for k in good):
            with open(metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(histories[0].epochs[-1]) + "\n")
        stopped = [m for m in learner.active if histories[m].stopped]
        ended = all(history.stopped for history in histories)
        if ended:
            last = [m for m in learner.active if not histories[m].best_epoch and histories[m].epochs]
            learner.accept(last)  # never validated: the last parameters are kept
            for history in histories:
                history.best_epoch = history.best_epoch or len(history.epochs)
                history.messages = learner.messages()
        if stopped and not ended:
            learner.drop(stopped)
        if checkpoint is not None and checkpoint.due(ended):
            tensors, facts = learner.state()
            facts |= {"epoch": epoch, "histories": [asdict(h) for h in histories], "objectives": objectives}
            checkpoint.save(tensors, facts)
    learner.finish()
    return histories


def _improved(history: History, score: Estimate | None, validated: bool) -> bool:
    if score is None:
        return not validated
    return history.best_valid is None or score.mean > history.best_valid


def _line(
    learner: Learner,
    position: int,
    epoch: int,
    train: float | None,
    score: Estimate | None,
    best: bool,
    seconds: float,
) -> dict[str, Any]:
    valid = None if score is None else score.mean
    return {
        "epoch": epoch,
        "train": train,
        "valid": valid,
        **learner.line(position),
        "best": best,
        "seconds": round(seconds, 3),
    }


def _reason(
    history: History,
    learner: Learner,
    member: int,
    objective: tuple[float | None, float | None],
    reached: float | None,
) -> str:
    """Why a member stops after this epoch, or nothing."""
    rule = learner.stopping[member]
    before, now = objective
    if rule.stop_at_train is not None and reached is not None and reached >= rule.stop_at_train:
        return "training likelihood reached the given value"
    known = rule.tol is not None and before is not None and now is not None
    if known and learner.converged(now - before, rule.tol):  # type: ignore[operator, arg-type]
        return "converged"
    if rule.patience is not None and learner.validated:
        since = sum(line["valid"] is not None for line in history.epochs[history.best_epoch :])
        if since >= rule.patience and history.epochs[-1]["valid"] is not None:
            return f"no better validation score for {rule.patience} {learner.unit}s"
    return ""


class _Reporter:
    """Calls the callbacks, within epochs not more often than `REPORT_SECONDS`."""

    def __init__(
        self,
        learner: Learner,
        epochs: int,
        callbacks: Sequence[Callback],
        began: float,
        histories: Sequence[History],
    ) -> None:
        self.learner, self.callbacks, self.began, self.histories = learner, callbacks, began, histories
        self.epochs, self.epoch, self.asked, self.rate = epochs, 0, False, math.nan
        self.last = time.monotonic()

    def within(self, update: int, learning_rate: float, train: Callable[[], float]) -> None:
        """Report an update of the present epoch, if it is time."""
        self.rate = learning_rate
        now = time.monotonic()
        if self.callbacks and now - self.last > REPORT_SECONDS:
            self.last = now
            self._call(update, train(), None, done=False)

    def after(self, train: Sequence[float | None], scores: Sequence[Estimate] | None) -> bool:
        """Report the end of an epoch; whether a callback wants to stop."""
        update = self.epoch * self.learner.updates
        leader = None if not scores else max(range(len(scores)), key=lambda k: scores[k].mean)
        known = [value for value in train if value is not None]
        value = train[leader] if leader is not None else max(known, default=None)
        valid = None if leader is None or scores is None else scores[leader]
        self._call(update, math.nan if value is None else value, valid, done=True)
        return self.asked

    def _call(self, update: int, train: float, valid: Estimate | None, done: bool) -> None:
        best = max((h.best_valid for h in self.histories if h.best_valid is not None), default=None)
        now = Progress(
            self.learner.model,
            self.epoch,
            self.epochs,
            update,
            self.epochs * self.learner.updates,
            self.rate,
            train,
            done,
            valid,
            best,
            time.monotonic() - self.began,
            self.histories,
        )
        answers = [callback(now) for callback in self.callbacks]
        self.asked = self.asked or any(answers)


def part_of(callbacks: Sequence[Callback], part: int, parts: int) -> list[Callback]:
    """Callbacks for one of several trainings that follow each other: updates are counted over all of them."""
    best: list[float] = []

    def shifted(callback: Callback, now: Progress) -> bool | None:
        if now.best_valid is not None:
            best.append(now.best_valid)
        moved = replace(now, update=part * now.updates + now.update, updates=parts * now.updates)
        return callback(replace(moved, best_valid=max(best, default=None)))

    return [lambda now, callback=callback: shifted(callback, now) for callback in callbacks]  # type: ignore[misc]
