"""Blueprints: the layers of a convolutional net as a line of text.

A blueprint is a list of layers joined by `->` (or `→`); spaces do not matter. A layer is one of

    maps@HxW(type)   convolution with `maps` filters of H × W, stride 1; type is one of
                       valid   complete windows only: a side of N becomes N - H + 1
                       same    zeros around the map so that its shape stays
                       full    zeros around the map, H - 1 on each side: N becomes N + H - 1
    pool@HxW         largest value of each H × W tile; tiles must cover the map exactly
    up@HxW           every value repeated H × W times (nearest-neighbour upsampling)

The last layer is a convolution, and its output has the shape of the image. Its number of maps is written as
`1`, whatever the number of channels and of parameters per variable: a net makes as many as it needs.

The paper's net for images of 28 × 28, symmetric in its filters, is `PAPER_BLUEPRINT`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

PAPER_BLUEPRINT = (
    "64@8x8(valid)->64@4x4(valid)->64@6x6(valid)->64@7x7(valid)"
    "->64@7x7(full)->64@6x6(full)->64@4x4(full)->1@8x8(full)"
)
TYPES = ("valid", "same", "full")
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
        return self.type in TYPES

    @property
    def zeros(self) -> tuple[int, int]:
        """How many zeros a convolution puts above a map and to its left."""
        top, left = self.height - 1, self.width - 1
        return {"full": (top, left), "same": (top // 2, left // 2), "valid": (0, 0)}[self.type]

    def __str__(self) -> str:
        size = f"{self.height}x{self.width}"
        return f"{self.maps}@{size}({self.type})" if self.convolves else f"{self.type}@{size}"

    def after(self, before: Shape) -> Shape:
        """Shape of the maps this layer outputs."""
        maps, h, w = before
        if self.type == "up":
            return maps, h * self.height, w * self.width
        if self.type == "pool":
            if h % self.height or w % self.width:
                raise ValueError(f"tiles of {self.height}x{self.width} do not cover a {h}x{w} map exactly")
            return maps, h // self.height, w // self.width
        sign = {"full": 1, "same": 0, "valid": -1}[self.type]
        shape = self.maps, h + sign * (self.height - 1), w + sign * (self.width - 1)
        if min(shape) < 1:
            raise ValueError(f"a {self.height}x{self.width} filter does not fit a {h}x{w} map")
        return shape


def parse_blueprint(text: str) -> list[Layer]:
    """The layers a blueprint names.

    Example:
        >>> parse_blueprint("8@3x3(valid) → pool@2x2")
        [Layer(type='valid', height=3, width=3, maps=8), Layer(type='pool', height=2, width=2, maps=0)]
    """
    layers = []
    for n, part in enumerate(re.split(r"->|→", re.sub(r"\s", "", text)), start=1):
        name, match = f"layer {n}, '{part}'", re.fullmatch(r"(\d+|pool|up)@(\d+)x(\d+)(?:\((\w+)\))?", part)
        if match is None or match[1].isdigit() == (match[4] is None):
            raise ValueError(f"{name}: expected maps@HxW(valid, same or full), pool@HxW or up@HxW")
        if match[4] not in (None, *TYPES):
            raise ValueError(f"{name}: the type is valid, same or full, not {match[4]!r}")
        layer = Layer(match[4] or match[1], int(match[2]), int(match[3]), int(match[1]) if match[4] else 0)
        if 0 in (layer.height, layer.width) or (layer.convolves and layer.maps == 0):
            raise ValueError(f"{name}: maps, height and width must be at least 1")
        layers.append(layer)
    return layers


def infer_shapes(layers: Sequence[Layer], before: Shape) -> list[Shape]:
    """Shape (maps, height, width) after each layer; a ValueError where one does not fit.

    Example:
        >>> infer_shapes(parse_blueprint(PAPER_BLUEPRINT), (2, 28, 28))[3:5]
        [(64, 7, 7), (64, 13, 13)]
    """
    shapes = []
    for n, layer in enumerate(layers, start=1):
        try:
            before = layer.after(before)
        except ValueError as error:
            raise ValueError(f"layer {n}, '{layer}': {error}") from None
        shapes.append(before)
    return shapes


def layers_for(text: str, inputs: Shape, outputs: int) -> list[Layer]:
    """The layers of a blueprint, checked to lead from maps of an image back to its shape.

    Args:
        text: the blueprint.
        inputs: (maps, height, width) of what the first layer is given.
        outputs: maps the last layer must have; the blueprint has 1 or this number.
    """
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
    return [*layers[:-1], replace(last, maps=outputs)]
