"""Densities: exact log-probabilities and samples."""

from pynade.models.ais import PartitionEstimate
from pynade.models.autoregressive import Autoregressive, ancestral
from pynade.models.bernoulli_mixture import BernoulliMixture
from pynade.models.chow_liu import ChowLiuTree
from pynade.models.density import Density, Marginalisable
from pynade.models.factor_analysers import FactorAnalysers
from pynade.models.gaussian import MultivariateGaussian
from pynade.models.gaussian_marginals import GaussianMarginals
from pynade.models.gaussian_mixture import GaussianMixture
from pynade.models.independent import Independent
from pynade.models.many_at_once import blocked_log_prob, draw_many, sample_many
from pynade.models.mixture import Ensemble, Mixture
from pynade.models.normalised_rbm import NormalisedRBM
from pynade.models.orderless import Orderless
from pynade.models.rbm import RBM, nade_from_rbm
from pynade.models.tree_mixture import TreeMixture

__all__ = [
    "RBM",
    "Autoregressive",
    "BernoulliMixture",
    "ChowLiuTree",
    "Density",
    "Ensemble",
    "FactorAnalysers",
    "GaussianMarginals",
    "GaussianMixture",
    "Independent",
    "Marginalisable",
    "Mixture",
    "MultivariateGaussian",
    "NormalisedRBM",
    "Orderless",
    "PartitionEstimate",
    "TreeMixture",
    "ancestral",
    "blocked_log_prob",
    "draw_many",
    "nade_from_rbm",
    "sample_many",
]
