"""Ancestral sampling on CUDA, in Triton: a program draws a few rows, their hidden units in its registers."""

# mypy: disable-error-code="import-untyped, import-not-found"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pynade.kernels.gpu import CODES, squash
from pynade.kernels.reference import Weights

BERNOULLI, MIXTURE = 0, 1
LARGEST_STATE = 8192  # hidden units × rows held by one program


@triton.jit
def _sample(  # type: ignore[no-untyped-def]
    weight, hidden_bias, output, bias, uniforms, noise, x, B, D, H, P,
    FAMILY: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, PARAMS: tl.constexpr,
):  # fmt: skip
    """All steps of a block of rows; W (D, H), V (D, P, H), b (D, P), uniforms, noise, x (D, B), by step."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units, params = tl.arange(0, UNITS), tl.arange(0, PARAMS)
    in_rows, in_units = rows < B, units < H
    a = tl.zeros((ROWS, 1), weight.dtype.element_ty)
    a += tl.load(hidden_bias + units, mask=in_units, other=0.0)[None, :]
    for d in range(D):
        h = squash(a, ACT)
        eta = tl.zeros((ROWS, PARAMS), weight.dtype.element_ty)
        for p in range(P):
            v = tl.load(output + (d * P + p) * H + units, mask=in_units, other=0.0)
            y = tl.sum(h * v[None, :], axis=1)
            eta = tl.where(params[None, :] == p, y[:, None], eta)
        eta += tl.load(bias + d * P + params, mask=params < P, other=0.0)[None, :]
        uniform = tl.load(uniforms + d * B + rows, mask=in_rows, other=0.0)
        if FAMILY == 0:
            value = tl.where(uniform < 1 / (1 + tl.exp(-tl.sum(eta, axis=1))), 1.0, 0.0)
        else:
            components = P // 3
            is_logit = (params < components)[None, :]
            top = tl.max(tl.where(is_logit, eta, -float("inf")), axis=1)
            share = tl.where(is_logit, tl.exp(tl.where(is_logit, eta - top[:, None], 0.0)), 0.0)
            cumulative = tl.cumsum(share / tl.sum(share, axis=1)[:, None], axis=1)
            below = (cumulative <= uniform[:, None]) & (params < components - 1)[None, :]
            chosen = tl.sum(below.to(tl.int32), axis=1)[:, None]
            location = tl.sum(tl.where(params[None, :] == components + chosen, eta, 0.0), axis=1)
            log_scale = tl.sum(tl.where(params[None, :] == 2 * components + chosen, eta, 0.0), axis=1)
            value = location + tl.exp(log_scale) * tl.load(noise + d * B + rows, mask=in_rows, other=0.0)
        value = value.to(weight.dtype.element_ty)
        tl.store(x + d * B + rows, value, mask=in_rows)
        a += value[:, None] * tl.load(weight + d * H + units, mask=in_units, other=0.0)[None, :]


def sample(weights: Weights, uniforms: Tensor, noise: Tensor | None, activation: str) -> Tensor:
    """Rows (B, D): Bernoulli without noise, location-scale mixtures with it; see `reference.sample`."""
    weight, hidden_bias, output, bias, order = weights
    batch, n_variables = uniforms.shape
    n_params, hidden = output.shape[1:]
    units = triton.next_power_of_2(hidden)
    rows = max(1, min(4, LARGEST_STATE // units))
    params = max(2, triton.next_power_of_2(n_params))
    uniforms = uniforms.t().contiguous()
    normal = uniforms if noise is None else noise.t().contiguous()
    x = torch.empty_like(uniforms)
    tensors = (weight[order], hidden_bias.contiguous(), output[order], bias[order], uniforms, normal, x)
    family = BERNOULLI if noise is None else MIXTURE
    constants = (family, CODES[activation], rows, units, params)
    if batch:
        warps = max(1, min(8, rows * units // 256))
        _sample[(-(-batch // rows),)](
            *tensors, batch, n_variables, hidden, n_params, *constants, num_warps=warps
        )
    return x.t()[:, order.argsort()].contiguous()
