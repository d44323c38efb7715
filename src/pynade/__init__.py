"""pynade: exact, tractable probability models for tables and images.

There are two APIs. Scikit-learn estimators take arrays or data frames:

    >>> import pynade
    >>> model = pynade.NADE(hidden=500)  # then model.fit(X), .score_samples(X), .sample(100), .save(path)

And torch modules to compose: `pynade.nets`, `pynade.families`, `pynade.models`, `pynade.ordering`.
"""
# ruff: noqa: F403, F405 (type checkers take the names of estimators from their package)

from typing import TYPE_CHECKING

from pynade import datasets  # imports no library
from pynade._lazy import lazy_names as _lazy_names
from pynade._version import __version__

if TYPE_CHECKING:
    from pynade import plots as plots
    from pynade import stream as stream
    from pynade.estimators import *
    from pynade.likelihood import Estimate
    from pynade.ordering import Ordering

__all__ = ["FVSBN", "MADE", "NADE", "RBM", "BernoulliMixture", "BinaryTransformerNADE", "ChowLiu", "DeepNADE"]
__all__ += ["MFA", "RNADE", "DeepRNADE", "EoNADE", "Gaussian", "GaussianMixture", "TransformerNADE"]
__all__ += ["ConvNADE", "ImageNADE", "TabularNADE"]
__all__ += ["Estimate", "Ordering", "__version__", "datasets", "load", "plots", "register", "stream"]

_HOMES = dict.fromkeys(__all__, "pynade.estimators")
_HOMES |= {"Estimate": "pynade.likelihood", "Ordering": "pynade.ordering", "__version__": "pynade._version"}
_HOMES |= {"plots": "pynade.plots", "stream": "pynade.stream"}
__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
