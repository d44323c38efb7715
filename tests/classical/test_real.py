"""Gaussians, mixtures of Gaussians and factor analysers learn: held to loops, scikit-learn and the truth."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as SklearnMixture

from pynade.classical import (
    FactorAnalysers,
    FactorTask,
    GaussianMixture,
    em_factors,
    em_gaussian,
    gaussian,
    minibatch_em,
)
from pynade.classical import moments as moments_module
from pynade.classical.moments import Scale, group_by_pattern
from tests.reference import gaussians as reference


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(n, D, seed=0, clusters=3):
    """Clusters of correlated rows, far from the origin and on unlike scales."""
    g = generator(seed)
    centres = 3 * torch.randn(clusters, D, generator=g, dtype=torch.float64)
    mixing = torch.randn(clusters, D, D, generator=g, dtype=torch.float64)
    k = torch.randint(clusters, (n,), generator=g)
    z = torch.randn(n, D, generator=g, dtype=torch.float64)
    x = centres[k] + (mixing[k] @ z[..., None])[..., 0]
    return x * torch.logspace(-1, 1, D, dtype=torch.float64) + 20


def with_gaps(x, share=0.3, seed=9):
    gaps = torch.rand(x.shape, generator=generator(seed)) < share
    gaps[:, 0] &= ~gaps.all(-1)
    gaps[gaps.all(-1), 0] = False
    return x.masked_fill(gaps, torch.nan)


def factors(x, n_components, n_factors, valid=None, *, init="rows", generator=None, **options):
    """One mixture of factor analysers."""
    task = FactorTask(x, n_components, n_factors, valid, init, generator=generator)
    return em_factors([task], **options)[0]


def column(history, name):
    """One entry of every line of a history."""
    return [line[name] for line in history.epochs]


DATA_UNITS = {"standardise": False}


def start(x, K, seed=1):
    """A mixture to begin at: K rows, the covariance of the data."""
    pick = torch.randperm(len(x), generator=generator(seed))[:K]
    return GaussianMixture.from_moments(
        torch.ones(K), x[pick], torch.cov(x.T).view(x.shape[1], -1).repeat(K, 1, 1)
    )


def factor_start(x, K, Q, seed=1):
    mixture = start(x, K, seed)
    covariances = mixture.components()[2]
    loadings = torch.linalg.cholesky(covariances)[..., :Q] * 0.7
    noise = 0.5 * covariances.diagonal(dim1=-2, dim2=-1)
    return FactorAnalysers.from_parts(torch.ones(K), mixture.means, loadings, noise)


# ---------------------------------------------------------------------------------------------- one Gaussian


def test_gaussian_is_the_sample_mean_and_covariance():
    x = rows(50, 4)
    model = gaussian(x.float())
    np.testing.assert_allclose(model.mean, x.float().double().mean(0), rtol=1e-12)
    np.testing.assert_allclose(model.covariance, np.cov(x.float().double().T, bias=True), rtol=1e-9)


def test_shrinkage_is_scikit_learns():
    x = rows(30, 5)
    np.testing.assert_allclose(
        gaussian(x, "ledoit-wolf", **DATA_UNITS).covariance,
        LedoitWolf().fit(x.numpy()).covariance_,
        rtol=1e-9,
    )
    full = gaussian(x, 1.0, **DATA_UNITS).covariance
    np.testing.assert_allclose(full, np.eye(5) * np.cov(x.T, bias=True).trace() / 5, atol=1e-9)


def test_gaussian_with_gaps_is_a_maximum_of_the_observed_likelihood():
    """The gradient of the observed-data log-likelihood vanishes, and nothing near scores higher."""
    x = with_gaps(rows(150, 3, clusters=1))
    observed = ~torch.isnan(x)
    model = gaussian(x)
    best = model.marginal_log_prob(x, observed).mean()
    for seed in range(6):
        near = gaussian(x)
        g = generator(seed)
        near.mean += 0.05 * model.factor.diagonal() * torch.randn(3, generator=g, dtype=torch.float64)
        near.factor *= 1 + 0.05 * torch.randn(3, 3, generator=g, dtype=torch.float64)
        assert near.marginal_log_prob(x, observed).mean() < best
    again = reference.em_gaussian_step(
        x.numpy(), np.ones(1), model.mean.numpy()[None], model.covariance.numpy()[None]
    )
    np.testing.assert_allclose(again[1][0], model.mean, rtol=1e-4)
    np.testing.assert_allclose(again[2][0], model.covariance, rtol=1e-3, atol=1e-4)


def test_gaps_are_regularised_as_complete_rows_are():
    """One gap in many rows changes little, whatever the floor and the shrinkage."""
    x = rows(400, 4)
    gap = x.clone()
    gap[7, 2] = torch.nan
    some = ({"covariance_floor": 0.3}, {"shrinkage": 0.4}, {"shrinkage": 0.1, "covariance_floor": 0.2})
    for options in [*(one | DATA_UNITS for one in some), *some]:
        complete = gaussian(x, **options).covariance
        np.testing.assert_allclose(gaussian(gap, **options).covariance, complete, rtol=0.02, atol=0.02)
    x[:, 1] = x[:, 0] + x[:, 3]  # singular, all the more with gaps
    x = with_gaps(x)
    with pytest.raises(ValueError, match="larger covariance_floor than 0"):
        gaussian(x)
    for options in ({"covariance_floor": 0.1}, {"shrinkage": 0.1}):
        model = gaussian(x, **options)
        assert torch.isfinite(model.marginal_log_prob(x, ~torch.isnan(x))).all()


def test_acceleration_ends_where_plain_em_ends():
    """Many gaps: plain EM takes hundreds of steps to the same maximum."""
    x = with_gaps(rows(200, 6, clusters=1), share=0.4)
    fast = gaussian(x)
    first = GaussianMixture.from_moments(torch.ones(1), fast.mean[None] + 1, fast.covariance[None] * 1.5)
    slow, history = em_gaussian(x, 1, init=first, covariance_floor=0.0, tol=1e-13, epochs=3000)
    assert history.stopped == "converged"
    observed = ~torch.isnan(x)
    best = fast.marginal_log_prob(x, observed).mean().item()
    assert best == pytest.approx(slow.marginal_log_prob(x, observed).mean().item(), abs=1e-7)
    torch.testing.assert_close(fast.mean, slow.means[0], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(fast.covariance, slow.components()[2][0], rtol=1e-3, atol=1e-2)


# ----------------------------------------------------------------------------------------- standardised units


def test_standardised_units_do_not_depend_on_the_units_of_the_data():
    """What is learned from shifted and scaled columns is the same density, shifted and scaled."""
    x, valid = with_gaps(rows(150, 4)), rows(300, 4)[150:]
    shift, scale = torch.tensor([5.0, -3.0, 0.0, 1e3]).double(), torch.logspace(-3, 3, 4).double()
    moved, moved_valid = x * scale + shift, valid * scale + shift
    seen = (~torch.isnan(x)).double().mean(0) @ scale.log()
    fits = [
        lambda y, v: (gaussian(y, 0.2, 0.1), None),
        lambda y, v: em_gaussian(y, 3, v, covariance_floor=0.1, generator=generator(1)),
        lambda y, v: minibatch_em(
            y, 3, v, covariance_floor=0.1, generator=generator(1), epochs=30, batch_size=50
        ),
        lambda y, v: factors(y, 3, 2, v, noise_floor=0.1, generator=generator(1)),
    ]
    for fit in fits:
        (one, history), (other, moved_history) = fit(x, valid), fit(moved, moved_valid)
        scores = other.log_prob(moved_valid) + scale.log().sum()
        torch.testing.assert_close(scores, one.log_prob(valid), rtol=1e-6, atol=1e-6)
        if history is not None:
            assert moved_history.best_epoch == history.best_epoch
            offset = scale.log().sum().item()
            assert moved_history.best_valid == pytest.approx(history.best_valid - offset, abs=1e-6)
    (_, history), (_, moved_history) = fits[1](x, None), fits[1](moved, None)
    train = np.array(column(history, "train")) - seen.item()
    np.testing.assert_allclose(column(moved_history, "train"), train, atol=1e-6)
    target = column(moved_history, "train")[3] - 1e-9
    _, stopped = em_gaussian(moved, 3, covariance_floor=0.1, generator=generator(1), stop_at_train=target)
    assert len(stopped.epochs) == 4


@pytest.mark.parametrize("zero_means", [False, True])
def test_floors_in_standardised_units_are_floors_of_standardised_rows(zero_means):
    x = rows(120, 3)
    scale = Scale.of(x, centred=not zero_means)
    inside = (x - scale.shift) / scale.scale
    batches = {"epochs": 9, "batch_size": 40, "zero_means": zero_means}
    fits = [
        lambda y, **units: gaussian(y, 0.1, 0.3, **units),
        lambda y, **units: em_gaussian(y, 2, covariance_floor=0.3, generator=generator(), **units)[0],
        lambda y, **units: factors(y, 2, 1, noise_floor=0.3, generator=generator(), **units)[0],
        lambda y, **u: minibatch_em(y, 2, covariance_floor=0.3, generator=generator(), **batches, **u)[0],
    ]
    for fit in fits[3:] if zero_means else fits:
        wanted = fit(inside, **DATA_UNITS).log_prob(inside) - scale.scale.log().sum()
        torch.testing.assert_close(fit(x).log_prob(x), wanted, rtol=0, atol=1e-8)
        assert (fit(x).log_prob(x) - fit(x, **DATA_UNITS).log_prob(x)).abs().max() > 0.01


def test_units_of_a_source_may_come_from_rows():
    x = rows(500, 3)

    class Source:
        def draw(self, n, generator):
            return x[torch.randint(len(x), (n,), generator=generator)]

    options = {"covariance_floor": 0.3, "epochs": 9, "batch_size": 40}
    whole, _ = minibatch_em(x, 2, generator=generator(), **options)
    drawn, _ = minibatch_em(Source(), 2, standardise=x, generator=generator(), **options)
    first, _ = minibatch_em(Source(), 2, generator=generator(), **options)
    assert torch.equal(whole.means, drawn.means)
    assert torch.equal(whole.inverse_factors, drawn.inverse_factors)
    assert not torch.equal(whole.inverse_factors, first.inverse_factors)


def test_columns_too_large_for_their_squares_are_refused():
    x = rows(20, 3)
    x[:, 1] *= 1e200
    for fit in (
        gaussian,
        lambda y: em_gaussian(y, 2),
        lambda y: minibatch_em(y, 2),
        lambda y: factors(y, 2, 1),
    ):
        with pytest.raises(ValueError, match="column 1 are too large"):
            fit(x)


# ------------------------------------------------------------------------------------------------- the E-step


@pytest.mark.parametrize("D", [1, 2, 5])
@pytest.mark.parametrize("gaps", [False, True])
def test_one_em_update_is_the_plain_loop(D, gaps):
    x = rows(40, D)
    first = start(x, 3)
    if gaps and D > 1:
        x = with_gaps(x)
    model, history = em_gaussian(x, 3, init=first, epochs=2, tol=0, covariance_floor=0.01, **DATA_UNITS)
    log_weights, means, covariances = (t.numpy() for t in first.components())
    w, m, c = reference.em_gaussian_step(x.numpy(), np.exp(log_weights), means, covariances, floor=0.01)
    got = model.components()
    np.testing.assert_allclose(got[0].exp(), w, rtol=1e-8)
    np.testing.assert_allclose(got[1], m, rtol=1e-8)
    np.testing.assert_allclose(got[2], c, rtol=1e-6, atol=1e-9)
    observed = ~torch.isnan(x)
    train = [m.marginal_log_prob(x, observed).mean().item() for m in (first, model)]
    assert column(history, "train") == pytest.approx(train, abs=1e-9)


@pytest.mark.parametrize(("D", "K"), [(3, 4), (8, 5)])
def test_em_is_scikit_learns(D, K):
    x = rows(400, D)
    first = start(x, K)
    weights, means, covariances = (t.numpy() for t in first.components())
    for n in (1, 5, 20):
        mine, history = em_gaussian(
            x, K, init=first, epochs=n + 1, tol=0, covariance_floor=1e-3, **DATA_UNITS
        )
        theirs = SklearnMixture(
            K,
            max_iter=n,
            tol=0,
            reg_covar=1e-3,
            weights_init=np.exp(weights),
            means_init=means,
            precisions_init=np.linalg.inv(covariances),
        )
        with pytest.warns(ConvergenceWarning):
            theirs.fit(x.numpy())
        assert history.epochs[-1]["train"] == pytest.approx(theirs.score(x.numpy()), abs=1e-6)
        np.testing.assert_allclose(mine.log_prob(x), theirs.score_samples(x.numpy()), atol=1e-5)


def test_blocks_and_kept_features_change_nothing(monkeypatch):
    x = rows(300, 4)
    first = start(x, 3)
    whole, _ = em_gaussian(x, 3, init=first, epochs=4)
    monkeypatch.setattr(moments_module, "BLOCK", {"cpu": 500})
    monkeypatch.setattr(moments_module, "CACHE", {"cpu": 0})
    parts, _ = em_gaussian(x, 3, init=first, epochs=4)
    torch.testing.assert_close(whole.log_prob(x), parts.log_prob(x), rtol=0, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([1, 60, 10**6]),
    st.integers(0, 99),
)
def test_groups_hold_every_row_once_with_its_pattern(n, D, K, budget, seed):
    observed = torch.rand(n, D, generator=generator(seed)) < 0.6
    seen = []
    for group in group_by_pattern(observed, K, budget):
        for pattern, index, real in zip(*group, strict=True):
            assert (observed[index[real]] == pattern).all()
            seen += index[real].tolist()
            assert real.sum() > len(real) // 2
    assert sorted(seen) == list(range(n))


# --------------------------------------------------------------------------------------------- mixtures by EM


@pytest.mark.parametrize("fit", ["gaussian", "factors"])
@pytest.mark.parametrize("gaps", [False, True])
def test_the_training_likelihood_never_falls(fit, gaps):
    x = rows(150, 4)
    x = with_gaps(x) if gaps else x
    for seed in range(3):
        options = {"epochs": 26, "tol": 0, "init": "rows", "generator": generator(seed)}
        if fit == "gaussian":
            _, history = em_gaussian(x, 3, covariance_floor=0.0, **options)
        else:
            _, history = factors(x, 3, 2, **options)
        train = column(history, "train")
        assert len(train) == 26
        assert (np.diff(train) > -1e-10).all()
        assert train[-1] > train[0] + 0.1


def test_clusters_are_found_from_either_start():
    g = generator(0)
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]])
    x = centres.repeat(100, 1) + torch.randn(400, 2, generator=g)
    for init in ("k-means++", "rows"):
        model, history = em_gaussian(x, 4, init=init, generator=generator(2), epochs=301)
        near = torch.cdist(centres.double(), model.means).amin(1)
        assert near.max() < 0.5
        assert history.stopped == "converged"


def test_validation_keeps_the_best_iteration_and_retraining_stops_at_its_likelihood():
    x = rows(120, 6)
    train, valid = x[:60], x[60:]
    model, history = em_gaussian(train, 6, valid, generator=generator(), patience=5, covariance_floor=1e-3)
    assert history.stopped == "no better validation score for 5 iterations"
    assert history.best_epoch == len(history.epochs) - 5
    assert history.best_valid == max(column(history, "valid"))
    assert model.log_prob(valid).mean().item() == pytest.approx(history.best_valid, abs=1e-8)
    assert model.log_prob(train).mean().item() == pytest.approx(history.train_log_likelihood, abs=1e-8)
    plain = column(em_gaussian(x, 6, generator=generator(), tol=0, epochs=6)[1], "train")
    target = (plain[2] + plain[3]) / 2
    again, retrained = em_gaussian(x, 6, stop_at_train=target, generator=generator(), tol=0)
    assert retrained.stopped == "training likelihood reached the given value"
    reached = column(retrained, "train")
    assert reached[-1] >= target > reached[-2]
    assert again.log_prob(x).mean().item() == pytest.approx(reached[-1], abs=1e-8)


@pytest.mark.parametrize("fit", ["gaussian", "factors"])
def test_a_component_without_rows_starts_afresh(fit):
    x = rows(100, 2, clusters=1)
    first = start(x, 2)
    means = first.means.clone()
    means[1] += 1e5
    if fit == "gaussian":
        lost = GaussianMixture.from_moments(torch.ones(2), means, first.components()[2])
        model, history = em_gaussian(x, 2, init=lost, epochs=31, generator=generator())
    else:
        parts = factor_start(x, 2, 1)
        lost = FactorAnalysers.from_parts(torch.ones(2), means, parts.loadings, parts.noise)
        model, history = factors(x, 2, 1, init=lost, epochs=31, generator=generator())
    assert (model.means - x.mean(0)).abs().max() < 100
    assert (model.log_weights > -5).all()
    assert history.epochs[-1]["train"] > history.epochs[0]["train"]
    assert history.messages == ["component 1 was empty and started anew at a random row"]


# --------------------------------------------------------------------------------------------- minibatch EM


def test_a_full_step_on_all_rows_is_em():
    """With η = 1 and every row in the batch, the first update is the M-step."""
    x = rows(200, 3)

    class All:
        def draw(self, n, generator):
            return x

    first = start(x, 3)
    options = {"init": first, "epochs": 2, "covariance_floor": 0.01, **DATA_UNITS}
    small, _ = minibatch_em(All(), 3, step_size=1.0, **options)
    whole, _ = em_gaussian(x, 3, init=first, epochs=2, tol=0, covariance_floor=0.01, **DATA_UNITS)
    torch.testing.assert_close(small.log_prob(x), whole.log_prob(x), rtol=0, atol=1e-8)


def test_steps_follow_the_papers_schedule():
    """θ ← (1 - η) θ + η θ_EM with η = 0.1, 0.1 · 2/3, 0.1 / 3, replayed with the plain loop."""
    x = rows(60, 2)

    class All:
        def draw(self, n, generator):
            return x

    first = start(x, 2)
    model, history = minibatch_em(All(), 2, init=first, epochs=4, covariance_floor=0.0)
    log_weights, *rest = (t.numpy() for t in first.components())
    theta = [np.exp(log_weights), *rest]
    for eta in (0.1, 0.1 * 2 / 3, 0.1 / 3):
        new = reference.em_gaussian_step(x.numpy(), *theta)
        theta = [(1 - eta) * old + eta * n for old, n in zip(theta, new, strict=True)]
    got = model.components()
    np.testing.assert_allclose(got[0].exp(), theta[0], rtol=1e-9)
    np.testing.assert_allclose(got[1], theta[1], rtol=1e-9)
    np.testing.assert_allclose(got[2], theta[2], rtol=1e-7)
    train = column(history, "train")
    assert len(train) == 4
    assert train[2] == train[3]  # the last parameters have had no minibatch


def test_minibatch_em_comes_near_em(monkeypatch):
    monkeypatch.setattr(sys.modules["pynade.classical.gaussian_mixture"], "VALIDATE_EVERY", 60)
    x = rows(3000, 4)
    train, valid = x[:2500], x[2500:]
    full, _ = em_gaussian(train, 3, generator=generator(1))
    model, history = minibatch_em(train, 3, valid, epochs=600, batch_size=500, generator=generator(1))
    scored = [line["epoch"] for line in history.epochs if line["valid"] is not None]
    assert scored == [*range(1, 600, 60), 600]
    assert history.best_valid == max(line["valid"] for line in history.epochs if line["valid"] is not None)
    assert model.log_prob(valid).mean().item() == pytest.approx(history.best_valid, abs=1e-8)
    assert model.log_prob(valid).mean() > full.log_prob(valid).mean() - 0.05


def test_zero_means_stay_zero_and_scales_are_told_apart():
    g = generator(0)
    x = torch.randn(4000, 3, generator=g, dtype=torch.float64)
    x[::2] *= 8
    model, _ = minibatch_em(x, 2, zero_means=True, epochs=401, batch_size=1000, generator=g)
    assert (model.means == 0).all()
    variances = model.components()[2].diagonal(dim1=-2, dim2=-1).mean(-1).sort().values
    np.testing.assert_allclose(variances, [1, 64], rtol=0.15)
    again, _ = minibatch_em(
        x, 2, x, zero_means=True, epochs=101, batch_size=1000, generator=generator(0), init=model
    )
    assert again.log_prob(x).mean() >= model.log_prob(x).mean() - 1e-9


@pytest.mark.parametrize("zero_means", [False, True])
def test_a_component_that_lost_its_rows_starts_afresh(zero_means):
    g = generator(0)
    x = torch.randn(4000, 3, generator=g, dtype=torch.float64)
    x = torch.cat((0.2 * x[:2000], 5 * x[2000:])) if zero_means else torch.cat((x[:2000] - 5, x[2000:] + 5))
    far = torch.zeros(2, 3, dtype=torch.float64) if zero_means else torch.tensor([[0.0] * 3, [900.0] * 3])
    spread = torch.stack([torch.eye(3) * 20, torch.eye(3) * (1e10 if zero_means else 1.0)]).double()
    first = GaussianMixture.from_moments(torch.ones(2), far.double(), spread)
    options = {"init": first, "zero_means": zero_means, "epochs": 1501, "batch_size": 500}
    model, history = minibatch_em(x, 2, generator=g, **options)
    assert any("component 1 was empty and started anew" in message for message in history.messages)
    weights = model.components()[0].exp()
    np.testing.assert_allclose(weights, [0.5, 0.5], atol=0.05)
    alone = em_gaussian(x, 1)[0]
    assert model.log_prob(x).mean() > alone.log_prob(x).mean() + 0.3


def test_a_component_without_rows_starts_afresh_in_short_runs_too():
    g = generator(0)
    x = torch.cat((rows(2000, 3, clusters=1), rows(2000, 3, clusters=1) + 30))
    far = torch.tensor([[0.0] * 3, [1e4] * 3]).double()
    start = GaussianMixture.from_moments(torch.ones(2), far, torch.eye(3).double().repeat(2, 1, 1) * 100)
    model, history = minibatch_em(x, 2, init=start, epochs=61, batch_size=100, generator=g)
    assert any("component 1 was empty" in message for message in history.messages)
    assert model.means.abs().max() < 100


def test_validation_rows_and_first_batches_may_lack_a_column():
    x = rows(200, 3)
    held = x[:50].clone()
    held[:, 2] = torch.nan
    for fitted in (
        em_gaussian(x, 2, held, generator=generator()),
        factors(x, 2, 1, held, generator=generator()),
        minibatch_em(x, 2, held, epochs=11, batch_size=50, generator=generator()),
    ):
        score = fitted[0].marginal_log_prob(held, ~torch.isnan(held)).mean()
        assert fitted[1].best_valid == pytest.approx(float(score), abs=1e-9)
    rare = x.repeat(10, 1)
    rare[20:, 1] = torch.nan
    with pytest.raises(ValueError, match="column 1 of the first batches has no value"):
        minibatch_em(rare.masked_fill(rare == rare, torch.nan).index_fill(1, torch.tensor([0, 2]), 1.0), 2)
    with pytest.raises(ValueError, match="row 3 of x has no value"):
        minibatch_em(rare.index_fill(0, torch.tensor([3]), torch.nan), 2)
    for seed in range(6):
        model, _ = minibatch_em(rare, 2, epochs=11, batch_size=300, generator=generator(seed))
        assert torch.isfinite(model.means).all()


def test_minibatch_patience_counts_validations(monkeypatch):
    monkeypatch.setattr(sys.modules["pynade.classical.gaussian_mixture"], "VALIDATE_EVERY", 2)
    x = rows(40, 4)
    options = {"epochs": 501, "batch_size": 20, "step_size": 1.0, "patience": 3, "covariance_floor": 1e-3}
    _, history = minibatch_em(x[:20], 5, x[20:], generator=generator(), **options)
    assert history.stopped == "no better validation score for 3 iterations"
    assert len(history.epochs) == history.best_epoch + 2 * 3 < 500


# ------------------------------------------------------------------------------------------- factor analysers


@pytest.mark.parametrize(("D", "K", "Q"), [(1, 2, 1), (4, 1, 2), (4, 3, 4), (5, 2, 1)])
def test_one_em_update_of_factor_analysers_is_the_plain_loop(D, K, Q):
    x = rows(50, D)
    first = factor_start(x, K, Q)
    model, _ = factors(x, K, Q, init=first, epochs=2, tol=0)
    w, m, loadings, noise = reference.em_factors_step(
        x.numpy(),
        first.log_weights.exp().numpy(),
        *(t.numpy() for t in (first.means, first.loadings, first.noise)),
    )
    np.testing.assert_allclose(model.log_weights.exp(), w, rtol=1e-8)
    np.testing.assert_allclose(model.means, m, rtol=1e-7)
    np.testing.assert_allclose(
        model.loadings @ model.loadings.mT, loadings @ loadings.transpose(0, 2, 1), rtol=1e-5
    )
    np.testing.assert_allclose(model.noise, noise, rtol=1e-5)


def test_all_factors_reach_the_full_covariance_mixture():
    """From the mixture's own solution, in factors with hardly any noise, there is nothing to gain or lose."""
    x = rows(500, 4)
    mixture, history = em_gaussian(x, 3, generator=generator(), epochs=501, tol=1e-8)
    loadings = torch.linalg.cholesky(mixture.components()[2])
    noise = 1e-4 * loadings.square().sum(-1)
    begin = FactorAnalysers.from_parts(mixture.log_weights.exp(), mixture.means, loadings, noise)
    _, after = factors(x, 3, 4, init=begin, epochs=2001, tol=1e-7)
    assert after.epochs[-1]["train"] == pytest.approx(history.epochs[-1]["train"], abs=0.02)


