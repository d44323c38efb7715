"""Gaussians, mixtures of Gaussians and factor analysers learn: held to loops, scikit-learn and the truth."""

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
    em_factors_batch,
    em_gaussian,
    gaussian,
    minibatch_em,
)
from pynade.classical import moments as moments_module
from pynade.classical.gaussian_marginals import by_pattern
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
        gaussian(x, "ledoit-wolf").covariance, LedoitWolf().fit(x.numpy()).covariance_, rtol=1e-9
    )
    full = gaussian(x, 1.0).covariance
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
    for how in ({"covariance_floor": 0.3}, {"shrinkage": 0.4}, {"shrinkage": 0.1, "covariance_floor": 0.2}):
        complete = gaussian(x, **how).covariance
        np.testing.assert_allclose(gaussian(gap, **how).covariance, complete, rtol=0.02, atol=0.02)
    x[:, 1] = x[:, 0] + x[:, 3]  # singular, all the more with gaps
    x = with_gaps(x)
    with pytest.raises(ValueError, match="larger covariance_floor than 0"):
        gaussian(x)
    for how in ({"covariance_floor": 0.1}, {"shrinkage": 0.1}):
        model = gaussian(x, **how)
        assert torch.isfinite(model.marginal_log_prob(x, ~torch.isnan(x))).all()


# ------------------------------------------------------------------------------------------------- the E-step


@pytest.mark.parametrize("D", [1, 2, 5])
@pytest.mark.parametrize("gaps", [False, True])
def test_one_em_update_is_the_plain_loop(D, gaps):
    x = rows(40, D)
    first = start(x, 3)
    if gaps and D > 1:
        x = with_gaps(x)
    model, history = em_gaussian(x, 3, init=first, iterations=1, tol=0, covariance_floor=0.01)
    log_weights, means, covariances = (t.numpy() for t in first.components())
    w, m, c = reference.em_gaussian_step(x.numpy(), np.exp(log_weights), means, covariances, floor=0.01)
    got = model.components()
    np.testing.assert_allclose(got[0].exp(), w, rtol=1e-8)
    np.testing.assert_allclose(got[1], m, rtol=1e-8)
    np.testing.assert_allclose(got[2], c, rtol=1e-6, atol=1e-9)
    observed = ~torch.isnan(x)
    assert history.train[0] == pytest.approx(first.marginal_log_prob(x, observed).mean().item(), abs=1e-9)
    assert history.train[1] == pytest.approx(model.marginal_log_prob(x, observed).mean().item(), abs=1e-9)


@pytest.mark.parametrize(("D", "K"), [(3, 4), (8, 5)])
def test_em_is_scikit_learns(D, K):
    x = rows(400, D)
    first = start(x, K)
    weights, means, covariances = (t.numpy() for t in first.components())
    for n in (1, 5, 20):
        mine, history = em_gaussian(x, K, init=first, iterations=n, tol=0, covariance_floor=1e-3)
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
        assert history.train[-1] == pytest.approx(theirs.score(x.numpy()), abs=1e-6)
        np.testing.assert_allclose(mine.log_prob(x), theirs.score_samples(x.numpy()), atol=1e-5)


def test_blocks_and_kept_features_change_nothing(monkeypatch):
    x = rows(300, 4)
    first = start(x, 3)
    whole, _ = em_gaussian(x, 3, init=first, iterations=3)
    monkeypatch.setattr(moments_module, "BLOCK", {"cpu": 500})
    monkeypatch.setattr(moments_module, "CACHE", {"cpu": 0})
    parts, _ = em_gaussian(x, 3, init=first, iterations=3)
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
    for group in by_pattern(observed, K, budget):
        for pattern, index, real in zip(group.observed, group.rows, group.real, strict=True):
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
        options = {"iterations": 25, "tol": 0, "init": "rows", "generator": generator(seed)}
        if fit == "gaussian":
            _, history = em_gaussian(x, 3, covariance_floor=0.0, **options)
        else:
            _, history = em_factors(x, 3, 2, **options)
        assert len(history.train) == 26
        assert (np.diff(history.train) > -1e-10).all()
        assert history.train[-1] > history.train[0] + 0.1


def test_clusters_are_found_from_either_start():
    g = generator(0)
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]])
    x = centres.repeat(100, 1) + torch.randn(400, 2, generator=g)
    for init in ("k-means++", "rows"):
        model, history = em_gaussian(x, 4, init=init, generator=generator(2), iterations=300)
        near = torch.cdist(centres.double(), model.means).amin(1)
        assert near.max() < 0.5
        assert history.stopped == "converged"


