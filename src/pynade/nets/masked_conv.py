"""ConvNADE's nets: convolutions on the observed pixels and on flags for which they are, and sums of nets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from pynade.nets.base import AnyOrderNet, State, activation_named, glorot
from pynade.nets.blueprint import PAPER_BLUEPRINT, Layer, Shape, format_blueprint, infer_shapes, layers_for
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
        n_params: P, parameters per variable.
        blueprint: the layers, see `pynade.nets.blueprint`; the default is the paper's, for 28 × 28.
        channels: C, so that D = C · height · width.
        n_features: F, inputs per variable.
        activation: "relu", "tanh", "sigmoid" or "silu", after every convolution but the last.
        input_observed: give the net the flags too; False is the tables' "no input masks".
        dropout: share of hidden activations dropped in training.
        generator: source of the initial weights (uniform, Glorot).

    Example:
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
        generator: Generator | None = None,
    ) -> None:
        height, width = check_image(image_shape, channels)
        super().__init__(channels * height * width, n_params, n_features)
        self.image_shape, self.channels = (height, width), channels
        self.activation, self._act = activation, activation_named(activation)
        self.input_observed, self.dropout = input_observed, check_dropout(dropout)

        maps = channels * (n_features + int(input_observed))
        first = (maps, height, width)
        self.layers = layers_for(blueprint, first, channels * n_params)
        self.blueprint = format_blueprint(self.layers)
        self.windows = _windows(self.layers, first)
        sizes = [math.prod(shape) for shape in (first, *infer_shapes(self.layers, first))]
        sizes += [window.maps * math.prod(window.size) for window in self.windows]
        self.row_floats = 4 * max(sizes)  # a layer's input and output, and what the convolution needs
        self.weights, self.hidden_bias = nn.ParameterList(), nn.ParameterList()
        for n, layer in enumerate(self.layers, start=1):
            if layer.convolves:
                fans = (maps + layer.maps) * layer.height * layer.width
                shape = (layer.maps, maps, layer.height, layer.width)
                self.weights.append(glorot(*shape, fans=fans, generator=generator))
                if n < len(self.layers):
                    self.hidden_bias.append(nn.Parameter(torch.zeros(layer.maps)))
                maps = layer.maps

    def conditionals(self, features: Tensor, observed: Tensor, noise: Generator | None = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        h = self._below(features, observed, len(self.layers), noise)
        return from_maps(h, self.n_variables) + self.bias

    def predict(self, state: State, i: Tensor) -> Tensor:
        """As the whole net, but the last layers only where variable i looks.

        One pixel depends on a window of the maps below it, which grows with every filter; as long as it is
        smaller than the maps, that is all that is computed. With the paper's blueprint it is a third less.
        """
        features, observed = state["features"], state["observed"]
        groups, rows = observed.shape[:2]
        first, (bottom, *above) = len(self.layers) - len(self.windows), self.windows
        h = self._below(features.flatten(0, 1), observed.flatten(0, 1), first)
        channel, pixel = i // math.prod(self.image_shape), i % math.prod(self.image_shape)
        at = torch.stack((pixel // self.image_shape[1], pixel % self.image_shape[1]), -1)  # (G, 2)
        h = _looked_at(h.unflatten(0, (groups, rows)), bottom, at)
        n = len(self.weights) - len(self.windows)  # of the first convolution that sees windows
        for window in above:
            h = self._act(convolved(h, self.weights[n], self.hidden_bias[n]))
            inside = window.inside(at)[:, None, None].expand(-1, rows, -1, -1, -1)
            h = h * inside.flatten(0, 1)  # beyond the map's edge are the next layer's zeros, not activations
            n += 1
        eta = convolved(h, self.weights[n]).reshape(groups, rows, self.n_params, self.channels)
        return eta[torch.arange(groups, device=i.device), :, :, channel] + self.bias[i].unsqueeze(1)

    def _below(self, features: Tensor, observed: Tensor, end: int, noise: Generator | None = None) -> Tensor:
        """The maps below layer `end`."""
        h, flags = to_maps(features, observed, self.image_shape)
        if self.input_observed:
            h = torch.cat((h, flags), dim=1)
        h = side_by_side(h)
        n = 0  # convolutions so far
        for layer in self.layers[:end]:
            if layer.convolves:
                bias = self.hidden_bias[n] if n < len(self.hidden_bias) else None
                h = _convolve(h, self.weights[n], bias, layer)
                if bias is not None:
                    h = dropped(self._act(h), self.dropout, noise)
                n += 1
            elif layer.type == "pool":
                h = functional.max_pool2d(h, (layer.height, layer.width))
            else:
                h = h.repeat_interleave(layer.height, dim=2).repeat_interleave(layer.width, dim=3)
        return h


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


@dataclass(frozen=True)
class _Window:
    """What a pixel depends on in one layer's map: a block that begins at the pixel's place plus `offset`."""

    offset: tuple[int, int]
    size: tuple[int, int]
    maps: int
    map: tuple[int, int]  # height and width

    def places(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (G, h) and columns (G, w) of the windows of pixels at (G, 2); some may be outside the map."""
        return tuple(  # type: ignore[return-value]
            at[:, side, None] + torch.arange(self.offset[side], self.offset[side] + n, device=at.device)
            for side, n in enumerate(self.size)
        )

    def inside(self, at: Tensor) -> Tensor:
        """Which of the places are inside the map, (G, h, w)."""
        rows, columns = ((x >= 0) & (x < n) for x, n in zip(self.places(at), self.map, strict=True))
        return rows[:, :, None] & columns[:, None, :]


