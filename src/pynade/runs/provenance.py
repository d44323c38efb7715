"""The provenance of a result: code, libraries, machine, data, seed."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pynade._version import __version__
from pynade.tables import Dataset

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors")

#: The parts of a provenance that describe the code and the machine.
OF_MACHINE = ("code", "libraries", "python", "device", "threads")


def provenance(data: Dataset, seed: int, device: torch.device) -> dict[str, Any]:
    """Return what is needed to compute a result again, as JSON: seed and device are those of training."""
    return {
        "code": code_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "python": platform.python_version(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "data": {"name": data.name, "checksum": data.checksum, "sizes": data.sizes} | data.provenance,
        "seed": seed,
        "started": now(),
    }


def now() -> str:
    """Return the time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def code_version() -> str:
    """Return the version, a digest of the source, and the commit if the code is in a git repository.

    A "+" marks uncommitted changes. The digest depends on the files only, not on where they are.
    """
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    source = f"source {digest.hexdigest()[:12]}"
    try:
        commit, changed = (
            subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True, timeout=5)
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", root])
        )
    except (OSError, subprocess.SubprocessError):
        return f"{__version__} ({source})"
    return f"{__version__} ({source}, commit {commit.stdout.strip()}{'+' if changed.stdout else ''})"


def device_name(device: torch.device) -> str:
    """Return a name such as "cpu (x86_64)" or "cuda (NVIDIA H200)"."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name})"
