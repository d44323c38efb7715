"""Scikit-learn façades, thin."""

from pynade.estimators.base import DensityEstimator
from pynade.estimators.baselines import Baseline
from pynade.estimators.baselines_binary import BernoulliMixture, ChowLiu
from pynade.estimators.baselines_real import MFA, Gaussian, GaussianMixture
from pynade.estimators.domain import BinaryTable, RealCells
from pynade.estimators.fixed_order import FVSBN, MADE, NADE
from pynade.estimators.gradient import GradientEstimator
from pynade.estimators.io import ESTIMATORS, PRESETS, load
from pynade.estimators.orderless import DeepNADE, EoNADE, OrderlessDensity
from pynade.estimators.questions import Questions
from pynade.estimators.rbm import RBM
from pynade.estimators.real import RNADE, DeepRNADE

__all__ = [
    "ESTIMATORS",
    "FVSBN",
    "MADE",
    "MFA",
    "NADE",
    "PRESETS",
    "RBM",
    "RNADE",
    "Baseline",
    "BernoulliMixture",
    "BinaryTable",
    "ChowLiu",
    "DeepNADE",
    "DeepRNADE",
    "DensityEstimator",
    "EoNADE",
    "Gaussian",
    "GaussianMixture",
    "GradientEstimator",
    "OrderlessDensity",
    "Questions",
    "RealCells",
    "load",
]
