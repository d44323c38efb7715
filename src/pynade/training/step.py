"""Training updates: optimizers, and updates that run eagerly or are replayed from a CUDA graph.

In a population (members of one architecture, whose parameters are stacked on the first axis) learning rate,
momentum and weight decay have one value per member. Tests compare every rule with torch.optim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pynade.kernels import backends
from pynade.kernels.private import foreach
from pynade.models import Density, Orderless
from pynade.precision import computing_in
from pynade.processes import minibatch_part, process_slices, rank_and_size
from pynade.training.checkpoint import Tensors
from pynade.training.options import Gradient

Trainable = Density | Orderless
Rows = Tensor | np.ndarray
Number = float | Tensor  # a Tensor holds one value per member, shape (M,)

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
MOST_FUSED = 64  # tensors; with more, one kernel per tensor is slower than a dozen kernels for all


class Optimizer:
    """SGD with momentum ("sgd"), "adam" or "adamw", in place; weight decay for the parameters `decayed`."""

    def __init__(self, rule: str, params: Tensors, decay: Number = 0.0, decayed: Iterable[str] = ()) -> None:
        self.rule, self.params, self.decay, self.decayed, self.t = rule, params, decay, list(decayed), 0
        self._decay_row: Tensor | None = None  # the decay of each member, for the fused update
        self.slots = ("velocity",) if rule == "sgd" else ("first", "second")
        self.state = {f"{slot}/{n}": torch.zeros_like(p) for slot in self.slots for n, p in params.items()}

    @staticmethod
    def corrections(t: int) -> tuple[float, float]:
        """Adam's bias corrections of its two averages at update t = 1, 2, …"""
        return 1 - BETA1**t, 1 - BETA2**t

    @torch.no_grad()
    def apply(self, grads: Tensors, numbers: Iterable[Number], average: Tensors | None = None) -> None:
        """Update the parameters, by a dozen kernels for all of them or one kernel for each.

        The numbers are learning rate, momentum (of "sgd"), the bias corrections of Adam's two averages, and
        the rate at which the running `average` moves to the weights. All may be tensors, for CUDA graphs.
        """
        average = average or {}
        rate, momentum, first_correction, second_correction, average_rate = numbers = list(numbers)
        if self._update_on_gpu(grads, numbers, average) or self._update_on_cpu(grads, numbers, average):
            return
        if self.decayed and self.rule == "adamw":
            scale([self.params[name] for name in self.decayed], 1 - rate * self.decay)
        elif self.decayed:
            penalty = [self.params[name].clone() for name in self.decayed]
            scale(penalty, self.decay)
            sums = foreach("add", penalty, [grads[name] for name in self.decayed])
            grads = grads | dict(zip(self.decayed, sums, strict=True))
        ordered = [grads[name] for name in self.params]
        first, *second = map(list, zip(*map(self._slots, self.params), strict=True))
        if self.rule == "sgd":
            scale(first, momentum)
            foreach("add_", first, ordered)
            change = [v.clone() for v in first]
        else:
            foreach("lerp_", first, ordered, 1 - BETA1)
            foreach("mul_", second[0], BETA2)
            foreach("addcmul_", second[0], ordered, ordered, 1 - BETA2)
            root = foreach("sqrt", second[0])
            scale(root, second_correction**-0.5)
            foreach("add_", root, EPSILON)
            change = list(foreach("div", first, root))
            scale(change, 1 / first_correction)
        scale(change, rate)
        foreach("sub_", list(self.params.values()), change)
        if average:
            means = list(average.values())
            gaps = foreach("sub", [self.params[n] for n in average], means)
            scale(gaps, average_rate)
            foreach("add_", means, gaps)

    def _update_on_gpu(self, grads: Tensors, numbers: list[Number], average: Tensors) -> bool:
        """Update by one GPU kernel per parameter; False, without an update, if that is not supported."""
        device = next(iter(self.params.values())).device
        if len(self.params) > MOST_FUSED or device.type != "cuda" or not backends.available("triton"):
            return False
        from pynade.kernels.update import suits, update

        tensors = {n: [p, grads[n], *self._slots(n), average.get(n, p)] for n, p in self.params.items()}
        if not all(map(suits, tensors.values())):
            return False
        members = max(n.numel() if isinstance(n, Tensor) else 1 for n in numbers)

        def row(number: Number) -> Tensor:
            return torch.as_tensor(number, dtype=torch.float32, device=device).expand(members)

        stacked, constants = torch.stack([row(n) for n in numbers]), (BETA1, BETA2, EPSILON)
        if self.decayed and self._decay_row is None:
            self._decay_row = row(self.decay).contiguous()
        for name, p in self.params.items():
            decay, mean = self._decay_row if name in self.decayed else None, average.get(name)
            update(self.rule, p, grads[name], self._slots(name), mean, decay, stacked, constants)
        return True

    def _update_on_cpu(self, grads: Tensors, numbers: list[Number], average: Tensors) -> bool:
        """The same on a CPU, for AdamW on one model with a running average (else some fifteen passes)."""
        supported = self.rule == "adamw" and average and not any(isinstance(n, Tensor) for n in numbers)
        if not supported or isinstance(self.decay, Tensor) or not backends.available("numba"):
            return False
        from pynade.kernels.cpu_update import suits, update

        tensors = {n: [p, grads[n], *self._slots(n), average[n]] for n, p in self.params.items()}
        if not all(map(suits, tensors.values())):
            return False
        rate, _, *rest = numbers
        for name, group in tensors.items():
            decay = rate * self.decay if name in self.decayed else 0.0
            update(group, [rate, decay, *rest], (BETA1, BETA2, EPSILON))  # type: ignore[list-item]
        return True

    def _slots(self, name: str) -> list[Tensor]:
        return [self.state[f"{slot}/{name}"] for slot in self.slots]


