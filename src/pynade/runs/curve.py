"""The course of a training run: what metrics.jsonl holds, and a picture of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pynade.runs.figures import save_figure, training_figure
from pynade.runs.run import read_spec


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says of every epoch, or a clear error."""
    read_spec(folder)
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        epochs = [dict(json.loads(line)) for line in lines]
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{folder / 'metrics.jsonl'} is missing or damaged: {error}") from None
    if not epochs:
        raise ValueError(f"the run in {folder} has not finished an epoch yet")
    return epochs


def plot_training(folder: Path, picture: Path) -> None:
    """Draw the training and validation curve of a run."""
    save_figure(training_figure(read_metrics(folder)), picture)
