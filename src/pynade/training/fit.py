"""The training loop, top to bottom."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pynade.atomic import write_atomically
from pynade.likelihood import Estimate, log_likelihood, orderless_estimate
from pynade.models import Orderless
from pynade.precision import computing_in
from pynade.store import save_density
from pynade.training.checkpoint import CHECKPOINT_SECONDS, load_checkpoint, save_checkpoint
from pynade.training.optimizer import Optimizer
from pynade.training.options import Gradient
from pynade.training.step import Step, Trainable, averaged, fast_matmul

if TYPE_CHECKING:
    from pynade.tables.source import RowSource

CHECK_EVERY = 50  # updates between looks at whether the loss is still finite
REPORT_SECONDS = 0.2  # between reports within an epoch


class Diverged(ArithmeticError):
    """The loss stopped being finite; the model has been put back to its last good weights."""


@dataclass
class Progress:
    """What a callback is told, several times a second and at the end of every epoch."""

    model: Trainable
    epoch: int  # 1, 2, …
    epochs: int
    update: int  # updates done, over all epochs
    updates: int  # updates if training runs to its last epoch
    learning_rate: float
    train_nll: float  # mean loss over the rows of this epoch so far
    epoch_done: bool
    valid: Estimate | None = None  # at the end of an epoch, where there are validation rows
    best_valid: float | None = None  # best validation log-likelihood so far
    seconds: float = 0.0


Callback = Callable[[Progress], "bool | None"]


@dataclass
class History:
    """What happened, epoch by epoch (the lines of metrics.jsonl), how it ended, and what else to know."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_valid: float | None = None
    seconds: float = 0.0
    stopped: str = ""
    messages: list[str] = field(default_factory=list)  # such as an empty component that was seeded anew

    @property
    def train_log_likelihood(self) -> float:
        """Training log-likelihood of the epoch whose weights were kept."""
        return -float(self.epochs[self.best_epoch - 1]["train_nll"])


