"""Checkpoints: everything a training needs to go on as if it had never stopped.

One safetensors file (tensors by name, the rest as JSON in its metadata), so loading executes nothing.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from pynade.processes import is_first, value_of_first
from pynade.store import read_tensors, write_tensors

Tensors = dict[str, Tensor]
State = tuple[dict[str, Tensors], dict[str, Any]]  # groups of tensors, and facts as JSON
CHECKPOINT_SECONDS = 20.0  # between checkpoints; any of them resumes to the identical result


def save_checkpoint(path: Path, tensors: dict[str, Tensors], facts: dict[str, Any]) -> None:
    """Write groups of tensors and plain facts."""
    named = {f"{group}|{name}": t for group, own in tensors.items() for name, t in own.items()}
    write_tensors(path, named, {"checkpoint": json.dumps(facts)})


def load_checkpoint(path: Path) -> State:
    """Read back what `save_checkpoint` wrote."""
    tensors, facts = read_tensors(path, "checkpoint", "checkpoint of pynade (remove it to begin anew)")
    groups: dict[str, Tensors] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("|")
        groups.setdefault(group, {})[name] = tensor
    return groups, facts


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of an estimator with several settings in a folder: checkpoint-0.safetensors, …"""
    return [p for p in sorted(folder.iterdir()) if re.fullmatch(r"checkpoint-\d+\.safetensors", p.name)]


class Checkpoint:
    """A file with the state of one training: `found` in it at a start with `resume`, else it is removed.

    Its `identity` says what is trained on what; ValueError if the file belongs to another training.
    """

    def __init__(self, path: Path, resume: bool = False, identity: dict[str, Any] | None = None) -> None:
        if not resume and is_first():
            path.unlink(missing_ok=True)
        self.path, self._saved, self._cost = path, time.monotonic(), 0.0
        self.identity = json.loads(json.dumps(identity or {}, default=str))
        saved = load_checkpoint(path) if is_first() and path.is_file() else None
        self.found: State | None = value_of_first(saved)
        known = {} if self.found is None else self.found[1].get("identity", {})
        other = [name for name in {**known, **self.identity} if known.get(name) != self.identity.get(name)]
        if self.found is not None and other:
            words = "model" if "model" in other else ", ".join(other)
            raise ValueError(f"{path} belongs to a training with another {words}; remove it to begin anew")

    def due(self, ended: bool = False) -> bool:
        """Whether it is time to write, or the training has ended; only the first process writes."""
        pause = CHECKPOINT_SECONDS * max(1.0, 5.0 * self._cost)  # a slow one takes 1 % of the time
        if not is_first():
            return False
        return ended or time.monotonic() - self._saved > pause

    def save(self, tensors: dict[str, Tensors], facts: dict[str, Any]) -> None:
        """Write the state."""
        began = time.monotonic()
        save_checkpoint(self.path, tensors, facts | {"identity": self.identity})
        self._saved = time.monotonic()
        self._cost = self._saved - began
