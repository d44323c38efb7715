"""ConvNADE and ImageNADE: orderless models of images, as scikit-learn estimators."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from pynade.estimators.base import _count, torch_device
from pynade.estimators.domain import BinaryTable, missing_cells
from pynade.estimators.orderless import AnyOrderDensity
from pynade.families import Bernoulli, Categorical, DiscretisedLogistic, Family
from pynade.models import Orderless, draw_many
from pynade.nets import Hybrid, MaskedConv, MaskedMLP, Net, UNet
from pynade.nets.blueprint import PAPER_BLUEPRINT

PIXEL_FAMILIES = ("bernoulli", "categorical", "discretised-logistic")
SMALL_BLUEPRINT = "64@3x3(same)->64@3x3(same)->64@3x3(same)->64@3x3(same)->1@3x3(same)"
NAMES_UP_TO = 16  # levels that a net sees as indicators; more are shown as one number


@dataclass(kw_only=True, eq=False, repr=False)
class PixelTable(BinaryTable):
    """Pixels: zeros and ones, or grey levels 0, 1, …

    Attributes:
        family: law of each pixel: "bernoulli" (zeros and ones), "categorical" (a probability for every grey
            level) or "discretised-logistic" (a mixture of logistic laws cut into levels).
        levels: grey levels, of the last two.
        n_components: components of the mixture.
        sigma_floor: smallest scale of a component, where the levels run from -1 to 1.
        image_shape: (height, width), or (channels, height, width) of rows stored in that order. None takes
            rows whose length is a square to be square images, and refuses others.
    """

    family: str = "bernoulli"
    levels: int = 256
    n_components: int = 10
    sigma_floor: float = 0.001
    image_shape: Sequence[int] | None = None

    def _family(self, train: np.ndarray) -> Family:
        if self.family not in PIXEL_FAMILIES:
            raise ValueError(f"unknown family {self.family!r}; known: {', '.join(PIXEL_FAMILIES)}")
        if self.family == "bernoulli":
            return Bernoulli()
        if self.family == "categorical":
            return Categorical(self.levels, one_hot=self.levels <= NAMES_UP_TO)
        return DiscretisedLogistic(self.n_components, self.levels, self.sigma_floor)

    def _convert(self, X: np.ndarray, *, reset: bool) -> np.ndarray:
        """Zeros and ones, or grey levels, in few bits; as float32 with NaN where cells are missing."""
        if self.family == "bernoulli":
            return super()._convert(X, reset=reset)
        if self.binarize is not None:
            raise ValueError(f"binarize makes zeros and ones, but family={self.family!r} is for grey levels")
        missing = missing_cells(self, X, f"grey levels 0 … {self.levels - 1}")
        whole = X if missing is None else np.where(missing, 0, X)
        self._family(whole).check(torch.as_tensor(np.ascontiguousarray(whole)))
        if missing is None:
            return whole.astype(np.uint8 if self.levels <= 256 else np.float32)
        return np.where(missing, np.float32(np.nan), whole.astype(np.float32))

    @property
    def white(self) -> int:
        """The largest value of a pixel."""
        return 1 if self.family == "bernoulli" else self.levels - 1

    def _shape(self, n_variables: int) -> tuple[int, int, int]:
        """Channels, height and width of rows of this length."""
        if self.image_shape is None:
            side = math.isqrt(n_variables)
            if side * side != n_variables:
                raise ValueError(
                    f"rows of {n_variables} pixels are no square images; say image_shape=(height, width)"
                )
            return 1, side, side
        shape = tuple(int(side) for side in self.image_shape)
        if len(shape) not in (2, 3) or math.prod(shape) != n_variables or min(shape) < 1:
            raise ValueError(
                f"image_shape is (height, width) or (channels, height, width) of rows with {n_variables} "
                f"pixels, not {shape}"
            )
        channels, height, width = (1, *shape)[-3:]
        return channels, height, width


@dataclass(eq=False, repr=False)
class ImageDensity(PixelTable, AnyOrderDensity):
    """What the estimators of images share.

    Their nets run as a whole at every step: scoring one row exactly costs as many passes as it has pixels,
    and `estimate` is the way to score a large data set. Stacks (N, H, W) are taken wherever rows are.
    """

    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        if np.ndim(X) == 3:
            stack = np.asarray(X)
            rows = stack.reshape(len(stack), -1)
            if stack.shape[1:] != self._shape(rows.shape[1])[-2:]:
                raise ValueError(f"images {stack.shape[1:]} need image_shape={stack.shape[1:]}")
            X = rows
        return super()._rows(X, reset=reset)

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        given: Mapping[int | str, float] | None = None,
        per_step: int = 1,
    ) -> np.ndarray:
        """Draws (n_samples, D), each along a random ordering of its own; with `given`, completions of it.

        Args:
            n_samples: how many.
            random_state: seed.
            given: values of known variables by index or column name.
            per_step: pixels drawn at once. 1 is exact; more are an approximation, faster by as much (see
                `pynade.models.sample_many`).
        """
        if given is None:
            return self._native(self.draw(n_samples, random_state, per_step)[0])
        if per_step != 1:
            raise ValueError("completions of given values are drawn one pixel at a time; leave per_step at 1")
        return super().sample(n_samples, random_state, given=given)

    def draw(
        self, n_samples: int, random_state: Any = None, per_step: int = 1, means: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `sample`, in torch, with the expectation each pixel was drawn with if that is wanted."""
        check_is_fitted(self, "model_")
        model: Orderless = copy.deepcopy(self.model_).to(torch_device(self.device))
        generator = self._generator(random_state)
        return draw_many(model, _count(n_samples), per_step, generator, precision="tf32", means=means)


