"""Checkpoints: everything a training run needs to go on as if it had never stopped.

One safetensors file (tensors by name, the rest as JSON in its metadata), so loading executes nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from pynade.atomic import write_atomically

Tensors = dict[str, Tensor]
State = tuple[dict[str, Tensors], dict[str, Any]]  # groups of tensors, and facts as JSON
NUMBERED = re.compile(r"checkpoint-\d+\.safetensors")
CHECKPOINT_SECONDS = 20.0  # between checkpoints; any of them resumes to the identical result


def save_checkpoint(path: Path, tensors: dict[str, Tensors], facts: dict[str, Any]) -> None:
    """Write groups of tensors and plain facts."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    flat = {
        f"{group}|{name}": t.detach().cpu().contiguous()
        for group, ts in tensors.items()
        for name, t in ts.items()
    }
    metadata = {"checkpoint": json.dumps(facts)}
    try:
        write_atomically(path, lambda p: save_file(flat, p, metadata))
    except SafetensorError as error:  # a full disk, for example
        raise OSError(f"{path} cannot be written: {error}") from error


def load_checkpoint(path: Path) -> State:
    """Read back what `save_checkpoint` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as f:
            facts = json.loads((f.metadata() or {})["checkpoint"])
            groups: dict[str, Tensors] = {}
            for key in f.keys():  # noqa: SIM118 (safe_open is no mapping)
                group, name = key.split("|", 1)
                groups.setdefault(group, {})[name] = f.get_tensor(key)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no checkpoint at {path}") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or no checkpoint of pynade (remove it to begin anew): {error}"
        ) from None
    return groups, facts


def checkpoints_in(folder: Path) -> list[Path]:
    """A baseline's checkpoints in a folder, one for each setting: checkpoint-0.safetensors, …"""
    return [path for path in sorted(folder.iterdir()) if NUMBERED.fullmatch(path.name)]


class Keeper:
    """Keeps the state of one learning in a file, now and then and when it has ended, and gives it back.

    Args:
        path: the file.
        resume: go on from it if it is there; otherwise it is removed.
        learning: what is learned from what, as JSON: a file of another learning is refused.

    Attributes:
        found: what was kept, tensors and facts; None at a beginning.
        notes: whatever else is to be kept, as JSON.
        before: seconds of learning in earlier sessions.

    Raises:
        ValueError: the file is damaged, or of another learning.
    """

    def __init__(self, path: Path, resume: bool, learning: dict[str, Any] | None = None) -> None:
        if not resume:
            path.unlink(missing_ok=True)
        self.path, self.learning = path, json.loads(json.dumps(learning or {}, default=str))
        self.found = load_checkpoint(path) if path.is_file() else None
        facts = {} if self.found is None else self.found[1]
        known = facts.get("learning", {})
        other = [name for name in {**known, **self.learning} if known.get(name) != self.learning.get(name)]
        if self.found is not None and other:
            words = "model" if "model" in other else ", ".join(other)
            raise ValueError(f"{path} was kept by a learning with another {words}; remove it to begin anew")
        self.notes: dict[str, Any] = facts.get("notes", {})
        self.before: float = facts.get("spent", 0.0)
        self._began = self._saved = time.monotonic()

    def keep(self, state: Callable[[], State], ended: bool = False) -> None:
        """Write the state if it is time or the learning has ended."""
        if ended or time.monotonic() - self._saved > CHECKPOINT_SECONDS:
            tensors, facts = state()
            spent = self.before + time.monotonic() - self._began
            own = {"learning": self.learning, "notes": self.notes, "spent": spent}
            save_checkpoint(self.path, tensors, facts | own)
            self._saved = time.monotonic()
