"""What every real-valued family promises, checked in float64 through one list of cases."""

import copy
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from pynade.families import (
    Affine,
    FixedVarianceGaussian,
    Gaussian,
    Laplace,
    Log,
    Logit,
    MixtureOfGaussians,
    MixtureOfLaplaces,
    MixtureOfLogistics,
    SinhArcsinh,
    StudentT,
    Transformed,
)
from pynade.models import Autoregressive, Independent
from pynade.nets import NADENet
from pynade.ordering import Ordering
from pynade.store import build, describe, load_density, save_density

from .cases import generator, shaken

SINGLE = {
    "fixed-variance": lambda D, **kw: FixedVarianceGaussian(D, **kw),
    "gaussian": lambda D, **kw: Gaussian(**kw),
    "laplace": lambda D, **kw: Laplace(**kw),
    "sinh-arcsinh": lambda D, **kw: SinhArcsinh(**kw),
    "student-t": lambda D, **kw: StudentT(**kw),
}
MIXTURES = {
    "mog-1": lambda D, **kw: MixtureOfGaussians(1, **kw),
    "mog-4": lambda D, **kw: MixtureOfGaussians(4, **kw),
    "mol-3": lambda D, **kw: MixtureOfLaplaces(3, **kw),
    "mologistic-3": lambda D, **kw: MixtureOfLogistics(3, **kw),
}
PLAIN = SINGLE | MIXTURES


def _affine(D):
    return Affine(torch.linspace(-3, 40, D), torch.linspace(0.5, 20, D))


def _chain(D):
    """A logarithm on the first column, a logit on the second, the others as they are; all standardised."""
    maps = [Log(-2.0, [0], n_variables=D), *([Logit(0.0, 5.0, [1], n_variables=D)] if D > 1 else [])]
    return [*maps, Affine(torch.linspace(0.5, 1, D), torch.linspace(0.3, 0.9, D))]


TRANSFORMED = {
    "affine-fixed-variance": lambda D, **kw: Transformed(FixedVarianceGaussian(D, **kw), _affine(D)),
    "affine-mog": lambda D, **kw: Transformed(MixtureOfGaussians(3, **kw), _affine(D)),
    "log-gaussian": lambda D, **kw: Transformed(Gaussian(**kw), Log(5.0, n_variables=D)),
    "logit-sas": lambda D, **kw: Transformed(SinhArcsinh(**kw), Logit(-1.0, 3.0, n_variables=D)),
    "chain-mologistic": lambda D, **kw: Transformed(MixtureOfLogistics(2, **kw), _chain(D)),
}
FAMILIES = PLAIN | TRANSFORMED
every_family = pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES.keys())
plain_family = pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN.keys())


def family_of(make, D=3, **kw):
    family = make(D, **kw).double()
    for p in family.parameters():
        p.data = torch.linspace(-1, 0.5, p.numel(), dtype=torch.float64)
    return family.requires_grad_(False)


def etas(family, *shape, seed=0, scale=1.0):
    eta = scale * torch.randn(*shape, family.n_params, generator=generator(seed), dtype=torch.float64)
    if isinstance(family, StudentT):
        eta[..., 2] += 1
    if not family.affine:  # near the ends of a bounded domain x itself has few digits
        eta = 0.3 * eta
    return eta


def narrow(family, eta):
    """The same laws with small scales, and the components of mixtures far apart."""
    base, eta = getattr(family, "base", family), eta.clone()
    if hasattr(base, "n_components"):
        _, mu, log_sigma = eta.split(base.n_components, -1)
        mu *= 3
        log_sigma -= 2.0 * (log_sigma < 0)
    elif base.n_params > 1:
        eta[..., 1] -= 5
    return eta


def full(*shape, value):
    return torch.full(shape, value, dtype=torch.float64)


class Nodes(NamedTuple):
    x: torch.Tensor  # (M, …)
    weight: torch.Tensor  # (M, …): the integral of f is Σ weight f(x)


