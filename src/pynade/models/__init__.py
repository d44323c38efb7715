"""Densities: exact log-probabilities and samples."""

from pynade.models.autoregressive import Autoregressive, ancestral
from pynade.models.block_sampling import blocked_log_prob, draw_many, sample_many
from pynade.models.density import Density, Marginalisable, Model
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
    "Model",
    "Orderless",
    "ancestral",
    "blocked_log_prob",
    "draw_many",
    "sample_many",
]
