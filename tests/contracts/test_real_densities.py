"""Contracts of densities of real variables: every one in the list is held to all of them."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from pynade import queries
from pynade.classical import FactorAnalysers, GaussianMixture, MultivariateGaussian
from pynade.store import load_density, save_density
from tests.reference import gaussians as reference

from .cases import generator


def _random(D, K, seed=0):
    g = generator(seed)
    weights = torch.rand(K, generator=g, dtype=torch.float64) + 0.3
    means = 1.5 * torch.randn(K, D, generator=g, dtype=torch.float64)
    roots = torch.randn(K, D, D, generator=g, dtype=torch.float64)
    return weights, means, 0.4 * roots @ roots.mT / D + 0.2 * torch.eye(D, dtype=torch.float64)


def _gaussian(D):
    _, means, covariances = _random(D, 1)
    return MultivariateGaussian.from_moments(means[0], covariances[0])


def _mixture(K):
    return lambda D: GaussianMixture.from_moments(*_random(D, K))


def _factors(K, Q):
    def build(D):
        weights, means, covariances = _random(D, K)
        q = min(Q, D)
        loadings = torch.linalg.cholesky(covariances)[..., :q]
        noise = 0.2 + torch.rand(K, D, generator=generator(4), dtype=torch.float64)
        return FactorAnalysers.from_parts(weights, means, loadings, noise)

    return build


REAL = {
    "gaussian": _gaussian,
    "mixture-1": _mixture(1),
    "mixture-4": _mixture(4),
    "factors-1-1": _factors(1, 1),
    "factors-3-2": _factors(3, 2),
    "factors-2-full": _factors(2, 99),
}
every_density = pytest.mark.parametrize("build", REAL.values(), ids=REAL.keys())


def grid(D, half=14.0, n=281):
    """Points of a uniform grid and the volume of a cell: the trapezium rule, exact here to many digits."""
    axis = torch.linspace(-half, half, n, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * D).view(-1, D), (axis[1] - axis[0]).item() ** D


@every_density
@pytest.mark.parametrize("D", [1, 2])
def test_integrates_to_one(build, D):
    x, cell = grid(D)
    assert build(D).log_prob(x).exp().sum().item() * cell == pytest.approx(1, abs=1e-9)


@every_density
def test_log_prob_is_the_plain_mixture(build):
    model = build(4)
    weights, means, covariances = (t.numpy() for t in model.components())
    x = 2 * torch.randn(9, 4, generator=generator(1), dtype=torch.float64)
    plain = [reference.log_mixture(row, np.exp(weights), means, covariances) for row in x.numpy()]
    np.testing.assert_allclose(model.log_prob(x), plain, rtol=1e-10)
    some = [2, 0]
    observed = torch.tensor([True, False, True, False])
    plain = [
        reference.log_mixture(row[some], np.exp(weights), means[:, some], covariances[:, some][:, :, some])
        for row in x.numpy()
    ]
    np.testing.assert_allclose(model.marginal_log_prob(x, observed.expand(9, 4)), plain, rtol=1e-10)


@every_density
@pytest.mark.parametrize("D", [1, 3])
def test_samples_follow_the_marginal_distributions(build, D):
    """Each column and one oblique direction, whose laws are mixtures of normals again."""
    from scipy.stats import norm

    model, n = build(D), 4000
    x = model.sample(n, generator(7))
    assert x.shape == (n, D)
    assert x.dtype == torch.float64
    log_weights, means, covariances = model.components()
    for v in [*torch.eye(D, dtype=torch.float64), torch.arange(1, D + 1).double()]:
        centre = (means @ v).numpy()
        spread = ((covariances @ v) @ v).sqrt().numpy()

        def cdf(t, centre=centre, spread=spread):
            return norm.cdf((np.asarray(t)[:, None] - centre) / spread) @ log_weights.exp().numpy()

        assert kstest((x @ v).numpy(), cdf).pvalue > 1e-4


@every_density
def test_same_seed_same_samples_and_other_seed_other_samples(build):
    model = build(3)
    first = model.sample(20, generator(1))
    assert torch.equal(first, model.sample(20, generator(1)))
    assert not torch.equal(first, model.sample(20, generator(2)))
    assert model.sample(0, generator()).shape == (0, 3)


@every_density
def test_a_row_scores_the_same_in_any_company(build):
    model = build(5)
    x = torch.randn(60, 5, generator=generator(2), dtype=torch.float64)
    observed = torch.rand(60, 5, generator=generator(3)) < 0.6
    for score in (lambda i: model.log_prob(x[i]), lambda i: model.marginal_log_prob(x[i], observed[i])):
        together = score(slice(None))
        shuffle = torch.randperm(60, generator=generator(4))
        torch.testing.assert_close(score(shuffle), together[shuffle], rtol=0, atol=1e-12)
        alone = torch.cat([score(slice(k, k + 1)) for k in range(60)])
        torch.testing.assert_close(alone, together, rtol=0, atol=1e-12)


@every_density
def test_save_and_load_gives_the_same_density(build, tmp_path):
    model = build(3)
    x = torch.randn(8, 3, generator=generator(), dtype=torch.float64)
    save_density(model, tmp_path / "m.safetensors")
    again, _ = load_density(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    for name, own in model.state_dict().items():  # or some processors would score other last bits
        assert again.state_dict()[name].stride() == own.stride(), name
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert torch.equal(again.sample(5, generator()), model.sample(5, generator()))


@every_density
def test_float32_agrees_with_float64(build):
    model = build(6)
    x = torch.randn(30, 6, generator=generator(), dtype=torch.float64)
    single = copy.deepcopy(model).float()
    assert single.dtype == torch.float32
    assert single.log_prob(x).dtype == torch.float64
    torch.testing.assert_close(single.log_prob(x), model.log_prob(x), rtol=1e-5, atol=1e-4)
    observed = torch.rand(30, 6, generator=generator(3)) < 0.6
    torch.testing.assert_close(
        single.marginal_log_prob(x, observed), model.marginal_log_prob(x, observed), rtol=1e-5, atol=1e-4
    )


@every_density
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 4), "5 columns"),
        (torch.zeros(5), "5 columns"),
        (torch.tensor([[0, 1, 0, 1, torch.nan]]), "row 0, column 4 is missing .* marginal_log_prob"),
        (torch.tensor([[0.0, 1, 0, 1, 1], [0, torch.inf, 0, 1, 1]]), "row 1, column 1 is infinite"),
    ],
)
def test_bad_rows_are_refused_in_one_sentence(build, x, words):
    with pytest.raises(ValueError, match=words):
        build(5).log_prob(x)


@every_density
def test_marginals_integrate_the_joint(build):
    """D = 3, each pattern: what is not observed is integrated out on a grid."""
    model = build(3)
    row = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
    for pattern in itertools.product([True, False], repeat=3):
        observed = torch.tensor([pattern])
        rest = (~observed[0]).nonzero()[:, 0]
        points, cell = grid(len(rest), half=12.0, n=97) if len(rest) else (row[None, rest], 1.0)
        if len(rest) == 3:
            points, cell = grid(3, half=12.0, n=65)
        filled = row.repeat(len(points), 1)
        filled[:, rest] = points
        total = model.log_prob(filled).exp().sum().item() * cell
        x = torch.where(observed, row, torch.nan)
        assert model.marginal_log_prob(x, observed).exp().item() == pytest.approx(total, rel=1e-5)


@every_density
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_chain_rule_for_any_split(build, data):
    """log p(a, b) = log p(a) + log p(b | a), and the conditional is the mixture's own."""
    D = 5
    model = build(D)
    parts = data.draw(st.lists(st.sampled_from("gtr"), min_size=D, max_size=D).filter(lambda p: "t" in p))
    given_ = [i for i, p in enumerate(parts) if p == "g"]
    target = [i for i, p in enumerate(parts) if p == "t"]
    x = torch.randn(4, D, generator=generator(data.draw(st.integers(0, 99))), dtype=torch.float64)
    both = torch.tensor([p != "r" for p in parts])
    known = torch.tensor([p == "g" for p in parts])
    whole = queries.marginal_log_prob(model, x, both)
    split = queries.conditional_log_prob(model, x, target, given_) + queries.marginal_log_prob(
        model, x, known
    )
    torch.testing.assert_close(whole, split, rtol=0, atol=1e-10)
    if both.all():
        torch.testing.assert_close(whole, model.log_prob(x), rtol=0, atol=1e-10)


