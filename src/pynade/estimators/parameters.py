"""Descriptions of the estimators' parameters, for docstrings and for the help of the command line.

`documented` adds the texts to the docstring of an estimator. A name may be qualified by a class if the
parameter has another meaning there.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)

DOCS = {
    # all estimators
    "validation_fraction": "share of the rows held out for early stopping and for choosing settings, if no "
    "validation rows are given; 0 trains on all rows.",
    "device": '"auto" takes a GPU if there is one, else the CPU; or a torch device such as "cuda:1".',
    "random_state": "seed of the randomness in training: validation rows, ordering, weights, shuffling.",
    "training": "further options of training as a dictionary or an options object; see `{options}`.",
    # cells
    "binarize": "threshold: values above it become 1, the others 0. None expects exact zeros and ones.",
    "family": "distribution of each conditional: mixtures of Gaussians, Laplaces or logistics (mog, mol, "
    "mologistic), gaussian, fv (Gaussian with one learned sigma per column), laplace, sas (sinh-arcsinh) or "
    "student.",
    "ImageEstimator.family": "distribution of each pixel: bernoulli (zeros and ones), categorical (a "
    "probability for every grey level) or discretised-logistic (a mixture of logistics cut into levels).",
    "ImageEstimator.sigma_floor": "smallest scale of a logistic, where the levels run from -1 to 1.",
    "ImageEstimator.n_components": "components of the mixture of logistics.",
    "standardise": "train on (x - mean) / deviation of each column; densities, conditionals and samples are "
    "still in the units of the data.",
    "sigma_floor": "smallest scale of a distribution, in standardised units (or the data's own). Rounded or "
    "repeated values make the likelihood unbounded without it; 0 allows that.",
    "scale_mean_gradient": "multiply the gradient of each location by its scale (advised with SGD).",
    "image_shape": "(height, width), or (channels, height, width) of rows stored in that order; None takes "
    "rows whose length is a square for square images.",
    "levels": "grey levels, of the families for grey images.",
    "schema": "kinds of columns by name, for columns whose kind is not to be inferred: binary, category, "
    "ordinal, integer, rounded or real, or a dictionary with a kind and the range `low` to `high`.",
    "missing": 'texts that mean "missing"; None takes blank, NA, NaN, null, none and ?.',
    "drop": "names of columns to leave out.",
    # nets
    "TabularNADE.hidden": "hidden units of each residual layer, all of one width; None takes (128, 128) "
    "below 2,000 rows, (256, 256) below 20,000, else (256, 256, 256).",
    "TabularNADE.dropout": "share of hidden activations dropped in training; None takes 0.05 below 2,000 "
    "rows, else 0.",
    "members": "nets whose conditionals are averaged; None takes 5 below 2,000 rows, 3 below 20,000, else 1.",
    "mixture": "below 20,000 rows and up to 64 columns of numbers, average the nets' conditionals with those "
    "of a mixture of Gaussians with levels, by a weight that the validation rows choose (`mixture_weight_`).",
    "time_limit": "approximate limit of the training time in seconds; the epochs are reduced to meet it.",
    "stream_above": "GiB of the encoded table (16 bytes a cell) above which rows in files are read in parts, "
    "and those to train on are drawn from codes on disk; 0 always does so.",
    "TabularNADE.patience": "epochs without a better validation score before stopping; None takes a third of "
    "all epochs, at least 20.",
    "TabularNADE.n_components": "components of the mixture of a column of numbers, of each net.",
    "TabularNADE.n_orderings": "orderings whose densities are averaged in scores and draws; None takes 16 "
    "below 2,000 rows, 4 below 20,000, else 1. May be changed after fitting.",
    "TabularNADE.epochs": "passes over the training rows (of rows that are read in parts: a sixtieth of the "
    "default number of updates each); None takes about 250 √n updates in at most 60 "
    "epochs (more updates with more than ten columns), from 500 to 8,000 below 2,000 rows, 12,000 below "
    "20,000, else 16,000; fewer where they would take more than about five minutes on two cores.",
    "TabularNADE.batch_size": "rows per update; None takes a sixteenth of the rows, from 32 to 128 below "
    "2,000 rows, 256 below 20,000, else 512.",
    "hidden": "hidden units of each layer; a single number is one layer.",
    "NADE.hidden": "hidden units.",
    "RNADE.hidden": "hidden units.",
    "RBM.hidden": "hidden units.",
    "activation": "relu, sigmoid, tanh or (DeepNADE, EoNADE, DeepRNADE, ConvNADE) silu.",
    "n_components": "mixture components of each conditional.",
    "ClassicalEstimator.n_components": "components, or several numbers to choose from by validation rows.",
    "ChowLiu.n_components": "1 is a single tree, K a mixture of K trees; validation chooses from several.",
    "n_orderings": "orderings whose densities are averaged in scores and samples; may change after fitting.",
    "MADE.n_orderings": "1 is a fixed ordering; K trains K orderings (and their masks) together and averages "
    "their probabilities.",
    "ordering": '"random" (drawn by random_state), "natural", or a permutation of 0 … D-1.',
    "dropout": "share of hidden activations dropped in training.",
    "direct": "direct connections from inputs to outputs.",
    "input_observed": "give the net an input that says which variables are observed.",
    "residual": "residual connections between layers of equal width.",
    "layer_norm": "normalise the pre-activations of every layer.",
    "pretrain_epochs": "epochs after each new layer of layer-wise pretraining (the paper: 20); 0 starts the "
    "whole net from random weights.",
    "stratified": "stratify the prefix lengths in each minibatch (less variance, the same expectation).",
    "long_prefixes": "train on long prefixes more often, with importance weights: less variance if columns "
    "depend strongly on each other, the same expectation.",
    "warm_start": "start from the weights and the ordering of the last fit (or of `from_rbm`).",
    "blueprint": 'the convolutions, such as "64@8x8(valid)->1@8x8(full)": MAPS@HxW with valid, same or full '
    "padding, pool@HxW and up@HxW; None takes the paper's for images of at least 22 × 22, five 3 × 3 layers "
    "for smaller ones.",
    "hybrid": "hidden units of a feed-forward net that is added to the convolutional net, such "
    "as (500, 500).",
    "width": "numbers per token; a multiple of `heads`.",
    "ImageNADE.width": "maps at the first level; a multiple of `groups`.",
    "multipliers": "maps at each level as a multiple of `width`; each level halves the image.",
    "blocks": "residual blocks per level.",
    "attention": "levels with self-attention; None is every level but the first.",
    "heads": "attention heads.",
    "groups": "groups of maps that are normalised together.",
    "depth": "blocks of attention and a two-layer net.",
    "mlp_ratio": "hidden units of the two-layer nets as a multiple of `width`.",
    "fixed_order": "causal transformer along one ordering: one pass per score, approximate imputation.",
    "causal": "causal transformer trained on random orderings of rows: one pass per score and ordering.",
    # training
    "epochs": "passes over the training rows at most.",
    "GaussianMixture.epochs": "M-steps at most; None is 200, in minibatches 1000.",
    "learning_rate": "initial step size.",
    "RBM.learning_rate": "step size along the mean gradient of a minibatch, or several to choose from on the "
    "validation rows, which are trained together.",
    "batch_size": "rows per update.",
    "weight_decay": "coefficient of the L2 penalty's gradient (AdamW: of the decoupled weight decay).",
    "patience": "epochs without a better validation score before stopping; None does not stop early.",
    "tol": "stop when the training objective changes by less from one epoch to the next, in nats per row.",
    # classical
    "smoothing": "pseudo-counts of both outcomes, above 0.",
    "alpha": "add-α smoothing, or several to choose from on the validation rows; None chooses from 1e-20, "
    "0.001, 0.01, 0.1 and 1 (without validation rows: 0.1).",
    "n_factors": "factors, from 1 to the number of columns, or several to choose from.",
    "shrinkage": "None is maximum likelihood; a number a from 0 to 1 gives (1 - a) Σ + a (tr Σ / D) I; "
    '"ledoit-wolf" chooses a (complete rows only).',
    "covariance_floor": "added to the diagonal of every covariance.",
    "noise_floor": "smallest noise variance of an M-step.",
    "cd_steps": "rounds of Gibbs sampling per update (the paper: up to 25).",
    "persistent": "persistent chains: start from the last update's states instead of the data.",
    "n_init": "number of random initialisations for each learning rate; the best by validation is kept.",
}


def parameter_text(kind: type, name: str) -> str:
    """The description of a parameter of an estimator; empty if there is none."""
    for base in kind.__mro__:
        if f"{base.__name__}.{name}" in DOCS:
            return DOCS[f"{base.__name__}.{name}"]
    options = getattr(kind, "_options", None)
    return DOCS.get(name, "").replace("{options}", "" if options is None else options.__name__)


def constructor_fields(kind: type) -> list[Field[Any]]:
    """The fields that the constructor of an estimator takes, positional ones first."""
    return sorted((f for f in fields(kind) if f.init), key=lambda f: f.kw_only is True)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def documented(kind: Class) -> Class:
    """Class decorator: makes a dataclass, and adds an `Args` section of all parameters to its docstring."""
    if "__dataclass_params__" not in vars(kind):
        dataclass(eq=False, repr=False)(kind)  # in place
    lines = ["Args:"]
    for parameter in constructor_fields(kind):
        default = "" if parameter.default is MISSING else f" Default: {parameter.default!r}."
        lines.append(f"    {parameter.name}: {parameter_text(kind, parameter.name)}{default}")
    before, example, after = inspect.cleandoc(kind.__doc__ or "").partition("\nExample:")
    text = "\n".join(lines)
    kind.__doc__ = f"{before.rstrip()}\n\n{text}\n{example}{after}"
    return kind
