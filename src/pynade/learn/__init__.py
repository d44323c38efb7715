"""Learning: one gradient loop and its options, populations; EM, trees, contrastive divergence."""

from pynade.learn.chow_liu import chow_liu, chow_liu_chosen
from pynade.learn.contrastive import ContrastiveHistory, contrastive, contrastive_population
from pynade.learn.em_bernoulli import em_bernoulli
from pynade.learn.em_factors import FactorTask, em_factors, em_factors_batch
from pynade.learn.em_gaussian import em_gaussian, gaussian
from pynade.learn.em_history import EMCallback, EMHistory, EMProgress
from pynade.learn.em_trees import em_trees
from pynade.learn.fit import Callback, Diverged, History, Progress, fit
from pynade.learn.how import Gradient
from pynade.learn.minibatch_em import RowSource, minibatch_em
from pynade.learn.population import Histories, PopulationProgress, fit_population
from pynade.learn.pretrain import pretrain
from pynade.learn.stacked import Member

__all__ = [
    "Callback",
    "ContrastiveHistory",
    "Diverged",
    "EMCallback",
    "EMHistory",
    "EMProgress",
    "FactorTask",
    "Gradient",
    "Histories",
    "History",
    "Member",
    "PopulationProgress",
    "Progress",
    "RowSource",
    "chow_liu",
    "chow_liu_chosen",
    "contrastive",
    "contrastive_population",
    "em_bernoulli",
    "em_factors",
    "em_factors_batch",
    "em_gaussian",
    "em_trees",
    "fit",
    "fit_population",
    "gaussian",
    "minibatch_em",
    "pretrain",
]
