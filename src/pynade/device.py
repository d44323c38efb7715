"""Devices by name, and threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pynade._lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")


def torch_device(name: str) -> torch.device:
    """The device of this name, or a ValueError; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"unknown device {name!r}: use 'auto', 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU here")
    return device


@contextmanager
def at_most_threads(n: int) -> Iterator[None]:
    """Compute with at most n threads of the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(n, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_here(name: str) -> str:
    """The device of a model made elsewhere: as it was, or "auto" where this machine has no such device."""
    return "auto" if name.startswith("cuda") and not torch.cuda.is_available() else name
