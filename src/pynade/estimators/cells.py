"""What the cells of a table may be: zeros and ones, real numbers, pixels.

An estimator has one of these. It converts a user's numbers to those the model takes, and draws of the model
to what the user's table holds, and it knows the family of distributions for the conditionals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from pynade.families import Family

PIXEL_FAMILIES = ("bernoulli", "categorical", "discretised-logistic")
REAL_FAMILIES = {
    "fv": "FixedVarianceGaussian",
    "gaussian": "Gaussian",
    "laplace": "Laplace",
    "sas": "SinhArcsinh",
    "student": "StudentT",
    "mog": "MixtureOfGaussians",
    "mol": "MixtureOfLaplaces",
    "mologistic": "MixtureOfLogistics",
}
MIXTURES = ("mog", "mol", "mologistic")
ONE_HOT_UP_TO = 16  # grey levels that a net gets as indicators; more are one number


class Binary:
    """Zeros and ones; `binarize` is a threshold, None expects exact zeros and ones."""

    def __init__(self, binarize: float | None = None) -> None:
        self.binarize = binarize

    takes = "zeros and ones"
    kind = "binary"
    white = 1  # the largest value

    def convert(self, X: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """uint8, thresholded if wanted; with missing cells float32 with NaN."""
        if isinstance(self.binarize, str):
            raise ValueError(
                f"binarize is a number, the threshold, not {self.binarize!r}; for pixels drawn by their "
                "share of white give rows such as rng.random(X.shape) < X / 255, or use `pynade fit`"
            )
        if missing is None:
            return self._binary(X)
        filled = self._binary(np.where(missing, 0.0 if self.binarize is None else self.binarize, X))
        return np.where(missing, np.float32(np.nan), filled.astype(np.float32))

    def _binary(self, X: np.ndarray) -> np.ndarray:
        if self.binarize is not None:
            return (self.binarize < X).astype(np.uint8)
        wrong = (X != 0) & (X != 1)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"expected zeros and ones, but row {row}, column {column} is {X[row, column]:g}; "
                "a threshold (binarize) makes other numbers binary"
            )
        return X.astype(np.uint8)

    def check_columns(self, X: np.ndarray, names: Sequence[str] | None) -> None:
        """Any column of zeros and ones can be fitted."""

    def native(self, draws: Tensor) -> np.ndarray:
        """Draws as integers 0 and 1."""
        return draws.cpu().numpy().astype(np.int64)

    def family(self, train: np.ndarray) -> Family:
        """Bernoulli."""
        from pynade.families import Bernoulli

        return Bernoulli()


class Pixels(Binary):
    """Zeros and ones, or grey levels 0, 1, … of images, as the parameters of an estimator say."""

    def __init__(self, parameters: ImageTable) -> None:
        super().__init__(parameters.binarize)
        self.parameters, self.name, self.levels = parameters, parameters.family, parameters.levels

    @property
    def takes(self) -> str:  # type: ignore[override]
        """The domain, in words."""
        return "zeros and ones" if self.name == "bernoulli" else f"grey levels 0 … {self.levels - 1}"

    @property
    def white(self) -> int:  # type: ignore[override]
        """The largest value of a pixel."""
        return 1 if self.name == "bernoulli" else self.levels - 1

    def convert(self, X: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """uint8 where there are at most 256 levels, else float32; with missing cells float32 with NaN."""
        if self.name == "bernoulli":
            return super().convert(X, missing)
        if self.binarize is not None:
            raise ValueError(f"binarize makes zeros and ones, but family={self.name!r} is for grey levels")
        import torch

        whole = X if missing is None else np.where(missing, 0, X)
        self.family(whole).check(torch.as_tensor(np.ascontiguousarray(whole)))
        if missing is None:
            return whole.astype(np.uint8 if self.levels <= 256 else np.float32)
        return np.where(missing, np.float32(np.nan), whole.astype(np.float32))

    def family(self, train: np.ndarray) -> Family:
        """The family by its name."""
        from pynade import families

        if self.name not in PIXEL_FAMILIES:
            raise ValueError(f"unknown family {self.name!r}; known: {', '.join(PIXEL_FAMILIES)}")
        if self.name == "bernoulli":
            return families.Bernoulli()
        if self.name == "categorical":
            return families.Categorical(self.levels, one_hot=self.levels <= ONE_HOT_UP_TO)
        own = self.parameters
        return families.DiscretisedLogistic(own.n_components, self.levels, own.sigma_floor)


class Real:
    """Real numbers.

    Args:
        floor_name: the parameter that bounds the scale of distributions from below; empty if there is none.
        floor: its value.
        enough: the value below which it is too small for a column with two values.
    """

    def __init__(self, floor_name: str = "", floor: float = 0.0, enough: float = 1e-12) -> None:
        self.floor_name, self.floor, self.enough = floor_name, floor, enough

    takes = "finite numbers"
    kind = "real"
    white = 1

    def convert(self, X: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """float64 (NaN where cells are missing)."""
        return X.astype(np.float64)

    def check_columns(self, X: np.ndarray, names: Sequence[str] | None) -> None:
        """A constant column has no density; one with two values has an infinite one without a floor."""
        for column in range(X.shape[1]):
            values = X[:, column][np.isfinite(X[:, column])]
            least, most = (values.min(), values.max()) if len(values) else (0.0, 0.0)
            name = f"column {column}" if names is None else f"column {names[column]!r}"
            if not len(values):
                raise ValueError(f"{name} has no value at all: every cell is missing")
            if least == most:
                raise ValueError(
                    f"{name} is constant ({least:g}), so it has no density; leave it out "
                    "(`pynade fit --drop-constant` does)"
                )
            if self.floor_name and self.floor < self.enough and np.isin(values, (least, most)).all():
                value = "above 0" if self.enough < 1e-9 else f"to {self.enough:g} or more"
                raise ValueError(
                    f"{name} has only two distinct values ({least:g} and {most:g}), on which a density of "
                    f"real numbers grows without bound; leave it out, or set {self.floor_name} {value}"
                )

    def native(self, draws: Tensor) -> np.ndarray:
        """Draws as float64."""
        return draws.double().cpu().numpy()


class RealFamily(Real):
    """Real numbers, with the family of distributions that the parameters of an estimator name."""

    def __init__(self, parameters: RealTable) -> None:
        super().__init__("sigma_floor", parameters.sigma_floor, 0.01)
        self.parameters = parameters

    def family(self, train: np.ndarray) -> Family:
        """The family, its scales and constants taken from the training rows."""
        import copy

        import torch

        from pynade import families

        own, x = self.parameters, torch.as_tensor(train, dtype=torch.float64)
        if isinstance(own.family, families.Family):
            base: Any = copy.deepcopy(own.family)
        elif own.family not in REAL_FAMILIES:
            raise ValueError(f"unknown family {own.family!r}; known: {', '.join(REAL_FAMILIES)}")
        else:
            kind = getattr(families, REAL_FAMILIES[own.family])
            first = [own.n_components] if own.family in MIXTURES else [train.shape[1]][: own.family == "fv"]
            base = kind(*first, sigma_floor=self.floor, scale_mean_gradient=own.scale_mean_gradient)
        whole: Family = families.standardised(base, x) if own.standardise else base
        whole.fit_constants(x)
        return whole


def missing_cells(X: np.ndarray, name: str, takes: str, allowed: bool) -> np.ndarray | None:
    """Where cells are missing (NaN), or None if none is; refuses infinities, empty rows, unwanted NaN.

    Args:
        X: numbers (N, D).
        name: of the estimator, for messages.
        takes: the domain, in words.
        allowed: whether missing cells are.
    """
    if X.dtype.kind != "f" or np.isfinite(X).all():
        return None
    if np.isinf(X).any():
        row, column = np.argwhere(np.isinf(X))[0]
        raise ValueError(f"{name} takes {takes}, but row {row}, column {column} is inf")
    missing = np.isnan(X)
    if not allowed:
        row, column = np.argwhere(missing)[0]
        raise ValueError(
            f"{name} takes {takes}, but row {row}, column {column} is NaN"
            "; orderless models (DeepNADE, DeepRNADE) and mixtures (BernoulliMixture, GaussianMixture) take "
            "missing values"
        )
    if missing.all(1).any():
        row = int(missing.all(1).argmax())
        raise ValueError(f"row {row} has no value at all: every cell is missing")
    return missing


def image_sides(image_shape: Sequence[int] | None, n_variables: int) -> tuple[int, int, int]:
    """Channels, height and width of rows of this length.

    Example:
        >>> image_sides(None, 64), image_sides((3, 2, 4), 24)
        ((1, 8, 8), (3, 2, 4))
    """
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


@dataclass(kw_only=True, eq=False, repr=False)
class BinaryTable:
    """Parameters of estimators of zeros and ones."""

    binarize: float | None = None

    def _cells(self) -> Binary:
        return Binary(self.binarize)


@dataclass(kw_only=True, eq=False, repr=False)
class RealTable:
    """Parameters of estimators of nets over real numbers."""

    family: Any = "mog"
    n_components: int = 10
    standardise: bool = True
    sigma_floor: float = 0.001
    scale_mean_gradient: bool = False

    _small_output: ClassVar[bool] = True

    def _cells(self) -> RealFamily:
        return RealFamily(self)


@dataclass(kw_only=True, eq=False, repr=False)
class ImageTable:
    """Parameters of estimators of images."""

    family: str = "bernoulli"
    levels: int = 256
    n_components: int = 10
    sigma_floor: float = 0.001
    image_shape: Sequence[int] | None = None
    binarize: float | None = None

    def _cells(self) -> Pixels:
        return Pixels(self)
