"""Callbacks that log the progress of training to TensorBoard and MLflow."""

from __future__ import annotations

import math
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

from pynade.training.loop import Callback, Progress


def to_tensorboard(folder: Path | str) -> Callback:
    """Write the log-likelihoods and the learning rate of every epoch for TensorBoard.

    The scalars are `train`, `valid`, `best_valid`, `learning_rate` and `epoch`, as far as they are defined;
    the step is the number of updates. View them with `tensorboard --logdir FOLDER`.

    Args:
        folder: folder of the event file, created if needed. ImportError without the package tensorboard.

    Example:
        >>> import numpy as np, pynade
        >>> model = pynade.NADE(hidden=4, epochs=3, random_state=0)
        >>> _ = model.fit(np.eye(6), callbacks=[to_tensorboard("logs/nade")])  # doctest: +SKIP
    """
    writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def write(now: Progress) -> None:
        for name, value in _values(now).items():
            writer.add_scalar(name, value, now.update)
        writer.flush()

    weakref.finalize(write, writer.close)  # callbacks are not called at the end of training
    return write


def to_mlflow(run_id: str | None = None) -> Callback:
    """Log the log-likelihoods and the learning rate of every epoch as metrics of an MLflow run.

    The metrics are `train`, `valid`, `best_valid`, `learning_rate` and `epoch`, as far as they are defined;
    the step is the number of updates.

    Args:
        run_id: identifier of the run; None uses the active run, which MLflow starts if there is none.
            ImportError without the package mlflow.

    Example:
        >>> import numpy as np, pynade
        >>> model = pynade.NADE(hidden=4, epochs=3, random_state=0)
        >>> import mlflow  # doctest: +SKIP
        >>> with mlflow.start_run():  # doctest: +SKIP
        ...     mlflow.log_params(model.get_params())
        ...     model.fit(np.eye(6), callbacks=[to_mlflow()])
    """
    mlflow = _module("mlflow", "mlflow")

    def log(now: Progress) -> None:
        if values := _values(now):
            mlflow.log_metrics(values, step=now.update, run_id=run_id)

    return log


def _module(name: str, extra: str) -> Any:
    """The module of this name; if it is not installed, an ImportError that names the extra of pynade."""
    try:
        return import_module(name)
    except ImportError as error:
        needed = f"to_{extra} needs the package {extra}: `pip install 'pynade[{extra}]'`"
        raise ImportError(needed) from error


def _values(now: Progress) -> dict[str, float]:
    """Finite values to log at the end of an epoch, by name; none within an epoch."""
    valid = None if now.valid is None else now.valid.mean
    values = {"train": now.train, "valid": valid, "best_valid": now.best_valid}
    values |= {"learning_rate": now.learning_rate, "epoch": now.epoch}
    return {k: v for k, v in values.items() if now.epoch_done and v is not None and math.isfinite(v)}
