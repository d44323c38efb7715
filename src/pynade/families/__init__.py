"""Families of one-dimensional distributions, with parameters eta that a net computes."""

from pynade.families.base import Conditional, Family
from pynade.families.discrete import Bernoulli, Categorical
from pynade.families.location_scale import FixedVarianceGaussian, Gaussian, Laplace, SinhArcsinh, StudentT
from pynade.families.mixture import (
    DiscretisedLogistic,
    MixtureOfGaussians,
    MixtureOfLaplaces,
    MixtureOfLogistics,
)
from pynade.families.per_column import PerColumn
from pynade.families.real import Real
from pynade.families.transform import Affine, Bijection, Log, Logit, Transformed, standardised

__all__ = [
    "Affine",
    "Bernoulli",
    "Bijection",
    "Categorical",
    "Conditional",
    "DiscretisedLogistic",
    "Family",
    "FixedVarianceGaussian",
    "Gaussian",
    "Laplace",
    "Log",
    "Logit",
    "MixtureOfGaussians",
    "MixtureOfLaplaces",
    "MixtureOfLogistics",
    "PerColumn",
    "Real",
    "SinhArcsinh",
    "StudentT",
    "Transformed",
    "standardised",
]
