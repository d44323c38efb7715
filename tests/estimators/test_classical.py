"""Classical models as estimators: answers against enumeration and formulas, choices, messages, RBMs."""

import functools
import warnings
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import pynade
from pynade import classical
from pynade.classical import chow_liu_chosen, em_bernoulli, nade_from_rbm
from pynade.store import load_density, save_density
from tests.estimators.cases import binary, gaps, make, real, states

BINARY = {
    "mob": make("bernoullimixture"),
    "chow-liu": make("chowliu"),
    "trees": make("chowliu", alpha=0.1, n_components=2, epochs=4),
    "rbm": make("rbm", learning_rate=0.1),
}
MINIBATCH = {"minibatch": True, "batch_size": 60}
REAL = {
    "gaussian": make("gaussian"),
    "mog": make("gaussianmixture"),
    "minibatch": make("gaussianmixture", n_components=2, epochs=30, **MINIBATCH),
    "mfa": make("mfa"),
}
ALL = BINARY | REAL
every = pytest.mark.parametrize("name", ALL)


def rows(name, n=160, seed=0):
    return binary(n, seed=seed) if name in BINARY else real(n, seed=seed)


def fitted(name, **parameters):
    return clone(ALL[name]).set_params(**parameters).fit(rows(name))


# ------------------------------------------------------------------------------------------ fit and score


@every
def test_scores_and_history_are_those_of_the_density(name):
    X = rows(name)
    model = clone(ALL[name]).fit(X[:120], X_valid=X[120:])
    scores = model.score_samples(X)
    direct = model.model_.double().log_prob(torch.as_tensor(X)).detach().numpy()
    np.testing.assert_allclose(scores, direct, rtol=0, atol=1e-9)
    assert model.summary(scores).exact
    assert model.history_.best_valid == pytest.approx(model.score(X[120:]), abs=1e-3)
    if name != "minibatch":  # whose training score is that of a random batch
        assert model.history_.train_log_likelihood == pytest.approx(model.score(X[:120]), abs=1e-3)


@pytest.mark.parametrize("name", ["mob", "trees", "rbm", "mog", "minibatch", "mfa"])
def test_a_callback_can_stop_learning(name):
    X = rows(name)
    model = clone(ALL[name]).fit(X, callbacks=[lambda now: now.update >= 2])
    assert model.history_.stopped == "a callback stopped it"
    assert len(model.history_.epochs) <= 3
    assert np.isfinite(model.score(X))


# -------------------------------------------------------------------------------------------- questions


@pytest.mark.parametrize("name", BINARY)
def test_marginals_conditionals_and_filled_gaps_against_enumeration(name):
    model, all_states = fitted(name), states(5)
    p = np.exp(model.score_samples(all_states))
    for row in gaps(binary(12, seed=3), 0.5):
        known = ~np.isnan(row)
        agree = (all_states[:, known] == row[known]).all(1)
        assert model.score_samples(row[None])[0] == pytest.approx(np.log(p[agree].sum()), abs=1e-9)
        means = p[agree] @ all_states[agree] / p[agree].sum()
        sure = np.abs(means - 0.5) > 1e-6
        np.testing.assert_array_equal(model.impute(row[None])[0][sure], (means > 0.5)[sure])
        evidence = {int(i): row[i] for i in np.flatnonzero(known)}
        for i in np.flatnonzero(~known):
            assert model.conditional(int(i), evidence).mean() == pytest.approx(means[i], abs=1e-9)


