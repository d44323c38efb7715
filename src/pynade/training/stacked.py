"""M models of one architecture as one: stacked parameters, one batched loss, one batched score."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.rnn import pad_sequence

from pynade.likelihood import at_most, prefixes
from pynade.models import Ensemble, Orderless
from pynade.ordering import random_observed
from pynade.precision import fast_matmul
from pynade.store import describe
from pynade.training.gradient import checked_rows
from pynade.training.options import Gradient
from pynade.training.step import Rows, Trainable

SCORED_AT_ONCE = 200_000  # (member, row) pairs of a validation pass that are in memory together
DRAWS = 4  # prefixes per validation row of an orderless model, as in `orderless_estimate`


@dataclass
class Member:
    """One model with its rows, its options and its seed: the arguments of `fit`.

    Members that share rows should hold the same array object, which is then kept once.
    """

    model: Trainable
    train: Rows
    valid: Rows | None
    options: Gradient
    seed: int = 0


class Population(nn.Module):
    """M members of one architecture as one stacked model: `loss` of rows (M, B, D) is (M, B).

    Members may have different dropout rates.

    Args:
        models: the members; they are copied.
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
        """The loss of rows (M, B, D), given what each member has drawn.

        An ensemble that has drawn nothing is scored under all of its orderings.
        """

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
    def score(self, population: Population, members: np.ndarray) -> np.ndarray:
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
        return (total / counts).cpu().numpy()


class _RowLoss(nn.Module):
    """A model's loss as a forward pass, which is what `functional_call` calls."""

    def __init__(self, model: Trainable) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, drawn: Tensor | None, noise: torch.Generator | None, members: int) -> Tensor:
        """Loss (B,) of one of so many members."""
        model: Any = self.model
        if drawn is not None:
            return model.loss_given(x, drawn, noise)
        if not isinstance(model, Ensemble):
            return model.loss(x, noise)
        return -model._log_prob(x, model.orderings_at_once(len(x), members))


def _architecture(model: Trainable) -> str:
    """What must be the same in all members: everything but the dropout rate."""

    def without(spec: Any) -> Any:
        if isinstance(spec, dict):
            return {name: without(value) for name, value in spec.items() if name != "dropout"}
        return [without(value) for value in spec] if isinstance(spec, list) else spec

    return json.dumps(without(describe(model)))


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
