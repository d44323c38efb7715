"""Checkpoints with the complete state of a training, from which it resumes to the identical result.

A checkpoint is a safetensors file (tensors by name, other facts as JSON in its metadata); loading it executes
no code.
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
CHECKPOINT_SECONDS = 20.0  # between checkpoints, at least


def save_checkpoint(path: Path, tensors: dict[str, Tensors], facts: dict[str, Any]) -> None:
    """Write groups of tensors, and facts as JSON."""
    named = {f"{group}|{name}": t for group, members in tensors.items() for name, t in members.items()}
    write_tensors(path, named, {"checkpoint": json.dumps(facts)})


def load_checkpoint(path: Path) -> State:
    """Read the tensors and facts that `save_checkpoint` wrote."""
    tensors, facts = read_tensors(path, "checkpoint", "checkpoint of pynade (remove it to begin anew)")
    groups: dict[str, Tensors] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition("|")
        groups.setdefault(group, {})[name] = tensor
    return groups, facts


def numbered_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of an estimator's settings in a folder: checkpoint-0.safetensors, …"""
    return [p for p in sorted(folder.iterdir()) if re.fullmatch(r"checkpoint-\d+\.safetensors", p.name)]


class Checkpoint:
    """The checkpoint file of one training.

    With `resume` its state is loaded as `previous` (None without a file), otherwise the file is removed.
    `identity` describes the model and the data; a ValueError if that of the file differs.
    """

    def __init__(self, path: Path, resume: bool = False, identity: dict[str, Any] | None = None) -> None:
        if not resume and is_first():
            path.unlink(missing_ok=True)
        self.path, self._saved, self._cost = path, time.monotonic(), 0.0
        self.identity = json.loads(json.dumps(identity or {}, default=str))
        self.previous: State | None = value_of_first(
            load_checkpoint(path) if is_first() and path.is_file() else None
        )
        if self.previous is not None:
            saved = self.previous[1].get("identity", {})
            different = [n for n in {**saved, **self.identity} if saved.get(n) != self.identity.get(n)]
            if different:
                words = "model" if "model" in different else ", ".join(different)
                raise ValueError(
                    f"{path} belongs to a training with another {words}; remove it to begin anew"
                )

    def due(self, ended: bool = False) -> bool:
        """Whether to write now: enough time has passed, or training has ended; only in the first process."""
        pause = CHECKPOINT_SECONDS * max(1.0, 5.0 * self._cost)  # at most 1 % of the time is spent writing
        return is_first() and (ended or time.monotonic() - self._saved > pause)

    def save(self, tensors: dict[str, Tensors], facts: dict[str, Any]) -> None:
        """Write the state."""
        began = time.monotonic()
        save_checkpoint(self.path, tensors, facts | {"identity": self.identity})
        self._saved = time.monotonic()
        self._cost = self._saved - began