@pytest.mark.parametrize("name", REAL)
def test_filled_gaps_against_the_gaussians(name):
    """E[x_m | x_o] of a mixture, from the textbook formulas."""
    model = fitted(name)
    log_weights, means, covariances = (t.numpy() for t in model.model_.components())
    row = np.array([55.0, np.nan, -4.0])
    o, m = [0, 2], [1]
    weights, guesses = [], []
    for w, mu, cov in zip(log_weights, means, covariances, strict=True):
        d = row[o] - mu[o]
        inverse = np.linalg.inv(cov[np.ix_(o, o)])
        weights.append(np.exp(w - 0.5 * d @ inverse @ d) / np.sqrt(np.linalg.det(cov[np.ix_(o, o)])))
        guesses.append(mu[m] + cov[np.ix_(m, o)] @ inverse @ d)
    expected = np.average(guesses, axis=0, weights=weights)
    np.testing.assert_allclose(model.impute(row[None])[0, m], expected, rtol=1e-8)
    assert model.conditional(1, {0: 55.0, 2: -4.0}).mean() == pytest.approx(expected[0], rel=1e-8)
    total = np.log(sum(weights) / (2 * np.pi))
    assert model.score_samples(row[None])[0] == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize("name", ["trees", "minibatch"])  # the others: test_every_estimator
def test_draws_agree_with_given_values_and_files_with_the_model(name, tmp_path):
    X, model = rows(name), fitted(name)
    value = float(X[0, 2])
    draws = model.sample(300, random_state=0, given={2: value})
    np.testing.assert_allclose(draws[:, 2], value, rtol=1e-12)
    conditional = model.conditional(0, {2: value})
    assert draws[:, 0].mean() == pytest.approx(conditional.mean(), abs=0.25 * X[:, 0].std())
    model.save(tmp_path / "m.safetensors")
    again, holes = pynade.load(tmp_path / "m.safetensors"), gaps(X[:20])
    assert (again.score_samples(holes) == model.score_samples(holes)).all()
    assert (again.impute(holes, 2, random_state=1) == model.impute(holes, 2, random_state=1)).all()
    assert (fitted(name).score_samples(holes) == model.score_samples(holes)).all()
    assert (again.history_, again.chosen_, again.choices_) == (model.history_, model.chosen_, model.choices_)


def test_a_mixture_in_minibatches_is_fitted_to_rows_with_missing_cells():
    X = real(400)
    model, complete = (clone(REAL["minibatch"]).fit(table) for table in (gaps(X, 0.1), X))
    assert model.score(X) > complete.score(X) - 0.5


def test_trees_score_but_are_not_fitted_to_missing_cells():
    X = gaps(binary()).astype(float)
    with pytest.raises(ValueError, match=r"fitted to complete rows, but row .* is NaN; BernoulliMixture"):
        clone(BINARY["trees"]).fit(X)
    assert np.isfinite(fitted("trees").score_samples(X)).all()


# ------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("model", "name", "values"),
    [
        (pynade.BernoulliMixture(epochs=6, random_state=0), "n_components", (1, 2, 12)),
        (pynade.ChowLiu(random_state=0), "alpha", (1e-20, 0.1, 30.0)),
        (pynade.ChowLiu(alpha=0.1, epochs=3, random_state=0), "n_components", (1, 2, 3)),
        (pynade.RBM(hidden=3, epochs=4, random_state=0), "learning_rate", (1e-4, 0.1, 0.03)),
        (pynade.GaussianMixture(epochs=6, random_state=0), "n_components", (1, 3, 12)),
        (pynade.MFA(n_components=1, epochs=6, random_state=0), "n_factors", (1, 3, 2)),
    ],
    ids=["mob", "chow-liu", "trees", "rbm", "mog", "mfa"],
)
def test_the_value_chosen_is_the_best_on_validation_and_no_other_fit(model, name, values):
    X = binary() if hasattr(model, "binarize") else real()
    train, valid = X[:110], X[110:]
    alone = [clone(model).set_params(**{name: v}).fit(train, X_valid=valid) for v in values]
    both = clone(model).set_params(**{name: values}).fit(train, X_valid=valid)
    scores = [each.score(valid) for each in alone]
    best = int(np.argmax(scores))
    assert both.chosen_[name] == values[best]
    np.testing.assert_allclose([c["valid"] for c in both.choices_], scores, atol=1e-4)
    np.testing.assert_allclose(both.score_samples(valid), alone[best].score_samples(valid), atol=1e-6)


