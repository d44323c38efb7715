"""The NADE recurrence on CUDA, in Triton: many short recurrences instead of one long one.

The D steps are divided into segments. The first pre-activation of each segment is a matrix product of the
inputs before it, so that all segments, blocks of rows and blocks of hidden units run in parallel. No two
programs write to the same address, and the host reads no value, so that a CUDA graph can capture everything.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pynade.kernels.reference import CODES, Weights

PROGRAMS = 2048  # programs (warps of 32 rows or units) that occupy a large GPU
SHORTEST = 8  # steps of a segment, at least
WARP = 32
BERNOULLI, MIXTURE = 0, 1
Sizes = tuple[int, ...]
LARGEST_STATE = 8192  # hidden units × rows held by one program


@triton.jit
def squash(a, ACT: tl.constexpr):
    """The activation."""
    if ACT == 0:
        h = 1 / (1 + tl.exp(-a))
    elif ACT == 1:
        h = tl.where(a < 0, 0.0, a)
    else:
        h = 2 / (1 + tl.exp(-2 * a)) - 1
    return h


@triton.jit
def slope(h, ACT: tl.constexpr):
    """The derivative of the activation, computed from its value h."""
    if ACT == 0:
        s = h * (1 - h)
    elif ACT == 1:
        s = tl.where(h > 0, 1.0, 0.0)
    else:
        s = 1 - h * h
    return s


@triton.jit
def _forward(
    x, weight, output, start, eta, B, D, H, P, S, LENGTH,
    ACT: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Partial eta (M, blocks of units, D, P, B) of one segment, block of rows and block of units.

    x (M, D, B), W (M, D, H), V (M, D, P, H) by step; start (M, S, B, H). A thread computes units of a row.
    """
    block, row_blocks = tl.program_id(0), tl.cdiv(B, ROWS)
    m, rows = (block // row_blocks).to(tl.int64), (block % row_blocks) * ROWS + tl.arange(0, ROWS)
    unit_block, unit_blocks = tl.program_id(1), tl.num_programs(1)
    units = unit_block * UNITS + tl.arange(0, UNITS)
    segment = tl.program_id(2)
    in_rows, in_units = rows < B, units < H
    in_tile = in_units[:, None] & in_rows[None, :]
    a = tl.load(start + ((m * S + segment) * B + rows[None, :]) * H + units[:, None], mask=in_tile, other=0.0)
    for d in range(segment * LENGTH, tl.minimum(D, (segment + 1) * LENGTH)):
        step = m * D + d
        h = squash(a, ACT)
        for p in range(P):
            v = tl.load(output + (step * P + p) * H + units, mask=in_units, other=0.0)
            y = tl.sum(h * v[:, None], axis=0)
            tl.store(eta + (((m * unit_blocks + unit_block) * D + d) * P + p) * B + rows, y, mask=in_rows)
        w = tl.load(weight + step * H + units, mask=in_units, other=0.0)
        a += w[:, None] * tl.load(x + step * B + rows, mask=in_rows, other=0.0)[None, :]


@triton.jit
def _backward(
    x, weight, output, start, grad_eta, total, grad_weight, grad_output, grad_x, B, D, H, P, S, LENGTH,
    ACT: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, NEED_X: tl.constexpr,
):  # fmt: skip
    """Partial gradients of one segment, computed in the forward direction.

    p_d is the sum of the gradients of a over the segment's steps up to d, G that from the segment's start to
    the last step of all. So gW[d] = Σ_b x_bd (G_b - p_bd), whose first part is a matrix product. grad_eta is
    (M, D, P, B). The kernel writes Σ x p to grad_weight (blocks of rows, M, D, H) and Σ W p to grad_x (blocks
    of units, M, D, B), which are subtracted later, the gradient of V to grad_output (blocks of rows, M, D, P,
    H), and p at the end of the segment to `total` (M, S, B, H).
    """
    block, row_blocks = tl.program_id(0), tl.cdiv(B, ROWS)
    members = tl.num_programs(0) // row_blocks
    m, row_block = (block // row_blocks).to(tl.int64), block % row_blocks
    rows = row_block * ROWS + tl.arange(0, ROWS)
    unit_block = tl.program_id(1)
    units = unit_block * UNITS + tl.arange(0, UNITS)
    segment = tl.program_id(2)
    in_rows, in_units = rows < B, units < H
    in_tile = in_rows[:, None] & in_units[None, :]
    offsets = ((m * S + segment) * B + rows[:, None]) * H + units[None, :]
    a = tl.load(start + offsets, mask=in_tile, other=0.0)
    running = tl.zeros_like(a)
    for d in range(segment * LENGTH, tl.minimum(D, (segment + 1) * LENGTH)):
        step = m * D + d
        own_step = (row_block * members + m) * D + d  # index of the results of this block of rows
        h = squash(a, ACT)
        grad_h = tl.zeros_like(a)
        for p in range(P):
            v = tl.load(output + (step * P + p) * H + units, mask=in_units, other=0.0)
            e = tl.load(grad_eta + (step * P + p) * B + rows, mask=in_rows, other=0.0)
            grad_h += e[:, None] * v[None, :]
            grad_v = tl.sum(e[:, None] * h, axis=0)
            tl.store(grad_output + (own_step * P + p) * H + units, grad_v, mask=in_units)
        running += grad_h * slope(h, ACT)
        xs = tl.load(x + step * B + rows, mask=in_rows, other=0.0)
        w = tl.load(weight + step * H + units, mask=in_units, other=0.0)
        tl.store(grad_weight + own_step * H + units, tl.sum(xs[:, None] * running, axis=0), mask=in_units)
        if NEED_X:
            grad_x_offset = ((unit_block * members + m) * D + d) * B
            tl.store(grad_x + grad_x_offset + rows, tl.sum(running * w[None, :], axis=1), mask=in_rows)
        a += xs[:, None] * w[None, :]
    tl.store(total + offsets, running, mask=in_tile)


def _launch_arguments(x: Tensor, weights: Weights) -> tuple[list[Tensor], Sizes, Sizes, dict[str, int]]:
    """x, W and V by step; the grid; the sizes that the kernels take; rows, units and warps of a program."""
    (members, batch, n_variables), (n_params, hidden) = x.shape, weights.output.shape[2:]
    rows, units = min(128, max(WARP // 2, triton.next_power_of_2(batch))), WARP
    warps = members * max(1, -(-batch // rows)) * -(-hidden // units) * max(1, rows // WARP)
    segments = max(1, min(-(-PROGRAMS // warps), n_variables // SHORTEST))
    length = -(-n_variables // segments)
    segments = -(-n_variables // length)
    tile = {"ROWS": rows, "UNITS": units, "num_warps": max(1, rows // WARP)}
    tensors = [_by_step(t, weights.order) for t in (x.transpose(1, 2), weights.weight, weights.output)]
    grid = (members * -(-batch // rows), -(-hidden // units), segments)
    return tensors, grid, (batch, n_variables, hidden, n_params, segments, length), tile


def forward(x: Tensor, weights: Weights, activation: str, with_tape: bool = True) -> tuple[Tensor, Tensor]:
    """As `cpu.forward`; the tape (M, S, B, H), always computed, has the *start* of each segment."""
    members, batch, n_variables = x.shape
    (x, weight, output), grid, sizes, tile = _launch_arguments(x, weights)
    shape, n_before = (sizes[4] - 1, sizes[5]), (sizes[4] - 1) * sizes[5]  # all segments but the last
    updates = x[:, :n_before].unflatten(1, shape).transpose(2, 3) @ weight[:, :n_before].unflatten(1, shape)
    initial = weights.hidden_bias[:, None, None].expand(-1, 1, batch, -1)
    start = torch.cat((initial, updates), 1).cumsum(1)  # c plus all segments before
    partial_eta = x.new_empty(members, grid[1], n_variables, sizes[3], batch)
    if batch:
        _forward[grid](x, weight, output, start, partial_eta, *sizes, CODES[activation], **tile)
    eta = _by_step(partial_eta.sum(1), _rank(weights.order)).permute(0, 3, 1, 2)
    return eta + weights.bias.unsqueeze(1), start


def backward(
    x: Tensor, weights: Weights, tape: Tensor, grad_eta: Tensor, activation: str, need_x: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty unless `need_x`), W, c and V."""
    members, batch, _ = x.shape
    (x, weight, output), grid, sizes, tile = _launch_arguments(x, weights)
    cut, rank, row_blocks = (sizes[5], sizes[4]), _rank(weights.order), grid[0] // members
    grad_eta = _by_step(grad_eta.permute(0, 2, 3, 1), weights.order)
    total = torch.empty_like(tape)
    partial_weight = x.new_empty(row_blocks, *weight.shape)
    partial_output = x.new_empty(row_blocks, *output.shape)
    partial_x = x.new_empty(grid[1] if need_x else 0, *x.shape)
    if batch:
        tensors = (x, weight, output, tape.contiguous(), grad_eta, total)
        results = (partial_weight, partial_output, partial_x)
        _backward[grid](*tensors, *results, *sizes, CODES[activation], NEED_X=need_x, **tile)
    grad_sums = total.flip(1).cumsum(1).flip(1)  # G of each segment
    grad_weight = _segment_product(x, grad_sums, *cut) - partial_weight.sum(0)
    grad_x = x.new_empty(members, 0, 0)
    if need_x:
        grad_x = _segment_product(weight, grad_sums.transpose(2, 3), *cut) - partial_x.sum(0)
        grad_x = _by_step(grad_x, rank).transpose(1, 2)
    return grad_x, _by_step(grad_weight, rank), grad_sums[:, 0].sum(1), _by_step(partial_output.sum(0), rank)


def _by_step(tensor: Tensor, order: Tensor) -> Tensor:
    """A contiguous copy of (M, D, …) with axis 1 in this order, (M, D), or (1, D) for all members."""
    if len(order) == 1:
        return tensor.index_select(1, order[0])
    offset = torch.arange(0, order.numel(), order.shape[1], device=order.device)
    return tensor.flatten(0, 1).index_select(0, (offset.unsqueeze(1) + order).flatten()).view_as(tensor)


def _rank(order: Tensor) -> Tensor:
    """The inverse permutation; scattering is far cheaper than sorting."""
    steps = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, steps)


def _segment_product(left: Tensor, right: Tensor, length: int, segments: int) -> Tensor:
    """left (M, D, K) @ right (M, S, K, N), each step with the matrix of its segment: (M, D, N)."""
    n_before = (segments - 1) * length
    head = left[:, :n_before].unflatten(1, (segments - 1, length)) @ right[:, :-1]
    return torch.cat((head.flatten(1, 2), left[:, n_before:] @ right[:, -1]), 1)


@triton.jit
def _sample(
    weight, hidden_bias, output, bias, uniforms, noise, x, B, D, H, P,
    FAMILY: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, PARAMS: tl.constexpr,
):  # fmt: skip
    """All steps of a block of rows; W (D, H), V (D, P, H), b (D, P), uniforms, noise and x (D, B) by step."""
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
            largest = tl.max(tl.where(is_logit, eta, -float("inf")), axis=1)
            share = tl.where(is_logit, tl.exp(tl.where(is_logit, eta - largest[:, None], 0.0)), 0.0)
            cumulative = tl.cumsum(share / tl.sum(share, axis=1)[:, None], axis=1)
            skipped = (cumulative <= uniform[:, None]) & (params < components - 1)[None, :]
            component = tl.sum(skipped.to(tl.int32), axis=1)[:, None]
            location = tl.sum(tl.where(params[None, :] == components + component, eta, 0.0), axis=1)
            log_scale = tl.sum(tl.where(params[None, :] == 2 * components + component, eta, 0.0), axis=1)
            value = location + tl.exp(log_scale) * tl.load(noise + d * B + rows, mask=in_rows, other=0.0)
        value = value.to(weight.dtype.element_ty)
        tl.store(x + d * B + rows, value, mask=in_rows)
        a += value[:, None] * tl.load(weight + d * H + units, mask=in_units, other=0.0)[None, :]


def sample(weights: Weights, uniforms: Tensor, noise: Tensor | None, activation: str) -> Tensor:
    """Rows (B, D), as `pynade.kernels.sample`: Bernoulli variables without noise, mixtures with it."""
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
        sizes, warps = (batch, n_variables, hidden, n_params), max(1, min(8, rows * units // 256))
        _sample[(-(-batch // rows),)](*tensors, *sizes, *constants, num_warps=warps)
    return x.t()[:, order.argsort()].contiguous()
