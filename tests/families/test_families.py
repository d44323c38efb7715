import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from pynade.families import (
    Affine,
    Bernoulli,
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
    standardised,
)

from ..reference import families as loops

logits = st.lists(st.floats(-80, 80), min_size=1, max_size=20).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)


@settings(deadline=None)  # the first call imports torch.distributions
@given(logits)
def test_bernoulli_against_torch_distributions(eta):
    family, reference = Bernoulli(), torch.distributions.Bernoulli(logits=eta)
    for value in (0.0, 1.0):
        x = torch.full_like(eta, value)
        torch.testing.assert_close(
            family.log_prob(x, eta[:, None]), reference.log_prob(x), rtol=1e-9, atol=1e-12
        )
    torch.testing.assert_close(family.mean(eta[:, None]), reference.mean)


@given(logits)
def test_bernoulli_normalised_cdf_and_quantile(eta):
    family, eta = Bernoulli(), eta[:, None]
    zero, one = torch.zeros(len(eta), dtype=eta.dtype), torch.ones(len(eta), dtype=eta.dtype)
    total = family.log_prob(zero, eta).exp() + family.log_prob(one, eta).exp()
    torch.testing.assert_close(total, one, rtol=0, atol=1e-15)
    torch.testing.assert_close(family.cdf(zero, eta), family.log_prob(zero, eta).exp())
    assert torch.equal(family.cdf(one, eta), one)
    assert torch.equal(family.cdf(-one, eta), zero)
    for q in (0.01, 0.5, 0.99):
        quantile = family.quantile(q * one, eta)
        assert (family.cdf(quantile, eta) >= q).all()
        assert ((quantile == 0) | (family.cdf(quantile - 1, eta) < q)).all()


def test_bernoulli_keeps_every_digit_of_large_logits():
    family, eta = Bernoulli(), torch.tensor([[30.0]])  # float32
    assert family.log_prob(torch.ones(1), eta).item() == pytest.approx(-9.357622968840175e-14, rel=1e-6)


def test_bernoulli_marginal_eta():
    x = torch.tensor([[1, 0, 1], [1, 0, 0]])
    p = torch.sigmoid(Bernoulli().eta_from_marginal(x))[:, 0]
    torch.testing.assert_close(p, torch.tensor([0.75, 0.25, 0.5], dtype=torch.float64))


def test_bernoulli_sampling_follows_the_generator():
    family, eta = Bernoulli(), torch.zeros(10_000, 1)
    draws = family.sample(eta, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draws, family.sample(eta, generator=torch.Generator().manual_seed(1)))
    assert abs(draws.mean().item() - 0.5) < 0.02


# Real-valued families; what they all promise is in tests/contracts/test_families.py.

numbers = st.floats(-3, 3)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@settings(deadline=None)
@given(numbers, st.lists(numbers, min_size=4, max_size=4))
def test_single_laws_against_their_loops(x, eta):
    a, b, c, d = eta
    for family, raw, reference in [
        (Gaussian(), [a, b], loops.gaussian(x, a, math.exp(b))),
        (Laplace(), [a, b], loops.laplace(x, a, math.exp(b))),
        (StudentT(), [a, b, c], loops.student_t(x, a, math.exp(b), math.exp(c))),
    ]:
        assert family.log_prob(double([x]), double([raw])).exp().item() == pytest.approx(reference, rel=1e-9)
    tame = [a, b, 0.3 * c, 0.3 * d]
    reference = loops.sinh_arcsinh(x, a, math.exp(b), 0.3 * c, math.exp(0.3 * d))
    log_p = SinhArcsinh().log_prob(double([x]), double([tame])).exp().item()
    assert log_p == pytest.approx(reference, rel=1e-7, abs=1e-200)


@settings(deadline=None)
@given(
    st.integers(1, 4).flatmap(lambda k: st.tuples(numbers, st.lists(numbers, min_size=3 * k, max_size=3 * k)))
)
def test_mixtures_against_the_loop_of_the_paper(case):
    x, eta = case
    k = len(eta) // 3
    for family, component in [
        (MixtureOfGaussians(k), loops.gaussian),
        (MixtureOfLaplaces(k), loops.laplace),
        (MixtureOfLogistics(k), loops.logistic),
    ]:
        p = family.log_prob(double([x]), double([eta])).exp().item()
        assert p == pytest.approx(loops.mixture(component, x, eta), rel=1e-9, abs=1e-200)


