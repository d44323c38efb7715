"""Blueprints: the layers of a convolutional net as a line of text, see `parse_blueprint`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

# the paper's net for images of 28 × 28, symmetric in its filters
PAPER_BLUEPRINT = (
    "64@8x8(valid)->64@4x4(valid)->64@6x6(valid)->64@7x7(valid)"
    "->64@7x7(full)->64@6x6(full)->64@4x4(full)->1@8x8(full)"
)
ZEROS = {"valid": 0, "same": 1, "full": 2}  # around a map, as a multiple of the filter's side less one
Shape = tuple[int, int, int]  # maps, height, width


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
        """How many zeros a convolution puts above a map and to its left."""
        return ZEROS[self.type] * (self.height - 1) // 2, ZEROS[self.type] * (self.width - 1) // 2

    def __str__(self) -> str:
        size = f"{self.height}x{self.width}"
        return f"{self.maps}@{size}({self.type})" if self.convolves else f"{self.type}@{size}"


def parse_blueprint(text: str) -> list[Layer]:
    """The layers of a blueprint, which are joined by `->` (or `→`); spaces do not matter. A layer is one of

        maps@HxW(type)   convolution with `maps` filters of H × W, stride 1; type is one of
                           valid   complete windows only: a side of N becomes N - H + 1
                           same    zeros around the map so that its shape stays
                           full    zeros around the map, H - 1 on each side: N becomes N + H - 1
        pool@HxW         largest value of each H × W tile; tiles must cover the map exactly
        up@HxW           every value repeated H × W times (nearest-neighbour upsampling)

    The last layer is a convolution, and its output has the shape of the image. Its number of maps is written
    as `1`, whatever the number of channels and of parameters per variable: a net makes as many as it needs.

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


def infer_shapes(layers: Sequence[Layer], inputs: Shape) -> list[Shape]:
    """Shape (maps, height, width) of the inputs and after each layer; a ValueError where one does not fit.

    Example:
        >>> infer_shapes(parse_blueprint(PAPER_BLUEPRINT), (2, 28, 28))[4:6]
        [(64, 7, 7), (64, 13, 13)]
    """
    shapes = [inputs]
    for n, layer in enumerate(layers, start=1):
        (maps, h, w), height, width, name = shapes[-1], layer.height, layer.width, f"layer {n}, '{layer}'"
        if layer.type == "up":
            shapes.append((maps, h * height, w * width))
        elif layer.type == "pool":
            if h % height or w % width:
                raise ValueError(f"{name}: tiles of {height}x{width} do not cover a {h}x{w} map exactly")
            shapes.append((maps, h // height, w // width))
        else:
            more = ZEROS[layer.type] - 1
            shapes.append((layer.maps, h + more * (height - 1), w + more * (width - 1)))
            if min(shapes[-1]) < 1:
                raise ValueError(f"{name}: a {height}x{width} filter does not fit a {h}x{w} map")
    return shapes


def layers_for(text: str, inputs: Shape, outputs: int) -> tuple[list[Layer], list[Shape]]:
    """The layers of a blueprint and their `infer_shapes`, checked to lead to so many maps of the image."""
    layers = parse_blueprint(text)
    shape, last = infer_shapes(layers, inputs)[-1], layers[-1]
    name = f"last layer {len(layers)}, '{last}'"
    if not last.convolves:
        raise ValueError(f"{name}: the last layer must be a convolution")
    if last.maps not in (1, outputs):
        raise ValueError(f"{name}: the last layer must have 1 map or exactly {outputs}, not {last.maps}")
    if shape[1:] != inputs[1:]:
        was = f"the image is {inputs[1]}x{inputs[2]}"
        raise ValueError(f"{name}: it leaves a {shape[1]}x{shape[2]} map, but {was}")
    layers[-1] = replace(last, maps=outputs)
    return layers, infer_shapes(layers, inputs)
