"""Training: one loop, one history; gradient descent on one model or on a population."""

from typing import TYPE_CHECKING

from pynade._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from pynade.training.gradient import Member, fit, pretrain
    from pynade.training.history import History
    from pynade.training.loop import Callback, Diverged, Learner, Progress, Stopping, run
    from pynade.training.options import Gradient, Training
    from pynade.training.population import fit_population

__all__ = ["Callback", "Diverged", "Gradient", "History", "Learner", "Member", "Progress", "Stopping"]
__all__ += ["Training", "fit", "fit_population", "pretrain", "run"]

_HOMES = dict.fromkeys(__all__, "pynade.training.loop") | {
    "History": "pynade.training.history",
    **dict.fromkeys(("Gradient", "Training"), "pynade.training.options"),
    **dict.fromkeys(("Member", "fit", "pretrain"), "pynade.training.gradient"),
    "fit_population": "pynade.training.population",
}
__getattr__, __dir__, _ = _lazy_names(__name__, _HOMES)