@every_density
def test_completions_follow_the_conditional(build):
    """Moments and distribution of draws given two cells, against brute force on a grid."""
    model, n = build(3), 4000
    x = torch.tensor([[0.5, torch.nan, -0.2], [torch.nan, 0.1, torch.nan]], dtype=torch.float64)
    observed = ~torch.isnan(x)
    draws = queries.sample_given(model, x, observed, n, generator=generator(3))
    assert draws.shape == (n, 2, 3)
    assert torch.equal(draws[:, observed], x[observed].expand(n, -1))
    axis, cell = grid(1, n=2001)
    filled = x[:1].repeat(len(axis), 1)
    filled[:, 1] = axis[:, 0]
    density = model.log_prob(filled).exp() * cell
    cdf = (density.cumsum(0) / density.sum()).numpy()
    test = kstest(draws[:, 0, 1].numpy(), lambda t: np.interp(t, axis[:, 0].numpy() + 0.5 * cell, cdf))
    assert test.pvalue > 1e-4
    mean = (density * axis[:, 0]).sum() / density.sum()
    guess = queries.impute(model, x)
    assert guess[0, 1].item() == pytest.approx(mean.item(), abs=1e-6)
    error = draws[:, 1].std(0) / n**0.5
    assert ((guess[1] - draws[:, 1].mean(0)).abs() <= 4.5 * error + 1e-12).all()
    # and jointly: the two free cells of the second row against p(x_0, x_2 | x_1)
    plane, area = grid(2, half=12.0, n=161)
    filled = torch.stack([plane[:, 0], torch.full_like(plane[:, 0], 0.1), plane[:, 1]], -1)
    p = model.log_prob(filled).exp() * area
    product = (p * plane.prod(-1)).sum() / p.sum()
    drawn = draws[:, 1, 0] * draws[:, 1, 2]
    assert abs(drawn.mean() - product) < 4.5 * drawn.std() / n**0.5