def quadrature(
    family, eta, i=None, cuts=201, parts=4, points=12, reach=23.0, around=(-8, -4, -2, -1, 0, 1, 2, 4, 8)
):
    """Gauss–Legendre between many quantiles: up to a tail of e^-reach on each side."""
    q = torch.sigmoid(torch.linspace(-reach, reach, cuts, dtype=torch.float64))
    q = q.view(-1, *[1] * (eta.ndim - 1)).expand(-1, *eta.shape[:-1])
    edges = family.quantile(q, eta.expand(cuts, *eta.shape), i)
    base = getattr(family, "base", family)
    if hasattr(base, "parameters_of"):  # kinks of a Laplace, and components in the gaps between others
        _, mu, sigma = (part.movedim(-1, 0) for part in base.parameters_of(eta))
        marks = torch.cat([mu + k * sigma for k in around])
        marks = family._from_base(marks, i) if base is not family else marks
        edges = torch.cat([edges, marks]).sort(0).values
    steps = torch.arange(parts, dtype=torch.float64).view(-1, *[1] * eta.ndim) / parts
    widths = edges.diff(dim=0) / parts
    starts = (edges[:-1] + steps * edges.diff(dim=0)).flatten(0, 1)
    nodes, weights = (
        torch.as_tensor(v).view(-1, *[1] * eta.ndim) for v in np.polynomial.legendre.leggauss(points)
    )
    width = widths.repeat(parts, *[1] * (widths.ndim - 1))
    return Nodes((starts + width * (nodes + 1) / 2).flatten(0, 1), (weights / 2 * width).flatten(0, 1))


@every_family
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_density_integrates_to_one_and_the_cdf_is_its_integral(make, scale):
    family = family_of(make)
    eta = etas(family, 6, 3, scale=scale)
    eta[:3] = narrow(family, eta[:3])
    x, weight = quadrature(family, eta)
    mass = weight * family.log_prob(x, eta.expand(*x.shape, -1)).exp()
    torch.testing.assert_close(mass.sum(0), torch.ones(6, 3).double(), rtol=0, atol=1e-8)
    for q in (0.1, 0.5, 0.8):
        point = family.quantile(full(6, 3, value=q), eta)
        below = torch.where(x <= point, mass, 0).sum(0)
        assert (below - q).abs().max() < 2e-3  # one cell of the rule may straddle the point
        torch.testing.assert_close(family.cdf(point, eta), torch.full_like(point, q), rtol=1e-11, atol=0)


@every_family
def test_the_derivative_of_the_cdf_is_the_density(make):
    family = family_of(make)
    eta = etas(family, 40, 3)
    x = family.quantile(torch.linspace(0.02, 0.98, 120, dtype=torch.float64).view(40, 3), eta)
    p = family.log_prob(x, eta).exp()
    h = 1e-4 / p
    low, high = family.cdf(x - h, eta), family.cdf(x + h, eta)
    torch.testing.assert_close((high - low) / (2 * h), p, rtol=2e-4, atol=0)


@every_family
def test_samples_follow_the_cdf(make):
    family, n = family_of(make), 20_000
    eta = etas(family, 3, seed=4)
    draws = family.sample(eta.expand(n, 3, -1), generator=generator(15))
    assert draws.shape == (n, 3)
    assert draws.dtype == torch.float64
    u = family.cdf(draws, eta.expand(n, 3, -1))
    for d in range(3):
        assert kstest(u[:, d].numpy(), "uniform").pvalue > 1e-3
    assert torch.equal(draws, family.sample(eta.expand(n, 3, -1), generator=generator(15)))
    assert not torch.equal(draws, family.sample(eta.expand(n, 3, -1), generator=generator(6)))


@every_family
def test_float32_samples_are_finite_and_inside_the_domain(make):
    family = family_of(make).float()
    eta = etas(family, 3).float().expand(100_000, 3, -1)
    draws = family.sample(eta, generator=generator(1))
    family.check(draws)
    assert torch.isfinite(family.log_prob(draws, eta)).all()


