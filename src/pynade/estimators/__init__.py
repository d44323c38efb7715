"""Scikit-learn façades, thin."""

from pynade.estimators.base import DensityEstimator
from pynade.estimators.fixed_order import FVSBN, MADE, NADE
from pynade.estimators.gradient import GradientEstimator
from pynade.estimators.images import ConvNADE, ImageDensity, ImageNADE
from pynade.estimators.io import ESTIMATORS, load
from pynade.estimators.orderless import AnyOrderDensity, DeepNADE, EoNADE, OrderlessDensity
from pynade.estimators.questions import Questions
from pynade.estimators.real import RNADE, DeepRNADE
from pynade.estimators.transformer import TransformerNADE

__all__ = [
    "ESTIMATORS",
    "FVSBN",
    "MADE",
    "NADE",
    "RNADE",
    "AnyOrderDensity",
    "ConvNADE",
    "DeepNADE",
    "DeepRNADE",
    "DensityEstimator",
    "EoNADE",
    "GradientEstimator",
    "ImageDensity",
    "ImageNADE",
    "OrderlessDensity",
    "Questions",
    "TransformerNADE",
    "load",
]
