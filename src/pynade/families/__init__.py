"""One-dimensional laws: what is said about each variable, given the raw outputs eta of a net."""

from pynade.families.base import Family
from pynade.families.bernoulli import Bernoulli
from pynade.families.location_scale import FixedVarianceGaussian, Gaussian, Laplace
from pynade.families.mixture import MixtureOfGaussians, MixtureOfLaplaces, MixtureOfLogistics
from pynade.families.real import Real
from pynade.families.sinh_arcsinh import SinhArcsinh
from pynade.families.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Family",
    "FixedVarianceGaussian",
    "Gaussian",
    "Laplace",
    "MixtureOfGaussians",
    "MixtureOfLaplaces",
    "MixtureOfLogistics",
    "Real",
    "SinhArcsinh",
    "StudentT",
]
