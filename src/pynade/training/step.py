"""One training update: an optimizer, and the update itself, eager or captured in a CUDA graph and replayed.

torch.optim takes one learning rate for all, but a population (many members of one architecture, their
parameters stacked on a leading axis) needs one per member: here learning rate, momentum and weight decay may
be one number or one per member. Tests compare every rule with torch.optim's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import backends
from pynade.kernels.private import foreach
from pynade.models import Density, Orderless
from pynade.precision import computing_in, fast_matmul
from pynade.training.checkpoint import Tensors
from pynade.training.loop import Report
from pynade.training.options import Gradient

Trainable = Density | Orderless
Rows = Tensor | np.ndarray
Number = float | Tensor  # a Tensor holds one value per member, shape (M,)

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
MOST_FUSED = 64  # tensors; for more, one kernel for each takes longer than a dozen for all of them
CHECK_EVERY = 50  # updates between looks at whether the loss is still finite


class Optimizer:
    """SGD with momentum, Adam or AdamW, in place, over named parameters.

    Args:
        rule: "sgd", "adam" or "adamw".
        params: the tensors to update, by name.
        decay: strength of the weight decay.
        decayed: names of the parameters that decay.
    """

    def __init__(self, rule: str, params: Tensors, decay: Number = 0.0, decayed: Iterable[str] = ()) -> None:
        self.rule, self.params, self.decay, self.decayed, self.t = rule, params, decay, list(decayed), 0
        self._pull: Tensor | None = None  # the decay, for the fused update
        self.slots = ("velocity",) if rule == "sgd" else ("first", "second")
        self.state = {f"{slot}/{n}": torch.zeros_like(p) for slot in self.slots for n, p in params.items()}

    @staticmethod
    def corrections(t: int) -> tuple[float, float]:
        """Adam's corrections of its two averages at update t = 1, 2, …"""
        return 1 - BETA1**t, 1 - BETA2**t

    @torch.no_grad()
    def apply(self, grads: Tensors, numbers: Iterable[Number], average: Tensors | None = None) -> None:
        """The arithmetic of an update; all numbers may be tensors, so that a CUDA graph can hold it.

        It takes a dozen kernels for all parameters together; on a GPU, for nets of few tensors, one kernel
        for each of them (`pynade.kernels.update`).

        Args:
            grads: of the loss, by name.
            numbers: learning rate, momentum (of "sgd"), the corrections of Adam's two averages, and the share
                of the way to the new weights that `average` moves.
            average: running averages of the weights, by name.
        """
        average = average or {}
        rate, momentum, first_correction, second_correction, average_rate = numbers = list(numbers)
        if self._fuses(grads, average):
            self._fused(grads, numbers, average)
            return
        if self.decayed and self.rule == "adamw":
            scale([self.params[name] for name in self.decayed], 1 - rate * self.decay)
        elif self.decayed:
            pull = [self.params[name].clone() for name in self.decayed]
            scale(pull, self.decay)
            extra = foreach("add", pull, [grads[name] for name in self.decayed])
            grads = grads | dict(zip(self.decayed, extra, strict=True))
        params, slopes = list(self.params.values()), [grads[name] for name in self.params]
        slots = [[self.state[f"{slot}/{name}"] for name in self.params] for slot in self.slots]
        if self.rule == "sgd":
            scale(slots[0], momentum)
            foreach("add_", slots[0], slopes)
            change = [v.clone() for v in slots[0]]
        else:
            first, second = slots
            foreach("lerp_", first, slopes, 1 - BETA1)
            foreach("mul_", second, BETA2)
            foreach("addcmul_", second, slopes, slopes, 1 - BETA2)
            root = foreach("sqrt", second)
            scale(root, second_correction**-0.5)
            foreach("add_", root, EPSILON)
            change = list(foreach("div", first, root))
            scale(change, 1 / first_correction)
        scale(change, rate)
        foreach("sub_", params, change)
        if average:
            means = list(average.values())
            gaps = foreach("sub", [self.params[n] for n in average], means)
            scale(gaps, average_rate)
            foreach("add_", means, gaps)

    def _fuses(self, grads: Tensors, average: Tensors) -> bool:
        few = len(self.params) <= MOST_FUSED and all(p.is_cuda for p in self.params.values())
        if not few or not backends.available("triton"):
            return False
        from pynade.kernels.update import suits

        own = [[p, grads[n], *self._slots(n), average.get(n, p)] for n, p in self.params.items()]
        return all(map(suits, own))

    def _fused(self, grads: Tensors, numbers: list[Number], average: Tensors) -> None:
        from pynade.kernels.update import update

        device = next(iter(self.params.values())).device
        members = max(n.numel() if isinstance(n, Tensor) else 1 for n in numbers)

        def row(number: Number) -> Tensor:
            return torch.as_tensor(number, dtype=torch.float32, device=device).expand(members)

        stacked, constants = torch.stack([row(n) for n in numbers]), (BETA1, BETA2, EPSILON)
        if self.decayed and self._pull is None:
            self._pull = row(self.decay).contiguous()
        for name, p in self.params.items():
            pull = self._pull if name in self.decayed else None
            update(self.rule, p, grads[name], self._slots(name), average.get(name), pull, stacked, constants)

    def _slots(self, name: str) -> list[Tensor]:
        return [self.state[f"{slot}/{name}"] for slot in self.slots]


