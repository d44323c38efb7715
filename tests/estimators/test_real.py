"""RNADE and DeepRNADE as estimators of real-valued tables."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

import pynade
from pynade.estimators.cells import REAL_FAMILIES

SMALL = {"hidden": 8, "epochs": 5, "batch_size": 50, "random_state": 0, "device": "cpu"}


def table(n=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1))
    return np.hstack(
        [50 + 10 * x, 1e-3 * (x**2 + 0.3 * rng.normal(size=x.shape)), rng.normal(size=(n, 1)) - 4 * x]
    )


@pytest.mark.parametrize("family", REAL_FAMILIES)
@pytest.mark.parametrize("kind", [pynade.RNADE, pynade.DeepRNADE])
def test_every_family_trains_scores_samples_and_saves(family, kind, tmp_path):
    X = table()
    small = SMALL | ({"hidden": (8, 8)} if kind is pynade.DeepRNADE else {})
    model = kind(family=family, n_components=3, **small).fit(X)
    scores = model.score_samples(X)
    assert np.isfinite(scores).all()
    assert model.score(X) > kind(family=family, n_components=3, **small | {"epochs": 1}).fit(X).score(X) - 1
    draws = model.sample(200, random_state=1)
    assert draws.shape == (200, 3)
    assert abs(np.median(draws[:, 0]) - 50) < 10  # in the units of the data
    model.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(pynade.load(tmp_path / "m.safetensors").score_samples(X), scores)


def test_densities_are_in_the_units_of_the_data():
    """Rescaling a column by a factor changes log p by minus its logarithm, and nothing else."""
    X = table()
    scale = np.array([2.0, 1e4, 0.5])
    one = pynade.RNADE(**SMALL, sigma_floor=0.01).fit(X)
    other = pynade.RNADE(**SMALL, sigma_floor=0.01).fit(X * scale + 3)
    np.testing.assert_allclose(
        one.score_samples(X), other.score_samples(X * scale + 3) + np.log(scale).sum(), atol=1e-2
    )


def test_a_gaussian_is_learned_to_its_entropy():
    rng = np.random.default_rng(0)
    cov = np.array([[1.0, 0.8, 0.2], [0.8, 2.0, -0.3], [0.2, -0.3, 0.5]])
    X, test = (rng.multivariate_normal([1, -2, 0.5], cov, size=n) for n in (4000, 2000))
    model = pynade.RNADE(family="gaussian", hidden=30, epochs=60, random_state=0, device="cpu").fit(X)
    best = multivariate_normal([1, -2, 0.5], cov).logpdf(test).mean()
    assert model.score(test) > best - 0.05


def test_missing_cells_of_a_deep_rnade_are_marginalised_and_filled():
    X = table()
    X[::3, 1] = np.nan
    model = pynade.DeepRNADE(**SMALL | {"hidden": (16, 16), "epochs": 40}).fit(X)
    gaps = table(20, seed=1)
    gaps[:, 2] = np.nan
    assert np.isfinite(model.score_samples(gaps)).all()
    filled = model.impute(gaps)
    np.testing.assert_array_equal(filled[:, :2], gaps[:, :2])
    truth = -4 * (gaps[:, 0] - 50) / 10
    assert np.corrcoef(filled[:, 2], truth)[0, 1] > 0.9
    assert model.impute(gaps, n=4, random_state=0).shape == (4, 20, 3)


def test_a_conditional_has_quantiles_in_the_units_of_the_data():
    frame = pd.DataFrame(table(), columns=["mass", "error", "shift"])
    model = pynade.DeepRNADE(**SMALL | {"hidden": (16, 16), "epochs": 40}).fit(frame)
    conditional = model.conditional("shift", given={"mass": 60.0})
    assert conditional.quantile(0.1) < conditional.quantile(0.5) < conditional.quantile(0.9)
    assert conditional.cdf(conditional.quantile(0.3)) == pytest.approx(0.3, abs=1e-6)
    assert -7 < conditional.quantile(0.5) < -1  # about -4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"b": 7.0}, "column 'b' is constant"),
        ({"b": np.where(np.arange(60) % 2, 1.0, 0.0)}, "only two distinct values"),
        ({"b": np.where(np.arange(60) == 5, np.inf, 1.0)}, "row 5, column 1 is inf"),
        ({"b": np.where(np.arange(60) == 5, np.nan, np.arange(60))}, "DeepRNADE"),
    ],
)
def test_bad_columns_get_one_sentence(change, words):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=60), "b": rng.normal(size=60), "c": rng.normal(size=60)}
    ).assign(**change)
    with pytest.raises(ValueError, match=words):
        pynade.RNADE(**SMALL, sigma_floor=0.0).fit(frame)


def test_two_values_are_allowed_with_a_floor():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), rng.integers(0, 2, 60)])
    assert np.isfinite(pynade.RNADE(**SMALL, sigma_floor=0.05).fit(X).score(X))


@pytest.mark.parametrize(
    ("options", "words"), [({"family": "mug"}, "known: fv"), ({"n_components": 0}, "at least 1")]
)
def test_bad_parameters_get_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        pynade.RNADE(**SMALL | options).fit(table())


@pytest.mark.parametrize("kind", [pynade.RNADE, pynade.DeepRNADE])
def test_data_far_from_zero_lose_no_digits(kind):
    """Seconds since 1970 and the like: the same scores and as many distinct draws as about the origin."""
    X = np.random.default_rng(0).normal(size=(400, 2))
    X[:, 1] = 0.9 * X[:, 0] + 0.3 * X[:, 1]
    small = SMALL | {"hidden": 8 if kind is pynade.RNADE else (8, 8), "epochs": 3}
    near = kind(family="gaussian", **small).fit(X)
    far = kind(family="gaussian", **small).fit(X + 1.7e9)
    assert far.history_.best_valid == pytest.approx(near.history_.best_valid, abs=1e-3)
    np.testing.assert_allclose(far.score_samples(X + 1.7e9), near.score_samples(X), atol=1e-3)
    drawn = far.sample(300, random_state=0)
    assert len(np.unique(drawn[:, 0])) == 300
    assert 0.3 < drawn[:, 0].std() < 3
