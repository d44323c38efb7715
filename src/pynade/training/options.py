"""Options of gradient descent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "linear", "inverse", "cosine")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options of gradient descent that users seldom touch; `Gradient` has all of them.

    Attributes:
        optimizer: "sgd" (with momentum), "adam", or "adamw" (decoupled weight decay).
        schedule: of the learning rate: "constant"; "linear" to zero at the last update; "inverse",
            rate / (1 + gamma t) at update t; "cosine" to zero.
        warm_up: updates over which the rate rises linearly to that of the schedule; 0 has none.
        gamma: constant of the inverse schedule.
        momentum: factor of SGD's velocity.
        momentum_after: epochs before momentum sets in.
        decay_on: weight decay of "all" parameters, or only of the "input" matrix as in the paper's RNADE.
        clip: largest norm of the whole gradient; None does not clip.
        updates_per_epoch: minibatches in an epoch; None makes an epoch one pass over the data.
        ema: decay of a running average of the weights (such as 0.999) that is validated and kept in place of
            the weights themselves; None keeps no average.
        precision: "float32", or "bf16": on a GPU the net runs in bfloat16 (torch.autocast); its weights,
            the log-probabilities and the updates stay float32. On a CPU it has no effect.
        stop_at_train: stop when the log-likelihood of the training rows, scored after every epoch, reaches
            this value (the paper's rule when retraining on train + valid).
        score_train: score this many training rows after every epoch in the way of the validation rows
            (without dropout, with the averaged weights), so that the two curves can be compared.
    """

    optimizer: str = "adam"
    schedule: str = "constant"
    warm_up: int = 0
    gamma: float = 0.0
    momentum: float = 0.0
    momentum_after: int = 0
    decay_on: str = "all"
    clip: float | None = None
    updates_per_epoch: int | None = None
    ema: float | None = None
    precision: str = "float32"
    stop_at_train: float | None = None
    score_train: int = 0


@dataclass(frozen=True, kw_only=True)
class Gradient(Training):
    """Minibatch gradient descent on `model.loss`: the options of `Training`, and those below.

    Attributes:
        epochs: how many at most.
        learning_rate: the initial step size.
        batch_size: rows per update.
        weight_decay: strength of the L2 penalty's gradient (or of AdamW's shrinkage).
        patience: stop when validation has not improved for this many epochs; None runs on.

    Example:
        >>> options = Gradient(learning_rate=0.1, schedule="linear")
        >>> [options.rate(t, total=4) for t in range(4)]
        [0.1, 0.07..., 0.05, 0.02...]
    """

    epochs: int = 200
    learning_rate: float = 0.001
    batch_size: int = 100
    weight_decay: float = 0.0
    patience: int | None = 10

    def __post_init__(self) -> None:
        for name, value, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
            ("decay_on", self.decay_on, ("all", "input")),
            ("precision", self.precision, ("float32", "bf16")),
        ):
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; known: {', '.join(known)}")
        for name, number, least in (
            ("gamma", self.gamma, 0),
            ("warm_up", self.warm_up, 0),
            ("score_train", self.score_train, 0),
            ("momentum_after", self.momentum_after, 0),
            ("weight_decay", self.weight_decay, 0),
            ("batch_size", self.batch_size, 1),
            ("epochs", self.epochs, 1),
            ("updates_per_epoch", self.updates_per_epoch, 1),
            ("patience", self.patience, 1),
        ):
            if number is not None and not number >= least:
                raise ValueError(f"{name} must be at least {least}, not {number}")
        if not self.learning_rate > 0 or not math.isfinite(self.learning_rate):
            raise ValueError(f"learning_rate must be positive, not {self.learning_rate}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {self.momentum}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema must be between 0 and 1, not {self.ema}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, not {self.clip}")

    def rate(self, t: int, total: int) -> float:
        """Learning rate of update t = 0, 1, …, total - 1."""
        return (
            self.learning_rate * self.warm_up_factor(t) * schedule_factor(self.schedule, self.gamma, t, total)
        )

    def warm_up_factor(self, t: int) -> float:
        """Factor of the rate at update t while it rises: 1 / warm_up at the first, 1 from `warm_up` on."""
        return 1.0 if self.warm_up == 0 else min(1.0, (t + 1) / self.warm_up)


def schedule_factor(schedule: str, gamma: Any, t: int, total: int) -> Any:
    """Factor of the initial rate at update t; gamma may hold one value per member."""
    if schedule == "linear":
        return 1 - t / total
    if schedule == "inverse":
        return 1 / (1 + gamma * t)
    if schedule == "cosine":
        return (1 + math.cos(math.pi * t / total)) / 2
    return 1.0
