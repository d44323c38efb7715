"""Libraries of frames, imported when first used: names and parameters can be listed without them."""

from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

if TYPE_CHECKING:
    import narwhals as nw
    import pandas
    import polars
    import pyarrow as pa
else:
    nw, pandas, polars, pa = map(LazyModule, ("narwhals", "pandas", "polars", "pyarrow"))
__all__ = ["nw", "pa", "pandas", "polars"]
