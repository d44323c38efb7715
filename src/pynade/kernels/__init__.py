"""The NADE recurrence. Today one implementation, the torch reference; faster ones keep its signature."""

from pynade.kernels.reference import recurrence

__all__ = ["recurrence"]
