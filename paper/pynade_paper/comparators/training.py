"""Training of the comparators: AdamW or SGD, average of the weights, annealing over a budget, validation.

On a GPU the whole update is captured in a CUDA graph and replayed; batches are rows of data that lie on the
GPU. The learning rate follows the share of the schedule that is done. A run may cover a part of it, in a
given time or number of updates; a later one goes on from its `State`, with a new order of the rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import Part
from pynade.families import Bernoulli
from pynade.precision import computing_in, fast_matmul
from pynade.training.options import Gradient
from pynade.training.step import Optimizer, Step, use_average

Random = torch.Generator | None
CHECK_EVERY = 10  # updates between looks at the clock, for which the host waits for the GPU
CHUNK = 1000  # rows scored at once


class Comparator(Part):
    """What a model must offer to be trained and scored."""

    kind = "exact"  # what its first score is: "exact", "estimate" or "bound"
    # stages of training, one after another: share of the budget, and factor of the rate
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

    def facts(self) -> dict[str, Any]:
        """What else belongs in the record of a result."""
        return {}


@dataclass(frozen=True)
class Settings:
    """How a model is trained."""

    rule: str = "adamw"  # of the update, or "sgd"
    rate: float = 1e-3  # highest learning rate
    batch_size: int = 256  # rows of an update
    seconds: float | None = None  # budget of this run, validation included; None for a budget of updates
    updates: int = 1000  # budget of updates, where there is none of time
    until: float = 1.0  # share of the schedule at which this run ends
    warm_up: float = 0.02  # share over which the rate rises linearly; then it falls along a half cosine
    decay: float = 0.0  # weight decay of matrices; biases are not decayed
    clip: float | None = 1.0  # largest norm of the gradient, None for any
    ema: float = 0.999  # decay of the running average of the weights, which is what is validated and kept
    validations: int = 20  # how often, at equal shares of the schedule, the validation rows are scored
    samples: int = 1  # draws for each row when validation scores are estimates
    seed: int = 0  # of batches and of what the loss draws


@dataclass
class History:
    """What happened in training."""

    updates: int = 0  # made
    seconds: float = 0.0  # taken, validation included
    share: float = 0.0  # of the schedule that is done
    best: float = math.inf  # lowest validation score; its weights are the ones kept
    best_at: int = 0  # update of it
    stopped: str = "budget spent"  # why training ended
    # update, seconds, mean training loss since the row before, validation score
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

    Rows (N, D) are on the model's device, in its floating-point type. A `state` of an earlier run is gone on
    from; `keep` is called with the state after each validation.
    """
    state, began = state or State(), time.perf_counter()
    history, earlier, device = state.history, replace(state.history), rows.device
    seed = how.seed + history.updates  # a run that goes on draws anew
    generator, shuffle = (torch.Generator(device).manual_seed(seed + k) for k in (0, 2))
    params: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    decayed = [n for n, p in params.items() if p.ndim > 1 and how.decay]
    optimizer = Optimizer(how.rule, params, how.decay, decayed)
    options = Gradient(batch_size=how.batch_size, clip=how.clip, ema=how.ema)
    step = _Update(model, rows, options, [generator], optimizer)
    if step.capture:
        step.prepare(torch.arange(how.batch_size, device=device))
    optimizer.t, groups = history.updates, {"weights": params} | step.state()
    own = {f"{group}/{n}": t.detach() for group, tensors in groups.items() for n, t in tensors.items()}
    for name, tensor in state.tensors.items():
        own[name].copy_(tensor)
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
            with use_average(model, step.average):
                found = score()
                if found < history.best:
                    history.best, history.best_at = found, history.updates
                    state.best = {n: p.detach().clone() for n, p in params.items()}
            history.seconds = earlier.seconds + time.perf_counter() - began
            history.curve.append((done, round(history.seconds, 2), round(mean, 4), round(found, 4)))
            log(f"update {done}, {history.seconds:.0f} s: training {mean:.3f}, validation {found:.3f}")
            state.tensors = {n: t.clone() for n, t in own.items()}
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


def importance(
    log_weights: Callable[[Tensor], Tensor], x: Tensor, samples: int, most: int
) -> dict[str, Tensor]:
    """From log importance weights of rows, drawn so often for each, −mean and −log of the mean weight: (B,).

    The weights are computed in passes of about `most` rows.
    """
    each = max(1, most // len(x))
    passes = (x.repeat(min(samples - done, each), 1) for done in range(0, samples, each))
    log_w = torch.cat([log_weights(many).double().view(-1, len(x)) for many in passes])
    return {"bound": -log_w.mean(0), "estimate": math.log(samples) - torch.logsumexp(log_w, 0)}


def drawn(logits: Tensor, generator: Random) -> Tensor:
    """Zeros and ones of these logits."""
    u = torch.rand(logits.shape, generator=generator, device=logits.device, dtype=logits.dtype)
    return (u < torch.sigmoid(logits)).to(logits)


def log_prob(x: Tensor, logits: Tensor) -> Tensor:
    """log p of zeros and ones (B, n) of these logits: (B,)."""
    return -functional.softplus((1 - 2 * x) * logits).sum(-1)


def base_logits(rows: Tensor) -> Tensor:
    """Logits (D,) of the means of rows (N, D) in [0, 1], one more of each value added."""
    return Bernoulli().eta_from_marginal(rows)[:, 0].to(rows)


def gaussian(*shape: int, inputs: float, generator: Random) -> nn.Parameter:
    """Initial weights with variance 1 / (number of inputs)."""
    return nn.Parameter(torch.empty(shape).normal_(generator=generator) * inputs**-0.5)


class _Update(Step):
    """One update by the model's own gradients."""

    def gradients(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The loss of rows, and its derivatives."""
        with fast_matmul():
            loss, found = self.model.gradients(x, self.generators[0])
        return loss, [found[n] for n in self.optimizer.params]
