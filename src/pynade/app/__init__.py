"""The explorer: a web page and JSON endpoints that answer questions about one fitted model."""

from typing import TYPE_CHECKING

from pynade._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from pynade.app.limits import Limits
    from pynade.app.server import create

__all__ = ["Limits", "create"]

__getattr__, __dir__ = _lazy_names(__name__, {"create": f"{__name__}.server", "Limits": f"{__name__}.limits"})
