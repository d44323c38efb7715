"""Training of the comparators: AdamW or SGD, average of the weights, annealing over a budget, validation.

On a GPU the whole update is captured in a CUDA graph and replayed; batches are rows of data that lie on the
GPU. The learning rate follows the share of the schedule that is done. A run may cover a part of it, in a
given time or number of updates; a later one goes on from its `State`, with a new order of the rows.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from pynade.precision import computing_in, fast_matmul
from pynade.training.step import Optimizer, averaged, captured, clip

Random = torch.Generator | None
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
        """Make ready for a stage of training: initial values from data, which parameters are trained."""

    def ready(self, generator: Random = None, final: bool = False) -> None:
        """Compute what all scores with the present weights need; for final ones with more care."""

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """What training minimises, for rows (B, D): (B,)."""
        raise NotImplementedError

    def gradients(self, x: Tensor, generator: Random = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss (B,), and the derivatives of its mean with respect to the parameters that are trained."""
        loss, params = self.loss(x, generator), {n: p for n, p in self.named_parameters() if p.requires_grad}
        found = torch.autograd.grad(loss.mean(), list(params.values()))
        return loss.detach(), dict(zip(params, found, strict=True))

    def scores(self, x: Tensor, generator: Random = None, samples: int = 1) -> dict[str, Tensor]:
        """Numbers (B,) of rows by name, the first of which is validated; lower is better."""
        raise NotImplementedError

    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Rows (n, D)."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        names = inspect.signature(type(self).__init__).parameters
        return {name: getattr(self, name) for name in names if name not in ("self", "generator")}

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
        seconds: budget of time of this run, validation included; None for a budget of updates.
        updates: budget of updates, where there is none of time.
        until: share of the schedule at which this run ends.
        warm_up: share of the schedule over which the rate rises linearly; then it falls along a half cosine.
        decay: weight decay of matrices; biases are not decayed.
        clip: largest norm of the gradient, None for any.
        ema: decay of the running average of the weights, which is what is validated and kept.
        validations: how often, at equal shares of the schedule, the validation rows are scored.
        samples: draws for each row when validation scores are estimates.
        seed: of batches and of what the loss draws.
    """

    rule: str = "adamw"
    rate: float = 1e-3
    batch_size: int = 256
    seconds: float | None = None
    updates: int = 1000
    until: float = 1.0
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
        share: of the schedule that is done.
        best: lowest validation score; its weights are the ones kept.
        best_at: update of it.
        stopped: why training ended.
        curve: rows of update, seconds, mean training loss since the row before, validation score.
    """

    updates: int = 0
    seconds: float = 0.0
    share: float = 0.0
    best: float = math.inf
    best_at: int = 0
    stopped: str = "budget spent"
    curve: list[tuple[int, float, float, float]] = field(default_factory=list)


@dataclass
class State:
    """Where training stands: what happened, the best weights, and all that an update changes."""

    history: History = field(default_factory=History)
    best: dict[str, Tensor] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