@every_family
def test_quantile_and_cdf_undo_each_other(make):
    family = family_of(make)
    eta = etas(family, 99, 3, scale=2.0 if make in MIXTURES.values() else 1.0)
    q = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)[:, None].expand(99, 3)
    x = family.quantile(q, eta)
    torch.testing.assert_close(family.cdf(x, eta), q, rtol=1e-10, atol=0)
    torch.testing.assert_close(family.quantile(family.cdf(x, eta), eta), x, rtol=1e-9, atol=1e-9)
    if not family.affine:
        return
    tiny = torch.full_like(q, 1e-9)
    torch.testing.assert_close(family.cdf(family.quantile(tiny, eta), eta), tiny, rtol=1e-5, atol=0)


@every_family
def test_the_ends_of_the_quantile_function(make):
    family = family_of(make)
    eta = etas(family, 3)
    low, high = (family.quantile(full(3, value=q), eta) for q in (0.0, 1.0))
    torch.testing.assert_close(family.cdf(low, eta), full(3, value=0.0), rtol=0, atol=1e-12)
    torch.testing.assert_close(family.cdf(high, eta), full(3, value=1.0), rtol=0, atol=1e-12)
    assert (low < high).all()
    if family.affine:
        assert torch.isneginf(low).all()
        assert torch.isposinf(high).all()


@every_family
def test_mean_is_the_numerical_mean_and_the_best_guess(make):
    family = family_of(make)
    eta = etas(family, 5, 3, scale=0.4)
    if isinstance(family, StudentT):
        eta[..., 2] += 2
    x, weight = quadrature(family, eta, reach=27.0)
    mean = (weight * x * family.log_prob(x, eta.expand(*x.shape, -1)).exp()).sum(0)
    torch.testing.assert_close(family.mean(eta), mean, rtol=1e-6, atol=1e-6)
    assert torch.equal(family.best_guess(eta), family.mean(eta))


@every_family
def test_float32_agrees_with_float64(make):
    family = family_of(make)
    eta = etas(family, 200, 3)
    q = torch.rand(200, 3, generator=generator(2), dtype=torch.float64).clamp(0.01, 0.99)
    x = family.quantile(q, eta).float()
    exact = family.log_prob(x.double(), eta.float().double())
    single = copy.deepcopy(family).float()
    torch.testing.assert_close(single.log_prob(x, eta.float()).double(), exact, rtol=2e-5, atol=5e-5)
    torch.testing.assert_close(single.cdf(x, eta.float()).double(), q, rtol=0, atol=2e-4)
    assert single.quantile(q.float(), eta.float()).dtype == torch.float32
    torch.testing.assert_close(single.mean(eta.float()).double(), family.mean(eta), rtol=1e-4, atol=1e-4)


@every_family
def test_gradients(make):
    family = family_of(make)
    eta = etas(family, 4, 3).requires_grad_()
    q = torch.rand(4, 3, generator=generator(2), dtype=torch.float64)
    x = family.quantile(q, eta.detach()).requires_grad_()
    assert torch.autograd.gradcheck(family.log_prob, (x, eta))


@plain_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trick", [False, True])
def test_extreme_values_and_scales_stay_finite(make, dtype, trick):
    family = family_of(make, D=1, scale_mean_gradient=trick).to(dtype).requires_grad_()
    values = torch.tensor([0.0, 1e-6, 1.0, 1e3, 1e6])
    x = torch.cat([values, -values]).to(dtype)
    for seed in range(4):
        for sigma in (1e-6, 1.0, 1e6):
            eta = (0.2 * etas(family, 1, seed=seed)).to(dtype)
            if isinstance(family, FixedVarianceGaussian):
                family.log_sigma.data.fill_(math.log(sigma))
            elif hasattr(family, "n_components"):
                K = family.n_components
                eta[:, 2 * K] = math.log(sigma)
                eta[:, K] = -1e6
                eta[:, :K] *= 100
            else:
                eta[:, 1] = math.log(sigma)
            eta = eta.expand(len(x), 1, -1).clone().requires_grad_()
            log_p = family.log_prob(x[:, None], eta)
            assert torch.isfinite(log_p).all()
            grads = torch.autograd.grad(log_p.sum(), [eta, *family.parameters()])
            assert all(torch.isfinite(g).all() for g in grads)
            if dtype == torch.float32:
                again = copy.deepcopy(family).double().log_prob(x[:, None].double(), eta.double())
                torch.testing.assert_close(log_p.double(), again, rtol=1e-4, atol=1e-3)


