"""Estimators by name: those of pynade, those a user registers, and what saved files call them.

The name of a model is its class name in lower case; shorter names, presets and older names are aliases.
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
    """A model that users can name."""

    module: str  # in `pynade.estimators`
    kind: str  # the class
    data: str  # what it is for, in words


_KINDS = {  # classes by module and by what they are for
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
MODELS = {kind.lower(): Entry(at, kind, data) for (at, data), some in _KINDS.items() for kind in some}

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
    """Make a class of your own known to pynade: an estimator, a net, a family or a density.

    An estimator can then be named on the command line (`pynade --import MODULE fit …` imports the module that
    registers it) and in sweeps, and loaded; a net, a family or a density can be saved and loaded (see
    `pynade.store.register`). Usable as a decorator.

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
    """All names of models."""
    return [*MODELS, *ALIASES, *_registered]


def estimator_class(name: str) -> tuple[type[DensityEstimator], dict[str, Any]]:
    """The class of a name, and the parameters that the name sets.

    Args:
        name: a name or an alias; a ValueError about any other has the nearest known name.

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
    raise ValueError(f"unknown model {name!r}{nearest(name, names())}")


def estimator_named(model: str, parameters: dict[str, Any]) -> DensityEstimator:
    """An unfitted estimator; options of training may be given like any other parameter.

    Args:
        model: a name of `names`; a ValueError about any other has the nearest known name.
        parameters: by name (likewise), older names too; what is not given takes its default.

    Example:
        >>> estimator_named("nade", {"hidden": 10, "momentum": 0.9}).training
        {'momentum': 0.9}
    """
    kind, preset = estimator_class(model)
    given = preset | {PARAMETERS.get(name, name): value for name, value in parameters.items()}
    known = [f.name for part in (kind, kind._options) if part is not None for f in fields(part) if f.init]
    for name in given:
        if name not in known:
            raise ValueError(f"model {model!r} has no parameter {name!r}{nearest(name, known)}")
    return kind().set_params(**given)


def nearest(name: str, known: list[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, and all of them."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return (f": did you mean {close[0]!r}?" if close else "") + f" (known: {', '.join(known)})"
