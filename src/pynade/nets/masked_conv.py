"""The nets of ConvNADE: convolutions of the observed pixels and their mask, and sums of two nets."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.nets.base import AnyOrderNet, Random, State, activation_named, glorot, select_variables
from pynade.nets.layers import ImageNet, apply_dropout, convolve

# the paper's net for images of 28 × 28
PAPER_BLUEPRINT = (
    "64@8x8(valid)->64@4x4(valid)->64@6x6(valid)->64@7x7(valid)"
    "->64@7x7(full)->64@6x6(full)->64@4x4(full)->1@8x8(full)"
)
ZEROS = {"valid": 0, "same": 1, "full": 2}  # zero padding of both sides, in units of the filter size minus 1
Shape = tuple[int, int, int]  # maps, height, width


class MaskedConv(ImageNet):
    """Any-order convolutional net (section "ConvNADE").

        H⁰ = concat(X ⊙ observed, observed),   Hˡ_j = act(bˡ_j + Σ_i Hˡ⁻¹_i ⊛ Wˡ_ij)

    The last layer has no activation, and a bias per variable instead of one per map. Filters are not flipped.

    Args:
        image_shape, n_params, channels, n_features, dropout, generator: as for `ImageNet` and `Net`.
        blueprint: the layers, see `parse_blueprint`; the default is the paper's, for 28 × 28.
        activation: "relu", "tanh", "sigmoid" or "silu", after every convolution but the last.
        input_observed: the mask is an input too; False is "no input masks" in the paper's tables.

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
        generator: Random = None,
    ) -> None:
        super().__init__(image_shape, n_params, channels, n_features, dropout)
        self.activation, self._act = activation, activation_named(activation)
        self.input_observed = input_observed
        inputs = (channels * (n_features + int(input_observed)), *self.image_shape)
        self.layers, shapes = resolve_blueprint(blueprint, inputs, channels * n_params)
        self.blueprint = "->".join(map(str, self.layers))
        self.windows = _find_windows(self.layers, shapes)
        sizes = [math.prod(shape) for shape in shapes]
        sizes += [window.map[0] * math.prod(window.size) for window in self.windows]
        self.row_floats = 4 * max(sizes)  # input, output and working memory of a convolution
        self.weights = nn.ParameterList(
            glorot(layer.maps, maps, layer.height, layer.width, generator=generator)
            for layer, (maps, *_) in zip(self.layers, shapes, strict=False)
            if layer.convolves
        )
        self.hidden_bias = nn.ParameterList(torch.zeros(len(weight)) for weight in self.weights[:-1])

    def conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        return self.from_maps(self._run_layers(features, observed, len(self.layers), noise))

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The outputs of variable i, computing only the windows of the last maps on which it depends."""
        features, observed = state["features"], state["observed"]
        groups, rows = observed.shape[:2]
        n_full, (window, *windows) = len(self.layers) - len(self.windows), self.windows
        h = self._run_layers(features.flatten(0, 1), observed.flatten(0, 1), n_full)
        channel, pixel = i // math.prod(self.image_shape), i % math.prod(self.image_shape)
        pixels = torch.stack((pixel // self.image_shape[1], pixel % self.image_shape[1]), -1)  # (G, 2)
        indexes, inside = window.indexes(pixels)
        base = torch.arange(groups * rows, device=i.device).view(groups, rows, 1) * math.prod(window.map[1:])
        flat = h.permute(0, 2, 3, 1).flatten(0, 2)  # (no copy on a GPU, where h is channels-last)
        h = flat.index_select(0, (base + indexes.view(groups, 1, -1)).flatten())
        h = h.view(groups, rows, *window.size, -1) * inside[:, None, :, :, None]  # zero padding
        h = h.flatten(0, 1).permute(0, 3, 1, 2)
        n = len(self.weights) - len(self.windows)  # index of the first convolution of windows
        for window in windows:
            h = self._act(convolve(h, self.weights[n], self.hidden_bias[n])).unflatten(0, (groups, rows))
            h = (h * window.indexes(pixels)[1][:, None, None]).flatten(0, 1)  # zero padding of the next layer
            n += 1
        eta = convolve(h, self.weights[n]).reshape(groups, rows, self.n_params, self.channels)
        return select_variables(eta.mT, channel) + self.bias[i].unsqueeze(1)

    def _run_layers(self, features: Tensor, observed: Tensor, end: int, noise: Random = None) -> Tensor:
        """The output of the first `end` layers."""
        h, filters = self.to_maps(features, observed), zip_longest(self.weights, self.hidden_bias)
        for layer in self.layers[:end]:
            height, width = layer.height, layer.width
            if layer.type == "pool":
                h = functional.max_pool2d(h, (height, width))
            elif layer.type == "up":
                h = h.repeat_interleave(height, dim=2).repeat_interleave(width, dim=3)
            else:
                if layer.type == "same":  # even filters need one more zero at the right and at the bottom
                    h = functional.pad(h, (0, 1 - width % 2, 0, 1 - height % 2))
                weight, bias = next(filters)
                h = convolve(h, weight, bias, padding=layer.zeros)
                h = h if bias is None else apply_dropout(self._act(h), self.dropout, noise)
        return h


class Hybrid(AnyOrderNet):
    """The sum of the eta of two nets (eq. convnade-hybrid:last-hidden).

    Its output bias starts as the sum of the two nets' biases, which are replaced by constant zeros.

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
        one, two = ((net.n_variables, net.n_params, net.n_features) for net in (first, second))
        if one != two:
            sizes = "the same n_variables, n_params and n_features"
            raise ValueError(f"the parts of a hybrid need {sizes}, not {one} and {two}")
        super().__init__(*one)
        self.first, self.second = first, second
        parts = {"first": first, "second": second}
        self.input_weights = tuple(f"{name}.{w}" for name, net in parts.items() for w in net.input_weights)
        self.row_floats = sum(net.row_floats or 4 * net.bias.numel() for net in (first, second))
        self.bias = nn.Parameter(first.bias.detach() + second.bias.detach())
        for net in (first, second):
            del net.bias
            net.register_buffer("bias", torch.zeros_like(self.bias))

    def conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (B, D, P): the sum of both nets and the bias."""
        first = self.first.conditionals(features, observed, noise)
        return first + self.second.conditionals(features, observed, noise) + self.bias

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The sum of both nets, by their own method if their state is that of `AnyOrderNet`."""
        eta = self.bias[i].unsqueeze(1)
        for net in (self.first, self.second):
            base = type(net) if type(net).start is AnyOrderNet.start else AnyOrderNet
            eta = eta + base.predict(net, state, i)
        return eta