@every_family
def test_one_variable_per_row_agrees_with_all_variables(make):
    family = family_of(make)
    eta = etas(family, 5, 3)
    x = family.sample(eta, generator=generator(1))
    q = torch.rand(5, 3, generator=generator(3), dtype=torch.float64)
    order = torch.tensor([2, 0, 1])
    i = order[:, None]  # three groups of five rows, each at one variable
    x_i, eta_i, q_i = x.T[order], eta.transpose(0, 1)[order], q.T[order]
    for whole, single in [
        (family.log_prob(x, eta), family.log_prob(x_i, eta_i, i)),
        (family.encode(x)[..., 0], family.encode(x_i, i)[..., 0]),
        (family.cdf(x, eta), family.cdf(x_i, eta_i, i)),
        (family.quantile(q, eta), family.quantile(q_i, eta_i, i)),
        (family.mean(eta), family.mean(eta_i, i)),
        (family.best_guess(eta), family.best_guess(eta_i, i)),
    ]:
        torch.testing.assert_close(single, whole.T[order], rtol=1e-14, atol=1e-14)
    assert family.sample(eta_i, i, generator()).shape == (3, 5)
    a, b = (family.sample(eta[:, 2:], torch.tensor([[2]]), generator(9)) for _ in range(2))
    assert torch.equal(a, b)
    moved = family.sample(eta_i.expand(4000, 3, 5, -1), i, generator(2))  # an extra leading axis
    u = family.cdf(moved, eta_i.expand(4000, 3, 5, -1), i)
    assert kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3


@every_family
def test_vmap_over_members_and_per_row_gradients(make):
    family = family_of(make)
    eta = etas(family, 4, 6, 3)
    x = family.sample(eta[0], generator=generator(1))
    state = {n: t.detach() for n, t in (*family.named_parameters(), *family.named_buffers())}
    stacked = {n: torch.stack([t if t.dtype == torch.bool else t * s for s in (1, 1.1, 1.2, 1.3)])
               for n, t in state.items()}  # fmt: skip

    def log_prob(member, e):
        return torch.func.functional_call(family, member, (x, e))

    family.forward = family.log_prob
    together = torch.vmap(log_prob)(stacked, eta)
    alone = [log_prob({n: t[m] for n, t in stacked.items()}, eta[m]) for m in range(4)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-12, atol=1e-12)
    encoded = torch.vmap(family.encode)(x.expand(4, 6, 3))
    torch.testing.assert_close(encoded[2], family.encode(x), rtol=0, atol=0)
    each = torch.vmap(torch.func.grad(lambda e, row: family.log_prob(row, e).sum()))(eta[0], x)
    whole = torch.func.grad(lambda e: family.log_prob(x, e).sum())(eta[0])
    torch.testing.assert_close(each, whole, rtol=1e-12, atol=1e-12)


@every_family
def test_scaling_the_gradient_of_the_mean_changes_nothing_else(make):
    plain, scaled = family_of(make), family_of(make, scale_mean_gradient=True)
    base = getattr(plain, "base", plain)
    eta = etas(plain, 30, 3).requires_grad_()
    x = plain.sample(eta.detach(), generator=generator(1))
    weights = torch.rand(30, 3, generator=generator(8), dtype=torch.float64)
    grads = []
    for family in (plain.requires_grad_(), scaled.requires_grad_()):
        total = (weights * family.log_prob(x, eta)).sum()
        grads.append(torch.autograd.grad(total, [eta, *family.parameters()]))
    by_func = torch.func.grad(lambda e: (weights * scaled.log_prob(x, e)).sum())(eta.detach())
    torch.testing.assert_close(by_func, grads[1][0], rtol=0, atol=0)
    for dtype in (torch.float64, torch.float32):
        a, b = (f.to(dtype).log_prob(x.to(dtype), eta.to(dtype)) for f in (plain, scaled))
        assert torch.equal(a, b)
    expected = grads[0][0].clone()
    if hasattr(base, "n_components"):
        K = base.n_components
        expected[..., K : 2 * K] *= base.parameters_of(eta.detach())[2]
    elif isinstance(base, FixedVarianceGaussian):
        expected[..., 0] *= torch.linspace(-1, 0.5, 3, dtype=torch.float64).exp()
    else:
        expected[..., 0] *= eta.detach()[..., 1].exp()
    torch.testing.assert_close(grads[1][0], expected, rtol=1e-12, atol=1e-13)
    assert (grads[0][0] - grads[1][0]).abs().max() > 1e-3
    for p, s in zip(grads[0][1:], grads[1][1:], strict=True):
        torch.testing.assert_close(p, s, rtol=0, atol=0)


