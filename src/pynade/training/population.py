"""Many models of one architecture, trained as one program.

Folds × learning rates × weight decays × seeds: the members' parameters are stacked on a leading axis, every
update is one batched computation, and each member has its own options, its own rows and its own early stop.
A member ends as it would have ended alone (up to rounding), because its shuffling and its prefixes come from
a generator seeded as `fit` seeds it; members with the same rows and the same seed share one generator.
(Dropout is the exception: its noise is drawn for all members at once.)
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.rnn import pad_sequence

from pynade.likelihood import Estimate, at_most, prefixes
from pynade.models import Ensemble, Orderless
from pynade.ordering import random_observed
from pynade.precision import fast_matmul
from pynade.store import describe
from pynade.training.checkpoint import Checkpoint, State
from pynade.training.gradient import checked_rows, decays, minibatches
from pynade.training.history import History
from pynade.training.loop import Callback, Learner, Report, Stopping, run
from pynade.training.options import Gradient
from pynade.training.step import Optimizer, Rows, Step, Trainable

#: Options in which the members of a population may differ.
OWN = ("learning_rate", "gamma", "momentum", "weight_decay", "patience", "stop_at_train")
SCORED_AT_ONCE = 200_000  # (member, row) pairs of a validation pass that are in memory together
DRAWS = 4  # prefixes per validation row of an orderless model, as in `orderless_estimate`


@dataclass
class Member:
    """One model with its rows, its options and its seed: the arguments of `fit`."""

    model: Trainable
    train: Rows  # members that share rows should hold the same array object, which is then kept once
    valid: Rows | None
    options: Gradient
    seed: int = 0


def fit_population(
    members: Sequence[Member],
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> list[History]:
    """Train all members in place, as `fit` would train each; those with validation rows end at their best.

    A member that diverges stops with its best weights and leaves the others alone.

    Args:
        members: of one architecture, on one device. Their options may differ in learning_rate, gamma,
            momentum, weight_decay, patience and stop_at_train, their nets in dropout. Where their numbers of
            rows differ and `updates_per_epoch` is not set, an epoch has as many updates as the largest set
            needs.
        folder: where to keep a checkpoint while training; None keeps nothing.
        resume: go on from the checkpoint in `folder`.
        callbacks: called with a `Progress`; one that returns True ends training after the epoch.

    Returns:
        The history of each member.

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
    learner = PopulationLearner(members)
    checkpoint = None if folder is None else Checkpoint(Path(folder) / "population.safetensors", resume)
    histories = run(learner, learner.options.epochs, checkpoint=checkpoint, callbacks=callbacks)
    if checkpoint is not None:
        checkpoint.path.unlink(missing_ok=True)
    return histories


