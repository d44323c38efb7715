"""The training loop of all learners: early stopping, callbacks, checkpoints, divergence and histories.

A `Learner` trains for one epoch (a pass of minibatches, an iteration of EM) at a time and scores its
parameters. It may train several members at once (a population, EM with several settings), each with its own
stopping criterion.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pynade.atomic import report_write_errors, write_atomically
from pynade.digest import Damaged
from pynade.likelihood import Estimate
from pynade.processes import alone, gather_values, is_first, rank_and_size
from pynade.training.checkpoint import Checkpoint, State
from pynade.training.history import History

Value = float | None  # a log-likelihood, None if unknown
REPORT_SECONDS = 0.2  # between progress reports within an epoch


class Diverged(ArithmeticError):
    """A log-likelihood or a parameter became infinite or NaN; the last good parameters were restored."""


@dataclass(frozen=True)
class Stopping:
    """Stopping criteria of one member, besides the number of epochs; None disables a criterion."""

    patience: int | None = None  # number of validations without a better score
    tol: float | None = None  # smallest change of the objective in an epoch, in nats per row
    stop_at_train: float | None = None  # target for the mean log-likelihood of the training rows


@dataclass(frozen=True)
class Progress:
    """The argument of callbacks, which are called several times a second and at the end of every epoch."""

    model: Any  # the model in training; None for several members
    epoch: int  # 1, 2, …
    epochs: int  # the maximum number of epochs
    update: int  # updates so far, over all epochs
    updates: int  # updates in all epochs
    learning_rate: float  # of the last update; NaN if undefined
    train: float  # mean log-likelihood of this epoch's rows so far; of several members, that of the best one
    epoch_done: bool  # False within an epoch
    valid: Estimate | None = None  # validation score of this epoch, if any
    best_valid: float | None = None  # best validation score so far
    seconds: float = 0.0  # since the start, including earlier sessions
    histories: Sequence[History] = ()  # of all members


#: Called with a `Progress`; a return value of True, or a reason as text, stops training after the epoch.
Callback = Callable[[Progress], "bool | str | None"]

#: Called by a learner within an epoch, with the updates so far, the learning rate, the mean log-likelihood.
Report = Callable[[int, float, Callable[[], float]], None]


class Learner(ABC):
    """Abstract training algorithm for the parameters of one or more members, one epoch at a time."""

    model: Any = None  # the model in training, for callbacks; None for several members
    unit = "epoch"  # name of an epoch in messages: "epoch" or "iteration"
    updates = 1  # in an epoch
    stopping: Sequence[Stopping]  # one for each member
    validated = False  # whether there are validation rows
    active: list[int]  # the members for which `advance` and `score` return values, in this order
    raises = True  # raise `Diverged` if all members diverge; False: they stop as "diverged"
    advice = ""  # appended to the message of `Diverged`

    @abstractmethod
    def advance(self, report: Report) -> list[Value]:
        """Train for one epoch; mean training log-likelihood of each active member, not finite if diverged."""

    @abstractmethod
    def accept(self, better: Sequence[int]) -> None:
        """Store the present parameters of these members as their best; called if no active one diverged."""

    @abstractmethod
    def state(self) -> State:
        """The complete state for a checkpoint: groups of tensors, and facts as JSON."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Restore a `state`."""

    def score(self, epoch: int) -> list[Estimate] | None:
        """Validation scores of the active members after this epoch; None for epochs without validation."""
        return None

    def converged(self, change: float, tol: float) -> bool:
        """Whether this change of the objective in an epoch is below the tolerance."""
        return abs(change) < tol

    def train_score(self, train: list[Value]) -> list[Value]:
        """Scores to compare with `stop_at_train`; by default the values of `advance`."""
        return train

    def line(self, position: int) -> dict[str, Any]:
        """Further entries for the line of the history of member `active[position]`.

        An entry `objective` (e.g. with a prior) is compared with `tol` instead of `train`.
        """
        return {}

    def drop(self, members: Sequence[int]) -> None:  # noqa: B027
        """Called when these members have stopped; they may be left out of further epochs."""

    def recover(self, epoch: int) -> str:
        """After divergence in this epoch: restore the last good state and change the options, once.

        Returns a message, with which training continues, or an empty string to stop.
        """
        return ""

    def revert(self, epoch: int) -> str:
        """After divergence in this epoch: restore the last good parameters, and describe them in words."""
        return "the last good parameters were kept"

    def finish(self) -> None:  # noqa: B027
        """Copy the best parameters into the models."""


