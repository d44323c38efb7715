"""Minibatch gradient descent on one model or on a population of them; layer-wise pretraining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from torch import Generator, Tensor

from pynade.likelihood import Estimate, log_likelihood, orderless_estimate
from pynade.models import Orderless
from pynade.nets import MaskedMLP
from pynade.precision import computing_in, fast_matmul
from pynade.processes import gather_values, is_first, rank_and_size
from pynade.store import save_density
from pynade.training.checkpoint import Checkpoint, State, Tensors, save_checkpoint
from pynade.training.history import History
from pynade.training.loop import Callback, Diverged, Learner, Report, Stopping, run
from pynade.training.options import Gradient
from pynade.training.population import Population, ScoredRows, distinct_rows
from pynade.training.step import Optimizer, Rows, Step, Trainable, use_average

if TYPE_CHECKING:
    from pynade.tables.dataset import RowSource

Folder = Path | str | None
Callbacks = Sequence[Callback]
CHECK_EVERY = 50  # updates between checks that the loss is finite
DIVISOR = 10  # of the learning rate, after the first divergence in the training of a single model
#: Options that may differ between the members of a population.
PER_MEMBER = ("learning_rate", "gamma", "momentum", "weight_decay", "patience", "stop_at_train")


@dataclass
class Member:
    """A member of a population: the model, rows, options and seed of a call of `fit`."""

    model: Trainable
    train: Rows  # members with the same rows should share one array object, which is then stored once
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
    folder: Folder = None,
    resume: bool = False,
    callbacks: Callbacks = (),
) -> History:
    """Train `model` in place; with validation rows, the final weights are those with the best score.

    Args:
        model: a density, or an orderless model.
        train: rows (N, D), or a source of rows, of which every epoch draws `updates_per_epoch` minibatches.
        valid: rows for early stopping, scored after every epoch; for an orderless model by an unbiased
            estimate, with the same random prefixes every time.
        options: options of training. If the loss becomes infinite or NaN, training returns to the state
            before the epoch and divides the learning rate by 10, with a note in `History.messages`; the
            second time `Diverged` is raised.
        seed: of the shuffling and of the random numbers of the loss; on a CPU it determines the result.
        folder: folder for metrics.jsonl and checkpoint.safetensors; None writes no files. Of several
            processes (`pynade.processes`) only the first writes.
        resume: continue from the checkpoint in `folder`, to the identical result.
        callbacks: called with a `Progress`; a callback that returns True stops training after the epoch.

    Example:
        >>> from pynade import families, models, nets, ordering
        >>> x, order = torch.eye(4).repeat(25, 1), ordering.Ordering.natural(4)
        >>> model = models.Autoregressive(nets.FVSBNNet(4), families.Bernoulli(), order)
        >>> history = fit(model, x, options=Gradient(epochs=100, learning_rate=0.1))
        >>> bool(model.log_prob(x).mean() > -1.5)  # the entropy is log 4 = 1.386
        True
    """
    options, source = options or Gradient(), None
    if not isinstance(train, Tensor | np.ndarray):
        if options.updates_per_epoch is None:
            raise ValueError("rows that are drawn on the fly have no end: set updates_per_epoch")
        source, first = train.to(model.device), Generator(model.device).manual_seed(0)
        train = source.draw(options.updates_per_epoch * options.batch_size, first)
    learner = _Gradient([Member(model, train, valid, options, seed)], source=source, folder=folder)
    checkpoint = metrics = None
    if folder is not None:
        path, metrics = Path(folder) / "checkpoint.safetensors", Path(folder) / "metrics.jsonl"
        checkpoint = Checkpoint(path, resume)
        if resume and checkpoint.previous is None:
            raise FileNotFoundError(f"there is no checkpoint at {path}")
    return run(learner, options.epochs, checkpoint=checkpoint, metrics=metrics, callbacks=callbacks)[0]


def fit_population(
    members: Sequence[Member], *, folder: Folder = None, resume: bool = False, callbacks: Callbacks = ()
) -> list[History]:
    """Train all members in place, each as by `fit`, and return their histories.

    With validation rows, the final weights are those with the best score. A member that diverges stops with
    its best weights, without a smaller learning rate, and does not affect the others.

    Args:
        members: models of one architecture, on one device. Their options may differ in learning_rate, gamma,
            momentum, weight_decay, patience and stop_at_train, their nets in dropout. If their numbers of
            rows differ and `updates_per_epoch` is not set, an epoch is one pass over the largest set.
        folder: folder for a checkpoint during training; None writes no file.
        resume, callbacks: as for `fit`.

    Example:
        >>> from pynade import families, models, nets, ordering
        >>> def member(x, rate):
        ...     parts = nets.FVSBNNet(4), families.Bernoulli(), ordering.Ordering.natural(4)
        ...     return Member(models.Autoregressive(*parts), x, x, Gradient(epochs=30, learning_rate=rate))
        >>> x = torch.eye(4).repeat(25, 1)
        >>> slow, fast = fit_population([member(x, 0.001), member(x, 0.1)])
        >>> fast.best_valid > slow.best_valid + 0.5
        True
    """
    plain = {name: getattr(Gradient(), name) for name in PER_MEMBER}
    if not members:
        raise ValueError("a population needs at least one member")
    if rank_and_size()[1] > 1:
        raise ValueError("a population is trained by one process: start it without torchrun")
    if len({replace(m.options, **plain) for m in members}) > 1:
        raise ValueError(f"members of a population may differ only in {', '.join(PER_MEMBER)}")
    if len({m.valid is None for m in members}) > 1:
        raise ValueError("either all members of a population have validation rows, or none has")
    learner = _Gradient(members, Population([m.model for m in members]))
    checkpoint = None if folder is None else Checkpoint(Path(folder) / "population.safetensors", resume)
    histories = run(learner, learner.options.epochs, checkpoint=checkpoint, callbacks=callbacks)
    if checkpoint is not None:
        checkpoint.path.unlink(missing_ok=True)
    return histories


def train_log_likelihoods(members: Sequence[Member]) -> list[float]:
    """Mean log-likelihood of every member's training rows under the present weights of its model."""
    rows = ScoredRows(members[0].model, [m.train for m in members])
    return rows.score(Population([m.model for m in members]), range(len(members)))


