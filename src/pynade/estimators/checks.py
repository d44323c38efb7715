"""Checked parameters of classical models: numbers in their range, and settings to choose from."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

Setting = dict[str, Any]


def choices(name: str, value: Any) -> list[Any]:
    """The values of a parameter that may be one value or a sequence to choose from.

    Example:
        >>> choices("n_components", 4), choices("n_components", (2, 4, 2))
        ([4], [2, 4])
    """
    many = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    values = list(dict.fromkeys(value)) if many else [value]
    if not values:
        raise ValueError(f"{name} is an empty sequence; give at least one value")
    return values


def needs_validation(settings: list[Setting], validated: bool) -> list[Setting]:
    """The settings; a ValueError if there are several and no validation rows to choose by."""
    if len(settings) > 1 and not validated:
        names = " and ".join(name for name in settings[0] if len({s[name] for s in settings}) > 1)
        raise ValueError(
            f"{names} can only be chosen on validation rows: give X_valid, a validation_fraction that leaves "
            f"at least two rows, or a single value"
        )
    return settings


def whole(name: str, value: Any, least: int = 1, most: int | None = None, why: str = "") -> int:
    """A whole number in its range, or one sentence."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}{why}, not {number}")
    return number


def positive(name: str, value: Any, zero: bool = False) -> float:
    """A finite number above zero (or zero where that is allowed), or one sentence."""
    number = float(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{name} must be {'at least' if zero else 'above'} 0, not {value}")
    return number


def check_em(epochs: Any, patience: Any, tol: Any) -> None:
    """The parameters that every EM has."""
    whole("epochs", epochs, 0)
    if patience is not None:
        whole("patience", patience)
    positive("tol", tol, zero=True)


def n_components(value: int | Sequence[int], n_rows: int | None = None) -> list[int]:
    """The numbers of components to choose from; each component needs a row to start from."""
    why = ", the number of training rows"
    return [whole("n_components", k, 1, n_rows, why) for k in choices("n_components", value)]
