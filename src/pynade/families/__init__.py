"""One-dimensional laws: what is said about each variable, given the raw outputs eta of a net."""

from pynade.families.base import Family
from pynade.families.bernoulli import Bernoulli

__all__ = ["Bernoulli", "Family"]