def test_validation_keeps_the_best_iteration_and_retraining_stops_at_its_likelihood():
    x = rows(120, 6)
    train, valid = x[:60], x[60:]
    model, history = em_gaussian(
        train, 6, x_valid=valid, generator=generator(), patience=5, covariance_floor=1e-3
    )
    assert history.stopped == "validation no longer improved"
    assert history.best_iteration < len(history.train) - 1
    assert model.log_prob(valid).mean().item() == pytest.approx(max(history.valid), abs=1e-8)
    assert model.log_prob(train).mean().item() == pytest.approx(history.train_log_likelihood, abs=1e-8)
    plain = em_gaussian(x, 6, generator=generator(), tol=0, iterations=5)[1].train
    target = (plain[2] + plain[3]) / 2
    again, retrained = em_gaussian(x, 6, stop_at_train=target, generator=generator(), tol=0)
    assert retrained.stopped == "training likelihood reached"
    assert retrained.train[-1] >= target > retrained.train[-2]
    assert again.log_prob(x).mean().item() == pytest.approx(retrained.train[-1], abs=1e-8)


@pytest.mark.parametrize("fit", ["gaussian", "factors"])
def test_a_component_without_rows_starts_afresh(fit):
    x = rows(100, 2, clusters=1)
    first = start(x, 2)
    means = first.means.clone()
    means[1] += 1e5
    if fit == "gaussian":
        lost = GaussianMixture.from_moments(torch.ones(2), means, first.components()[2])
        model, history = em_gaussian(x, 2, init=lost, iterations=30, generator=generator())
    else:
        parts = factor_start(x, 2, 1)
        lost = FactorAnalysers.from_parts(torch.ones(2), means, parts.loadings, parts.noise)
        model, history = em_factors(x, 2, 1, init=lost, iterations=30, generator=generator())
    assert (model.means - x.mean(0)).abs().max() < 100
    assert (model.log_weights > -5).all()
    assert history.train[-1] > history.train[0]
    assert history.messages == ["component 1 was empty and started anew at a random row"]


# --------------------------------------------------------------------------------------------- minibatch EM


def test_a_full_step_on_all_rows_is_em():
    """With η = 1 and every row in the batch, the first update is the M-step."""
    x = rows(200, 3)

    class All:
        def draw(self, n, generator):
            return x

    first = start(x, 3)
    small, _ = minibatch_em(All(), 3, init=first, iterations=1, step_size=1.0, covariance_floor=0.01)
    whole, _ = em_gaussian(x, 3, init=first, iterations=1, tol=0, covariance_floor=0.01)
    torch.testing.assert_close(small.log_prob(x), whole.log_prob(x), rtol=0, atol=1e-8)


def test_steps_follow_the_papers_schedule():
    """θ ← (1 - η) θ + η θ_EM with η = 0.1, 0.1 · 2/3, 0.1 / 3, replayed with the plain loop."""
    x = rows(60, 2)

    class All:
        def draw(self, n, generator):
            return x

    first = start(x, 2)
    model, history = minibatch_em(All(), 2, init=first, iterations=3, covariance_floor=0.0)
    log_weights, *rest = (t.numpy() for t in first.components())
    theta = [np.exp(log_weights), *rest]
    for eta in (0.1, 0.1 * 2 / 3, 0.1 / 3):
        new = reference.em_gaussian_step(x.numpy(), *theta)
        theta = [(1 - eta) * old + eta * n for old, n in zip(theta, new, strict=True)]
    got = model.components()
    np.testing.assert_allclose(got[0].exp(), theta[0], rtol=1e-9)
    np.testing.assert_allclose(got[1], theta[1], rtol=1e-9)
    np.testing.assert_allclose(got[2], theta[2], rtol=1e-7)
    assert len(history.train) == 3


def test_minibatch_em_comes_near_em():
    x = rows(3000, 4)
    train, valid = x[:2500], x[2500:]
    full, _ = em_gaussian(train, 3, generator=generator(1))
    model, history = minibatch_em(
        train, 3, iterations=600, batch_size=500, x_valid=valid, validate_every=60, generator=generator(1)
    )
    assert history.valid_at == list(range(0, 601, 60))
    assert model.log_prob(valid).mean().item() == pytest.approx(max(history.valid), abs=1e-8)
    assert model.log_prob(valid).mean() > full.log_prob(valid).mean() - 0.05


