"""Minibatch gradient descent as a learner of the training loop, on one model; layer-wise pretraining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass
class Member:
    """One model with its rows, its options and its seed: the arguments of `fit`."""

    model: Trainable
    train: Rows  # members that share rows should hold the same array object, which is then kept once
    valid: Rows | None
    options: Gradient
    seed: int = 0


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


class Descent(Learner):
    """Abstract: minibatch gradient descent on one model, or on several whose parameters are stacked.

    Args:
        members: the models with their rows; their options differ only in numbers of their own.
        stack: what has the loss of all of them: the only model, or a `Population`.
        trained: its parameters by name; those of a population have a leading axis.
    """

    def __init__(self, members: Sequence[Member], stack: Any, trained: dict[str, Tensor]) -> None:
        self.members, self.stack, self.trained, self.epoch = members, stack, trained, 0
        model, own = members[0].model, [m.options for m in members]
        self.device, self.options, self.alone = model.device, own[0], stack is model
        self.stopping = [Stopping(patience=o.patience, stop_at_train=o.stop_at_train) for o in own]
        self.validated = members[0].valid is not None
        sets, data_of = distinct([m.train for m in members])
        rows = [checked_rows(model, x) for x in sets]
        self.sizes, self.x = [len(r) for r in rows], torch.cat(rows)
        # an epoch is one pass, or with sets of different sizes as many updates as the largest needs for one
        self.one_pass = self.options.updates_per_epoch is None and len(set(self.sizes)) == 1
        self.updates = self.options.updates_per_epoch or -(-max(self.sizes) // self.options.batch_size)
        self.key_of = [(d, m.seed) for d, m in zip(data_of, members, strict=True)]  # (rows, seed)
        self.best = {n: t.detach().clone() for n, t in trained.items()}
        seeded = {key: Generator(self.device).manual_seed(key[1]) for key in self.key_of}
        self._enter(list(range(len(members))), seeded)

    def _enter(self, members: list[int], generators: dict[tuple[int, int], Generator]) -> None:
        """Begin with these members, whose parameters are in `trained`, and generators by (rows, seed)."""
        self.active, self.keys = members, sorted({self.key_of[m] for m in members})
        self.streams = [self.keys.index(self.key_of[m]) for m in members]
        self.stream: Any = 0 if self.alone else torch.tensor(self.streams, device=self.device)
        decay = self._numbers("weight_decay")
        some = any(self.members[m].options.weight_decay for m in members)
        names = decays(self.members[0].model, self.trained, self.options.decay_on) if some else ()
        decay = decay.to(self.device) if isinstance(decay, Tensor) else decay
        optimizer = Optimizer(self.options.optimizer, self.trained, decay, names)
        drawn, count = [generators[key] for key in self.keys], None if self.alone else len(members)
        self.step = Step(self.stack, self.x, self.options, drawn, optimizer, members=count)

    def _numbers(self, name: str) -> Any:
        """An option of the only model, or of each active member, (M,)."""
        own = [getattr(self.members[m].options, name) for m in self.active]
        return own[0] if self.alone else torch.tensor(own, dtype=self.stack.dtype)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights that are scored and kept: the averages, where there are any."""
        return self.step.average or self.trained

    def advance(self, report: Report) -> list[float | None]:
        """All updates of an epoch; the mean log-likelihood of each member's rows, NaN where it diverged."""
        options, step, total = self.options, self.step, self.options.epochs * self.updates
        self.epoch += 1
        momentum = self._numbers("momentum") * float(self.epoch > options.momentum_after)
        rate, gamma = self._numbers("learning_rate"), self._numbers("gamma")
        streams = []
        for (data, _), generator in zip(self.keys, step.generators, strict=True):
            rows = minibatches(self.sizes[data], options.batch_size, self.updates, self.one_pass, generator)
            streams.append(torch.cat(list(rows)) + sum(self.sizes[:data]))
        parts = torch.stack(streams).split(options.batch_size, dim=1)
        batches = (part[self.stream] for part in parts)  # each (B,), or (M, B)
        train = step.epoch(batches, lambda t: options.rate(t, total, rate, gamma), momentum, report)
        sound = [t.detach().isfinite().flatten(len(step.shape)).all(-1) for t in self.weights.values()]
        return [*train.masked_fill(~torch.stack(sound).all(0), math.nan).view(-1).tolist()]

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors of the only model, or the parameters of the active members."""
        return self.stack.state_dict() if self.alone else self.trained

    def state(self) -> State:
        """Weights, best weights, averages, optimizer, generators, and who is still trained."""
        drawn = {str(k): g.get_state() for k, g in enumerate(self.step.generators)}
        own = {"trained": self._tensors(), "best": self.best, "generators": drawn}
        return own | self.step.state(), {"active": self.active, "t": self.step.optimizer.t}

    def restore(self, state: State) -> None:
        """Put everything back as it was; `trained` holds the active members."""
        tensors, facts = state
        if "model" in tensors:  # the older form, of one model
            tensors["trained"], tensors["generators"] = tensors["model"], {"0": tensors["generator"]["state"]}
        self.epoch = facts["epoch"]
        with torch.no_grad():
            for group, own in (("trained", self._tensors()), ("best", self.best)):
                for name, tensor in own.items():
                    tensor.copy_(tensors[group][name])
        self._enter(facts.get("active", [0]), {key: Generator(self.device) for key in self.key_of})
        self.step.restore(tensors, facts["t"])
        for k, generator in enumerate(self.step.generators):
            generator.set_state(tensors["generators"][str(k)])


class GradientLearner(Descent):
    """One model trained by minibatch gradient descent on `model.loss`; arguments as for `fit`."""

    advice = "Try a smaller learning rate or gradient clipping."

    def __init__(
        self, model: Trainable, train: Rows | RowSource, valid: Rows | None, options: Gradient, seed: int
    ) -> None:
        self.model, self.facts = model, dict[str, Any]()
        self.source = None if isinstance(train, Tensor | np.ndarray) else train.to(model.device)
        if self.source is not None:
            if options.updates_per_epoch is None:
                raise ValueError("rows that are drawn on the fly have no end: set updates_per_epoch")
            first = Generator(model.device).manual_seed(0)
            train = self.source.draw(options.updates_per_epoch * options.batch_size, first)
        trained: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        super().__init__([Member(model, train, valid, options, seed)], model, trained)  # type: ignore[arg-type]
        self.valid = None if valid is None else checked_rows(model, valid)
        self.good = self.best  # the weights after the last sound epoch

    def advance(self, report: Report) -> list[float | None]:
        """All updates of an epoch, on fresh rows if there is a source of them."""
        if self.source is not None:  # into the same memory, which a captured update reads
            self.x.copy_(self.source.draw(len(self.x), self.step.generators[0]))
        return super().advance(report)

    def score(self, epoch: int) -> list[Estimate] | None:
        """The validation rows' score, with the averaged weights where there are any."""
        options, t, score = self.options, self.step.optimizer.t, None
        rate = options.rate(t - 1, options.epochs * self.updates)
        self.facts = {"updates": t, "learning_rate": float(rate)}
        with averaged(self.model, self.step.average):
            if self.valid is not None:
                score = _score(self.model, self.valid, options.precision, options.valid_draws)
            if n := options.score_train:
                some = self.x[:: max(1, len(self.x) // n)][:n]
                self.facts["train_scored"] = _score(self.model, some, options.precision).mean
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
        self.good = {n: t.detach().clone() for n, t in self.weights.items()}
        if better:
            self.best = self.good

    def revert(self, epoch: int, folder: Path | None) -> str:
        """The weights after the last sound epoch, kept in a file where there is a folder."""
        self.model.load_state_dict(self.good, strict=False)
        kept = f"the weights of epoch {epoch - 1} were kept" if epoch > 1 else "the initial weights were kept"
        return kept if folder is None else f"{kept} in {save_last_good(folder, self.model)}"

    def finish(self) -> None:
        """The best weights, back in the model."""
        self.model.load_state_dict(self.best, strict=False)

    def restore(self, state: State) -> None:
        """Put everything back as it was; the weights are sound."""
        super().restore(state)
        self.accept(())


def _score(model: Trainable, rows: Tensor, precision: str = "float32", draws: int = 4) -> Estimate:
    """Exact for a density, stochastic (the same prefixes every time) for an orderless model."""
    if isinstance(model, Orderless):
        return orderless_estimate(model, rows, draws, precision=precision)
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


def decays(model: Trainable, params: dict[str, Tensor], where: str) -> list[str]:
    """Names of the parameters that decay: all of them, or the net's input weights only."""
    names = set(params)
    if where == "input":
        names = {f"net.{n}" for n in getattr(getattr(model, "net", None), "input_weights", ())}
    if not names:
        raise ValueError(f"{type(model).__name__} has no input matrix to decay; use decay_on='all'")
    return [n for n in params if n in names]


def distinct(arrays: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The distinct objects among these, and for each the number of its object."""
    numbers: dict[int, int] = {}
    which = [numbers.setdefault(id(a), len(numbers)) for a in arrays]
    return [arrays[which.index(k)] for k in range(len(numbers))], which


def save_last_good(folder: Path, model: Trainable) -> Path:
    """Write a loadable model file; of a model with unregistered parts, the bare weights."""
    path = folder / "last_good.safetensors"
    try:
        save_density(model, path)
    except TypeError:
        save_checkpoint(path, {"model": model.state_dict()}, {})
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