def test_alpha_is_chosen_from_the_grid_of_the_paper():
    X = binary()
    model = pynade.ChowLiu().fit(X[:100], X_valid=X[100:])
    _, scores = chow_liu_chosen(X[:100], X[100:], dtype=torch.float64)
    assert {c["alpha"]: c["valid"] for c in model.choices_} == scores
    assert model.chosen_["alpha"] == max(scores, key=scores.get)
    assert pynade.ChowLiu(validation_fraction=0).fit(X).chosen_ == {"n_components": 1, "alpha": 0.1}


def test_nothing_is_chosen_without_validation_rows():
    with pytest.raises(ValueError, match="n_components can only be chosen on validation rows"):
        pynade.BernoulliMixture(n_components=(2, 3), validation_fraction=0).fit(binary())
    with pytest.raises(ValueError, match="n_components and n_factors can only be chosen"):
        pynade.MFA(n_components=(2, 3), n_factors=(1, 2), validation_fraction=0).fit(real())
    model = pynade.MFA(n_components=2, n_factors=1, validation_fraction=0, random_state=0).fit(real())
    assert model.history_.best_valid is None
    assert model.choices_ == [{"n_components": 2, "n_factors": 1, "valid": None}]


def test_retraining_until_a_training_likelihood_is_reached():
    X = real(300)
    for model in (
        pynade.MFA(n_components=2, n_factors=1, validation_fraction=0, random_state=0),
        pynade.GaussianMixture(n_components=3, validation_fraction=0, random_state=0),
    ):
        lines = clone(model).set_params(tol=0, epochs=9).fit(X).history_.epochs
        reached = lines[5]["train"] - 1e-9
        again = clone(model).set_params(stop_at_train=reached).fit(X)
        assert again.history_.stopped == "training likelihood reached the given value"
        assert len(again.history_.epochs) == 6
        assert again.score(X) == pytest.approx(reached, abs=1e-6)


# --------------------------------------------------------------------------------------------- real columns


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-9, 9), min_size=3, max_size=3))
def test_units_do_not_matter(exponents):
    """Columns in other units: the same model, log p less the logarithm of the units; floors included."""
    X, scale = real(80), np.exp(exponents)
    for model in (
        pynade.Gaussian(shrinkage=0.3, covariance_floor=0.1, validation_fraction=0.1, random_state=0),
        pynade.GaussianMixture(n_components=2, covariance_floor=0.1, epochs=3, random_state=0),
        pynade.MFA(n_components=2, n_factors=1, noise_floor=0.1, epochs=3, random_state=0),
    ):
        one, other = clone(model).fit(X), clone(model).fit(X * scale)
        np.testing.assert_allclose(
            one.score_samples(X), other.score_samples(X * scale) + sum(exponents), atol=1e-5
        )
        a, b = one.history_, other.history_
        assert a.best_valid == pytest.approx(b.best_valid + sum(exponents), abs=1e-5)


def test_the_gaussian_is_the_maximum_likelihood_one():
    X = real()
    model = pynade.Gaussian().fit(X)  # of all rows: nothing is held out
    np.testing.assert_allclose(model.model_.mean.numpy(), X.mean(0), rtol=1e-10)
    np.testing.assert_allclose(model.model_.covariance.numpy(), np.cov(X.T, bias=True), rtol=1e-8)
    shrunk = pynade.Gaussian(shrinkage="ledoit-wolf").fit(X)
    assert shrunk.score(X) < model.score(X)


def test_a_mixture_draws_from_a_source():
    class Source:
        n_variables, drawn = 2, 0

        def to(self, device):
            return self

        def draw(self, n, generator):
            self.drawn += n
            return 50 + 3 * torch.randn(n, 2, generator=generator)

    source = Source()
    X = 50 + 3 * np.random.default_rng(0).normal(size=(100, 2))
    model = make("gaussianmixture", n_components=1, minibatch=True, epochs=40, batch_size=500, device="cpu")
    model.fit(X, source=source)
    assert source.drawn == 40 * 500
    np.testing.assert_allclose(model.model_.means[0].numpy(), 50, atol=0.5)
    with pytest.raises(ValueError, match="MFA learns from all rows at once"):
        pynade.MFA().fit(X, source=source)