def _windows(layers: Sequence[Layer], inputs: Shape) -> list[_Window]:
    """The windows of the maps below the last convolutions, lowest first, as long as they save work.

    A layer saves work if its window is smaller than its map.
    """
    shapes = [inputs, *infer_shapes(layers, inputs)]
    top, left, height, width = 0, 0, 1, 1
    found: list[_Window] = []
    for n in reversed(range(len(layers))):
        layer, (_, *after) = layers[n], shapes[n + 1]
        if not layer.convolves or (found and height * width >= after[0] * after[1]):
            break
        top, left = top - layer.zeros[0], left - layer.zeros[1]
        height, width = height + layer.height - 1, width + layer.width - 1
        found.append(_Window((top, left), (height, width), shapes[n][0], shapes[n][1:]))
    return found[::-1]


def _looked_at(maps: Tensor, window: _Window, at: Tensor) -> Tensor:
    """The windows (G N, C, h, w) of maps (G, N, C, H, W), with zeros beyond their edges."""
    groups, rows, n_maps, height, width = maps.shape
    r, c = (x.clamp(0, n - 1) for x, n in zip(window.places(at), window.map, strict=True))
    places = (r[:, :, None] * width + c[:, None, :]).view(groups, 1, -1)  # within a map, (G, 1, h w)
    base = torch.arange(groups * rows, device=maps.device).view(groups, rows, 1) * (height * width)
    flat = maps.flatten(0, 1).permute(0, 2, 3, 1).reshape(-1, n_maps)  # on a GPU they lie like this already
    h = flat.index_select(0, (base + places).flatten()).view(groups, rows, *window.size, n_maps)
    h = h * window.inside(at)[:, None, :, :, None]
    return h.flatten(0, 1).permute(0, 3, 1, 2)


def _convolve(h: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer) -> Tensor:
    """One convolution of stride 1."""
    if layer.type != "same":
        return convolved(h, weight, bias, padding=layer.zeros)
    top, left = layer.zeros  # the odd one of an even filter's zeros goes to the right and to the bottom
    h = functional.pad(h, (left, layer.width - 1 - left, top, layer.height - 1 - top))
    return convolved(h, weight, bias)
