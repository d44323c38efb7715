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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from pynade.training.gradient import Descent, Member, checked_rows, distinct
from pynade.training.history import History
from pynade.training.loop import Callback, run
from pynade.training.options import Gradient
from pynade.training.step import Trainable

#: Options in which the members of a population may differ.
OWN = ("learning_rate", "gamma", "momentum", "weight_decay", "patience", "stop_at_train")
SCORED_AT_ONCE = 200_000  # (member, row) pairs of a validation pass that are in memory together
DRAWS = 4  # prefixes per validation row of an orderless model, as in `orderless_estimate`


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


class PopulationLearner(Descent):
    """A population in training; stopped members leave the stack when they are half of it."""

    raises = False

    def __init__(self, members: Sequence[Member]) -> None:
        if not members:
            raise ValueError("a population needs at least one member")
        plain = {name: getattr(Gradient(), name) for name in OWN}
        if len({replace(m.options, **plain) for m in members}) > 1:
            raise ValueError(f"members of a population may differ only in {', '.join(OWN)}")
        if len({m.valid is None for m in members}) > 1:
            raise ValueError("either all members of a population have validation rows, or none has")
        stack = Population([m.model for m in members])
        super().__init__(members, stack, stack.trained)
        self.on_valid = Scored(members, [m.valid for m in members]) if self.validated else None
        scored = any(m.options.stop_at_train is not None for m in members)
        self.on_train = Scored(members, [m.train for m in members]) if scored else None

    def _enter(self, members: list[int], generators: dict[tuple[int, int], torch.Generator]) -> None:
        super()._enter(members, generators)
        self.stack.set_streams(self.streams)

    def score(self, epoch: int) -> list[Estimate] | None:
        """The validation score of each member."""
        return [Estimate(v, math.nan, 0) for v in self._scored(self.on_valid)] if self.on_valid else None

    def train_score(self, train: list[float | None]) -> list[float | None]:
        """The log-likelihood of each member's training rows under its weights after the epoch."""
        return [*self._scored(self.on_train)] if self.on_train else train

    def _scored(self, rows: Scored) -> list[float]:
        self.stack.trained = self.weights
        scores = rows.score(self.stack, self.active)
        self.stack.trained = self.trained
        return scores

    def accept(self, better: Sequence[int]) -> None:
        """Copy the weights of these members to the best ones."""
        here = torch.tensor([self.active.index(m) for m in better], dtype=torch.long, device=self.device)
        there = torch.tensor(list(better), dtype=torch.long, device=self.device)
        for name, tensor in self.best.items():
            tensor.index_copy_(0, there, self.weights[name].detach()[here])

    def drop(self, members: Sequence[int]) -> None:
        """Take the stopped members out of the stack when they are half of it."""
        running = [k for k, m in enumerate(self.active) if m not in members]
        if not running or 2 * len(running) > len(self.active):
            return
        old, chosen = self.step, torch.tensor(running, device=self.device)
        self.trained = self.stack.keep(chosen)
        self._enter([self.active[k] for k in running], dict(zip(self.keys, old.generators, strict=True)))
        kept = {group: {n: t[chosen] for n, t in own.items()} for group, own in old.state().items()}
        self.step.restore(kept, old.optimizer.t)

    def restore(self, state: State) -> None:
        """Put everything back as it was."""
        self.trained = self.stack.keep(torch.tensor(state[1]["active"], device=self.device))
        super().restore(state)

    def finish(self) -> None:
        """The best weights, back in the members' own models."""
        for m, member in enumerate(self.members):
            member.model.load_state_dict({n: t[m] for n, t in self.best.items()}, strict=False)


def train_log_likelihoods(members: Sequence[Member]) -> list[float]:
    """Log-likelihood of every member's training rows under its model's present weights."""
    rows = Scored(members, [m.train for m in members])
    return rows.score(Population([m.model for m in members]), range(len(members)))


class Population(nn.Module):
    """M members of one architecture as one stacked model: `loss` of rows (M, B, D) is (M, B).

    The members are copied; their dropout rates may differ.
    """

    def __init__(self, models: Sequence[Trainable]) -> None:
        super().__init__()
        if len({_architecture(model) for model in models}) > 1:
            raise ValueError("the members of a population must share one architecture")
        params, buffers = stack_module_state(list(models))
        trained = {n for n, p in models[0].named_parameters() if p.requires_grad}
        self.trained = {n: params[n].detach().clone().requires_grad_() for n in params if n in trained}
        self.fixed = {n: t.detach().clone() for n, t in (params | buffers).items() if n not in trained}
        self.skeleton = _RowLoss(copy.deepcopy(models[0]).to("meta"))
        rates = {
            name: [m.get_submodule(name).dropout for m in models]
            for name, part in models[0].named_modules()
            if isinstance(part.__dict__.get("dropout"), float)
        }
        like = next(models[0].parameters())  # rates of the parts in which members differ, (M,)
        self.rates = {name: like.new_tensor(own) for name, own in rates.items() if len(set(own)) > 1}
        self.dtype, self.orderless = models[0].dtype, isinstance(models[0], Orderless)
        self.set_streams([0] * len(models))

    def set_streams(self, streams: list[int]) -> None:
        """Set which generator each member draws from: 0 … S-1, each used by some member."""
        self.stream = torch.tensor(streams, device=next(iter(self.trained.values())).device)
        self.first = [streams.index(s) for s in range(max(streams) + 1)]

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
            for name, rate in rates.items():  # at every call, where members differ
                self.skeleton.model.get_submodule(name).dropout = rate
            return functional_call(self.skeleton, tensors, (x, mine, noise, len(rows)))

        tensors = {f"model.{n}": t for n, t in (self.trained | self.fixed).items()}
        dims = (0, 0, None if drawn is None else 0, 0 if self.rates else None)
        out: Tensor = vmap(one, dims, randomness="different")(tensors, rows, drawn, self.rates)
        return out

    def keep(self, members: Tensor) -> dict[str, Tensor]:
        """Go on with these members only; their parameters."""
        self.trained = {n: t.detach()[members].clone().requires_grad_() for n, t in self.trained.items()}
        self.fixed = {n: t[members].clone() for n, t in self.fixed.items()}
        self.rates = {n: t[members] for n, t in self.rates.items()}
        return self.trained


class Scored:
    """Rows on which members are scored: distinct sets padded to one length, with prefixes if orderless."""

    def __init__(self, members: Sequence[Member], arrays: Sequence[Any]) -> None:
        kinds, self.set_of = distinct(arrays)
        model = members[0].model
        sets = [checked_rows(model, x) for x in kinds]
        self.seen: Tensor | None = None
        if isinstance(model, Orderless):
            sets = [x if x.is_floating_point() else x.to(model.dtype) for x in sets]
            parts = [list(prefixes(x, DRAWS, seed=0)) for x in sets]
            sets = [torch.cat([rows for rows, _ in part]) for part in parts]
            seen = [torch.cat([observed for _, observed in part]) for part in parts]
            self.seen = pad_sequence(seen, batch_first=True)
        self.counts = torch.tensor([len(x) for x in sets], device=model.device)
        self.rows = pad_sequence(sets, batch_first=True)

    @torch.no_grad()
    def score(self, population: Population, members: Sequence[int]) -> list[float]:
        """Log-likelihood of each of these members, those the population holds, on its own set."""
        device = self.rows.device
        mine = torch.tensor([self.set_of[m] for m in members], device=device)
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