def test_against_torch_and_scipy():
    g = torch.Generator().manual_seed(0)
    x = 4 * torch.randn(50, generator=g, dtype=torch.float64)
    eta = torch.randn(50, 9, generator=g, dtype=torch.float64)
    mu, sigma = eta[:, 0], eta[:, 1].exp()
    D = torch.distributions
    pairs = [
        (Gaussian().log_prob(x, eta[:, :2]), D.Normal(mu, sigma).log_prob(x)),
        (Laplace().log_prob(x, eta[:, :2]), D.Laplace(mu, sigma).log_prob(x)),
        (StudentT().log_prob(x, eta[:, :3]), D.StudentT(eta[:, 2].exp(), mu, sigma).log_prob(x)),
        (Gaussian().cdf(x, eta[:, :2]), D.Normal(mu, sigma).cdf(x)),
        (Laplace().cdf(x, eta[:, :2]), D.Laplace(mu, sigma).cdf(x)),
    ]
    mix = D.Categorical(logits=eta[:, :3])
    for family, law in [(MixtureOfGaussians(3), D.Normal), (MixtureOfLaplaces(3), D.Laplace)]:
        reference = D.MixtureSameFamily(mix, law(eta[:, 3:6], eta[:, 6:].exp()))
        pairs += [
            (family.log_prob(x, eta), reference.log_prob(x)),
            (family.cdf(x, eta), reference.cdf(x)),
            (family.mean(eta), reference.mean),
        ]
    one = torch.stack([torch.zeros_like(mu), mu, eta[:, 1]], -1)
    logistic = stats.logistic(mu.numpy(), sigma.numpy())
    family = MixtureOfLogistics(1)
    pairs += [
        (family.log_prob(x, one), torch.as_tensor(logistic.logpdf(x.numpy()))),
        (family.cdf(x, one), torch.as_tensor(logistic.cdf(x.numpy()))),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("nu", [1e-3, 0.1, 1.0, 39.9, 40.1, 1e3, 1e6, 1e12])
def test_student_t_has_all_digits_for_any_degrees_of_freedom(nu):
    eta = double([[0.0, 0.0, math.log(nu)]]).expand(5, 3)
    x = double([0.0, 0.5, -3.0, 20.0, 1e4])
    exact = stats.t(nu).logpdf(x.numpy()) if nu < 1e9 else stats.norm.logpdf(x.numpy()[:3])
    log_p = StudentT().log_prob(x, eta)
    torch.testing.assert_close(log_p[: len(exact)], torch.as_tensor(exact), rtol=1e-9, atol=1e-9)
    single = StudentT().log_prob(x.float(), eta.float())  # plain log-gammas lose every digit at nu = 1e6
    torch.testing.assert_close(single.double(), log_p, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("delta", [0.05, 0.3, 1.0, 3.0])
def test_sinh_arcsinh_mean_is_the_bessel_formula(delta):
    """Jones & Pewsey's moment, with q = 1 / delta."""
    q, eps = 1 / delta, 0.7
    bessel = special.kv((q + 1) / 2, 0.25) + special.kv((q - 1) / 2, 0.25)
    exact = 2 + 3 * math.sinh(eps * q) * math.exp(0.25) / math.sqrt(8 * math.pi) * bessel
    eta = double([[2.0, math.log(3), eps, math.log(delta)]])
    assert SinhArcsinh().mean(eta).item() == pytest.approx(exact, rel=1e-12)


def test_a_gaussian_is_a_sinh_arcsinh_without_skew():
    x, eta = torch.linspace(-5, 5, 11).double()[:, None], double([[0.3, -0.4]])
    wide = torch.cat([eta, torch.zeros(1, 2).double()], -1)
    torch.testing.assert_close(
        SinhArcsinh().log_prob(x, wide.expand(11, 1, 4)), Gaussian().log_prob(x, eta.expand(11, 1, 2))
    )


@pytest.mark.parametrize("kind", [MixtureOfGaussians, MixtureOfLaplaces, MixtureOfLogistics])
@pytest.mark.parametrize("k", [1, 2, 7, 20])
@pytest.mark.parametrize("floor", [0.0, 1e-3])
def test_initial_sigma_is_the_intended_one(kind, k, floor):
    """Not its logarithm: the mixture starts with the mean and the variance of the data."""
    x = 50 + 10 * torch.randn(1000, 2, generator=torch.Generator().manual_seed(k)).double()
    family = kind(k, sigma_floor=floor)
    pi, mu, sigma = family.parameters_of(family.eta_from_marginal(x))
    deviation = {MixtureOfGaussians: 1, MixtureOfLaplaces: 2**0.5, MixtureOfLogistics: math.pi / 3**0.5}[kind]
    spread = x.std(0, correction=0)
    intended = spread * (0.25**0.5 if k > 1 else 1) / deviation
    torch.testing.assert_close(sigma, intended[:, None].expand(2, k), rtol=1e-10, atol=0)
    torch.testing.assert_close(pi, torch.full((2, k), 1 / k).double())
    torch.testing.assert_close((pi * mu).sum(-1), x.mean(0))
    within, between = (pi * (deviation * sigma) ** 2).sum(-1), (pi * (mu - x.mean(0)[:, None]) ** 2).sum(-1)
    torch.testing.assert_close(within + between, spread**2)
    assert k == 1 or (mu.diff(dim=-1) > 0).all()


@pytest.mark.parametrize("law", ["gaussian", "laplace", "t"])
def test_initial_values_of_single_laws_find_the_truth(law):
    g = torch.Generator().manual_seed(3)
    family, truth = {
        "gaussian": (Gaussian(), [3.0, math.log(2)]),
        "laplace": (Laplace(), [3.0, math.log(2)]),
        "t": (StudentT(), [3.0, math.log(2), math.log(9)]),
    }[law]
    x = family.sample(double(truth).expand(40_000, 1, -1), generator=g)
    eta = family.eta_from_marginal(x)[0]
    torch.testing.assert_close(eta[:2], double(truth)[:2], rtol=0, atol=0.06)
    if law == "t":
        assert 6 < eta[2].exp() < 14


def test_fixed_variance_is_learned_per_variable():
    family = FixedVarianceGaussian(2)
    assert [n for n, _ in family.named_parameters()] == ["log_sigma"]
    x = torch.tensor([[0.0, 10.0], [2.0, 30.0], [math.nan, 20.0]])
    family.fit_constants(x)
    torch.testing.assert_close(family.log_sigma.exp(), torch.tensor([1.0, (200 / 3) ** 0.5]))
    with pytest.raises(ValueError, match="n_variables must be at least 1, not 0"):
        FixedVarianceGaussian(0)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        MixtureOfGaussians(0)
    with pytest.raises(ValueError, match="sigma_floor must be a finite number"):
        Gaussian(sigma_floor=-0.1)
    with pytest.raises(TypeError, match="only real-valued families"):
        Transformed(Bernoulli(), Affine(n_variables=2))
    with pytest.raises(ValueError, match="same number of variables"):
        Transformed(Gaussian(), [Affine(n_variables=2), Log(n_variables=3)])
    with pytest.raises(ValueError, match="same number of variables"):
        Transformed(Gaussian(), [])
    with pytest.raises(ValueError, match="scale of an Affine must be above 0, but that of column 1 is 0"):
        Affine([0.0, 0.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="one number for each variable"):
        Affine(0.0, 1.0)
    with pytest.raises(ValueError, match="one number for each variable"):
        Affine([0.0, 0.0], [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="upper end of a Logit"):
        Logit(1.0, 1.0, n_variables=1)
    with pytest.raises(ValueError, match="no column 2 among 2"):
        Log(0.0, [2], n_variables=2)


def test_standardised_uses_population_moments_and_refuses_constant_columns():
    x = double([[1.0, 5.0], [3.0, math.nan], [5.0, 9.0]])
    family = standardised(Gaussian(), x).double()
    encoded = family.encode(x)[..., 0]
    torch.testing.assert_close(encoded.nanmean(0), torch.zeros(2).double(), rtol=0, atol=1e-7)
    torch.testing.assert_close(encoded.square().nanmean(0), torch.ones(2).double(), rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match="column 1 is always 5, so it cannot be standardised"):
        standardised(Gaussian(), double([[1.0, 5.0], [2.0, 5.0]]))
    with pytest.raises(ValueError, match="column 0 has no value"):
        standardised(Gaussian(), double([[math.nan, 5.0], [math.nan, 6.0]]))
    positive = standardised(Gaussian(), x, [Log(n_variables=2)]).double()
    assert positive.encode(x)[..., 0].nanmean(0).abs().max() < 1e-6


BIJECTIONS = {
    "affine": (Affine([3.0, -1.0], [0.1, 20.0]), [[2.9, 30.0], [4.0, -7.0]]),
    "log": (Log([-1.0, 2.0]), [[-0.99, 30.0], [4.0, 2.001]]),
    "log-some": (Log(0.0, [1], n_variables=2), [[-5.0, 0.1], [4.0, 7.0]]),
    "logit": (Logit([0.0, -3.0], [1.0, 10.0]), [[0.01, 9.9], [0.5, -2.0]]),
    "logit-some": (Logit(0.0, 1.0, [0], n_variables=2), [[0.01, 9.9], [0.5, -2.0]]),
}


@pytest.mark.parametrize(("bijection", "values"), BIJECTIONS.values(), ids=BIJECTIONS.keys())
def test_bijections_against_autograd(bijection, values):
    bijection, x = bijection.double(), double(values)
    each = torch.func.vmap(torch.func.jacrev(bijection))(x).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(bijection.log_abs_det(x).expand(2, 2), each.log(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(bijection.inverse(bijection(x)), x, rtol=1e-12, atol=1e-12)
    assert (each > 0).all()
    i = torch.tensor([[1], [0]])
    torch.testing.assert_close(bijection(x.T[[1, 0]], i), bijection(x).T[[1, 0]], rtol=0, atol=0)


def test_outside_the_domain_the_density_is_zero_and_harmless():
    family = Transformed(Gaussian(), [Log(0.0, [0], n_variables=2), Logit(0.0, 1.0, [1], n_variables=2)])
    eta = torch.zeros(3, 2, 2, requires_grad=True)
    x = torch.tensor([[-1.0, 0.5], [0.0, 1.0], [1.0, 7.0]])
    log_p = family.log_prob(x, eta)
    assert torch.isneginf(log_p).tolist() == [[True, False], [True, True], [False, True]]
    used = torch.isfinite(log_p)
    (grad,) = torch.autograd.grad(log_p.masked_fill(~used, 0).sum(), eta)
    assert torch.isfinite(grad).all()
    assert torch.isfinite(family.encode(x)).all()
    assert family.cdf(x, eta).detach().tolist() == [[0, 0.5], [0, 1], [0.5, 1]]
    with pytest.raises(ValueError, match="Log needs values above 0, but row 0, column 0 is -1"):
        family.check(x)
    with pytest.raises(ValueError, match=r"Logit needs values between 0 and 1, .*row 0, column 1 is 7"):
        family.check(x[2:])
    family.check(family.fill(x, used))
    assert torch.equal(family.fill(x, used)[used], x[used])


@pytest.mark.parametrize(("sigma", "accuracy"), [(0.5, 1e-12), (1.0, 1e-11), (2.0, 1e-8)])
def test_mean_of_a_log_normal(sigma, accuracy):
    """The numerical mean, against exp(mu + sigma²/2); the tail beyond 1e-16 is what is missing."""
    mu, log_sigma = 0.3, math.log(sigma)
    exact = 5 + math.exp(mu + sigma**2 / 2)
    family = Transformed(Gaussian(), Log(5.0, n_variables=1)).double()
    assert family.mean(double([[mu, log_sigma]])).item() == pytest.approx(exact, rel=accuracy)
    mixed = Transformed(MixtureOfGaussians(2), Log(5.0, n_variables=1)).double()
    eta = double([[0.2, 0.2, mu, mu, log_sigma, log_sigma]])
    assert mixed.mean(eta).item() == pytest.approx(exact, rel=accuracy)
    single = copy.deepcopy(family).float().mean(double([[mu, log_sigma]]).float()).item()
    assert single == pytest.approx(exact, rel=1e-5)


def test_a_large_offset_costs_no_digits():
    x = (1e6 + torch.linspace(-2, 2, 33)[:, None]).float()
    family = Transformed(MixtureOfGaussians(2), Affine([1e6], [0.5]))
    eta = torch.tensor([0.1, -0.1, 0.5, -1.0, 0.0, -1.0]).expand(33, 1, 6)
    exact = copy.deepcopy(family).double().log_prob(x.double(), eta.double())
    torch.testing.assert_close(family.log_prob(x, eta).double(), exact, rtol=1e-5, atol=1e-5)
    moved = Transformed(MixtureOfGaussians(2), Affine([0.0], [0.5])).double()
    torch.testing.assert_close(moved.log_prob(x.double() - 1e6, eta.double()), exact)


def test_density_of_standardised_data_is_that_of_the_data():
    """Changing units by a factor c moves each log-density by -log c."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=g).double()
    factor = double([1000.0, 0.01])
    eta = torch.randn(100, 2, 9, generator=g).double()
    a = standardised(MixtureOfLaplaces(3), x).double().log_prob(x, eta)
    b = standardised(MixtureOfLaplaces(3), x * factor).double().log_prob(x * factor, eta)
    torch.testing.assert_close(a - factor.log(), b, rtol=1e-5, atol=1e-5)  # constants are kept in float32


def test_narrow_mixtures_far_apart_have_exact_quantiles():
    family = MixtureOfGaussians(3)
    eta = double([[0.0, 0.0, 0.0, -1e6, 0.0, 1e6, math.log(1e-6), 0.0, math.log(1e3)]]).expand(6, 9)
    q = double([1e-6, 0.2, 0.34, 0.5, 0.66, 0.999])
    x = family.quantile(q, eta)
    torch.testing.assert_close(family.cdf(x[2:], eta[2:]), q[2:], rtol=1e-10, atol=0)
    exact = -1e6 + 1e-6 * torch.special.ndtri(3 * q[:2])
    torch.testing.assert_close(x[:2], exact, rtol=1e-15, atol=0)
    assert abs(x[3].item()) < 1e-12  # relative accuracy also where the answer is near zero
