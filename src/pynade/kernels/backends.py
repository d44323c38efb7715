"""The choice of a kernel by device and type, and the random numbers of the samplers.

Kernels are imported at their first use.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

KERNELS = ("auto", "reference", "dense", "numba", "triton")
DEVICES = {"numba": "cpu", "triton": "cuda"}
MODULES = {
    ("numba", "forward"): "cpu",
    ("numba", "backward"): "cpu_back",
    ("numba", "sample"): "cpu",
    ("numba", "fill"): "cpu_random",
    ("numba", "mixture"): "mixture",
    ("triton", "forward"): "gpu",
    ("triton", "backward"): "gpu",
    ("triton", "sample"): "gpu",
}


@cache
def load(kernel: str, function: str) -> ModuleType:
    """The module in which a kernel computes a function; importing it imports the kernel's compiler."""
    return importlib.import_module(f"pynade.kernels.{MODULES[kernel, function]}")


def choose(kernel: str, device: torch.device, *tensors: Tensor) -> str:
    """The kernel to run; "auto" is numba on the CPU, Triton on CUDA, else the reference."""
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
    """Whether Triton interprets its kernels on the CPU, slowly, for tests."""
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return False
    knobs = getattr(triton, "knobs", None)  # Triton 3.4 and later
    return bool(knobs and knobs.runtime.interpret)


@cache
def available(kernel: str) -> bool:
    """Whether the compiler of a kernel can be imported; warns once if not."""
    try:
        importlib.import_module(kernel)
    except ImportError as error:
        message = f"{kernel} cannot be imported ({error}); NADE falls back to plain torch, many times slower"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False
    return True


@dataclass(frozen=True)
class Uniforms:
    """(rows, columns) uniform numbers, given by a seed and drawn where they are used.

    Example:
        >>> u = Uniforms.draw(2, 3, torch.Generator().manual_seed(0))
        >>> u.tensor(torch.float32, torch.device("cpu")).shape
        torch.Size([2, 3])
    """

    rows: int
    columns: int
    seed: int

    @classmethod
    def draw(cls, rows: int, columns: int, generator: torch.Generator | None) -> Uniforms:
        """With a seed from the generator."""
        device = generator.device if generator is not None else "cpu"
        return cls(rows, columns, int(torch.randint(2**63 - 1, (), generator=generator, device=device)))

    def tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """All of them. On the CPU, where numba is, several threads draw them, the same as in the sampler."""
        shape = (self.rows, self.columns)
        if choose("auto", device, torch.empty(0, dtype=dtype)) == "numba":
            return load("numba", "fill").fill(torch.empty(shape, dtype=dtype), self.seed)
        g = torch.Generator(device).manual_seed(self.seed)
        return torch.rand(shape, generator=g, dtype=dtype, device=device)
