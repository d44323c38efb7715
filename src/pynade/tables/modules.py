"""Libraries of frames, imported when first used: names and parameters can be listed without them."""

from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

__all__ = ["narwhals", "pandas", "polars", "pyarrow"]

if TYPE_CHECKING:
    import narwhals
    import pandas
    import polars
    import pyarrow
else:
    globals().update({name: LazyModule(name) for name in __all__})
