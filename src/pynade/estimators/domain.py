"""What the cells of a table may be: zeros and ones, or real numbers. Estimators mix one of these in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pynade import families
from pynade.estimators.questions import Questions, refuse_empty_rows
from pynade.families import Bernoulli, Family
from pynade.nets import Net


@dataclass(kw_only=True, eq=False, repr=False)
class BinaryTable:
    """Zeros and ones.

    Attributes:
        binarize: threshold; values above it become 1, the others 0. None expects exact 0/1.
    """

    binarize: float | None = None

    def _family(self, train: np.ndarray) -> Family:
        return Bernoulli()

    def _native(self, draws: torch.Tensor) -> np.ndarray:
        return draws.cpu().numpy().astype(np.int64)

    def _convert(self, X: np.ndarray, *, reset: bool) -> np.ndarray:
        """Zeros and ones as uint8, thresholded if asked for; as float32 with NaN where cells are missing."""
        if isinstance(self.binarize, str):
            raise ValueError(
                f"binarize is a number, the threshold, not {self.binarize!r}; for pixels drawn by their "
                "share of white give rows such as rng.random(X.shape) < X / 255, or use `pynade fit`"
            )
        missing = missing_cells(self, X, "zeros and ones")
        if missing is None:
            return self._binary(X)
        filled = self._binary(np.where(missing, 0.0 if self.binarize is None else self.binarize, X))
        return np.where(missing, np.float32(np.nan), filled.astype(np.float32))

    def _binary(self, X: np.ndarray) -> np.ndarray:
        if self.binarize is not None:
            return (self.binarize < X).astype(np.uint8)
        Bernoulli().check(torch.as_tensor(np.ascontiguousarray(X)))
        return X.astype(np.uint8)


REAL_FAMILIES: dict[str, type[families.Real]] = {
    "fv": families.FixedVarianceGaussian,
    "gaussian": families.Gaussian,
    "laplace": families.Laplace,
    "sas": families.SinhArcsinh,
    "student": families.StudentT,
    "mog": families.MixtureOfGaussians,
    "mol": families.MixtureOfLaplaces,
    "mologistic": families.MixtureOfLogistics,
}
MIXTURES = ("mog", "mol", "mologistic")


class RealCells:
    """Real numbers, whatever is said about them.

    `_floor` names the parameter that keeps laws from growing infinitely narrow, where laws could; below
    `_wide` it is too small for columns with two values.
    """

    _floor = ""
    _wide = 1e-12

    def _native(self, draws: torch.Tensor) -> np.ndarray:
        return draws.double().cpu().numpy()

    def _convert(self, X: np.ndarray, *, reset: bool) -> np.ndarray:
        """Finite float64 (NaN where cells are missing); to fit, columns that have a density."""
        missing_cells(self, X, "finite numbers")
        X = X.astype(np.float64)
        if reset:
            self._check_columns(X)
        return X

    def _check_columns(self, X: np.ndarray) -> None:
        """A constant column has no density; one with two values has an infinite one without a floor."""
        names = getattr(self, "feature_names_in_", getattr(self, "columns_", None))
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
            narrow = self._floor and getattr(self, self._floor) < self._wide
            if narrow and np.isin(values, (least, most)).all():
                enough = "above 0" if self._wide < 1e-9 else f"to {self._wide:g} or more"
                raise ValueError(
                    f"{name} has only two distinct values ({least:g} and {most:g}), on which a density of "
                    f"real numbers grows without bound; leave it out, or set {self._floor} {enough}"
                )


@dataclass(kw_only=True, eq=False, repr=False)
class RealTable(RealCells):
    """Real numbers, and the law of each conditional.

    Attributes:
        family: law of each conditional: "mog", "mol" or "mologistic" (mixtures of Gaussians, Laplaces or
            logistics), "gaussian", "fv" (Gaussian with one learned sigma per column), "laplace", "sas"
            (sinh-arcsinh) or "student".
        n_components: K of the mixtures.
        standardise: model (x - mean) / deviation of the training rows; densities, conditionals and samples
            are in the units of the data all the same. False takes the numbers as they are.
        sigma_floor: smallest scale a law may have, in standardised units (or the data's own). Rounded or
            repeated values invite infinitely narrow laws; 0 allows them.
        scale_mean_gradient: multiply the gradient of each location by its scale (the paper's
            advice with SGD).
    """

    family: str = "mog"
    n_components: int = 10
    standardise: bool = True
    sigma_floor: float = 0.001
    scale_mean_gradient: bool = False

    _floor = "sigma_floor"
    _wide = 0.01

    def _family(self, train: np.ndarray) -> Family:
        if self.family not in REAL_FAMILIES:
            raise ValueError(f"unknown family {self.family!r}; known: {', '.join(REAL_FAMILIES)}")
        options: dict[str, Any] = {
            "sigma_floor": self.sigma_floor,
            "scale_mean_gradient": self.scale_mean_gradient,
        }
        kind, x = REAL_FAMILIES[self.family], torch.as_tensor(train, dtype=torch.float64)
        if self.family in MIXTURES:
            base = kind(self.n_components, **options)
        elif self.family == "fv":
            base = kind(train.shape[1], **options)
        else:
            base = kind(**options)
        whole: Family = families.standardised(base, x) if self.standardise else base
        whole.fit_constants(x)
        return whole

    @staticmethod
    def _quiet(net: Net) -> Net:
        """Output weights a tenth of the usual: laws with exponentials in them start near the marginals."""
        with torch.no_grad():
            net.get_parameter("output").mul_(0.1)
        return net


def missing_cells(estimator: object, X: np.ndarray, takes: str) -> np.ndarray | None:
    """Where cells are missing (NaN), or None if none is; refuses infinities, empty rows, unwanted NaN."""
    if X.dtype.kind != "f" or np.isfinite(X).all():
        return None
    name = type(estimator).__name__
    if np.isinf(X).any():
        row, column = np.argwhere(np.isinf(X))[0]
        raise ValueError(f"{name} takes {takes}, but row {row}, column {column} is inf")
    missing = np.isnan(X)
    if not isinstance(estimator, Questions):
        row, column = np.argwhere(missing)[0]
        raise ValueError(
            f"{name} takes {takes}, but row {row}, column {column} is NaN"
            "; orderless models (DeepNADE, DeepRNADE) and mixtures (BernoulliMixture, GaussianMixture) take "
            "missing values"
        )
    refuse_empty_rows(missing)
    return missing
