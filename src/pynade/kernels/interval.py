"""Log-probabilities of intervals under mixtures of K logistics and their gradients in one pass, on the CPU.

This is the arithmetic of `families.PerColumn` for columns of numbers. Written with torch it is some twenty
passes over tensors as large as eta, and as many again for the gradient. Here, as in `kernels.mixture`, some
cells at a time are transposed into lanes, and every exponential is a vector loop over a lane. A tile is
always computed whole, so the result of a cell depends neither on the others nor on the number of threads.
"""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.cpu_scalar import at_most, exponential, jit, logarithm
from pynade.kernels.threads import arrays, borrowed, share, thread_count

ROWS = 32  # cells in a tile
FIELDS = 4  # lanes of a component: logit, location, raw scale (then their gradients), log-probability
LANES = 7  # of a cell
TASK = 2**14  # numbers of eta below which another thread costs more than it brings
NARROW = 0.01  # q below which 1 - exp(-q) is a series

LANE = np.uint64(ROWS)
MU, RAW, EACH = (np.uint64(n * ROWS) for n in range(1, FIELDS))
B_END, WIDTH, TOP, BEST, TOTAL, MASS = (
    np.uint64(n * ROWS) for n in range(1, LANES)
)  # lanes of the cells, after a


@dataclass
class IntervalLogProb:
    """Log of Σ_c pi_c (σ((b - mu_c) / s_c) - σ((a - mu_c) / s_c)) for `autograd.fused`; eta has gradients.

    Tensors: eta (…, 3K): [K logits | K locations | K raw scales], with s = floor + exp(raw); the lower and
    upper ends a and b (…); the widths b - a, above 0, which may be too small to show in the difference.

    Example:
        >>> from pynade.kernels.autograd import fused
        >>> one = torch.ones(1)
        >>> fused(IntervalLogProb(0.0, 0.0), torch.zeros(1, 3), -one, one, 2 * one).exp()  # tanh(1/2)
        tensor([0.4621])
    """

    floor: float  # smallest scale
    background: float  # weight of one more component of location 0 and raw scale 0

    def forward(self, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Log p (…), and its gradient by eta, empty unless `keep`."""
        eta, a, b, width = tensors
        n, size = a.numel(), eta.shape[-1]
        out, by_eta = a.new_empty(a.shape), a.new_empty((*a.shape, size if keep else 0))
        parts = [part.reshape(-1) for part in arrays(a, b, width, eta, out, by_eta)]
        threads = min(torch.get_num_threads(), max(1, n * size // TASK))
        rows = max(1, -(-n // (threads * ROWS))) * ROWS  # whole tiles
        dtype, numbers = parts[0].dtype, [parts[0].dtype.type(v) for v in (self.floor, self.background)]

        def task(number: int) -> None:
            with borrowed(ROWS * (LANES + FIELDS * (size // 3 + 1)), dtype) as scratch:
                first = number * rows
                lanes = (scratch[: LANES * ROWS], scratch[LANES * ROWS :])
                _cells(*parts, *lanes, first, min(n, first + rows), size // 3, *numbers)

        share(task, -(-n // rows), thread_count("interval", a, threads))
        return out, by_eta

    def backward(self, needs: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        """The stored gradient, times the incoming one."""
        *_, by_eta, grad = tensors
        return (by_eta * grad.unsqueeze(-1),)


@jit()
def _cells(a, b, width, eta, out, by_eta, row, s, first, last, components, floor, background):
    """Cells first … last - 1. s: lanes of the components, the background last; row: lanes of the cells."""
    kind = a.dtype.type
    zero, one, low = kind(0), kind(1), kind(-np.inf)
    step, size, share_of = np.uint64(FIELDS) * LANE, 3 * components, background / (one - background)
    s[:], row[:] = zero, one
    for start in range(first, last, ROWS):
        some = min(ROWS, last - start)
        for r in range(some):
            here = np.uint64((start + r) * size)
            row[r], row[B_END + np.uint64(r)] = a[start + r], b[start + r]
            row[WIDTH + np.uint64(r)] = width[start + r]
            for c in range(components):
                o, i = np.uint64(c) * step + np.uint64(r), here + np.uint64(c)
                s[o], s[o + MU] = eta[i], eta[i + np.uint64(components)]
                s[o + RAW] = eta[i + np.uint64(2 * components)]
        for r in range(LANE):
            row[TOP + r] = row[BEST + r] = low
            row[TOTAL + r] = row[MASS + r] = zero
        for c in range(components):
            o = np.uint64(c) * step
            for r in range(LANE):
                row[TOP + r] = s[o + r] if s[o + r] > row[TOP + r] else row[TOP + r]
        for c in range(components):
            o = np.uint64(c) * step
            for r in range(LANE):
                s[o + r] -= row[TOP + r]
                row[TOTAL + r] += exponential(s[o + r])
        o = np.uint64(components) * step
        for r in range(LANE):
            s[o + r] = logarithm(share_of * row[TOTAL + r]) if share_of > zero else low
            s[o + MU + r] = s[o + RAW + r] = zero
        for c in range(components + 1):
            _interval(row, s, np.uint64(c) * step, floor)
        for c in range(components + 1):
            o = np.uint64(c) * step
            for r in range(LANE):
                s[o + EACH + r] = exponential(s[o + EACH + r] - row[BEST + r])
                row[MASS + r] += s[o + EACH + r]
        for r in range(LANE):
            mass = row[MASS + r]
            value = row[BEST + r] + logarithm(mass * (one - background) / row[TOTAL + r])
            row[BEST + r] = value if mass > zero else low
            row[MASS + r] = one / mass
        for r in range(some):
            out[start + r] = row[BEST + np.uint64(r)]
        if len(by_eta):
            _gradients(row, s, by_eta, start, some, components)


@jit(inline=True)
def _interval(row, s, o, floor):
    """Log of σ(v) - σ(-u) = σ(u) σ(v) (1 - exp(-q)), q = u + v, which loses no digits, and of the weight.

    Stored: it, and its derivatives by location and raw scale in their places; and the largest so far.
    """
    kind = s.dtype.type
    zero, one, least, narrow = kind(0), kind(1), kind(1e-30), kind(NARROW)
    half, third, quarter, fifth = kind(1 / 2), kind(1 / 3), kind(1 / 4), kind(1 / 5)
    for r in range(LANE):
        e = exponential(at_most(s[o + RAW + r]))
        inverse = one / (floor + e)
        u, v = (s[o + MU + r] - row[r]) * inverse, (row[B_END + r] - s[o + MU + r]) * inverse
        q = row[WIDTH + r] * inverse
        q = least if q < least else q
        eu, ev, eq = exponential(-abs(u)), exponential(-abs(v)), exponential(-q)
        short = q * (one - half * q * (one - third * q * (one - quarter * q * (one - fifth * q))))
        g = short if q < narrow else one - eq
        each = s[o + r] + (u if u < zero else zero) + (v if v < zero else zero)
        each += logarithm(g / ((one + eu) * (one + ev)))
        su, sv = (eu if u > zero else one) / (one + eu), (ev if v > zero else one) / (one + ev)
        s[o + EACH + r], s[o + MU + r] = each, (su - sv) * inverse
        s[o + RAW + r] = -(v * sv + u * su + q * eq / g) * e * inverse
        row[BEST + r] = each if each > row[BEST + r] else row[BEST + r]


@jit(inline=True)
def _gradients(row, s, by_eta, start, some, components):
    """Gradients of the cells' log-probabilities by eta, back in rows."""
    step, size = np.uint64(FIELDS) * LANE, 3 * components
    o = np.uint64(components) * step
    for r in range(LANE):  # share of all but the background, over the sum of weights
        row[TOTAL + r] = (s.dtype.type(1) - s[o + EACH + r] * row[MASS + r]) / row[TOTAL + r]
    for c in range(components):
        o = np.uint64(c) * step
        for r in range(LANE):
            share_of = s[o + EACH + r] * row[MASS + r]
            s[o + r] = share_of - exponential(s[o + r]) * row[TOTAL + r]
            s[o + MU + r] *= share_of
            s[o + RAW + r] *= share_of
    for r in range(some):
        here = np.uint64((start + r) * size)
        for c in range(components):
            o, i = np.uint64(c) * step + np.uint64(r), here + np.uint64(c)
            by_eta[i], by_eta[i + np.uint64(components)] = s[o], s[o + MU]
            by_eta[i + np.uint64(2 * components)] = s[o + RAW]