def train(
    model: Comparator,
    rows: Tensor,
    valid: Tensor,
    how: Settings,
    log: Callable[[str], None] = print,
    state: State | None = None,
    keep: Callable[[State], None] = lambda state: None,
) -> History:
    """Train a model in place; it ends with the averaged weights of the best validation.

    Args:
        model: what is trained.
        rows: training rows (N, D) on the model's device, in its floating-point type.
        valid: validation rows.
        how: the settings.
        log: called at each validation.
        state: of an earlier run, to go on from.
        keep: called with the state after each validation.
    """
    state, began = state or State(), time.perf_counter()
    history, earlier, device = state.history, replace(state.history), rows.device
    seed = how.seed + history.updates  # a run that goes on draws anew
    generator, shuffle = (torch.Generator(device).manual_seed(seed + k) for k in (0, 2))
    step = _Update(model, rows, how, generator)
    step.restore(state.tensors, history.updates)
    prepared = time.perf_counter() - began  # of the budget, but not of the schedule
    log(f"prepared in {prepared:.1f} s")

    def score() -> float:
        draws = torch.Generator(device).manual_seed(how.seed + 1)
        return float(next(iter(scores(model, valid, draws, how.samples).values())).mean())

    def spent() -> float:
        done = (history.updates - earlier.updates) / how.updates
        if how.seconds is not None:
            done = (time.perf_counter() - began - prepared) / max(1e-9, how.seconds - prepared)
        return how.until if done >= 1 else earlier.share + (how.until - earlier.share) * done

    order, at, losses, done = torch.empty(0), 0, 0.0, history.updates
    due = (int(earlier.share * how.validations + 1e-6) + 1) / how.validations
    while True:
        if how.seconds is None or history.updates % CHECK_EVERY == 0:
            if device.type == "cuda" and history.updates % CHECK_EVERY == 0:
                torch.cuda.synchronize()
            history.share = spent()
        if history.share >= min(due, how.until):
            due = (int(history.share * how.validations + 1e-6) + 1) / how.validations
            mean = (float(step.loss_sum) - losses) / max(1, history.updates - done) / how.batch_size
            if not math.isfinite(mean):
                history.stopped = f"the training loss was {mean} at update {history.updates}"
                log(history.stopped)
                break
            losses, done = float(step.loss_sum), history.updates
            with averaged(model, step.average):  # type: ignore[arg-type]
                found = score()
                if found < history.best:
                    history.best, history.best_at = found, history.updates
                    state.best = {n: p.detach().clone() for n, p in step.params.items()}
            history.seconds = earlier.seconds + time.perf_counter() - began
            history.curve.append((done, round(history.seconds, 2), round(mean, 4), round(found, 4)))
            log(f"update {done}, {history.seconds:.0f} s: training {mean:.3f}, validation {found:.3f}")
            state.tensors = {n: t.clone() for n, t in step.state().items()}
            keep(state)
        if history.share >= how.until:
            break
        if at + how.batch_size > len(order):
            order, at = torch.randperm(len(rows), generator=shuffle, device=device), 0
        step(order[at : at + how.batch_size], how.rate * annealed(history.share, how.warm_up))
        at += how.batch_size
        history.updates += 1
    model.load_state_dict(state.best, strict=False)
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
    """The model's scores of all rows, by name, computed in full float32 (`Comparator.ready`, `.scores`)."""
    with computing_in("float32", rows.device):
        model.ready(generator, final)
        parts = [model.scores(part, generator, samples) for part in rows.split(CHUNK)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def copies(x: Tensor, samples: int, most: int) -> Iterator[Tensor]:
    """The rows repeated `samples` times in all, in passes of about `most` rows."""
    each = max(1, most // len(x))
    for done in range(0, samples, each):
        yield x.repeat(min(samples - done, each), 1)


def bound_and_estimate(log_w: Tensor) -> dict[str, Tensor]:
    """From log importance weights (samples, B): −mean, and −log of the mean weight."""
    log_mean = torch.logsumexp(log_w, 0) - math.log(len(log_w))
    return {"bound": -log_w.mean(0), "estimate": -log_mean}


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
            loss, found = self.model.gradients(self.rows[batch], self.generator)
        grads = {n: found[n].contiguous() for n in self.params}
        if self.how.clip is not None:
            clip(grads, self.how.clip)
        self.optimizer.apply(grads, numbers, self.average)
        self.loss_sum += loss.sum()

    def state(self) -> dict[str, Tensor]:
        """Weights, their averages and the optimizer's tensors."""
        groups = {
            "weights": self.optimizer.params,
            "average": self.average,
            "optimizer": self.optimizer.state,
        }
        return {f"{group}/{n}": t for group, tensors in groups.items() for n, t in tensors.items()}

    def restore(self, tensors: dict[str, Tensor], t: int) -> None:
        """Copy back what `state` gave after t updates."""
        self.optimizer.t = t
        for name, own in self.state().items() if tensors else ():
            own.copy_(tensors[name])

    def _capture(self, batch: Tensor) -> None:
        self._batch = batch
        self._numbers = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0], device=batch.device)  # a rate of zero
        changed = [*self.optimizer.params.values(), *self.optimizer.state.values(), *self.average.values()]
        changed += [self.loss_sum, *self.model.buffers()]
        self.graph = captured(lambda: self._update(self._batch, self._numbers), changed, [self.generator])
