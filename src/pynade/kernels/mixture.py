"""Log-probabilities of mixtures of one-dimensional distributions and their gradients in one pass, on the CPU.

A few rows at a time are transposed into lanes (one number of each row, contiguous), so that exponentials are
vector loops. Tiles are never cut: a row's result depends neither on other rows nor on the number of threads.
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
from pynade.kernels.private import forward_mode_active
from pynade.kernels.threads import as_arrays, run_tasks, scratch_arrays, thread_count

NORMAL, LAPLACE, LOGISTIC, INTERVAL = range(4)  # INTERVAL: the probability of an interval under logistics
KINDS = {"Normal": NORMAL, "DoubleExponential": LAPLACE, "StandardLogistic": LOGISTIC, "Interval": INTERVAL}

ROWS = 32  # of a tile
FIELDS = 6  # lanes of a component: logit, location, raw scale (then their gradients), and the offsets below
LANES = 8  # lanes of the rows: x, or an interval's lower end, upper end and width; and the offsets below
TASK = 2**14  # numbers of eta for each thread, at least
FLOORS = (1e-30, 1e30)  # range of floors that are normal numbers in float32
NARROW = 0.01  # below this q, 1 - exp(-q) is computed by a series

LANE = np.uint64(ROWS)
MU, RAW, EACH, WEIGHT, PULL = (np.uint64(n * ROWS) for n in range(1, FIELDS))
END, WIDTH, TOP, BEST, TOTAL, MASS, BY_X = (np.uint64(n * ROWS) for n in range(1, LANES))


def suits(x: Tensor, eta: Tensor, kind: str, floor: float) -> bool:
    """Whether the distribution is known, x and eta are rows of one type, and forward mode is not active."""
    known = kind in KINDS and (floor == 0 or FLOORS[0] <= floor <= FLOORS[1])
    return known and x.shape == eta.shape[:-1] and x.dtype == eta.dtype and not forward_mode_active()


def log_prob(x: Tensor, eta: Tensor, *options: Any) -> Tensor:
    """log Σ_c pi_c f((x - mu_c) / sigma_c) / sigma_c, (…), of x (…) and eta (…, 3K); options as `LogProb`."""
    return fused(LogProb(*options), eta, x)


@dataclass
class LogProb:
    """The logarithm of a mixture's density, or of an interval's probability, for `autograd.fused`.

    Tensors: eta (…, 3K): [K logits | K locations | K raw scales], and x (…); or, without gradients, the ends
    a and b of an interval and its width b - a > 0, which is given because the difference may round to zero.

    Example:
        >>> fused(LogProb("Normal", 0.0, 0.0), torch.zeros(1, 6), torch.ones(1))
        tensor([-0.5000])
        >>> one = torch.ones(1)
        >>> fused(LogProb("Interval", 0.0, 0.0), torch.zeros(1, 3), -one, one, 2 * one).exp()  # tanh(1/2)
        tensor([0.4621])
    """

    kind: str  # of the standard distribution f, or "Interval"
    constant: float  # log f minus its kernel
    floor: float  # sigma = floor + exp(raw)
    scaled: bool = False  # multiply the gradient of each location by its sigma
    background: float = 0.0  # weight of one more component of an interval, with location 0 and raw scale 0

    def forward(self, keep: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Log p (…), and its gradients by x and eta, empty unless `keep`."""
        eta, x, *_ = tensors
        n, width, point = x.numel(), eta.shape[-1], len(tensors) == 2
        by_x = x.new_empty(x.shape if keep and point else (*x.shape, 0))
        results = (x.new_empty(x.shape), by_x, x.new_empty((*x.shape, width if keep else 0)))
        cells = (x, x, x) if point else tensors[1:]
        flat = [a.reshape(-1) for a in as_arrays(*cells, eta, *results)]
        threads = min(torch.get_num_threads(), max(1, n * width // TASK))
        rows = max(1, -(-n // (threads * ROWS))) * ROWS  # whole tiles
        constants = np.array((self.constant, self.floor, self.background), flat[0].dtype)
        options = (KINDS[self.kind], self.scaled, *constants)

        def task(number: int) -> None:
            sizes = (number * rows, min(n, (number + 1) * rows), width // 3)
            shapes = (LANES * ROWS,), ((sizes[2] + 1) * FIELDS * ROWS,)
            with scratch_arrays(flat[0].dtype, *shapes) as lanes:
                _rows(*flat, *lanes, *sizes, *options)

        run_tasks(task, -(-n // rows), thread_count("mixture", x, threads))
        return results

    def backward(self, needs: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        """The stored gradients, times the incoming one."""
        *_, by_x, by_eta, grad = tensors
        none = grad.new_empty((*grad.shape, 0))
        return by_eta * grad.unsqueeze(-1) if needs[0] else none, by_x * grad if needs[1] else none


@jit()
def _rows(
    x, end, width, eta, out, by_x, by_eta, row, s,
    first, last, components, code, scaled, constant, floor, background,
):  # fmt: skip
    """Compute rows first … last - 1. s: lanes of the components, background last; row: lanes of the rows."""
    kind = x.dtype.type
    zero, one, low, nan, least = kind(0), kind(1), kind(-np.inf), kind(np.nan), kind(np.finfo(x.dtype).min)
    step, size, odds = np.uint64(FIELDS) * LANE, 3 * components, background / (one - background)
    n_terms = components + (background > zero)
    s[:], row[:] = zero, zero
    for start in range(first, last, ROWS):
        n_rows = min(ROWS, last - start)
        for r in range(n_rows):
            eta_offset, lane = np.uint64((start + r) * size), np.uint64(r)
            row[lane], row[END + lane], row[WIDTH + lane] = x[start + r], end[start + r], width[start + r]
            for c in range(components):
                o, i = np.uint64(c) * step + lane, eta_offset + np.uint64(c)
                s[o], s[o + MU] = eta[i], eta[i + np.uint64(components)]
                s[o + RAW] = eta[i + np.uint64(2 * components)]
        for r in range(LANE):
            row[TOP + r], row[BEST + r] = low, least
            row[TOTAL + r] = row[MASS + r] = row[BY_X + r] = zero
        for c in range(components):
            o = np.uint64(c) * step
            for r in range(LANE):
                row[TOP + r] = s[o + r] if s[o + r] > row[TOP + r] else row[TOP + r]
        for c in range(components):
            o = np.uint64(c) * step
            for r in range(LANE):
                s[o + r] -= row[TOP + r]
                s[o + WEIGHT + r] = exponential(s[o + r])
                row[TOTAL + r] += s[o + WEIGHT + r]
        if n_terms > components:
            o = np.uint64(components) * step
            for r in range(LANE):
                s[o + r] = logarithm(odds * row[TOTAL + r])
                s[o + MU + r] = s[o + RAW + r] = zero
        for c in range(n_terms):
            o = np.uint64(c) * step
            if code == INTERVAL:
                _interval(row, s, o, floor)
            elif code == NORMAL:  # one compiled loop for each code: a common one would compute all of them
                _point(row, s, o, NORMAL, floor, scaled)
            elif code == LAPLACE:
                _point(row, s, o, LAPLACE, floor, scaled)
            else:
                _point(row, s, o, LOGISTIC, floor, scaled)
        for c in range(n_terms):
            o = np.uint64(c) * step
            for r in range(LANE):
                s[o + EACH + r] = exponential(s[o + EACH + r] - row[BEST + r])
                row[MASS + r] += s[o + EACH + r]
        for r in range(LANE):
            mass = row[MASS + r]
            value = row[BEST + r] + logarithm(mass * (one - background) / row[TOTAL + r])
            row[BEST + r] = low if mass == zero else value + constant
            row[MASS + r] = nan if mass == zero else one / mass  # without a gradient
        for r in range(n_rows):
            out[start + r] = row[BEST + np.uint64(r)]
        if len(by_eta):
            o = np.uint64(components) * step
            for r in range(LANE):  # posterior probability of all but the background, over the sum of weights
                rest = one - s[o + EACH + r] * row[MASS + r] if n_terms > components else one
                row[TOTAL + r] = rest / row[TOTAL + r]
            for c in range(components):
                _gradients(row, s, np.uint64(c) * step)
            for r in range(n_rows):
                eta_offset = np.uint64((start + r) * size)
                if len(by_x):
                    by_x[start + r] = row[BY_X + np.uint64(r)]
                for c in range(components):
                    o, i = np.uint64(c) * step + np.uint64(r), eta_offset + np.uint64(c)
                    by_eta[i], by_eta[i + np.uint64(components)] = s[o], s[o + MU]
                    by_eta[i + np.uint64(2 * components)] = s[o + RAW]


@jit(inline=True)
def _point(row, s, o, code, floor, scaled):
    """Log of a component's density times its weight, its derivatives, and the largest logarithm so far."""
    one, two, half = s.dtype.type(1), s.dtype.type(2), s.dtype.type(0.5)
    zero = one - one
    for r in range(LANE):
        raw = s[o + RAW + r]
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
            kernel, decrease = -half * (z * z), z  # minus the derivative of the kernel
        elif code == LAPLACE:
            kernel, decrease = -abs(z), one if z > zero else (-one if z < zero else z)
        else:
            t = exponential(-abs(z))
            kernel, decrease = -abs(z) - two * logarithm(one + t), (one - t) / (one + t)
            decrease = decrease if z > zero else -decrease
        log_term = s[o + r] - log_sigma + kernel
        s[o + EACH + r], s[o + PULL + r] = log_term, decrease * inverse
        s[o + MU + r] = decrease if scaled else decrease * inverse
        s[o + RAW + r] = (decrease * z - one) * slope
        row[BEST + r] = log_term if log_term > row[BEST + r] else row[BEST + r]


@jit(inline=True)
def _interval(row, s, o, floor):
    """`_point` for intervals: σ(v) - σ(-u) = σ(u) σ(v) (1 - exp(-q)), q = u + v, without cancellation."""
    kind = s.dtype.type
    zero, one, least, narrow = kind(0), kind(1), kind(1e-30), kind(NARROW)
    half, third, quarter, fifth = kind(1 / 2), kind(1 / 3), kind(1 / 4), kind(1 / 5)
    for r in range(LANE):
        e = exponential(at_most(s[o + RAW + r]))
        inverse = one / (floor + e)
        u, v = (s[o + MU + r] - row[r]) * inverse, (row[END + r] - s[o + MU + r]) * inverse
        q = row[WIDTH + r] * inverse
        q = least if q < least else q
        eu, ev, eq = exponential(-abs(u)), exponential(-abs(v)), exponential(-q)
        series = q * (one - half * q * (one - third * q * (one - quarter * q * (one - fifth * q))))
        g = series if q < narrow else one - eq
        log_term = s[o + r] + (u if u < zero else zero) + (v if v < zero else zero)
        log_term += logarithm(g / ((one + eu) * (one + ev)))
        su, sv = (eu if u > zero else one) / (one + eu), (ev if v > zero else one) / (one + ev)
        s[o + EACH + r], s[o + MU + r] = log_term, (su - sv) * inverse
        s[o + RAW + r] = -(v * sv + u * su + q * eq / g) * e * inverse
        row[BEST + r] = log_term if log_term > row[BEST + r] else row[BEST + r]


@jit(inline=True)
def _gradients(row, s, o):
    """Derivatives of the mixture's logarithm from those of a component's; that by x is summed."""
    zero = s.dtype.type(0)
    for r in range(LANE):
        posterior = s[o + EACH + r] * row[MASS + r]
        vanishes = posterior == zero  # then derivatives may be infinite
        s[o + r] = posterior - s[o + WEIGHT + r] * row[TOTAL + r]
        s[o + MU + r] = zero if vanishes else posterior * s[o + MU + r]
        s[o + RAW + r] = zero if vanishes else posterior * s[o + RAW + r]
        row[BY_X + r] -= zero if vanishes else posterior * s[o + PULL + r]