@every_density
def test_laws_are_the_conditionals(build):
    model = build(3)
    values = torch.tensor([-1.3, 0.0, 0.4, 2.2], dtype=torch.float64)
    law = queries.conditional(model, 1, {0: 0.5, 2: -0.2})
    rows = torch.tensor([[0.5, 0, -0.2]], dtype=torch.float64).repeat(4, 1)
    rows[:, 1] = values
    expected = queries.conditional_log_prob(model, rows, [1], [0, 2])
    mine = [law.log_prob(v) for v in values.tolist()]
    np.testing.assert_allclose(mine, expected, atol=1e-9)
    row = torch.tensor([[0.5, torch.nan, -0.2]], dtype=torch.float64)
    assert law.mean() == pytest.approx(queries.impute(model, row)[0, 1].item(), abs=1e-9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MultivariateGaussian(0), "n_variables must be at least 1"),
        (lambda: GaussianMixture(2, 0), "n_components must be at least 1"),
        (lambda: FactorAnalysers(2, 1, 3), "at most the number of variables, 2, not 3"),
        (
            lambda: MultivariateGaussian.from_moments(torch.zeros(2), torch.ones(2, 2)),
            "not positive definite",
        ),
        (
            lambda: FactorAnalysers.from_parts(
                torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2, 1), torch.zeros(1, 2)
            ),
            "noise variance must be positive",
        ),
    ],
)
def test_impossible_parts_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_thin_noise_loses_no_digits_in_float32():
    """Where the noise is tiny, the textbook Woodbury difference would cancel to nothing."""
    g = generator(3)
    loadings = torch.randn(2, 6, 2, generator=g, dtype=torch.float64)
    noise = torch.full((2, 6), 1e-6, dtype=torch.float64)
    model = FactorAnalysers.from_parts(torch.ones(2), torch.zeros(2, 6).double(), loadings, noise)
    x = model.sample(50, g).float().double()
    exact = [
        reference.log_mixture(r, [0.5, 0.5], np.zeros((2, 6)), model.covariances().numpy()) for r in x.numpy()
    ]
    np.testing.assert_allclose(model.log_prob(x), exact, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.float().log_prob(x), exact, rtol=0, atol=0.1)
