"""Checkpoints: everything a training run needs to go on as if it had never stopped.

One safetensors file (tensors by name, the rest as JSON in its metadata), so loading executes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from pynade.atomic import write_atomically

Tensors = dict[str, Tensor]


def save_checkpoint(path: Path, tensors: dict[str, Tensors], facts: dict[str, Any]) -> None:
    """Write groups of tensors and plain facts."""
    from safetensors.torch import save_file

    flat = {
        f"{group}|{name}": t.detach().cpu().contiguous()
        for group, ts in tensors.items()
        for name, t in ts.items()
    }
    metadata = {"checkpoint": json.dumps(facts)}
    write_atomically(path, lambda p: save_file(flat, p, metadata))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensors], dict[str, Any]]:
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
        raise ValueError(f"{path} is damaged or no checkpoint of pynade: {error}") from None
    return groups, facts
