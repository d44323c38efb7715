"""Many models of one architecture as one program: folds × learning rates × weight decays × seeds.

A member ends as it would have ended alone (up to rounding): its shuffling and its prefixes come from a
generator seeded as `fit` seeds it, which it shares with members of the same rows and seed. (Dropout is the
exception: its noise is drawn for all members at once.)
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.rnn import pad_sequence

from pynade.likelihood import draw_prefixes, limit_batch_rows
from pynade.models import Ensemble, Orderless
from pynade.precision import fast_matmul
from pynade.processes import minibatch, minibatch_part
from pynade.store import describe
from pynade.training.checkpoint import Tensors
from pynade.training.step import Rows, Trainable

SCORED_AT_ONCE = 200_000  # (member, row) pairs of a validation pass that are in memory together
DRAWS = 4  # prefixes per validation row of an orderless model, as in `orderless_estimate`


class Population(nn.Module):
    """M members of one architecture, copied, as one stacked model: `loss` of rows (M, B, D) is (M, B)."""

    def __init__(self, models: Sequence[Trainable]) -> None:
        super().__init__()
        if len({_architecture(model) for model in models}) > 1:
            raise ValueError("the members of a population must share one architecture")
        params, buffers = stack_module_state(list(models))
        trained = {n for n, p in models[0].named_parameters() if p.requires_grad}
        self.trained = {n: params[n].detach().clone().requires_grad_() for n in params if n in trained}
        self.fixed = {n: t.detach().clone() for n, t in (params | buffers).items() if n not in trained}
        self.model: Any = copy.deepcopy(models[0]).to("meta")
        rates = {
            name: [m.get_submodule(name).dropout for m in models]
            for name, part in models[0].named_modules()
            if isinstance(part.__dict__.get("dropout"), float)
        }
        like = next(models[0].parameters())  # rates of the parts in which members differ, (M,)
        self.rates = {name: like.new_tensor(own) for name, own in rates.items() if len(set(own)) > 1}
        self.dtype = models[0].dtype
        self.set_streams([0] * len(models))

    def set_streams(self, streams: list[int]) -> None:
        """Set which generator each member draws from: 0 … S-1, each used by some member."""
        self.stream = torch.tensor(streams, device=next(iter(self.trained.values())).device)
        self.first = [streams.index(s) for s in range(max(streams) + 1)]

    def loss(self, rows: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Every member's loss of its own rows: (M, B, D) -> (M, B)."""
        drawn = None
        if isinstance(self.model, Orderless | Ensemble):
            (whole, part), own = minibatch(rows), []
            for m, g in zip(self.first, generators, strict=True):
                with minibatch_part(whole[m], part) as x:
                    own.append(self.model.draw(x, g))
            drawn = torch.stack(own)[self.stream]
        return self.row_loss(rows, drawn, generators[0])

    def row_loss(self, rows: Tensor, drawn: Tensor | None = None, noise: Generator | None = None) -> Tensor:
        """The loss of rows (M, B, D), given what was drawn (of an ensemble None: all orderings)."""

        def one(tensors: Tensors, x: Tensor, mine: Any, rates: Tensors) -> Any:
            for name, rate in rates.items():  # at every call, where members differ
                self.model.get_submodule(name).dropout = rate
            return functional_call(self, tensors, (x, mine, noise, len(rows)))

        tensors = {f"model.{n}": t for n, t in (self.trained | self.fixed).items()}
        dims = (0, 0, None if drawn is None else 0, 0 if self.rates else None)
        out: Tensor = vmap(one, dims, randomness="different")(tensors, rows, drawn, self.rates)
        return out

    def forward(self, x: Tensor, drawn: Tensor | None, noise: Generator | None, members: int) -> Tensor:
        """Loss (B,) of one of so many members, whose tensors `model` has in this call."""
        model = self.model
        if drawn is None and isinstance(model, Ensemble):
            return -model._log_prob(x, model.orderings_at_once(len(x), members))
        loss: Tensor = model.loss(x, noise) if drawn is None else model.loss_given(x, drawn, noise)
        return loss

    def keep(self, members: Tensor) -> Tensors:
        """Go on with these members only; their parameters."""
        self.trained = {n: t.detach()[members].clone().requires_grad_() for n, t in self.trained.items()}
        self.fixed = {n: t[members].clone() for n, t in self.fixed.items()}
        self.rates = {n: t[members] for n, t in self.rates.items()}
        return self.trained


class Scored:
    """Rows on which members are scored: distinct sets padded to one length, with prefixes if orderless."""

    def __init__(self, model: Trainable, arrays: Sequence[Rows]) -> None:
        sets, self.set_of = distinct_rows(model, arrays)
        self.seen: Tensor | None = None
        if isinstance(model, Orderless):
            sets = [x if x.is_floating_point() else x.to(model.dtype) for x in sets]
            drawn = [map(torch.cat, zip(*draw_prefixes(x, DRAWS, seed=0), strict=True)) for x in sets]
            sets, seen = map(list, zip(*drawn, strict=True))
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
        width = max(1, limit_batch_rows(SCORED_AT_ONCE, population.model, device) // len(mine))
        for start in range(0, self.rows.shape[1], width):
            part = slice(start, start + width)
            seen = None if self.seen is None else self.seen[mine, part]
            with fast_matmul():
                loss = population.row_loss(self.rows[mine, part], seen)
            inside = torch.arange(start, start + loss.shape[1], device=device) < counts[:, None]
            total -= torch.where(inside, loss, 0).sum(-1)
        scores: list[float] = (total / counts).tolist()
        return scores


def distinct_rows(model: Trainable, arrays: Sequence[Rows]) -> tuple[list[Tensor], list[int]]:
    """The distinct arrays, checked, on the model's device in their own dtype; which of them each one is."""
    unique = {id(a): a for a in arrays}
    rows = [torch.as_tensor(a).to(model.device) for a in unique.values()]
    for x in rows:
        if len(x) == 0:
            raise ValueError("there are no rows to train on")
        model.check(x)
    return rows, [list(unique).index(id(a)) for a in arrays]


def _architecture(model: Trainable) -> str:
    """What must be the same in all members: everything but the dropout rate."""
    spec = json.dumps(describe(model))
    return json.dumps(json.loads(spec, object_hook=lambda d: {k: v for k, v in d.items() if k != "dropout"}))
