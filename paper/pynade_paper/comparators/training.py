"""Training of the comparators: AdamW or SGD, average of the weights, annealing over a budget, validation.

On a GPU the whole update is captured in a CUDA graph and replayed; batches are rows of data that lie on the
GPU. The learning rate follows the share of the budget that is spent (seconds or updates), so every run ends
annealed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pynade.precision import computing_in, fast_matmul
from pynade.training.step import Optimizer, captured, clip

CHECK_EVERY = 10  # updates between looks at the clock, for which the host waits for the GPU
CHUNK = 1000  # rows scored at once


class Comparator(nn.Module):
    """What a model must offer to be trained and scored.

    Attributes:
        kind: what its first score is: "exact", "estimate" or "bound".
        stages: its stages of training, one after another: share of the budget, and factor of the rate.
    """

    kind = "exact"
    stages: tuple[tuple[float, float], ...] = ((1.0, 1.0),)

    def begin(self, stage: int, rows: Tensor) -> None:
        """Make ready for a stage of training: initial values from data, which parameters are trained.

        Args:
            stage: its number, from 0.
            rows: training rows (N, D).
        """

    def ready(self, generator: torch.Generator | None = None, final: bool = False) -> None:
        """Compute what all scores with the present weights need.

        Args:
            generator: source of randomness.
            final: with the care of a number that is reported.
        """

    def loss(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What training minimises, for rows (B, D): (B,)."""
        raise NotImplementedError

    def scores(
        self, x: Tensor, generator: torch.Generator | None = None, samples: int = 1
    ) -> dict[str, Tensor]:
        """Numbers (B,) of rows by name, the first of which is validated; lower is better."""
        raise NotImplementedError

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Rows (n, D)."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """What else belongs in the record of a result."""
        return {}


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    Attributes:
        rule: of the update, "adamw" or "sgd".
        rate: highest learning rate.
        batch_size: rows of an update.
        seconds: budget of time, validation included; None for a budget of updates.
        updates: budget of updates, where there is none of time.
        warm_up: share of the budget over which the rate rises linearly; then it falls along a half cosine.
        decay: weight decay of matrices; biases are not decayed.
        clip: largest norm of the gradient, None for any.
        ema: decay of the running average of the weights, which is what is validated and kept.
        validations: how often, at equal shares of the budget, the validation rows are scored.
        samples: draws for each row when validation scores are estimates.
        seed: of batches and of what the loss draws.
    """

    rule: str = "adamw"
    rate: float = 1e-3
    batch_size: int = 256
    seconds: float | None = None
    updates: int = 1000
    warm_up: float = 0.02
    decay: float = 0.0
    clip: float | None = 1.0
    ema: float = 0.999
    validations: int = 20
    samples: int = 1
    seed: int = 0


@dataclass
class History:
    """What happened in training.

    Attributes:
        updates: made.
        seconds: taken, validation included.
        best: lowest validation score; its weights are the ones kept.
        best_at: update of it.
        stopped: why training ended.
        curve: rows of update, seconds, mean training loss since the row before, validation score.
    """

    updates: int = 0
    seconds: float = 0.0
    best: float = math.inf
    best_at: int = 0
    stopped: str = "budget spent"
    curve: list[tuple[int, float, float, float]] = field(default_factory=list)


def train(
    model: Comparator,
    rows: Tensor,
    valid: Tensor,
    how: Settings,
    log: Callable[[str], None] = print,
) -> History:
    """Train a model in place; it ends with the averaged weights of the best validation.

    Args:
        model: what is trained.
        rows: training rows (N, D) on the model's device, in its floating-point type.
        valid: validation rows.
        how: the settings.
        log: called at each validation.
    """
    device = rows.device
    generator, shuffle = (torch.Generator(device).manual_seed(how.seed + k) for k in (0, 2))
    history, began = History(), time.perf_counter()
    step = _Update(model, rows, how, generator)
    prepared = time.perf_counter() - began  # of the budget, but not of the schedule

    def score() -> float:
        draws = torch.Generator(device).manual_seed(how.seed + 1)
        return float(next(iter(scores(model, valid, draws, how.samples).values())).mean())

    def spent() -> float:
        if how.seconds is None:
            return history.updates / how.updates
        return (time.perf_counter() - began - prepared) / max(1e-9, how.seconds - prepared)

    best: dict[str, Tensor] = {}
    order, at, share, due, losses, done = torch.empty(0), 0, 0.0, 1 / how.validations, 0.0, 0
    while True:
        if how.seconds is None or history.updates % CHECK_EVERY == 0:
            if device.type == "cuda" and history.updates % CHECK_EVERY == 0:
                torch.cuda.synchronize()
            share = spent()
        if share >= min(due, 1.0):
            due = (int(share * how.validations + 1e-6) + 1) / how.validations
            mean = (float(step.loss_sum) - losses) / max(1, history.updates - done) / how.batch_size
            if not math.isfinite(mean):
                history.stopped = f"the training loss was {mean} at update {history.updates}"
                log(history.stopped)
                break
            losses, done = float(step.loss_sum), history.updates
            with swapped(step.params, step.average):
                found = score()
                if found < history.best:
                    history.best, history.best_at = found, history.updates
                    best = {n: p.detach().clone() for n, p in step.params.items()}
            history.seconds = time.perf_counter() - began
            history.curve.append((done, round(history.seconds, 2), round(mean, 4), round(found, 4)))
            log(f"update {done}, {history.seconds:.0f} s: training {mean:.3f}, validation {found:.3f}")
        if share >= 1:
            break
        if at + how.batch_size > len(order):
            order, at = torch.randperm(len(rows), generator=shuffle, device=device), 0
        step(order[at : at + how.batch_size], how.rate * annealed(share, how.warm_up))
        at += how.batch_size
        history.updates += 1
    put(step.params, best)
    return history


