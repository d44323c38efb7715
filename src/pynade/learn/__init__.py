"""Learning: one gradient loop, its options, its checkpoints; EM for mixtures of Gaussians."""

from pynade.learn.em import EMHistory
from pynade.learn.em_factors import FactorTask, em_factors, em_factors_batch
from pynade.learn.em_gaussian import em_gaussian, gaussian
from pynade.learn.fit import Callback, Diverged, History, Progress, fit
from pynade.learn.how import Gradient
from pynade.learn.minibatch_em import RowSource, minibatch_em
from pynade.learn.population import Histories, Member, PopulationProgress, fit_population
from pynade.learn.pretrain import pretrain

__all__ = [
    "Callback",
    "Diverged",
    "EMHistory",
    "FactorTask",
    "Gradient",
    "Histories",
    "History",
    "Member",
    "PopulationProgress",
    "Progress",
    "RowSource",
    "em_factors",
    "em_factors_batch",
    "em_gaussian",
    "fit",
    "fit_population",
    "gaussian",
    "minibatch_em",
    "pretrain",
]
