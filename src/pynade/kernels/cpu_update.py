"""Adam's update in one pass over the numbers of a parameter, on the CPU."""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu_scalar import jit


def suits(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors are float32, contiguous and on the CPU."""
    return all(t.is_cpu and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


def update(tensors: Sequence[Tensor], numbers: Sequence[float], constants: Sequence[float]) -> None:
    """Update a weight, Adam's two averages and the running average of the weight in place.

    Args:
        tensors: weight, gradient, the two averages, the running average.
        numbers: learning rate, its product with AdamW's decay, bias corrections of the two averages, and one
            minus the decay of the running average.
        constants: Adam's beta1, beta2 and epsilon.
    """
    flat = [t.detach().numpy().reshape(-1) for t in tensors]
    rate, pull, first_correction, second_correction, move = numbers
    values = (rate / first_correction, 1 - pull, second_correction**-0.5, move, *constants)
    _update(*flat, np.array(values, dtype=np.float32))


@jit()
def _update(weight, slope, first, second, average, values):
    rate, keep, root, move, beta1, beta2, epsilon = values
    one = np.float32(1)
    for i in range(len(weight)):
        s = slope[i]
        a = first[i] + (s - first[i]) * (one - beta1)
        b = second[i] * beta2 + s * s * (one - beta2)
        w = weight[i] * keep - rate * a / (np.sqrt(b) * root + epsilon)
        first[i] = a
        second[i] = b
        weight[i] = w
        average[i] += (w - average[i]) * move
