"""Learning: one gradient loop, its options, its checkpoints."""

from pynade.learn.fit import Callback, Diverged, History, Progress, fit
from pynade.learn.how import Gradient

__all__ = ["Callback", "Diverged", "Gradient", "History", "Progress", "fit"]
