"""One training update: eager, or captured in a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pynade.models import Density, Orderless
from pynade.precision import computing_in, fast_matmul
from pynade.training.optimizer import Number, Optimizer, clip
from pynade.training.options import Gradient

Trainable = Density | Orderless

__all__ = ["Step", "Trainable", "averaged", "fast_matmul"]


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
        self.optimizer.t += 1
        t = self.optimizer.t
        numbers: tuple[Number, ...] = (rate, momentum, *Optimizer.corrections(t), self._average_rate(t))
        if not self.capture or batch.shape[-1] != self.options.batch_size:
            here = self.x.device
            self._update(batch, *(n.to(here) if isinstance(n, Tensor) else n for n in numbers))
            return
        if self.graph is None:
            self._capture(batch)
        assert self.graph is not None
        self._batch.copy_(batch)
        rows = [torch.as_tensor(n, dtype=self._numbers.dtype).expand(self.shape) for n in numbers]
        self._numbers.copy_(torch.stack(rows), non_blocking=True)
        self.graph.replay()

    def _update(self, batch: Tensor, rate, momentum, first, second, average) -> None:  # type: ignore[no-untyped-def]
        with computing_in(self.options.precision, self.x.device):
            loss = self.model.loss(self.x[batch], self.generator)
        params = self.optimizer.params
        slopes = torch.autograd.grad(loss.mean(-1).sum(), list(params.values()))
        grads = {n: laid_out(g, p) for (n, p), g in zip(params.items(), slopes, strict=True)}
        if self.options.clip is not None:
            clip(grads, self.options.clip, members=bool(self.shape))
        self.optimizer.apply(grads, rate, momentum, first, second, self.average, average)
        with torch.no_grad():
            self.loss_sum += loss.sum(-1)

    def _average_rate(self, t: int) -> float:
        """Share of the way that the running average moves at update t: more at first, then 1 - ema."""
        return 0.0 if self.options.ema is None else 1 - min(self.options.ema, (1 + t) / (10 + t))

    def _capture(self, batch: Tensor) -> None:
        """Capture one update that reads buffers, into which later minibatches and numbers are copied."""
        self._batch = batch.clone()
        self._numbers = torch.ones(5, *self.shape, dtype=self.model.dtype, device=batch.device)
        tensors = [
            *self.optimizer.params.values(),
            *self.optimizer.state.values(),
            *self.average.values(),
            self.loss_sum,
        ]
        self.graph = captured(lambda: self._update(self._batch, *self._numbers), tensors, self.generators)


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
    params = dict(model.named_parameters())
    own = {n: params[n].detach().clone() for n in average}
    with torch.no_grad():
        for name, value in average.items():
            params[name].copy_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in own.items():
                params[name].copy_(value)
