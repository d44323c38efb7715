"""What the cells of a table may be: zeros and ones, grey levels of pixels, real numbers.

Cells convert a user's numbers to those the model takes, and back, and know the family of the conditionals.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pynade.estimators.modules import families, torch

PIXEL_FAMILIES = ("bernoulli", "categorical", "discretised-logistic")
MIXTURES = {"mog": "MixtureOfGaussians", "mol": "MixtureOfLaplaces", "mologistic": "MixtureOfLogistics"}
REAL_FAMILIES = {"fv": "FixedVarianceGaussian", "gaussian": "Gaussian", "laplace": "Laplace"}
REAL_FAMILIES |= {"sas": "SinhArcsinh", "student": "StudentT"} | MIXTURES
FARTHEST, NEAREST = 1e100, 1e-100  # sizes and differences of real numbers whose squares float64 can hold
ONE_HOT_UP_TO = 16  # grey levels that a net gets as indicators; more are one number


class Discrete:
    """Zeros and ones, or grey levels 0, 1, … of images, as the parameters of an estimator say."""

    kind = "binary"

    def __init__(self, table: Any, name: str = "bernoulli", levels: int = 2) -> None:
        self.table, self.name = table, name
        self.levels = 2 if name == "bernoulli" else levels
        self.white = self.levels - 1  # the largest value
        self.takes = "zeros and ones" if name == "bernoulli" else f"grey levels 0 … {self.white}"

    def convert(self, X: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """uint8, thresholded if wanted; float32 where there are more levels, or missing cells (NaN)."""
        limit, whole = self.table.binarize, X if missing is None else np.where(missing, 0, X)
        if isinstance(limit, str):
            raise ValueError(
                f"binarize is a number, the threshold, not {limit!r}; for pixels drawn by their "
                "share of white give rows such as rng.random(X.shape) < X / 255, or use `pynade fit`"
            )
        if self.name != "bernoulli" and limit is not None:
            raise ValueError(f"binarize makes zeros and ones, but family={self.name!r} is for grey levels")
        if self.name != "bernoulli":
            self.family(whole).check(torch.as_tensor(np.ascontiguousarray(whole)))
        elif limit is not None:
            whole = limit < whole
        elif (wrong := (whole != 0) & (whole != 1)).any():
            row, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"expected zeros and ones, but row {row}, column {column} is {whole[row, column]:g}; "
                "a threshold (binarize) makes other numbers binary"
            )
        if missing is None:
            return whole.astype(np.uint8 if self.levels <= 256 else np.float32)
        return np.where(missing, np.float32(np.nan), whole.astype(np.float32))

    def check_columns(self, X: np.ndarray, names: Sequence[str] | None) -> None:
        """A column without a value has no distribution."""
        refuse_empty(X, names)

    def native(self, draws: torch.Tensor) -> np.ndarray:
        """Draws as integers."""
        return draws.cpu().numpy().astype(np.int64)

    def family(self, train: np.ndarray) -> families.Family:
        """The family by its name."""
        if self.name not in PIXEL_FAMILIES:
            raise ValueError(f"unknown family {self.name!r}; known: {', '.join(PIXEL_FAMILIES)}")
        if self.name == "bernoulli":
            return families.Bernoulli()
        if self.name == "categorical":
            return families.Categorical(self.levels, one_hot=self.levels <= ONE_HOT_UP_TO)
        return families.DiscretisedLogistic(self.table.n_components, self.levels, self.table.sigma_floor)


@dataclass(frozen=True)
class Real:
    """Real numbers."""

    floor_name: str = ""  # the parameter that bounds the scale of distributions from below, if there is one
    floor: float = 0.0  # its value
    enough: float = 1e-12  # the value below which it is too small for a column with two values
    table: RealTable | None = None  # of an estimator of nets: names the family of distributions

    takes: ClassVar[str] = "finite numbers"
    kind: ClassVar[str] = "real"
    white: ClassVar[int] = 1

    def convert(self, X: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """float64 (NaN where cells are missing)."""
        X = X.astype(np.float64)
        if (far := np.abs(X) > FARTHEST).any():
            row, column = np.argwhere(far)[0]
            what = f"the values of column {column} are too large: row {row} has {X[row, column]:g}, expected"
            raise ValueError(f"{what} at most {FARTHEST:g} in size; give them in a larger unit")
        return X

    def check_columns(self, X: np.ndarray, names: Sequence[str] | None) -> None:
        """A constant column has no density; one with two values has an infinite one without a floor."""
        refuse_empty(X, names)
        for column in range(X.shape[1]):
            values, name = X[:, column][np.isfinite(X[:, column])], _named(column, names)
            least, most = values.min(), values.max()
            if least == most:
                raise ValueError(
                    f"{name} is constant ({least:g}), so it has no density; leave it out "
                    "(`pynade fit --drop-constant` does)"
                )
            if most - least < NEAREST:
                what = f"{name} holds values from {least:g} to {most:g}"
                raise ValueError(f"{what}, whose squares are lost in rounding: give them in a smaller unit")
            if self.floor_name and self.floor < self.enough and np.isin(values, (least, most)).all():
                value = "above 0" if self.enough < 1e-9 else f"to {self.enough:g} or more"
                raise ValueError(
                    f"{name} has only two distinct values ({least:g} and {most:g}), on which a density of "
                    f"real numbers grows without bound; leave it out, or set {self.floor_name} {value}"
                )

    def native(self, draws: torch.Tensor) -> np.ndarray:
        """Draws as float64."""
        values: np.ndarray = draws.double().cpu().numpy()
        if not np.isfinite(values).all():
            raise ValueError("the model's draws are no finite numbers: its weights are too large")
        return values

    def family(self, train: np.ndarray) -> families.Family:
        """The family that the table names, its scales and constants taken from the training rows."""
        own: Any = self.table
        x = torch.as_tensor(train, dtype=torch.float64)
        if isinstance(own.family, families.Family):
            base: Any = copy.deepcopy(own.family)
        elif own.family not in REAL_FAMILIES:
            raise ValueError(f"unknown family {own.family!r}; known: {', '.join(REAL_FAMILIES)}")
        else:
            kind = getattr(families, REAL_FAMILIES[own.family])
            first = [own.n_components] if own.family in MIXTURES else [train.shape[1]][: own.family == "fv"]
            base = kind(*first, sigma_floor=self.floor, scale_mean_gradient=own.scale_mean_gradient)
        whole: families.Family = families.standardised(base, x) if own.standardise else base
        whole.fit_constants(x)
        return whole


def refuse_empty(X: np.ndarray, names: Sequence[str] | None) -> None:
    """Raise a ValueError if every cell of a column is missing."""
    if (empty := np.isnan(X).all(0)).any():
        raise ValueError(f"{_named(int(empty.argmax()), names)} has no value at all: every cell is missing")


def _named(column: int, names: Sequence[str] | None) -> str:
    return f"column {column}" if names is None else f"column {names[column]!r}"


@dataclass(kw_only=True, eq=False, repr=False)
class BinaryTable:
    """Parameters of estimators of zeros and ones."""

    binarize: float | None = None

    def _cells(self) -> Discrete:
        return Discrete(self)


@dataclass(kw_only=True, eq=False, repr=False)
class RealTable:
    """Parameters of estimators of nets over real numbers."""

    family: Any = "mog"
    n_components: int = 10
    standardise: bool = True
    sigma_floor: float = 0.001
    scale_mean_gradient: bool = False

    _small_output: ClassVar[bool] = True

    def _cells(self) -> Real:
        return Real("sigma_floor", self.sigma_floor, 0.01, self)
