"""Sums over all 2^H states of binary units: exact, in blocks, in float64.

States are numbered with the first unit as the most significant bit. Units are cut in two parts, so that
e^a_d = e^u_d e^l_d needs no exponential of its own, and one logarithm serves factors 1 + e^a_d of several d.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pynade.classical.binary import bernoulli_draws, choose
from pynade.classical.em import Random
from pynade.kernels.backends import available
from pynade.kernels.threads import share

MOST_UNITS = 25  # 2^25 states: a table of 256 MiB
LOW_UNITS = 10  # of the inner part; its table is packed in tiles
LARGEST = 690.0  # e^690 is still a float64
BLOCK = {"cpu": 2**20, "cuda": 2**26}  # values of a at a time where there is no kernel
TINY = 1e-260  # a sum of products this small may have lost terms to underflow
STATES_BLOCK = 2**20  # values at a time, of rows and states


def linear_table(c: Tensor) -> Tensor:
    """Σ_k c_k h_k of every state: (…, H) -> (…, 2^H), float64."""
    c = c.double()
    sums = c.new_zeros(*c.shape[:-1], 1)
    for k in reversed(range(c.shape[-1])):
        sums = torch.cat([sums, sums + c[..., k : k + 1]], -1)
    return sums


def softplus_table(weight: Tensor, bias: Tensor) -> Tensor:
    """Σ_d log(1 + exp(b_d + Σ_k h_k W_kd)) of every state h: W (H, D), b (D,) -> (2^H,), float64."""
    hidden, cut = len(weight), max(0, len(weight) - LOW_UNITS)
    if hidden > MOST_UNITS:
        raise ValueError(f"a sum over all states takes at most {MOST_UNITS} units, not {hidden}")
    weight, bias = weight.detach().double(), bias.detach().double()
    if weight.shape[1] == 0:
        return weight.new_zeros(2**hidden)
    low, high = linear_table(weight[cut:].T), linear_table(weight[:cut].T) + bias[:, None]  # (D, 2^units)
    fits = max(high.abs().max(), low.abs().max(), (high.amax(1) + low.amax(1)).max()) < LARGEST / 4
    if weight.device.type == "cpu" and bool(fits) and available("numba"):
        return _by_products(high, low)
    return _by_logs(high, low)


def bits(states: Tensor, units: int) -> Tensor:
    """The values (…, units) of numbered states, first unit first, float64."""
    shifts = torch.arange(units - 1, -1, -1, device=states.device)
    return (states.unsqueeze(-1) >> shifts & 1).double()


def _by_logs(high: Tensor, low: Tensor) -> Tensor:
    """The plain way: a block of outer states against all inner ones."""
    table = high.new_empty(high.shape[1], low.shape[1])
    rows = max(1, BLOCK.get(high.device.type, BLOCK["cpu"]) // low.numel())
    for start in range(0, len(table), rows):
        a = high[:, start : start + rows, None] + low[:, None, :]
        table[start : start + rows] = -functional.logsigmoid(a.neg_()).sum(0)
    return table.flatten()


def _by_products(high: Tensor, low: Tensor) -> Tensor:
    """The fast way, on the CPU's threads."""
    from pynade.classical.rbm_kernel import TILE, UNROLL, products  # brings in numba

    groups: list[list[int]] = [[]]  # runs of variables whose factors' largest product is still finite
    total = 0.0
    for d, size in enumerate(torch.logaddexp(high.amax(1) + low.amax(1), high.new_zeros(())).tolist()):
        if total + size > LARGEST:
            groups.append([])
            total = 0.0
        groups[-1].append(d)
        total += size
    width = max(-(-len(group) // UNROLL) for group in groups) * UNROLL
    # variables by group, padded with factors 1 + 0 · 0; inner states by tile, padded with states never read
    tiles = -(-low.shape[1] // TILE)
    outer = high.new_zeros(high.shape[1], len(groups), width)
    inner = high.new_zeros(tiles, len(groups), width, TILE)
    padded = functional.pad(low, (0, tiles * TILE - low.shape[1]))
    for g, group in enumerate(groups):
        outer[:, g, : len(group)] = high[group].T.exp()
        inner[:, g, : len(group)] = padded[group].exp().view(len(group), tiles, TILE).transpose(0, 1)
    table = high.new_empty(high.shape[1], tiles * TILE)
    arrays = (outer.numpy(), inner.numpy(), table.numpy())
    step = max(1, len(table) // 64)
    products(*arrays, 0, 1)  # compiles here, not in two threads at once

    def task(number: int) -> None:
        products(*arrays, number * step, min(len(table), (number + 1) * step))

    share(task, -(-len(table) // step), torch.get_num_threads())
    return table[:, : low.shape[1]].flatten()


class HiddenStates:
    """Sums over hidden units, the free visible ones summed out: of weights (H, free) and bias (free,)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias, self.hidden = weight, bias, len(weight)
        self.outer = max(0, self.hidden - LOW_UNITS)  # units of the outer part
        self.table = softplus_table(weight, bias).view(2**self.outer, -1)
        self.largest = self.table.amax(1)
        self.scaled = (self.table - self.largest[:, None]).exp_()

    def log_sum(self, c: Tensor) -> Tensor:
        """log Σ_h exp(c · h) Π_d (1 + exp(b_d + W_d · h)): (R, H) -> (R,)."""
        return torch.logsumexp(self._outer_weights(c), -1)

    def draw(self, c: Tensor, n: int, generator: Random) -> Tensor:
        """Free variables (n, R, free): the outer part of h, the inner part given it, then x given h."""
        outer = choose(self._outer_weights(c), n, generator)  # (n, R)
        inner_log = linear_table(c[:, self.outer :])
        inner = torch.empty_like(outer)
        size = max(1, STATES_BLOCK // inner_log.numel())
        for some, drawn in zip(outer.split(size), inner.split(size), strict=True):
            weights = self.table[some] + inner_log  # (some, R, 2^inner)
            drawn.copy_(choose(weights.flatten(0, 1), 1, generator).view(drawn.shape))
        h = bits(outer * self.table.shape[1] + inner, self.hidden)
        return bernoulli_draws(h @ self.weight + self.bias, generator)

    def logits(self, c: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of some free variables."""
        inner_log, outer_log = linear_table(c[:, self.outer :]), linear_table(c[:, : self.outer])
        total = self.log_sum(c)
        weight = self.weight[:, which].T  # (which, H)
        low = linear_table(weight[:, self.outer :]).T  # (2^inner, which)
        high = (linear_table(weight[:, : self.outer]) + self.bias[which, None]).T
        one = zero = c.new_zeros(len(c), len(which))
        size = max(1, STATES_BLOCK // (len(low) * max(len(which), len(c))))
        for start in range(0, len(high), size):
            part = slice(start, start + size)
            log_p = self.table[part] + inner_log[:, None] + outer_log[:, part, None]  # (R, part, 2^inner)
            p = (log_p - total[:, None, None]).exp_().flatten(1)
            a = (high[part, None] + low).flatten(0, 1)
            one = one + p @ torch.sigmoid(a)
            zero = zero + p @ torch.sigmoid(a.neg_())
        return one.log() - zero.log()

    def _outer_weights(self, c: Tensor) -> Tensor:
        """Log-weights (R, 2^outer) of the outer part of h, the inner part summed by a matrix product."""
        inner_log = linear_table(c[:, self.outer :])
        top = inner_log.amax(1, keepdim=True)
        sums = (inner_log - top).exp() @ self.scaled.T
        out = sums.log() + self.largest + top
        for r in (sums < TINY).any(1).nonzero().squeeze(-1).tolist():  # the slow way loses nothing
            out[r] = torch.logsumexp(self.table + inner_log[r], 1)
        return out + linear_table(c[:, : self.outer])


class VisibleStates:
    """Sums over the free visible units, the hidden ones summed out; arguments as for `HiddenStates`."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.free, self.linear = weight, len(bias), linear_table(bias)

    def log_sum(self, c: Tensor) -> Tensor:
        """log Σ_x exp(b · x) Π_k (1 + exp(c_k + W_k · x)): (R, H) -> (R,)."""
        return torch.stack([torch.logsumexp(self._weights(row), 0) for row in c])

    def draw(self, c: Tensor, n: int, generator: Random) -> Tensor:
        """Free variables (n, R, free)."""
        return bits(torch.cat([choose(self._weights(r)[None], n, generator) for r in c], 1), self.free)

    def logits(self, c: Tensor, which: Tensor) -> Tensor:
        """Logits (R, which) of p(x_d = 1) of some free variables."""
        out = c.new_empty(len(c), len(which))
        for r, row in enumerate(c):
            weights = self._weights(row)
            for j, d in enumerate(which.tolist()):
                out[r, j] = weights.view(2**d, 2, -1).logsumexp((0, 2)).diff()
        return out

    def _weights(self, c: Tensor) -> Tensor:
        return self.linear + softplus_table(self.weight.T, c)
