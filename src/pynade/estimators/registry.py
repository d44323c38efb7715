"""Estimators by name: those of pynade, those a user registers, and what saved files call them.

The name of a model is its class name in lower case; the shorter names and presets of the command line are
aliases. A parameter has one name everywhere; older names are understood.
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
    """A model that users can name.

    Attributes:
        place: module and class, joined by a colon.
        data: what it is for, in words.
        text: one line about it.
    """

    place: str
    data: str
    text: str


MODELS = {
    "tabularnade": Entry(
        "tabular:TabularNADE", "mixed, with gaps", "residual net for every ordering of mixed columns"
    ),
    "nade": Entry("fixed_order:NADE", "binary", "one hidden layer, a fixed ordering"),
    "made": Entry("fixed_order:MADE", "binary", "masked autoencoder"),
    "fvsbn": Entry("fixed_order:FVSBN", "binary", "one logistic regression per variable"),
    "deepnade": Entry("orderless:DeepNADE", "binary, with gaps", "deep net for every ordering"),
    "eonade": Entry("orderless:EoNADE", "binary, with gaps", "the same, several orderings averaged"),
    "binarytransformernade": Entry("orderless:BinaryTransformerNADE", "binary, with gaps", "transformer"),
    "bernoullimixture": Entry("mixtures:BernoulliMixture", "binary, with gaps", "mixture of Bernoullis"),
    "chowliu": Entry("mixtures:ChowLiu", "binary", "Chow-Liu tree, or a mixture of trees"),
    "rbm": Entry("rbm:RBM", "binary", "restricted Boltzmann machine"),
    "rnade": Entry("fixed_order:RNADE", "real", "one hidden layer, mixtures as conditionals"),
    "deeprnade": Entry("orderless:DeepRNADE", "real, with gaps", "deep net for every ordering"),
    "transformernade": Entry("orderless:TransformerNADE", "real, with gaps", "transformer"),
    "gaussian": Entry("mixtures:Gaussian", "real, with gaps", "one Gaussian"),
    "gaussianmixture": Entry("mixtures:GaussianMixture", "real, with gaps", "mixture of Gaussians"),
    "mfa": Entry("mixtures:MFA", "real, with gaps", "mixture of factor analysers"),
    "convnade": Entry("images:ConvNADE", "images", "convolutional net for every ordering"),
    "imagenade": Entry("images:ImageNADE", "images", "U-Net for every ordering"),
}

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
PARAMETERS = {
    "iterations": "epochs",
    "tolerance": "tol",
    "n_hidden": "hidden",
    "components": "n_components",
    "orderings": "n_orderings",
    "factors": "n_factors",
    "seed": "random_state",
}

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
        name: a name or an alias.

    Raises:
        ValueError: there is no such model; the sentence has the nearest known name.

    Example:
        >>> estimator_class("made-e")[0].__name__, estimator_class("made-e")[1]
        ('MADE', {'n_orderings': 32})
    """
    base, preset = ALIASES.get(name, (name, {}))
    if base in _registered:
        return _registered[base], preset
    if base in MODELS:
        module, _, kind = MODELS[base].place.partition(":")
        found: type[DensityEstimator] = getattr(import_module(f"pynade.estimators.{module}"), kind)
        return found, preset
    raise ValueError(f"unknown model {name!r}{nearest(name, names())}")


def class_named(name: str) -> type[DensityEstimator]:
    """The class that a saved file names, such as "NADE"."""
    known = {entry.place.partition(":")[2]: key for key, entry in MODELS.items()}
    return estimator_class(known.get(name, name.lower()))[0]


def estimator_named(model: str, parameters: dict[str, Any]) -> DensityEstimator:
    """An unfitted estimator; options of training may be given like any other parameter.

    Args:
        model: a name of `names`.
        parameters: by name, older names too; what is not given takes its default.

    Raises:
        ValueError: an unknown model or parameter; the sentence has the nearest known name.

    Example:
        >>> estimator_named("nade", {"hidden": 10, "momentum": 0.9}).training
        {'momentum': 0.9}
    """
    kind, preset = estimator_class(model)
    return make(kind, preset | {PARAMETERS.get(k, k): v for k, v in parameters.items()}, model)


def make(kind: type[DensityEstimator], parameters: dict[str, Any], model: str = "") -> DensityEstimator:
    """An estimator from flat parameters."""
    known = [f.name for f in fields(kind) if f.init]
    options = [] if kind._options is None else [f.name for f in fields(kind._options)]
    chosen: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in known:
            chosen[name] = value
        elif name in options:
            training[name] = value
        else:
            close = nearest(name, [*known, *options])
            raise ValueError(f"model {model or kind.__name__!r} has no parameter {name!r}{close}")
    if training:
        chosen["training"] = training
    return kind(**chosen)


def nearest(name: str, known: list[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, and all of them."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return (f": did you mean {close[0]!r}?" if close else "") + f" (known: {', '.join(known)})"
