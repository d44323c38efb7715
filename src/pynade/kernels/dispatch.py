"""The public functions: check the arguments, choose a kernel, call it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pynade.kernels import backends, dense, reference
from pynade.kernels.autograd import Recurrence
from pynade.kernels.backends import Uniforms
from pynade.kernels.private import mapped
from pynade.kernels.reference import Weights


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
    """All D conditionals in O(HD) per row (eqs. 2, 4, 5).

    With a_1 = c and a_d = a_{d-1} + W[o_{d-1}] x_{o_{d-1}}, the outputs are eta_{o_d} = V[o_d] act(a_d) +
    b_{o_d}.

    Args:
        features: (B, D, F). The fused kernels take F = 1; more goes to the reference.
        weight: W, (D, F, H).
        hidden_bias: c, (H,).
        output: V, (D, P, H).
        bias: b, (D, P).
        order: (D,), the variable at each step.
        activation: "sigmoid", "relu" or "tanh".
        kernel: "auto", "reference", "dense", "numba" (CPU) or "triton" (CUDA). "auto" takes the fused one for
            the device of the features (`dense` where D is small and P is large), and the reference where its
            compiler is missing (with one warning) or for types other than float32 and float64.

    Returns:
        eta (B, D, P), indexed by variable (not by step).

    Example:
        >>> import torch
        >>> x, w, v = torch.ones(2, 3, 1), torch.zeros(3, 1, 4), torch.ones(3, 1, 4)
        >>> recurrence(x, w, torch.zeros(4), v, torch.zeros(3, 1), torch.arange(3), "sigmoid")[0, :, 0]
        tensor([2., 2., 2.])
    """
    n_features = features.shape[2]
    if kernel == "auto" and dense.suits(features, output):
        kernel = "dense"
    if n_features != 1 and kernel not in ("auto", "reference", "dense"):
        raise ValueError(f"kernel {kernel!r} takes one feature per variable, not {n_features}")
    kernel = "reference" if n_features != 1 and kernel == "auto" else kernel
    kernel = _checked(activation, kernel, features, weight, hidden_bias, output, bias)
    if kernel in ("reference", "dense"):
        plain = dense.recurrence if kernel == "dense" else reference.recurrence
        return plain(features, Weights(weight, hidden_bias, output, bias, order), activation)
    x, *parts = _alike(features.squeeze(2), weight.squeeze(1), hidden_bias, output, bias)
    _check_shapes(Weights._make((*parts, order)), x.shape[1])
    x, *members = (tensor.unsqueeze(0) for tensor in (x, *parts, order))  # one member
    unsure = mapped()  # requires_grad of mapped tensors is not known
    gradients = torch.is_grad_enabled() and (unsure or any(t.requires_grad for t in (x, *members)))
    if not gradients and not unsure:  # autograd alone takes as long as a small batch
        eta: Tensor = backends.load(kernel, "forward").forward(x, Weights(*members), activation, False)[0]
    else:
        eta = Recurrence.apply(x, *members, activation, kernel, gradients)[0]
    return eta.squeeze(0)


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
    numbers = {"uniforms": uniforms, "noise": noise}
    given = {name: value for name, value in numbers.items() if isinstance(value, Tensor)}
    kernel = _checked(activation, kernel, *parts, *given.values())
    if isinstance(uniforms, Uniforms) and (kernel != "numba" or noise is not None):
        uniforms = given["uniforms"] = uniforms.tensor(parts[0].dtype, parts[0].device)
    if kernel == "reference":
        return reference.sample(Weights._make((*parts, order)), given["uniforms"], noise, activation)
    _check_shapes(Weights._make((*parts, order)), n_variables)
    rows = len(uniforms) if isinstance(uniforms, Tensor) else uniforms.rows
    for name, tensor in given.items():
        _expect(name, tensor, rows, n_variables)
    floats = _alike(*parts, *given.values())
    given = dict(zip(given, floats[4:], strict=True))
    run, own = backends.load(kernel, "sample").sample, Weights._make((*floats[:4], order))
    draws: Tensor = run(own, given.get("uniforms", uniforms), given.get("noise"), activation)
    return draws


def _checked(activation: str, kernel: str, *tensors: Tensor) -> str:
    if activation not in reference.ACTIVATIONS:
        known = ", ".join(reference.ACTIVATIONS)
        raise ValueError(f"unknown activation {activation!r}; known: {known}")
    return backends.choose(kernel, tensors[0].device, *tensors)


def _check_shapes(weights: Weights, n_variables: int) -> None:
    """Compiled loops do not check indexes, so shapes are compared here."""
    D, H, P = n_variables, weights.hidden_bias.shape[-1], weights.bias.shape[-1]
    for name, tensor, shape in zip(
        Weights._fields, weights, ((D, H), (H,), (D, P, H), (D, P), (D,)), strict=True
    ):
        _expect(name, tensor, *shape)


def _expect(name: str, tensor: Tensor, *shape: int) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} should have shape {shape}, not {tuple(tensor.shape)}")


def _alike(*tensors: Tensor) -> list[Tensor]:
    """All in their common type."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else tensors[0].dtype
    return [tensor.to(dtype) for tensor in tensors]
