"""Files with a digest of their content: one that has changed since it was written is refused, not believed.

A safetensors file (8 bytes with the length of its header, the header in JSON, tensors) has the digest of all
its bytes in its metadata, where the digest itself counts as zeros; a JSON file of a run that of its other
entries. Files of earlier versions have none: the log says so. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pynade._version import __version__

FORMAT = 1  # of the metadata of models; raise it when an old reader would misunderstand a new file
BLANK = b"0" * 64  # what stands in a safetensors file where its digest is put
_PREFIX = "sha256:"  # of digests in JSON files, so that one is known by itself
_CHANGED = "its content has changed since it was written (the digest is another)"


class Damaged(ValueError):
    """A file does not hold what was written to it."""


def write_sealed(path: Path, content: bytes) -> None:
    """Write a safetensors file that was made with the metadata {"digest": BLANK}, and its digest into it."""
    place = content.index(b'"digest":"' + BLANK) + len(b'"digest":"')
    with path.open("wb") as file, ThreadPoolExecutor(1) as beside:
        digest = beside.submit(hashlib.sha256, content)
        file.write(content)
        file.seek(place)
        file.write(digest.result().hexdigest().encode())


def read_entries(path: Path, kind: str, verify: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of a safetensors file whose metadata have an entry `kind`: metadata, and tensors by name.

    With `verify` all of the file is read and compared with its digest. A ValueError says what is wrong.
    """
    with path.open("rb") as stream:
        size = stream.read(8)
        length = int.from_bytes(size, "little")
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        text = stream.read(length)
        entries = json.loads(text)
        metadata = entries.pop("__metadata__", {})
        if not verify:
            return metadata, entries
        digest = metadata.get("digest")
        if digest is not None:
            found = hashlib.sha256(size + text.replace(digest.encode(), BLANK))
            part = memoryview(bytearray(1 << 22))  # (large parts: other threads run while one is hashed)
            while n := stream.readinto(part):
                found.update(part[:n])
        if (len(metadata) > 1 and kind in metadata) if digest is None else found.hexdigest() != digest:
            raise ValueError(_CHANGED)
    if digest is None and kind in metadata:
        _log(path)
    return metadata, entries


class Header(NamedTuple):
    """The header of a model file."""

    facts: dict[str, Any]  # format, version, spec and whatever the model was saved with
    tensors: dict[str, tuple[str, tuple[int, ...]]]  # the type (such as "F32") and shape of each, by name
    verified: bool = True  # whether the file has a digest, which files of earlier versions have not

    @property
    def n_weights(self) -> int:
        """Number of weights: not those of standardised columns, a normalising constant, unused biases."""
        fixed = ("log_z", "net.first.bias", "net.second.bias")
        kept = {n: t for n, t in self.tensors.items() if ".bijections." not in n and n not in fixed}
        return sum(math.prod(shape) for kind, shape in kept.values() if "F" in kind)

    @property
    def n_variables(self) -> int | None:
        """Number of variables of the model, or None if the file does not say it."""
        fitted = self.facts.get("estimator", {}).get("fitted", {})
        return fitted.get("n_features_in_") or _variables(self.facts["spec"])


def read_header(path: Path, verify: bool = True) -> Header:
    """The header of a model file; a ValueError if it is damaged, no pynade model, or of a newer pynade.

    Args:
        path: the file.
        verify: read all of it, and compare it with its digest.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file at {path}")
    try:
        metadata, entries = read_entries(path, "pynade", verify)
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


@contextmanager
def verifying(path: Path) -> Iterator[None]:
    """Compare a model file with its digest while this block uses the file; errors are those of `read_header`.

    A damaged file is called damaged, whatever else it led to in the block.
    """
    with ThreadPoolExecutor(1) as beside:
        verified = beside.submit(read_header, path)
        try:
            yield
        finally:
            verified.result()


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


def sealed(facts: dict[str, Any]) -> dict[str, Any]:
    """The entries of a JSON file, and their digest as the last."""
    text = json.dumps(json.loads(json.dumps(facts)), sort_keys=True)  # keys as they are read
    return facts | {"digest": _PREFIX + hashlib.sha256(text.encode()).hexdigest()}


def read_json(path: Path, **wanted: type) -> dict[str, Any]:
    """The entries of a JSON file of a run, compared with their digest, which is left out.

    Args:
        path: the file.
        **wanted: names that must be in it, and the types of their values.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError(f"expected an object of JSON, not {type(facts).__name__}")
        given = facts.pop("digest", None)
        if given is None and not any(str(value).startswith(_PREFIX) for value in facts.values()):
            _log(path)
        elif sealed(facts)["digest"] != given:
            raise ValueError(_CHANGED)
        for name, kind in wanted.items():
            if name not in facts or not isinstance(facts[name], kind):
                raise ValueError(f"expected {name} ({kind.__name__}) in it")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from None
    return facts


def _log(path: Path) -> None:
    logging.getLogger("pynade").info("%s has no digest (written by an earlier version): not verified", path)
