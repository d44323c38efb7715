"""Training: one loop, one history; gradient descent on one model or on a population."""

from pynade.training.fit import Callback, Diverged, History, Progress, fit
from pynade.training.options import Gradient
from pynade.training.population import Histories, PopulationProgress, fit_population
from pynade.training.pretrain import pretrain
from pynade.training.stacked import Member

__all__ = [
    "Callback",
    "Diverged",
    "Gradient",
    "Histories",
    "History",
    "Member",
    "PopulationProgress",
    "Progress",
    "fit",
    "fit_population",
    "pretrain",
]