def test_zero_means_stay_zero():
    X = np.random.default_rng(0).normal(size=(300, 2)) * [1, 100]
    zero = {"minibatch": True, "zero_means": True, "batch_size": 100}
    model = pynade.GaussianMixture(n_components=2, epochs=20, training=zero, random_state=0).fit(X)
    assert (model.model_.means == 0).all()
    assert np.isfinite(model.score(X))


@pytest.mark.parametrize(
    ("change", "model", "words"),
    [
        (lambda X: X * [1, 0, 1] + 7, pynade.Gaussian(), "column 1 is constant"),
        (lambda X: np.sign(X - X.mean(0)), pynade.MFA(noise_floor=0), "set noise_floor above 0"),
        (lambda X: X[:, [0, 1, 0]], pynade.Gaussian(), "singular"),
        (lambda X: np.where(X > 52, np.inf, X), pynade.GaussianMixture(), "is inf"),
        (lambda X: X[:8], pynade.GaussianMixture(n_components=9), "at most 8, the number of training rows"),
        (lambda X: X, pynade.MFA(n_factors=4), "n_factors must be at most 3, the number of columns"),
        (lambda X: X * [1, 1e200, 1], pynade.MFA(), "the values of column 1 are too large"),
        (lambda X: X * [1, 1, 1e200], pynade.GaussianMixture(), "the values of column 2 are too large"),
    ],
    ids=["constant", "two-values", "twice", "inf", "few-rows", "factors", "huge", "huge-mixture"],
)
def test_degenerate_real_tables_get_one_sentence(change, model, words):
    with pytest.raises(ValueError, match=words):
        model.fit(change(real()))


@pytest.mark.parametrize("name", BINARY)
def test_degenerate_binary_tables_are_fine(name):
    X = np.hstack([binary(), np.zeros((160, 1), int), np.ones((160, 1), int)])
    model = clone(ALL[name]).fit(X)
    assert model.score(X) < 0
    assert model.score(X) > model.score(1 - X)
    with pytest.raises(ValueError, match="zeros and ones"):
        clone(ALL[name]).fit(X + 0.5)


def test_components_that_started_anew_are_reported(tmp_path, monkeypatch):
    eager = functools.partial(em_bernoulli, empty_below=40)  # components of fewer rows count as empty
    monkeypatch.setattr("pynade.classical.em_bernoulli", eager)
    model = clone(BINARY["mob"]).set_params(n_components=6).fit(binary())
    assert any("were empty and start anew" in message for message in model.history_.messages)
    model.save(tmp_path / "m.safetensors")
    assert pynade.load(tmp_path / "m.safetensors").history_ == model.history_


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (pynade.BernoulliMixture(n_components=0), "n_components must be at least 1, not 0"),
        (pynade.BernoulliMixture(n_components=()), "n_components is an empty sequence"),
        (pynade.BernoulliMixture(n_components=2.5), "must be a whole number, not 2.5"),
        (pynade.BernoulliMixture(smoothing=0), "smoothing must be above 0"),
        (pynade.BernoulliMixture(patience=0), "patience must be at least 1"),
        (pynade.BernoulliMixture(epochs=-1), "epochs must be at least 0"),
        (pynade.ChowLiu(alpha=-1), "alpha must be above 0"),
        (pynade.RBM(learning_rate=0), "learning_rate must be above 0"),
        (pynade.RBM(cd_steps=0), "cd_steps must be at least 1"),
        (pynade.RBM(training={"ais_chains": 1}), "ais_chains must be at least 2"),
        (pynade.Gaussian(shrinkage="much"), "ledoit-wolf"),
        (pynade.Gaussian(covariance_floor=-1), "covariance_floor must be at least 0"),
        (pynade.GaussianMixture(training={"init": "zeros"}), "unknown init 'zeros'"),
        (pynade.GaussianMixture(training={"zero_means": True}), "set minibatch too"),
        (pynade.GaussianMixture(training={"step_size": 2}), "step_size"),
        (
            pynade.GaussianMixture(training={"minibatch": True, "stop_at_train": 1}),
            "not for learning in minibatches",
        ),
        (pynade.GaussianMixture(training={"batch": 2}), "unknown option 'batch' of training; known: init"),
        (pynade.MFA(device="toaster"), "unknown device 'toaster'"),
    ],
    ids=repr,
)
def test_bad_parameters_get_one_sentence(model, words):
    X = binary() if hasattr(model, "binarize") else real()
    for call in (model.fit, model.check_request):
        with pytest.raises(ValueError, match=words):
            call(X)


