"""The public functions: they check the arguments, choose a kernel by device and type, and call it."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from pynade.kernels import reference
from pynade.kernels.autograd import fused
from pynade.kernels.reference import Weights

FUSED = {"numba": ("cpu", "pynade.kernels.cpu"), "triton": ("cuda", "pynade.kernels.gpu")}  # device, module
KERNELS = ("auto", "reference", "dense", *FUSED)


def choose_kernel(kernel: str, device: torch.device, *tensors: Tensor) -> str:
    """The kernel to run; "auto" is numba on the CPU, Triton on CUDA, else the reference."""
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(KERNELS)}")
    supported = {tensor.dtype for tensor in tensors} <= {torch.float32, torch.float64}
    if kernel == "auto":
        fastest = {"cpu": "numba", "cuda": "triton"}.get(device.type)
        return fastest if fastest and supported and available(fastest) else "reference"
    if kernel in FUSED:
        required = FUSED[kernel][0]
        if device.type != required and not (kernel == "triton" and interpreting()):
            raise ValueError(f"kernel {kernel!r} runs on {required} tensors, not on {device.type}")
        if not supported:
            raise TypeError(f"kernel {kernel!r} takes float32 and float64, not {tensors[0].dtype}")
    return kernel


def interpreting() -> bool:
    """Whether Triton interprets its kernels on the CPU, slowly, for tests."""
    try:
        return bool(importlib.import_module("triton").knobs.runtime.interpret)
    except (ImportError, AttributeError):  # no Triton, or one before 3.4
        return False


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
    """Uniform numbers (rows, columns), defined by a seed and generated where they are used.

    Example:
        >>> u = Uniforms.draw(2, 3, torch.Generator().manual_seed(0))
        >>> u.tensor(torch.float32, torch.device("cpu")).shape
        torch.Size([2, 3])
    """

    rows: int
    columns: int
    seed: int

    def __len__(self) -> int:
        return self.rows

    @classmethod
    def draw(cls, rows: int, columns: int, generator: torch.Generator | None) -> Uniforms:
        """Uniform numbers whose seed the generator draws."""
        device = generator.device if generator is not None else "cpu"
        return cls(rows, columns, int(torch.randint(2**63 - 1, (), generator=generator, device=device)))

    def tensor(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """All numbers as a tensor; on the CPU with numba, drawn by several threads, as in the sampler."""
        shape = (self.rows, self.columns)
        if choose_kernel("auto", device, torch.empty(0, dtype=dtype)) == "numba":
            from pynade.kernels.cpu import fill

            return fill(torch.empty(shape, dtype=dtype), self.seed)
        g = torch.Generator(device).manual_seed(self.seed)
        return torch.rand(shape, generator=g, dtype=dtype, device=device)


def recurrence(
    features: Tensor,
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    activation: str,
    kernel: str = "auto",
) -> Tensor:
    """Parameters of all D conditionals, in O(HD) per row (eqs. 2, 4, 5).

    With a_1 = c and a_d = a_{d-1} + W[o_{d-1}] x_{o_{d-1}}: eta_{o_d} = V[o_d] act(a_d) + b_{o_d}.

    Args:
        features: (B, D, F). The fused kernels take F = 1; more goes to the reference.
        weight: W, (D, F, H).
        hidden_bias: c, (H,).
        output: V, (D, P, H).
        bias: b, (D, P).
        order: (D,), the variable at each step.
        activation: "sigmoid", "relu" or "tanh".
        kernel: "auto", "reference", "dense", "numba" (CPU) or "triton" (CUDA). "auto" takes the fused kernel
            of the features' device ("dense" where D is small and P is large), or the reference if the
            compiler is missing (with one warning) or the type is neither float32 nor float64.

    Returns:
        eta (B, D, P), indexed by variable (not by step).

    Example:
        >>> import torch
        >>> x, w, v = torch.ones(2, 3, 1), torch.zeros(3, 1, 4), torch.ones(3, 1, 4)
        >>> recurrence(x, w, torch.zeros(4), v, torch.zeros(3, 1), torch.arange(3), "sigmoid")[0, :, 0]
        tensor([2., 2., 2.])
    """
    n_features = features.shape[2]
    if kernel == "auto" and reference.suits_dense(features, output):
        kernel = "dense"
    if n_features != 1 and kernel in FUSED:
        raise ValueError(f"kernel {kernel!r} takes one feature per variable, not {n_features}")
    kernel = "reference" if n_features != 1 and kernel == "auto" else kernel
    kernel = _choose_checked(activation, kernel, features, weight, hidden_bias, output, bias)
    if kernel not in FUSED:
        function = reference.dense if kernel == "dense" else reference.recurrence
        return function(features, Weights(weight, hidden_bias, output, bias, order), activation)
    x, *parts = _to_common_type(features.squeeze(2), weight.squeeze(1), hidden_bias, output, bias)
    _check_shapes(Weights._make((*parts, order)), x.shape[1])
    member = (t.unsqueeze(0) for t in (x, *parts, order))
    return fused(Recurrence(importlib.import_module(FUSED[kernel][1]), activation), *member).squeeze(0)


@dataclass
class Recurrence:
    """The recurrence of M members for `autograd.fused`: of x (M, B, D), W, c, V, b and the order.

    The order is (1, D) for all members, or (M, D). The tape is kept, of any length.
    """

    kernel: ModuleType
    activation: str

    def forward(self, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Eta (M, B, D, P) and the tape."""
        x, *weights = tensors
        results: tuple[Tensor, ...] = self.kernel.forward(x, Weights._make(weights), self.activation, keep)
        return results

    def backward(self, needs: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gradients of all but the order."""
        x, *weights, tape, grad = tensors
        grads = self.kernel.backward(x, Weights._make(weights), tape, grad, self.activation, needs[0])
        return *grads, grad.sum(1)


@torch.no_grad()
def sample(
    weights: Sequence[Tensor],
    uniforms: Tensor | Uniforms,
    noise: Tensor | None,
    activation: str,
    kernel: str = "auto",
) -> Tensor:
    """Draw rows (B, D) by ancestral sampling in one pass; no gradients.

    Without noise rows are binary: at step d, x = 1 where uniforms[:, d] < sigmoid(eta). With noise they are
    real, from mixtures with eta = [K logits | K locations | K log scales]: uniforms[:, d] picks the component
    by the inverse of the cumulative mixture weights, and x = location + scale × noise[:, d]. Standard normal
    noise gives mixtures of Gaussians, standard Laplace noise mixtures of Laplaces.

    Args:
        weights: W (D, H) or (D, 1, H), c (H,), V (D, P, H), b (D, P) and the order (D,); P is 1, or 3K.
        uniforms: (B, D), by step, or where to draw them from.
        noise: (B, D), by step, or None.
        activation: as for `recurrence`.
        kernel: as for `recurrence`.
    """
    *parts, order = weights
    n_variables, n_params, _ = parts[2].shape
    if noise is not None and n_params % 3:
        raise ValueError(f"mixtures have 3K parameters per variable, not {n_params}")
    parts[0] = parts[0].reshape(len(parts[0]), parts[0].shape[-1])
    numbers = {n: t for n, t in (("uniforms", uniforms), ("noise", noise)) if isinstance(t, Tensor)}
    kernel = _choose_checked(activation, kernel, *parts, *numbers.values())
    if isinstance(uniforms, Uniforms) and (kernel != "numba" or noise is not None):
        uniforms = numbers["uniforms"] = uniforms.tensor(parts[0].dtype, parts[0].device)
    if kernel not in FUSED:
        return reference.sample(Weights._make((*parts, order)), numbers["uniforms"], noise, activation)
    _check_shapes(Weights._make((*parts, order)), n_variables, len(uniforms), **numbers)
    tensors = _to_common_type(*parts, *numbers.values())
    weights_cast, cast = Weights._make((*tensors[:4], order)), dict(zip(numbers, tensors[4:], strict=True))
    draw = importlib.import_module(FUSED[kernel][1]).sample
    drawn: Tensor = draw(weights_cast, cast.get("uniforms", uniforms), cast.get("noise"), activation)
    return drawn


def _choose_checked(activation: str, kernel: str, *tensors: Tensor) -> str:
    if activation not in reference.ACTIVATIONS:
        known = ", ".join(reference.ACTIVATIONS)
        raise ValueError(f"unknown activation {activation!r}; known: {known}")
    return choose_kernel(kernel, tensors[0].device, *tensors)


def _check_shapes(weights: Weights, n_variables: int, rows: int = 0, **others: Tensor) -> None:
    """Raise a ValueError for a wrong shape (compiled loops do not check indexes); others are (rows, D)."""
    D, H, P = n_variables, weights.hidden_bias.shape[-1], weights.bias.shape[-1]
    shapes = {"weight": (D, H), "hidden_bias": (H,), "output": (D, P, H), "bias": (D, P), "order": (D,)}
    for name, tensor in (weights._asdict() | others).items():
        shape = shapes.get(name, (rows, D))
        if tensor.shape != shape:
            raise ValueError(f"{name} should have shape {shape}, not {tuple(tensor.shape)}")


def _to_common_type(*tensors: Tensor) -> list[Tensor]:
    """The tensors in their common floating-point type."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else tensors[0].dtype
    return [tensor.to(dtype) for tensor in tensors]
