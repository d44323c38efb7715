"""What the cells of a table may be: zeros and ones, or real numbers. Estimators mix one of these in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pynade.estimators.questions import Questions
from pynade.families import Bernoulli, Family


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
            "; an orderless model (DeepNADE, DeepRNADE) takes missing values"
        )
    if missing.all(1).any():
        row = int(missing.all(1).argmax())
        raise ValueError(f"row {row} has no value at all: every cell is missing")
    return missing
