"""pynade: exact, tractable probability models for tables and images.

Two doors into the same house. Arrays in, NumPy out:

    >>> import pynade
    >>> model = pynade.NADE(hidden=500)  # then model.fit(X), .score_samples(X), .sample(100), .save(path)

Or compose your own in torch: `pynade.nets`, `pynade.families`, `pynade.models`, `pynade.ordering`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
        TransformerNADE,
        load,
    )
    from pynade.likelihood import Estimate
    from pynade.ordering import Ordering

_HOMES = {  # exported name -> module, imported on first use so that `import pynade` stays quick
    "NADE": "pynade.estimators",
    "MADE": "pynade.estimators",
    "FVSBN": "pynade.estimators",
    "DeepNADE": "pynade.estimators",
    "EoNADE": "pynade.estimators",
    "RNADE": "pynade.estimators",
    "DeepRNADE": "pynade.estimators",
    "BernoulliMixture": "pynade.estimators",
    "ChowLiu": "pynade.estimators",
    "RBM": "pynade.estimators",
    "Gaussian": "pynade.estimators",
    "GaussianMixture": "pynade.estimators",
    "MFA": "pynade.estimators",
    "ConvNADE": "pynade.estimators",
    "ImageNADE": "pynade.estimators",
    "BinaryTransformerNADE": "pynade.estimators",
    "TransformerNADE": "pynade.estimators",
    "load": "pynade.estimators",
    "Estimate": "pynade.likelihood",
    "Ordering": "pynade.ordering",
}

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
    "TransformerNADE",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pynade' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
