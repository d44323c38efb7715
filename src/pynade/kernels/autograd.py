"""The fused kernels as differentiable functions of torch.

Both functions carry a leading member axis M, and mapping them over a new axis (`torch.func.vmap`) multiplies
M: a population is one call of the kernel. The backward pass is a function of its own so that it can be
mapped too.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

from torch import Tensor
from torch.autograd import Function

from pynade.kernels import backends
from pynade.kernels.reference import Weights

Dims = tuple[int | None, ...]


class FirstDerivatives(Function):
    """Abstract backward pass of a fused kernel: nothing is kept for derivatives of its own."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing to keep."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Not available."""
        raise NotImplementedError(
            "the fused kernels have first derivatives only; for more use kernel='reference' in a NADE, "
            "and set `fused` of a mixture's family to False"
        )


def keep_signatures(*functions: type[Function]) -> None:
    """Compute the signature of `forward` once; `apply` would compute it at every call."""
    for function in functions:
        vars(function.forward)["__signature__"] = inspect.signature(function.forward)


class Recurrence(Function):
    """(x, W, c, V, b, order, activation, kernel, with_tape) → (eta, tape), shapes as in `cpu.forward`.

    The tape holds what the kernel needs for its gradients; its second axis may have any length. Where it was
    left out, it is made when a backward pass needs it after all.
    """

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        """Call the kernel."""
        x, *weights, activation, kernel, with_tape = args
        out: tuple[Tensor, Tensor] = backends.load(kernel).forward(
            x, Weights(*weights), activation, with_tape
        )
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the inputs and the tape, no activations."""
        *tensors, ctx.activation, ctx.kernel, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # there would be zeros as large as the tape
        ctx.save_for_backward(*tensors, output[1])

    @staticmethod
    def backward(ctx: Any, grad_eta: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """All gradients, from one backward pass."""
        if grad_eta is None:
            return (None,) * 9
        need_x = ctx.needs_input_grad[0]
        *tensors, tape = ctx.saved_tensors
        if tape.shape[1] == 0:
            tape = Recurrence.apply(*tensors, ctx.activation, ctx.kernel, True)[1]
        gx, gw, gc, gv = RecurrenceBackward.apply(
            *tensors, tape, grad_eta, ctx.activation, ctx.kernel, need_x
        )
        return (gx if need_x else None), gw, gc, gv, grad_eta.sum(1), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, ...], Dims]:
        """More members."""
        *tensors, order, activation, kernel, with_tape = args
        tensors, order, members = _members(info.batch_size, in_dims, tensors, order, in_dims[5])
        outputs = Recurrence.apply(*tensors, order, activation, kernel, with_tape)
        return _split(outputs, info.batch_size, members)


class RecurrenceBackward(FirstDerivatives):
    """(x, W, c, V, b, order, tape, grad_eta, activation, kernel, need_x) → gradients of x, W, c, V."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Call the kernel."""
        x, *weights, tape, grad_eta, activation, kernel, need_x = args
        run = backends.load(kernel).backward
        grads: tuple[Tensor, Tensor, Tensor, Tensor] = run(
            x, Weights(*weights), tape, grad_eta, activation, need_x
        )
        return grads

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, ...], Dims]:
        """More members."""
        *tensors, order, tape, grad_eta, activation, kernel, need_x = args
        dims = (*in_dims[:5], *in_dims[6:8])
        merged, order, members = _members(
            info.batch_size, dims, [*tensors, tape, grad_eta], order, in_dims[5]
        )
        outputs = RecurrenceBackward.apply(*merged[:5], order, *merged[5:], activation, kernel, need_x)
        return _split(outputs, info.batch_size, members)


keep_signatures(Recurrence, RecurrenceBackward)


def _members(
    size: int, dims: Dims, tensors: list[Tensor], order: Tensor, order_dim: int | None
) -> tuple[list[Tensor], Tensor, int]:
    """Merge the mapped axis into the member axis; an order shared by all stays shared."""
    members = tensors[0].shape[0 if dims[0] is None else int(dims[0] == 0)]
    merged = [_merge(tensor, dim, size) for tensor, dim in zip(tensors, dims, strict=False)]
    if order_dim is not None or len(order) > 1:
        shape = (size, members, order.shape[-1])
        order = (
            (order if order_dim is None else order.movedim(order_dim, 0)).expand(shape).reshape(-1, shape[2])
        )
    return merged, order, members


def _merge(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    moved = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.reshape(math.prod(moved.shape[:2]), *moved.shape[2:])


def _split(outputs: tuple[Tensor, ...], size: int, members: int) -> tuple[tuple[Tensor, ...], Dims]:
    parts = tuple(output.reshape(size, members, *output.shape[1:]) for output in outputs)
    return parts, (0,) * len(parts)
