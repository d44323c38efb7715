"""One training update: eager, or captured in a CUDA graph and replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade.models import Density, Orderless
from pynade.precision import computing_in, fast_matmul
from pynade.training.loop import Report
from pynade.training.optimizer import Number, Optimizer, clip
from pynade.training.options import Gradient

Trainable = Density | Orderless
Rows = Tensor | np.ndarray

CHECK_EVERY = 50  # updates between looks at whether the loss is still finite


class Step:
    """Loss, gradient, update, and running average of the weights, for rows of x given by index.

    On a GPU small updates spend most of their time launching kernels, so full minibatches are replayed from a
    captured graph: the same arithmetic and the same random numbers as the eager update. A population is
    trained by the same code: batches and losses are (M, B), and learning rates have one value per member.

    Args:
        model: trained in place; its `loss(rows, generator)` is (B,), or (M, B) of a population.
        x: all training rows, on the model's device.
        options: of gradient descent.
        generator: source of all random numbers of the loss, on the model's device; a population has several.
        optimizer: over the model's parameters.
        capture: replay a CUDA graph; None does so on every GPU.
        members: M of a population, None for a single model.
    """

    def __init__(
        self,
        model: Any,
        x: Tensor,
        options: Gradient,
        generator: torch.Generator | Sequence[torch.Generator],
        optimizer: Optimizer,
        capture: bool | None = None,
        members: int | None = None,
    ) -> None:
        self.model, self.x, self.options = model, x, options
        self.generator, self.optimizer = generator, optimizer
        self.generators = [generator] if isinstance(generator, torch.Generator) else list(generator)
        kept = {} if options.ema is None else optimizer.params
        self.average = {n: p.detach().clone() for n, p in kept.items()}
        self.shape = () if members is None else (members,)
        self.loss_sum = torch.zeros(self.shape, dtype=torch.float64, device=x.device)
        self.capture = x.device.type == "cuda" and capture is not False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Tensor, rate: Number, momentum: Number) -> None:
        """One update on the rows `batch`; their loss is added to `loss_sum`."""
        optimizer, ema = self.optimizer, self.options.ema
        optimizer.t += 1
        move = 0.0 if ema is None else 1 - min(ema, (1 + optimizer.t) / (10 + optimizer.t))  # more at first
        numbers: tuple[Number, ...] = (rate, momentum, *Optimizer.corrections(optimizer.t), move)
        if not self.capture or batch.shape[-1] != self.options.batch_size:
            here = self.x.device
            self._update(batch, [n.to(here) if isinstance(n, Tensor) else n for n in numbers])
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
            loss = self.model.loss(self.x[batch], self.generator)
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

        A single model's epoch ends early if its loss is no longer finite.

        Args:
            batches: indexes of rows.
            rate_at: learning rate of update t = 0, 1, …
            momentum: of "sgd".
            report: called after every update.
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

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Running averages and the optimizer's tensors, for a checkpoint."""
        return {"average": self.average, "optimizer": self.optimizer.state}

    def restore(self, tensors: dict[str, dict[str, Tensor]], t: int) -> None:
        """Copy back what `state` gave after t updates."""
        self.optimizer.t = t
        for group, own in self.state().items():
            for name, value in tensors.get(group, {}).items():
                own[name].copy_(value)


def captured(
    update: Callable[[], None], tensors: Sequence[Tensor], generators: Sequence[torch.Generator]
) -> torch.cuda.CUDAGraph:
    """An update as a CUDA graph to replay; tensors and generators are restored afterwards.

    Args:
        update: reads and writes tensors whose memory stays the same.
        tensors: those it changes.
        generators: those it draws from.
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
    """The gradient with the strides of its parameter.

    Convolutions in channels-last format return gradients in that format, and torch's functions over lists of
    tensors use one kernel per tensor where strides differ.
    """
    return grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)


@contextmanager
def averaged(model: Trainable, average: dict[str, Tensor]) -> Iterator[None]:
    """In this block the model has the averaged weights (its own, if there is no average)."""
    own = {n: p.detach().clone() for n, p in model.named_parameters() if n in average}
    model.load_state_dict(average, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(own, strict=False)
