"""Ancestral sampling on the CPU: many rows are drawn together from each tile of weights.

A step needs eta over all hidden units before the next can begin, so a row keeps all its lanes. For binary
data two steps are computed together on the guess that x stays zero; after a one the second is computed again
while the activations change.

And what else is drawn on the CPU: uniform numbers, random subsets of variables.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pynade.kernels import cpu_vector as vec
from pynade.kernels.backends import Uniforms
from pynade.kernels.cpu import arrays, check_order, lanes_of, suits_odds, thread_count
from pynade.kernels.cpu_scalar import NEVER, jit, nth, power
from pynade.kernels.reference import Weights
from pynade.kernels.threads import borrowed, share

ROWS = 128  # rows that share a tile of weights
STEPS = 16  # steps after which the next rows come
DRAWN = 2**16  # uniform numbers of one task
CHOSEN = 64  # rows of one task of `choose`
BERNOULLI, MIXTURE = 0, 1  # what is drawn from eta; a new family is a new code and a branch in `_sample`


def sample(weights: Weights, uniforms: Tensor | Uniforms, noise: Tensor | None, activation: str) -> Tensor:
    """Rows (B, D), as `pynade.kernels.sample`: Bernoulli variables without noise, mixtures with it."""
    check_order(weights.order, len(weights.weight))
    code = vec.CODES[activation]
    if noise is not None or not suits_odds(weights.weight, activation):
        return _run(weights, uniforms, noise, code)[0]
    x, bad = _run(weights, uniforms, None, vec.ODDS)
    if bad.any():
        given = uniforms if isinstance(uniforms, Tensor) else uniforms.tensor(x.dtype, x.device)
        x[bad] = _run(weights, given[bad], None, code)[0]
    return x


def _run(
    weights: Weights, uniforms: Tensor | Uniforms, noise: Tensor | None, code: int
) -> tuple[Tensor, Tensor]:
    """Rows, and which of them left the range of `ODDS`."""
    weight, hidden_bias, output, bias, order = weights
    n_variables, n_params, hidden = output.shape
    if isinstance(uniforms, Tensor):
        batch, seed = len(uniforms), 0
    else:  # none given: the loop draws them
        batch, seed, uniforms = uniforms.rows, uniforms.seed, weight.new_empty(uniforms.rows, 0)
    x = weight.new_empty(batch, n_variables)
    bad = torch.zeros(batch, dtype=torch.bool)
    family = BERNOULLI if noise is None else MIXTURE
    noise = uniforms if noise is None else noise
    inputs = arrays(weight, hidden_bias, output, bias[order], order, uniforms, noise, x, bad)
    threads = torch.get_num_threads()
    rows = max(1, min(ROWS, -(-batch // threads)))
    padded, (lanes, width) = -(-rows // vec.FOUR) * vec.FOUR, lanes_of(hidden)
    steps = max(2, STEPS // n_params)
    tiles = lanes * width * (steps * (1 + n_params) + 1) + steps
    size = tiles + padded * (lanes * vec.FORWARD_STATE + 1) + vec.GROUP * (n_params + 4)

    def task(number: int) -> None:
        first = number * rows
        where = (first, min(batch, first + rows))
        with borrowed(size, inputs[0].dtype) as scratch:
            options = (np.uint64(seed), family, code, steps, width)
            _sample(*inputs, *options, *where, scratch, np.empty(vec.GROUP, np.int64))

    share(task, -(-batch // rows), thread_count("sample", x, threads))
    return x, bad


@jit(inline=True)
def _mixture(eta, r, components, uniform, noise):  # type: ignore[no-untyped-def]
    """One value from row r's [K logits | K locations | K log scales]."""
    top = eta[0, r]
    for k in range(1, components):
        top = max(top, eta[k, r])
    total = 0.0
    for k in range(components):
        total += math.exp(eta[k, r] - top)
    cumulative, chosen = 0.0, components - 1
    for k in range(components - 1):
        cumulative += math.exp(eta[k, r] - top)
        if uniform * total < cumulative:
            chosen = k
            break
    return eta[chosen + components, r] + math.exp(eta[chosen + 2 * components, r]) * noise


