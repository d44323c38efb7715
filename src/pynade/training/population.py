"""Many models of one architecture, trained as one program.

Folds × learning rates × weight decays × seeds: the members' parameters are stacked on a leading axis, every
update is one batched computation, and each member has its own options, its own rows and its own early stop.
A member ends as it would have ended alone (up to rounding), because its shuffling and its prefixes come from
a generator seeded as `fit` seeds it; members with the same rows and the same seed share one generator.
(Dropout is the exception: its noise is drawn for all members at once.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pynade.likelihood import Estimate
from pynade.training.checkpoint import Checkpoint, State
from pynade.training.gradient import checked_rows, decays, minibatches
from pynade.training.history import History
from pynade.training.loop import Callback, Learner, Report, Stopping, run
from pynade.training.optimizer import Optimizer
from pynade.training.options import Gradient, schedule_factor
from pynade.training.stacked import Member, Population, Scored, distinct
from pynade.training.step import Step

#: Options in which the members of a population may differ.
OWN = ("learning_rate", "gamma", "momentum", "weight_decay", "patience", "stop_at_train")


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
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.models import Autoregressive
        >>> from pynade.nets import FVSBNNet
        >>> from pynade.ordering import Ordering
        >>> x = torch.eye(4).repeat(25, 1)
        >>> def member(rate):
        ...     model = Autoregressive(FVSBNNet(4), Bernoulli(), Ordering.natural(4))
        ...     return Member(model, x, x, Gradient(epochs=30, learning_rate=rate))
        >>> two = [member(0.0001), member(0.1)]
        >>> histories = fit_population(two)
        >>> bool(two[1].model.log_prob(x).mean() > two[0].model.log_prob(x).mean() + 0.5)
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
        self.stopping = [
            Stopping(patience=m.options.patience, stop_at_train=m.options.stop_at_train) for m in members
        ]
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
        self.on_valid = self.on_train = None
        if any(m.valid is not None for m in members):
            if any(m.valid is None for m in members):
                raise ValueError("either all members of a population have validation rows, or none has")
            self.on_valid = Scored(members, [m.valid for m in members], self.population.orderless)
        self.validated = self.on_valid is not None
        if any(m.options.stop_at_train is not None for m in members):
            self.on_train = Scored(members, [m.train for m in members], self.population.orderless)

    def advance(self, report: Report) -> list[float | None]:
        """All updates of an epoch; the mean log-likelihood of each member's rows, NaN where it diverged."""
        shared, step = self.options, self.step
        options = [self.members[m].options for m in self.active]
        self.epoch += 1
        momentum = self._numbers([o.momentum if self.epoch > o.momentum_after else 0.0 for o in options])
        rate, gamma = (self._numbers([getattr(o, n) for o in options]) for n in ("learning_rate", "gamma"))
        streams = []
        for (data, _), generator in zip(self.keys, step.generators, strict=True):
            parts = minibatches(self.sizes[data], shared.batch_size, self.updates, self.one_pass, generator)
            streams.append(torch.cat(list(parts)) + self.offsets[data])
        total = shared.epochs * self.updates

        def rate_at(t: int) -> Tensor:
            now: Tensor = rate * shared.warm_up_factor(t) * schedule_factor(shared.schedule, gamma, t, total)
            return now

        parts = torch.stack(streams).split(shared.batch_size, dim=1)
        batches = (part[self.population.stream] for part in parts)  # each (M, B)
        train = step.epoch(batches, rate_at, momentum, report).cpu()
        sound = [t.detach().flatten(1).isfinite().all(1) for t in self.population.trained.values()]
        return [float(v) for v in train.masked_fill(~torch.stack(sound).all(0).cpu(), math.nan)]

    def score(self, epoch: int) -> list[Estimate] | None:
        """The validation score of each member."""
        if self.on_valid is None:
            return None
        return [Estimate(float(v), math.nan, 0) for v in self._scored(self.on_valid)]

    def train_score(self, train: list[float | None]) -> list[float | None]:
        """The log-likelihood of each member's training rows under its weights after the epoch."""
        assert self.on_train is not None
        return [float(v) for v in self._scored(self.on_train)]

    def _scored(self, rows: Scored) -> np.ndarray:
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
        decay = self._numbers([self.members[m].options.weight_decay for m in members]).to(self.device)
        options = replace(self.options, weight_decay=float(decay.any()))
        decayed = decays(self.members[0].model, trained, options)
        optimizer = Optimizer(options.optimizer, trained, dict.fromkeys(decayed, decay))
        drawn = [generators[key] for key in self.keys]
        self.step = Step(self.population, self.x, options, drawn, optimizer, members=len(members))

    def _numbers(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype)

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
    return [float(v) for v in rows.score(population, np.arange(len(members)))]


def _shared(members: Sequence[Member]) -> Gradient:
    """The options that all members share."""
    if not members:
        raise ValueError("a population needs at least one member")
    plain = {name: getattr(Gradient(), name) for name in OWN}
    options = {replace(m.options, **plain) for m in members}
    if len(options) > 1:
        raise ValueError(f"members of a population may differ only in {', '.join(OWN)}")
    return options.pop()
