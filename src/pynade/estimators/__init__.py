"""Scikit-learn façades, thin."""

from pynade.estimators.base import BinaryDensity
from pynade.estimators.fixed_order import FVSBN, MADE, NADE
from pynade.estimators.io import ESTIMATORS, load
from pynade.estimators.orderless import DeepNADE, EoNADE, OrderlessDensity

__all__ = [
    "ESTIMATORS",
    "FVSBN",
    "MADE",
    "NADE",
    "BinaryDensity",
    "DeepNADE",
    "EoNADE",
    "OrderlessDensity",
    "load",
]
