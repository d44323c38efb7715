"""What every EM tells: its progress to a callback, and its history at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class EMProgress:
    """What a callback is told at each iteration; of many members, about the one that is ahead."""

    iteration: int  # 0 is the start, t comes after t M-steps
    iterations: int
    objective: float  # what EM never decreases, per row: log-likelihood plus log-prior where there is one
    train: float  # mean log-likelihood of the training rows (of the minibatch, in minibatch EM)
    valid: float | None  # of the validation rows, where they were scored
    seconds: float


EMCallback = Callable[[EMProgress], "bool | None"]


@dataclass
class EMHistory:
    """What happened; entry t of each list belongs to the parameters after t M-steps, 0 is the start.

    Attributes:
        train: mean training log-likelihood per row, in nats (of the minibatch, in minibatch EM).
        valid: mean validation log-likelihood, where there are validation rows.
        valid_at: the iterations that `valid` belongs to.
        objective: log-likelihood plus log-prior, per row; empty where there is no prior.
        messages: what else happened, such as an empty component that was seeded anew.
        best_iteration: whose parameters were kept.
        stopped: why it ended.
        seconds: wall time.

    Example:
        >>> history = EMHistory(train=[-3.0, -2.0, -1.5], valid=[-3.1, -2.2, -2.4], valid_at=[0, 1, 2])
        >>> history.best_iteration = 1
        >>> history.train_log_likelihood, history.best_valid
        (-2.0, -2.2)
    """

    train: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)
    valid_at: list[int] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    best_iteration: int = 0
    stopped: str = ""
    seconds: float = 0.0

    @property
    def train_log_likelihood(self) -> float:
        """Training log-likelihood of the parameters that were kept: `stop_at_train` when retraining.

        In minibatch EM no batch has seen the last parameters; of these it is that of the batch before.
        """
        return self.train[min(self.best_iteration, len(self.train) - 1)]

    @property
    def best_valid(self) -> float | None:
        """Validation log-likelihood of the parameters that were kept."""
        return self.valid[self.valid_at.index(self.best_iteration)] if self.valid else None
