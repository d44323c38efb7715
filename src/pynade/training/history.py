"""The history of a training, as it is kept in files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """What happened in training, epoch by epoch, and how it ended; log-likelihoods in nats per row.

    A line of `epochs` and of metrics.jsonl has `epoch` (from 1), `train` and `valid` (mean log-likelihoods;
    None where unknown), `best` (whether the parameters of this epoch were the best so far) and what else the
    learner reports. In EM, line t + 1 belongs to the parameters after t M-steps.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0  # whose parameters were kept
    best_valid: float | None = None  # their validation score; None without validation rows
    seconds: float = 0.0  # wall time
    stopped: str = ""  # why training ended
    messages: list[str] = field(default_factory=list)  # such as an empty component that was placed again

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> History:
        """From what `vars` of a history gave; files of version 0.1 have negative log-likelihoods."""
        return cls(**facts | {"epochs": [current_line(line) for line in facts["epochs"]]})

    @property
    def train_log_likelihood(self) -> float:
        """Training log-likelihood of the epoch whose parameters were kept."""
        return float(self.epochs[self.best_epoch - 1]["train"])


def current_line(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl with log-likelihoods, where version 0.1 wrote negative ones (`train_nll`)."""
    return {
        name.removesuffix("_nll"): -value if name.endswith("_nll") and value is not None else value
        for name, value in line.items()
    }