class PopulationLearner(Learner):
    """A population in training; stopped members leave the stack when they are half of it."""

    raises = False

    def __init__(self, members: Sequence[Member]) -> None:
        self.members, self.options = members, _shared(members)
        self.device, self.dtype = members[0].model.device, members[0].model.dtype
        own = [m.options for m in members]
        self.stopping = [Stopping(patience=o.patience, stop_at_train=o.stop_at_train) for o in own]
        sets, data_of = distinct([m.train for m in members])
        rows = [checked_rows(members[0].model, x) for x in sets]
        self.sizes = [len(r) for r in rows]
        # an epoch is one pass, or with sets of different sizes as many updates as the largest needs for one
        self.one_pass = self.options.updates_per_epoch is None and len(set(self.sizes)) == 1
        self.updates = self.options.updates_per_epoch or -(-max(self.sizes) // self.options.batch_size)
        self.offsets = np.cumsum([0, *self.sizes]).tolist()
        self.x = torch.cat(rows)
        self.key_of = [(d, m.seed) for d, m in zip(data_of, members, strict=True)]  # (rows, seed)
        self.epoch = 0
        self.population = Population([m.model for m in members], np.zeros(len(members), dtype=int))
        seeded = {key: torch.Generator(self.device).manual_seed(key[1]) for key in self.key_of}
        self._enter(list(range(len(members))), seeded)
        self.best = {name: t.detach().clone() for name, t in self.population.trained.items()}
        self.validated, orderless = members[0].valid is not None, self.population.orderless
        if any((m.valid is not None) != self.validated for m in members):
            raise ValueError("either all members of a population have validation rows, or none has")
        self.on_valid = Scored(members, [m.valid for m in members], orderless) if self.validated else None
        scored = any(o.stop_at_train is not None for o in own)
        self.on_train = Scored(members, [m.train for m in members], orderless) if scored else None

    def advance(self, report: Report) -> list[float | None]:
        """All updates of an epoch; the mean log-likelihood of each member's rows, NaN where it diverged."""
        shared, step = self.options, self.step
        self.epoch += 1
        options = [self.members[m].options for m in self.active]
        late = float(self.epoch > shared.momentum_after)
        own = [(late * o.momentum, o.learning_rate, o.gamma) for o in options]
        momentum, rate, gamma = torch.tensor(own, dtype=self.dtype).T.contiguous()
        streams = []
        for (data, _), generator in zip(self.keys, step.generators, strict=True):
            parts = minibatches(self.sizes[data], shared.batch_size, self.updates, self.one_pass, generator)
            streams.append(torch.cat(list(parts)) + self.offsets[data])
        parts = torch.stack(streams).split(shared.batch_size, dim=1)
        batches = (part[self.population.stream] for part in parts)  # each (M, B)
        total = shared.epochs * self.updates
        train = step.epoch(batches, lambda t: shared.rate(t, total, rate, gamma), momentum, report).cpu()
        sound = [t.detach().flatten(1).isfinite().all(1) for t in self.population.trained.values()]
        return [float(v) for v in train.masked_fill(~torch.stack(sound).all(0).cpu(), math.nan)]

    def score(self, epoch: int) -> list[Estimate] | None:
        """The validation score of each member."""
        return [Estimate(v, math.nan, 0) for v in self._scored(self.on_valid)] if self.on_valid else None

    def train_score(self, train: list[float | None]) -> list[float | None]:
        """The log-likelihood of each member's training rows under its weights after the epoch."""
        assert self.on_train is not None
        return [*self._scored(self.on_train)]

    def _scored(self, rows: Scored) -> list[float]:
        own = self.population.trained
        self.population.trained = self.step.average or own
        scores = rows.score(self.population, np.array(self.active))
        self.population.trained = own
        return scores

    def accept(self, better: Sequence[int]) -> None:
        """Copy the weights of these members to the best ones."""
        here = torch.tensor([self.active.index(m) for m in better], dtype=torch.long, device=self.device)
        there = torch.tensor(list(better), dtype=torch.long, device=self.device)
        weights = self.step.average or self.population.trained
        for name, tensor in self.best.items():
            tensor.index_copy_(0, there, weights[name].detach()[here])

    def drop(self, members: Sequence[int]) -> None:
        """Take the stopped members out of the stack when they are half of it."""
        running = [k for k, m in enumerate(self.active) if m not in members]
        if not running or 2 * len(running) > len(self.active):
            return
        old, chosen = self.step, torch.tensor(running, device=self.device)
        self.population.keep(chosen)
        self._enter([self.active[k] for k in running], dict(zip(self.keys, old.generators, strict=True)))
        kept = {group: {n: t[chosen] for n, t in own.items()} for group, own in old.state().items()}
        self.step.restore(kept, old.optimizer.t)

    def _enter(self, members: list[int], generators: dict[tuple[int, int], torch.Generator]) -> None:
        """Begin with these members, which the population holds, and their generators by (rows, seed)."""
        self.active, self.keys = members, sorted({self.key_of[m] for m in members})
        self.population.set_streams(np.array([self.keys.index(self.key_of[m]) for m in members]))
        trained = self.population.trained
        strength = [self.members[m].options.weight_decay for m in members]
        decay = torch.tensor(strength, dtype=self.dtype, device=self.device)
        options = replace(self.options, weight_decay=float(decay.any()))
        decayed = decays(self.members[0].model, trained, options)
        optimizer = Optimizer(options.optimizer, trained, dict.fromkeys(decayed, decay))
        drawn = [generators[key] for key in self.keys]
        self.step = Step(self.population, self.x, options, drawn, optimizer, members=len(members))

    def finish(self) -> None:
        """The best weights, back in the members' own models."""
        for m, member in enumerate(self.members):
            member.model.load_state_dict({n: t[m] for n, t in self.best.items()}, strict=False)

    def state(self) -> State:
        """Weights, best weights, averages, optimizer, generators, and who is in the stack."""
        own = {"trained": self.population.trained, "best": self.best}
        own["generators"] = {str(k): g.get_state() for k, g in enumerate(self.step.generators)}
        return own | self.step.state(), {"active": self.active, "t": self.step.optimizer.t}

    def restore(self, state: State) -> None:
        """Put everything back as it was."""
        tensors, facts = state
        self.epoch = facts["epoch"]
        self.population.keep(torch.tensor(facts["active"], device=self.device))
        with torch.no_grad():
            for group, own in (("trained", self.population.trained), ("best", self.best)):
                for name, value in tensors[group].items():
                    own[name].copy_(value)
        self._enter(facts["active"], {key: torch.Generator(self.device) for key in self.key_of})
        self.step.restore(tensors, facts["t"])
        for k, generator in enumerate(self.step.generators):
            generator.set_state(tensors["generators"][str(k)])


def train_log_likelihoods(members: Sequence[Member]) -> list[float]:
    """Log-likelihood of every member's training rows under its model's present weights."""
    population = Population([m.model for m in members], np.zeros(len(members), dtype=int))
    rows = Scored(members, [m.train for m in members], population.orderless)
    return rows.score(population, np.arange(len(members)))


def _shared(members: Sequence[Member]) -> Gradient:
    """The options that all members share."""
    if not members:
        raise ValueError("a population needs at least one member")
    plain = {name: getattr(Gradient(), name) for name in OWN}
    options = {replace(m.options, **plain) for m in members}
    if len(options) > 1:
        raise ValueError(f"members of a population may differ only in {', '.join(OWN)}")
    return options.pop()


class Population(nn.Module):
    """M members of one architecture as one stacked model: `loss` of rows (M, B, D) is (M, B).

    Args:
        models: the members; they are copied. Their dropout rates may differ.
        stream: (M,), which of the generators each member draws from.
    """

    def __init__(self, models: Sequence[Trainable], stream: np.ndarray) -> None:
        super().__init__()
        if len({_architecture(model) for model in models}) > 1:
            raise ValueError("the members of a population must share one architecture")
        params, buffers = stack_module_state(list(models))
        trained = {n for n, p in models[0].named_parameters() if p.requires_grad}
        self.trained = {n: params[n].detach().clone().requires_grad_() for n in params if n in trained}
        self.fixed = {n: t.detach().clone() for n, t in (params | buffers).items() if n not in trained}
        self.skeleton = _RowLoss(copy.deepcopy(models[0]).to("meta"))
        self.rates = _different_rates(models)
        self.dtype, self.orderless = models[0].dtype, isinstance(models[0], Orderless)
        self.set_streams(stream)

    def set_streams(self, stream: np.ndarray) -> None:
        """Set which generator each member draws from: 0 … S-1, each used by some member."""
        device = next(iter(self.trained.values())).device
        self.stream = torch.as_tensor(stream, device=device)
        self.first = [int((stream == s).argmax()) for s in range(int(stream.max()) + 1)]

    def loss(self, rows: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Every member's loss of its own rows: (M, B, D) -> (M, B)."""
        if not (self.orderless or isinstance(self.skeleton.model, Ensemble)):
            return self.row_loss(rows, None, generators[0])
        drawn = [self._draw(rows[m], g) for m, g in zip(self.first, generators, strict=True)]
        return self.row_loss(rows, torch.stack(drawn)[self.stream], generators[0])

    def _draw(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """What an update on rows x (B, D) draws: prefixes (B, D), or the ordering(s) of an ensemble."""
        model: Any = self.skeleton.model
        if isinstance(model, Ensemble):
            return model.draw(len(x), generator)
        exists = ~torch.isnan(x) if x.is_floating_point() else None
        kind = {"exists": exists, "stratified": model.stratified, "device": x.device}
        return random_observed(len(x), x.shape[1], generator, **kind)

    def row_loss(
        self, rows: Tensor, drawn: Tensor | None = None, noise: torch.Generator | None = None
    ) -> Tensor:
        """The loss of rows (M, B, D), given what was drawn (of an ensemble None: all orderings)."""

        def one(tensors: dict[str, Tensor], x: Tensor, mine: Any, rates: dict[str, Tensor]) -> Any:
            with _dropout_rates(self.skeleton.model, rates):
                return functional_call(self.skeleton, tensors, (x, mine, noise, len(rows)))

        tensors = {f"model.{n}": t for n, t in (self.trained | self.fixed).items()}
        dims = (0, 0, None if drawn is None else 0, 0 if self.rates else None)
        out: Tensor = vmap(one, dims, randomness="different")(tensors, rows, drawn, self.rates)
        return out

    def keep(self, members: Tensor) -> None:
        """Go on with these members only."""
        self.trained = {n: t.detach()[members].clone().requires_grad_() for n, t in self.trained.items()}
        self.fixed = {n: t[members].clone() for n, t in self.fixed.items()}
        self.rates = {n: t[members] for n, t in self.rates.items()}


class Scored:
    """Rows on which members are scored: distinct sets padded to one length, with prefixes if orderless."""

    def __init__(self, members: Sequence[Member], arrays: Sequence[Any], orderless: bool) -> None:
        kinds, self.set_of = distinct(arrays)
        model = members[0].model
        sets = [checked_rows(model, x) for x in kinds]
        self.seen: Tensor | None = None
        if orderless:
            sets = [x if x.is_floating_point() else x.to(model.dtype) for x in sets]
            parts = [list(prefixes(x, DRAWS, seed=0)) for x in sets]
            sets = [torch.cat([rows for rows, _ in part]) for part in parts]
            seen = [torch.cat([observed for _, observed in part]) for part in parts]
            self.seen = pad_sequence(seen, batch_first=True)
        self.counts = torch.tensor([len(x) for x in sets], device=model.device)
        self.rows = pad_sequence(sets, batch_first=True)

    @torch.no_grad()
    def score(self, population: Population, members: np.ndarray) -> list[float]:
        """Log-likelihood of each of these members, those the population holds, on its own set."""
        device = self.rows.device
        mine = torch.tensor([self.set_of[m] for m in members.tolist()], device=device)
        counts = self.counts[mine]
        total = torch.zeros(len(mine), dtype=torch.float64, device=device)
        width = max(1, at_most(SCORED_AT_ONCE, population.skeleton.model, device) // len(mine))
        for start in range(0, self.rows.shape[1], width):
            part = slice(start, start + width)
            seen = None if self.seen is None else self.seen[mine, part]
            with fast_matmul():
                loss = population.row_loss(self.rows[mine, part], seen)
            inside = torch.arange(start, start + loss.shape[1], device=device) < counts[:, None]
            total -= torch.where(inside, loss, 0).sum(-1)
        scores: list[float] = (total / counts).tolist()
        return scores


class _RowLoss(nn.Module):
    """A model's loss as a forward pass, which is what `functional_call` calls."""

    def __init__(self, model: Trainable) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, drawn: Tensor | None, noise: torch.Generator | None, members: int) -> Tensor:
        """Loss (B,) of one of so many members."""
        model: Any = self.model
        if drawn is None and isinstance(model, Ensemble):
            return -model._log_prob(x, model.orderings_at_once(len(x), members))
        return model.loss(x, noise) if drawn is None else model.loss_given(x, drawn, noise)


def _architecture(model: Trainable) -> str:
    """What must be the same in all members: everything but the dropout rate."""
    spec = json.dumps(describe(model))
    return json.dumps(json.loads(spec, object_hook=lambda d: {k: v for k, v in d.items() if k != "dropout"}))


def _different_rates(models: Sequence[Trainable]) -> dict[str, Tensor]:
    """Where members have different dropout rates: parts of the model, M rates for each."""
    like = next(models[0].parameters())
    rates = {
        name: [m.get_submodule(name).dropout for m in models]
        for name, part in models[0].named_modules()
        if isinstance(part.__dict__.get("dropout"), float)
    }
    return {name: like.new_tensor(own) for name, own in rates.items() if len(set(own)) > 1}


@contextmanager
def _dropout_rates(model: nn.Module, rates: dict[str, Tensor]) -> Iterator[None]:
    """Within this block the named parts of a model have these dropout rates."""
    parts = [model.get_submodule(name) for name in rates]
    usual = [part.dropout for part in parts]
    try:
        for part, rate in zip(parts, rates.values(), strict=True):
            part.dropout = rate
        yield
    finally:
        for part, own in zip(parts, usual, strict=True):
            part.dropout = own


def distinct(arrays: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The distinct objects among these, and for each the number of its object."""
    numbers: dict[int, int] = {}
    which = [numbers.setdefault(id(a), len(numbers)) for a in arrays]
    return [arrays[which.index(k)] for k in range(len(numbers))], which
