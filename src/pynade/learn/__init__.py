"""Learning: one gradient loop, its options, its checkpoints."""

from pynade.learn.fit import Callback, Diverged, History, Progress, fit
from pynade.learn.how import Gradient
from pynade.learn.population import Histories, Member, PopulationProgress, fit_population
from pynade.learn.pretrain import pretrain

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