def test_gaps_leave_factor_analysis_exact():
    """One M-step from moments of rows with gaps equals the one that completes every row by hand."""
    x = with_gaps(rows(60, 4, clusters=1))
    first = factor_start(x.nan_to_num(20.0), 1, 2)
    model, _ = factors(x, 1, 2, init=first, epochs=2, tol=0)
    mean, covariance = first.means[0].numpy(), first.covariances()[0].numpy()
    _, m, c = (a[0] for a in reference.em_gaussian_step(x.numpy(), np.ones(1), mean[None], covariance[None]))
    loadings = first.loadings[0].numpy()
    beta = loadings.T @ np.linalg.inv(covariance)
    new = c @ beta.T @ np.linalg.inv(np.eye(2) - beta @ loadings + beta @ c @ beta.T)
    np.testing.assert_allclose(model.loadings[0] @ model.loadings[0].mT, new @ new.T, rtol=1e-6)
    np.testing.assert_allclose(model.noise[0], np.diag(c - new @ beta @ c), rtol=1e-6)
    np.testing.assert_allclose(model.means[0], mean + (np.eye(4) - new @ beta) @ (m - mean), rtol=1e-8)


def test_a_batch_of_settings_and_folds_is_its_members_one_by_one():
    x = rows(240, 5)
    folds = [(x[:150], x[150:200]), (x[60:220], x[:60]), (with_gaps(x[80:]), x[:80])]
    settings_ = [(1, 1), (2, 3), (4, 5), (3, 2)]

    def tasks():
        return [
            FactorTask(train, k, q, valid, generator=generator(10 * k + q))
            for k, q in settings_
            for train, valid in folds
        ]

    options = {"epochs": 41, "patience": 4, "tol": 1e-3}
    together = em_factors(tasks(), **options)
    assert len({h.stopped for _, h in together}) > 1  # they did not all stop for one reason …
    assert len({len(h.epochs) for _, h in together}) > 3  # … nor at one time
    for task, (model, history) in zip(tasks(), together, strict=True):
        ((alone, own),) = em_factors([task], **options)
        assert (own.stopped, own.best_epoch) == (history.stopped, history.best_epoch)
        np.testing.assert_allclose(column(own, "valid"), column(history, "valid"), atol=1e-7)
        torch.testing.assert_close(alone.log_prob(x), model.log_prob(x), rtol=0, atol=1e-5)
        assert history.best_valid == max(column(history, "valid"))
        assert model.log_prob(task.valid).mean().item() == pytest.approx(history.best_valid, abs=1e-8)


