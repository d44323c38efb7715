"""The update step. Ours because learning rate, momentum and decay may be one number or one per member.

torch.optim takes no vector learning rate, and a population (many members of one architecture, their
parameters stacked on a leading axis) needs exactly that. Tests hold every rule equal to torch.optim's.
"""

from __future__ import annotations

import torch
from torch import Tensor

Number = float | Tensor  # a Tensor holds one value per member, shape (M,)

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Optimizer:
    """SGD with momentum, Adam or AdamW, in place, over named parameters.

    Args:
        rule: "sgd", "adam" or "adamw".
        params: the tensors to update, by name.
        decay: weight decay of each name; names not in it are not decayed.
    """

    def __init__(self, rule: str, params: dict[str, Tensor], decay: dict[str, Number] | None = None) -> None:
        self.rule, self.params, self.decay = rule, params, decay or {}
        self.t = 0
        slots = ("velocity",) if rule == "sgd" else ("first", "second")
        self.state = {f"{slot}/{n}": torch.zeros_like(p) for slot in slots for n, p in params.items()}

    def step(self, grads: dict[str, Tensor], learning_rate: Number, momentum: Number = 0.0) -> None:
        """One update from the gradients of the loss."""
        self.t += 1
        self.apply(grads, learning_rate, momentum, *self.corrections(self.t))

    @staticmethod
    def corrections(t: int) -> tuple[float, float]:
        """Adam's corrections of its two averages at update t = 1, 2, …"""
        return 1 - BETA1**t, 1 - BETA2**t

    @torch.no_grad()
    def apply(
        self,
        grads: dict[str, Tensor],
        learning_rate: Number,
        momentum: Number,
        first_: Number,
        second_: Number,
    ) -> None:
        """The arithmetic of an update; all numbers may be tensors, so that a CUDA graph can hold it."""
        for name, p in self.params.items():
            grad, rate = grads[name], per_member(learning_rate, p)
            decay = per_member(self.decay.get(name, 0.0), p)
            if self.rule == "adamw" and name in self.decay:
                p.mul_(1 - rate * decay)
            elif name in self.decay:
                grad = grad + decay * p
            if self.rule == "sgd":
                velocity = self.state[f"velocity/{name}"]
                velocity.mul_(per_member(momentum, p)).add_(grad)
                p.sub_(rate * velocity)
            else:
                first, second = self.state[f"first/{name}"], self.state[f"second/{name}"]
                first.lerp_(grad, 1 - BETA1)
                second.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
                scale = (second / second_).sqrt_().add_(EPSILON)
                p.sub_(rate / first_ * (first / scale))


def clip(grads: dict[str, Tensor], largest: float) -> None:
    """Scale all gradients in place so that their joint norm is at most `largest`."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads.values()]))
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads.values():
        grad.mul_(factor)


def per_member(value: Number, p: Tensor) -> Number:
    """A plain number stays; a value per member (M,) is shaped to broadcast over the parameter (M, …)."""
    return value.view(-1, *[1] * (p.ndim - 1)) if isinstance(value, Tensor) and value.ndim else value
