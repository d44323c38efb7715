"""The fused log-density of mixtures against the torch expressions of the families."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pynade.families import MixtureOfGaussians, MixtureOfLaplaces, MixtureOfLogistics
from pynade.kernels import backends, mixture
from pynade.kernels.autograd import Fused

FAMILIES = (MixtureOfGaussians, MixtureOfLaplaces, MixtureOfLogistics)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def pair(kind, k, floor=0.0, scaled=False):
    """The family fused, and in plain torch."""
    fused, plain = (kind(k, sigma_floor=floor, scale_mean_gradient=scaled) for _ in range(2))
    plain.fused = False
    return fused, plain


def inputs(seed, shape, k, dtype=torch.float64, spread=1.0):
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(shape, generator=g, dtype=torch.float64)
    eta = torch.randn(*shape, 3 * k, generator=g, dtype=torch.float64) * spread
    eta[..., 2 * k :] *= 0.5
    return x.to(dtype), eta.to(dtype)


def slopes(family, x, eta, weights=None):
    """Log p and its gradients by x and eta."""
    x, eta = x.detach().requires_grad_(), eta.detach().requires_grad_()
    log_p = family.log_prob(x, eta)
    return log_p.detach(), *torch.autograd.grad(
        log_p, (x, eta), torch.ones_like(x) if weights is None else weights
    )


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    if theirs.numel():
        torch.testing.assert_close(
            ours.to(theirs), theirs, rtol=tolerance, atol=tolerance * (1 + theirs.abs().max().item())
        )


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_is_computed_by_the_compiled_loops(kind, monkeypatch):
    """They know distributions by the names of their classes; a class renamed would be computed by torch."""
    used = []
    compiled = mixture.log_prob
    monkeypatch.setattr(mixture, "log_prob", lambda *args: used.append(args) or compiled(*args))
    x, eta = inputs(0, (4,), 2)
    pair(kind, 2)[0].log_prob(x, eta)
    assert used


laws = st.sampled_from(FAMILIES)
floors = st.sampled_from([0.0, 1e-6, 1e-3, 0.5])


@settings(deadline=None, max_examples=120)
@given(
    laws,
    st.integers(1, 23),
    st.lists(st.integers(0, 9), min_size=0, max_size=3),
    floors,
    st.booleans(),
    st.sampled_from(list(TOLERANCE)),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.integers(0, 2**31),
)
def test_values_and_gradients_are_those_of_torch(kind, k, shape, floor, scaled, dtype, spread, seed):
    fused, plain = pair(kind, k, floor, scaled)
    x, eta = inputs(seed, shape, k, dtype, spread)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    ours = slopes(fused, x, eta, weights)
    theirs = slopes(plain, x.double(), eta.double(), weights.double())
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        close(mine, wanted, TOLERANCE[dtype])
    assert torch.equal(fused.log_prob(x, eta), ours[0])  # without gradients the same numbers


@settings(deadline=None, max_examples=120)
@given(
    laws,
    floors,
    st.sampled_from(list(TOLERANCE)),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5),
    st.floats(-1e6, 1e6, width=32),
    st.floats(math.log(1e-6), math.log(1e6)),
    st.floats(-1e3, 1e3),
)
def test_extreme_values_stay_finite(kind, floor, dtype, xs, mu, raw, logit):
    fused, plain = pair(kind, 3, floor)
    x = torch.tensor(xs, dtype=dtype)
    eta = torch.tensor([[logit, 0.0, -logit, mu, 0.0, -mu, raw, -raw, raw / 2]], dtype=dtype)
    ours = slopes(fused, x, eta.expand(len(xs), -1))
    assert all(part.isfinite().all() for part in ours)
    wanted = plain.log_prob(x.double(), eta.double().expand(len(xs), -1))
    torch.testing.assert_close(ours[0].double(), wanted, rtol=TOLERANCE[dtype], atol=1e3 * TOLERANCE[dtype])


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("floor", [0.0, 1e-3])
def test_scales_out_of_all_proportion(kind, dtype, floor):
    """Raw scales whose exponential is no number any more, alone and beside an ordinary component."""
    fused, plain = pair(kind, 2, floor)
    raw = torch.tensor([-1e3, -80.0, 80.0, 1e3], dtype=dtype)
    eta = torch.zeros(4, 6, dtype=dtype)
    eta[:, 4] = raw
    ours, theirs = (family.log_prob(torch.ones(4, dtype=dtype), eta) for family in (fused, plain))
    close(ours, theirs, TOLERANCE[dtype])


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("where", [0, 1, 2, "x"])
def test_what_is_not_a_number_is_not_hidden(kind, where):
    for dtype in TOLERANCE:
        for floor in (0.0, 1e-3):
            fused, _ = pair(kind, 3, floor)
            x, eta = inputs(0, (5,), 3, dtype)
            if where == "x":
                x[2] = math.nan
            else:
                eta[2, 3 * where + 1] = math.nan
            log_p, _, by_eta = slopes(fused, x, eta)
            lost = torch.arange(5) == 2
            assert torch.equal(log_p.isnan(), lost)
            assert torch.equal(by_eta.isnan().any(-1), lost)


@settings(deadline=None, max_examples=30)
@given(laws, st.integers(1, 6), st.integers(1, 4), st.integers(0, 2), st.booleans(), st.integers(0, 2**31))
def test_mapping_is_a_loop(kind, k, members, axis, shared, seed):
    fused, _ = pair(kind, k, 1e-3)
    x, eta = inputs(seed, (members, 7, 5), k)
    etas = eta.movedim(0, axis)
    x_dim = None if shared else 0
    rows = x[0] if shared else x
    own = [x[0] if shared else x[m] for m in range(members)]
    alone = torch.stack([fused.log_prob(own[m], eta[m]) for m in range(members)])
    mapped = torch.func.vmap(fused.log_prob, (x_dim, axis))
    assert torch.equal(mapped(rows, etas), alone)
    with torch.no_grad():
        assert torch.equal(mapped(rows, etas), alone)

    def loss(row, e):
        return fused.log_prob(row, e).square().sum()

    by_x, by_eta = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), (x_dim, axis))(rows, etas)
    for m in range(members):
        _, *each = slopes(fused, own[m], eta[m], 2 * alone[m])
        torch.testing.assert_close((by_x[m], by_eta[m]), tuple(each), rtol=1e-12, atol=1e-12)
    leaf = etas.clone().requires_grad_()  # as a population is trained: the gradient of what was mapped
    (outside,) = torch.autograd.grad(mapped(rows, leaf).square().sum(), leaf)
    torch.testing.assert_close(outside.movedim(axis, 0), by_eta, rtol=1e-12, atol=1e-12)


def test_gradients_after_all():
    """A graph made where gradients were off has none; the function itself computes them when asked."""
    x, eta = inputs(0, (4, 3), 2)
    eta.requires_grad_()
    loops = mixture.LogProb("Normal", 0.0, 0.0)
    later, now = (Fused.apply(loops, g, eta, x)[0].sum() for g in (False, True))
    assert torch.equal(*(torch.autograd.grad(total, eta)[0] for total in (later, now)))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_a_row_depends_on_nothing_else(dtype):
    fused, _ = pair(MixtureOfGaussians, 5, 1e-3)
    x, eta = inputs(0, (1999,), 5, dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = slopes(fused, x, eta)
        torch.set_num_threads(3)
        assert all(map(torch.equal, slopes(fused, x, eta), alone))
    finally:
        torch.set_num_threads(before)
    part = slopes(fused, x[1777:], eta[1777:])
    assert all(torch.equal(p, a[1777:]) for p, a in zip(part, alone, strict=True))
    strided = slopes(fused, x, torch.stack([eta, eta], 1)[:, 1])
    assert all(map(torch.equal, strided, alone))


def test_going_back_twice_gives_the_same():
    fused, _ = pair(MixtureOfLaplaces, 3)
    x, eta = inputs(0, (9,), 3)
    eta.requires_grad_()
    total = (3 * fused.log_prob(x, eta)).sum()
    first = torch.autograd.grad(total, eta, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(total, eta)[0], first)


def test_second_derivatives_are_refused_and_torch_has_them():
    fused, plain = pair(MixtureOfGaussians, 2)
    x, eta = inputs(0, (4,), 2)
    eta.requires_grad_()
    first = torch.autograd.grad(fused.log_prob(x, eta).sum(), eta, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), eta)
    first = torch.autograd.grad(plain.log_prob(x, eta).sum(), eta, create_graph=True)[0]
    assert torch.autograd.grad(first.square().sum(), eta)[0].isfinite().all()


def test_forward_differentiation_is_left_to_torch():
    fused, plain = pair(MixtureOfGaussians, 2, 1e-3)
    x, eta = inputs(0, (4,), 2)
    ours, theirs = (
        torch.func.jvp(lambda e: family.log_prob(x, e), (eta,), (torch.ones_like(eta),))  # noqa: B023
        for family in (fused, plain)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_what_the_loops_do_not_know_is_left_to_torch(monkeypatch):
    fused, plain = pair(MixtureOfGaussians, 2)
    x, eta = inputs(0, (6, 4), 2)
    wide = x[:1]  # one row for all
    assert not mixture.suits(wide, eta, "Normal", 0.0)
    assert torch.equal(fused.log_prob(wide, eta), plain.log_prob(wide, eta))
    half = (x.bfloat16(), eta.bfloat16())
    assert torch.equal(fused.log_prob(*half), plain.log_prob(*half))
    tiny, without = pair(MixtureOfGaussians, 2, 1e-60)
    assert torch.equal(tiny.log_prob(x, eta), without.log_prob(x, eta))
    with pytest.raises(ValueError, match="unpack"):
        fused.log_prob(x, eta[..., :3])
    monkeypatch.setattr(backends, "available", lambda kernel: False)
    assert torch.equal(fused.log_prob(x, eta), plain.log_prob(x, eta))


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("added", [1e2, 1e4, 1e6, -1e6])
def test_large_logits_do_not_swallow_the_rest(kind, added):
    fused, _ = pair(kind, 3, 1e-3)
    x, eta = inputs(1, (50,), 3, torch.float32)
    eta[:, :3] = (64 * eta[:, :3]).round() / 64 + added  # exact in float32, at 1e6 to sixteenths
    eta[:, :3] = (16 * eta[:, :3].double()).round().float() / 16
    same = eta.double()
    same[:, :3] -= added
    close(fused.log_prob(x, eta), fused.log_prob(x.double(), same).float(), 1e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_nan_stays_nan(kind):
    """Also those with something in their low bits, as R's NA has."""
    fused, plain = pair(kind, 2)
    na = torch.tensor([0x7FF8000000000000 + 1954]).view(torch.float64)
    for where in range(7):
        row = torch.zeros(1, 7, dtype=torch.float64)
        row[0, where] = na
        ours, theirs = (family.log_prob(row[:, 0], row[:, 1:]) for family in (fused, plain))
        assert theirs.isnan().all()
        assert ours.isnan().all()


def test_no_slope_leads_back_from_zero_density():
    fused, plain = pair(MixtureOfGaussians, 1)
    x, eta = torch.tensor([1e30, 0.5]), torch.zeros(2, 3)
    for (ours, *ours_by), (theirs, *theirs_by) in [(slopes(fused, x, eta), slopes(plain, x, eta))]:
        assert torch.equal(ours[:1], theirs[:1])
        assert ours[0] == -math.inf
        assert all(t[0].isnan().all() for t in (*ours_by, *theirs_by))
        assert all(t[1].isfinite().all() for t in ours_by)


def test_another_default_device_does_not_matter():
    fused, _ = pair(MixtureOfGaussians, 2)
    x, eta = inputs(0, (4,), 2)
    wanted = fused.log_prob(x, eta)
    with torch.device("meta"):
        assert torch.equal(fused.log_prob(x, eta), wanted)
