"""Scikit-learn estimators: arrays or data frames in, a fitted density, answers out."""

from typing import TYPE_CHECKING

from pynade._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from pynade.estimators.base import DensityEstimator
    from pynade.estimators.classical import ClassicalEstimator, fit_folds
    from pynade.estimators.fixed_order import FVSBN, MADE, NADE, RNADE
    from pynade.estimators.images import ConvNADE, ImageEstimator, ImageNADE
    from pynade.estimators.io import load
    from pynade.estimators.mixtures import MFA, BernoulliMixture, ChowLiu, Gaussian, GaussianMixture
    from pynade.estimators.net import NetEstimator, OrderlessEstimator
    from pynade.estimators.orderless import (
        BinaryTransformerNADE,
        DeepNADE,
        DeepRNADE,
        EoNADE,
        TransformerNADE,
    )
    from pynade.estimators.rbm import RBM
    from pynade.estimators.registry import estimator_class, estimator_named, names, register
    from pynade.estimators.tabular import TabularNADE

__all__ = [
    "FVSBN",
    "MADE",
    "MFA",
    "NADE",
    "RBM",
    "RNADE",
    "BernoulliMixture",
    "BinaryTransformerNADE",
    "ChowLiu",
    "ClassicalEstimator",
    "ConvNADE",
    "DeepNADE",
    "DeepRNADE",
    "DensityEstimator",
    "EoNADE",
    "Gaussian",
    "GaussianMixture",
    "ImageEstimator",
    "ImageNADE",
    "NetEstimator",
    "OrderlessEstimator",
    "TabularNADE",
    "TransformerNADE",
    "estimator_class",
    "estimator_named",
    "fit_folds",
    "load",
    "names",
    "register",
]

_MODULES = {
    "base": ("DensityEstimator",),
    "classical": ("ClassicalEstimator", "fit_folds"),
    "fixed_order": ("FVSBN", "MADE", "NADE", "RNADE"),
    "images": ("ConvNADE", "ImageEstimator", "ImageNADE"),
    "io": ("load",),
    "mixtures": ("MFA", "BernoulliMixture", "ChowLiu", "Gaussian", "GaussianMixture"),
    "net": ("NetEstimator", "OrderlessEstimator"),
    "orderless": ("BinaryTransformerNADE", "DeepNADE", "DeepRNADE", "EoNADE", "TransformerNADE"),
    "rbm": ("RBM",),
    "registry": ("estimator_class", "estimator_named", "names", "register"),
    "tabular": ("TabularNADE",),
}
_HOMES = {name: f"pynade.estimators.{module}" for module, some in _MODULES.items() for name in some}
__getattr__, __dir__, _ = _lazy_names(__name__, _HOMES)
