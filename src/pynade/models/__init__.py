"""Densities: exact log-probabilities and samples."""

from pynade.models.autoregressive import Autoregressive, Ordered
from pynade.models.block_sampling import block_log_prob, block_sample, draw_blocks
from pynade.models.density import Density, Marginalisable, Model
from pynade.models.independent import Independent
from pynade.models.mixture import Ensemble, Mixture
from pynade.models.orderless import Orderless
from pynade.models.scoring import Rows, ancestral, complete

__all__ = [
    "Autoregressive",
    "Density",
    "Ensemble",
    "Independent",
    "Marginalisable",
    "Mixture",
    "Model",
    "Ordered",
    "Orderless",
    "Rows",
    "ancestral",
    "block_log_prob",
    "block_sample",
    "complete",
    "draw_blocks",
]