def test_members_stop_at_their_own_training_likelihood():
    x = rows(200, 4)
    plain = column(factors(x, 2, 2, generator=generator(1), epochs=31, tol=0)[1], "train")
    targets = [plain[4] - 1e-9, plain[11] - 1e-9, None]
    tasks = [FactorTask(x, 2, 2, stop_at_train=t, generator=generator(1)) for t in targets]
    ended = [len(h.epochs) - 1 for _, h in em_factors(tasks, epochs=31, tol=0)]
    assert ended == [4, 11, 30]


def test_the_noise_floor_is_kept():
    x = rows(100, 3)
    x[:, 2] = x[:, 0] - x[:, 1]
    model, _ = factors(x, 2, 2, noise_floor=0.03, generator=generator(), **DATA_UNITS)
    assert model.noise.min().item() == pytest.approx(0.03, rel=1e-9)


# ----------------------------------------------------------------------------------------- degenerate tables


def degenerate(kind):
    x = rows(40, 3)
    if kind == "constant column":
        x[:, 1] = 7.0
    elif kind == "duplicates":
        x = x[:4].repeat(10, 1)
    elif kind == "dependent columns":
        x[:, 1] = 2 * x[:, 0] - 3
    elif kind == "one row":
        x = x[:1]
    elif kind == "fewer rows than columns":
        x = x[:3]
    return x


