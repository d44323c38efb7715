"""The sum of two any-order nets: ConvNADE + DeepNADE."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from pynade.nets.base import AnyOrderNet, State


class Hybrid(AnyOrderNet):
    """The sum of two nets' eta, taken before the output non-linearity (eq. convnade-hybrid:last-hidden).

    There is one output bias, the hybrid's own `bias`: it starts as the sum of the parts' biases, which become
    constant zeros, so that the function is the sum of the two and no parameter is counted twice.

    Args:
        first: any-order net, such as a `MaskedConv`.
        second: any-order net of the same variables, such as a `MaskedMLP`.

    Example:
        >>> from pynade.nets import MaskedConv, MaskedMLP
        >>> paper = Hybrid(MaskedConv((28, 28)), MaskedMLP(784, hidden=(500, 500)))
        >>> paper.n_variables, sum(p.numel() for p in paper.parameters())
        (784, 2267912)
    """

    def __init__(self, first: AnyOrderNet, second: AnyOrderNet) -> None:
        shapes = [(net.n_variables, net.n_params, net.n_features) for net in (first, second)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                "the parts of a hybrid need the same n_variables, n_params and n_features, "
                f"not {shapes[0]} and {shapes[1]}"
            )
        super().__init__(*shapes[0])
        self.first, self.second = first, second
        self.row_floats = sum(net.row_floats or 4 * net.bias.numel() for net in (first, second))
        self.bias = nn.Parameter(_take_bias(first) + _take_bias(second))

    @property
    def input_weights(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of both parts."""
        parts = {"first": self.first, "second": self.second}
        return tuple(f"{name}.{weight}" for name, net in parts.items() for weight in net.input_weights)

    def conditionals(self, features: Tensor, observed: Tensor, noise: Generator | None = None) -> Tensor:
        """Eta (B, D, P): the parts' and the bias, added up."""
        first = self.first.conditionals(features, observed, noise)
        return first + self.second.conditionals(features, observed, noise) + self.bias

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The parts', each in its own way if that needs no more than the values and flags observed so far."""
        first, second = (
            net.predict(state, i)
            if type(net).start is AnyOrderNet.start
            else AnyOrderNet.predict(net, state, i)
            for net in (self.first, self.second)
        )
        return first + second + self.bias[i].unsqueeze(1)


def _take_bias(net: AnyOrderNet) -> Tensor:
    """The net's output bias, in whose place it keeps zeros that are never trained."""
    bias = net.bias.detach()
    del net.bias
    net.register_buffer("bias", torch.zeros_like(bias))
    return bias
