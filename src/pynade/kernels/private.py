"""Private interfaces of other libraries, which may disappear: without them results are the same, but slower.

| interface | tested with | what it provides | without it |
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
    """A function that runs a callback on n of torch's threads, or None; the callback's argument is unused."""
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
        options_class = importlib.import_module("numba.core.options").DefaultOptions
    except (ImportError, AttributeError):
        return {}
    return {"_nrt": wanted} if hasattr(options_class, "_nrt") else {}


def transforms_active() -> bool:
    """Whether a `torch.func` transform (vmap, grad, …) or forward-mode differentiation may be active."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is None or bool(active()) or forward_mode_active()


def forward_mode_active() -> bool:
    """Whether forward-mode differentiation may be active."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def foreach(name: str, tensors: Sequence[Tensor], *arguments: Any) -> Sequence[Tensor]:
    """Call a tensor method for every tensor of a list; arguments that are lists have one value for each."""
    fused_function = getattr(torch, f"_foreach_{name}", None)
    if fused_function is not None:
        results: Sequence[Tensor] = fused_function(tensors, *arguments)
        return results
    method = _OTHER_NAMES.get(name) or getattr(Tensor, name)
    values = [a if isinstance(a, list | tuple) else [a] * len(tensors) for a in arguments]
    return [method(tensor, *row) for tensor, *row in zip(tensors, *values, strict=True)]
