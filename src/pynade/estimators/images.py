"""ConvNADE and ImageNADE: orderless models of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pynade.estimators.cells import Discrete
from pynade.estimators.modules import families, models, nets, torch
from pynade.estimators.net import OrderlessEstimator
from pynade.estimators.parameters import documented
from pynade.estimators.questions import Given, checked_count
from pynade.tables.frames import rows_of

SMALL_BLUEPRINT = "64@3x3(same)->64@3x3(same)->64@3x3(same)->64@3x3(same)->1@3x3(same)"


@dataclass(kw_only=True, eq=False, repr=False)
class ImageEstimator(OrderlessEstimator):
    """Abstract estimator of images, which also takes stacks (N, H, W) as rows.

    The exact score of a row takes one pass of the net per pixel; use `estimate` for large data sets.
    """

    family: str = "bernoulli"
    levels: int = 256
    n_components: int = 10
    sigma_floor: float = 0.001
    image_shape: Sequence[int] | None = None
    binarize: float | None = None

    def _cells(self) -> Discrete:
        return Discrete(self, self.family, self.levels)

    def _net(self, n_variables: int, family: families.Family, generator: torch.Generator) -> nets.Net:
        channels, *shape = image_sides(self.image_shape, n_variables)
        sizes = {"image_shape": shape, "channels": channels}
        return self._make_net(self._net_class, family, generator, **sizes)

    def _rows(self, X: Any, **options: Any) -> np.ndarray:
        if np.ndim(X) == 3:
            stack = rows_of(X)
            X = stack.reshape(len(stack), -1)
            if stack.shape[1:] != image_sides(self.image_shape, X.shape[1])[-2:]:
                raise ValueError(f"images {stack.shape[1:]} need image_shape={stack.shape[1:]}")
        return super()._rows(X, **options)

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        given: Given = None,
        per_step: int = 1,
        fresh_orderings: bool = False,
    ) -> np.ndarray:
        """Draws (n_samples, D) from the density of `score_samples`, or from its conditional given values.

        Args:
            n_samples: number of images.
            random_state: seed.
            given: values of known variables by index or column name.
            per_step: pixels drawn at a time. 1 is exact; k is an approximation that takes 1/k of the time
                (see `pynade.models.draw_blocks`).
            fresh_orderings: draw each image along a new random ordering: from the mixture of all orderings,
                a density other than that of `score_samples`.
        """
        if given is None:
            return self._native(self.draw(n_samples, random_state, per_step, fresh_orderings)[0])
        if per_step != 1 or fresh_orderings:
            method = "one pixel at a time, along the model's own orderings"
            raise ValueError(f"completions of given values are drawn {method}; leave out those options")
        return super().sample(n_samples, random_state, given=given)

    def draw(
        self,
        n_samples: int,
        random_state: Any = None,
        per_step: int = 1,
        fresh_orderings: bool = False,
        means: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draws as `sample` without `given`, as a tensor, and optionally each pixel's conditional mean.

        Args:
            n_samples, random_state, per_step, fresh_orderings: as for `sample`.
            means: also return the mean of each pixel's distribution at the time it was drawn.
        """
        model, generator, count = self._copy(), self._generator(random_state), checked_count(n_samples)
        options: Any = {"means": means, "orderings": None if fresh_orderings else self.orderings()}
        return models.draw_blocks(model, count, per_step, generator, "tf32", **options)


def image_sides(image_shape: Sequence[int] | None, n_variables: int) -> tuple[int, int, int]:
    """Channels, height and width of images with this number of pixels."""
    if image_shape is None:
        side = math.isqrt(n_variables)
        if side * side != n_variables:
            raise ValueError(
                f"rows of {n_variables} pixels are no square images; give image_shape=(height, width)"
            )
        return 1, side, side
    shape = tuple(int(side) for side in image_shape)
    if len(shape) not in (2, 3) or math.prod(shape) != n_variables or min(shape) < 1:
        raise ValueError(
            f"image_shape is (height, width) or (channels, height, width) of rows with {n_variables} "
            f"pixels, not {shape}"
        )
    channels, height, width = (1, *shape)[-3:]
    return channels, height, width


@documented
class ConvNADE(ImageEstimator):
    """Convolutional NADE of images, optionally in sum with a feed-forward net (section "ConvNADE").

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

    def _net(self, n_variables: int, family: families.Family, generator: torch.Generator) -> nets.Net:
        channels, *shape = image_sides(self.image_shape, n_variables)
        default = nets.PAPER_BLUEPRINT if min(shape) >= 22 else SMALL_BLUEPRINT
        sizes = {"image_shape": shape, "channels": channels, "blueprint": self.blueprint or default}
        try:
            net = self._make_net("MaskedConv", family, generator, **sizes)
        except ValueError as error:
            raise ValueError(f"for images of {'x'.join(map(str, shape))}: {error}") from None
        if self.hybrid is None:
            return net
        sizes = {"n_variables": n_variables, "hidden": self.hybrid}
        return nets.Hybrid(net, self._make_net("MaskedMLP", family, generator, **sizes))


@documented
class ImageNADE(ImageEstimator):
    """Order-agnostic U-Net of images: the best and the slowest of the image models here.

    By default it is trained by AdamW with a warm-up, a cosine schedule, clipping and a running average of the
    weights, in bfloat16 on a GPU.

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
    learning_rate: float = field(default=0.0005, kw_only=True)

    _defaults: ClassVar[dict[str, Any]] = {"optimizer": "adamw", "schedule": "cosine", "warm_up": 200}
    _defaults |= {"clip": 1.0, "ema": 0.999, "precision": "bf16"}
    _net_class = "UNet"