@dataclass(eq=False, repr=False)
class ConvNADE(ImageDensity):
    """Convolutional NADE of images, alone or with a feed-forward net beside it (section "ConvNADE").

    Args:
        blueprint: the convolutions, such as "64@8x8(valid)->1@8x8(full)" (see `pynade.nets.blueprint`). None
            takes the paper's for images of at least 22 × 22, and five layers of 3 × 3 for smaller ones.
        hybrid: hidden units of a feed-forward net whose outputs are added, such as (500, 500).
        activation: "relu", "tanh", "sigmoid" or "silu".
        input_observed: tell the net which pixels are observed.
        dropout: share of hidden activations dropped in training.
        **parameters: see `PixelTable` and `GradientEstimator`.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().data > 7  # 8 × 8
        >>> net = "8@3x3(valid)->8@3x3(full)->1@3x3(same)"
        >>> model = ConvNADE(blueprint=net, epochs=2, random_state=0).fit(X)
        >>> model.sample(3, random_state=0).shape
        (3, 64)
        >>> bool(model.estimate(X, draws=4).mean > -40)  # fair coins: -44.4
        True
    """

    blueprint: str | None = None
    hybrid: Sequence[int] | None = None
    activation: str = "relu"
    input_observed: bool = True
    dropout: float = 0.0

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        channels, height, width = self._shape(n_variables)
        large = min(height, width) >= 22
        options: dict[str, Any] = {
            "n_features": family.n_features,
            "activation": self.activation,
            "input_observed": self.input_observed,
            "dropout": self.dropout,
            "generator": generator,
        }
        try:
            net = MaskedConv(
                (height, width),
                family.n_params,
                self.blueprint or (PAPER_BLUEPRINT if large else SMALL_BLUEPRINT),
                channels=channels,
                **options,
            )
        except ValueError as error:
            raise ValueError(f"for images of {height}x{width}: {error}") from None
        if self.hybrid is None:
            return net
        return Hybrid(net, MaskedMLP(n_variables, family.n_params, self.hybrid, **options))


@dataclass(eq=False, repr=False)
class ImageNADE(ImageDensity):
    """Order-agnostic U-Net of images: the strongest of the image models here, and the slowest.

    Args:
        width: maps at the first level; a multiple of `groups`.
        multipliers: maps at each level, as a multiple of `width`; each level halves the image.
        blocks: residual blocks per level.
        attention: levels with self-attention; None is every level but the first.
        heads: attention heads.
        groups: groups of maps that are normalised together.
        dropout: share of activations dropped in training.
        **parameters: see `PixelTable` and `GradientEstimator`; by default AdamW with a warm-up, a cosine
            schedule, clipping and a running average of the weights, in bfloat16 on a GPU.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().data[:200]  # grey levels 0 … 16
        >>> model = ImageNADE(
        ...     width=8, multipliers=(1, 2), groups=4, heads=2, blocks=1, epochs=1, random_state=0,
        ...     family="discretised-logistic", levels=17,
        ... ).fit(X)
        >>> model.sample(2, random_state=0, per_step=16).shape
        (2, 64)
    """

    width: int = 64
    multipliers: Sequence[int] = (1, 2, 2)
    blocks: int = 2
    attention: Sequence[int] | None = None
    heads: int = 4
    groups: int = 8
    dropout: float = 0.1
    optimizer: str = field(default="adamw", kw_only=True)
    learning_rate: float = field(default=0.0005, kw_only=True)
    schedule: str = field(default="cosine", kw_only=True)
    warm_up: int = field(default=200, kw_only=True)
    clip: float | None = field(default=1.0, kw_only=True)
    ema: float | None = field(default=0.999, kw_only=True)
    precision: str = field(default="bf16", kw_only=True)

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        channels, *shape = self._shape(n_variables)
        return UNet(
            shape,
            family.n_params,
            channels=channels,
            n_features=family.n_features,
            width=self.width,
            multipliers=self.multipliers,
            blocks=self.blocks,
            attention=self.attention,
            heads=self.heads,
            groups=self.groups,
            dropout=self.dropout,
            generator=generator,
        )
