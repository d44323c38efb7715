"""Families of one-dimensional distributions, with parameters eta that a net computes."""

from pynade.families.base import Family
from pynade.families.bernoulli import Bernoulli
from pynade.families.bijections import Affine, Bijection, Log, Logit
from pynade.families.categorical import Categorical
from pynade.families.discretised_logistic import DiscretisedLogistic
from pynade.families.location_scale import FixedVarianceGaussian, Gaussian, Laplace
from pynade.families.mixture import MixtureOfGaussians, MixtureOfLaplaces, MixtureOfLogistics
from pynade.families.real import Real
from pynade.families.sinh_arcsinh import SinhArcsinh
from pynade.families.student_t import StudentT
from pynade.families.transform import Transformed, standardised

__all__ = [
    "Affine",
    "Bernoulli",
    "Bijection",
    "Categorical",
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
    "Real",
    "SinhArcsinh",
    "StudentT",
    "Transformed",
    "standardised",
]
