"""Modules that commands compute with, imported when first used: `--help` and lists need no torch."""

from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pynade import arguments, estimators, plots, processes, tables
    from pynade.app import serve
    from pynade.estimators import questions
    from pynade.runs import answers, demo, figures, report, run, score, stream, summary, sweep
    from pynade.tables import files, images, registry
else:
    np, torch = map(LazyModule, ("numpy", "torch"))
    _packages = {"": "arguments estimators plots processes tables", ".app": "serve"}
    _packages |= {".estimators": "questions", ".tables": "files images registry"}
    _packages |= {".runs": "answers demo figures report run score stream summary sweep"}
    for _package, _names in _packages.items():
        globals().update({name: LazyModule(f"pynade{_package}.{name}") for name in _names.split()})

__all__ = ["answers", "arguments", "demo", "estimators", "figures", "files", "images", "np", "plots"]
__all__ += ["processes", "questions", "registry", "report", "run", "score", "serve", "stream"]
__all__ += ["summary", "sweep", "tables", "torch"]
