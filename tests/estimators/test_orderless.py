"""DeepNADE and EoNADE: ensembles of orderings, missing values, pretraining, mistakes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import pynade
from pynade.families import Bernoulli
from pynade.likelihood import orderless_estimate
from pynade.models import Orderless
from pynade.nets import MaskedMLP, NADENet
from pynade.ordering import Ordering
from pynade.training import Gradient, pretrain
from tests.estimators.cases import ESTIMATORS, binary, make, rows, states

SMALL = [make("deepnade"), make("eonade")]
every_estimator = pytest.mark.parametrize("estimator", SMALL, ids=["deepnade", "eonade"])


@pytest.fixture
def X():
    return binary(200)


@every_estimator
def test_score_is_a_density_for_any_number_of_orderings(estimator, X):
    model = clone(estimator).fit(X)
    for orderings in (None, 1, 4, Ordering([[4, 3, 2, 1, 0], [0, 1, 2, 3, 4]])):
        assert np.exp(model.score_samples(states(5), orderings=orderings)).sum() == pytest.approx(
            1, abs=1e-10
        )
    few, many = model.orderings(2), model.orderings(6)
    assert many[:2] == few  # more orderings extend the fewer
    scores = model.score_orderings(X, 6)
    np.testing.assert_allclose(
        scores.ensemble_rows(), model.score_samples(X, orderings=6), rtol=0, atol=1e-12
    )


@every_estimator
def test_missing_cells_are_marginalised_when_scoring(estimator, X):
    """log p of a row with one gap = log of the sum over both fillings, where the gap comes last."""
    model = clone(estimator).fit(X)
    row = np.array([[1.0, 0.0, 1.0, np.nan, 1.0]])
    gap_last = Ordering([[0, 1, 2, 4, 3]])
    both = np.repeat(row, 2, axis=0)
    both[:, 3] = [0, 1]
    total = np.logaddexp.reduce(model.score_samples(both, orderings=gap_last))
    # the drawn ordering puts the gap last too, the given cells in some order: compare with all of them
    orders = Ordering([[*p, 3] for p in itertools.permutations([0, 1, 2, 4])])
    each = model.score_orderings(both, orders).log_probs
    reachable = np.logaddexp.reduce(each, axis=0)
    assert np.isfinite(total)
    got = model.score_samples(row, orderings=1)[0]
    assert np.abs(reachable - got).min() < 1e-10


def test_scores_of_rows_with_gaps_are_closer_to_marginals_under_more_orderings(X):
    """They are no marginals of the density of complete rows, as the documentation of score_samples says."""
    model = clone(SMALL[0]).fit(X)
    cells = np.repeat(states(5).astype(float), 5, axis=0)
    at = np.tile(np.eye(5, dtype=bool), (32, 1))  # each state with each one of its cells missing
    filled = [np.where(at, value, cells) for value in (0, 1)]
    apart = []
    for k in (1, 64):
        marginal = np.logaddexp(*(model.score_samples(each, orderings=k) for each in filled))
        apart.append(np.abs(model.score_samples(np.where(at, np.nan, cells), orderings=k) - marginal))
    assert apart[0].max() > 0.1
    assert apart[1].mean() < 0.7 * apart[0].mean()
    said = " ".join(str(pynade.DeepNADE.score_samples.__doc__).split())
    for words in (
        "it is not the marginal",
        "the marginal of the density of complete rows",
        "with more `orderings`",
        "`disagreement`",
    ):
        assert words in said


@pytest.mark.parametrize("name", ["deepnade", "eonade", "deeprnade", "transformernade", "convnade"])
def test_disagreement_is_the_spread_over_orderings(name):
    maker, kind = ESTIMATORS[name]
    X = rows(kind)
    model = maker().fit(X)
    gaps = X.astype(float)
    gaps[::3, 0] = np.nan
    apart = model.disagreement(gaps, k=5)
    assert np.isnan(apart[::3]).all()
    whole = np.arange(len(X)) % 3 > 0
    expected = model.score_orderings(X[whole], 5).log_probs.std(1)
    np.testing.assert_allclose(apart[whole], expected, rtol=0, atol=1e-12)
    assert (apart[whole] > 0).all()
    assert (model.disagreement(X[:4], k=1) == 0).all()
    assert np.isnan(model.disagreement(gaps[:1])).all()


@every_estimator
def test_impute_sample_and_conditional(estimator, X):
    model = clone(estimator).set_params(epochs=80, learning_rate=0.01, validation_fraction=0).fit(X)
    gaps = X[:20].astype(float)
    gaps[:, 2] = np.nan
    filled = model.impute(gaps)
    assert filled.shape == (20, 5)
    assert (filled[:, [0, 1, 3, 4]] == X[:20][:, [0, 1, 3, 4]]).all()
    majority = (X[:20][:, [0, 1, 3, 4]].sum(1) > 2).astype(int)
    clear = np.abs(X[:20][:, [0, 1, 3, 4]].sum(1) - 2) == 2
    assert (filled[clear, 2] == majority[clear]).all()
    draws = model.impute(gaps, 7, random_state=0)
    assert draws.shape == (7, 20, 5)
    assert (draws[:, :, 0] == X[:20, 0]).all()
    given = model.sample(50, random_state=0, given={0: 1, 4: 1})
    assert (given[:, [0, 4]] == 1).all()
    assert given[:, 1].mean() > 0.5
    conditional = model.conditional(1, given={0: 1, 2: 1, 3: 1})
    assert conditional.mean() > 0.7
    assert conditional.pmf(0) + conditional.pmf(1) == pytest.approx(1)


def test_training_with_missing_cells_recovers_the_joint():
    """A mixture of two products on six variables; 30 % of the cells are missing completely at random.

    Sampling error: an empirical table of N complete rows has an expected divergence of (2^D - 1) / 2N.
    """
    rng = np.random.default_rng(0)
    x = states(6)
    first, second = rng.uniform(0.1, 0.9, (2, 6))
    truth = sum(0.5 * np.prod(np.where(x == 1, t, 1 - t), axis=1) for t in (first, second))
    n = 8000
    rows = x[rng.choice(64, n, p=truth)].astype(float)
    rows[rng.random(rows.shape) < 0.3] = np.nan
    rows = rows[~np.isnan(rows).all(1)]
    model = pynade.DeepNADE(
        hidden=32,
        epochs=40,
        learning_rate=0.01,
        training={"schedule": "linear"},
        batch_size=200,
        validation_fraction=0,  # the last epoch is kept: no noise of choosing one
        random_state=0,
    ).fit(rows)
    ours = np.exp(model.score_samples(x, orderings=20))
    divergence = (truth * np.log(truth / ours)).sum()
    assert divergence < 63 / (2 * n)
    alone = np.nanmean(rows, axis=0)
    independent = np.prod(np.where(x == 1, alone, 1 - alone), axis=1)
    assert divergence < 0.02 * (truth * np.log(truth / independent)).sum()


def test_settings_reach_the_net(X):
    model = pynade.DeepNADE(
        hidden=(6, 6),
        activation="silu",
        input_observed=False,
        residual=True,
        layer_norm=True,
        dropout=0.2,
        pretrain_epochs=2,
        stratified=False,
        epochs=1,
        random_state=0,
    ).fit(X)
    config = model.model_.net.config()
    expected = {
        "hidden": [6, 6],
        "activation": "silu",
        "input_observed": False,
        "residual": True,
        "layer_norm": True,
        "dropout": 0.2,
    }
    assert config | expected == config
    assert model.model_.stratified is False


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda m, X: m.impute(np.full((2, 5), np.nan)), "row 0 has no value at all"),
        (lambda m, X: m.score_samples(np.where(X == 1, np.inf, 0)), "inf"),
        (lambda m, X: m.score_samples(X + 0.5), "zeros and ones"),
        (lambda m, X: m.score_samples(X, orderings=0), "at least 1"),
        (lambda m, X: m.score_samples(X, orderings=Ordering.random(4, k=2)), "4 variables"),
        (lambda m, X: m.score_orderings(np.where(X == 1, np.nan, 0), 2), "complete rows|no value"),
        (lambda m, X: m.sample(3, given={9: 1}), "does not exist"),
        (lambda m, X: m.sample(3, given={1: 2}), "exactly 0 or 1"),
        (lambda m, X: m.sample(0, given={1: 1}), "at least 1"),
        (lambda m, X: m.conditional(1, {1: 0}), "both asked for and given"),
        (lambda m, X: clone(m).set_params(pretrain_epochs=-1).fit(X), "pretrain_epochs"),
        (lambda m, X: clone(m).set_params(dropout=1.0).fit(X), "dropout"),
        (lambda m, X: clone(m).set_params(hidden=()).fit(X), "hidden layers"),
    ],
)
def test_mistakes_get_one_sentence(X, ask, words):
    model = clone(SMALL[0]).fit(X)
    with pytest.raises(ValueError, match=words):
        ask(model, X)


def test_pretraining_adds_one_layer_after_the_other(X):
    """Algorithm 2: first layers are kept and trained on, the output is new each time."""
    grown = []
    x = torch.as_tensor(X.astype(np.uint8))
    model = Orderless(MaskedMLP(5, hidden=(6, 7, 8)), Bernoulli())
    model.net.set_output_bias(Bernoulli().eta_from_marginal(x))
    options = Gradient(epochs=99, learning_rate=0.01, patience=1)
    watch = lambda p: grown.append((p.model.net.hidden, p.epoch))  # noqa: E731
    result = pretrain(model, x, options, epochs=4, callbacks=[watch])
    assert sorted(set(grown)) == [((6, 7), e) for e in (1, 2, 3, 4)] + [((6, 7, 8), e) for e in (1, 2, 3, 4)]
    assert result.net.hidden == (6, 7, 8)
    scores = [orderless_estimate(each, x, draws=20).mean for each in (model, result)]
    assert scores[1] > scores[0]  # it did learn
    shallow = pretrain(Orderless(MaskedMLP(5, hidden=6), Bernoulli()), x, options, epochs=4)
    assert shallow.net.hidden == (6,)
    with pytest.raises(TypeError, match="MaskedMLP"):
        pretrain(SimpleNamespace(net=NADENet(5)), x, options)


def test_deeper_keeps_all_but_the_output():
    net = MaskedMLP(4, hidden=(5, 6), layer_norm=True)
    deep = net.deeper(7, torch.Generator().manual_seed(0))
    assert deep.hidden == (5, 6, 7)
    assert torch.equal(deep.weight, net.weight)
    assert torch.equal(deep.weights[0], net.weights[0])
    assert deep.output.shape == (4, 1, 7)


def test_numpy_and_torch_parameters_fit_and_save(X, tmp_path):
    for change in (
        {"hidden": np.int64(4)},
        {"hidden": np.array([4, 5])},
        {"ordering": np.arange(5)},
        {"ordering": Ordering.natural(5)},
        {"learning_rate": np.float32(0.01), "random_state": np.int64(3), "device": torch.device("cpu").type},
    ):
        model = pynade.DeepNADE(epochs=1, **({"hidden": 4, "random_state": 0} | change)).fit(X)
        model.save(tmp_path / "m.safetensors")
        again = pynade.load(tmp_path / "m.safetensors")
        assert (again.score_samples(X) == model.score_samples(X)).all()
        if "random_state" in change:
            assert again.random_state == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [({0: np.nan}, "given as NaN"), ({"a": 1, 0: 0}, "named twice")],
)
def test_evidence_is_never_dropped_or_overridden(X, given, words):
    model = clone(SMALL[0]).fit(pd.DataFrame(X, columns=list("abcde")))
    with pytest.raises(ValueError, match=words):
        model.sample(3, given=given)


def test_a_bad_number_of_orderings_is_found_before_training(X):
    with pytest.raises(ValueError, match="at least 1"):
        pynade.EoNADE(n_orderings=0).fit(X)