def annealed(share: float, warm_up: float) -> float:
    """Factor of the learning rate after a share of the budget: up linearly, then down a half cosine.

    Example:
        >>> [round(annealed(s, 0.1), 3) for s in (0.05, 0.1, 0.55, 1.0)]
        [0.5, 1.0, 0.5, 0.0]
    """
    if share < warm_up:
        return max(share / warm_up, 1e-3)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (share - warm_up) / (1 - warm_up))))


@torch.no_grad()
def scores(
    model: Comparator, rows: Tensor, generator: torch.Generator, samples: int, final: bool = False
) -> dict[str, Tensor]:
    """The model's scores of all rows, by name, computed in full float32.

    Args:
        model: what is scored.
        rows: (N, D) on its device.
        generator: source of its draws.
        samples: draws for each row.
        final: with the care of a number that is reported.
    """
    with computing_in("float32", rows.device):
        model.ready(generator, final)
        parts = [model.scores(part, generator, samples) for part in rows.split(CHUNK)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class _Update:
    """One update: loss, gradient, AdamW, average of the weights; a CUDA graph on a GPU."""

    def __init__(self, model: Comparator, rows: Tensor, how: Settings, generator: torch.Generator) -> None:
        self.model, self.rows, self.how, self.generator = model, rows, how, generator
        self.params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        decayed = [n for n, p in self.params.items() if p.ndim > 1 and how.decay]
        own = {n: p.detach() for n, p in self.params.items()}
        self.optimizer = Optimizer(how.rule, own, how.decay, decayed)
        self.average = {n: p.detach().clone() for n, p in self.params.items()}
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=rows.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if rows.is_cuda:
            self._capture(torch.arange(how.batch_size, device=rows.device))

    def __call__(self, batch: Tensor, rate: float) -> None:
        self.optimizer.t += 1
        t = self.optimizer.t
        move = 1 - min(self.how.ema, (1 + t) / (10 + t))
        numbers = (rate, 0.0, *Optimizer.corrections(t), move)
        if self.graph is None:
            self._update(batch, numbers)
            return
        self._batch.copy_(batch)
        self._numbers.copy_(torch.tensor(numbers), non_blocking=True)
        self.graph.replay()

    def _update(self, batch: Tensor, numbers: Any) -> None:
        with fast_matmul():
            loss = self.model.loss(self.rows[batch], self.generator)
            found = torch.autograd.grad(loss.mean(), list(self.params.values()))
        grads = {n: g.contiguous() for n, g in zip(self.params, found, strict=True)}
        if self.how.clip is not None:
            clip(grads, self.how.clip)
        self.optimizer.apply(grads, numbers, self.average)
        self.loss_sum += loss.detach().sum()

    def _capture(self, batch: Tensor) -> None:
        self._batch = batch
        self._numbers = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0], device=batch.device)  # a rate of zero
        changed = [*self.optimizer.params.values(), *self.optimizer.state.values(), *self.average.values()]
        changed += [self.loss_sum, *self.model.buffers()]
        self.graph = captured(lambda: self._update(self._batch, self._numbers), changed, [self.generator])


@contextmanager
def swapped(params: dict[str, nn.Parameter], values: dict[str, Tensor]) -> Iterator[None]:
    """Within this block parameters have other values."""
    own = {n: params[n].detach().clone() for n in values}
    put(params, values)
    try:
        yield
    finally:
        put(params, own)


@torch.no_grad()
def put(params: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    """Copy values into parameters, by name."""
    for name, value in values.items():
        params[name].copy_(value)
