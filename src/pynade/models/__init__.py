"""Densities: exact log-probabilities and samples."""

from pynade.models.autoregressive import Autoregressive, ancestral
from pynade.models.density import Density, Marginalisable
from pynade.models.factor_analysers import FactorAnalysers
from pynade.models.gaussian import MultivariateGaussian
from pynade.models.gaussian_marginals import GaussianMarginals
from pynade.models.gaussian_mixture import GaussianMixture
from pynade.models.independent import Independent
from pynade.models.mixture import Ensemble, Mixture
from pynade.models.orderless import Orderless

__all__ = [
    "Autoregressive",
    "Density",
    "Ensemble",
    "FactorAnalysers",
    "GaussianMarginals",
    "GaussianMixture",
    "Independent",
    "Marginalisable",
    "Mixture",
    "MultivariateGaussian",
    "Orderless",
    "ancestral",
]
