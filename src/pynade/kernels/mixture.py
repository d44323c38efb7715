"""Log-densities of mixtures of K one-dimensional distributions and their gradients in one pass, on the CPU.

With torch this is some thirty passes over tensors as large as eta. Here a few rows at a time are transposed
into lanes (one number of each row, side by side), so that every exponential is a vector loop whatever K is. A
tile is always computed whole: the result of a row depends neither on the other rows nor on the number of
threads. It is that of `families.mixture`, to rounding.
"""

# mypy: disable-error-code="no-untyped-def"
# (numba reads the arguments' types off the call, and compares signatures with annotations included)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade.kernels.autograd import fused
from pynade.kernels.cpu_scalar import at_most, exponential, jit, logarithm
from pynade.kernels.private import forward_mode
from pynade.kernels.threads import arrays, borrowed, share, thread_count

NORMAL, LAPLACE, LOGISTIC = range(3)  # codes of the standard distributions
STANDARD = {"Normal": NORMAL, "DoubleExponential": LAPLACE, "StandardLogistic": LOGISTIC}

ROWS = 32  # in a tile
FIELDS = 6  # lanes of a component: logit, location, raw scale (then their gradients), z, slope of sigma, each
TASK = 2**14  # numbers of eta below which another thread costs more than it brings
FLOORS = (1e-30, 1e30)  # between which a floor is an ordinary number in float32

LANE = np.uint64(ROWS)
MU, RAW, Z, SLOPE, EACH = (np.uint64(n * ROWS) for n in range(1, FIELDS))
TOP, BEST, WEIGHT, TOTAL, PULL = (np.uint64(n * ROWS) for n in range(1, 6))  # lanes of the rows, after x


def suits(x: Tensor, eta: Tensor, name: str, floor: float) -> bool:
    """Whether the distribution is known, x and eta are rows of one type, and forward mode is not active."""
    known = name in STANDARD and (floor == 0 or FLOORS[0] <= floor <= FLOORS[1])
    alike = x.shape == eta.shape[:-1] and x.dtype == eta.dtype
    return known and alike and not forward_mode()


def log_prob(x: Tensor, eta: Tensor, *options: Any) -> Tensor:
    """Log of Σ_c pi_c f((x - mu_c) / sigma_c) / sigma_c: x (…), eta (…, 3K) -> (…); options: of `LogProb`.

    Example:
        >>> import torch
        >>> log_prob(torch.ones(1), torch.zeros(1, 6), "Normal", 0.0, 0.0, False)
        tensor([-0.5000])
    """
    return fused(LogProb(*options), x, eta)


