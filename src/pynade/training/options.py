"""Options of gradient descent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

KNOWN = {"optimizer": ("sgd", "adam", "adamw"), "schedule": ("constant", "linear", "inverse", "cosine")}
KNOWN |= {"decay_on": ("all", "input"), "precision": ("float32", "bf16")}
LEAST = dict.fromkeys(("gamma", "warm_up", "score_train", "momentum_after", "weight_decay"), 0)
LEAST |= dict.fromkeys(("batch_size", "epochs", "updates_per_epoch", "patience", "accumulate"), 1)
LEAST |= {"valid_draws": 2}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Advanced options of gradient descent; `Gradient` has all options.

    Attributes:
        optimizer: "sgd" (with momentum), "adam", or "adamw" (decoupled weight decay).
        schedule: of the learning rate: "constant"; "linear" to zero at the last update; "inverse",
            rate / (1 + gamma t) at update t; "cosine" to zero.
        warm_up: number of initial updates over which the rate rises linearly to that of the schedule.
        gamma: constant of the inverse schedule.
        momentum: momentum coefficient of SGD.
        momentum_after: number of initial epochs without momentum.
        decay_on: weight decay of "all" parameters, or only of the "input" matrix as in the paper's RNADE.
        clip: largest norm of the whole gradient; None does not clip.
        updates_per_epoch: minibatches in an epoch; None makes an epoch one pass over the data.
        ema: decay of an exponential moving average of the weights (such as 0.999), which is validated and
            saved instead of the weights; None uses no average.
        precision: "float32", or "bf16": on a GPU the net computes in bfloat16 (torch.autocast), while its
            weights, the log-probabilities and the updates stay float32. It has no effect on a CPU.
        stop_at_train: stop when the log-likelihood of the training rows, scored after every epoch, reaches
            this value (the paper's rule when retraining on train + valid).
        score_train: number of training rows that are scored after every epoch like the validation rows
            (without dropout, with averaged weights), so that the two curves can be compared.
        accumulate: split every minibatch into this many pieces and accumulate their gradients: the same
            updates up to rounding, with less memory. On a GPU it disables CUDA graphs, so that small updates
            are slower.
        valid_draws: random prefixes of each validation row for the estimated score of an orderless model.
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
    accumulate: int = 1
    valid_draws: int = 4


@dataclass(frozen=True, kw_only=True)
class Gradient(Training):
    """Minibatch gradient descent on `model.loss`: the options of `Training`, and those below.

    Attributes:
        epochs: maximum number of epochs.
        learning_rate: initial learning rate.
        batch_size: rows per update.
        weight_decay: coefficient of the L2 penalty's gradient (AdamW: of the decoupled weight decay).
        patience: epochs without a better validation score before stopping; None does not stop early.

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
        for name, known in KNOWN.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"unknown {name} {value!r}; known: {', '.join(known)}")
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        for name, valid, words in (
            ("learning_rate", self.learning_rate > 0 and math.isfinite(self.learning_rate), "positive"),
            ("momentum", 0 <= self.momentum < 1, "in [0, 1)"),
            ("ema", self.ema is None or 0 < self.ema < 1, "between 0 and 1"),
            ("clip", self.clip is None or self.clip > 0, "positive"),
        ):
            if not valid:
                raise ValueError(f"{name} must be {words}, not {getattr(self, name)}")

    def rate(self, t: int, total: int, initial: Any = None, gamma: Any = None) -> Any:
        """Learning rate of update t = 0 … total - 1; None takes the initial rate and gamma of the options."""
        initial = self.learning_rate if initial is None else initial
        gamma = self.gamma if gamma is None else gamma
        warm_up = 1.0 if self.warm_up == 0 else min(1.0, (t + 1) / self.warm_up)
        return initial * warm_up * schedule_factor(self.schedule, gamma, t, total)


def schedule_factor(schedule: str, gamma: Any, t: int, total: int) -> Any:
    """The learning rate at update t divided by the initial rate; gamma may have one value per member."""
    if schedule == "linear":
        return 1 - t / total
    if schedule == "inverse":
        return 1 / (1 + gamma * t)
    if schedule == "cosine":
        return (1 + math.cos(math.pi * t / total)) / 2
    return 1.0
