"""Interfaces of other libraries that are not public, and may go: without them results stay, time is lost.

| interface | seen to work with | what it gives | without it |
| --- | --- | --- | --- |
| `GOMP_parallel` of the libgomp in torch | torch 2.13, Linux | torch's threads | a thread pool |
| `_nrt` of `numba.njit` | numba 0.68 | no reference counts in inner loops | with them |
| `torch._C._are_functorch_transforms_active` | torch 2.13 | is `vmap` or `grad` active? | assumed |
| `torch.autograd.forward_ad._current_level` | torch 2.13 | is forward mode active? | assumed |
| `torch._foreach_*` | torch 2.13 | one kernel for a list of tensors | a loop over the list |
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_OTHER_NAMES: dict[str, Callable[..., Tensor]] = {
    "norm": torch.linalg.vector_norm,
    "addcmul_": lambda t, a, b, value: t.addcmul_(a, b, value=value),
}


@cache
def openmp() -> Callable[[Callable[[Any], None], int], None] | None:
    """Runs a function of one argument, which means nothing, on so many of torch's own threads, or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        parallel = getattr(ctypes.CDLL(str(path)), "GOMP_parallel", None)
        if parallel is not None:
            parallel.argtypes = (_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            parallel.restype = None
            return lambda function, threads: parallel(_CALLBACK(function), None, threads, 0)
    return None


def reference_counts(wanted: bool) -> dict[str, bool]:
    """The option of `numba.njit` that decides whether compiled code counts references to arrays."""
    try:
        known = importlib.import_module("numba.core.options").DefaultOptions
    except (ImportError, AttributeError):
        return {}
    return {"_nrt": wanted} if hasattr(known, "_nrt") else {}


def mapped() -> bool:
    """Whether `torch.func` (vmap, grad, …) or forward-mode differentiation is active, or may be."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is None or bool(active()) or forward_mode()


def forward_mode() -> bool:
    """Whether forward-mode differentiation is active, or may be."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def foreach(name: str, tensors: Sequence[Tensor], *arguments: Any) -> Sequence[Tensor]:
    """A method of tensors for all of a list; arguments that are lists hold one value for each."""
    together = getattr(torch, f"_foreach_{name}", None)
    if together is not None:
        done: Sequence[Tensor] = together(tensors, *arguments)
        return done
    one = _OTHER_NAMES.get(name) or getattr(Tensor, name)
    lists = [a if isinstance(a, list | tuple) else [a] * len(tensors) for a in arguments]
    return [one(tensor, *own) for tensor, *own in zip(tensors, *lists, strict=True)]
