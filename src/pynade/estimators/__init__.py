"""Scikit-learn façades, thin."""

from pynade.estimators.base import DensityEstimator
from pynade.estimators.baselines import Baseline
from pynade.estimators.baselines_binary import BernoulliMixture, ChowLiu
from pynade.estimators.baselines_real import MFA, Gaussian, GaussianMixture
from pynade.estimators.domain import BinaryTable, RealCells
from pynade.estimators.fixed_order import FVSBN, MADE, NADE
from pynade.estimators.gradient import GradientEstimator
from pynade.estimators.images import ConvNADE, ImageDensity, ImageNADE
from pynade.estimators.io import ESTIMATORS, PRESETS, load
from pynade.estimators.orderless import AnyOrderDensity, DeepNADE, EoNADE, OrderlessDensity
from pynade.estimators.questions import Questions
from pynade.estimators.rbm import RBM
from pynade.estimators.real import RNADE, DeepRNADE
from pynade.estimators.transformer import BinaryTransformerNADE, TransformerDensity, TransformerNADE

__all__ = [
    "ESTIMATORS",
    "FVSBN",
    "MADE",
    "MFA",
    "NADE",
    "PRESETS",
    "RBM",
    "RNADE",
    "AnyOrderDensity",
    "Baseline",
    "BernoulliMixture",
    "BinaryTable",
    "BinaryTransformerNADE",
    "ChowLiu",
    "ConvNADE",
    "DeepNADE",
    "DeepRNADE",
    "DensityEstimator",
    "EoNADE",
    "Gaussian",
    "GaussianMixture",
    "GradientEstimator",
    "ImageDensity",
    "ImageNADE",
    "OrderlessDensity",
    "Questions",
    "RealCells",
    "TransformerDensity",
    "TransformerNADE",
    "load",
]
