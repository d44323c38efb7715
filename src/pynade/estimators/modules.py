"""Modules of torch and pynade, imported at first use, so that parameters can be listed without torch."""

from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

__all__ = ["classical", "evaluation", "families", "likelihood", "models", "nets", "ordering"]
__all__ += ["plots", "processes", "queries", "store", "torch", "training"]

if TYPE_CHECKING:
    import torch

    from pynade import classical, evaluation, families, likelihood, models, nets, ordering, queries, store
    from pynade import plots as plots
    from pynade import processes as processes
    from pynade import training as training
else:
    globals().update({name: LazyModule(name if name == "torch" else f"pynade.{name}") for name in __all__})
