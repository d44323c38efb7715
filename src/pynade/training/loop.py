"""The training loop: early stopping, callbacks, checkpoints, divergence and one history, for every learner.

A `Learner` does one epoch (a pass of minibatches, an iteration of EM) at a time and scores its parameters. It
may train several members at once (a population, EM on several settings); each member stops for itself.
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

Value = float | None  # a log-likelihood, None where it is not known
REPORT_SECONDS = 0.2  # between progress reports within an epoch


class Diverged(ArithmeticError):
    """A log-likelihood or a parameter stopped being finite; the last good parameters were put back."""


@dataclass(frozen=True)
class Stopping:
    """When one member stops, besides the last epoch; None never."""

    patience: int | None = None  # after this many validations without a better score
    tol: float | None = None  # when the objective changes by less in an epoch, in nats per row
    stop_at_train: float | None = None  # when the mean log-likelihood of the training rows reaches this value


@dataclass(frozen=True)
class Progress:
    """What a callback gets, several times a second and at the end of every epoch."""

    model: Any  # what is trained; None where there is no single model
    epoch: int  # 1, 2, …
    epochs: int  # the most epochs
    update: int  # updates done, over all epochs
    updates: int  # updates if training runs to its last epoch
    learning_rate: float  # of the last update; NaN where there is none
    train: float  # mean log-likelihood of this epoch's rows so far; of several members, of the leading one
    epoch_done: bool  # False within an epoch
    valid: Estimate | None = None  # validation score of this epoch, where there is one
    best_valid: float | None = None  # best validation score so far
    seconds: float = 0.0  # since the beginning, earlier sessions included
    histories: Sequence[History] = ()  # of all members


#: Called with a `Progress`; one that returns True, or the reason as text, ends training after the epoch.
Callback = Callable[[Progress], "bool | str | None"]

#: What a learner calls within an epoch: updates done, learning rate, mean log-likelihood so far.
Report = Callable[[int, float, Callable[[], float]], None]


class Learner(ABC):
    """Abstract: something that improves the parameters of one or more members, one epoch at a time."""

    model: Any = None  # the model in training, for callbacks; None if there are several
    unit = "epoch"  # what an epoch is called: "epoch" or "iteration"
    updates = 1  # in an epoch
    stopping: Sequence[Stopping]  # one for each member
    validated = False  # whether there are validation rows
    active: list[int]  # the members that `advance` and `score` report on, in this order
    raises = True  # `Diverged` when no member has finite parameters; otherwise they all stop as "diverged"
    advice = ""  # the end of the sentence that says that training diverged

    @abstractmethod
    def advance(self, report: Report) -> list[Value]:
        """One epoch; the mean training log-likelihood of each active member, not finite if it diverged."""

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

    def converged(self, change: float, tol: float) -> bool:
        """Whether this change of the objective in an epoch is so small that training may end."""
        return abs(change) < tol

    def train_score(self, train: list[Value]) -> list[Value]:
        """What `stop_at_train` is compared with, where the value of `advance` is only a running mean."""
        return train

    def line(self, position: int) -> dict[str, Any]:
        """Further entries for the history's line of the member at this position of `active`.

        An `objective` (where there is a prior) is what `tol` is compared with, instead of `train`.
        """
        return {}

    def drop(self, members: Sequence[int]) -> None:  # noqa: B027
        """These members have stopped and need not advance any more."""

    def recover(self, epoch: int) -> str:
        """After divergence in this epoch: go back to the last good state and change what may help, once.

        What was done, in words, and training goes on; nothing if training should end.
        """
        return ""

    def revert(self, epoch: int) -> str:
        """After divergence in this epoch: put back the last good parameters; which these are, in words."""
        return "the last good parameters were kept"

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
        learner: what is trained; `Diverged` is raised if no member has finite parameters any more, and the
            learner does not recover.
        epochs: how many at most.
        checkpoint: keeps the state in a file, from which an interrupted training goes on. Ctrl-C then waits
            for the end of an epoch of less than 20 seconds and the checkpoint; a second one does not. Of
            several processes all wait for the end of the epoch, whichever of them was asked to end.
        metrics: file that gets one JSON line per epoch (of the first member).
        callbacks: called with a `Progress`; one that returns True ends training after the epoch.
    """
    with _interrupts(wait=checkpoint is not None) as asked:
        return _run(learner, epochs, checkpoint, metrics, callbacks, asked)


@contextmanager
def _interrupts(wait: bool) -> Iterator[list[int]]:
    """A list that gets the first signal for which Python has a handler (Ctrl-C), which then waits."""
    asked: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        if len(asked) > 1:
            before[number](number, frame)

    possible = wait and threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM) if possible else ():
        if callable(handler := signal.getsignal(number)):
            before[number] = handler
            signal.signal(number, note)
    try:
        yield asked
    finally:
        for old, handler in before.items():
            signal.signal(old, handler)
    if asked:  # when training had just ended
        raise KeyboardInterrupt


