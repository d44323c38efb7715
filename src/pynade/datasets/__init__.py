"""Tables that come with pynade, for examples; they need no network."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

__all__ = ["path", "penguins"]


def penguins(frame: Literal["pandas", "polars"] | None = None) -> Any:
    """The Palmer penguins: 344 birds of three species, 8 columns, 19 missing cells.

    The columns are species, island, bill_length_mm, bill_depth_mm, flipper_length_mm, body_mass_g, sex and
    year (2007 to 2009). Source: Horst, Hill and Gorman (2020), palmerpenguins, doi:10.5281/zenodo.3960218.
    Licence: CC0 1.0 (public domain).

    Args:
        frame: "pandas" or "polars"; None gives a pandas frame if pandas is installed, else a polars frame.

    Example:
        >>> table = penguins("polars")
        >>> table.shape, sum(column.null_count() for column in table)
        ((344, 8), 19)
    """
    frame = frame or ("pandas" if find_spec("pandas") else "polars")
    if frame not in ("pandas", "polars"):
        raise ValueError(f"frame is 'pandas' or 'polars', not {frame!r}")
    return import_module(frame).read_csv(path("penguins"))


def path(name: str = "penguins") -> Path:
    """The CSV file of a table that comes with pynade, for the command line or another tool.

    Args:
        name: of the table; there is one.

    Example:
        >>> path("penguins").name
        'penguins.csv'
    """
    if name != "penguins":
        raise ValueError(f"there is no table {name!r} in pynade.datasets; there is: penguins")
    return Path(__file__).with_name(f"{name}.csv")
