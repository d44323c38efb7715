"""Classical densities and their learners: mixtures, trees, Gaussians, factor analysers, RBMs."""

from pynade.classical.ais import PartitionEstimate
from pynade.classical.bernoulli_mixture import BernoulliMixture
from pynade.classical.chow_liu import ChowLiuTree
from pynade.classical.chow_liu_learning import chow_liu, chow_liu_chosen
from pynade.classical.contrastive_divergence import ContrastiveHistory, contrastive, contrastive_population
from pynade.classical.em_bernoulli import em_bernoulli
from pynade.classical.em_factors import FactorTask, em_factors, em_factors_batch
from pynade.classical.em_gaussian import em_gaussian, gaussian
from pynade.classical.em_history import EMCallback, EMHistory, EMProgress
from pynade.classical.em_trees import em_trees
from pynade.classical.factor_analysers import FactorAnalysers
from pynade.classical.gaussian import MultivariateGaussian
from pynade.classical.gaussian_marginals import GaussianMarginals
from pynade.classical.gaussian_mixture import GaussianMixture
from pynade.classical.minibatch_em import RowSource, minibatch_em
from pynade.classical.normalised_rbm import NormalisedRBM
from pynade.classical.rbm import RBM, nade_from_rbm
from pynade.classical.tree_mixture import TreeMixture

__all__ = [
    "RBM",
    "BernoulliMixture",
    "ChowLiuTree",
    "ContrastiveHistory",
    "EMCallback",
    "EMHistory",
    "EMProgress",
    "FactorAnalysers",
    "FactorTask",
    "GaussianMarginals",
    "GaussianMixture",
    "MultivariateGaussian",
    "NormalisedRBM",
    "PartitionEstimate",
    "RowSource",
    "TreeMixture",
    "chow_liu",
    "chow_liu_chosen",
    "contrastive",
    "contrastive_population",
    "em_bernoulli",
    "em_factors",
    "em_factors_batch",
    "em_gaussian",
    "em_trees",
    "gaussian",
    "minibatch_em",
    "nade_from_rbm",
]