@dataclass(frozen=True)
class _Window:
    """The block of a layer's map on which an output pixel depends; it begins at the pixel plus `offset`."""

    offset: tuple[int, int]
    size: tuple[int, int]
    map: Shape  # of the whole map

    def indexes(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Indexes (G, h, w) into the flattened map of the windows of pixels (G, 2), and their valid mask."""
        r, c = (
            pixels[:, side, None] + self.offset[side] + torch.arange(self.size[side], device=pixels.device)
            for side in (0, 1)
        )
        r, c, (_, height, width) = r[:, :, None], c[:, None, :], self.map
        inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
        return r.clamp(0, height - 1) * width + c.clamp(0, width - 1), inside


def _find_windows(layers: Sequence[Layer], shapes: Sequence[Shape]) -> list[_Window]:
    """Windows of the input maps of the last convolutions, as far as they are smaller than the whole maps."""
    top, left, height, width = 0, 0, 1, 1
    windows: list[_Window] = []
    for n in reversed(range(len(layers))):
        layer, (_, *size) = layers[n], shapes[n + 1]
        if not layer.convolves or (windows and height * width >= size[0] * size[1]):
            break
        top, left = top - layer.zeros[0], left - layer.zeros[1]
        height, width = height + layer.height - 1, width + layer.width - 1
        windows.append(_Window((top, left), (height, width), shapes[n]))
    return windows[::-1]


@dataclass(frozen=True)
class Layer:
    """One layer of a blueprint."""

    type: str  # "valid", "same" or "full" (convolutions), "pool" or "up"
    height: int  # of the filter or the tile
    width: int
    maps: int = 0  # of a convolution

    @property
    def convolves(self) -> bool:
        """Whether it is a convolution."""
        return self.type in ZEROS

    @property
    def zeros(self) -> tuple[int, int]:
        """Zero padding of a convolution at the top and at the left."""
        return ZEROS[self.type] * (self.height - 1) // 2, ZEROS[self.type] * (self.width - 1) // 2

    def __str__(self) -> str:
        size = f"{self.height}x{self.width}"
        return f"{self.maps}@{size}({self.type})" if self.convolves else f"{self.type}@{size}"


def parse_blueprint(text: str) -> list[Layer]:
    """The layers of a blueprint, separated by `->` (or `→`); spaces are ignored. A layer is one of

        maps@HxW(type)   convolution with `maps` filters of H × W, stride 1; type is one of
                           valid   without padding: a side of N becomes N - H + 1
                           same    zero padding that keeps the shape
                           full    zero padding of H - 1 on each side: N becomes N + H - 1
        pool@HxW         maximum of each H × W tile; tiles must cover the map exactly
        up@HxW           every value repeated H × W times (nearest-neighbour upsampling)

    The last layer is a convolution, and its output has the shape of the image. Its number of maps is written
    as `1`, and is replaced by the number of channels times parameters per variable.

    Example:
        >>> parse_blueprint("8@3x3(valid) → pool@2x2")
        [Layer(type='valid', height=3, width=3, maps=8), Layer(type='pool', height=2, width=2, maps=0)]
    """
    layers = []
    for n, part in enumerate(re.split(r"->|→", re.sub(r"\s", "", text)), start=1):
        name, match = f"layer {n}, '{part}'", re.fullmatch(r"(\d+|pool|up)@(\d+)x(\d+)(?:\((\w+)\))?", part)
        if match is None or match[1].isdigit() == (match[4] is None):
            raise ValueError(f"{name}: expected maps@HxW(valid, same or full), pool@HxW or up@HxW")
        if match[4] not in (None, *ZEROS):
            raise ValueError(f"{name}: the type is valid, same or full, not {match[4]!r}")
        layer = Layer(match[4] or match[1], int(match[2]), int(match[3]), int(match[1]) if match[4] else 0)
        if 0 in (layer.height, layer.width) or (layer.convolves and layer.maps == 0):
            raise ValueError(f"{name}: maps, height and width must be at least 1")
        layers.append(layer)
    return layers


def resolve_blueprint(text: str, inputs: Shape, outputs: int) -> tuple[list[Layer], list[Shape]]:
    """The layers of a blueprint with this number of output maps; shapes of all maps, inputs first."""
    layers = parse_blueprint(text)
    last, shapes = layers[-1], [inputs]
    if not last.convolves:
        raise ValueError(f"last layer {len(layers)}, '{last}': the last layer must be a convolution")
    for n, layer in enumerate(layers, start=1):
        (maps, h, w), height, width, name = shapes[-1], layer.height, layer.width, f"layer {n}, '{layer}'"
        if layer.type == "up":
            shapes.append((maps, h * height, w * width))
        elif layer.type == "pool":
            if h % height or w % width:
                raise ValueError(f"{name}: tiles of {height}x{width} do not cover a {h}x{w} map exactly")
            shapes.append((maps, h // height, w // width))
        else:
            change = ZEROS[layer.type] - 1
            shapes.append((layer.maps, h + change * (height - 1), w + change * (width - 1)))
            if min(shapes[-1]) < 1:
                raise ValueError(f"{name}: a {height}x{width} filter does not fit a {h}x{w} map")
    maps, h, w = shapes[-1]
    if maps not in (1, outputs):
        raise ValueError(f"last {name}: the last layer must have 1 map or exactly {outputs}, not {maps}")
    if (h, w) != inputs[1:]:
        raise ValueError(f"last {name}: it leaves a {h}x{w} map, but the image is {inputs[1]}x{inputs[2]}")
    layers[-1], shapes[-1] = replace(last, maps=outputs), (outputs, h, w)
    return layers, shapes
