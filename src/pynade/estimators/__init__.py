"""Scikit-learn façades, thin."""

from pynade.estimators.base import DensityEstimator
from pynade.estimators.fixed_order import FVSBN, MADE, NADE
from pynade.estimators.gradient import GradientEstimator
from pynade.estimators.io import ESTIMATORS, load
from pynade.estimators.orderless import DeepNADE, EoNADE, OrderlessDensity
from pynade.estimators.questions import Questions
from pynade.estimators.real import RNADE, DeepRNADE

__all__ = [
    "ESTIMATORS",
    "FVSBN",
    "MADE",
    "NADE",
    "RNADE",
    "DeepNADE",
    "DeepRNADE",
    "DensityEstimator",
    "EoNADE",
    "GradientEstimator",
    "OrderlessDensity",
    "Questions",
    "load",
]
