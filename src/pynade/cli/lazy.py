"""Modules that commands compute with, imported when first used: `--help` and lists need no torch."""

from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import polars
    import torch

    from pynade import arguments, estimators, models, processes, tables
    from pynade.app import serve
    from pynade.estimators import questions
    from pynade.runs import demo, figures, run, score, summary, sweep
    from pynade.tables import files, frames, images, registry
else:
    np, polars, torch = map(LazyModule, ("numpy", "polars", "torch"))
    _folders = {"": "arguments estimators models processes tables", ".estimators": "questions"}
    _folders |= {".app": "serve"}
    _folders |= {".runs": "demo figures run score summary sweep", ".tables": "files frames images registry"}
    _names = [(folder, name) for folder, names in _folders.items() for name in names.split()]
    globals().update({name: LazyModule(f"pynade{folder}.{name}") for folder, name in _names})

__all__ = ["arguments", "demo", "estimators", "figures", "files", "frames", "images", "models", "np"]
__all__ += ["polars", "processes", "questions", "registry", "run", "score", "serve", "summary", "sweep"]
__all__ += ["tables", "torch"]
