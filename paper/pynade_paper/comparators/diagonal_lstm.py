"""The recurrence of the Diagonal BiLSTM: in torch operations, and as two Triton kernels for GPUs.

Pixel (r, c) of the left-to-right direction lies on diagonal t = r + c and takes its states from diagonal
t - 1: pixels (r, c - 1) and (r - 1, c). The other direction is the mirror image. States outside the image are
zero. In the kernels a program walks over the diagonals of one image in one direction and keeps the states of
all rows; the gates' activations and the states are stored, so the backward pass has nothing to recompute.
"""

# mypy: disable-error-code="import-untyped, import-not-found"
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:  # no kernels, and torch operations do the same
    triton = None


def diagonal_lstm(gates: Tensor, state: Tensor, kernel: bool | None = None) -> Tensor:
    """States h (B, H, W, 2, units) of both directions.

    Args:
        gates: pre-activations (B, H, W, 2, 4 units) from the layer's input, for input, forget and output gate
            and candidate, in each direction.
        state: weights (2, 2, units, 4 units) by direction, from the pixel before in the row [:, 0] and from
            the pixel above [:, 1].
        kernel: run the Triton kernels; None does so on CUDA where the number of units allows it.
    """
    if kernel is None:
        kernel = triton is not None and gates.is_cuda and state.shape[2] in (16, 32, 64)
    if kernel:
        return _Recurrence.apply(gates.contiguous(), state.contiguous())
    return reference(gates, state)


def reference(gates: Tensor, state: Tensor) -> Tensor:
    """The same as `diagonal_lstm` by torch operations, one diagonal after another."""
    B, H, W, _, n = gates.shape
    units, T = n // 4, H + W - 1
    r, t = torch.arange(H, device=gates.device), torch.arange(T, device=gates.device)
    along = t - r[:, None]  # (H, T): which pixel of row r diagonal t meets
    inside = ((along >= 0) & (along < W)).to(gates)
    along = along.clamp(0, W - 1)
    columns = torch.stack([along, W - 1 - along])  # (2, H, T)
    direction = torch.arange(2, device=gates.device)[:, None, None]
    skewed = gates[:, r[:, None], columns, direction].permute(3, 1, 0, 2, 4)  # (T, 2, B, H, 4 units)
    h = cell = gates.new_zeros(2, B, H, units)
    both = state.flatten(1, 2)[:, None]
    states = []
    for k in range(T):
        above = functional.pad(h[:, :, :-1], (0, 0, 1, 0))
        i, f, o, g = (skewed[k] + torch.cat([h, above], -1) @ both).chunk(4, -1)
        cell = inside[:, k, None] * (torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g))
        h = torch.sigmoid(o) * torch.tanh(cell)
        states.append(h)
    c = torch.arange(W, device=gates.device)
    when = torch.stack([r[:, None] + c, r[:, None] + W - 1 - c])  # (2, H, W)
    unskewed = torch.stack(states)[when, direction, :, r[:, None]]  # (2, H, W, B, units)
    return unskewed.permute(3, 1, 2, 0, 4)


