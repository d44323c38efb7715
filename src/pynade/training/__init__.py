"""Training: one loop, one history; gradient descent on one model or on a population."""

from typing import TYPE_CHECKING

from pynade._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from pynade.training.callbacks import to_mlflow, to_tensorboard
    from pynade.training.gradient import Member, fit, fit_population, pretrain
    from pynade.training.history import History
    from pynade.training.loop import Callback, Diverged, Learner, Progress, Stopping, run
    from pynade.training.options import Gradient, Training

__all__ = ["Callback", "Diverged", "Gradient", "History", "Learner", "Member", "Progress", "Stopping"]
__all__ += ["Training", "fit", "fit_population", "pretrain", "run", "to_mlflow", "to_tensorboard"]

_HOMES = dict.fromkeys(__all__, "pynade.training.loop") | {"History": "pynade.training.history"}
_HOMES |= dict.fromkeys(("Gradient", "Training"), "pynade.training.options")
_HOMES |= dict.fromkeys(("Member", "fit", "fit_population", "pretrain"), "pynade.training.gradient")
_HOMES |= dict.fromkeys(("to_mlflow", "to_tensorboard"), "pynade.training.callbacks")
__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
