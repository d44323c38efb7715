"""ConvNADE's net: convolutions on the observed pixels and the flags that say which they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.nets.any_order import AnyOrderNet
from pynade.nets.base import activation_named, glorot
from pynade.nets.blueprint import (
    PAPER_BLUEPRINT,
    Convolution,
    Pool,
    format_blueprint,
    infer_shapes,
    layers_for,
)
from pynade.nets.layers import (
    check_dropout,
    check_image,
    convolved,
    dropped,
    from_maps,
    side_by_side,
    to_maps,
)


class MaskedConv(AnyOrderNet):
    """Any-order convolutional net (section "ConvNADE").

        H⁰ = concat(X ⊙ observed, observed),   Hˡ_j = act(bˡ_j + Σ_i Hˡ⁻¹_i ⊛ Wˡ_ij)

    The last layer has no activation, and instead of one bias per map the `bias` per variable that every
    net has. Filters are not flipped (they are learnt, so this is a matter of names). Variables are the
    pixels of a (channels, height, width) image, flattened in that order.

    Args:
        image_shape: (height, width).
        n_params: P, raw outputs per variable.
        blueprint: the layers, see `pynade.nets.blueprint`; the default is the paper's, for 28 × 28.
        channels: C, so that D = C · height · width.
        n_features: F, inputs per variable.
        activation: "relu", "tanh", "sigmoid" or "silu", after every convolution but the last.
        input_observed: give the net the flags too; False is the tables' "no input masks".
        dropout: share of hidden activations dropped in training.
        generator: source of the initial weights (uniform, Glorot).

    Example:
        >>> import torch
        >>> net = MaskedConv((5, 5), blueprint="8@3x3(valid)->8@2x2(full)->1@2x2(full)")
        >>> net.conditionals(torch.ones(2, 25, 1), torch.ones(2, 25, dtype=torch.bool)).shape
        torch.Size([2, 25, 1])
        >>> sum(p.numel() for p in MaskedConv((28, 28)).parameters())
        840912
    """

    input_weights = ("weights.0",)

    def __init__(
        self,
        image_shape: Sequence[int],
        n_params: int = 1,
        blueprint: str = PAPER_BLUEPRINT,
        *,
        channels: int = 1,
        n_features: int = 1,
        activation: str = "relu",
        input_observed: bool = True,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        height, width = check_image(image_shape, channels)
        super().__init__(channels * height * width, n_params, n_features)
        self.image_shape, self.channels = (height, width), channels
        self.activation, self._act = activation, activation_named(activation)
        self.input_observed, self.dropout = input_observed, check_dropout(dropout)

        maps = channels * (n_features + int(input_observed))
        self.layers = layers_for(blueprint, (maps, height, width), channels * n_params)
        first = (maps, height, width)
        sizes = [m * h * w for m, h, w in (first, *infer_shapes(self.layers, first))]
        self.row_floats = 4 * max(sizes)  # a layer's input and output, and what the convolution needs
        self.weights, self.hidden_bias = nn.ParameterList(), nn.ParameterList()
        for n, layer in enumerate(self.layers, start=1):
            if isinstance(layer, Convolution):
                area = layer.height * layer.width
                fans = {"fan_in": maps * area, "fan_out": layer.maps * area}
                shape = (layer.maps, maps, layer.height, layer.width)
                self.weights.append(glorot(*shape, **fans, generator=generator))
                if n < len(self.layers):
                    self.hidden_bias.append(nn.Parameter(torch.zeros(layer.maps)))
                maps = layer.maps

    def conditionals(
        self, features: Tensor, observed: Tensor, noise: torch.Generator | None = None
    ) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        h, flags = to_maps(features, observed, self.image_shape)
        if self.input_observed:
            h = torch.cat((h, flags), dim=1)
        h = side_by_side(h)
        n = 0  # convolutions so far
        for layer in self.layers:
            size = (layer.height, layer.width)
            if isinstance(layer, Convolution):
                bias = self.hidden_bias[n] if n < len(self.hidden_bias) else None
                h = _convolve(h, self.weights[n], bias, layer.type)
                if bias is not None:
                    h = dropped(self._act(h), self.dropout, noise)
                n += 1
            elif isinstance(layer, Pool):
                h = functional.max_pool2d(h, size)
            else:
                h = h.repeat_interleave(size[0], dim=2).repeat_interleave(size[1], dim=3)
        return from_maps(h, self.n_variables) + self.bias

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return {
            "image_shape": list(self.image_shape),
            "n_params": self.n_params,
            "blueprint": format_blueprint(self.layers),
            "channels": self.channels,
            "n_features": self.n_features,
            "activation": self.activation,
            "input_observed": self.input_observed,
            "dropout": self.dropout,
        }


def _convolve(h: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """One convolution of stride 1: "valid", "same" or "full"."""
    height, width = weight.shape[-2:]
    if kind == "full":
        return convolved(h, weight, bias, padding=(height - 1, width - 1))
    if kind == "same":  # the odd one of an even filter's zeros goes to the right and to the bottom
        around = ((width - 1) // 2, width // 2, (height - 1) // 2, height // 2)
        h = functional.pad(h, around)
    return convolved(h, weight, bias)
