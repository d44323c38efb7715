"""Kinds of cells of a table: zeros and ones, grey levels of pixels, real numbers.

Each kind checks and converts the user's numbers for the model, converts draws back, and builds the family of
the conditional distributions.
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
LARGEST_NUMBER, SMALLEST_RANGE = 1e100, 1e-100  # of real numbers, so that squares stay within float64
ONE_HOT_UP_TO = 16  # levels; with more grey levels the input of a net is one number instead of indicators


class Discrete:
    """Zeros and ones, or grey levels 0, 1, … of images, by the parameters of an estimator (`table`)."""

    kind = "binary"

    def __init__(self, table: Any, name: str = "bernoulli", levels: int = 2) -> None:
        self.table, self.name = table, name
        self.levels = 2 if name == "bernoulli" else levels
        self.white = self.levels - 1  # the largest value
        self.takes = "zeros and ones" if name == "bernoulli" else f"grey levels 0 … {self.white}"

    def convert(self, X: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """Rows as uint8, or float32 with more than 256 levels or missing cells (NaN); applies `binarize`."""
        threshold, values = self.table.binarize, X if missing is None else np.where(missing, 0, X)
        if isinstance(threshold, str):
            raise ValueError(
                f"binarize is a number, the threshold, not {threshold!r}; for pixels drawn by their "
                "share of white give rows such as rng.random(X.shape) < X / 255, or use `pynade fit`"
            )
        if self.name != "bernoulli" and threshold is not None:
            raise ValueError(f"binarize makes zeros and ones, but family={self.name!r} is for grey levels")
        if self.name != "bernoulli":
            self.family(values).check(torch.as_tensor(np.ascontiguousarray(values)))
        elif threshold is not None:
            values = threshold < values
        elif (invalid := (values != 0) & (values != 1)).any():
            row, column = np.argwhere(invalid)[0]
            raise ValueError(
                f"expected zeros and ones, but row {row}, column {column} is {values[row, column]:g}; "
                "a threshold (binarize) makes other numbers binary"
            )
        if missing is None:
            return values.astype(np.uint8 if self.levels <= 256 else np.float32)
        return np.where(missing, np.float32(np.nan), values.astype(np.float32))

    def check_columns(self, X: np.ndarray, names: Sequence[str] | None) -> None:
        """Raise a ValueError if every cell of a column is missing."""
        check_no_empty_column(X, names)

    def native(self, draws: torch.Tensor) -> np.ndarray:
        """Draws as integers."""
        return draws.cpu().numpy().astype(np.int64)

    def family(self, train: np.ndarray) -> families.Family:
        """The family of the conditional distributions, by its name."""
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

    floor_name: str = ""  # name of the parameter that is the lower bound of scales, if there is one
    floor: float = 0.0  # value of that parameter
    least_floor: float = 1e-12  # smallest value that is sufficient for a column with two distinct values
    table: RealTable | None = None  # an estimator of nets, whose parameters name the family

    takes: ClassVar[str] = "finite numbers"
    kind: ClassVar[str] = "real"
    white: ClassVar[int] = 1

    def convert(self, X: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
        """float64 (NaN where cells are missing)."""
        X = X.astype(np.float64)
        if (too_large := np.abs(X) > LARGEST_NUMBER).any():
            row, column = np.argwhere(too_large)[0]
            error = f"the values of column {column} are too large: row {row} has {X[row, column]:g}, expected"
            raise ValueError(f"{error} at most {LARGEST_NUMBER:g} in size; give them in a larger unit")
        return X

    def check_columns(self, X: np.ndarray, names: Sequence[str] | None) -> None:
        """Raise a ValueError for columns without a bounded density: constant ones, two values, no floor."""
        check_no_empty_column(X, names)
        for column in range(X.shape[1]):
            values, name = X[:, column][np.isfinite(X[:, column])], _column_text(column, names)
            low, high = values.min(), values.max()
            if low == high:
                raise ValueError(
                    f"{name} is constant ({low:g}), so it has no density; leave it out "
                    "(`pynade fit --drop-constant` does)"
                )
            if high - low < SMALLEST_RANGE:
                error = f"{name} holds values from {low:g} to {high:g}"
                raise ValueError(f"{error}, whose squares are lost in rounding: give them in a smaller unit")
            if self.floor_name and self.floor < self.least_floor and np.isin(values, (low, high)).all():
                value = "above 0" if self.least_floor < 1e-9 else f"to {self.least_floor:g} or more"
                raise ValueError(
                    f"{name} has only two distinct values ({low:g} and {high:g}), on which a density of "
                    f"real numbers grows without bound; leave it out, or set {self.floor_name} {value}"
                )

    def native(self, draws: torch.Tensor) -> np.ndarray:
        """Draws as float64."""
        values: np.ndarray = draws.double().cpu().numpy()
        if not np.isfinite(values).all():
            raise ValueError("the model's draws are no finite numbers: its weights are too large")
        return values

    def family(self, train: np.ndarray) -> families.Family:
        """The family of the conditional distributions; its constants are fitted to the training rows."""
        table: Any = self.table
        x, name = torch.as_tensor(train, dtype=torch.float64), table.family
        if isinstance(name, families.Family):
            base: Any = copy.deepcopy(name)
        elif name not in REAL_FAMILIES:
            raise ValueError(f"unknown family {name!r}; known: {', '.join(REAL_FAMILIES)}")
        else:
            size = [table.n_components] if name in MIXTURES else [train.shape[1]] if name == "fv" else []
            family_class, gradient = getattr(families, REAL_FAMILIES[name]), table.scale_mean_gradient
            base = family_class(*size, sigma_floor=self.floor, scale_mean_gradient=gradient)
        family: families.Family = families.standardised(base, x) if table.standardise else base
        family.fit_constants(x)
        return family


def check_no_empty_column(X: np.ndarray, names: Sequence[str] | None) -> None:
    """Raise a ValueError if every cell of a column is missing."""
    if (empty := np.isnan(X).all(0)).any():
        raise ValueError(
            f"{_column_text(int(empty.argmax()), names)} has no value at all: every cell is missing"
        )


def _column_text(column: int, names: Sequence[str] | None) -> str:
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
