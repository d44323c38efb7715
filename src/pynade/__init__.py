"""pynade: exact, tractable probability models for tables and images.

There are two APIs. Scikit-learn estimators take arrays or data frames:

    >>> import pynade
    >>> model = pynade.NADE(hidden=500)  # then model.fit(X), .score_samples(X), .sample(100), .save(path)

And torch modules to compose: `pynade.nets`, `pynade.families`, `pynade.models`, `pynade.ordering`.
"""

from typing import TYPE_CHECKING

from pynade import datasets  # imports no library
from pynade._lazy import lazy_names as _lazy_names
from pynade._version import __version__

if TYPE_CHECKING:
    from pynade.estimators import (
        FVSBN,
        MADE,
        MFA,
        NADE,
        RBM,
        RNADE,
        BernoulliMixture,
        BinaryTransformerNADE,
        ChowLiu,
        ConvNADE,
        DeepNADE,
        DeepRNADE,
        EoNADE,
        Gaussian,
        GaussianMixture,
        ImageNADE,
        TabularNADE,
        TransformerNADE,
        load,
        register,
    )
    from pynade.likelihood import Estimate
    from pynade.ordering import Ordering

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
    "ConvNADE",
    "DeepNADE",
    "DeepRNADE",
    "EoNADE",
    "Estimate",
    "Gaussian",
    "GaussianMixture",
    "ImageNADE",
    "Ordering",
    "TabularNADE",
    "TransformerNADE",
    "__version__",
    "datasets",
    "load",
    "register",
]

_HOMES = dict.fromkeys(__all__, "pynade.estimators")
_HOMES |= {"Estimate": "pynade.likelihood", "Ordering": "pynade.ordering", "__version__": "pynade._version"}
__getattr__, __dir__, _ = _lazy_names(__name__, _HOMES)
