"""Minibatch gradient descent on one model, as a learner of the training loop; layer-wise pretraining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor

from pynade.likelihood import Estimate, log_likelihood, orderless_estimate
from pynade.models import Orderless
from pynade.nets import MaskedMLP
from pynade.precision import computing_in
from pynade.store import save_density
from pynade.training.checkpoint import Checkpoint, State, save_checkpoint
from pynade.training.history import History
from pynade.training.loop import Callback, Diverged, Learner, Report, Stopping, run
from pynade.training.options import Gradient
from pynade.training.step import Optimizer, Rows, Step, Trainable, averaged

if TYPE_CHECKING:
    from pynade.tables.dataset import RowSource


def fit(
    model: Trainable,
    train: Rows | RowSource,
    valid: Rows | None = None,
    options: Gradient | None = None,
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
        valid: rows for early stopping, scored after every epoch; for an orderless model by an unbiased
            estimate on the same random prefixes every time.
        options: how to train.
        seed: of the shuffling and of whatever the loss draws; the same seed gives the same run on CPU.
        folder: where to keep metrics.jsonl and checkpoint.safetensors; None keeps nothing.
        resume: go on from the checkpoint in `folder`, to the identical result.
        callbacks: called with a `Progress`; one that returns True ends training after the epoch.

    Raises:
        Diverged: the loss became infinite or not a number.

    Example:
        >>> from pynade import families, models, nets, ordering
        >>> x, order = torch.eye(4).repeat(25, 1), ordering.Ordering.natural(4)
        >>> model = models.Autoregressive(nets.FVSBNNet(4), families.Bernoulli(), order)
        >>> history = fit(model, x, options=Gradient(epochs=100, learning_rate=0.1))
        >>> bool(model.log_prob(x).mean() > -1.5)  # the entropy is log 4 = 1.386
        True
    """
    options = options or Gradient()
    learner = GradientLearner(model, train, valid, options, seed)
    checkpoint = metrics = None
    if folder is not None:
        path, metrics = Path(folder) / "checkpoint.safetensors", Path(folder) / "metrics.jsonl"
        if resume and not path.is_file():
            raise FileNotFoundError(f"there is no checkpoint at {path}")
        checkpoint = Checkpoint(path, resume)
    return run(learner, options.epochs, checkpoint=checkpoint, metrics=metrics, callbacks=callbacks)[0]