class _Recurrence(torch.autograd.Function):
    """The kernels with their derivatives."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, state: Tensor) -> Tensor:
        B, H, W, _, n = gates.shape
        acts = torch.empty_like(gates)
        h, cell = (gates.new_empty(B, H, W, 2, n // 4) for _ in range(2))
        _forward[(B, 2)](gates, state, acts, h, cell, H, W, **_constants(H, n // 4))
        ctx.save_for_backward(acts, state, h, cell)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor]:
        acts, state, h, cell = ctx.saved_tensors
        B, H, W, _, n = acts.shape
        units = n // 4
        dgates = torch.empty_like(acts)
        _backward[(B, 2)](dh.contiguous(), acts, state, cell, dgates, H, W, **_constants(H, units))
        before = h.new_zeros(B, H, W, 2, 2, units)  # states each pixel took, from the row and from above
        before[:, :, 1:, 0, 0] = h[:, :, :-1, 0]
        before[:, :, :-1, 1, 0] = h[:, :, 1:, 1]
        before[:, 1:, :, :, 1] = h[:, :-1]
        taken = before.view(B * H * W, 2, 2 * units).transpose(0, 1)
        dstate = taken.mT @ dgates.view(B * H * W, 2, n).transpose(0, 1)
        return dgates, dstate.view_as(state)


def _constants(H: int, units: int) -> dict[str, Any]:
    exact = torch.get_float32_matmul_precision() == "highest"
    rows = max(16, 1 << (H - 1).bit_length())
    how = {"PRECISION": "ieee" if exact else "tf32", "num_warps": 4, "maxnreg": 128}  # four programs to an SM
    return {"ROWS": rows, "UNITS": units, **how}


if triton is not None:

    @triton.jit
    def _where(t, image, direction, H, W, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Which pixels diagonal t meets, and whether they are in the image."""
        r = tl.arange(0, ROWS)
        along = t - r
        inside = (r < H) & (along >= 0) & (along < W)
        column = tl.where(direction == 0, along, W - 1 - along)
        return ((image * H + r) * W + column) * 2 + direction, inside

    @triton.jit
    def _read(x, pixel, inside, part, UNITS: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Rows (ROWS, UNITS) of one part of a map (…, PARTS · UNITS), zero outside the image."""
        at = pixel[:, None] * (PARTS * UNITS) + part * UNITS + tl.arange(0, UNITS)[None, :]
        return tl.load(x + at, mask=inside[:, None], other=0.0)

    @triton.jit
    def _write(x, pixel, inside, part, value, UNITS: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
        at = pixel[:, None] * (PARTS * UNITS) + part * UNITS + tl.arange(0, UNITS)[None, :]
        tl.store(x + at, value, mask=inside[:, None])

    @triton.jit
    def _weight(state, direction, tap, gate, UNITS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Weights (UNITS, UNITS) from the states of one neighbour to one gate."""
        u = tl.arange(0, UNITS)
        at = ((direction * 2 + tap) * UNITS + u[:, None]) * (4 * UNITS) + gate * UNITS + u[None, :]
        return tl.load(state + at)

    @triton.jit
    def _tanh(x):  # type: ignore[no-untyped-def]
        return 2 * tl.sigmoid(2 * x) - 1

    @triton.jit
    def _gate(x, h, above, row, column, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
        """A gate's pre-activation: from the input, the states of the pixels before and those above."""
        x = tl.dot(h, row, x, input_precision=PRECISION)
        return tl.dot(above, column, x, input_precision=PRECISION)

    @triton.jit
    def _forward(  # type: ignore[no-untyped-def]
        gates, state, acts, h_out, c_out, H, W,
        ROWS: tl.constexpr, UNITS: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        image, d = tl.program_id(0).to(tl.int64), tl.program_id(1)
        i0, f0 = _weight(state, d, 0, 0, UNITS), _weight(state, d, 0, 1, UNITS)
        o0, g0 = _weight(state, d, 0, 2, UNITS), _weight(state, d, 0, 3, UNITS)
        i1, f1 = _weight(state, d, 1, 0, UNITS), _weight(state, d, 1, 1, UNITS)
        o1, g1 = _weight(state, d, 1, 2, UNITS), _weight(state, d, 1, 3, UNITS)
        r = tl.arange(0, ROWS)
        down = (r[:, None] == r[None, :] + 1).to(tl.float32)  # row r takes row r - 1
        h = tl.zeros((ROWS, UNITS), tl.float32)
        c = tl.zeros((ROWS, UNITS), tl.float32)
        pixel, inside = _where(0, image, d, H, W, ROWS)
        i_next, f_next = _read(gates, pixel, inside, 0, UNITS, 4), _read(gates, pixel, inside, 1, UNITS, 4)
        o_next, g_next = _read(gates, pixel, inside, 2, UNITS, 4), _read(gates, pixel, inside, 3, UNITS, 4)
        for t in range(H + W - 1):
            i, f, o, g, here, now = i_next, f_next, o_next, g_next, inside, pixel
            pixel, inside = _where(t + 1, image, d, H, W, ROWS)  # asked for before they are needed
            i_next = _read(gates, pixel, inside, 0, UNITS, 4)
            f_next = _read(gates, pixel, inside, 1, UNITS, 4)
            o_next = _read(gates, pixel, inside, 2, UNITS, 4)
            g_next = _read(gates, pixel, inside, 3, UNITS, 4)
            above = tl.dot(down, h, input_precision=PRECISION)
            i = tl.sigmoid(_gate(i, h, above, i0, i1, PRECISION))
            f = tl.sigmoid(_gate(f, h, above, f0, f1, PRECISION))
            o = tl.sigmoid(_gate(o, h, above, o0, o1, PRECISION))
            g = _tanh(_gate(g, h, above, g0, g1, PRECISION))
            c = tl.where(here[:, None], f * c + i * g, 0.0)
            h = o * _tanh(c)
            _write(acts, now, here, 0, i, UNITS, 4)
            _write(acts, now, here, 1, f, UNITS, 4)
            _write(acts, now, here, 2, o, UNITS, 4)
            _write(acts, now, here, 3, g, UNITS, 4)
            _write(c_out, now, here, 0, c, UNITS, 1)
            _write(h_out, now, here, 0, h, UNITS, 1)

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
        dh, acts, state, cell, dgates, H, W,
        ROWS: tl.constexpr, UNITS: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """From the last diagonal to the first; `back` and `dc` are what later diagonals send to this one."""
        image, d = tl.program_id(0).to(tl.int64), tl.program_id(1)
        i0, f0 = tl.trans(_weight(state, d, 0, 0, UNITS)), tl.trans(_weight(state, d, 0, 1, UNITS))
        o0, g0 = tl.trans(_weight(state, d, 0, 2, UNITS)), tl.trans(_weight(state, d, 0, 3, UNITS))
        i1, f1 = tl.trans(_weight(state, d, 1, 0, UNITS)), tl.trans(_weight(state, d, 1, 1, UNITS))
        o1, g1 = tl.trans(_weight(state, d, 1, 2, UNITS)), tl.trans(_weight(state, d, 1, 3, UNITS))
        r = tl.arange(0, ROWS)
        up = (r[:, None] + 1 == r[None, :]).to(tl.float32)  # row r takes row r + 1
        back = tl.zeros((ROWS, UNITS), tl.float32)
        dc = tl.zeros((ROWS, UNITS), tl.float32)
        T = H + W - 1
        pixel, inside = _where(T - 1, image, d, H, W, ROWS)
        c = _read(cell, pixel, inside, 0, UNITS, 1)
        i_next, f_next = _read(acts, pixel, inside, 0, UNITS, 4), _read(acts, pixel, inside, 1, UNITS, 4)
        o_next, g_next = _read(acts, pixel, inside, 2, UNITS, 4), _read(acts, pixel, inside, 3, UNITS, 4)
        dh_next = _read(dh, pixel, inside, 0, UNITS, 1)
        for k in range(T):
            i, f, o, g, slope, here, now = i_next, f_next, o_next, g_next, dh_next, inside, pixel
            pixel, inside = _where(T - 2 - k, image, d, H, W, ROWS)
            c_before = _read(cell, pixel, inside, 0, UNITS, 1)
            i_next = _read(acts, pixel, inside, 0, UNITS, 4)
            f_next = _read(acts, pixel, inside, 1, UNITS, 4)
            o_next = _read(acts, pixel, inside, 2, UNITS, 4)
            g_next = _read(acts, pixel, inside, 3, UNITS, 4)
            dh_next = _read(dh, pixel, inside, 0, UNITS, 1)
            slope += back
            squashed = _tanh(c)
            dc += slope * o * (1 - squashed * squashed)
            do = slope * squashed * o * (1 - o)  # zero outside the image, as what is read there
            di = dc * g * i * (1 - i)
            df = dc * c_before * f * (1 - f)
            dg = dc * i * (1 - g * g)
            dc *= f
            c = c_before
            _write(dgates, now, here, 0, di, UNITS, 4)
            _write(dgates, now, here, 1, df, UNITS, 4)
            _write(dgates, now, here, 2, do, UNITS, 4)
            _write(dgates, now, here, 3, dg, UNITS, 4)
            below = tl.dot(di, i1, input_precision=PRECISION)
            below = tl.dot(df, f1, below, input_precision=PRECISION)
            below = tl.dot(do, o1, below, input_precision=PRECISION)
            below = tl.dot(dg, g1, below, input_precision=PRECISION)
            back = tl.dot(di, i0, input_precision=PRECISION)
            back = tl.dot(df, f0, back, input_precision=PRECISION)
            back = tl.dot(do, o0, back, input_precision=PRECISION)
            back = tl.dot(dg, g0, back, input_precision=PRECISION)
            back = tl.dot(up, below, back, input_precision=PRECISION)
