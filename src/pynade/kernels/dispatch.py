"""The public functions: check the arguments, choose a kernel, call it."""

from __future__ import annotations

import torch
from torch import Tensor

from pynade.kernels import backends, dense, reference
from pynade.kernels.autograd import Recurrence
from pynade.kernels.private import mapped
from pynade.kernels.reference import Weights
from pynade.kernels.uniforms import Uniforms

__all__ = ["recurrence", "sample_bernoulli", "sample_mixture"]


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
            the device of the features (on CUDA `dense` where D is small and P is large), and the reference
            where its compiler is missing (with one warning) or for types other than float32 and float64.

    Returns:
        eta (B, D, P), indexed by variable (not by step).

    Example:
        >>> import torch
        >>> x, w, v = torch.ones(2, 3, 1), torch.zeros(3, 1, 4), torch.ones(3, 1, 4)
        >>> recurrence(x, w, torch.zeros(4), v, torch.zeros(3, 1), torch.arange(3), "sigmoid")[0, :, 0]
        tensor([2., 2., 2.])
    """
    if kernel == "auto" and features.device.type == "cuda" and dense.suits(features, output):
        kernel = "dense"
    if features.shape[2] != 1:
        if kernel not in ("auto", "reference", "dense"):
            raise ValueError(f"kernel {kernel!r} takes one feature per variable, not {features.shape[2]}")
        kernel = "reference" if kernel == "auto" else kernel
    kernel = _checked(activation, kernel, features, weight, hidden_bias, output, bias)
    if kernel in ("reference", "dense"):
        plain = dense.recurrence if kernel == "dense" else reference.recurrence
        return plain(features, Weights(weight, hidden_bias, output, bias, order), activation)
    one = (features.squeeze(2), weight.squeeze(1), hidden_bias, output, bias, order)
    return _fused(*(tensor.unsqueeze(0) for tensor in one), activation=activation, kernel=kernel).squeeze(0)


def sample_bernoulli(
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    uniforms: Tensor | Uniforms,
    activation: str,
    kernel: str = "auto",
) -> Tensor:
    """Draw binary rows (B, D) by ancestral sampling in one pass; no gradients.

    Args:
        weight: W, (D, H) or (D, 1, H).
        hidden_bias: c, (H,).
        output: V, (D, 1, H).
        bias: b, (D, 1).
        order: (D,).
        uniforms: (B, D), the randomness: at step d, x = 1 where uniforms[:, d] < sigmoid(eta); or where to
            draw it from.
        activation: as for `recurrence`.
        kernel: as for `recurrence`.
    """
    return _sample(Weights(weight, hidden_bias, output, bias, order), uniforms, None, activation, kernel)


def sample_mixture(
    weight: Tensor,
    hidden_bias: Tensor,
    output: Tensor,
    bias: Tensor,
    order: Tensor,
    uniforms: Tensor,
    noise: Tensor,
    activation: str,
    kernel: str = "auto",
) -> Tensor:
    """Draw real rows (B, D) from mixtures with eta = [K logits | K locations | K log scales]; no gradients.

    At step d, uniforms[:, d] picks the component by the inverse of the cumulative mixture weights, and x =
    location + scale × noise[:, d]: standard normal noise for mixtures of Gaussians, standard Laplace noise
    for mixtures of Laplaces. The other arguments are those of `sample_bernoulli`, with V (D, 3K, H) and b
    (D, 3K).
    """
    if output.shape[1] % 3:
        raise ValueError(f"mixtures have 3K parameters per variable, not {output.shape[1]}")
    return _sample(Weights(weight, hidden_bias, output, bias, order), uniforms, noise, activation, kernel)


def _checked(activation: str, kernel: str, *tensors: Tensor) -> str:
    if activation not in reference.ACTIVATIONS:
        known = ", ".join(reference.ACTIVATIONS)
        raise ValueError(f"unknown activation {activation!r}; known: {known}")
    return backends.choose(kernel, tensors[0].device, *tensors)


def _fused(*tensors: Tensor, activation: str, kernel: str) -> Tensor:
    """Eta (M, B, D, P) from tensors that all have the member axis and no feature axis."""
    x, weight, hidden_bias, output, bias, order = _alike(*tensors)
    members, _, n_variables = x.shape
    hidden, n_params = hidden_bias.shape[-1], bias.shape[-1]
    _expect("weight", weight, members, n_variables, hidden)
    _expect("hidden_bias", hidden_bias, members, hidden)
    _expect("output", output, members, n_variables, n_params, hidden)
    _expect("bias", bias, members, n_variables, n_params)
    _expect("order", order, len(order) if len(order) == 1 else members, n_variables)
    floats = (x, weight, hidden_bias, output, bias)
    unsure = mapped()  # requires_grad of mapped tensors is not known
    gradients = torch.is_grad_enabled() and (unsure or any(tensor.requires_grad for tensor in floats))
    if not gradients and not unsure:  # autograd alone takes as long as a small batch
        run = backends.load(kernel).forward
        return run(x, Weights(*floats[1:], order), activation, False)[0]
    eta: Tensor = Recurrence.apply(*floats, order, activation, kernel, gradients)[0]
    return eta


def _expect(name: str, tensor: Tensor, *shape: int) -> None:
    """Compiled loops do not check indexes, so shapes are compared here."""
    if tensor.shape != shape:
        raise ValueError(
            f"{name} should have shape {shape}, not {tuple(tensor.shape)} (members first, if any)"
        )


@torch.no_grad()
def _sample(
    weights: Weights, uniforms: Tensor | Uniforms, noise: Tensor | None, activation: str, kernel: str
) -> Tensor:
    """Choose a sampler, check, and call it: Bernoulli without noise, mixtures with it."""
    weight = weights.weight.reshape(len(weights.weight), weights.weight.shape[-1])
    weights = weights._replace(weight=weight)
    *parts, order = weights
    kernel = _checked(activation, kernel, *parts, *_tensors(uniforms, noise))
    if isinstance(uniforms, Uniforms) and (kernel != "numba" or noise is not None):
        uniforms = uniforms.tensor(weight.dtype, weight.device)  # else the compiled loop draws them
    if kernel == "reference":
        assert isinstance(uniforms, Tensor)
        return reference.sample(weights, uniforms, noise, activation)
    n_variables, n_params, hidden = weights.output.shape
    _expect("weight", weight, n_variables, hidden)
    _expect("hidden_bias", weights.hidden_bias, hidden)
    _expect("bias", weights.bias, n_variables, n_params)
    _expect("order", order, n_variables)
    rows = len(uniforms) if isinstance(uniforms, Tensor) else uniforms.rows
    for tensor in _tensors(uniforms, noise):
        _expect("uniforms" if tensor is uniforms else "noise", tensor, rows, n_variables)
    floats = _alike(*parts, *_tensors(uniforms, noise))
    numbers = floats[4] if isinstance(uniforms, Tensor) else uniforms
    run = backends.load(kernel, "sample").sample
    draws: Tensor = run(
        Weights._make((*floats[:4], order)), numbers, None if noise is None else floats[5], activation
    )
    return draws


def _tensors(*values: Tensor | Uniforms | None) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


def _alike(*tensors: Tensor) -> list[Tensor]:
    """All floating-point tensors in their common type."""
    floats = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    dtype = torch.float64 if torch.float64 in floats else floats[0]
    return [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]
