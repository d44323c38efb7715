"""The history of a training, and its files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pynade.digest import Damaged, read_header


@dataclass
class History:
    """Results of all epochs of a training, and why it ended; log-likelihoods in nats per row.

    A line of `epochs` and of metrics.jsonl has `epoch` (from 1), `train` and `valid` (mean log-likelihoods;
    None if unknown), `best` (whether the parameters of this epoch were the best so far) and further entries
    of the learner. In EM, line t + 1 belongs to the parameters after t M-steps.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0  # the epoch whose parameters were kept
    best_valid: float | None = None  # their validation score; None without validation rows
    seconds: float = 0.0  # wall time
    stopped: str = ""  # the reason why training ended
    messages: list[str] = field(default_factory=list)  # e.g. about an empty component that was reinitialised

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> History:
        """A history from its saved fields; files of version 0.1 have negative log-likelihoods."""
        return cls(**facts | {"epochs": [current_line(line) for line in facts["epochs"]]})

    @property
    def train_log_likelihood(self) -> float:
        """Training log-likelihood of the epoch whose parameters were kept."""
        return float(self.epochs[self.best_epoch - 1]["train"])


def current_line(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl in the present format; version 0.1 wrote `train_nll`, of opposite sign."""
    return {
        name.removesuffix("_nll"): -value if name.endswith("_nll") and value is not None else value
        for name, value in line.items()
    }


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl in a folder, one for each epoch (at least one).

    The file has no digest; for a finished run its lines are compared with the history in the model file.
    """
    path, model = folder / "metrics.jsonl", folder / "model.safetensors"
    try:
        epochs = [current_line(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        values = [line[name] for line in epochs for name in ("epoch", "train", "valid", "best")]
        if not all(value is None or isinstance(value, int | float) for value in values):
            raise ValueError("expected numbers")
        fitted = read_header(model).facts.get("estimator", {}).get("fitted", {}) if model.is_file() else {}
        saved = [current_line(line) for line in fitted.get("history_", {}).get("epochs", epochs)]
        if epochs and json.dumps(saved) != json.dumps(epochs):
            raise Damaged(f"{path} is damaged: it differs from the history of the model")
    except FileNotFoundError as error:
        raise ValueError(f"{folder} is no run folder: {path} is missing ({error.strerror})") from None
    except Damaged:
        raise
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from None
    if not epochs:
        raise ValueError(f"the run in {folder} has not finished an epoch yet")
    return epochs