def run(
    learner: Learner,
    epochs: int,
    *,
    checkpoint: Checkpoint | None = None,
    metrics: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[History]:
    """Train until every member has stopped, and keep the best parameters of each.

    Args:
        learner: the training algorithm; `Diverged` is raised if all members diverge and the learner does not
            recover.
        epochs: maximum number of epochs.
        checkpoint: file for the state, from which an interrupted training resumes. Ctrl-C then waits for the
            end of an epoch of less than 20 seconds and the checkpoint; a second Ctrl-C does not wait. Of
            several processes all wait for the end of the epoch if one of them is interrupted.
        metrics: file for one JSON line per epoch (of the first member).
        callbacks: called with a `Progress`; a callback that returns True stops training after the epoch.
    """
    with _catch_signals(wait=checkpoint is not None) as signals:
        return _run(learner, epochs, checkpoint, metrics, callbacks, signals)


@contextmanager
def _catch_signals(wait: bool) -> Iterator[list[int]]:
    """Collect signals that Python handles (such as Ctrl-C) in a list; the second one is handled at once."""
    signals: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        signals.append(number)
        if len(signals) > 1:
            before[number](number, frame)

    possible = wait and threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM) if possible else ():
        if callable(handler := signal.getsignal(number)):
            before[number] = handler
            signal.signal(number, note)
    try:
        yield signals
    finally:
        for old, handler in before.items():
            signal.signal(old, handler)
    if signals:  # after the last epoch
        raise KeyboardInterrupt


