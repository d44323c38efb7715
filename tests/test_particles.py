"""Completions by weighted particles, against enumeration and quadrature."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nan

import pynade
from pynade import queries
from pynade.families import Categorical, Gaussian, standardised
from pynade.models import Autoregressive, Ensemble
from pynade.nets import FVSBNNet, NADENet
from pynade.ordering import Ordering
from pynade.particles import complete_rows, systematic
from tests.contracts.cases import DENSITIES, all_states, generator, shaken

D = 6
MODELS = ["nade-sigmoid", "made-3", "made-direct", "fvsbn", "ensemble-nade", "ensemble-made"]
rows_and_gaps = st.tuples(st.lists(st.booleans(), min_size=D, max_size=D), st.integers(0, 2**D - 1))


def posterior(model, row, observed):
    """All completions of a row, their probabilities given what is observed, and log p(observed)."""
    states = all_states(D)
    states = states[((states == row) | ~observed).all(-1)]
    joint = model.log_prob(states).detach()
    return states, joint.softmax(0), joint.logsumexp(0)


def shares(draws, states):
    """How often each state stands among draws (n, D)."""
    return (draws[:, None] == states).all(-1).double().mean(0)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(case=rows_and_gaps, seed=st.integers(0, 1000))
def test_draws_guesses_and_probabilities_are_those_of_enumeration(name, case, seed):
    observed, row = torch.tensor(case[0]), all_states(D)[case[1]]
    model, n = DENSITIES[name](D), 4000
    states, truth, log_p = posterior(model, row, observed)
    x = torch.where(observed, row, nan)[None]
    draws = queries.impute(model, x, n, generator=generator(seed), particles=n)
    assert draws.shape == (n, 1, D)
    assert torch.equal(draws[:, 0, observed], row[observed].expand(n, -1))

    particles = complete_rows(model, x, observed[None], n, generator(seed))
    size = min(n, particles.effective_sample_size.item())  # particles and draws from them are both samples
    assert (shares(draws[:, 0], states) - truth).abs().max() < 5 * math.sqrt(0.25 / n + 0.25 / size)
    assert particles.log_prob.item() == pytest.approx(log_p.item(), abs=5 / math.sqrt(size))
    assert particles.log_weights.exp().sum().item() == pytest.approx(1)

    marginal = truth @ states
    sure = (marginal - 0.5).abs() > 5 * math.sqrt(0.25 / size)
    guess = queries.impute(model, x, generator=generator(seed), particles=n)
    assert torch.equal(guess[0, sure], (marginal > 0.5).double()[sure])
    assert torch.equal(guess[0, observed], row[observed])


@pytest.mark.parametrize("name", ["nade-sigmoid", "ensemble-made"])
def test_probabilities_are_unbiased_though_particles_are_few_and_resampled(name):
    model, rows = DENSITIES[name](D), 20_000
    observed = torch.tensor([False, True, False, True, False, True])
    row = torch.tensor([0, 1, 0, 0, 1, 1.0]).double()
    exact = posterior(model, row, observed)[2].exp().item()
    found = complete_rows(
        model, row.expand(rows, D), observed.expand(rows, D), 6, generator(1)
    ).log_prob.exp()
    assert abs(found.mean().item() - exact) < 4.5 * found.std().item() / math.sqrt(rows)
    assert found.std() > 0


def test_every_ordering_of_an_ensemble_is_weighed_by_what_it_says_of_the_observed():
    model = DENSITIES["ensemble-nade"](D)
    row, observed = all_states(D)[37], torch.tensor([True, False, True, False, True, True])
    each = torch.stack([posterior(model.member(k), row, observed)[2] for k in range(3)])
    particles = complete_rows(model, row[None], observed[None], 30_000, generator(2))
    members = particles.log_weights.exp().view(3, -1).sum(1)
    torch.testing.assert_close(members, each.softmax(0), atol=0.03, rtol=0)


@pytest.mark.parametrize("name", ["nade-relu", "made-1", "ensemble-nade"])
def test_where_the_last_variables_are_missing_draws_are_exact_and_so_is_the_next_guess(name):
    model = DENSITIES[name](D)
    if isinstance(model, Ensemble):  # both orderings begin with the same four
        order = torch.tensor([[2, 0, 5, 3, 1, 4], [0, 3, 2, 5, 4, 1]])
        model = Ensemble(model.net, model.family, Ordering(order))
    order = model.order.view(-1, D)
    observed = torch.zeros(D, dtype=torch.bool)
    observed[order[0, :4]] = True
    x = torch.where(observed, all_states(D)[[3, 40]], nan)
    exact = queries.sample_given(model, x, observed, 50, generator=generator(3))
    assert torch.equal(queries.impute(model, x, 50, generator=generator(3)), exact)
    particles = complete_rows(model, x, observed.expand(2, D), 30, generator(3))
    torch.testing.assert_close(particles.log_prob, queries.marginal_log_prob(model, x, observed).detach())
    if len(order) == 1:
        assert particles.effective_sample_size == pytest.approx([30, 30])
        for r in range(2):
            states, truth, _ = posterior(model, x[r], observed)
            i = order[0, 4]  # what comes next needs no particles: its mean is the same for all of them
            torch.testing.assert_close(particles.means[r, :, i], (truth @ states)[i].expand(30))


def real_pair(seed=0):
    """Three Gaussian variables along (2, 0, 1), linear in each other, in units far from standard."""
    g = generator(seed)
    net = FVSBNNet(3, 2)
    net.weight.data.copy_(torch.randn(net.weight.shape, generator=g))
    net.weight.data[:, 1] = 0  # scales that do not depend: all is jointly Gaussian
    net.bias.data[:, 1] = torch.tensor([-0.5, 0.2, 0.3])
    data = torch.randn(50, 3, generator=g).double() * torch.tensor([10.0, 0.1, 3]) + torch.tensor(
        [1e3, 5, -20]
    )
    return Autoregressive(net, standardised(Gaussian(), data), Ordering([2, 0, 1])).double()


def test_gaussian_completions_are_those_of_the_joint_gaussian():
    model = real_pair()
    many = model.sample(400_000, generator(4))
    mean, cov = many.mean(0), many.T.cov()
    known = torch.tensor([False, True, False])
    x = torch.tensor([[nan, mean[1] + cov[1, 1].sqrt(), nan]], dtype=torch.float64)
    slope = cov[~known][:, known] / cov[1, 1]
    expected = mean[~known] + slope[:, 0] * cov[1, 1].sqrt()
    left = cov[~known][:, ~known] - slope @ slope.T * cov[1, 1]
    unit = cov.diag().sqrt()[~known]
    guess = queries.impute(model, x, generator=generator(5), particles=20_000)
    assert ((guess[0, ~known] - expected).abs() / unit).max() < 0.03
    draws = queries.impute(model, x, 20_000, generator=generator(5), particles=20_000)[:, 0]
    assert ((draws[:, ~known].T.cov() - left).abs() / torch.outer(unit, unit)).max() < 0.04
    assert (draws[:, 1] == x[0, 1]).all()
    particles = complete_rows(model, x, known[None], 20_000, generator(6))
    normal = torch.distributions.Normal(mean[1], cov[1, 1].sqrt())
    assert particles.log_prob.item() == pytest.approx(normal.log_prob(x[0, 1]).item(), abs=0.05)


def test_a_net_that_bends_agrees_with_quadrature():
    net = shaken(NADENet(2, 2, 6, activation="tanh"), 7, scale=0.7)
    model = Autoregressive(net, Gaussian(), Ordering([0, 1]))
    grid = torch.linspace(-15, 15, 6001, dtype=torch.float64)
    joint = model.log_prob(torch.stack([grid, torch.full_like(grid, 0.4)], 1)).detach()
    weights = joint.softmax(0)
    x = torch.tensor([[nan, 0.4]], dtype=torch.float64)
    particles = complete_rows(model, x, ~x.isnan(), 40_000, generator(8))
    exact = joint.logsumexp(0) + math.log(grid[1] - grid[0])
    assert particles.log_prob.item() == pytest.approx(exact.item(), abs=0.03)
    guess = queries.impute(model, x, generator=generator(8), particles=40_000)[0, 0]
    assert guess.item() == pytest.approx((weights @ grid).item(), abs=0.05)


def test_the_likeliest_level_wins():
    model = Autoregressive(
        shaken(NADENet(3, 3, 5, n_features=3), 9), Categorical(3), Ordering([1, 2, 0])
    ).double()
    x = torch.tensor([[2.0, nan, nan], [nan, 1.0, 0.0], [nan, 0.0, nan]], dtype=torch.float64)
    states = torch.cartesian_prod(*[torch.arange(3.0)] * 3).double()
    filled = queries.impute(model, x, generator=generator(1), particles=20_000)
    for row, made in zip(x, filled, strict=True):
        fits = ((states == row) | row.isnan()).all(-1)
        p = model.log_prob(states[fits]).detach().softmax(0)
        for i in row.isnan().nonzero()[:, 0]:
            share = torch.stack([p[states[fits][:, i] == level].sum() for level in range(3)])
            best, second = share.sort(descending=True).values[:2]
            assert made[i] == share.argmax() or best - second < 0.03


def test_rows_are_filled_in_pieces_and_complete_ones_are_left_alone(monkeypatch):
    model = DENSITIES["nade-sigmoid"](D)
    monkeypatch.setattr(type(model.net), "rows_at_once", lambda *_: 100)
    x = all_states(D)[:40].clone()
    gaps = torch.rand(x.shape, generator=generator(2)) < 0.4
    gaps[::7] = False
    x[gaps] = nan
    for n in (None, 3):
        one = queries.impute(model, x, n, generator=generator(3), particles=40)
        again = queries.impute(model, x, n, generator=generator(3), particles=40)
        assert torch.equal(one, again)
        assert torch.equal(one[..., ~gaps], x[~gaps].expand_as(one[..., ~gaps]))
        assert not one.isnan().any()
    other = queries.impute(model, x, 3, generator=generator(4), particles=40)
    assert not torch.equal(one, other)


def test_a_small_effective_sample_size_is_warned_of_and_impossible_rows_come_back():
    model = DENSITIES["nade-sigmoid"](D)
    first, last = model.order[0], model.order[-1]
    x = torch.zeros(2, D, dtype=torch.float64)
    x[0, first] = nan
    with pytest.warns(
        UserWarning, match="gaps of 1 of 2 rows .* sample size below 10 .* more particles help"
    ):
        queries.impute(model, x, generator=generator(0), particles=8)
    model.net.bias.data[last] = math.inf  # says that the last cell is 1
    x[0, last] = 0
    particles = complete_rows(model, x, ~x.isnan(), 50, generator(0))
    assert particles.log_prob.tolist() == [-math.inf, -math.inf]
    assert particles.effective_sample_size.tolist() == [0, 0]
    with pytest.warns(UserWarning, match=r"the smallest is 0\.0"):
        assert not queries.impute(model, x, 5, generator=generator(0)).isnan().any()


def test_ancestors_are_counted_not_copies():
    """A first gap that all that follows depends on: the resampled particles come from the few that fit."""
    net = FVSBNNet(9).double()
    net.weight.data[1:, 0, 0, 0] = 20.0  # x_0 = 1 makes all others 1
    net.bias.data[1:] = -10.0
    net.bias.data[0] = -4.0
    model = Autoregressive(net, pynade.families.Bernoulli(), Ordering.natural(9))
    x = torch.tensor([[nan, 1, nan, 1, nan, 1, nan, 1, nan]], dtype=torch.float64)
    particles = complete_rows(model, x, ~x.isnan(), 1000, generator(0))
    assert particles.effective_sample_size.item() < 40  # one in fifty particles began with a 1
    assert (particles.log_weights.exp()[0] @ particles.x[0] > 0.99).all()


@given(st.lists(st.floats(-30, 5), min_size=1, max_size=20), st.integers(0, 99))
def test_systematic_resampling_is_even(log_weights, seed):
    log_weights = torch.tensor(log_weights, dtype=torch.float64)
    m = len(log_weights)
    chosen = systematic(log_weights, generator(seed)).bincount(minlength=m)
    wanted = m * log_weights.softmax(0)
    assert chosen.sum() == m
    assert ((chosen - wanted).abs() < 1 + 1e-9).all()


# ------------------------------------------------------------------------------------------------ estimators


@pytest.fixture(scope="module")
def copies():
    """Six columns: three coins, each twice."""
    return np.random.default_rng(0).integers(0, 2, (300, 3)).repeat(2, axis=1)


@pytest.mark.parametrize(
    "estimator",
    [
        pynade.NADE(hidden=16, learning_rate=0.05, epochs=40, random_state=0),
        pynade.MADE(hidden=(32,), direct=True, learning_rate=0.02, epochs=60, random_state=0),
        pynade.MADE(hidden=(64,), learning_rate=0.02, epochs=150, n_orderings=2, random_state=0),
        pynade.FVSBN(learning_rate=0.05, epochs=40, random_state=0),
    ],
    ids=["nade", "made", "made-e", "fvsbn"],
)
def test_binary_estimators_fill_a_copy_by_its_twin(estimator, copies):
    model = estimator.fit(copies)
    gaps = copies[:40].astype(float)
    rng = np.random.default_rng(1)
    gaps[np.arange(40), rng.integers(0, 6, 40)] = np.nan
    filled = model.impute(gaps, random_state=0)
    assert filled.dtype == np.int64
    one, zero = (model.score_samples(np.where(np.isnan(gaps), value, gaps).astype(int)) for value in (1, 0))
    sure = np.abs(one - zero) > 0.5  # one gap a row: its odds are known
    assert sure.mean() > 0.8
    assert (filled[np.isnan(gaps)] == (one > zero))[sure].all()
    assert (filled == copies[:40]).mean() > 0.95
    draws = model.impute(gaps, 4, random_state=0, particles=100)
    assert draws.shape == (4, 40, 6)
    assert (draws[:, ~np.isnan(gaps)] == gaps[~np.isnan(gaps)]).all()
    assert (model.impute(gaps, 4, random_state=0, particles=100) == draws).all()
    assert (model.impute(copies[:3]) == copies[:3]).all()


def test_thresholds_and_mistakes(copies):
    model = pynade.NADE(hidden=8, epochs=2, binarize=0.5, random_state=0).fit(copies * 0.9)
    gaps = np.where(np.arange(6) == 2, np.nan, copies[:5] * 0.9)
    filled = model.impute(gaps, random_state=0)
    assert set(filled.ravel()) <= {0, 1}
    assert (np.delete(filled, 2, 1) == np.delete(copies[:5], 2, 1)).all()
    for bad, words in [
        (np.full((2, 6), nan), "row 0 has no value at all"),
        (np.where(np.arange(6) == 1, np.inf, gaps), "column 1 is inf"),
        (gaps[:, :4], "4 features"),
    ]:
        with pytest.raises(ValueError, match=words):
            model.impute(bad)
    with pytest.raises(ValueError, match="number of draws must be at least 1"):
        model.impute(gaps, 0)
    with pytest.raises(ValueError, match="particles must be at least 1"):
        model.impute(gaps, particles=0)
    with pytest.raises(ValueError, match="NaN"):  # scores and training still want whole rows
        model.score_samples(gaps)


@pytest.mark.parametrize("kind", ["rnade", "transformer"])
def test_real_estimators_fill_in_the_units_of_the_data(kind):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 1))
    X = np.hstack([z, -z, z]) + 0.2 * rng.normal(size=(500, 3))
    scale, shift = np.array([1, 100, 0.01]), np.array([0, 1e4, -5])
    common = {"family": "gaussian", "learning_rate": 0.01, "random_state": 0, "ordering": [1, 2, 0]}
    if kind == "rnade":
        model = pynade.RNADE(hidden=16, epochs=60, **common).fit(X * scale + shift)
    else:
        small = {"width": 16, "depth": 1, "heads": 2, "fixed_order": True}
        model = pynade.TransformerNADE(**small, epochs=25, **common).fit(X * scale + shift)
    gaps = np.array([[1.0, nan, nan], [nan, nan, 1.0], [1.5, nan, 1.5]]) * scale + shift
    filled = model.impute(gaps, random_state=0)
    assert filled.dtype == np.float64
    assert (filled[~np.isnan(gaps)] == gaps[~np.isnan(gaps)]).all()
    standard = (filled - shift) / scale
    assert np.abs(standard[0, 1:] - [-1, 1]).max() < 0.25
    assert np.abs(standard[1, :2] - [1, -1]).max() < 0.25
    assert abs(standard[2, 1] + 1.5) < 0.25
    draws = (model.impute(gaps, 200, random_state=0, particles=2000) - shift) / scale
    assert np.abs(draws.mean(0) - standard).max() < 0.15
    assert 0.05 < draws[:, 0, 1].std() < 0.6
