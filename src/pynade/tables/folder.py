"""Where data sets are kept."""

from __future__ import annotations

import os
from pathlib import Path

#: The environment variable that says where data sets are kept.
DATA_VARIABLE = "PYNADE_DATA"


def data_directory(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder where data sets are kept; it need not exist yet.

    Args:
        path: The folder, if the caller knows it. Otherwise it is the environment variable ``PYNADE_DATA``,
            and failing that the user's cache folder.

    Example:
        >>> data_directory("somewhere").name
        'somewhere'
    """
    chosen = path or os.environ.get(DATA_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("pynade")
