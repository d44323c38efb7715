"""Modules that commands compute with, imported when first used: `--help` and lists need no torch."""

from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import polars

    from pynade import arguments, estimators, processes, tables
    from pynade.runs import demo, figures, run, sampling, score, summary, sweep
    from pynade.tables import files, images, registry
else:
    np, polars = LazyModule("numpy"), LazyModule("polars")
    _folders = {"": "arguments estimators processes tables", ".tables": "files images registry"}
    _folders |= {".runs": "demo figures run sampling score summary sweep"}
    _names = [(folder, name) for folder, names in _folders.items() for name in names.split()]
    globals().update({name: LazyModule(f"pynade{folder}.{name}") for folder, name in _names})

__all__ = ["arguments", "demo", "estimators", "figures", "files", "images", "np", "polars", "processes"]
__all__ += ["registry", "run", "sampling", "score", "summary", "sweep", "tables"]
