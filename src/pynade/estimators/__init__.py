"""Scikit-learn estimators: arrays or data frames in, a fitted density, answers out."""
# ruff: noqa: F403, F405 (type checkers take the names below from their modules)

from typing import TYPE_CHECKING

from pynade._lazy import lazy_names as _lazy_names
from pynade.estimators.registry import MODELS as _MODELS

if TYPE_CHECKING:
    from pynade.estimators.base import DensityEstimator, load
    from pynade.estimators.classical import ClassicalEstimator, fit_folds
    from pynade.estimators.images import *
    from pynade.estimators.mixtures import *
    from pynade.estimators.nades import *
    from pynade.estimators.net import NetEstimator, OrderlessEstimator
    from pynade.estimators.rbm import RBM
    from pynade.estimators.registry import estimator_class, estimator_named, names, register
    from pynade.estimators.tabular import TabularNADE

__all__ = ["FVSBN", "MADE", "NADE", "RBM", "BernoulliMixture", "BinaryTransformerNADE", "ChowLiu", "DeepNADE"]
__all__ += ["MFA", "RNADE", "DeepRNADE", "EoNADE", "Gaussian", "GaussianMixture", "TransformerNADE"]
__all__ += ["ConvNADE", "ImageNADE", "TabularNADE"]
__all__ += ["ClassicalEstimator", "DensityEstimator", "ImageEstimator", "NetEstimator", "OrderlessEstimator"]
__all__ += ["estimator_class", "estimator_named", "fit_folds", "load", "names", "register"]

_HOMES = {entry.kind: entry.module for entry in _MODELS.values()}
_HOMES |= {"DensityEstimator": "base", "load": "base", "NetEstimator": "net", "OrderlessEstimator": "net"}
_HOMES |= {"ClassicalEstimator": "classical", "fit_folds": "classical", "ImageEstimator": "images"}
_HOMES |= dict.fromkeys(("estimator_class", "estimator_named", "names", "register"), "registry")
__getattr__, __dir__ = _lazy_names(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
