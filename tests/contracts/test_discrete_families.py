"""What every family of discrete variables promises, checked in float64 through one list of cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from pynade.families import Bernoulli, Categorical, DiscretisedLogistic
from pynade.models import Autoregressive, Independent, Orderless
from pynade.nets import CausalTransformer, MaskedMLP, NADENet
from pynade.ordering import Ordering
from pynade.store import build, describe, load_density, save_density

from .cases import generator, shaken

FAMILIES = {
    "bernoulli": (2, Bernoulli),
    "categorical-2": (2, lambda: Categorical(2)),
    "categorical-5": (5, lambda: Categorical(5)),
    "categorical-value": (7, lambda: Categorical(7, one_hot=False)),
    "logistic-1": (2, lambda: DiscretisedLogistic(1, levels=2)),
    "logistic-3": (9, lambda: DiscretisedLogistic(3, levels=9)),
    "logistic-floor": (256, lambda: DiscretisedLogistic(2, sigma_floor=0.01)),
}
every_family = pytest.mark.parametrize(("L", "make"), FAMILIES.values(), ids=FAMILIES.keys())


def etas(family, *shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, family.n_params, generator=generator(seed), dtype=torch.float64)


def table(family, L, eta):
    """Log-probabilities (…, L) of all levels."""
    levels = torch.arange(L, dtype=eta.dtype)
    x = levels.expand(*eta.shape[:-1], L)
    return torch.stack([family.log_prob(x[..., level], eta) for level in range(L)], -1)


@every_family
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 8))
@settings(max_examples=10, deadline=None)
def test_probabilities_sum_to_one_and_the_cdf_adds_them_up(L, make, seed, scale):
    family, eta = make(), etas(make(), 4, 3, seed=seed, scale=scale)
    log_p = table(family, L, eta)
    assert torch.isfinite(log_p).all()
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(4, 3).double(), rtol=0, atol=1e-12)
    sums = log_p.exp().cumsum(-1)
    for level in range(L):
        here = torch.full((4, 3), float(level)).double()
        torch.testing.assert_close(family.cdf(here, eta), sums[..., level], rtol=0, atol=1e-12)
        torch.testing.assert_close(family.cdf(here + 0.5, eta), sums[..., level], rtol=0, atol=1e-12)
    assert (family.cdf(torch.full((4, 3), -0.5).double(), eta) == 0).all()
    assert (family.cdf(torch.full((4, 3), L - 1.0).double(), eta) == 1).all()


@every_family
def test_quantile_is_the_first_level_whose_cdf_reaches_q(L, make):
    family = make()
    eta = etas(family, 40, 3)
    q = torch.rand(40, 3, generator=generator(2), dtype=torch.float64)
    x = family.quantile(q, eta)
    assert ((x >= 0) & (x < L) & (x == x.round())).all()
    assert (family.cdf(x, eta) >= q).all()
    assert (family.cdf(x - 1, eta) < q).all()
    assert (family.quantile(torch.zeros(40, 3).double(), eta) == 0).all()
    top = family.quantile(torch.ones(40, 3).double(), eta)
    assert (family.cdf(top, eta) == 1).all()


@every_family
def test_samples_follow_the_probabilities(L, make):
    family, n = make(), 20_000
    eta = etas(family, 2, seed=3)
    draws = family.sample(eta.expand(n, 2, -1), generator=generator(1))
    family.check(draws)
    assert torch.equal(draws, family.sample(eta.expand(n, 2, -1), generator=generator(1)))
    expected = n * table(family, L, eta).exp().numpy()
    for d in range(2):
        seen = np.bincount(draws[:, d].long().numpy(), minlength=L)
        often = expected[d] >= 5
        a = np.append(seen[often], seen[~often].sum())
        b = np.append(expected[d][often], expected[d][~often].sum())
        keep = b > 0
        assert chisquare(a[keep], b[keep] * a.sum() / b[keep].sum()).pvalue > 1e-3


@every_family
def test_mean_and_mode_are_those_of_the_table(L, make):
    family = make()
    eta = etas(family, 6, 3)
    p = table(family, L, eta).exp()
    levels = torch.arange(L).double()
    torch.testing.assert_close(family.mean(eta), (p * levels).sum(-1), rtol=1e-11, atol=1e-11)
    assert torch.equal(family.best_guess(eta), p.argmax(-1).double())


@every_family
def test_one_variable_per_row_agrees_with_all_variables(L, make):
    family = make()
    eta = etas(family, 5, 3)
    x = family.sample(eta, generator=generator(1))
    q = torch.rand(5, 3, generator=generator(3), dtype=torch.float64)
    order = torch.tensor([2, 0, 1])
    i = order[:, None]
    x_i, eta_i, q_i = x.T[order], eta.transpose(0, 1)[order], q.T[order]
    for whole, single in [
        (family.log_prob(x, eta), family.log_prob(x_i, eta_i, i)),
        (family.cdf(x, eta), family.cdf(x_i, eta_i, i)),
        (family.quantile(q, eta), family.quantile(q_i, eta_i, i)),
        (family.mean(eta), family.mean(eta_i, i)),
        (family.best_guess(eta), family.best_guess(eta_i, i)),
    ]:
        torch.testing.assert_close(single, whole.T[order], rtol=1e-14, atol=1e-14)
    assert torch.equal(family.encode(x_i, i), family.encode(x).transpose(0, 1)[order])
    assert family.encode(x).shape == (5, 3, family.n_features)
    assert family.sample(eta_i, i, generator()).shape == (3, 5)


@every_family
def test_gradients_and_vmap(L, make):
    family = make()
    eta = etas(family, 4, 3).requires_grad_()
    x = family.sample(eta.detach(), generator=generator())
    x[0, 0], x[1, 0] = 0, L - 1
    assert torch.autograd.gradcheck(lambda e: family.log_prob(x, e), (eta,))
    many = etas(family, 5, 4, 3, seed=1)
    together = torch.vmap(lambda e: family.log_prob(x, e))(many)
    torch.testing.assert_close(together, torch.stack([family.log_prob(x, e) for e in many]), rtol=0, atol=0)
    both = torch.vmap(family.encode)(x.expand(2, 4, 3))
    assert torch.equal(both[1], family.encode(x))


@every_family
def test_float32_is_close_and_extreme_parameters_stay_finite(L, make):
    family = make()
    eta = etas(family, 200, 3)
    x = family.sample(eta, generator=generator())
    exact = family.log_prob(x, eta.float().double())
    torch.testing.assert_close(family.log_prob(x.float(), eta.float()).double(), exact, rtol=2e-5, atol=5e-4)
    far = (30 * etas(family, 200, 3, seed=4)).clamp(-60, 60).float().requires_grad_()
    log_p = family.log_prob(x.float(), far)
    assert torch.isfinite(log_p).all()
    assert torch.isfinite(torch.autograd.grad(log_p.sum(), far)[0]).all()


@every_family
def test_specs_and_saved_models(L, make, tmp_path):
    family = make()
    again = build(describe(family))
    assert describe(again) == describe(family)
    assert (again.n_params, again.n_features) == (family.n_params, family.n_features)
    net = shaken(MaskedMLP(3, family.n_params, hidden=4, n_features=family.n_features), scale=0.5)
    model = Orderless(net, family)
    save_density(model, tmp_path / "m.safetensors")
    loaded, _ = load_density(tmp_path / "m.safetensors")
    one, two = (m.under(Ordering([2, 0, 1])) for m in (model, loaded))
    x = one.sample(20, generator(1))
    assert torch.equal(one.log_prob(x), two.log_prob(x))


@every_family
def test_joint_probabilities_sum_to_one(L, make):
    family, D = make(), 2 if L < 20 else 1
    for net in (
        NADENet(D, family.n_params, hidden=5, n_features=family.n_features),
        CausalTransformer(D, family.n_params, n_features=family.n_features, width=8, depth=1, heads=2),
    ):
        model = Autoregressive(shaken(net, scale=0.6), family, Ordering(list(range(D))[::-1]))
        states = torch.cartesian_prod(*[torch.arange(L).double()] * D).view(-1, D)
        assert abs(model.log_prob(states).exp().sum().item() - 1) < 1e-10
        family.check(model.sample(50, generator()))


@every_family
def test_marginal_eta_describes_the_columns_and_ignores_missing_values(L, make):
    family = make()
    eta = etas(family, 3, seed=7)
    x = family.sample(eta.expand(3000, 3, -1), generator=generator(2))
    fitted = family.eta_from_marginal(x)
    assert fitted.shape == (3, family.n_params)
    assert fitted.dtype == torch.float64
    here = family.log_prob(x, fitted.expand(3000, 3, -1)).mean(0)
    truth = family.log_prob(x, eta.expand(3000, 3, -1)).mean(0)
    assert (here > truth - 1).all()  # a start: moments say little of a law with much mass at its ends
    holes = torch.where(torch.rand(3000, 3, generator=generator(3)) < 0.3, math.nan, x)
    for d in range(3):
        known = holes[~torch.isnan(holes[:, d]), d].unsqueeze(1).expand(-1, 3)
        torch.testing.assert_close(
            family.eta_from_marginal(holes)[d], family.eta_from_marginal(known)[d], rtol=1e-10, atol=1e-10
        )
    whole = family.eta_from_marginal(x.to(torch.uint8))
    torch.testing.assert_close(whole, fitted, rtol=1e-12, atol=1e-12)
    constant = family.eta_from_marginal(torch.zeros(10, 3))
    assert torch.isfinite(constant).all()
    assert torch.isfinite(Independent(family, 3).log_prob(torch.zeros(2, 3))).all()


@every_family
@pytest.mark.parametrize(
    ("value", "words"),
    [(math.nan, "row 1, column 2 is missing"), (-1.0, "is -1"), (300.0, "is 300"), (0.5, "is 0.5")],
)
def test_values_outside_the_levels_are_refused(L, make, value, words):
    family = make()
    x = family.sample(etas(family, 2, 3), generator=generator())
    family.check(x)
    family.check(x.to(torch.uint8))
    x[1, 2] = value
    with pytest.raises(ValueError, match=words):
        family.check(x)


def test_a_categorical_of_two_levels_is_a_bernoulli():
    eta = etas(Categorical(2), 50, 3)
    x = (torch.rand(50, 3, generator=generator()) < 0.5).double()
    logit = (eta[..., 1] - eta[..., 0]).unsqueeze(-1)
    torch.testing.assert_close(Categorical(2).log_prob(x, eta), Bernoulli().log_prob(x, logit))


def test_many_levels_approach_the_density_of_the_logistic():
    """With fine levels, p(x) / width of a level is the density of the logistic law at it."""
    L = 20_001
    family = DiscretisedLogistic(1, levels=L)
    x = torch.linspace(6000, 14_000, 9, dtype=torch.float64).round()
    eta = torch.tensor([0.0, 0.1, math.log(0.2)], dtype=torch.float64).expand(9, 3)
    z = (2 * x / (L - 1) - 1 - 0.1) / 0.2
    density = torch.sigmoid(z) * torch.sigmoid(-z) / 0.2
    torch.testing.assert_close(family.log_prob(x, eta).exp() * (L - 1) / 2, density, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Categorical(1), "at least 2 levels, not 1"),
        (lambda: DiscretisedLogistic(0), "n_components must be a whole number, at least 1"),
        (lambda: DiscretisedLogistic(2, levels=1), "at least 2 levels"),
        (lambda: DiscretisedLogistic(2, sigma_floor=-1), "sigma_floor must be a finite number"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
