"""PerColumn: levels, lattices with and without ends, and real numbers, each a distribution."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from pynade.families import PerColumn
from pynade.families.normal_scores import normal_scores, without_outliers
from pynade.families.per_column import BACKGROUND, REACH
from tests.contracts.cases import generator

LEVELS = [3, 0, 0, 0, 1, 7, 0]
STEP = [False, True, True, False, False, False, True]
ENDS = [(None, None), (0, 20), (-4, None), (None, None), (None, None), (None, None), (0, 0)]


def codes(n=200, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    number = np.where(rng.random(n) < 0.4, 0, rng.integers(0, 21, n))  # a spike at an end
    columns = [
        np.clip(np.round(z + 1), 0, 2),
        number,
        np.round(6 * np.exp(z)) - 4,
        z,
        0 * z,
        number % 7,
        0 * z,
    ]
    return np.stack(columns, 1)


def family(**more):
    return PerColumn.fitted(codes(), LEVELS, STEP, ENDS, n_components=3, **more)


def etas(made, *shape, seed=1):
    return torch.randn(*shape, made.n_params, generator=generator(seed), dtype=torch.float64)


def values(i):
    """All codes of a discrete column, or as many as have a probability."""
    if LEVELS[i]:
        return torch.arange(LEVELS[i], dtype=torch.float64)
    low, high = ENDS[i]
    return torch.arange(low, 3000.0 if high is None else high + 1, dtype=torch.float64)


def at(i, n):
    return torch.full((n,), i)


DISCRETE = [0, 1, 2, 4, 5, 6]
discrete = pytest.mark.parametrize("i", DISCRETE)


@discrete
def test_masses_sum_to_one_and_the_cdf_is_their_sum(i):
    made, x = family(), values(i)
    for eta in etas(made, 4):
        p = made.log_prob(x, eta.expand(len(x), -1), at(i, len(x))).exp()
        assert p.sum().item() == pytest.approx(1, abs=1e-7)
        cdf = made.cdf(x, eta.expand(len(x), -1), at(i, len(x)))
        torch.testing.assert_close(cdf, p.cumsum(0), rtol=0, atol=1e-7)
        below = made.cdf(x[:1] - 1, eta[None], at(i, 1))
        assert below.item() == pytest.approx(0, abs=1e-12)


@discrete
def test_a_quantile_is_the_first_value_with_enough_below_it(i):
    made, x = family(), values(i)
    q = torch.linspace(0.001, 0.999, 41, dtype=torch.float64)
    for eta in etas(made, 4):
        cdf = made.cdf(x, eta.expand(len(x), -1), at(i, len(x)))
        first = x[(cdf[None] < q[:, None] - 1e-9).sum(1)]
        assert torch.equal(made.quantile(q, eta.expand(41, -1), at(i, 41)), first)


@discrete
def test_a_p_value_is_the_probability_of_values_at_least_as_odd(i):
    made, x = family(), values(i)[:40]
    for eta in etas(made, 4):
        each, here = eta.expand(len(x), -1), at(i, len(x))
        p, found = made.log_prob(x, each, here).exp(), made.p_value(x, each, here)
        if LEVELS[i]:
            expected = torch.stack([p[p <= one * (1 + 1e-6)].sum() for one in p])
        else:
            below = made.cdf(x, each, here)
            expected = (2 * torch.minimum(below, 1 - below + p)).clamp(max=1)
        broad = 0 if LEVELS[i] else 2 * BACKGROUND  # is left out
        torch.testing.assert_close(found, expected, rtol=0, atol=broad + 1e-9)


@discrete
def test_broad_probabilities_sum_to_one(i):
    """Over all values, or up to the tails of a lattice without ends, which are those of a Cauchy."""
    made, x = family(), values(i)
    total = made.broad_log_prob(x, at(i, len(x))).exp().sum()
    assert total == pytest.approx(1, abs=1e-9 if LEVELS[i] or ENDS[i][1] is not None else 0.01)
    assert total < 1 + 1e-9


def test_the_broad_density_of_a_real_column_integrates_to_one():
    made, i = family(), 3
    scores = torch.tan(torch.linspace(-1.55, 1.55, 20_001, dtype=torch.float64))
    x = made._inverse(scores, at(i, len(scores)))
    mass = torch.trapezoid(made.broad_log_prob(x, at(i, len(x))).exp(), x)
    assert float(mass) == pytest.approx(3.1 / math.pi, abs=1e-3)


def test_the_density_of_a_real_column_is_the_derivative_of_its_cdf():
    made, i = family(), 3
    x = torch.linspace(-4, 4, 801, dtype=torch.float64)
    knots = made.knots[i]
    away = ((x[:, None] - knots).abs() > 1e-3).all(1)
    for eta in etas(made, 4):
        each = eta.expand(len(x), -1)
        ends = [made.cdf(x + side * 1e-5, each, at(i, len(x))) for side in (1, -1)]
        p = made.log_prob(x, each, at(i, len(x))).exp()
        torch.testing.assert_close((ends[0] - ends[1])[away] / 2e-5, p[away], rtol=1e-4, atol=1e-6)
        q = made.cdf(x, each, at(i, len(x)))
        torch.testing.assert_close(made.quantile(q, each, at(i, len(x))), x, rtol=0, atol=1e-4)
        far = made.cdf(torch.tensor([-1e4, 1e4], dtype=torch.float64), eta.expand(2, -1), at(i, 2))
        torch.testing.assert_close(far, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("i", range(7))
def test_samples_follow_the_cdf_and_have_the_mean(i):
    made, n = family(), 20_000
    eta = etas(made, 1, seed=i)
    drawn = made.sample(eta.expand(n, -1), at(i, n), generator(i))
    if LEVELS[i] or STEP[i]:
        assert torch.equal(drawn, drawn.round())
    if LEVELS[i] == 0 and STEP[i]:
        low, high = ENDS[i]
        assert drawn.min() >= low
        assert high is None or drawn.max() <= high
    for q in (0.1, 0.5, 0.9):
        point = made.quantile(torch.tensor([q], dtype=torch.float64), eta, at(i, 1))
        expected = made.cdf(point, eta, at(i, 1)).item()
        assert (drawn <= point + 1e-9).double().mean().item() == pytest.approx(expected, abs=0.015)
    mean, spread = made.mean(eta, at(i, 1)).item(), drawn.std().item()
    assert mean == pytest.approx(drawn.mean().item(), abs=0.1 * spread + 1e-9)


def test_one_column_per_row_agrees_with_all_columns():
    made, x = family(), torch.as_tensor(codes(7))
    eta, which = etas(made, 7, 7), torch.arange(7)
    for row in range(7):
        i = (which + row) % 7
        for name in ("log_prob", "cdf"):
            whole = getattr(made, name)(x, eta)
            some = getattr(made, name)(x[which, i], eta[which, i], i)
            torch.testing.assert_close(some, whole[which, i], rtol=1e-12, atol=1e-12)
        for name in ("mean", "best_guess"):
            torch.testing.assert_close(
                getattr(made, name)(eta[which, i], i),
                getattr(made, name)(eta)[which, i],
                rtol=1e-12,
                atol=1e-12,
            )
        torch.testing.assert_close(made.encode(x[which, i], i), made.encode(x)[which, i], rtol=0, atol=0)


def test_float32_agrees_with_float64():
    made, x = family(), torch.as_tensor(codes())
    eta = etas(made, len(x), 7)
    exact = made.log_prob(x, eta)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(made.log_prob(x, eta.float()).double(), exact, rtol=1e-4, atol=1e-3)
    assert made.float().knots.dtype == torch.float64  # the maps keep their digits


def test_extreme_codes_and_parameters_stay_finite_and_so_do_gradients():
    made = family()
    x = torch.as_tensor(codes(6))
    x[:, 2] = torch.tensor([-4, 1e4, 1e6, 9e7, 1e8, 0.0])
    x[:, 3] = torch.tensor([-1e6, 1e6, -1e3, 1e3, 0.0, 1e5])
    for dtype in (torch.float32, torch.float64):
        for size in (1.0, 30.0):
            eta = (size * etas(made, 6, 7)).to(dtype).requires_grad_()
            log_p = made.log_prob(x, eta)
            assert torch.isfinite(log_p).all()
            log_p.sum().backward()
            assert torch.isfinite(eta.grad).all()
    features = made.encode(x)
    assert features[..., 0].abs().max() <= max(REACH, 6)


def test_the_marginal_start_beats_zero_and_ignores_gaps():
    made, x = family(), torch.as_tensor(codes())
    eta = made.eta_from_marginal(x)
    zero = torch.zeros_like(eta)
    gain = [made.log_prob(x, e.expand(len(x), -1, -1)).mean(0) for e in (eta, zero)]
    assert (gain[0] >= gain[1] - 0.05).all()
    gaps = x.clone()
    gaps[::7] = torch.nan
    torch.testing.assert_close(made.eta_from_marginal(gaps)[0], made.eta_from_marginal(gaps[1:])[0])
    assert torch.isfinite(made.eta_from_marginal(gaps[:1])).all()


def test_periods_are_seen_as_phases():
    periods = np.zeros((7, 3))
    periods[1] = 7, 0, 14
    made = family(periods=periods)
    assert made.n_features == 11  # the period that no column has is left out
    x = torch.zeros(3, 7, dtype=torch.float64)
    x[:, 1] = torch.tensor([0.0, 7.0, 14.0])
    features = made.encode(x)
    phases = features[..., 7:]
    torch.testing.assert_close(phases[0, 1, [0, 2]], phases[1, 1, [0, 2]], rtol=0, atol=1e-9)
    torch.testing.assert_close(phases[0, 1], phases[2, 1], rtol=0, atol=1e-9)
    assert (phases[0, 1] - phases[1, 1]).abs().max() > 1
    assert not features[:, 0, 1:].any()


def test_the_features_of_a_number_go_through_the_intervals_one_after_the_other():
    made, x = family(), torch.as_tensor(codes())
    score, through = made.encode(x)[:, 3, 0], made.encode(x)[:, 3, 1:7]
    assert ((through >= 0) & (through <= 1)).all()
    order = score.argsort()
    assert (through[order].diff(dim=0) >= 0).all()
    assert (through[:, :-1] >= through[:, 1:]).all()
    assert through.min() == 0
    assert through.max() == 1


@pytest.mark.parametrize(
    ("i", "value", "words"),
    [
        (0, 3.0, "index of a level"),
        (0, 0.5, "index of a level"),
        (3, float("inf"), "finite"),
        (5, -1.0, "index"),
    ],
)
def test_what_is_no_code_is_refused(i, value, words):
    made, x = family(), torch.as_tensor(codes(3))
    made.check(x)
    x[1, i] = value
    with pytest.raises(ValueError, match=f"{words}.*row 1, column {i} is"):
        made.check(x)


@pytest.mark.parametrize("spread", [40, 3000])
def test_values_of_a_sparse_lattice_have_the_scores_of_their_shares(spread):
    rng = np.random.default_rng(0)
    values = np.unique(rng.integers(1, 30 * spread, 25)).astype(float)
    x = np.where(rng.random(5000) < 0.9, 0.0, rng.choice(values, 5000))
    knots, scores = normal_scores(x, True, 64)
    found, counts = np.unique(x, return_counts=True)
    z = [np.interp(found + side, knots, scores) for side in (-0.5, 0.5)]
    z[0][0], z[1][-1] = -np.inf, np.inf  # the ends of the axis
    shares = ndtr(z[1]) - ndtr(z[0])
    np.testing.assert_allclose(shares, counts / 5000, rtol=0.02, atol=0.0005)


def test_means_are_within_the_ends_of_the_map():
    made = PerColumn.fitted(np.array([[0.5], [1.5], [2.5], [4.0]]), [0])
    eta = torch.zeros(2, 1, made.n_params, dtype=torch.float64)
    K = made.n_components
    eta[0, 0, K : 2 * K], eta[1, 0, K : 2 * K] = -50, 50
    low, high = made.mean(eta)[:, 0].tolist()
    assert made.knots[0, 0] <= low < 0.5
    assert 4.0 < high <= made.knots[0, -1]


def test_means_are_near_the_data_whatever_number_of_knots_other_columns_have():
    """A guess of 406 mm for a diamond of 6 mm once came from knots that only made columns equally long."""
    rng = np.random.default_rng(0)
    sparse = 1000 * rng.choice(5, 3000).astype(float)  # many knots
    line, far = rng.normal(6, 1, 3000), np.append(rng.normal(6, 1, 2999), 60.0)
    codes = np.stack([sparse + rng.integers(0, 300, 3000), line, far, np.round(100 * far)], 1)
    made = PerColumn.fitted(codes, [0] * 4, [True, False, False, True])
    assert (made.knots.diff() > 0).all()
    for sign in (-1, 1):
        eta = torch.zeros(1, 4, made.n_params, dtype=torch.float64)
        eta[..., made.n_components : 2 * made.n_components] = 50 * sign
        mean = made.mean(eta)[0].numpy()
        assert (np.abs(mean - [2000, 6, 6, 600]) < [4500, 7, 7, 700]).all()


def test_a_few_values_far_away_do_not_change_the_map():
    """A value beyond a wide gap is far away in normal scores too, so that it can be seen to be odd."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000).round(2)
    far = np.concatenate([x, [60.0, -70.0]])
    for lattice in (False, True):
        one, other = (np.round(100 * v) if lattice else v for v in (x, far))
        for a, b in zip(normal_scores(one, lattice, 32), normal_scores(other, lattice, 32), strict=True):
            np.testing.assert_allclose(a, b)
    made = PerColumn.fitted(far[:, None], [0])
    assert made.encode(torch.tensor([[60.0]])).max() == REACH


@pytest.mark.parametrize("seed", range(5))
def test_heavy_tails_keep_all_but_a_few_values(seed):
    rng = np.random.default_rng(seed)
    for x in (rng.normal(size=999), rng.exponential(size=999), rng.standard_cauchy(size=999), np.arange(5.0)):
        kept = without_outliers(np.sort(x))
        assert len(x) - len(kept) <= 4
        assert np.isin(kept, x).all()
    assert len(without_outliers(np.sort(rng.normal(size=999)))) == 999
