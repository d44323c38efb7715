"""The base class of the parts of a model (nets, families, densities), and their constructor arguments."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

UNSAVED = ("generator", "kernel")  # not saved: they affect only initial weights and speed


class Part(nn.Module):
    """Base class of nets, families and densities: a torch module that can be saved."""

    def config(self) -> dict[str, Any]:
        """Constructor arguments, as JSON or parts, from which a saved model is built again.

        They are the attributes of the same names, without `generator` and `kernel`.

        Example:
            >>> from pynade.families import Categorical
            >>> Categorical(4).config()
            {'n_levels': 4, 'one_hot': True}
        """
        arguments: dict[str, Any] = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            if name in UNSAVED or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if not hasattr(self, name):
                raise TypeError(
                    f"{type(self).__name__} does not store its constructor argument {name!r} under that "
                    "name, so it needs a `config` method that gives its constructor arguments"
                )
            value = getattr(self, name)
            arguments[name] = list(value) if isinstance(value, tuple | nn.ModuleList) else value
        return arguments


def check_positive(**sizes: int) -> None:
    """Raise a ValueError that names the first size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