def test_zero_means_stay_zero_and_scales_are_told_apart():
    g = generator(0)
    x = torch.randn(4000, 3, generator=g, dtype=torch.float64)
    x[::2] *= 8
    model, _ = minibatch_em(x, 2, zero_means=True, iterations=400, batch_size=1000, generator=g)
    assert (model.means == 0).all()
    variances = model.components()[2].diagonal(dim1=-2, dim2=-1).mean(-1).sort().values
    np.testing.assert_allclose(variances, [1, 64], rtol=0.15)
    again, _ = minibatch_em(
        x, 2, zero_means=True, iterations=100, batch_size=1000, generator=generator(0), init=model, x_valid=x
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
    how = {"init": first, "zero_means": zero_means, "iterations": 1500, "batch_size": 500}
    model, history = minibatch_em(x, 2, generator=g, **how)
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
    model, history = minibatch_em(x, 2, init=start, iterations=60, batch_size=100, generator=g)
    assert any("component 1 was empty" in message for message in history.messages)
    assert model.means.abs().max() < 100


def test_validation_rows_and_first_batches_may_lack_a_column():
    x = rows(200, 3)
    held = x[:50].clone()
    held[:, 2] = torch.nan
    for fitted in (
        em_gaussian(x, 2, x_valid=held, generator=generator()),
        em_factors(x, 2, 1, x_valid=held, generator=generator()),
        minibatch_em(x, 2, x_valid=held, iterations=10, batch_size=50, generator=generator()),
    ):
        asked = fitted[0].marginal_log_prob(held, ~torch.isnan(held)).mean()
        assert fitted[1].best_valid == pytest.approx(float(asked), abs=1e-9)
    rare = x.repeat(10, 1)
    rare[20:, 1] = torch.nan
    with pytest.raises(ValueError, match="column 1 of the first batches has no value"):
        minibatch_em(rare.masked_fill(rare == rare, torch.nan).index_fill(1, torch.tensor([0, 2]), 1.0), 2)
    with pytest.raises(ValueError, match="row 3 of x has no value"):
        minibatch_em(rare.index_fill(0, torch.tensor([3]), torch.nan), 2)
    for seed in range(6):
        model, _ = minibatch_em(rare, 2, iterations=10, batch_size=300, generator=generator(seed))
        assert torch.isfinite(model.means).all()


def test_minibatch_patience_stops():
    x = rows(40, 4)
    _, history = minibatch_em(
        x[:20],
        5,
        x_valid=x[20:],
        iterations=500,
        batch_size=20,
        step_size=1.0,
        validate_every=2,
        patience=3,
        covariance_floor=1e-3,
        generator=generator(),
    )
    assert history.stopped == "validation no longer improved"
    assert len(history.train) < 500


# ------------------------------------------------------------------------------------------- factor analysers


@pytest.mark.parametrize(("D", "K", "Q"), [(1, 2, 1), (4, 1, 2), (4, 3, 4), (5, 2, 1)])
def test_one_em_update_of_factor_analysers_is_the_plain_loop(D, K, Q):
    x = rows(50, D)
    first = factor_start(x, K, Q)
    model, _ = em_factors(x, K, Q, init=first, iterations=1, tol=0)
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
    mixture, history = em_gaussian(x, 3, generator=generator(), iterations=500, tol=1e-8)
    loadings = torch.linalg.cholesky(mixture.components()[2])
    noise = 1e-4 * loadings.square().sum(-1)
    begin = FactorAnalysers.from_parts(mixture.log_weights.exp(), mixture.means, loadings, noise)
    _, after = em_factors(x, 3, 4, init=begin, iterations=2000, tol=1e-7)
    assert after.train[-1] == pytest.approx(history.train[-1], abs=0.02)


def test_gaps_leave_factor_analysis_exact():
    """One M-step from moments of rows with gaps equals the one that completes every row by hand."""
    x = with_gaps(rows(60, 4, clusters=1))
    first = factor_start(x.nan_to_num(20.0), 1, 2)
    model, _ = em_factors(x, 1, 2, init=first, iterations=1, tol=0)
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
            FactorTask(train, k, q, x_valid=valid, generator=generator(10 * k + q))
            for k, q in settings_
            for train, valid in folds
        ]

    options = {"iterations": 40, "patience": 4, "tol": 1e-3}
    together = em_factors_batch(tasks(), **options)
    assert len({h.stopped for _, h in together}) > 1  # they did not all stop for one reason …
    assert len({len(h.train) for _, h in together}) > 3  # … nor at one time
    for task, (model, history) in zip(tasks(), together, strict=True):
        ((alone, own),) = em_factors_batch([task], **options)
        assert (own.stopped, own.best_iteration) == (history.stopped, history.best_iteration)
        np.testing.assert_allclose(own.valid, history.valid, atol=1e-7)
        torch.testing.assert_close(alone.log_prob(x), model.log_prob(x), rtol=0, atol=1e-5)
        assert model.log_prob(task.x_valid).mean().item() == pytest.approx(max(history.valid), abs=1e-8)


