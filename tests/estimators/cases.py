"""One list of small estimators, one for every model and preset, and small tables for them."""

import itertools
from functools import partial

import numpy as np

from pynade.estimators import estimator_named

NET = {"epochs": 3, "random_state": 0}
TRANSFORMER = NET | {"width": 8, "depth": 1, "heads": 2}
REAL_TRANSFORMER = TRANSFORMER | {"n_components": 2}
CONV = NET | {"blueprint": "2@2x2(valid)->2@2x2(full)->1@1x1(same)", "image_shape": (2, 2)}
UNET = {"width": 8, "multipliers": (1, 2), "blocks": 1, "groups": 4, "heads": 2, "warm_up": 5, "ema": None}

#: Name of the model: its kind of data, and parameters that make it small.
_SMALL = {
    "nade": ("binary", NET | {"hidden": 8}),
    "made": ("binary", NET | {"hidden": 8}),
    "made-e": ("binary", NET | {"hidden": (6, 5), "direct": True, "n_orderings": 3}),
    "fvsbn": ("binary", NET),
    "deepnade": ("binary", NET | {"hidden": (8, 8)}),
    "eonade": ("binary", NET | {"hidden": 8, "n_orderings": 3}),
    "binarytransformernade": ("binary", TRANSFORMER),
    "bernoullimixture": ("binary", {"n_components": (2, 3), "epochs": 8, "random_state": 0}),
    "chowliu": ("binary", {"random_state": 0}),
    "rbm": ("binary", {"hidden": 3, "epochs": 6, "evaluate_every": 2, "random_state": 0}),
    "rnade": ("real", NET | {"hidden": 8, "n_components": 2}),
    "deeprnade": ("real", NET | {"hidden": (8, 8), "n_components": 2, "n_orderings": 2}),
    "transformernade": ("real", REAL_TRANSFORMER),
    "causal-transformer": ("real", REAL_TRANSFORMER),
    "permuted-transformer": ("real", REAL_TRANSFORMER | {"n_orderings": 2}),
    "gaussian": ("real", {"random_state": 0}),
    "gaussianmixture": ("real", {"n_components": (1, 3), "epochs": 8, "random_state": 0}),
    "mfa": ("real", {"n_components": (1, 2), "n_factors": (1, 2), "epochs": 8, "random_state": 0}),
    "tabularnade": ("real", NET | {"hidden": 8, "n_components": 2, "n_orderings": 2}),
    "convnade": ("image", CONV),
    "hybrid": ("image", CONV | {"hybrid": (6,)}),
    "imagenade": ("image", NET | UNET | {"image_shape": (2, 2)}),
}


def make(name, **more):
    """A small estimator; `more` are further parameters."""
    return estimator_named(name, _SMALL[name][1] | more)


#: Name of the model: a function that makes a small estimator, and the kind of its data.
ESTIMATORS = {name: (partial(make, name), kind) for name, (kind, _) in _SMALL.items()}

#: Models with a fixed ordering, or several: they answer what the ordering allows.
FIXED = ("nade", "made", "made-e", "fvsbn", "rnade", "causal-transformer", "permuted-transformer")
#: Models that are not fitted to rows with missing cells.
COMPLETE_ROWS = (*FIXED, "chowliu", "rbm")


def binary(n=160, D=5, seed=0):
    """Zeros and ones: noisy copies of one column."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 2, (n, 1))
    return np.where(rng.random((n, D)) < 0.85, base, 1 - base)


def real(n=160, seed=0):
    """Three dependent columns of very different scales."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1)) * rng.choice([0.3, 2.0], (n, 1))
    wide = np.hstack([x, x**2, rng.normal(size=(n, 1)) - 2 * x]) + 0.3 * rng.normal(size=(n, 3))
    return wide * [10, 1e-4, 1] + [50, 0, -3]


def rows(kind, n=160, seed=0):
    """A table for a kind of data; images have 2 × 2 pixels."""
    return real(n, seed) if kind == "real" else binary(n, 4 if kind == "image" else 5, seed)


def gaps(X, share=0.25, seed=1):
    """The table with missing cells (NaN), at most all but one in a row."""
    holes = np.random.default_rng(seed).random(X.shape) < share
    holes[holes.all(1), 0] = False
    return np.where(holes, np.nan, X)


def states(D):
    """All rows of D zeros and ones."""
    return np.array(list(itertools.product([0, 1], repeat=D)))
