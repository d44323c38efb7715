"""Simultaneous training of many models of one architecture: folds × learning rates × weight decays × seeds.

A member is trained as it would be alone (up to rounding): its shuffling and its prefixes are drawn by a
generator with the seed of `fit`, which members with the same rows and seed share. Dropout is an exception:
its noise is drawn for all members together.
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

SCORED_AT_ONCE = 200_000  # (member, row) pairs in a batch of a validation pass
DRAWS = 4  # prefixes per validation row of an orderless model, as in `orderless_estimate`


class Population(nn.Module):
    """M models of one architecture, copied into one stacked model: `loss` of rows (M, B, D) is (M, B)."""

    def __init__(self, models: Sequence[Trainable]) -> None:
        super().__init__()
        if len({_describe_architecture(model) for model in models}) > 1:
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
        like = next(models[0].parameters())
        self.rates = {  # (M,), of modules whose rates differ between members
            name: like.new_tensor(values) for name, values in rates.items() if len(set(values)) > 1
        }
        self.dtype = models[0].dtype
        self.set_streams([0] * len(models))

    def set_streams(self, streams: list[int]) -> None:
        """Set the index of each member's generator, 0 … S-1; every index must occur."""
        self.stream = torch.tensor(streams, device=next(iter(self.trained.values())).device)
        self.first = [streams.index(s) for s in range(max(streams) + 1)]

    def loss(self, rows: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Loss of every member for its rows: (M, B, D) -> (M, B)."""
        draws = None
        if isinstance(self.model, Orderless | Ensemble):
            (whole, part), streams = minibatch(rows), []
            for m, g in zip(self.first, generators, strict=True):
                with minibatch_part(whole[m], part) as x:
                    streams.append(self.model.draw(x, g))
            draws = torch.stack(streams)[self.stream]
        return self.row_loss(rows, draws, generators[0])

    def row_loss(self, rows: Tensor, draws: Tensor | None = None, noise: Generator | None = None) -> Tensor:
        """The loss of rows (M, B, D) for results of `model.draw` (None, for an ensemble: all orderings)."""

        def member_loss(tensors: Tensors, x: Tensor, draw: Any, rates: Tensors) -> Any:
            for name, rate in rates.items():
                self.model.get_submodule(name).dropout = rate
            return functional_call(self, tensors, (x, draw, noise, len(rows)))

        tensors = {f"model.{n}": t for n, t in (self.trained | self.fixed).items()}
        dims = (0, 0, None if draws is None else 0, 0 if self.rates else None)
        loss: Tensor = vmap(member_loss, dims, randomness="different")(tensors, rows, draws, self.rates)
        return loss

    def forward(self, x: Tensor, draw: Tensor | None, noise: Generator | None, members: int) -> Tensor:
        """Loss (B,) of one of this many members; `functional_call` has put its tensors into `model`."""
        model = self.model
        if draw is None and isinstance(model, Ensemble):
            return -model._log_prob(x, model.orderings_at_once(len(x), members))
        loss: Tensor = model.loss(x, noise) if draw is None else model.loss_given(x, draw, noise)
        return loss

    def keep(self, members: Tensor) -> Tensors:
        """Remove all members but these; returns their trained parameters."""
        self.trained = {n: t.detach()[members].clone().requires_grad_() for n, t in self.trained.items()}
        self.fixed = {n: t[members].clone() for n, t in self.fixed.items()}
        self.rates = {n: t[members] for n, t in self.rates.items()}
        return self.trained


class ScoredRows:
    """Rows for scoring members: distinct sets, padded to one length, with prefixes for orderless models."""

    def __init__(self, model: Trainable, arrays: Sequence[Rows]) -> None:
        sets, self.set_of = distinct_rows(model, arrays)
        self.observed: Tensor | None = None
        if isinstance(model, Orderless):
            sets = [x if x.is_floating_point() else x.to(model.dtype) for x in sets]
            pairs = [map(torch.cat, zip(*draw_prefixes(x, DRAWS, seed=0), strict=True)) for x in sets]
            sets, observed = map(list, zip(*pairs, strict=True))
            self.observed = pad_sequence(observed, batch_first=True)
        self.counts = torch.tensor([len(x) for x in sets], device=model.device)
        self.rows = pad_sequence(sets, batch_first=True)

    @torch.no_grad()
    def score(self, population: Population, members: Sequence[int]) -> list[float]:
        """Mean log-likelihood of each of these members, which the population consists of, on its rows."""
        device = self.rows.device
        sets = torch.tensor([self.set_of[m] for m in members], device=device)
        counts = self.counts[sets]
        total = torch.zeros(len(sets), dtype=torch.float64, device=device)
        width = max(1, limit_batch_rows(SCORED_AT_ONCE, population.model, device) // len(sets))
        for start in range(0, self.rows.shape[1], width):
            part = slice(start, start + width)
            observed = None if self.observed is None else self.observed[sets, part]
            with fast_matmul():
                loss = population.row_loss(self.rows[sets, part], observed)
            inside = torch.arange(start, start + loss.shape[1], device=device) < counts[:, None]
            total -= torch.where(inside, loss, 0).sum(-1)
        scores: list[float] = (total / counts).tolist()
        return scores


def distinct_rows(model: Trainable, arrays: Sequence[Rows]) -> tuple[list[Tensor], list[int]]:
    """The distinct arrays, checked, on the model's device in their dtype; and the index of each array."""
    unique = {id(a): a for a in arrays}
    rows = [torch.as_tensor(a).to(model.device) for a in unique.values()]
    for x in rows:
        if len(x) == 0:
            raise ValueError("there are no rows to train on")
        model.check(x)
    return rows, [list(unique).index(id(a)) for a in arrays]


def _describe_architecture(model: Trainable) -> str:
    """The description of a model without dropout rates, which must be the same for all members."""
    spec = json.dumps(describe(model))
    return json.dumps(json.loads(spec, object_hook=lambda d: {k: v for k, v in d.items() if k != "dropout"}))
