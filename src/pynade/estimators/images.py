"""ConvNADE and ImageNADE: orderless models of images."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pynade.device import torch_device
from pynade.estimators.cells import ImageTable, image_sides
from pynade.estimators.net import OrderlessEstimator
from pynade.estimators.parameters import documented
from pynade.estimators.questions import checked_count

if TYPE_CHECKING:
    import torch

    from pynade.families import Family
    from pynade.nets import Net

SMALL_BLUEPRINT = "64@3x3(same)->64@3x3(same)->64@3x3(same)->64@3x3(same)->1@3x3(same)"


@dataclass(eq=False, repr=False)
class ImageEstimator(ImageTable, OrderlessEstimator):
    """Abstract estimator of images; stacks (N, H, W) are taken wherever rows are.

    The net runs as a whole at every step: scoring one row exactly costs as many passes as it has pixels, and
    `estimate` is the way to score a large data set.
    """

    @property
    def white(self) -> int:
        """The largest value of a pixel."""
        return self._cells().white

    def _rows(self, X: Any, **options: Any) -> np.ndarray:
        if np.ndim(X) == 3:
            stack = np.asarray(X)
            X = stack.reshape(len(stack), -1)
            if stack.shape[1:] != image_sides(self.image_shape, X.shape[1])[-2:]:
                raise ValueError(f"images {stack.shape[1:]} need image_shape={stack.shape[1:]}")
        return super()._rows(X, **options)

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
                `pynade.models.block_sample`).
        """
        if given is None:
            return self._native(self.draw(n_samples, random_state, per_step)[0])
        if per_step != 1:
            raise ValueError("completions of given values are drawn one pixel at a time; leave per_step at 1")
        return super().sample(n_samples, random_state, given=given)

    def draw(
        self, n_samples: int, random_state: Any = None, per_step: int = 1, means: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `sample`, in torch, with the expectation of each pixel when it was drawn, if wanted.

        Args:
            n_samples: how many.
            random_state: seed.
            per_step: pixels drawn at once.
            means: give the expectations too.
        """
        from pynade.models import draw_blocks

        check_is_fitted(self, "model_")
        model = copy.deepcopy(self.model_).to(torch_device(self.device))
        generator = self._generator(random_state)
        count = checked_count(n_samples)
        return draw_blocks(model, count, per_step, generator, precision="tf32", means=means)


@documented
@dataclass(eq=False, repr=False)
class ConvNADE(ImageEstimator):
    """Convolutional NADE of images, alone or with a feed-forward net beside it (section "ConvNADE").

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
        from pynade.nets import Hybrid, MaskedConv, MaskedMLP
        from pynade.nets.blueprint import PAPER_BLUEPRINT

        channels, height, width = image_sides(self.image_shape, n_variables)
        usual = PAPER_BLUEPRINT if min(height, width) >= 22 else SMALL_BLUEPRINT
        options: dict[str, Any] = {
            "n_features": family.n_features,
            "activation": self.activation,
            "input_observed": self.input_observed,
            "dropout": self.dropout,
            "generator": generator,
        }
        try:
            net = MaskedConv(
                (height, width), family.n_params, self.blueprint or usual, channels=channels, **options
            )
        except ValueError as error:
            raise ValueError(f"for images of {height}x{width}: {error}") from None
        if self.hybrid is None:
            return net
        return Hybrid(net, MaskedMLP(n_variables, family.n_params, self.hybrid, **options))


@documented
@dataclass(eq=False, repr=False)
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

    _defaults: ClassVar[dict[str, Any]] = {
        "optimizer": "adamw",
        "schedule": "cosine",
        "warm_up": 200,
        "clip": 1.0,
        "ema": 0.999,
        "precision": "bf16",
    }

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        from pynade.nets import UNet

        channels, *shape = image_sides(self.image_shape, n_variables)
        names = ("width", "multipliers", "blocks", "attention", "heads", "groups", "dropout")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        own |= {"channels": channels, "n_features": family.n_features, "generator": generator}
        return UNet(shape, family.n_params, **own)
