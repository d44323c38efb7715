"""Digests of the content of files: a file that has changed since it was written is refused, not believed.

A safetensors file has the digest of all its bytes in its metadata (where the digest itself counts as zeros),
a JSON file of a run that of its other entries. Files of earlier versions have none: the log says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

BLANK = b"0" * 64  # what stands in a safetensors file where its digest is put
_PREFIX = "sha256:"  # of digests in JSON files, so that one is known by itself
_CHANGED = "its content has changed since it was written (the digest is another)"


class Damaged(ValueError):
    """A file does not hold what was written to it."""


def seal(content: bytearray) -> None:
    """Put the digest into a safetensors file that was made with the metadata {"digest": BLANK}."""
    place = content.index(b'"digest":"' + BLANK) + len(b'"digest":"')
    content[place : place + len(BLANK)] = hashlib.sha256(content).hexdigest().encode()


def read_entries(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of a safetensors file whose metadata have an entry `kind`: metadata, and tensors by name.

    All of the file is read and compared with its digest; a ValueError says what is wrong with it.
    """
    with path.open("rb") as stream:
        size = stream.read(8)
        length = int.from_bytes(size, "little")
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        text = stream.read(length)
        entries = json.loads(text)
        metadata = entries.pop("__metadata__", {})
        digest = metadata.get("digest")
        if digest is not None:
            found = hashlib.sha256(size + text.replace(digest.encode(), BLANK))
            hashlib.file_digest(stream, lambda: found)
        if (len(metadata) > 1 and kind in metadata) if digest is None else found.hexdigest() != digest:
            raise ValueError(_CHANGED)
    if digest is None and kind in metadata:
        _log(path)
    return metadata, entries


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