@every_family
def test_a_floor_is_added_to_sigma(make):
    family = family_of(make, sigma_floor=0.5)
    base = getattr(family, "base", family)
    raw = torch.tensor([-60.0, -3.0, 0.0, 2.0, 60.0], dtype=torch.float64)
    torch.testing.assert_close(base.log_scale(raw).exp(), 0.5 + raw.exp(), rtol=1e-14, atol=0)
    torch.testing.assert_close(base.log_scale(base.raw_scale(torch.tensor(0.7).double())).exp().item(), 0.7)
    eta = etas(family, 2, 3)
    x, weight = quadrature(family, eta)
    mass = (weight * family.log_prob(x, eta.expand(*x.shape, -1)).exp()).sum(0)
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-8)
    lowest = base.log_scale(torch.full((3,), -1000.0))
    torch.testing.assert_close(lowest.exp(), torch.full((3,), 0.5))


@every_family
def test_spec_builds_the_same_family(make):
    family = family_of(make, sigma_floor=0.01, scale_mean_gradient=True)
    spec = describe(family)
    again = build(spec)
    assert type(again) is type(family)
    assert describe(again) == spec
    assert (again.n_params, again.n_features) == (family.n_params, family.n_features)
    base = getattr(again, "base", again)
    assert (base.sigma_floor, base.scale_mean_gradient) == (0.01, True)
    again.double().load_state_dict(family.state_dict())
    eta = etas(family, 4, 3)
    x = family.sample(eta, generator=generator())
    assert torch.equal(again.log_prob(x, eta), family.log_prob(x, eta))


@every_family
def test_a_saved_model_loads(make, tmp_path):
    family = family_of(make)
    net = shaken(NADENet(3, n_params=family.n_params, hidden=4), scale=0.3)
    model = Autoregressive(net, family, Ordering.natural(3))
    save_density(model, tmp_path / "m.safetensors")
    again, _ = load_density(tmp_path / "m.safetensors")
    x = model.sample(20, generator(1))
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert torch.equal(again.sample(5, generator()), model.sample(5, generator()))


@every_family
def test_marginal_eta_beats_zero_and_ignores_missing_values(make):
    family = family_of(make)
    x = family.quantile(
        torch.rand(500, 3, generator=generator(2), dtype=torch.float64),
        etas(family, 3, seed=7, scale=0.7).expand(500, 3, -1),
    )
    eta = family.eta_from_marginal(x)
    assert eta.shape == (3, family.n_params)
    assert eta.dtype == torch.float64
    family.fit_constants(x)
    fitted = family.log_prob(x, eta.expand(500, 3, -1)).mean(0)
    assert (fitted > family.log_prob(x, torch.zeros(500, 3, family.n_params).double()).mean(0) - 0.2).all()
    shifted = x + 30 if family.affine else x
    eta = family.eta_from_marginal(shifted)
    family.fit_constants(shifted)
    torch.testing.assert_close(
        family.log_prob(shifted, eta.expand(500, 3, -1)).mean(0), fitted, rtol=1e-8, atol=1e-8
    )
    holes = torch.where(torch.rand(500, 3, generator=generator(3)) < 0.3, math.nan, x)
    for d in range(3):
        complete = holes[~torch.isnan(holes[:, d]), d].unsqueeze(1).expand(-1, 3)
        known = family.eta_from_marginal(complete)[d]
        torch.testing.assert_close(family.eta_from_marginal(holes)[d], known, rtol=1e-10, atol=1e-12)


