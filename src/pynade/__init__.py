"""pynade: exact, tractable probability models for tables and images."""

from pynade._version import __version__

__all__ = ["__version__"]