KINDS = ["constant column", "duplicates", "dependent columns", "one row", "fewer rows than columns"]


@pytest.mark.parametrize("kind", KINDS)
def test_floors_survive_degenerate_tables(kind):
    x = degenerate(kind)
    K = min(3, len(x))
    fitted = [
        gaussian(x, covariance_floor=0.01),
        em_gaussian(x, K, covariance_floor=0.01, generator=generator())[0],
        factors(x, K, 2, noise_floor=0.01, generator=generator())[0],
        minibatch_em(x, K, epochs=6, batch_size=30, covariance_floor=0.01, generator=generator())[0],
    ]
    for model in fitted:
        assert torch.isfinite(model.log_prob(x)).all()
        assert torch.isfinite(model.sample(10, generator())).all()


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_floor_the_error_names_it(kind):
    x = degenerate(kind)
    K = min(2, len(x))
    if kind != "duplicates":
        with pytest.raises(ValueError, match=r"singular .* larger covariance_floor than 0"):
            gaussian(x)
    with pytest.raises(ValueError, match=r"singular .* larger covariance_floor than 0"):
        em_gaussian(x, K, covariance_floor=0.0, tol=0, epochs=301, generator=generator())
    if kind in ("constant column", "one row"):
        with pytest.raises(ValueError, match=r"singular .* larger noise_floor than 0"):
            factors(x, K, 1, noise_floor=0.0, tol=0, epochs=301, generator=generator())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: em_gaussian(x, 50), "50 components need at least as many rows"),
        (lambda x: factors(x, 50, 1), "50 components need at least as many rows"),
        (lambda x: minibatch_em(x, 50), "50 components need at least as many rows"),
        (lambda x: factors(x, 2, 4), "n_factors must be at most"),
        (lambda x: em_gaussian(x, 2, covariance_floor=-1), "covariance_floor must be at least 0"),
        (lambda x: em_gaussian(x, 2, init="magic"), "unknown init 'magic'"),
        (lambda x: em_gaussian(x, 2, init=GaussianMixture(3, 4)), "init has 4 components in 3 variables"),
        (
            lambda x: factors(x, 2, 1, init=FactorAnalysers(3, 2, 2)),
            "3 variables with 2 factors, expected .* 1 factors",
        ),
        (lambda x: em_factors([FactorTask(x, 2, 1, x), FactorTask(x, 2, 1)]), "either all tasks have valid"),
        (lambda x: em_gaussian(x, 2, patience=0), "patience must be at least 1, not 0"),
        (lambda x: minibatch_em(x, 2, epochs=0), "epochs must be at least 1, not 0"),
        (lambda x: minibatch_em(x, 2, step_size=0), "step_size"),
        (lambda x: minibatch_em(x, 2, zero_means=True, init="rows"), "k-means"),
        (lambda x: gaussian(x[0]), r"rows \(N, D\)"),
        (lambda x: gaussian(x / 0), "infinite"),
        (lambda x: gaussian(x, "magic"), "ledoit-wolf"),
        (lambda x: gaussian(with_gaps(x), "ledoit-wolf"), "complete rows"),
        (lambda x: gaussian(x.masked_fill(torch.arange(3) == 1, torch.nan)), "column 1 of x has no value"),
        (lambda x: em_gaussian(torch.cat([x, x[:1] * torch.nan]), 2), "row 20 of x has no value"),
    ],
)
def test_wrong_calls_are_refused_in_one_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call(rows(20, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("gaps", [False, True])
def test_a_gpu_gives_what_the_cpu_gives(gaps):
    """Everything stays on the device; a generator may live on either."""
    x, start_at, factors_at = rows(300, 5), start(rows(300, 5), 3), factor_start(rows(300, 5), 3, 2)
    x = with_gaps(x) if gaps else x
    fits = [
        lambda y: gaussian(y, covariance_floor=1e-3),
        lambda y: em_gaussian(y, 3, init=start_at, epochs=6)[0],
        lambda y: factors(y, 3, 2, init=factors_at, epochs=6)[0],
        lambda y: minibatch_em(y, 3, init=start_at, epochs=6, generator=generator())[0],
        lambda y: em_gaussian(y, 3, generator=generator())[0],
        lambda y: factors(y, 3, 2, generator=generator())[0],
    ]
    observed = ~torch.isnan(x)
    for fit in fits:
        cpu, gpu = fit(x), fit(x.cuda())
        assert gpu.device.type == "cuda"
        scores = gpu.marginal_log_prob(x.cuda(), observed.cuda()).cpu()
        torch.testing.assert_close(scores, cpu.marginal_log_prob(x, observed), rtol=0, atol=1e-5)
        assert gpu.best_guess(x.cuda(), observed.cuda()).device.type == "cuda"
        for seed in (generator(), torch.Generator("cuda").manual_seed(0)):
            drawn = gpu.sample_given(x.cuda(), observed.cuda(), 2, seed)
            assert torch.isfinite(drawn).all()
            assert gpu.sample(5, seed).device.type == "cuda"


def test_callbacks_are_called_once_for_all_members():
    x, seen = rows(50, 2), []
    tasks = [FactorTask(x, k, 1, x[:9], generator=generator()) for k in (1, 2, 5)]
    fitted = em_factors(tasks, epochs=4, tol=0, callbacks=[seen.append])
    assert [(now.epoch, now.epochs, now.update) for now in seen] == [(t, 4, t) for t in (1, 2, 3, 4)]
    assert seen[-1].best_valid == max(v for _, h in fitted for v in column(h, "valid"))
    stopped = em_factors(tasks, epochs=9, tol=0, callbacks=[lambda now: now.epoch == 3])
    assert {h.stopped for _, h in stopped} == {"a callback stopped it"}
    assert {len(h.epochs) for _, h in stopped} == {3}


def test_tasks_of_one_batch_may_differ_in_width_and_be_none():
    tasks = [FactorTask(rows(30, D), 2, 1, generator=generator()) for D in (1, 4, 2)]
    fitted = em_factors(tasks, epochs=4)
    assert [model.n_variables for model, _ in fitted] == [1, 4, 2]
    assert em_factors([]) == []
