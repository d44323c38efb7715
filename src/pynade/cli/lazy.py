"""Modules that commands compute with, imported when first used: `--help` and lists need no torch."""

from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import polars
    import torch

    from pynade import arguments, estimators, models, plots, processes, tables
    from pynade.app import serve
    from pynade.estimators import questions
    from pynade.runs import answers, demo, figures, report, run, score, stream, summary, sweep
    from pynade.tables import files, frames, images, registry
else:
    np, polars, torch = map(LazyModule, ("numpy", "polars", "torch"))
    _folders = {"": "arguments estimators models plots processes tables", ".estimators": "questions"}
    _folders |= {".app": "serve", ".runs": "answers demo figures report run score stream summary sweep"}
    _folders |= {".tables": "files frames images registry"}
    _names = [(folder, name) for folder, names in _folders.items() for name in names.split()]
    globals().update({name: LazyModule(f"pynade{folder}.{name}") for folder, name in _names})

__all__ = [
    "answers",
    "arguments",
    "demo",
    "estimators",
    "figures",
    "files",
    "frames",
    "images",
    "models",
    "np",
]
__all__ += [
    "plots",
    "polars",
    "processes",
    "questions",
    "registry",
    "report",
    "run",
    "score",
    "serve",
    "stream",
]
__all__ += ["summary", "sweep", "tables", "torch"]
