"""Optimizers whose learning rate, momentum and weight decay may be one number or one per member.

torch.optim takes one learning rate for all, but a population (many members of one architecture, their
parameters stacked on a leading axis) needs one per member. Tests compare every rule with torch.optim's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pynade.kernels import backends
from pynade.kernels.private import foreach

Number = float | Tensor  # a Tensor holds one value per member, shape (M,)

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
MOST_FUSED = 64  # tensors; for more, one kernel for each takes longer than a dozen for all of them


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
        self._on_device: dict[int, Tensor] = {}  # decays, by identity
        self.slots = ("velocity",) if rule == "sgd" else ("first", "second")
        self.state = {f"{slot}/{n}": torch.zeros_like(p) for slot in self.slots for n, p in params.items()}

    def step(self, grads: dict[str, Tensor], learning_rate: Number, momentum: Number = 0.0) -> None:
        """One update from the gradients of the loss."""
        self.t += 1
        self.apply(grads, (learning_rate, momentum, *self.corrections(self.t), 0.0))

    @staticmethod
    def corrections(t: int) -> tuple[float, float]:
        """Adam's corrections of its two averages at update t = 1, 2, …"""
        return 1 - BETA1**t, 1 - BETA2**t

    @torch.no_grad()
    def apply(
        self, grads: dict[str, Tensor], numbers: Iterable[Number], average: dict[str, Tensor] | None = None
    ) -> None:
        """The arithmetic of an update; all numbers may be tensors, so that a CUDA graph can hold it.

        It works on lists of tensors: a dozen kernels for all parameters together. On a GPU, for nets of few
        tensors, it is one kernel for each of them (`pynade.kernels.update`).

        Args:
            grads: of the loss, by name.
            numbers: learning rate, momentum (of "sgd"), the corrections of Adam's two averages, and the share
                of the way to the new weights that `average` moves.
            average: running averages of the weights, by name.
        """
        average = average or {}
        if self._fuses(grads, average):
            self._fused(grads, list(numbers), average)
            return
        learning_rate, momentum, first_correction, second_correction, average_rate = numbers
        params, slopes = list(self.params.values()), [grads[name] for name in self.params]
        groups: dict[int, list[int]] = {}  # positions of the parameters that have the same decay
        for k, name in enumerate(self.params):
            if (decay := self.decay.get(name)) is not None:
                groups.setdefault(id(decay) if isinstance(decay, Tensor) else hash(decay), []).append(k)
        for group in groups.values():
            decay, some = self.decay[list(self.params)[group[0]]], [params[k] for k in group]
            if self.rule == "adamw":
                scale(some, 1 - learning_rate * decay)
            else:
                pull = [p.clone() for p in some]
                scale(pull, decay)
                for k, extra in zip(group, foreach("add", pull, [slopes[k] for k in group]), strict=True):
                    slopes[k] = extra
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
        scale(change, learning_rate)
        foreach("sub_", params, change)
        if average:
            means = list(average.values())
            gaps = foreach("sub", [self.params[n] for n in average], means)
            scale(gaps, average_rate)
            foreach("add_", means, gaps)

    def _fuses(self, grads: dict[str, Tensor], average: dict[str, Tensor]) -> bool:
        few = len(self.params) <= MOST_FUSED and all(p.is_cuda for p in self.params.values())
        if not few or not backends.available("triton"):
            return False
        from pynade.kernels.update import suits

        own = [[p, grads[n], *self._slots(n), average.get(n, p)] for n, p in self.params.items()]
        return all(map(suits, own))

    def _fused(self, grads: dict[str, Tensor], numbers: list[Number], average: dict[str, Tensor]) -> None:
        from pynade.kernels.update import update

        device = next(iter(self.params.values())).device
        members = max(n.numel() if isinstance(n, Tensor) else 1 for n in numbers)

        def row(number: Number) -> Tensor:
            return torch.as_tensor(number, dtype=torch.float32, device=device).expand(members)

        stacked, constants = torch.stack([row(n) for n in numbers]), (BETA1, BETA2, EPSILON)
        for name, p in self.params.items():
            decay, pull = self.decay.get(name), None
            if decay is not None:
                if id(decay) not in self._on_device:
                    self._on_device[id(decay)] = row(decay).contiguous()
                pull = self._on_device[id(decay)]
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


def clip(grads: dict[str, Tensor], largest: float, members: bool = False) -> None:
    """Scale gradients in place so that their joint norm, each member's own, is at most `largest`."""
    slopes = list(grads.values())
    if members:
        parts = [torch.linalg.vector_norm(g.flatten(1), dim=-1) for g in slopes]
    else:
        parts = list(foreach("norm", slopes))  # a few kernels for all of them
    norm = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    scale(slopes, (largest / (norm + 1e-6)).clamp(max=1.0))
