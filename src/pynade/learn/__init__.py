"""Learning: one gradient loop, its options, its checkpoints; EM, trees and contrastive divergence."""

from pynade.learn.chow_liu import chow_liu, chow_liu_chosen
from pynade.learn.contrastive import ContrastiveHistory, contrastive, contrastive_population
from pynade.learn.em_bernoulli import em_bernoulli
from pynade.learn.em_binary import BinaryEMHistory
from pynade.learn.em_trees import em_trees
from pynade.learn.fit import Callback, Diverged, History, Progress, fit
from pynade.learn.how import Gradient
from pynade.learn.pretrain import pretrain

__all__ = [
    "BinaryEMHistory",
    "Callback",
    "ContrastiveHistory",
    "Diverged",
    "Gradient",
    "History",
    "Progress",
    "chow_liu",
    "chow_liu_chosen",
    "contrastive",
    "contrastive_population",
    "em_bernoulli",
    "em_trees",
    "fit",
    "pretrain",
]
