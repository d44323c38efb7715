"""Classical densities and their learners: mixtures, trees, Gaussians, factor analysers, RBMs."""

from pynade.classical.binary import BernoulliMixture, em_bernoulli
from pynade.classical.chow_liu import ChowLiuTree, TreeMixture, chow_liu, chow_liu_chosen, em_trees
from pynade.classical.contrastive_divergence import TrainedRBM, contrastive_divergence
from pynade.classical.em import EMOptions
from pynade.classical.gaussian_em import FactorTask, em_factors
from pynade.classical.gaussian_marginals import (
    FactorAnalysers,
    GaussianMarginals,
    GaussianMixture,
    MultivariateGaussian,
)
from pynade.classical.gaussian_mixture import em_gaussian, gaussian, minibatch_em
from pynade.classical.rbm import RBM, NormalisedRBM, PartitionEstimate, nade_from_rbm

__all__ = ["RBM", "BernoulliMixture", "ChowLiuTree", "EMOptions", "FactorAnalysers", "FactorTask"]
__all__ += ["GaussianMarginals", "GaussianMixture", "MultivariateGaussian", "NormalisedRBM"]
__all__ += ["PartitionEstimate", "TrainedRBM", "TreeMixture", "chow_liu", "chow_liu_chosen"]
__all__ += ["contrastive_divergence", "em_bernoulli", "em_factors", "em_gaussian", "em_trees", "gaussian"]
__all__ += ["minibatch_em", "nade_from_rbm"]
