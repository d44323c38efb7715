"""Files with a digest of their content, by which changed files are detected and rejected.

A safetensors file (8 bytes with the length of its header, the header in JSON, tensors) has in its metadata
the digest of all its bytes, computed with zeros in place of the digest. A JSON file of a run has the digest
of its other entries. Files of earlier versions have none, which is logged. Torch is not imported.
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

FORMAT = 1  # of the metadata of models; to be raised when older versions would misread new files
BLANK = b"0" * 64  # placeholder of the digest in a safetensors file
_PREFIX = "sha256:"  # of digests in JSON files, which identifies them
CHANGED = "its content has changed since it was written (the digest is another)"


class Damaged(ValueError):
    """The content of a file is not what was written."""


def write_with_digest(path: Path, content: bytes) -> None:
    """Write a safetensors file whose metadata have {"digest": BLANK}, and replace BLANK by the digest."""
    position = content.index(b'"digest":"' + BLANK) + len(b'"digest":"')
    with path.open("wb") as file, ThreadPoolExecutor(1) as executor:
        digest = executor.submit(hashlib.sha256, content)
        file.write(content)
        file.seek(position)
        file.write(digest.result().hexdigest().encode())


def read_entries(path: Path, kind: str, verify: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata of a safetensors file with an entry `kind`, and the header entries of its tensors by name.

    `verify` reads all of the file and compares it with its digest; a ValueError says what is wrong.
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
            computed = hashlib.sha256(size + text.replace(digest.encode(), BLANK))
            buffer = memoryview(bytearray(1 << 22))  # (hashing large buffers lets other threads run)
            while n := stream.readinto(buffer):
                computed.update(buffer[:n])
        if (len(metadata) > 1 and kind in metadata) if digest is None else computed.hexdigest() != digest:
            raise ValueError(CHANGED)
    if digest is None and kind in metadata:
        _log(path)
    return metadata, entries


class Header(NamedTuple):
    """The header of a model file."""

    facts: dict[str, Any]  # format, version, spec and other metadata of the model
    tensors: dict[str, tuple[str, tuple[int, ...]]]  # type (such as "F32") and shape of each tensor, by name
    verified: bool = True  # whether the file has a digest; files of earlier versions have none

    @property
    def n_weights(self) -> int:
        """Number of weights, without standardisation constants, normalising constants and unused biases."""
        fixed = ("log_z", "net.first.bias", "net.second.bias")
        weights = {n: t for n, t in self.tensors.items() if ".bijections." not in n and n not in fixed}
        return sum(math.prod(shape) for kind, shape in weights.values() if "F" in kind)

    @property
    def n_variables(self) -> int | None:
        """Number of variables of the model, or None if it is not in the file."""
        fitted = self.facts.get("estimator", {}).get("fitted", {})
        return fitted.get("n_features_in_") or _count_variables(self.facts["spec"])


def read_header(path: Path, verify: bool = True) -> Header:
    """The header of a model file; a ValueError if it is damaged, no pynade model, or from a newer pynade.

    Args:
        path: the file.
        verify: whether to read all of it and to compare it with its digest.
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
def verify_digest(path: Path) -> Iterator[None]:
    """Compare a model file with its digest in parallel to this block; errors are those of `read_header`.

    If the file is damaged, that error replaces any other of the block.
    """
    with ThreadPoolExecutor(1) as executor:
        result = executor.submit(read_header, path)
        try:
            yield
        finally:
            result.result()


def _count_variables(spec: Any) -> int | None:
    """The number of variables in a spec, taken from its outermost part that has one."""
    if isinstance(spec, list):
        return next((n for n in map(_count_variables, spec) if n), None)
    if not isinstance(spec, dict):
        return None
    if "image_shape" in spec:
        return math.prod(spec["image_shape"]) * int(spec.get("channels", 1))
    count = spec.get("n_variables") or spec.get("n_visible")
    return int(count) if count else _count_variables(list(spec.values()))


def add_digest(facts: dict[str, Any]) -> dict[str, Any]:
    """The entries of a JSON file, with their digest as the last one."""
    text = json.dumps(json.loads(json.dumps(facts)), sort_keys=True)  # with keys as in the file
    return facts | {"digest": _PREFIX + hashlib.sha256(text.encode()).hexdigest()}


def read_json(path: Path, **expected: type) -> dict[str, Any]:
    """The entries of a JSON file of a run without their digest, with which they are compared.

    Args:
        path: the file.
        **expected: names of required entries, and the types of their values.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError(f"expected an object of JSON, not {type(facts).__name__}")
        digest = facts.pop("digest", None)
        if digest is None and not any(str(value).startswith(_PREFIX) for value in facts.values()):
            _log(path)
        elif add_digest(facts)["digest"] != digest:
            raise ValueError(CHANGED)
        for name, kind in expected.items():
            if name not in facts or not isinstance(facts[name], kind):
                raise ValueError(f"expected {name} ({kind.__name__}) in it")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from None
    return facts


def _log(path: Path) -> None:
    logging.getLogger("pynade").info("%s has no digest (written by an earlier version): not verified", path)
