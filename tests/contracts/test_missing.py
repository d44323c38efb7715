"""Rows with gaps: their score depends on nothing but themselves."""

import itertools

import numpy as np
import pytest
import torch

import pynade
from pynade import queries
from pynade.families import Bernoulli
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.ordering import Ordering

from .cases import all_states, generator, net


@pytest.fixture(scope="module")
def fitted():
    X = (np.random.default_rng(0).random((80, 6)) < 0.4).astype(float)
    return pynade.EoNADE(hidden=(9,), n_orderings=3, epochs=3, random_state=0).fit(X), X


def test_a_row_with_gaps_scores_the_same_in_any_company(fitted):
    model, X = fitted
    gaps = X[:12].copy()
    gaps[np.random.default_rng(1).random(gaps.shape) < 0.4] = np.nan
    gaps[:, 0] = X[:12, 0]
    together = model.score_samples(gaps)
    np.testing.assert_allclose(model.score_samples(gaps[::-1])[::-1], together, rtol=0, atol=1e-12)
    alone = [model.score_samples(row[None])[0] for row in gaps]
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-12)


def test_gaps_are_summed_over_under_the_estimators_own_orderings(fitted):
    """The ordering of a row with gaps is the estimator's, with its observed cells moved to the front."""
    model, X = fitted
    row = X[3:4].copy()
    row[0, [1, 4]] = np.nan
    own = model.orderings(3).order.tolist()
    moved = Ordering([[i for i in o if i not in (1, 4)] + [i for i in o if i in (1, 4)] for o in own])
    filled = np.repeat(row, 4, axis=0)
    filled[:, [1, 4]] = list(itertools.product([0, 1], repeat=2))
    total = np.logaddexp.reduce(model.score_samples(filled, orderings=moved))
    assert model.score_samples(row)[0] == pytest.approx(total, abs=1e-10)


def test_orderings_may_be_given_to_queries():
    D, x = 4, all_states(4)
    model = Orderless(net("mlp-1", D), Bernoulli())
    base = Ordering([[3, 1, 0, 2], [2, 0, 1, 3]])
    expected = model.ensemble(Ordering([[3, 1, 2, 0], [1, 3, 2, 0]]))  # given 1 and 3 first, then 2, then 0
    mine = queries.conditional_log_prob(model, x, [2], [1, 3], orderings=base)
    theirs = queries.conditional_log_prob(expected, x, [2], [1, 3])
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="orderings of its own"):
        queries.conditional_log_prob(expected, x, [2], [1, 3], orderings=base)


def test_an_ensemble_of_a_fixed_order_net_has_no_single_conditional_law():
    ensemble = Ensemble(net("made-1", 4), Bernoulli(), Ordering([[0, 1, 2, 3], [1, 0, 2, 3]]))
    with pytest.raises(ValueError, match="conditional_log_prob"):
        queries.conditional(ensemble, 2, {0: 1, 1: 0})
    rows = torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 1, 0]], dtype=torch.float64)
    p = queries.conditional_log_prob(ensemble, rows, [2], [0, 1]).exp()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    alone = Ensemble(ensemble.net, ensemble.family, ensemble.orderings[:1])  # one ordering has one law
    wanted = queries.conditional(ensemble.member(0), 2, {0: 1, 1: 0}).mean()
    assert queries.conditional(alone, 2, {0: 1, 1: 0}).mean() == pytest.approx(wanted, abs=1e-12)


def test_observed_values_must_be_there_and_in_the_domain():
    model = Orderless(net("mlp-1", 3), Bernoulli())
    observed = torch.tensor([[True, True, False]])
    with pytest.raises(ValueError, match="cannot be missing"):
        model.conditionals(torch.tensor([[torch.nan, 1.0, 0.0]]), observed)
    with pytest.raises(ValueError, match="exactly 0 or 1"):
        model.conditionals(torch.tensor([[7.0, 1.0, 0.0]]), observed)


def test_models_do_not_share_the_callers_ordering():
    o = Ordering.natural(3)
    one, two = (Autoregressive(net("nade-sigmoid", 3), Bernoulli(), o) for _ in range(2))
    other = Autoregressive(net("nade-sigmoid", 3), Bernoulli(), Ordering([2, 1, 0]))
    one.load_state_dict(other.state_dict())
    assert o.order.tolist() == two.order.tolist() == [0, 1, 2]


def test_chunks_of_another_architecture_are_not_reused(tmp_path):
    from pynade.evaluation import score_orderings
    from pynade.nets import MaskedMLP

    x, orderings = all_states(4), Ordering.random(4, k=2, generator=generator(1))
    scores = []
    for activation in ("relu", "tanh"):
        built = MaskedMLP(4, hidden=(5,), activation=activation, generator=generator(2))
        model = Orderless(built, Bernoulli()).double()
        scores.append(score_orderings(model, x, orderings, folder=tmp_path / "chunks").log_probs)
        np.testing.assert_array_equal(scores[-1], score_orderings(model, x, orderings).log_probs)
    assert (scores[0] != scores[1]).any()
