"""Constructor arguments of the parts of a model: checked, and read back for saving."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

UNSAVED = ("generator", "kernel")  # they decide initial weights and speed, so a saved model needs neither


def constructor_arguments(part: nn.Module) -> dict[str, Any]:
    """The constructor arguments of a net, family or density, read from its attributes of the same names.

    Args:
        part: a module that stores every constructor argument, but `generator` and `kernel`, under its name.

    Example:
        >>> from pynade.families import Categorical
        >>> constructor_arguments(Categorical(4))
        {'n_levels': 4, 'one_hot': True}
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(part)).parameters.items():
        if name in UNSAVED or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if not hasattr(part, name):
            raise TypeError(
                f"{type(part).__name__} does not store its constructor argument {name!r} under that name, "
                "so it needs a `config` method that gives its constructor arguments"
            )
        value = getattr(part, name)
        found[name] = list(value) if isinstance(value, tuple | nn.ModuleList) else value
    return found


def check_positive(**sizes: int) -> None:
    """Raise a ValueError that names the first size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