class GradientLearner(Learner):
    """One model trained by minibatch gradient descent on `model.loss`; arguments as for `fit`."""

    advice = "Try a smaller learning rate or gradient clipping."

    def __init__(
        self, model: Trainable, train: Rows | RowSource, valid: Rows | None, options: Gradient, seed: int
    ) -> None:
        self.model, self.options, self.active = model, options, [0]
        self.stopping = [Stopping(patience=options.patience, stop_at_train=options.stop_at_train)]
        self.generator = Generator(model.device).manual_seed(seed)
        self.source: RowSource | None = None
        if not isinstance(train, Tensor | np.ndarray):
            self.source = train.to(model.device)
            if options.updates_per_epoch is None:
                raise ValueError("rows that are drawn on the fly have no end: set updates_per_epoch")
            first = Generator(model.device).manual_seed(0)
            train = self.source.draw(options.updates_per_epoch * options.batch_size, first)
        self.x = checked_rows(model, train)
        self.valid = None if valid is None else checked_rows(model, valid)
        self.validated = valid is not None
        self.updates = options.updates_per_epoch or math.ceil(len(self.x) / options.batch_size)
        params: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        optimizer = Optimizer(options.optimizer, params, decays(model, params, options))
        self.step = Step(model, self.x, options, self.generator, optimizer)
        self._rate = partial(options.rate, total=options.epochs * self.updates)
        self.good = self.best = self.candidate = copy_of(model)  # last sound, best, and this epoch's weights
        self.epoch, self.facts = 0, dict[str, Any]()

    def advance(self, report: Report) -> list[float | None]:
        """All updates of an epoch; the mean log-likelihood of its rows, NaN if a weight is not finite."""
        options, self.epoch = self.options, self.epoch + 1
        momentum = options.momentum if self.epoch > options.momentum_after else 0.0
        if self.source is not None:  # into the same memory, which a captured update reads
            self.x.copy_(self.source.draw(len(self.x), self.generator))
        one_pass = options.updates_per_epoch is None
        batches = minibatches(len(self.x), options.batch_size, self.updates, one_pass, self.generator)
        train = float(self.step.epoch(batches, self._rate, momentum, report))
        with averaged(self.model, self.step.average):
            sound = all(bool(torch.isfinite(p).all()) for p in self.model.parameters())
        return [train if sound else math.nan]

    def score(self, epoch: int) -> list[Estimate] | None:
        """The validation rows' score, with the averaged weights where there are any."""
        t = self.step.optimizer.t
        self.facts = {"updates": t, "learning_rate": float(self._rate(t - 1))}
        with averaged(self.model, self.step.average):
            self.candidate = copy_of(self.model)
            score = None if self.valid is None else _score(self.model, self.valid, self.options.precision)
            if n := self.options.score_train:
                some = self.x[:: max(1, len(self.x) // n)][:n]
                self.facts["train_scored"] = _score(self.model, some, self.options.precision).mean
        if score is None:
            return None
        stderr = None if math.isnan(score.stderr) else score.stderr
        self.facts |= {"valid_stderr": stderr, "valid_mc_stderr": score.mc_stderr}
        return [score]

    def train_score(self, train: list[float | None]) -> list[float | None]:
        """The log-likelihood of all training rows under the weights after the epoch."""
        with averaged(self.model, self.step.average):
            return [_score(self.model, self.x).mean]

    def line(self, position: int) -> dict[str, Any]:
        """Updates, learning rate, and the errors of the validation score."""
        return self.facts

    def accept(self, better: Sequence[int]) -> None:
        """This epoch's weights are sound, and perhaps the best."""
        self.good = self.candidate
        if better:
            self.best = self.good

    def revert(self, epoch: int, folder: Path | None) -> str:
        """The weights after the last sound epoch, kept in a file where there is a folder."""
        self.model.load_state_dict(self.good)
        kept = f"the weights of epoch {epoch - 1} were kept" if epoch > 1 else "the initial weights were kept"
        return kept if folder is None else f"{kept} in {save_last_good(folder, self.model)}"

    def finish(self) -> None:
        """The best weights, back in the model."""
        self.model.load_state_dict(self.best)

    def state(self) -> State:
        """Weights, best weights, averages, optimizer, generator."""
        own = {"model": copy_of(self.model), "best": self.best}
        own["generator"] = {"state": self.generator.get_state()}
        return own | self.step.state(), {"t": self.step.optimizer.t}

    def restore(self, state: State) -> None:
        """Put everything back as it was."""
        tensors, facts = state
        self.model.load_state_dict(tensors["model"])
        self.step.restore(tensors, facts["t"])
        self.epoch = facts["epoch"]
        self.generator.set_state(tensors["generator"]["state"])
        self.best = {n: t.to(self.model.device) for n, t in tensors["best"].items()}
        self.good = copy_of(self.model)


def _score(model: Trainable, rows: Tensor, precision: str = "float32") -> Estimate:
    """Exact for a density, stochastic (the same prefixes every time) for an orderless model."""
    if isinstance(model, Orderless):
        return orderless_estimate(model, rows, precision=precision)
    with computing_in(precision, model.device):
        return log_likelihood(model, rows)


def checked_rows(model: Trainable, x: Rows) -> Tensor:
    """Checked rows on the model's device, in their own (small) dtype."""
    if len(x) == 0:
        raise ValueError("there are no rows to train on")
    rows = torch.as_tensor(x).to(model.device)
    model.check(rows)
    return rows


def minibatches(
    n: int, batch_size: int, count: int, one_pass: bool, generator: Generator | None, device: Any = None
) -> Sequence[Tensor]:
    """Row indexes of an epoch's minibatches: one shuffled pass, or `count` of them from as many as needed."""
    passes = 1 if one_pass else math.ceil(count * batch_size / n)
    here = device if generator is None else generator.device
    rows = torch.cat([torch.randperm(n, generator=generator, device=here) for _ in range(passes)])
    return rows.split(batch_size)[:count]


def decays(model: Trainable, params: dict[str, Tensor], options: Gradient) -> dict[str, Any]:
    """Weight decay by parameter name: all of them, or the net's input weights only."""
    names = set(params)
    if options.decay_on == "input":
        names = {f"net.{n}" for n in getattr(getattr(model, "net", None), "input_weights", ())}
    if options.weight_decay and not names:
        raise ValueError(f"{type(model).__name__} has no input matrix to decay; use decay_on='all'")
    return {n: options.weight_decay for n in params if n in names and options.weight_decay}


def copy_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The model's tensors, detached."""
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def save_last_good(folder: Path, model: Trainable) -> Path:
    """Write a loadable model file; of a model with unregistered parts, the bare weights."""
    path = folder / "last_good.safetensors"
    try:
        save_density(model, path)
    except TypeError:
        save_checkpoint(path, {"model": copy_of(model)}, {})
    return path


def pretrain(
    model: Orderless,
    train: Rows,
    options: Gradient,
    *,
    epochs: int = 20,
    seed: int = 0,
    folder: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
) -> Orderless:
    """A model of the same shape whose layers were added and trained one after the other (Algorithm 2).

    Starting from a random net with one hidden layer, which alone is not trained: remove the output layer, add
    a hidden layer and an output layer, train everything; repeat until the net is as deep as `model`'s.

    Args:
        model: gives the shape; of its own weights only the output bias is used.
        train: rows (N, D).
        options: how to train; its epochs are replaced, and there is no early stopping.
        epochs: after each new layer.
        seed: of new layers and of the training.
        folder: where the last good weights go if training diverges.
        callbacks: called with a `Progress`.
    """
    net = model.net
    if not isinstance(net, MaskedMLP):
        raise TypeError(f"layers can be added to a MaskedMLP, not to a {type(net).__name__}")
    options = replace(options, epochs=epochs, patience=None, stop_at_train=None)
    generator, marginal = Generator().manual_seed(seed), net.bias.detach().clone()
    first, *rest = net.hidden
    grown = MaskedMLP(**(net.config() | {"hidden": [first]}), generator=generator).to(net.bias)
    for depth, width in enumerate(rest, start=2):
        grown = grown.deeper(width, generator)
        grown.set_output_bias(marginal)
        deeper = Orderless(grown, model.family, model.stratified)
        try:
            fit(deeper, train, options=options, seed=seed + depth, callbacks=callbacks)
        except Diverged as error:
            if folder is None:
                raise
            kept = save_last_good(Path(folder), deeper)
            raise Diverged(f"in pretraining ({depth} layers) {error} They are in {kept}.") from None
    if not rest:
        grown.set_output_bias(marginal)
    return Orderless(grown, model.family, model.stratified)