@plain_family
def test_marginal_eta_of_constant_and_empty_columns(make):
    family = family_of(make)
    x = torch.tensor([[7.1, math.nan, 0.1], [7.1, math.nan, 0.1], [7.1, math.nan, 0.1]])
    eta = family.eta_from_marginal(x)
    family.fit_constants(x)
    assert torch.isfinite(eta).all()
    torch.testing.assert_close(family.mean(eta), torch.tensor([7.1, 0, 0.1]).double(), rtol=1e-6, atol=1e-6)
    at_mean = family.log_prob(family.mean(eta), eta)
    assert (at_mean.exp() < 2).all()  # a scale of about 1, not a spike
    assert (at_mean.exp() > 0.2).all()


@every_family
@pytest.mark.parametrize(
    ("value", "words"), [(math.nan, "row 1, column 2 is missing"), (math.inf, "row 1, column 2 is inf")]
)
def test_values_that_are_no_numbers_are_refused(make, value, words):
    family = family_of(make)
    x = family.sample(etas(family, 2, 3), generator=generator())
    family.check(x)
    x[1, 2] = value
    with pytest.raises(ValueError, match=words):
        family.check(x)


@every_family
@pytest.mark.parametrize("D", [1, 2])
@torch.no_grad()
def test_joint_density_integrates_to_one(make, D):
    family = family_of(make, D)
    net = shaken(NADENet(D, n_params=family.n_params, hidden=5), scale=0.5)
    model = Autoregressive(net, family, Ordering.natural(D))
    if isinstance(family, StudentT):
        net.bias.data[:, 2] += 1.5
    rule = {"cuts": 41, "parts": 1, "points": 8, "reach": 18.0, "around": (0,)}
    start = model.eta(family.fill(torch.zeros(1, D).double(), torch.zeros(1, D, dtype=torch.bool)))
    i = torch.tensor([0])
    first, weight = quadrature(family, start[:, 0], i, **rule)  # (M, 1)
    rows = family.fill(torch.zeros(len(first), D).double(), torch.zeros(len(first), D, dtype=torch.bool))
    rows[:, :1] = first
    if D == 1:
        total = (weight[:, 0] * model.log_prob(rows).exp()).sum()
    else:
        second, inner = quadrature(family, model.eta(rows)[:, 1], torch.tensor([1]), **rule)  # (L, M)
        x = torch.stack([first[:, 0].expand_as(second), second], -1)
        p = model.log_prob(x.flatten(0, 1)).exp().view_as(second)
        total = (weight[:, 0] * (inner * p).sum(0)).sum()
    assert abs(total.item() - 1) < 1e-6


@every_family
def test_independent_columns_and_ancestral_draws(make):
    """The stepper's draws, scored by the parallel view: each conditional cdf is uniform."""
    family = family_of(make)
    net = shaken(NADENet(3, n_params=family.n_params, hidden=5), scale=0.4)
    model = Autoregressive(net, family, Ordering([1, 2, 0]))
    x = model.sample(4000, generator(3))
    u = family.cdf(x, model.eta(x))
    for d in range(3):
        assert kstest(u[:, d].detach().numpy(), "uniform").pvalue > 1e-3
    flat = Independent(family, 3).double()
    assert torch.isfinite(flat.log_prob(flat.sample(10, generator(1)))).all()


@every_family
def test_numbers_whose_squares_overflow_are_refused(make):
    family = family_of(make, D=1)
    for size in (1e101, -1.7e308):
        with pytest.raises(ValueError, match=r"needs numbers of at most 1e\+100 in size, but row 0"):
            family.check(full(1, 1, value=size))
    if isinstance(family, Transformed) and not family.affine:
        return
    x = full(40, 1, value=1e100)
    found = family.log_prob(x, etas(family, 40, 1))
    assert not (found.isnan() | (found == math.inf)).any()
    light = isinstance(getattr(family, "base", family), SinhArcsinh)  # whose log p itself overflows
    assert light or torch.isfinite(found).all()
