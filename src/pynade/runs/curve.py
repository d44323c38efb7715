"""A figure of the training of a run, from its metrics.jsonl."""

from __future__ import annotations

from pathlib import Path

from pynade.runs.figures import save_figure, training_figure
from pynade.runs.summary import read_metrics


def plot_training(folder: Path, picture: Path) -> None:
    """Draw the training and validation log-likelihood of a run, epoch by epoch.

    Args:
        folder: The run folder.
        picture: The file to write (.png, .pdf or .svg).
    """
    save_figure(training_figure(read_metrics(folder)), picture)