# ---------------------------------------------------------------------------------------------------- RBMs


def large(**parameters):
    training = {"ais_chains": 200, "ais_steps": 300, "gibbs_steps": 20}
    small = {"hidden": 30, "epochs": 4, "learning_rate": 0.05, "random_state": 0, "training": training}
    X = binary(120, 27)
    return X, pynade.RBM(**small | parameters).fit(X)


def test_a_large_rbm_gives_estimates_and_says_so(tmp_path):
    X, model = large()
    with pytest.warns(UserWarning, match="scores are estimates, with a common standard error"):
        scores = model.score_samples(X)
    summary = model.summary(scores)
    assert (summary.exact, summary.mc_stderr) == (False, model.log_z_stderr_)
    assert 0 < model.log_z_stderr_ < 0.5
    energies = model.machine().double().free_energy(torch.as_tensor(X)).detach().numpy()
    np.testing.assert_allclose(scores, -energies - model.log_z_, atol=1e-9)
    assert scores.mean() < -3
    assert model.history_.best_valid == pytest.approx(model.history_.epochs[-1]["valid"])
    draws = model.sample(200, random_state=0)
    assert set(np.unique(draws)) == {0, 1}
    assert abs(draws.mean(0) - X.mean(0)).max() < 0.3
    model.save(tmp_path / "m.safetensors")
    again = pynade.load(tmp_path / "m.safetensors")
    with warnings.catch_warnings(action="ignore"):
        assert (again.score_samples(X) == scores).all()
    for question in (
        lambda: model.density(),
        lambda: model.impute(gaps(X[:2])),
        lambda: model.sample(2, given={0: 1}),
        lambda: model.conditional(0),
        lambda: model.score_samples(gaps(X[:2])),
    ):
        with pytest.raises(ValueError, match="smaller layer, which has 27 units and may have 25"):
            question()


def test_an_estimated_partition_function_is_near_the_exact_one(monkeypatch):
    X, model = large(hidden=4)
    exact = model.log_z_
    assert (model.log_z_stderr_, model.summary(model.score_samples(X)).exact) == (0.0, True)
    for module in ("rbm", "contrastive_divergence"):
        monkeypatch.setattr(import_module(f"pynade.classical.{module}"), "MOST_UNITS", 2)
    _, estimated = large(hidden=4)
    assert estimated.log_z_ == pytest.approx(exact, abs=max(5 * estimated.log_z_stderr_, 0.05))


def test_the_best_evaluated_epoch_of_an_rbm_is_kept():
    X = binary()
    model = make("rbm", hidden=4, learning_rate=0.5, epochs=7, evaluate_every=3).fit(X)
    lines = {line["epoch"]: line["valid"] for line in model.history_.epochs}
    assert [e for e, score in lines.items() if score is not None] == [3, 6, 7]
    assert model.history_.best_epoch == max((3, 6, 7), key=lines.get)
    alone = pynade.RBM(hidden=4, epochs=3, validation_fraction=0, random_state=0).fit(X)
    assert alone.history_.train_log_likelihood == pytest.approx(alone.score(X), abs=1e-4)


