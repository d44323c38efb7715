"""The fused kernels as differentiable functions of torch.

Both functions carry a leading member axis M, and mapping them over a new axis (`torch.func.vmap`) multiplies
M: a population is one call of the kernel. The backward pass is a function of its own so that it can be
mapped too.
"""

from __future__ import annotations

import inspect
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
    def forward(*args: Any) -> Any:
        """Call the kernel."""
        x, *weights, activation, kernel, with_tape = args
        return backends.load(kernel, "forward").forward(x, Weights(*weights), activation, with_tape)

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
        need_x, options = ctx.needs_input_grad[0], (ctx.activation, ctx.kernel)
        *tensors, tape = ctx.saved_tensors
        if tape.shape[1] == 0:
            tape = Recurrence.apply(*tensors, *options, True)[1]
        gx, gw, gc, gv = RecurrenceBackward.apply(*tensors, tape, grad_eta, *options, need_x)
        return (gx if need_x else None), gw, gc, gv, grad_eta.sum(1), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, ...], Dims]:
        """More members."""
        return _with_more_members(Recurrence, 6, info.batch_size, in_dims, args)


class RecurrenceBackward(FirstDerivatives):
    """(x, W, c, V, b, order, tape, grad_eta, activation, kernel, need_x) → gradients of x, W, c, V."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """Call the kernel."""
        x, *weights, tape, grad_eta, activation, kernel, need_x = args
        return backends.load(kernel, "backward").backward(
            x, Weights(*weights), tape, grad_eta, activation, need_x
        )

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, ...], Dims]:
        """More members."""
        return _with_more_members(RecurrenceBackward, 8, info.batch_size, in_dims, args)


keep_signatures(Recurrence, RecurrenceBackward)


def axis_first(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the mapped axis first; a view of `size` copies where it was not mapped."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _with_more_members(
    function: Any, count: int, size: int, dims: Dims, args: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], Dims]:
    """Call a function whose first arguments are `count` tensors, the mapped axis merged into the members.

    An order (the sixth tensor) that all members share stays shared.
    """
    moved = [axis_first(tensor, dim, size) for tensor, dim in zip(args[:count], dims, strict=False)]
    members, shared = moved[0].shape[1], dims[5] is None and len(args[5]) == 1
    moved[5] = args[5].unsqueeze(0) if shared else moved[5].expand(size, members, -1)
    outputs = function.apply(*(tensor.flatten(0, 1) for tensor in moved), *args[count:])
    parts = tuple(output.reshape(size, members, *output.shape[1:]) for output in outputs)
    return parts, (0,) * len(parts)