def test_members_stop_at_their_own_training_likelihood():
    x = rows(200, 4)
    plain = em_factors_batch([FactorTask(x, 2, 2, generator=generator(1))], iterations=30, tol=0)[0][1]
    targets = [plain.train[4] - 1e-9, plain.train[11] - 1e-9, None]
    tasks = [FactorTask(x, 2, 2, stop_at_train=t, generator=generator(1)) for t in targets]
    ended = [len(h.train) - 1 for _, h in em_factors_batch(tasks, iterations=30, tol=0)]
    assert ended == [4, 11, 30]


def test_the_noise_floor_is_kept():
    x = rows(100, 3)
    x[:, 2] = x[:, 0] - x[:, 1]
    model, _ = em_factors(x, 2, 2, noise_floor=0.03, generator=generator())
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
        em_factors(x, K, 2, noise_floor=0.01, generator=generator())[0],
        minibatch_em(x, K, iterations=5, batch_size=30, covariance_floor=0.01, generator=generator())[0],
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
        em_gaussian(x, K, covariance_floor=0.0, tol=0, iterations=300, generator=generator())
    if kind in ("constant column", "one row"):
        with pytest.raises(ValueError, match=r"singular .* larger noise_floor than 0"):
            em_factors(x, K, 1, noise_floor=0.0, tol=0, iterations=300, generator=generator())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: em_gaussian(x, 50), "50 components need at least as many rows"),
        (lambda x: em_factors(x, 50, 1), "50 components need at least as many rows"),
        (lambda x: minibatch_em(x, 50), "50 components need at least as many rows"),
        (lambda x: em_factors(x, 2, 4), "n_factors must be at most"),
        (lambda x: em_gaussian(x, 2, covariance_floor=-1), "covariance_floor must be at least 0"),
        (lambda x: em_gaussian(x, 2, init="magic"), "unknown init 'magic'"),
        (lambda x: em_gaussian(x, 2, init=GaussianMixture(3, 4)), "init has 4 components in 3 variables"),
        (lambda x: em_factors(x, 2, 1, init=FactorAnalysers(3, 2, 2)), r"\(3, 2, 2\), expected \(3, 2, 1\)"),
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
        lambda y: em_gaussian(y, 3, init=start_at, iterations=5)[0],
        lambda y: em_factors(y, 3, 2, init=factors_at, iterations=5)[0],
        lambda y: minibatch_em(y, 3, init=start_at, iterations=5, generator=generator())[0],
        lambda y: em_gaussian(y, 3, generator=generator())[0],
        lambda y: em_factors(y, 3, 2, generator=generator())[0],
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


def test_progress_is_told_and_a_callback_may_end_it():
    x, seen = rows(50, 2), []
    _, history = em_gaussian(x, 2, iterations=4, tol=0, generator=generator(), callback=seen.append)
    assert [(now.iteration, now.iterations) for now in seen] == [(t, 4) for t in range(5)]
    assert [now.train for now in seen] == history.train
    seen.clear()
    tasks = [FactorTask(x, k, 1, x_valid=x[:9], generator=generator()) for k in (1, 2, 5)]
    fitted = em_factors_batch(tasks, iterations=3, tol=0, callback=seen.append)
    assert [now.iteration for now in seen] == list(range(seen[0].iterations + 1))
    assert max(now.valid for now in seen) == max(v for _, h in fitted for v in h.valid)
    stopped = em_factors_batch(tasks, iterations=9, tol=0, callback=lambda now: now.iteration == 2)
    assert {h.stopped for _, h in stopped} == {"callback"}
    assert max(len(h.train) for _, h in stopped) == 3
    _, history = minibatch_em(
        x, 2, iterations=9, batch_size=20, generator=generator(), callback=lambda now: now.iteration == 3
    )
    assert (history.stopped, len(history.train)) == ("callback", 4)
    assert history.train_log_likelihood == history.train[-1]


def test_tasks_of_one_batch_may_differ_in_width_and_be_none():
    tasks = [FactorTask(rows(30, D), 2, 1, generator=generator()) for D in (1, 4, 2)]
    fitted = em_factors_batch(tasks, iterations=3)
    assert [model.n_variables for model, _ in fitted] == [1, 4, 2]
    assert em_factors_batch([]) == []
