"""Which kernel runs: chosen by device and type, loaded when first needed, the reference where none can be."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

KERNELS = ("auto", "reference", "dense", "numba", "triton")
MODULES = {"numba": "pynade.kernels.cpu_wide", "triton": "pynade.kernels.gpu"}
DEVICES = {"numba": "cpu", "triton": "cuda"}
SAMPLERS = {"numba": "pynade.kernels.cpu_sample", "triton": "pynade.kernels.gpu_sample"}


def load(kernel: str) -> ModuleType:
    """The module of a fused kernel; importing it brings in its compiler."""
    return importlib.import_module(MODULES[kernel])


def load_sampler(kernel: str) -> ModuleType:
    """The module of a fused kernel's samplers."""
    return importlib.import_module(SAMPLERS[kernel])


def load_random() -> ModuleType:
    """The module that draws uniform numbers on the CPU."""
    return importlib.import_module("pynade.kernels.cpu_random")


def load_mixture() -> ModuleType:
    """The module of the mixtures' log-densities on the CPU."""
    return importlib.import_module("pynade.kernels.mixture")


def choose(kernel: str, device: torch.device, *tensors: Tensor) -> str:
    """The kernel to run; "auto" is numba on the CPU, Triton on CUDA, the reference where neither can be."""
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(KERNELS)}")
    supported = {tensor.dtype for tensor in tensors} <= {torch.float32, torch.float64}
    if kernel == "auto":
        fused = {"cpu": "numba", "cuda": "triton"}.get(device.type)
        return fused if fused and supported and available(fused) else "reference"
    if kernel not in ("reference", "dense"):
        if device.type != DEVICES[kernel] and not (kernel == "triton" and interpreting()):
            raise ValueError(f"kernel {kernel!r} runs on {DEVICES[kernel]} tensors, not on {device.type}")
        if not supported:
            raise TypeError(f"kernel {kernel!r} takes float32 and float64, not {tensors[0].dtype}")
    return kernel


def interpreting() -> bool:
    """Whether Triton was told to run its kernels on the CPU, slowly, for tests."""
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return False
    knobs = getattr(triton, "knobs", None)  # Triton 3.4 and later
    return bool(knobs and knobs.runtime.interpret)


@cache
def available(kernel: str) -> bool:
    """Whether the compiler behind a kernel can be imported; warns the one time that it cannot."""
    try:
        importlib.import_module(kernel)
    except ImportError as error:
        message = f"{kernel} cannot be imported ({error}); NADE falls back to plain torch, many times slower"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False
    return True
