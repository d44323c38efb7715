"""Families of one-dimensional distributions, with parameters eta that a net computes."""

from pynade.families.base import Conditional, Family
from pynade.families.discrete import Bernoulli, Categorical
from pynade.families.mixture import (
    DiscretisedLogistic,
    MixtureOfGaussians,
    MixtureOfLaplaces,
    MixtureOfLogistics,
)
from pynade.families.per_column import PerColumn
from pynade.families.real import FixedVarianceGaussian, Gaussian, Laplace, Real, SinhArcsinh, StudentT
from pynade.families.transform import Affine, Bijection, Log, Logit, Transformed, standardised

__all__ = ["Affine", "Bernoulli", "Bijection", "Categorical", "Conditional", "DiscretisedLogistic", "Family"]
__all__ += ["FixedVarianceGaussian", "Gaussian", "Laplace", "Log", "Logit", "MixtureOfGaussians"]
__all__ += ["MixtureOfLaplaces", "MixtureOfLogistics", "PerColumn", "Real", "SinhArcsinh", "StudentT"]
__all__ += ["Transformed", "standardised"]
