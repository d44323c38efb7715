"""The header of a saved model: its JSON metadata and the shapes of its tensors, read without torch.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header, in JSON.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from pynade._version import __version__
from pynade.digest import Damaged, read_entries

FORMAT = 1  # of the metadata; raise it when an old reader would misunderstand a new file

#: Numbers of a model that are no weights: of standardised columns, a normalising constant, unused biases.
_CONSTANT = ("log_z", "net.first.bias", "net.second.bias")


class Header(NamedTuple):
    """The header of a model file."""

    facts: dict[str, Any]  # format, version, spec and whatever the model was saved with
    tensors: dict[str, tuple[str, tuple[int, ...]]]  # the type (such as "F32") and shape of each, by name
    verified: bool = True  # whether the file has a digest, which files of earlier versions have not

    @property
    def n_weights(self) -> int:
        """Number of weights of the model."""
        kept = {n: t for n, t in self.tensors.items() if ".bijections." not in n and n not in _CONSTANT}
        return sum(math.prod(shape) for kind, shape in kept.values() if "F" in kind)

    @property
    def n_variables(self) -> int | None:
        """Number of variables of the model, or None if the file does not say it."""
        fitted = self.facts.get("estimator", {}).get("fitted", {})
        return fitted.get("n_features_in_") or _variables(self.facts["spec"])


def read_header(path: Path) -> Header:
    """The header of a model file; a ValueError if it is damaged, no pynade model, or of a newer pynade.

    The whole file is compared with its digest.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file at {path}")
    try:
        metadata, entries = read_entries(path, "pynade")
        tensors = {name: (item["dtype"], tuple(map(int, item["shape"]))) for name, item in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, OverflowError) as error:
        raise Damaged(f"{path} is damaged or no model file: {error}") from None
    if "pynade" not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not one that pynade wrote")
    try:
        facts = json.loads(metadata["pynade"])
        number, _ = int(facts["format"]), facts["spec"]
        facts.setdefault("version", "unknown")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(f"the metadata of {path} is damaged: {error}") from None
    if number > FORMAT:
        raise ValueError(
            f"{path} has format {number}, written by pynade {facts['version']}; this is pynade "
            f"{__version__}, which reads up to format {FORMAT}: update pynade to load it"
        )
    return Header(facts, tensors, "digest" in metadata)


def _variables(spec: Any) -> int | None:
    """The number of variables that the parts of a spec name, the outermost first."""
    if isinstance(spec, list):
        return next((n for n in map(_variables, spec) if n), None)
    if not isinstance(spec, dict):
        return None
    if "image_shape" in spec:
        return math.prod(spec["image_shape"]) * int(spec.get("channels", 1))
    own = spec.get("n_variables") or spec.get("n_visible")
    return int(own) if own else _variables(list(spec.values()))
