"""The fused log-probability of intervals under mixtures of logistics, against plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pynade.kernels.autograd import fused
from pynade.kernels.mixture import LogProb

TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-4}


def plain(a, b, width, eta, floor, background):
    """The same by logsumexp."""
    logits, mu, raw = eta.chunk(3, -1)
    logits = torch.cat(
        [logits.log_softmax(-1) + math.log(1 - background), torch.zeros_like(a)[..., None]], -1
    )
    logits[..., -1] += math.log(background)
    mu, raw = (functional.pad(t, (0, 1)) for t in (mu, raw))
    rate = 1 / (floor + torch.exp(raw))
    each = functional.logsigmoid((b[..., None] - mu) * rate) + functional.logsigmoid(
        (mu - a[..., None]) * rate
    )
    inner = torch.log(-torch.expm1(-width[..., None] * rate))
    return torch.logsumexp(logits + each + inner, -1)


def log_prob(a, b, width, eta, floor, background):
    return fused(LogProb("Interval", 0.0, floor, background=background), eta, a, b, width)


def inputs(seed, shape, k, spread=2.0):
    g = torch.Generator().manual_seed(seed)
    a = 3 * torch.randn(shape, generator=g, dtype=torch.float64)
    width = torch.exp(4 * torch.randn(shape, generator=g, dtype=torch.float64) - 4)
    eta = spread * torch.randn(*shape, 3 * k, generator=g, dtype=torch.float64)
    return a, a + width, width, eta


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(0, 70),
    columns=st.integers(1, 3),
    k=st.integers(1, 12),
    floor=st.sampled_from([0.001, 0.1]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_value_and_gradient_are_those_of_torch(seed, rows, columns, k, floor, dtype):
    *cells, eta = inputs(seed, (rows, columns), k)
    eta = eta.to(dtype)
    exact = eta.double().requires_grad_()
    theirs = plain(*cells, exact, floor, 0.001)
    cells, ours = [t.to(dtype) for t in cells], eta.clone().requires_grad_()
    found = log_prob(*cells, ours, floor, 0.001)
    size = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), theirs, rtol=size, atol=size)
    assert torch.equal(log_prob(*cells, eta, floor, 0.001), found)
    weights = torch.linspace(-1, 2, theirs.numel(), dtype=torch.float64).view(theirs.shape)
    slopes = [torch.autograd.grad(y, x, weights.to(y.dtype))[0] for y, x in ((theirs, exact), (found, ours))]
    torch.testing.assert_close(slopes[1].double(), slopes[0], rtol=50 * size, atol=50 * size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cell_does_not_depend_on_the_others(dtype):
    *cells, eta = (t.to(dtype) for t in inputs(1, (500,), 4))
    whole = log_prob(*cells, eta, 0.001, 0.001)
    for part in (slice(0, 1), slice(31, 33), slice(17, 400)):
        assert torch.equal(log_prob(*(t[part] for t in cells), eta[part], 0.001, 0.001), whole[part])


def test_intervals_that_cover_the_axis_sum_to_one():
    ends = torch.cat([torch.tensor([-1e4]), torch.linspace(-8, 8, 99), torch.tensor([1e4])]).double()
    a, b = ends[:-1], ends[1:]
    for spread in (0.5, 3.0):
        eta = inputs(3, (1,), 5, spread)[3].expand(len(a), -1)
        log_p = log_prob(a, b, b - a, eta, 0.001, 0.001)
        assert abs(float(log_p.exp().sum()) - 1) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_stay_finite(dtype):
    for raw in (-200.0, -50.0, 50.0, 200.0):
        for mu in (0.0, 1e3, -1e6, 1e20):
            for logit in (0.0, 100.0, -1e4):
                eta = torch.tensor([[logit, 0.0, mu, 0.0, raw, 0.0]], dtype=dtype, requires_grad=True)
                for a, b, width in ((0.0, 1e-8, 1e-8), (-1e4, 0.0, 1e4), (614.3, 614.4, 0.06)):
                    cells = (torch.tensor([v], dtype=dtype) for v in (a, b, width))
                    log_p = log_prob(*cells, eta, 0.001, 0.001)
                    assert torch.isfinite(log_p).all()
                    assert torch.isfinite(torch.autograd.grad(log_p.sum(), eta)[0]).all()