@dataclass
class LogProb:
    """The log-density, for `autograd.fused`; x (…), eta (…, 3K): [K logits | K locations | K raw scales]."""

    name: str  # of the standard distribution f
    constant: float  # log f is its kernel and this
    floor: float  # sigma = floor + exp(raw)
    scaled: bool  # multiply the gradient of each location by its sigma

    def forward(self, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Log p (…), and its gradients by x and eta, empty unless `keep`."""
        x, eta = tensors
        n, width = x.numel(), eta.shape[-1]
        out = x.new_empty(x.shape)
        by_x = x.new_empty(x.shape if keep else (*x.shape, 0))
        by_eta = x.new_empty((*x.shape, width if keep else 0))
        values, etas, *results = (a.reshape(-1) for a in arrays(x, eta, out, by_x, by_eta))
        threads = min(torch.get_num_threads(), max(1, n * width // TASK))
        rows = -(-n // (threads * ROWS)) * ROWS  # whole tiles
        size = ROWS * (6 + FIELDS * (width // 3))
        numbers = values.dtype.type(self.constant), values.dtype.type(self.floor)
        options = (STANDARD[self.name], *numbers, self.scaled, keep)

        def task(number: int) -> None:
            with borrowed(size, values.dtype) as scratch:
                first = number * rows
                sizes = (first, min(n, first + rows), width // 3)
                _rows(values, etas, *results, scratch[: 6 * ROWS], scratch[6 * ROWS :], *sizes, *options)

        share(task, -(-n // rows) if n else 0, thread_count("mixture", x, threads))
        return out, by_x, by_eta

    def backward(self, needs: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        """The stored gradients, times the incoming one."""
        _, _, by_x, by_eta, grad = tensors
        of_x = by_x * grad if needs[0] else grad.new_empty((*grad.shape, 0))
        return of_x, by_eta * grad.unsqueeze(-1) if needs[1] else grad.new_empty((*grad.shape, 0))


@jit()
def _rows(
    x, eta, out, by_x, by_eta, row, s, first, last, components, code, constant, floor, scaled, gradients
):
    """Rows first … last - 1. s: lanes of the components; row: lanes of x and what is summed over them."""
    zero, one, low, nan = x.dtype.type(0), x.dtype.type(1), x.dtype.type(-np.inf), x.dtype.type(np.nan)
    step, width = np.uint64(FIELDS) * LANE, 3 * components
    s[:], row[:] = zero, zero
    for start in range(first, last, ROWS):
        some = min(ROWS, last - start)
        for r in range(some):
            here = np.uint64((start + r) * width)
            row[r] = x[start + r]
            for c in range(components):
                o, i = np.uint64(c) * step + np.uint64(r), here + np.uint64(c)
                s[o], s[o + MU] = eta[i], eta[i + np.uint64(components)]
                s[o + RAW] = eta[i + np.uint64(2 * components)]
        for r in range(LANE):
            row[TOP + r] = row[BEST + r] = low
            row[WEIGHT + r] = row[TOTAL + r] = row[PULL + r] = zero
        for c in range(components):
            o = np.uint64(c) * step
            for r in range(LANE):
                row[TOP + r] = s[o + r] if s[o + r] > row[TOP + r] else row[TOP + r]
        for c in range(components):
            _each(row, s, np.uint64(c) * step, code, floor)
        for r in range(LANE):  # the sum of all components' zeros is finite
            row[BEST + r] = zero if row[BEST + r] == low else row[BEST + r]
        for c in range(components):
            o = np.uint64(c) * step
            for r in range(LANE):  # exponentials relative to the largest, in place, and their sums
                weight, each = exponential(s[o + r]), exponential(s[o + EACH + r] - row[BEST + r])
                s[o + r], s[o + EACH + r] = weight, each
                row[WEIGHT + r] += weight
                row[TOTAL + r] += each
        for r in range(LANE):
            total = row[TOTAL + r]
            value = row[BEST + r] + logarithm(total / row[WEIGHT + r])
            row[BEST + r] = low if total == zero else value + constant
            row[TOTAL + r] = nan if total == zero else one / total  # no slope leads back from there
            row[WEIGHT + r] = one / row[WEIGHT + r]
        for r in range(some):
            out[start + r] = row[BEST + np.uint64(r)]
        if gradients:
            for c in range(components):
                _slopes(row, s, np.uint64(c) * step, code, floor, scaled)
            for r in range(some):
                here = np.uint64((start + r) * width)
                by_x[start + r] = row[PULL + np.uint64(r)]
                for c in range(components):
                    o, i = np.uint64(c) * step + np.uint64(r), here + np.uint64(c)
                    by_eta[i], by_eta[i + np.uint64(components)] = s[o], s[o + MU]
                    by_eta[i + np.uint64(2 * components)] = s[o + RAW]


@jit(inline=True)
def _each(row, s, o, code, floor):
    """Log of a component but for the sum of all weights, and the largest so far.

    Stored: the logit relative to the largest, z, 1 / sigma in place of raw, d log sigma / d raw.
    """
    one, two, half = s.dtype.type(1), s.dtype.type(2), s.dtype.type(0.5)
    zero = one - one
    for r in range(LANE):
        logit, raw = s[o + r] - row[TOP + r], s[o + RAW + r]
        if floor == zero:
            log_sigma, slope = raw, one
            inverse = exponential(-raw)
        else:
            e = exponential(at_most(raw))
            inverse = one / (floor + e)
            slope = e * inverse
            log_sigma = raw if at_most(raw) < raw else logarithm(floor + e)
        z = (row[r] - s[o + MU + r]) * inverse
        if code == NORMAL:
            kernel = -half * (z * z)
        elif code == LAPLACE:
            kernel = -abs(z)
        else:
            kernel = -abs(z) - two * logarithm(one + exponential(-abs(z)))
        each = logit - log_sigma + kernel
        s[o + RAW + r], s[o + Z + r], s[o + SLOPE + r], s[o + EACH + r] = inverse, z, slope, each
        s[o + r] = logit
        row[BEST + r] = each if each > row[BEST + r] else row[BEST + r]


@jit(inline=True)
def _slopes(row, s, o, code, floor, scaled):
    """Gradients by logit, location and raw scale in their places; by x in a sum."""
    one = s.dtype.type(1)
    zero = one - one
    for r in range(LANE):
        share_of = s[o + EACH + r] * row[TOTAL + r]
        z, inverse = s[o + Z + r], s[o + RAW + r]
        if code == NORMAL:
            fall = z  # minus the derivative of the kernel
        elif code == LAPLACE:
            fall = one if z > zero else (-one if z < zero else z)
        else:
            t = exponential(-abs(z))
            fall = (one - t) / (one + t)
            fall = fall if z > zero else -fall
        pull = share_of * fall
        s[o + r] = share_of - s[o + r] * row[WEIGHT + r]
        s[o + MU + r] = pull if scaled else pull * inverse
        s[o + RAW + r] = (pull * z - share_of) * s[o + SLOPE + r]
        row[PULL + r] -= pull * inverse