@jit(inline=True)
def draw(to, seed, start, stride):  # type: ignore[no-untyped-def]
    """Every stride-th number of a seed."""
    zero = to.dtype.type(0)
    for r in range(np.uint64(vec.GROUP)):
        to[r] = nth(seed, start + r * stride, zero)


@jit(inline=True)
def toss(drawn, eta, bias):  # type: ignore[no-untyped-def]
    """From uniform numbers to ones with probability sigmoid(eta + bias), and zeros."""
    zero, one = drawn.dtype.type(0), drawn.dtype.type(1)
    for r in range(np.uint64(vec.GROUP)):
        logit = eta[r] + bias
        hit = (drawn[r] * (one + power(-logit)) < one) & (logit > NEVER)
        drawn[r] = one if hit else zero


@jit()
def _sample(  # type: ignore[no-untyped-def]
    weight, hidden_bias, output, bias, order, uniforms, noise, x, bad,
    seed, family, code, steps, width, first, last, scratch, moved,
):  # fmt: skip
    """Rows first … last - 1. Biases are in step order."""
    (n_variables, n_params), hidden, rows = bias.shape, len(hidden_bias), last - first
    uniforms, noise, x, bad = uniforms[first:last], noise[first:last], x[first:last], bad[first:last]
    weights, outputs = weight.reshape(-1), output.reshape(-1)
    lanes, wide = -(-hidden // width), np.uint64(width)
    zero, one, padded = x.dtype.type(0), x.dtype.type(1), -(-rows // vec.FOUR) * vec.FOUR
    row, lane_of_w, lane_of_v = lanes * vec.FORWARD_STATE, steps * width, (steps * n_params + 1) * width
    a, b = padded * row, padded * row + vec.GROUP
    state, drawn, scratch = scratch[:a], scratch[a:b], scratch[b:]
    a, b = lanes * lane_of_w, lanes * lane_of_v
    w, v, scratch = scratch[:a], scratch[a : a + b], scratch[a + b :]
    bounds, marks, scratch = scratch[:padded], scratch[padded : padded + steps], scratch[padded + steps :]
    a = vec.GROUP * (n_params + 1)
    eta, part = scratch[:a].reshape(-1, vec.GROUP), scratch[a : a + 2 * vec.GROUP].reshape(2, vec.GROUP)
    state[:], bounds[:], x[:] = one if code == vec.ODDS else zero, one, zero
    pair = 2 if n_params == 1 else 1  # steps computed together
    given = uniforms.shape[1] > 0
    for r in range(rows):
        for lane in range(lanes):
            o, k0 = np.uint64(r * row + lane * vec.FORWARD_STATE), np.uint64(lane * width)
            units = np.uint64(max(0, min(width, hidden - lane * width)))
            bounds[r] = min(bounds[r], vec.load(state, o, hidden_bias, k0, units, code))
            bad[r] |= (code == vec.ODDS) & (bounds[r] == zero)
            vec.activate(state, o, vec.H, wide, code)
    for d0 in range(0, n_variables, steps):
        for t in range(min(steps, n_variables - d0)):
            marks[t] = one
            for lane in range(lanes):
                places = (lane * lane_of_w + t * width, lane * lane_of_v + t * n_params * width)
                sizes = (order[d0 + t], n_params, hidden, lane * width, width, code)
                marks[t] = min(marks[t], vec.fetch(w, v, *places, weights, outputs, *sizes))
            if code == vec.ODDS and marks[t] == zero:
                bad[:] = True
        for r0 in range(0, rows, vec.GROUP):
            for d1 in range(d0, min(n_variables, d0 + steps), pair):
                last = min(n_variables, d1 + pair)
                for q in range(0, min(vec.GROUP, padded - r0), vec.FOUR):
                    for p in range(0, n_params, 2):
                        for lane in range(lanes):
                            o = np.uint64((r0 + q) * row + lane * vec.FORWARD_STATE)
                            j = np.uint64(lane * lane_of_v + ((d1 - d0) * n_params + p) * width)
                            if lane == 0:
                                vec.dots(state, o + vec.H, np.uint64(row), v, j, wide, eta, p, q)
                                continue
                            vec.dots(state, o + vec.H, np.uint64(row), v, j, wide, part, 0, q)
                            for r in range(q, q + vec.FOUR):
                                eta[p, r] += part[0, r]
                                eta[p + 1, r] += part[1, r]
                for d in range(d1, last):
                    present = min(vec.GROUP, rows - r0)
                    if family == BERNOULLI:
                        if given:
                            for r in range(present):
                                drawn[r] = uniforms[r0 + r, d]
                        else:
                            start = np.uint64((first + r0) * n_variables + d)
                            draw(drawn, seed, start, np.uint64(n_variables))
                        toss(drawn, eta[d - d1], bias[d, 0])
                    else:
                        for r in range(present):
                            for p in range(n_params):
                                eta[p, r] += bias[d, p]
                            uniform, z = uniforms[r0 + r, d], noise[r0 + r, d]
                            drawn[r] = _mixture(eta, r, n_params // 3, uniform, z)
                    number = 0
                    for r in range(present):  # first a list: a branch that cannot be foreseen is expensive
                        moved[number] = r
                        number += drawn[r] != zero
                    for k in range(number):
                        r = moved[k]
                        total, o, value = zero, np.uint64((r0 + r) * row), drawn[r]
                        x[r0 + r, order[d]] = value
                        for lane in range(lanes):
                            i = np.uint64(lane * lane_of_w + (d - d0) * width)
                            if d + 1 < last:  # the output of the second step anew
                                j = np.uint64(lane * lane_of_v + (d - d0 + 1) * width)
                                total += vec.advance(state, o, value, w, i, v, j, wide, code)
                            else:
                                vec.advance(state, o, value, w, i, w, i, wide, code)
                            o += np.uint64(vec.FORWARD_STATE)
                        if d + 1 < last:
                            eta[1, r] = total
                        o = np.uint64((r0 + r) * row)
                        mark = marks[d - d0]
                        if code == vec.ODDS and vec.shrunk(bounds, r0 + r, mark, state, o, np.uint64(row)):
                            bad[r0 + r] = True
    if code == vec.ODDS:
        for r in range(rows):
            bad[r] |= vec.infinite(state, np.uint64(r * row), np.uint64(row))


def fill(out: Tensor, seed: int) -> Tensor:
    """Fill a tensor with uniform numbers strictly between 0 and 1; the k-th is a function of the seed and k.

    Several threads draw them: torch draws them one after the other, which takes a good part of the time that
    sampling rows with them does.
    """
    array = out.view(-1).numpy()

    def task(number: int) -> None:
        first = number * DRAWN
        _fill(array[first : first + DRAWN], np.uint64(seed), np.uint64(first))

    share(task, -(-len(array) // DRAWN), torch.get_num_threads())
    return out


@jit()
def _fill(out, seed, first):  # type: ignore[no-untyped-def]
    zero = out.dtype.type(0)
    for k in range(len(out)):
        out[k] = nth(seed, first + np.uint64(k), zero)


def choose(count: Tensor, n_variables: int, seed: int, exists: Tensor | None = None) -> Tensor:
    """Bool (B, D): count[b] variables of row b, every set of that many equally likely, without sorting keys.

    Args:
        count: (B,), each from 0 to the number of variables that may be chosen.
        n_variables: D.
        seed: decides everything.
        exists: bool (B, D), the variables that may be chosen; None for all.
    """
    out = torch.empty(len(count), n_variables, dtype=torch.bool)
    given = arrays(count, out if exists is None else exists, out)

    def task(number: int) -> None:
        part = slice(number * CHOSEN, (number + 1) * CHOSEN)
        counts, some, mine = (array[part] for array in given)
        _choose(counts, some, exists is None, mine, np.uint64(seed), np.uint64(part.start))

    share(task, -(-len(count) // CHOSEN), torch.get_num_threads())
    return out


@jit()
def _choose(count, exists, every, out, seed, first):  # type: ignore[no-untyped-def]
    """Knuth's algorithm S: of `left` variables to come `need` are taken, the next with chance need / left."""
    rows, n = out.shape
    for b in range(rows):
        need, left = count[b], 0
        for d in range(n):
            left += every or exists[b, d]
        for d in range(n):
            take = False
            if every or exists[b, d]:
                u = nth(seed, (first + np.uint64(b)) * np.uint64(n) + np.uint64(d), np.float64(0))
                take = need >= left or u * left < need
                left -= 1
                need -= take
            out[b, d] = take
