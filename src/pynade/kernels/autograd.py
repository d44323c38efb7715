"""Fused kernels as differentiable functions of torch.

All tensors of a kernel have a first axis of M members (or any leading axes), so that `torch.func.vmap` over a
new axis is one call with more members. The backward pass is a separate function so that it can be mapped too.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from pynade.kernels.private import transforms_active


class Kernel(Protocol):
    """A kernel that `fused` makes differentiable; its intermediates are empty tensors unless `keep`."""

    def forward(self, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The output, and the intermediates that the backward pass needs."""

    def backward(self, needs: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the first tensors, empty where not needed; the others have no gradient."""


def fused(kernel: Kernel, *tensors: Tensor) -> Tensor:
    """The kernel's output; intermediates are kept only where a gradient may be needed."""
    transformed = transforms_active()  # requires_grad of mapped tensors is not known
    keep = torch.is_grad_enabled() and (transformed or any(t.requires_grad for t in tensors))
    if not keep and not transformed:  # autograd alone takes as long as a small batch
        return kernel.forward(False, *tensors)[0]
    output: Tensor = Fused.apply(kernel, keep, *tensors)[0]
    return output


class Mapped(Function):
    """Abstract function of a kernel, an option and tensors."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], Any]:
        """Join the new axis with the first; tensors without it are repeated, except an order (1, D)."""
        pairs = zip(args[2:], in_dims[2:], strict=True)
        leading = [t.unsqueeze(0) if dim is None else t.movedim(dim, 0) for t, dim in pairs]
        shortest = min((t.shape for t in leading if t.is_floating_point()), key=len)
        lead = (info.batch_size, *shortest[1:2])

        def join_axes(t: Tensor) -> Tensor:
            shared = t.shape[:2] == (1, 1) and not t.is_floating_point()
            return t[0] if shared else t.expand(*lead, *t.shape[len(lead) :]).flatten(0, len(lead) - 1)

        outputs = cls.apply(*args[:2], *map(join_axes, leading))
        return tuple(output.unflatten(0, lead) for output in outputs), (0,) * len(outputs)


class Fused(Mapped):
    """(kernel, keep, *tensors) → the output and the intermediates."""

    @staticmethod
    def forward(kernel: Kernel, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the kernel."""
        return kernel.forward(keep, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save inputs and intermediates; with the inputs, second derivatives raise an error."""
        ctx.kernel, _, *tensors = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # no zeros for the gradients of the intermediates
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *none: None) -> tuple[Tensor | None, ...]:
        """All gradients, from one backward pass; intermediates that were not kept are computed now."""
        needs = ctx.needs_input_grad[2:]
        if grad is None:
            return (None,) * (2 + len(needs))
        saved = ctx.saved_tensors
        tensors, intermediates = saved[: len(needs)], saved[len(needs) :]
        if intermediates[-1].numel() == 0:
            intermediates = Fused.apply(ctx.kernel, True, *tensors)[1:]
        grads = FusedBackward.apply(ctx.kernel, needs, *tensors, *intermediates, grad)
        rest = (None,) * (len(needs) - len(grads))
        return None, None, *[g if need else None for g, need in zip(grads, needs, strict=False)], *rest


class FusedBackward(Mapped):
    """(kernel, needs, *tensors, *intermediates, grad) → gradients of the tensors; not differentiable."""

    @staticmethod
    def forward(kernel: Kernel, needs: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the kernel."""
        return kernel.backward(needs, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing to save."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Not available."""
        raise NotImplementedError(
            "the fused kernels have first derivatives only; for more use kernel='reference' in a NADE, "
            "and set `fused` of a mixture's family to False"
        )


for _function in (Fused, FusedBackward):  # otherwise `apply` computes the signature at every call
    vars(_function.forward)["__signature__"] = inspect.signature(_function.forward)