def scale(tensors: Sequence[Tensor], number: Number) -> None:
    """Multiply all in place by one number, or by one per member."""
    if isinstance(number, Tensor) and number.ndim:
        for t in tensors:
            t.mul_(number.view(-1, *[1] * (t.ndim - 1)))
    else:
        foreach("mul_", tensors, number)


def clip(grads: Tensors, largest: float, members: bool = False) -> None:
    """Scale gradients in place so that their joint norm, each member's own, is at most `largest`."""
    slopes = list(grads.values())
    if members:
        parts = [torch.linalg.vector_norm(g.flatten(1), dim=-1) for g in slopes]
    else:
        parts = list(foreach("norm", slopes))  # a few kernels for all of them
    norm = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    scale(slopes, (largest / (norm + 1e-6)).clamp(max=1.0))


@dataclass(eq=False)
class Step:
    """Loss, gradient, update, and running average of the weights, for rows of x given by index.

    On a GPU small updates spend most of their time launching kernels, so full minibatches are replayed from a
    captured graph, with the same arithmetic and random numbers. In a population, batches and losses are
    (M, B), and learning rates have one value per member.
    """

    model: Any  # trained in place; its `loss(rows, generator)` is (B,), or (M, B) of a population
    x: Tensor  # all training rows, on the model's device
    options: Gradient
    generators: Sequence[torch.Generator]  # of the loss; a population may have several
    optimizer: Optimizer  # over the model's parameters
    capture: bool | None = None  # replay a CUDA graph; None does so on every GPU
    members: int | None = None  # M of a population, None for a single model

    def __post_init__(self) -> None:
        kept = {} if self.options.ema is None else self.optimizer.params
        self.average = {n: p.detach().clone() for n, p in kept.items()}
        self.shape = () if self.members is None else (self.members,)
        self.loss_sum = torch.zeros(self.shape, dtype=torch.float64, device=self.x.device)
        self.capture = self.x.device.type == "cuda" and self.capture is not False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Tensor, rate: Number, momentum: Number) -> None:
        """One update on the rows `batch`; their loss is added to `loss_sum`."""
        optimizer, ema = self.optimizer, self.options.ema
        optimizer.t += 1
        move = 0.0 if ema is None else 1 - min(ema, (1 + optimizer.t) / (10 + optimizer.t))  # more at first
        numbers: tuple[Number, ...] = (rate, momentum, *Optimizer.corrections(optimizer.t), move)
        if not self.capture or batch.shape[-1] != self.options.batch_size:
            self._update(batch, [n.to(self.x.device) if isinstance(n, Tensor) else n for n in numbers])
            return
        if self.graph is None:  # of an update that reads two buffers
            self._batch = batch.clone()
            self._numbers = torch.ones(5, *self.shape, dtype=self.model.dtype, device=batch.device)
            tensors = [*optimizer.params.values(), *optimizer.state.values(), *self.average.values()]
            update = lambda: self._update(self._batch, self._numbers)  # noqa: E731
            self.graph = captured(update, [*tensors, self.loss_sum], self.generators)
        self._batch.copy_(batch)
        rows = [torch.as_tensor(n, dtype=self._numbers.dtype).expand(self.shape) for n in numbers]
        self._numbers.copy_(torch.stack(rows), non_blocking=True)
        self.graph.replay()

    def _update(self, batch: Tensor, numbers: Iterable[Number]) -> None:
        with computing_in(self.options.precision, self.x.device):
            drawn = self.generators if self.shape else self.generators[0]
            loss = self.model.loss(self.x[batch], drawn)
        params = self.optimizer.params
        slopes = torch.autograd.grad(loss.mean(-1).sum(), list(params.values()))
        grads = {n: laid_out(g, p) for (n, p), g in zip(params.items(), slopes, strict=True)}
        if self.options.clip is not None:
            clip(grads, self.options.clip, members=bool(self.shape))
        self.optimizer.apply(grads, numbers, self.average)
        with torch.no_grad():
            self.loss_sum += loss.sum(-1)

    def epoch(
        self, batches: Iterable[Tensor], rate_at: Callable[[int], Number], momentum: Number, report: Report
    ) -> Tensor:
        """Updates on all these batches; the mean log-likelihood of their rows, () or (M,).

        `rate_at` gives the learning rate of update t = 0, 1, …; `report` is called after every update. A
        single model skips the rest once its loss is no longer finite.
        """
        self.loss_sum.zero_()
        rows = 0
        for batch in batches:
            rate = rate_at(self.optimizer.t)
            with fast_matmul():
                self(batch, rate, momentum)
            rows += batch.shape[-1]
            look = not self.shape and self.optimizer.t % CHECK_EVERY == 0
            if look and not math.isfinite(float(self.loss_sum)):
                break
            one = math.nan if isinstance(rate, Tensor) else rate
            report(self.optimizer.t, one, lambda rows=rows: -float(self.loss_sum.min()) / rows)  # type: ignore[misc]
        return -self.loss_sum / rows

    def state(self) -> dict[str, Tensors]:
        """Running averages and the optimizer's tensors, for a checkpoint."""
        return {"average": self.average, "optimizer": self.optimizer.state}

    def restore(self, tensors: dict[str, Tensors], t: int) -> None:
        """Copy back what `state` gave after t updates."""
        self.optimizer.t = t
        for group, own in self.state().items():
            for name, value in tensors.get(group, {}).items():
                own[name].copy_(value)


def captured(
    update: Callable[[], None], tensors: Sequence[Tensor], generators: Sequence[torch.Generator]
) -> torch.cuda.CUDAGraph:
    """An update as a CUDA graph to replay; the tensors it changes and its generators are restored afterwards.

    It must read and write tensors whose memory stays the same.
    """
    before = [t.detach().clone() for t in tensors]
    drawn = [g.get_state() for g in generators]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for g in generators:
        graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        update()
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
    for g, state in zip(generators, drawn, strict=True):
        g.set_state(state)
    return graph


def laid_out(grad: Tensor, param: Tensor) -> Tensor:
    """The gradient with the strides of its parameter: where they differ, torch uses one kernel per tensor."""
    return grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)


@contextmanager
def averaged(model: Trainable, average: Tensors) -> Iterator[None]:
    """In this block the model has the averaged weights (its own, if there is no average)."""
    own = {n: p.detach().clone() for n, p in model.named_parameters() if n in average}
    model.load_state_dict(average, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(own, strict=False)