def test_an_rbm_is_the_best_of_several_initial_weights():
    X = (np.random.default_rng(0).random((90, 6)) < 0.4).astype(np.uint8)
    base = make("rbm", learning_rate=[0.3, 0.05], epochs=4)
    one, more = (clone(base).set_params(n_init=n).fit(X[:60], X_valid=X[60:]) for n in (1, 3))
    assert (len(one.choices_), len(more.choices_)) == (2, 6)
    best = max(more.choices_, key=lambda choice: choice["valid"])
    assert more.chosen_ == {name: best[name] for name in ("learning_rate", "init")}
    first = [choice["valid"] for choice in more.choices_ if choice["init"] == 0]
    np.testing.assert_allclose(first, [choice["valid"] for choice in one.choices_], rtol=1e-6)
    np.testing.assert_allclose(more.score(X[60:]), best["valid"], rtol=1e-6)
    with pytest.raises(ValueError, match="n_init"):
        clone(base).set_params(n_init=0).fit(X)


def test_a_bare_rbm_is_saved_and_loaded(tmp_path):
    rbm = classical.RBM(4, 3, generator=torch.Generator().manual_seed(0))
    save_density(rbm, tmp_path / "m.safetensors", {"about": "a test"})
    again, header = load_density(tmp_path / "m.safetensors")
    assert isinstance(again, classical.RBM)
    assert header["about"] == "a test"
    assert again.log_partition() == rbm.log_partition()
    assert isinstance(pynade.load(tmp_path / "m.safetensors"), classical.RBM)


def test_a_nade_from_an_rbm_is_its_mean_field_and_trains_on(tmp_path):
    frame = pd.DataFrame(binary(), columns=list("abcde"))
    rbm = pynade.RBM(hidden=6, learning_rate=0.05, epochs=20, random_state=0).fit(frame)
    model = pynade.NADE.from_rbm(rbm, ordering="natural", random_state=0, epochs=5)
    direct = nade_from_rbm(rbm.machine(), model.model_.ordering).double()
    scores = model.score_samples(frame)
    expected = direct.log_prob(torch.tensor(frame.to_numpy())).detach().numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert list(model.feature_names_in_) == list("abcde")
    model.save(tmp_path / "m.safetensors")
    assert (pynade.load(tmp_path / "m.safetensors").score_samples(frame) == scores).all()
    trained = model.fit(frame)
    assert trained.history_.epochs[0]["train"] > scores.mean() - 0.05  # it began where the RBM ended
    assert trained.score(frame) > scores.mean()
    assert clone(model).fit(frame).model_ is not model.model_
    with pytest.raises(ValueError, match=r"a warm start keeps the 5 variables and 6 hidden units"):
        model.set_params(hidden=7).fit(frame)
    with pytest.raises(ValueError, match="hidden is 6 in a NADE made from this RBM"):
        pynade.NADE.from_rbm(rbm, hidden=7)


def test_a_warm_start_goes_on():
    X = binary()
    once = pynade.NADE(hidden=6, epochs=3, random_state=0).fit(X)
    twice = pynade.NADE(hidden=6, epochs=3, random_state=0, warm_start=True).fit(X)
    assert (twice.score_samples(X) == once.score_samples(X)).all()
    assert twice.fit(X).score(X) > once.score(X)


# ---------------------------------------------------------------------------------------------------- GPU


@pytest.mark.gpu
@every
def test_fitted_and_queried_on_a_gpu(name):
    X = rows(name)
    model = clone(ALL[name]).set_params(device="cuda").fit(X)
    holes = gaps(X[:20])
    scores, filled = model.score_samples(holes), model.impute(holes)
    assert model.sample(5, random_state=0).shape == (5, X.shape[1])
    model.set_params(device="cpu")
    np.testing.assert_allclose(model.score_samples(holes), scores, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.impute(holes), filled, rtol=1e-8)


def test_a_machine_worse_than_fair_coins_has_a_message():
    X = np.random.default_rng(0).integers(0, 2, (100, 6))
    lost = pynade.RBM(hidden=3, learning_rate=1e6, epochs=20, random_state=0).fit(X)
    (message,) = lost.history_.messages
    assert "smaller learning rate" in message
    assert pynade.RBM(hidden=3, epochs=20, random_state=0).fit(X).history_.messages == []
