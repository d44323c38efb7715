"""Families that the library does not know, a real one and a discrete one: their own methods decide."""

import math

import pytest
import torch
from torch import nan

from pynade import queries
from pynade.families import (
    Affine,
    Bernoulli,
    Bijection,
    Categorical,
    Gaussian,
    MixtureOfGaussians,
    Transformed,
)
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.nets import FVSBNNet, MaskedMLP, NADENet
from pynade.ordering import Ordering
from tests.contracts.cases import generator, shaken
from tests.families.own import Exponential, Poisson


def chain(family, weight, bias=1.0):
    """x0, then x1 given x0, which its mean depends on: x0 is missing and comes first."""
    net = FVSBNNet(2).double()
    net.weight.data[1, 0, 0, 0] = weight
    net.bias.data.fill_(bias)
    return Autoregressive(net, family, Ordering([0, 1]))


def posterior(model, grid, x1):
    rows = torch.stack([grid, torch.full_like(grid, x1)], -1)
    return model.log_prob(rows).detach().softmax(0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_real_variable_before_the_observed_one_is_given_its_mean(seed):
    model, n = chain(Exponential(0.3), -0.8), 20_000
    grid = torch.linspace(0, 80, 200_001, dtype=torch.float64)
    p = posterior(model, grid, 0.7)
    mean = p @ grid
    deviation = (p @ (grid - mean) ** 2).sqrt().item()
    x = torch.tensor([[nan, 0.7]], dtype=torch.float64)
    guess = queries.impute(model, x, generator=generator(seed), particles=n)[0, 0].item()
    assert guess == pytest.approx(mean.item(), abs=6 * deviation / math.sqrt(n))
    draws = queries.impute(model, x, n, generator=generator(seed), particles=n)[:, 0, 0]
    assert draws.mean().item() == pytest.approx(mean.item(), abs=8 * deviation / math.sqrt(n))


class DeclaredPoisson(Poisson):
    discrete = True


@pytest.mark.parametrize("kind", [Poisson, DeclaredPoisson])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_discrete_variable_before_the_observed_one_is_given_its_mode(kind, seed):
    model = chain(kind(0.4), 0.5)
    grid = torch.arange(60, dtype=torch.float64)
    p = posterior(model, grid, 9.0)
    best = p.argsort(descending=True)[:2]
    assert p[best[0]] - p[best[1]] > 6 * math.sqrt(0.5 / 20_000)
    x = torch.tensor([[nan, 9.0]], dtype=torch.float64)
    guess = queries.impute(model, x, generator=generator(seed), particles=20_000)
    assert guess.tolist() == [[best[0].item(), 9.0]]


@pytest.mark.parametrize("kind", [Exponential, Poisson])
def test_all_models_take_a_family_of_ones_own(kind):
    x = torch.tensor([[1.0, 2, 0], [3, 0, 1]]).double()
    gaps = torch.tensor([[nan, 2, nan], [3, nan, 1]]).double()
    family = kind(0.1)
    single = Autoregressive(NADENet(3, hidden=4), family, Ordering([2, 0, 1])).double()
    ensemble = Ensemble(NADENet(3, hidden=4), family, Ordering.random(3, k=2, generator=generator())).double()
    deep = Orderless(MaskedMLP(3, hidden=4), family).double()
    for model in (single, ensemble, deep.under(Ordering([0, 1, 2]))):
        assert model.log_prob(x).shape == (2,)
        model.check(model.sample(20, generator(1)))
        model.check(queries.impute(model, gaps, generator=generator(2)))
    model = deep
    assert torch.isfinite(queries.marginal_log_prob(model, gaps, ~gaps.isnan())).all()
    model.check(queries.impute(model, gaps))
    single.check(queries.sample_given(model, gaps, ~gaps.isnan(), 3, generator=generator(3)).flatten(0, 1))


class Sinh(Bijection):
    """y = asinh(x): all real numbers, and not affine."""

    def __init__(self, n_variables: int) -> None:
        super().__init__(n_variables, zero=0.0)

    def forward(self, x, i=None):
        return torch.asinh(x)

    def inverse(self, y, i=None):
        return torch.sinh(y)

    def log_abs_det(self, x, i=None):
        return -0.5 * torch.log1p(x.square())


def test_the_mean_under_a_map_of_ones_own_is_no_mapped_mean():
    """E sinh(Y) = exp(s² / 2) sinh(m), for Y normal."""
    family = Transformed(Gaussian(), Sinh(1))
    eta = torch.tensor([[[1.0, math.log(0.8)]]], dtype=torch.float64)
    assert family.mean(eta).item() == pytest.approx(math.exp(0.32) * math.sinh(1), rel=1e-6)
    model = Autoregressive(FVSBNNet(1, 2), family, Ordering.natural(1)).double()
    model.net.bias.data.copy_(eta[0])
    guess = queries.impute(model, torch.tensor([[nan]]).double(), generator=generator(), particles=40_000)
    assert guess.item() == pytest.approx(math.exp(0.32) * math.sinh(1), abs=0.05)


def test_a_subclass_that_draws_otherwise_is_not_drawn_by_the_compiled_loop():
    class Ones(Bernoulli):
        def sample(self, eta, i=None, generator=None):
            return torch.ones_like(eta[..., 0])

    class Zeros(MixtureOfGaussians):
        def sample(self, eta, i=None, generator=None):
            return torch.zeros_like(eta[..., 0])

    order = Ordering.natural(3)
    assert (Autoregressive(NADENet(3, hidden=2), Ones(), order).sample(5, generator()) == 1).all()
    assert (Autoregressive(NADENet(3, 6, hidden=2), Zeros(2), order).sample(5, generator()) == 0).all()


def test_gaps_of_data_far_from_zero_lose_no_digits():
    """Complete rows and rows with gaps are scored by the same arithmetic: the location goes first."""
    D, far = 4, 1e8
    family = Transformed(Gaussian(), Affine(torch.full((D,), far), torch.full((D,), 0.5)))
    model = Orderless(shaken(MaskedMLP(D, 2, hidden=5), scale=0.3).float(), family)
    near = Orderless(model.net, Transformed(Gaussian(), Affine(torch.zeros(D), torch.full((D,), 0.5))))
    x = torch.randn(5, D, generator=generator(), dtype=torch.float64)
    gaps = x.clone()
    gaps[:, 2] = nan
    known = ~gaps.isnan()
    here = queries.marginal_log_prob(near, gaps, known)
    torch.testing.assert_close(queries.marginal_log_prob(model, gaps + far, known), here, rtol=0, atol=1e-4)
    draws = queries.sample_given(model, gaps + far, known, 3, generator=generator(1))
    assert torch.equal(draws[:, known], (gaps + far)[known].expand(3, -1))
    again = queries.sample_given(near, gaps, known, 3, generator=generator(1))
    torch.testing.assert_close(draws - far, again, rtol=0, atol=1e-5)


def test_known_families_state_whether_they_are_discrete():
    for family in (Bernoulli(), Categorical(3)):
        assert family.discrete is True
        assert family._has_modes(torch.zeros(1))
    assert Gaussian().discrete is False
    assert not Gaussian()._has_modes(torch.zeros(1))