def _run(
    learner: Learner,
    epochs: int,
    checkpoint: Checkpoint | None,
    metrics: Path | None,
    callbacks: Sequence[Callback],
    signals: list[int],
) -> list[History]:
    histories = [History() for _ in learner.stopping]
    epoch, several = 0, rank_and_size()[1] > 1
    callbacks, metrics = (callbacks, metrics) if is_first() else ((), None)
    if checkpoint is not None and checkpoint.previous is not None:
        try:
            learner.restore(checkpoint.previous)
            facts = checkpoint.previous[1]
            histories = [History.from_json(h) for h in facts.get("histories", [facts.get("history")])]
            epoch = int(facts["epoch"])
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise Damaged(f"{checkpoint.path} is damaged (remove it to begin anew): {reason}") from None
    saved = epoch
    if metrics is not None:
        lines = "".join(json.dumps(line) + "\n" for line in histories[0].epochs)
        write_atomically(metrics, lambda path: path.write_text(lines, encoding="utf-8"))
    began = time.monotonic() - max(history.seconds for history in histories)
    rate, reported = math.nan, time.monotonic()
    stop: bool | str = False

    def call(update: int, train: float, valid: Estimate | None, done: bool) -> None:
        nonlocal stop
        best = max((h.best_valid for h in histories if h.best_valid is not None), default=None)
        counts = (epoch, epochs, update, epochs * learner.updates)
        seconds = time.monotonic() - began
        now = Progress(learner.model, *counts, rate, train, done, valid, best, seconds, histories)
        with alone():  # the other processes have no callbacks
            answers = [callback(now) for callback in callbacks]
        stop = stop or next((answer for answer in answers if answer), False)

    def report(update: int, learning_rate: float, train: Callable[[], float]) -> None:
        nonlocal rate, reported
        rate = learning_rate
        if signals and saved == epoch - 1 and not several:  # only a part of this epoch is lost
            raise KeyboardInterrupt
        if callbacks and time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            call(update, train(), None, done=False)

    while not all(history.stopped for history in histories):
        epoch += 1
        train = learner.advance(report)
        scores = learner.score(epoch) if any(map(_finite, train)) else None
        valid = [None] * len(train) if scores is None else [score.mean for score in scores]
        finite = [_finite(a) and _finite(b) for a, b in zip(train, valid, strict=True)]
        has_target = any(learner.stopping[m].stop_at_train is not None for m in learner.active)
        train_scores = learner.train_score(train) if has_target and any(finite) else train
        seconds = time.monotonic() - began

        running = [k for k, m in enumerate(learner.active) if not histories[m].stopped]
        good = [k for k in running if finite[k]]
        if not good and (message := learner.recover(epoch)):
            for k in running:
                histories[learner.active[k]].messages.append(message)
            epoch -= 1
            continue
        better = []
        for k in good:
            history, score = histories[learner.active[k]], valid[k]
            best = not learner.validated
            if score is not None:
                best = history.best_valid is None or score > history.best_valid
            if best:
                better.append(learner.active[k])
                history.best_epoch, history.best_valid = epoch, score
            line = {"epoch": epoch, "train": train[k], "valid": score, **learner.line(k), "best": best}
            history.epochs.append(line | {"seconds": round(seconds, 3)})
            history.seconds = seconds
        if good:
            learner.accept(better)
        elif learner.raises and all(h.best_epoch == 0 or len(histories) == 1 for h in histories):
            message = learner.revert(epoch)
            message = f"training diverged in {learner.unit} {epoch}; {message}. {learner.advice}"
            raise Diverged(message.rstrip())
        leader = max(good, key=lambda k: scores[k].mean) if scores and good else None
        known = [v for k in good if (v := train[k]) is not None and leader in (None, k)]
        leading = None if scores is None or leader is None else scores[leader]
        call(epoch * learner.updates, max(known, default=math.nan), leading, done=True)
        votes = gather_values((stop, bool(signals)))  # of all processes
        stop, interrupted = votes[0][0], any(vote for _, vote in votes)
        otherwise = f"all {learner.unit}s done" if epoch == epochs else ""
        if stop:
            otherwise = stop if isinstance(stop, str) else "a callback stopped it"
        for k in running:
            m = learner.active[k]
            reason = _stop_reason(learner, learner.stopping[m], histories[m], train_scores[k]) or otherwise
            histories[m].stopped = reason if finite[k] else "diverged"
        if metrics is not None and any(learner.active[k] == 0 for k in good):
            with report_write_errors(metrics), open(metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(histories[0].epochs[-1]) + "\n")
        stopped = [m for m in learner.active if histories[m].stopped]
        ended = all(history.stopped for history in histories)
        if ended:  # members without any validation keep their last parameters
            learner.accept([m for m in learner.active if not histories[m].best_epoch and histories[m].epochs])
            for history in histories:
                history.best_epoch = history.best_epoch or len(history.epochs)
        elif stopped:
            learner.drop(stopped)
        if checkpoint is not None and checkpoint.due(ended or interrupted):
            tensors, facts = learner.state()
            facts |= {"epoch": epoch, "histories": [asdict(h) for h in histories]}
            checkpoint.save(tensors, facts)
            saved = epoch
        if interrupted:
            raise KeyboardInterrupt
    learner.finish()
    return histories


def _finite(value: Value) -> bool:
    return value is None or math.isfinite(value)


def _stop_reason(learner: Learner, rule: Stopping, history: History, train: Value) -> str:
    """The reason why a member stops after this epoch; empty if it does not."""
    if rule.stop_at_train is not None and train is not None and train >= rule.stop_at_train:
        return "training likelihood reached the given value"
    values = [line.get("objective", line["train"]) for line in history.epochs[-2:]]
    change = None if len(values) < 2 or None in values else values[1] - values[0]
    if change is not None and rule.tol is not None and learner.converged(change, rule.tol):
        return "converged"
    if rule.patience is not None and learner.validated:
        since = sum(line["valid"] is not None for line in history.epochs[history.best_epoch :])
        if since >= rule.patience and history.epochs[-1]["valid"] is not None:
            return f"no better validation score for {rule.patience} {learner.unit}s"
    return ""


def for_part(callbacks: Sequence[Callback], part: int, parts: int) -> list[Callback]:
    """Callbacks for one part of a sequence of trainings, with the updates counted over all parts."""

    def call(callback: Callback, now: Progress) -> bool | str | None:
        return callback(replace(now, update=part * now.updates + now.update, updates=parts * now.updates))

    return [partial(call, callback) for callback in callbacks]