class _Gradient(Learner):
    """Minibatch gradient descent on one model (optionally with a source of rows), or on a population."""

    advice = "Try a smaller learning rate or gradient clipping."

    def __init__(
        self,
        members: Sequence[Member],
        population: Population | None = None,
        source: RowSource | None = None,
        folder: Folder = None,
    ) -> None:
        model, options = members[0].model, [m.options for m in members]
        self.members, self.population, self.epoch = members, population, 0
        self.source, self.folder = source, folder  # (for the last good weights, after divergence)
        self.device, self.options, self.facts = model.device, options[0], dict[str, Any]()
        self.single = self.raises = self.recovers = population is None
        self.divisor = 1  # of the learning rate
        self.model = model if self.single else None
        named = model.named_parameters() if population is None else population.trained.items()
        self.trained: Tensors = {n: p for n, p in named if p.requires_grad}
        inputs = {f"net.{n}" for n in getattr(getattr(model, "net", None), "input_weights", ())}
        decay_all, decays = self.options.decay_on == "all", any(o.weight_decay for o in options)
        if decays and not decay_all and not inputs:
            raise ValueError(f"{type(model).__name__} has no input matrix to decay; use decay_on='all'")
        self.decayed = [n for n in self.trained if decays and (decay_all or n in inputs)]
        self.stopping = [Stopping(patience=o.patience, stop_at_train=o.stop_at_train) for o in options]
        rows, data_of = distinct_rows(model, [m.train for m in members])
        self.sizes, self.x = [len(r) for r in rows], torch.cat(rows)
        # an epoch is one pass; for sets of different sizes, one pass over the largest set
        self.one_pass = self.options.updates_per_epoch is None and len(set(self.sizes)) == 1
        self.updates = self.options.updates_per_epoch or -(-max(self.sizes) // self.options.batch_size)
        self.key_of = [(d, m.seed) for d, m in zip(data_of, members, strict=True)]  # (rows, seed)
        seeded = {key: Generator(self.device).manual_seed(key[1]) for key in self.key_of}
        self._activate(list(range(len(members))), seeded)
        self.best = {n: t.clone() for n, t in self._weights.items()}
        self.good: State = self._copy_state() if self.single else ({}, {})  # after the last finite epoch
        valid = [m.valid for m in members if m.valid is not None]
        self.validated = bool(valid)
        self.rows: dict[str, Any] = {"train": self.x}
        if self.validated:
            self.rows["valid"] = (
                distinct_rows(model, valid)[0][0] if self.single else ScoredRows(model, valid)
            )
        if not self.single and any(o.stop_at_train is not None for o in options):
            self.rows["train"] = ScoredRows(model, [m.train for m in members])

    def _activate(self, members: list[int], generators: dict[tuple[int, int], Generator]) -> None:
        """Set the active members, whose parameters are in `trained`, and generators by (rows, seed)."""
        self.active, self.keys = members, sorted({self.key_of[m] for m in members})
        self.stream: Any = 0
        if self.population is not None:
            self.population.set_streams([self.keys.index(self.key_of[m]) for m in members])
            self.stream = self.population.stream
        decay = self._option("weight_decay")
        decay = decay if self.single else decay.to(self.device)
        optimizer = Optimizer(self.options.optimizer, self.trained, decay, self.decayed)
        sources, count = [generators[key] for key in self.keys], None if self.single else len(members)
        model = self.population or self.model
        self.step = Step(model, self.x, self.options, sources, optimizer, members=count)

    def _option(self, name: str) -> Any:
        """An option of the single model, or of the active members, (M,)."""
        values = [getattr(self.members[m].options, name) for m in self.active]
        return values[0] if self.population is None else torch.tensor(values, dtype=self.population.dtype)

    @property
    def _weights(self) -> Tensors:
        """The weights for scores and for the result, (M, …): the running averages, if there are any."""
        weights = self.step.average or self.trained
        return {n: t.detach()[None] if self.single else t.detach() for n, t in weights.items()}

    def advance(self, report: Report) -> list[float | None]:
        options, step, total = self.options, self.step, self.options.epochs * self.updates
        if self.source is not None:  # in place, since a captured update reads this memory
            self.x.copy_(self.source.draw(len(self.x), step.generators[0]))
        self.epoch += 1
        momentum = self._option("momentum") * float(self.epoch > options.momentum_after)
        initial, gamma = self._option("learning_rate") / self.divisor, self._option("gamma")
        streams = []
        for (data, _), generator in zip(self.keys, step.generators, strict=True):
            rows = minibatches(self.sizes[data], options.batch_size, self.updates, self.one_pass, generator)
            streams.append(torch.cat(list(rows)) + sum(self.sizes[:data]))
        step.loss_sum.zero_()
        n_rows, size = 0, rank_and_size()[1]
        for part in torch.stack(streams).split(options.batch_size, dim=1):
            rate = options.rate(step.optimizer.t, total, initial, gamma)
            with fast_matmul():
                step(part[self.stream], rate, momentum)  # rows (B,), or (M, B)
            n_rows, t = n_rows + part.shape[1], step.optimizer.t
            if self.single and t % CHECK_EVERY == 0 and not math.isfinite(float(self._loss_sum())):
                break
            shown = rate if self.single else math.nan
            report(t, shown, lambda n=n_rows: -size * float(step.loss_sum.min()) / n)  # type: ignore[misc]
        if size > 1 and len(set(gather_values(crc32(step.generators[0].get_state().numpy().tobytes())))) > 1:
            error = f"{type(self.model).__name__}.loss draws other random numbers in every process"
            raise ValueError(f"{error}: it has to draw for all rows of `pynade.processes.minibatch(x)`")
        finite = [t.isfinite().reshape(len(t), -1).all(-1) for t in self._weights.values()]
        train = (-self._loss_sum() / n_rows).view(-1)
        return [*train.masked_fill(~torch.stack(finite).all(0).cpu(), math.nan).tolist()]

    def _loss_sum(self) -> Tensor:
        """The sum of the losses of this epoch's rows so far, over all processes, on the CPU."""
        return torch.stack(gather_values(self.step.loss_sum.cpu())).sum(0)

    def score(self, epoch: int) -> list[Estimate] | None:
        options, t = self.options, self.step.optimizer.t
        scores = self._scores("valid", options.precision, options.valid_draws) if self.validated else None
        if self.single:
            rate = options.rate(t - 1, options.epochs * self.updates, options.learning_rate / self.divisor)
            self.facts = {"updates": t, "learning_rate": float(rate)}
            if n := options.score_train:
                self.rows["train_part"] = self.x[:: max(1, len(self.x) // n)][:n]
                self.facts["train_scored"] = self._scores("train_part", options.precision)[0].mean
            if scores is not None:
                errors = scores[0].to_json()
                self.facts |= {f"valid_{name}": errors[name] for name in ("stderr", "mc_stderr")}
        return scores

    def train_score(self, train: list[float | None]) -> list[float | None]:
        return [score.mean for score in self._scores("train")]

    def _scores(self, name: str, precision: str = "float32", draws: int = 4) -> list[Estimate]:
        """Scores of the active members on the rows of this name; estimates for an orderless model."""
        if self.population is not None:
            self.population.trained = self._weights
            scores = self.rows[name].score(self.population, self.active)
            self.population.trained = self.trained
            return [Estimate(score, math.nan, 0) for score in scores]
        with use_average(self.model, self.step.average):
            if isinstance(self.model, Orderless):
                return [orderless_estimate(self.model, self.rows[name], draws, precision=precision)]
            with computing_in(precision, self.device):
                return [log_likelihood(self.model, self.rows[name])]

    def line(self, position: int) -> dict[str, Any]:
        return self.facts

    def accept(self, better: Sequence[int]) -> None:
        active = torch.tensor([self.active.index(m) for m in better], dtype=torch.long, device=self.device)
        members = torch.tensor(list(better), dtype=torch.long, device=self.device)
        for name, tensor in self._weights.items():
            self.best[name].index_copy_(0, members, tensor[active])
        if self.single:
            self.good = self._copy_state()

    def drop(self, members: Sequence[int]) -> None:
        running = [k for k, m in enumerate(self.active) if m not in members]
        if self.population is None or not running or 2 * len(running) > len(self.active):
            return  # stopped members are removed only when they are half of the stack
        old, indexes = self.step, torch.tensor(running, device=self.device)
        self.trained = self.population.keep(indexes)
        self._activate([self.active[k] for k in running], dict(zip(self.keys, old.generators, strict=True)))
        state = {group: {n: t[indexes] for n, t in tensors.items()} for group, tensors in old.state().items()}
        self.step.restore(state, old.optimizer.t)

    def recover(self, epoch: int) -> str:
        if not self.recovers or self.divisor > 1:
            return ""
        self.restore(self.good)
        self.divisor, rate = DIVISOR, self.options.learning_rate
        weights = f"the weights of epoch {epoch - 1}" if epoch > 1 else "the initial weights"
        change = f"with the learning rate {rate / DIVISOR:g} instead of {rate:g}"
        return f"training diverged in epoch {epoch} and went on from {weights} {change}"

    def revert(self, epoch: int) -> str:
        note = f"; the learning rate had been divided by {self.divisor} before" if self.divisor > 1 else ""
        self.restore(self.good)
        self.best = self._weights
        self.finish()
        text = f"the weights of epoch {epoch - 1} were kept" if epoch > 1 else "the initial weights were kept"
        if self.folder is None or not is_first():
            return text + note
        path = Path(self.folder) / "last_good.safetensors"
        try:
            save_density(self.model, path)
        except TypeError:  # a model with unregistered classes: save only the weights
            save_checkpoint(path, {"model": self.model.state_dict()}, {})
        return f"{text} in {path}{note}"

    def finish(self) -> None:
        for m, member in enumerate(self.members):
            member.model.load_state_dict({n: t[m] for n, t in self.best.items()}, strict=False)

    def state(self) -> State:
        generators = {str(k): g.get_state() for k, g in enumerate(self.step.generators)}
        trained = self.model.state_dict() if self.single else self.trained  # (a model with its buffers)
        tensors = {"trained": trained, "best": self.best, "generators": generators}
        facts = {"active": self.active, "t": self.step.optimizer.t, "epoch": self.epoch}
        return tensors | self.step.state(), facts | ({"divisor": self.divisor} if self.single else {})

    def _copy_state(self) -> State:
        """A copy of the state; the best weights are shared, since only finite epochs change them."""
        tensors, facts = self.state()
        copies = {g: {n: t.clone() for n, t in group.items()} for g, group in tensors.items() if g != "best"}
        return copies | {"best": self.best}, facts

    def restore(self, state: State) -> None:
        tensors, facts = state
        if "model" in tensors:  # the older format, for a single model
            tensors["trained"], tensors["generators"] = tensors["model"], {"0": tensors["generator"]["state"]}
        self.epoch, active = facts["epoch"], facts.get("active", [0])
        self.divisor = int(facts.get("divisor", 1))
        if self.population is not None:
            self.trained = self.population.keep(torch.tensor(active, device=self.device))
        self._activate(active, {key: Generator(self.device) for key in self.key_of})
        with torch.no_grad():
            for group in ("trained", "best"):
                for name, tensor in self.state()[0][group].items():
                    tensor.copy_(tensors[group][name].view_as(tensor))
        self.step.restore(tensors, facts["t"])
        for k, generator in enumerate(self.step.generators):
            generator.set_state(tensors["generators"][str(k)])
        self.accept(())


def minibatches(
    n: int, batch_size: int, count: int, one_pass: bool, generator: Generator | None, device: Any = None
) -> Sequence[Tensor]:
    """Row indexes of an epoch's minibatches: one shuffled pass, or `count` minibatches of several passes."""
    passes = 1 if one_pass else math.ceil(count * batch_size / n)
    device = device if generator is None else generator.device
    rows = torch.cat([torch.randperm(n, generator=generator, device=device) for _ in range(passes)])
    return rows.split(batch_size)[:count]


def pretrain(
    model: Orderless,
    train: Rows,
    options: Gradient,
    *,
    epochs: int = 20,
    seed: int = 0,
    folder: Folder = None,
    callbacks: Callbacks = (),
) -> Orderless:
    """Layer-wise pretraining (Algorithm 2): a model of the same shape, grown and trained layer by layer.

    Start from an untrained net with one hidden layer; replace the output layer by a new hidden layer and a
    new output layer, and train the whole net; repeat until the net is as deep as that of `model`.

    Args:
        model: determines the shape; of its weights only the output bias is used.
        train: rows (N, D).
        options: options of training; epochs are replaced, and there is no early stopping.
        epochs: number of epochs after each new layer.
        seed: of new layers and of the training.
        folder: folder for the last good weights if training diverges.
        callbacks: called with a `Progress`.
    """
    net = model.net
    if not isinstance(net, MaskedMLP):
        raise TypeError(f"layers can be added to a MaskedMLP, not to a {type(net).__name__}")
    options = replace(options, epochs=epochs, patience=None, stop_at_train=None)
    generator, marginal = Generator().manual_seed(seed), net.bias.detach().clone()
    first, *rest = net.hidden
    net = MaskedMLP(**(net.config() | {"hidden": [first]}), generator=generator).to(net.bias)
    net.set_output_bias(marginal)
    pretrained = Orderless(net, model.family, model.stratified, model.long_prefixes)
    for depth, width in enumerate(rest, start=2):
        net = net.deeper(width, generator)
        net.set_output_bias(marginal)
        pretrained = Orderless(net, model.family, model.stratified, model.long_prefixes)
        learner = _Gradient([Member(pretrained, train, None, options, seed + depth)], folder=folder)
        learner.recovers = False  # (its message would be lost)
        try:
            run(learner, epochs, callbacks=callbacks)
        except Diverged as error:
            raise Diverged(f"in pretraining ({depth} layers) {error}") from None
    return pretrained
