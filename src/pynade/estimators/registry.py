"""Estimators by name: those of pynade and those that users register; names in saved files.

The name of a model is its class name in lower case; aliases are shorter names, presets and older names.
"""

from __future__ import annotations

import difflib
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:  # importing scikit-learn takes a second, and a list of names does not need it
    from pynade.estimators.base import DensityEstimator

Class = TypeVar("Class", bound=type)


class Entry(NamedTuple):
    """An estimator of pynade."""

    module: str  # in `pynade.estimators`
    data: str  # the kind of data it is for
    kind: str  # name of the class


_CLASSES = {  # by module and kind of data
    ("tabular", "mixed, with gaps"): ("TabularNADE",),
    ("nades", "binary"): ("NADE", "MADE", "FVSBN"),
    ("nades", "binary, with gaps"): ("DeepNADE", "EoNADE", "BinaryTransformerNADE"),
    ("mixtures", "binary, with gaps"): ("BernoulliMixture",),
    ("mixtures", "binary"): ("ChowLiu",),
    ("rbm", "binary"): ("RBM",),
    ("nades", "real"): ("RNADE",),
    ("nades", "real, with gaps"): ("DeepRNADE", "TransformerNADE"),
    ("mixtures", "real, with gaps"): ("Gaussian", "GaussianMixture", "MFA"),
    ("images", "images"): ("ConvNADE", "ImageNADE"),
}
MODELS = {kind.lower(): Entry(*key, kind) for key, kinds in _CLASSES.items() for kind in kinds}

#: Other names of models, with the parameters they set.
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tabular": ("tabularnade", {}),
    "deep-rnade": ("deeprnade", {}),
    "made-e": ("made", {"n_orderings": 32}),
    "mob": ("bernoullimixture", {}),
    "chow-liu": ("chowliu", {}),
    "mog": ("gaussianmixture", {}),
    "hybrid": ("convnade", {"hybrid": [500, 500]}),
    "unet": ("imagenade", {}),
    "transformer": ("transformernade", {}),
    "causal-transformer": ("transformernade", {"fixed_order": True}),
    "permuted-transformer": ("transformernade", {"causal": True, "n_orderings": 8}),
    "binary-transformer": ("binarytransformernade", {}),
}

#: Older names of parameters.
PARAMETERS = {"iterations": "epochs", "tolerance": "tol", "n_hidden": "hidden", "seed": "random_state"}
PARAMETERS |= {"components": "n_components", "orderings": "n_orderings", "factors": "n_factors"}

_registered: dict[str, type[DensityEstimator]] = {}


def register(part: Class) -> Class:
    """Register a user's class with pynade: an estimator, a net, a family or a density.

    A registered estimator can be loaded, and named in sweeps and on the command line: the option
    `--import MODULE` imports the module that registers it. A net, a family or a density can be saved and
    loaded (see `pynade.store.register`). Can be used as a decorator.

    Args:
        part: the class.
    """
    from pynade.estimators.base import DensityEstimator

    if isinstance(part, type) and issubclass(part, DensityEstimator):
        name = part.__name__.lower()
        if name in MODELS or name in ALIASES:
            raise ValueError(f"{part.__name__} is the name of an estimator of pynade; choose another one")
        _registered[name] = part
        return part
    from pynade import store

    return store.register(part)  # type: ignore[type-var]


def names() -> list[str]:
    """The names of all models, with aliases and registered estimators."""
    return [*MODELS, *ALIASES, *_registered]


def estimator_class(name: str) -> tuple[type[DensityEstimator], dict[str, Any]]:
    """The class of a model name, and the parameters that the name presets.

    Args:
        name: a name or an alias; the ValueError for an unknown one suggests the closest known name.

    Example:
        >>> estimator_class("made-e")[0].__name__, estimator_class("made-e")[1]
        ('MADE', {'n_orderings': 32})
    """
    base, preset = ALIASES.get(name, (name, {}))
    if base in _registered:
        return _registered[base], preset
    if base in MODELS:
        module = import_module(f"pynade.estimators.{MODELS[base].module}")
        return getattr(module, MODELS[base].kind), preset
    raise ValueError(f"unknown model {name!r}{suggest(name, names())}")


def estimator_named(model: str, parameters: dict[str, Any]) -> DensityEstimator:
    """An unfitted estimator; options of training are passed like any other parameter.

    Args:
        model: one of `names()`; the ValueError for an unknown name suggests the closest known one.
        parameters: values by name or older name; the others have their defaults.

    Example:
        >>> estimator_named("nade", {"hidden": 10, "momentum": 0.9}).training
        {'momentum': 0.9}
    """
    kind, preset = estimator_class(model)
    values = preset | {PARAMETERS.get(name, name): value for name, value in parameters.items()}
    known = [f.name for part in (kind, kind._options) if part is not None for f in fields(part) if f.init]
    for name in values:
        if name not in known:
            raise ValueError(f"model {model!r} has no parameter {name!r}{suggest(name, known)}")
    return kind().set_params(**values)


def suggest(name: str, known: list[str]) -> str:
    """The end of an error message about an unknown name: the closest known name, and all known names."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return (f": did you mean {close[0]!r}?" if close else "") + f" (known: {', '.join(known)})"