def fit(
    model: Trainable,
    train: Tensor | np.ndarray | RowSource,
    valid: Tensor | np.ndarray | None = None,
    how: Gradient | None = None,
    *,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> History:
    """Train `model` in place; with validation rows, end with the weights that scored best on them.

    Args:
        model: a density, or an orderless model.
        train: rows (N, D), or a source of rows: then every epoch draws `updates_per_epoch` fresh minibatches.
        valid: rows for early stopping, scored after every epoch: exactly, or for an orderless model by an
            unbiased estimate on the same random prefixes every time.
        how: the settings.
        seed: of the shuffling and of whatever the loss draws; the same seed gives the same run on CPU.
        folder: where to keep metrics.jsonl and checkpoint.safetensors; None keeps nothing.
        resume: go on from the checkpoint in `folder`, to the identical result.
        callbacks: called with a `Progress`; one that returns True ends training after the epoch.

    Raises:
        Diverged: the loss became infinite or not a number.

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.models import Autoregressive
        >>> from pynade.nets import FVSBNNet
        >>> from pynade.ordering import Ordering
        >>> x = torch.eye(4).repeat(25, 1)
        >>> model = Autoregressive(FVSBNNet(4), Bernoulli(), Ordering.natural(4))
        >>> history = fit(model, x, how=Gradient(epochs=100, learning_rate=0.1))
        >>> bool(model.log_prob(x).mean() > -1.5)  # the entropy is log 4 = 1.386
        True
    """
    how = how or Gradient()
    folder = None if folder is None else Path(folder)
    generator = torch.Generator(model.device).manual_seed(seed)
    source = None if isinstance(train, Tensor | np.ndarray) else train.to(model.device)
    if source is not None:
        if how.updates_per_epoch is None:
            raise ValueError("rows that are drawn on the fly have no end: set updates_per_epoch")
        x = source.draw(how.updates_per_epoch * how.batch_size, torch.Generator(model.device).manual_seed(0))
        model.check(x)
    else:
        x = checked_rows(model, train)  # type: ignore[arg-type]
    v = None if valid is None else checked_rows(model, valid)
    per_epoch = how.updates_per_epoch or math.ceil(len(x) / how.batch_size)
    total = how.epochs * per_epoch
    params: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = Optimizer(how.optimizer, params, decays(model, params, how))
    step = Step(model, x, how, generator, optimizer)
    history, first_epoch = History(), 1
    good = best = _copy(model)  # weights after the last finite epoch, and after the best one
    if resume and folder is not None:
        best, first_epoch = _restore(folder, step, history)
        good = _copy(model)
    elif folder is not None:
        (folder / "metrics.jsonl").write_text("", encoding="utf-8")

    started = time.monotonic() - history.seconds
    saved = reported = time.monotonic()
    for epoch in range(first_epoch, how.epochs + 1):
        if history.stopped:
            break
        momentum = how.momentum if epoch > how.momentum_after else 0.0
        if source is not None:  # into the same memory, which a captured update reads
            x.copy_(source.draw(len(x), generator))
        step.loss_sum.zero_()
        rows, asked_early = 0, False
        for batch in minibatches(len(x), how.batch_size, per_epoch, how.updates_per_epoch is None, generator):
            rate = how.rate(optimizer.t, total)
            with fast_matmul():
                step(batch, rate, momentum)
            rows += len(batch)
            if optimizer.t % CHECK_EVERY == 0 and not math.isfinite(float(step.loss_sum)):
                break
            if callbacks and time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                nll = float(step.loss_sum) / rows
                now = Progress(model, epoch, how.epochs, optimizer.t, total, rate, nll, False)
                now.best_valid, now.seconds = history.best_valid, reported - started
                answers = [callback(now) for callback in callbacks]
                asked_early = asked_early or any(answers)

        train_nll = float(step.loss_sum) / rows
        score, on_train, reached = None, None, -math.inf
        with averaged(model, step.average):
            finite = math.isfinite(train_nll) and _finite(model)
            if finite and v is not None:
                score = _score(model, v, how.precision)
                finite = math.isfinite(score.mean)
            if finite and how.score_train:
                some = x[:: max(1, len(x) // how.score_train)][: how.score_train]
                on_train = _score(model, some, how.precision)
            if finite and how.stop_at_train is not None:
                reached = _score(model, x).mean
            candidate = _copy(model) if finite else good
        history.seconds = time.monotonic() - started
        if not finite:
            _put(model, good)
            kept = (
                f"the weights of epoch {epoch - 1} were kept"
                if epoch > 1
                else "the initial weights were kept"
            )
            if folder is not None:
                kept += f" in {save_last_good(folder, model)}"
            raise Diverged(
                f"the loss stopped being finite in epoch {epoch} (learning rate {rate:g}); {kept}. "
                f"Try a smaller learning rate or gradient clipping."
            )

        good = candidate
        if score is None or history.best_valid is None or score.mean > history.best_valid:
            best, history.best_epoch = good, epoch
            history.best_valid = None if score is None else score.mean
        history.epochs.append(
            {
                "epoch": epoch,
                "updates": optimizer.t,
                "learning_rate": float(rate),
                "train_nll": train_nll,
                **({} if on_train is None else {"train_scored_nll": -on_train.mean}),
                "valid_nll": None if score is None else -score.mean,
                "valid_stderr": None if score is None or math.isnan(score.stderr) else score.stderr,
                "valid_mc_stderr": None if score is None else score.mc_stderr,
                "best": history.best_epoch == epoch,
                "seconds": round(history.seconds, 3),
            }
        )

        now = Progress(model, epoch, how.epochs, optimizer.t, total, rate, train_nll, True)
        now.valid, now.best_valid, now.seconds = score, history.best_valid, history.seconds
        asked = [callback(now) for callback in callbacks]
        if how.stop_at_train is not None and reached > how.stop_at_train:
            history.stopped = "training likelihood passed the given value"
        elif score is not None and how.patience is not None and epoch - history.best_epoch >= how.patience:
            history.stopped = f"no better validation score for {how.patience} epochs"
        elif asked_early or any(asked):
            history.stopped = "a callback asked for it"
        elif epoch == how.epochs:
            history.stopped = "all epochs done"

        if folder is not None:
            with open(folder / "metrics.jsonl", "a", encoding="utf-8") as f:
                f.write(json.dumps(history.epochs[-1]) + "\n")
            if history.stopped or time.monotonic() - saved > CHECKPOINT_SECONDS:
                _save(folder, epoch, step, best, history)
                saved = time.monotonic()

    _put(model, best)
    return history


def _score(model: Trainable, v: Tensor, precision: str = "float32") -> Estimate:
    """Validation: exact for a density, stochastic (the same prefixes every time) for an orderless model."""
    if isinstance(model, Orderless):
        return orderless_estimate(model, v, precision=precision)
    with computing_in(precision, model.device):
        return log_likelihood(model, v)


def checked_rows(model: Trainable, x: Tensor | np.ndarray) -> Tensor:
    """Checked rows on the model's device, in their own (small) dtype."""
    rows = torch.as_tensor(x)
    if len(rows) == 0:
        raise ValueError("there are no rows to train on")
    rows = rows.to(model.device)
    model.check(rows)
    return rows


def minibatches(
    n: int,
    batch_size: int,
    count: int,
    one_pass: bool,
    generator: torch.Generator | None,
    device: torch.device | None = None,
) -> Sequence[Tensor]:
    """Row indexes of an epoch's minibatches: one shuffled pass, or `count` of them from as many as needed."""
    passes = 1 if one_pass else math.ceil(count * batch_size / n)
    here = device if generator is None else generator.device
    rows = torch.cat([torch.randperm(n, generator=generator, device=here) for _ in range(passes)])
    return rows.split(batch_size)[:count]


def decays(model: Trainable, params: dict[str, Tensor], how: Gradient) -> dict[str, Any]:
    """Weight decay by parameter name: all of them, or the net's input weights only."""
    if how.weight_decay == 0:
        return {}
    if how.decay_on == "all":
        return dict.fromkeys(params, how.weight_decay)
    net = getattr(model, "net", None)
    names = {f"net.{n}" for n in getattr(net, "input_weights", ())}
    if not names:
        raise ValueError(f"{type(model).__name__} has no input matrix to decay; use decay_on='all'")
    return {n: how.weight_decay for n in params if n in names}


def _copy(model: torch.nn.Module) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def _put(model: torch.nn.Module, weights: dict[str, Tensor]) -> None:
    model.load_state_dict(weights)


def _finite(model: torch.nn.Module) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


def _save(folder: Path, epoch: int, step: Step, best: dict[str, Tensor], history: History) -> None:
    tensors = {
        "model": _copy(step.model),
        "best": best,
        "average": step.average,
        "optimizer": step.optimizer.state,
        "generator": {"state": step.generators[0].get_state()},
    }
    facts = {"epoch": epoch, "t": step.optimizer.t, "history": vars(history)}
    save_checkpoint(folder / "checkpoint.safetensors", tensors, facts)


def save_last_good(folder: Path, model: Trainable) -> Path:
    """A loadable model file; of a model with parts of the user's own, the bare weights."""
    path = folder / "last_good.safetensors"
    try:
        save_density(model, path)
    except TypeError:
        save_checkpoint(path, {"model": _copy(model)}, {})
    return path


def _restore(folder: Path, step: Step, history: History) -> tuple[dict[str, Tensor], int]:
    """Put everything back as it was; lines of metrics.jsonl that came after the checkpoint are dropped."""
    tensors, facts = load_checkpoint(folder / "checkpoint.safetensors")
    _put(step.model, tensors["model"])
    for name, t in tensors.get("optimizer", {}).items():
        step.optimizer.state[name].copy_(t)
    for name, t in tensors.get("average", {}).items():
        step.average[name].copy_(t)
    step.optimizer.t = facts["t"]
    step.generators[0].set_state(tensors["generator"]["state"])
    vars(history).update(facts["history"])
    lines = "".join(json.dumps(line) + "\n" for line in history.epochs)
    write_atomically(folder / "metrics.jsonl", lambda p: p.write_text(lines, encoding="utf-8"))
    return {n: t.to(step.model.device) for n, t in tensors["best"].items()}, facts["epoch"] + 1
