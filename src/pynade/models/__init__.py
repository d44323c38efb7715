"""Densities: exact log-probabilities and samples."""

from pynade.models.autoregressive import Autoregressive, ancestral
from pynade.models.density import Density, Marginalisable
from pynade.models.independent import Independent
from pynade.models.mixture import Ensemble, Mixture
from pynade.models.orderless import Orderless

__all__ = [
    "Autoregressive",
    "Density",
    "Ensemble",
    "Independent",
    "Marginalisable",
    "Mixture",
    "Orderless",
    "ancestral",
]