def _run(
    learner: Learner,
    epochs: int,
    checkpoint: Checkpoint | None,
    metrics: Path | None,
    callbacks: Sequence[Callback],
    asked: list[int],
) -> list[History]:
    histories = [History() for _ in learner.stopping]
    epoch, several = 0, rank_and_size()[1] > 1
    callbacks, metrics = (callbacks, metrics) if is_first() else ((), None)
    if checkpoint is not None and checkpoint.found is not None:
        try:
            learner.restore(checkpoint.found)
            facts = checkpoint.found[1]
            histories = [History.from_json(h) for h in facts.get("histories", [facts.get("history")])]
            epoch = int(facts["epoch"])
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise Damaged(f"{checkpoint.path} is damaged (remove it to begin anew): {what}") from None
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
        place = (learner.model, epoch, epochs, update, epochs * learner.updates, rate, train, done)
        now = Progress(*place, valid, best, time.monotonic() - began, histories)
        with alone():  # the others know nothing of it
            answers = [callback(now) for callback in callbacks]
        stop = stop or next((answer for answer in answers if answer), False)

    def report(update: int, learning_rate: float, train: Callable[[], float]) -> None:
        nonlocal rate, reported
        rate = learning_rate
        if asked and saved == epoch - 1 and not several:  # nothing but a part of this epoch is lost
            raise KeyboardInterrupt
        if callbacks and time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            call(update, train(), None, done=False)

    while not all(history.stopped for history in histories):
        epoch += 1
        train = learner.advance(report)
        scores = learner.score(epoch) if any(map(_finite, train)) else None
        valid = [None] * len(train) if scores is None else [score.mean for score in scores]
        sound = [_finite(a) and _finite(b) for a, b in zip(train, valid, strict=True)]
        limited = any(learner.stopping[m].stop_at_train is not None for m in learner.active)
        reached = learner.train_score(train) if limited and any(sound) else train
        seconds = time.monotonic() - began

        running = [k for k, m in enumerate(learner.active) if not histories[m].stopped]
        good = [k for k in running if sound[k]]
        if not good and (done := learner.recover(epoch)):
            for k in running:
                histories[learner.active[k]].messages.append(done)
            epoch -= 1
            continue
        better = []
        for k in good:
            history, now = histories[learner.active[k]], valid[k]
            best = not learner.validated
            if now is not None:
                best = history.best_valid is None or now > history.best_valid
            if best:
                better.append(learner.active[k])
                history.best_epoch, history.best_valid = epoch, now
            line = {"epoch": epoch, "train": train[k], "valid": now, **learner.line(k), "best": best}
            history.epochs.append(line | {"seconds": round(seconds, 3)})
            history.seconds = seconds
        if good:
            learner.accept(better)
        elif learner.raises and all(h.best_epoch == 0 or len(histories) == 1 for h in histories):
            kept = learner.revert(epoch)
            raise Diverged(f"training diverged in {learner.unit} {epoch}; {kept}. {learner.advice}".rstrip())
        leader = max(good, key=lambda k: scores[k].mean) if scores and good else None
        known = [v for k in good if (v := train[k]) is not None and leader in (None, k)]
        score = None if scores is None or leader is None else scores[leader]
        call(epoch * learner.updates, max(known, default=math.nan), score, done=True)
        votes = gather_values((stop, bool(asked)))
        stop, leave = votes[0][0], any(own for _, own in votes)
        otherwise = f"all {learner.unit}s done" if epoch == epochs else ""
        if stop:
            otherwise = stop if isinstance(stop, str) else "a callback stopped it"
        for k in running:
            m = learner.active[k]
            reason = _reason(learner, learner.stopping[m], histories[m], reached[k]) or otherwise
            histories[m].stopped = reason if sound[k] else "diverged"
        if metrics is not None and any(learner.active[k] == 0 for k in good):
            with report_write_errors(metrics), open(metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(histories[0].epochs[-1]) + "\n")
        stopped = [m for m in learner.active if histories[m].stopped]
        ended = all(history.stopped for history in histories)
        if ended:  # where nothing was validated, the last parameters are kept
            learner.accept([m for m in learner.active if not histories[m].best_epoch and histories[m].epochs])
            for history in histories:
                history.best_epoch = history.best_epoch or len(history.epochs)
        elif stopped:
            learner.drop(stopped)
        if checkpoint is not None and checkpoint.due(ended or leave):
            tensors, facts = learner.state()
            facts |= {"epoch": epoch, "histories": [asdict(h) for h in histories]}
            checkpoint.save(tensors, facts)
            saved = epoch
        if leave:
            raise KeyboardInterrupt
    learner.finish()
    return histories


def _finite(value: Value) -> bool:
    return value is None or math.isfinite(value)


def _reason(learner: Learner, rule: Stopping, history: History, reached: Value) -> str:
    """Why a member stops after this epoch, or nothing."""
    if rule.stop_at_train is not None and reached is not None and reached >= rule.stop_at_train:
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


def part_of(callbacks: Sequence[Callback], part: int, parts: int) -> list[Callback]:
    """Callbacks for one of several trainings that follow each other: updates are counted over all of them."""

    def shifted(callback: Callback, now: Progress) -> bool | str | None:
        return callback(replace(now, update=part * now.updates + now.update, updates=parts * now.updates))

    return [partial(shifted, callback) for callback in callbacks]