def scale(tensors: Sequence[Tensor], number: Any) -> None:
    """Multiply all tensors in place by one number, or by one number per member."""
    if isinstance(number, Tensor) and number.ndim:
        number = [number.view(-1, *[1] * (t.ndim - 1)) for t in tensors]
    foreach("mul_", tensors, number)


def clip(grads: Tensors, largest: float, members: bool = False) -> None:
    """Scale gradients in place so that their joint norm (for each of `members`) is at most `largest`."""
    tensors, norm = list(grads.values()), torch.linalg.vector_norm
    norms = [norm(g.flatten(1), dim=-1) for g in tensors] if members else list(foreach("norm", tensors))
    scale(tensors, (largest / (norm(torch.stack(norms), dim=0) + 1e-6)).clamp(max=1.0))


@dataclass(eq=False)
class Step:
    """Updates of a model (loss, gradient, optimizer, running average) on rows of x, selected by indexes.

    On a GPU full minibatches are replayed from a CUDA graph, with the same arithmetic and random numbers,
    since small updates spend most of their time launching kernels. In a population, batches and losses are
    (M, B).

    Each of several processes has all rows, parameters and random numbers, and computes the loss of its share
    of a minibatch; DistributedDataParallel averages the gradients, so that all make the same update.
    """

    model: Any  # trained in place; its `loss(rows, generator)` is (B,), or (M, B) of a population
    x: Tensor  # all training rows, on the model's device
    options: Gradient
    generators: Sequence[torch.Generator]  # of the loss; a population may have several
    optimizer: Optimizer  # over the model's parameters
    capture: bool | None = None  # replay a CUDA graph; None does so on every GPU
    members: int | None = None  # M of a population, None for a single model

    def __post_init__(self) -> None:
        averaged = {} if self.options.ema is None else self.optimizer.params
        self.average = {n: p.detach().clone() for n, p in averaged.items()}
        self.shape = () if self.members is None else (self.members,)
        self.loss_sum = torch.zeros(self.shape, dtype=torch.float64, device=self.x.device)
        self.shared: DistributedDataParallel | None = None
        if rank_and_size()[1] > 1 and self.members is None:
            self.shared = DistributedDataParallel(_Loss(self.model), gradient_as_bucket_view=True)
            # the first pass determines the layout of the gradient buckets, and thereby the rounding of sums:
            # a resumed training has to begin with the same pass
            self.shared(self.x[:1], torch.Generator(self.x.device).manual_seed(0)).sum().backward()
            self._take_gradients()
        undivided = self.shared is None and self.options.accumulate == 1
        self.capture = self.x.device.type == "cuda" and self.capture is not False and undivided
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Tensor, rate: Number, momentum: Number = 0.0) -> None:
        """One update on the rows with indexes `batch`; their loss is added to `loss_sum`."""
        self.optimizer.t += 1
        t, ema = self.optimizer.t, self.options.ema
        average_rate = 0.0 if ema is None else 1 - min(ema, (1 + t) / (10 + t))  # larger at first
        numbers: tuple[Number, ...] = (rate, momentum, *Optimizer.corrections(t), average_rate)
        if not self.capture or batch.shape[-1] != self.options.batch_size:
            self._update(batch, [n.to(self.x.device) if isinstance(n, Tensor) else n for n in numbers])
            return
        if self.graph is None:
            self.prepare(batch)
        self._batch.copy_(batch)
        rows = [torch.as_tensor(n, dtype=self._numbers.dtype).expand(self.shape) for n in numbers]
        self._numbers.copy_(torch.stack(rows), non_blocking=True)
        self.graph.replay()  # type: ignore[union-attr]

    def prepare(self, batch: Tensor) -> None:
        """Capture an update on a full batch, which reads the batch and the numbers from two buffers."""
        tensors = [*self.optimizer.params.values(), *self.optimizer.state.values(), *self.average.values()]
        self._batch, self._numbers = batch.clone(), tensors[0].new_ones(5, *self.shape)
        changed = [*tensors, self.loss_sum, *self.model.buffers()]
        self.graph = capture_graph(lambda: self._update(self._batch, self._numbers), changed, self.generators)

    def gradients(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The loss of rows, and the gradients of its mean (of each member's mean) by the parameters.

        In one of several processes: the loss of its share of the rows, and the gradients for all rows.
        """
        generators: Any = self.generators if self.shape else self.generators[0]
        params = list(self.optimizer.params.values())
        if self.shared is None and self.options.accumulate == 1:
            with computing_in(self.options.precision, self.x.device):
                loss = self.model.loss(x, generators)
            return loss, torch.autograd.grad(loss.mean(-1).sum(), params)
        n, size, shared = x.shape[-2], 1 if self.shared is None else rank_and_size()[1], self.shared
        share, losses = process_slices(n, self.options.accumulate), []
        parts, weight = share or [slice(0, 1)], size / n if share else 0.0  # all processes must take part
        states = [g.get_state() for g in self.generators]
        for part in parts:
            for g, state in zip(self.generators, states, strict=True):
                g.set_state(state)  # every piece uses a part of the random numbers for all rows
            wait = nullcontext() if shared is None or part is parts[-1] else shared.no_sync()
            with wait, minibatch_part(x, part) as rows:
                with computing_in(self.options.precision, self.x.device):
                    loss = (shared or self.model.loss)(rows, generators)
                (weight * loss.sum()).backward()
            losses.append(loss.detach() if share else loss.detach()[..., :0])
        return torch.cat(losses, -1), self._take_gradients()

    def _take_gradients(self) -> list[Tensor]:
        """The accumulated gradients of the parameters, which are reset."""
        params = self.optimizer.params.values()
        grads: Any = [p.grad for p in params]
        for p in params:
            p.grad = None
        return grads

    def _update(self, batch: Tensor, numbers: Iterable[Number]) -> None:
        loss, gradients = self.gradients(self.x[batch])
        params = self.optimizer.params
        grads = {n: match_layout(g, p) for (n, p), g in zip(params.items(), gradients, strict=True)}
        if self.options.clip is not None:
            clip(grads, self.options.clip, members=bool(self.shape))
        self.optimizer.apply(grads, numbers, self.average)
        with torch.no_grad():
            self.loss_sum += loss.sum(-1)

    def state(self) -> dict[str, Tensors]:
        """Running averages and the optimizer's tensors, for a checkpoint."""
        return {"average": self.average, "optimizer": self.optimizer.state}

    def restore(self, tensors: dict[str, Tensors], t: int) -> None:
        """Restore a `state` after t updates."""
        self.optimizer.t = t
        for group, present in self.state().items():
            for name, value in tensors.get(group, {}).items():
                present[name].copy_(value)


class _Loss(nn.Module):
    """A model's loss as a module for DistributedDataParallel, with its trained parameters and no buffers."""

    def __init__(self, model: Trainable) -> None:
        super().__init__()
        self.trained = nn.ParameterList(p for p in model.parameters() if p.requires_grad)
        self.loss = model.loss

    def forward(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return self.loss(rows, generator)


def capture_graph(
    update: Callable[[], None], tensors: Sequence[Tensor], generators: Sequence[torch.Generator]
) -> torch.cuda.CUDAGraph:
    """A CUDA graph of an in-place update; afterwards the tensors and the generators are restored."""
    before = [t.detach().clone() for t in tensors]
    states = [g.get_state() for g in generators]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    for g in generators:
        graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        update()
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
    for g, state in zip(generators, states, strict=True):
        g.set_state(state)
    return graph


def match_layout(grad: Tensor, param: Tensor) -> Tensor:
    """The gradient with the strides of its parameter; else torch would use one kernel per tensor."""
    return grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)


@contextmanager
def use_average(model: Any, average: Tensors) -> Iterator[None]:
    """Context in which the model has the averaged weights (unchanged for an empty average)."""
    weights = {n: p.detach().clone() for n, p in model.named_parameters() if n in average}
    model.load_state_dict(average, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(weights, strict=False)
