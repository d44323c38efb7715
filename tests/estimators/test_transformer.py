"""TransformerNADE and BinaryTransformerNADE: any order, causal, and along a fixed ordering."""

import itertools

import numpy as np
import pytest
import torch

import pynade
from pynade.nets.base import stepwise
from pynade.ordering import Ordering
from pynade_paper.data.patches import Patches
from tests.estimators.cases import states

TINY = {"width": 8, "depth": 1, "heads": 2, "n_components": 2}


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    return np.hstack([x, -x, 3 * x + 5]) + 0.2 * rng.normal(size=(300, 3))


@pytest.mark.parametrize("family", ["mog", "mologistic"])
def test_transformers_learn_a_table_and_only_the_any_order_one_answers_everything(table, family, tmp_path):
    options = {**TINY, "family": family, "epochs": 25, "learning_rate": 0.01, "random_state": 0}
    deep = pynade.TransformerNADE(**options, n_orderings=2).fit(table)
    fixed = pynade.TransformerNADE(**options, fixed_order=True, dropout=0.1).fit(table)
    baseline = -sum(0.5 * np.log(2 * np.pi * np.e * table[:, d].var()) for d in range(3))
    for model in (deep, fixed):
        assert model.score(table) > baseline + 1
        assert model.sample(4, random_state=0).shape == (4, 3)
        model.save(tmp_path / "m.safetensors")
        assert pynade.load(tmp_path / "m.safetensors").score(table[:9]) == model.score(table[:9])
    assert deep.score_orderings(table[:5], 4).log_probs.shape == (5, 4)
    gaps = np.array([[1.0, np.nan, 8.0]])
    assert abs(deep.impute(gaps)[0, 1] + 1) < 0.8
    assert not deep.estimate(table[:20]).exact
    with pytest.raises(ValueError, match="one ordering only; fixed_order=False has all of them"):
        fixed.score_orderings(table, 2)
    with pytest.raises(ValueError, match=r"cannot be estimated: .* are exact; orderless models can"):
        fixed.estimate(table)
    with pytest.raises(ValueError, match=r"is NaN; orderless models \(DeepNADE, DeepRNADE\)"):
        fixed.score_samples(gaps)


def test_a_causal_transformer_learns_all_orderings(table, tmp_path):
    options = {**TINY, "epochs": 60, "learning_rate": 0.01, "random_state": 0}
    model = pynade.TransformerNADE(**options, causal=True, n_orderings=2, dropout=0.05).fit(table)
    baseline = -sum(0.5 * np.log(2 * np.pi * np.e * table[:, d].var()) for d in range(3))
    every = Ordering(list(itertools.permutations(range(3))))
    scores = model.score_orderings(table, every)
    assert (scores.ordering_means() > baseline + 1).all()  # those it was not to be scored under as well
    alone = model.density().under(every).double().member_log_probs(torch.as_tensor(table))
    np.testing.assert_allclose(scores.log_probs, alone.detach(), atol=1e-9)
    walked = torch.stack([stepwise_log_prob(model.density().double(), table, o) for o in every], -1)
    np.testing.assert_allclose(scores.log_probs, walked, atol=1e-9)
    np.testing.assert_allclose(model.score_samples(table, every), scores.ensemble_rows(), atol=1e-9)
    model.save(tmp_path / "m.safetensors")
    assert pynade.load(tmp_path / "m.safetensors").score(table[:9]) == model.score(table[:9])
    assert abs(model.impute(np.array([[1.0, np.nan, 8.0]]), random_state=0)[0, 1] + 1) < 0.8
    assert model.sample(4, random_state=0).shape == (4, 3)
    with pytest.raises(ValueError, match="its scores along its own orderings are exact"):
        model.estimate(table)
    with pytest.raises(ValueError, match="not both"):
        pynade.TransformerNADE(**TINY, causal=True, fixed_order=True).fit(table)


def test_a_causal_transformer_has_one_list_of_orderings_whose_number_may_change(table, tmp_path):
    model = pynade.TransformerNADE(**TINY, causal=True, n_orderings=3, epochs=1, random_state=0).fit(table)
    assert model.orderings() == model.model_.orderings == model.density().orderings
    np.testing.assert_allclose(model.score_samples(table), model.score_samples(table, 3), atol=1e-9)
    model.set_params(n_orderings=2)
    assert model.density().orderings == model.orderings(5)[:2]
    np.testing.assert_allclose(model.score_samples(table), model.score_samples(table, 2), atol=1e-9)
    model.save(tmp_path / "m.safetensors")
    assert pynade.load(tmp_path / "m.safetensors").score(table) == model.score(table)
    model.set_params(n_orderings=1)
    first = int(model.orderings().order[0, 0])
    assert (model.sample(3, 0, given={first: 1.0})[:, first] == 1).all()


def test_several_orderings_of_a_transformer_with_one_are_refused(table):
    with pytest.raises(ValueError, match="fixed_order=True has one ordering, so n_orderings is 1, not 2"):
        pynade.TransformerNADE(**TINY, fixed_order=True, n_orderings=2).fit(table)


@pytest.mark.parametrize("kind", [{}, {"causal": True, "n_orderings": 2}, {"fixed_order": True}])
def test_binary_transformers(kind, tmp_path):
    X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)
    small = {"width": 16, "depth": 1, "heads": 2, "epochs": 40, "learning_rate": 0.01, "random_state": 0}
    model = pynade.BinaryTransformerNADE(**small, **kind).fit(X)
    assert model.score(X) > -1  # independent columns: -2.8
    assert abs(np.exp(model.score_samples(states(4))).sum() - 1) < 1e-9
    gaps = np.array([[1.0, np.nan, np.nan, 1.0]])
    assert model.impute(gaps, random_state=0).tolist() == [[1, 1, 1, 1]]
    model.save(tmp_path / "m.safetensors")
    assert pynade.load(tmp_path / "m.safetensors").score(X[:9]) == model.score(X[:9])
    if kind:
        with pytest.raises(ValueError, match="take missing values"):
            model.score_samples(gaps)
    else:
        assert model.score_samples(gaps).shape == (1,)
    with pytest.raises(ValueError, match="0"):
        model.score_samples(0.5 * X)


def stepwise_log_prob(density, table, ordering):
    x = torch.as_tensor(table)
    family, y, log_slope = density.family.unwrap(x, torch.float64)
    eta = stepwise(density.net, family.encode(y), ordering)
    return (family.log_prob(y, eta) + log_slope).sum(-1).detach()


@pytest.mark.parametrize("fixed_order", [False, True])
def test_transformers_train_from_a_source_of_rows(fixed_order):
    pictures = [np.random.default_rng(0).integers(0, 256, (30, 30), dtype=np.uint8)]
    source = Patches.of(pictures, 4)
    rows = source.draw(200, torch.Generator().manual_seed(1)).numpy()
    model = pynade.TransformerNADE(
        **TINY,
        fixed_order=fixed_order,
        epochs=2,
        batch_size=20,
        training={"updates_per_epoch": 4},
        random_state=0,
    )
    model.fit(rows, X_valid=rows[:50], source=source)
    assert len(model.history_.epochs) == 2
    assert np.isfinite(model.score(rows[:10]))
