"""Torch devices by name, and the number of CPU threads."""

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
    """The device of this name; "auto" is a GPU if there is one. A ValueError if it does not exist."""
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
def limit_threads(n: int) -> Iterator[None]:
    """In this block torch uses at most n CPU threads."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(min(n, n_threads))
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def available_device(name: str) -> str:
    """The name of a saved model's device, or "auto" if this machine has no such device."""
    return "auto" if name.startswith("cuda") and not torch.cuda.is_available() else name
