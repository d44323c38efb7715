"""Learning: one gradient loop, its options, its checkpoints."""

from pynade.learn.fit import Callback, Diverged, History, Progress, fit
from pynade.learn.how import Gradient
from pynade.learn.pretrain import pretrain

__all__ = ["Callback", "Diverged", "Gradient", "History", "Progress", "fit", "pretrain"]
