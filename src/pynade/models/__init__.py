"""Densities with exact log-probabilities and samples."""

from pynade.models.autoregressive import Autoregressive, Ensemble, Ordered, Rows, ancestral, complete
from pynade.models.density import Density, Independent, Marginalisable, Mixture, Model
from pynade.models.orderless import Orderless, draw_blocks

__all__ = ["Autoregressive", "Density", "Ensemble", "Independent", "Marginalisable", "Mixture", "Model"]
__all__ += ["Ordered", "Orderless", "Rows", "ancestral", "complete", "draw_blocks"]
