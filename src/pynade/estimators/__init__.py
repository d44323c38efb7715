"""Scikit-learn façades, thin."""

from pynade.estimators.base import BinaryDensity
from pynade.estimators.fixed_order import FVSBN, MADE, NADE
from pynade.estimators.io import ESTIMATORS, load

__all__ = ["ESTIMATORS", "FVSBN", "MADE", "NADE", "BinaryDensity", "load"]
