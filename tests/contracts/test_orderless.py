"""What an orderless model promises: one net, unbiased training, and exact answers to any question."""

import itertools
import math

import numpy as np
import pytest
import torch

from pynade import queries
from pynade.evaluation import score_orderings
from pynade.families import Bernoulli
from pynade.likelihood import orderless_estimate
from pynade.models import Orderless
from pynade.nets import AnyOrderNet, MaskedMLP, stepwise
from pynade.ordering import Ordering, random_observed
from pynade.training import Gradient, fit

from .cases import ANY_ORDER, all_states, generator, net

every_net = pytest.mark.parametrize("name", ANY_ORDER)


def orderless(name, D):
    return Orderless(net(name, D), Bernoulli())


def all_orderings(D):
    return Ordering(list(itertools.permutations(range(D))))


def all_observed(D):
    """Every set of observed variables but the full one."""
    return [torch.tensor(bits, dtype=torch.bool) for bits in itertools.product([False, True], repeat=D)][:-1]


def slowly(model):
    """The same net with the derived stepper of AnyOrderNet instead of its own."""

    class Slow(type(model)):
        start, predict, observe = AnyOrderNet.start, AnyOrderNet.predict, AnyOrderNet.observe

    model.__class__ = Slow
    return model


@every_net
@pytest.mark.parametrize(("n_params", "n_features"), [(1, 1), (3, 2)])
def test_incremental_first_layer_equals_running_the_whole_net(name, n_params, n_features):
    D = 7
    kw = {"n_params": n_params, "n_features": n_features}
    features = torch.randn(5, D, n_features, dtype=torch.float64, generator=generator(1))
    for ordering in (
        Ordering.random(D, generator=generator(2)),
        Ordering.random(D, k=5, generator=generator(3)),
    ):
        quick = stepwise(net(name, D, **kw), features, ordering)
        slow = stepwise(slowly(net(name, D, **kw)), features, ordering)
        torch.testing.assert_close(quick, slow, rtol=0, atol=1e-10)


@every_net
def test_conditionals_do_not_depend_on_unobserved_values(name):
    D = 6
    model = net(name, D)
    for observed in all_observed(D)[::5]:
        x = torch.randn(1, D, 1, dtype=torch.float64, generator=generator(4))
        J = torch.autograd.functional.jacobian(lambda f, o=observed: model.conditionals(f, o[None])[0], x)
        assert not (J[:, :, 0, ~observed] != 0).any()
        other = x.clone()
        other[0, ~observed] = torch.nan  # whatever stands there has no influence
        assert torch.equal(model.conditionals(x, observed[None]), model.conditionals(other, observed[None]))


@every_net
def test_every_ordering_is_a_density_and_so_is_the_ensemble(name):
    D, x = 5, all_states(5)
    model = orderless(name, D)
    orderings = Ordering.random(D, k=6, generator=generator(5))
    for ordering in orderings:
        assert abs(model.under(ordering).log_prob(x).exp().sum().item() - 1) < 1e-10
    assert abs(model.ensemble(orderings).log_prob(x).exp().sum().item() - 1) < 1e-10


def probability_of_prefix(n, D, long):
    """That `random_observed` gives one certain set of n of D variables."""
    return (math.sqrt(1 - n / D) - math.sqrt(1 - (n + 1) / D) if long else 1 / D) / math.comb(D, n)


@pytest.mark.parametrize("long", [False, True])
@every_net
def test_objective_averaged_over_all_prefixes_is_the_mean_exact_nll(name, long):
    """Catches every way of getting the weight D / (D - n) wrong by one."""
    D = 4
    model, x = orderless(name, D), all_states(4)[[0, 3, 9, 14]]
    model.long_prefixes = long
    average = torch.zeros(len(x), dtype=torch.float64)
    for observed in all_observed(D):
        p = probability_of_prefix(int(observed.sum()), D, long)
        average += p * model.loss_given(x, observed.expand(len(x), D))
    exact = -score_orderings(model, x, all_orderings(D)).log_probs.mean(1)
    np.testing.assert_allclose(average.detach().numpy(), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("long", [False, True])
def test_objective_with_missing_cells_is_that_of_the_cells_that_exist(long):
    """Averaged over prefixes of existing cells = mean exact NLL of their marginal over their orderings."""
    D = 4
    model = orderless("mlp-1", D)
    model.long_prefixes = long
    x = torch.tensor([[1.0, math.nan, 0.0, 1.0]], dtype=torch.float64)
    exists = ~torch.isnan(x[0])
    average = 0.0
    for observed in all_observed(D):
        if not (observed & ~exists).any() and not torch.equal(observed, exists):
            p = probability_of_prefix(int(observed.sum()), 3, long)
            average += p * model.loss_given(x, observed[None]).item()
    present = exists.nonzero().flatten().tolist()
    filled = torch.where(exists, x, 0)
    exact = []
    for order in itertools.permutations(present):
        along = model.under(Ordering([*order, 1]))
        exact.append(-along.family.log_prob(filled, along.eta(filled))[0, list(present)].sum().item())
    assert average == pytest.approx(np.mean(exact), abs=1e-12)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("missing", [True, False])
def test_random_prefixes_have_the_right_law(stratified, missing, long):
    """Numbers observed uniform or long, sets of a size equally likely, missing cells never observed."""
    D, B, rounds = 4, 50, 600
    exists = torch.tensor([True, False, True, True] if missing else [True] * 4)
    cells = int(exists.sum())
    counts: dict[tuple, int] = {}
    g = generator(6)
    for _ in range(rounds):
        present = exists.expand(B, D) if missing else None
        observed = random_observed(B, D, g, exists=present, stratified=stratified, long=long)
        for row in observed.tolist():
            counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    total = B * rounds
    assert len(counts) == 2**cells - 1
    for row, seen in counts.items():
        assert not any(o and not e for o, e in zip(row, exists.tolist(), strict=True))
        p = probability_of_prefix(sum(row), cells, long)
        assert abs(seen - total * p) < 5 * math.sqrt(total * p)


def test_long_prefixes_lower_the_variance_of_the_gradient():
    """Where the terms of a sum are independent: those of long prefixes are few, and have large factors."""
    D, B, repeats = 30, 60, 300
    x = (torch.rand(B, D, generator=generator(8)) < 0.5).double()
    model = Orderless(MaskedMLP(D, hidden=(32,), generator=generator(9)), Bernoulli()).double()
    weights, moments = list(model.parameters()), {}
    for long in (True, False):
        model.long_prefixes, g = long, generator(10)
        losses = (model.loss(x, g).mean() for _ in range(repeats))
        slopes = [torch.cat([s.flatten() for s in torch.autograd.grad(loss, weights)]) for loss in losses]
        moments[long] = torch.stack(slopes).mean(0), torch.stack(slopes).var(0)
    variances = {long: variance.sum() for long, (_, variance) in moments.items()}
    assert variances[True] / variances[False] < 0.9
    gap = (moments[True][0] - moments[False][0]).square().sum()
    assert gap < 2 * (variances[True] + variances[False]) / repeats


def test_stratified_prefixes_lower_the_variance():
    """Of a minibatch's loss, for a trained model: the ratio is what stratification buys; the mean stays."""
    D, B, repeats = 12, 60, 400
    base = torch.rand(500, 1, generator=generator(7)) < 0.5
    x = base.double().repeat(1, D)  # twelve copies of one coin: what matters is whether any is observed
    model = Orderless(MaskedMLP(D, hidden=(32,), generator=generator(9)), Bernoulli()).double()
    fit(model, x, options=Gradient(learning_rate=0.01, epochs=60))
    spread = {}
    for stratified in (True, False):
        model.stratified = stratified
        g = generator(10)
        with torch.no_grad():
            means = torch.stack([model.loss(x[:B], g).mean() for _ in range(repeats)])
        spread[stratified] = (means.mean().item(), means.var().item())
    assert spread[True][1] / spread[False][1] < 0.7
    gap = abs(spread[True][0] - spread[False][0])
    assert gap < 4 * math.sqrt((spread[True][1] + spread[False][1]) / repeats)


def test_stochastic_estimate_agrees_with_exact_evaluation():
    D = 6
    model, x = orderless("mlp-3", D), all_states(6)
    exact = score_orderings(model, x, all_orderings(D)).mean()
    for seed in range(3):
        estimate = orderless_estimate(model, x, draws=200, seed=seed)
        assert not estimate.exact
        assert abs(estimate.mean - exact.mean) < 4 * estimate.mc_stderr
        assert estimate == orderless_estimate(model, x, draws=200, seed=seed)


def test_dropout_acts_in_training_only_and_follows_the_generator():
    D = 6
    model, x = orderless("mlp-3", D), all_states(6)
    observed = torch.zeros(len(x), D, dtype=torch.bool)
    plain = model.loss_given(x, observed)
    assert torch.equal(plain, model.loss_given(x, observed))
    noisy = model.loss_given(x, observed, generator(1))
    assert torch.equal(noisy, model.loss_given(x, observed, generator(1)))
    assert not torch.equal(noisy, plain)


# exact evaluation of many orderings


@every_net
def test_scores_of_orderings_in_any_chunks(name):
    D, x = 5, all_states(5)
    model = orderless(name, D)
    orderings = Ordering.random(D, k=7, generator=generator(9))
    naive = torch.stack([model.under(o).log_prob(x) for o in orderings], 1).detach().numpy()
    for chunk in (1, 3, 32, 50, 10_000):
        scores = score_orderings(model, x, orderings, rows_at_once=chunk)
        np.testing.assert_allclose(scores.log_probs, naive, rtol=0, atol=1e-10)
    assert scores.mean().mean == pytest.approx(naive.mean())
    curve = scores.curve()
    for k in range(1, 8):
        expected = np.log(np.exp(naive[:, :k]).mean(1))
        assert curve[k - 1].mean == pytest.approx(expected.mean(), abs=1e-12)
        assert scores.ensemble(k).mean == pytest.approx(expected.mean(), abs=1e-12)
        assert curve[k - 1].stderr == pytest.approx(expected.std(ddof=1) / math.sqrt(len(x)))
    assert all(e.mean >= scores.log_probs[:, :k].mean() - 1e-12 for k, e in enumerate(curve, start=1))


def test_evaluation_resumes_after_a_kill(tmp_path, monkeypatch):
    from pynade.models import Rows

    model, x = orderless("mlp-1", 5), all_states(5)
    orderings = Ordering.random(5, k=6, generator=generator(10))
    expected = score_orderings(model, x, orderings).log_probs
    original, calls = Rows.log_probs, []

    def dying(*arguments):
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(Rows, "log_probs", dying)
    with pytest.raises(KeyboardInterrupt):
        score_orderings(model, x, orderings, folder=tmp_path / "s", rows_at_once=32)
    calls.clear()
    monkeypatch.setattr(Rows, "log_probs", lambda *a: (calls.append(1), original(*a))[1])
    seen = []
    again = score_orderings(
        model, x, orderings, folder=tmp_path / "s", rows_at_once=32, progress=lambda d, t: seen.append((d, t))
    )
    assert len(calls) == 2  # four of the six chunks were taken from disk
    assert seen[-1] == (32 * 6, 32 * 6)
    np.testing.assert_array_equal(again.log_probs, expected)
    model.net.bias.data += 1.0  # another model does not reuse them
    score_orderings(model, x, orderings, folder=tmp_path / "s", rows_at_once=32)
    assert len(calls) == 8


# questions


@every_net
def test_conditional_times_marginal_is_the_joint(name):
    D, x = 5, all_states(5)
    model = orderless(name, D)
    given, target = [3, 0], [4, 1]
    both = torch.zeros(D, dtype=torch.bool)
    both[given + target] = True
    known = torch.zeros(D, dtype=torch.bool)
    known[given] = True
    conditional = queries.conditional_log_prob(model, x, target, given)
    # the same object: the natural order within given, then within target
    order = Ordering([0, 3, 1, 4, 2])
    along = model.under(order)
    steps = along.family.log_prob(x, along.eta(x))
    torch.testing.assert_close(conditional, steps[:, [1, 4]].sum(-1), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        queries.marginal_log_prob(model, x, known), steps[:, [0, 3]].sum(-1), rtol=0, atol=1e-12
    )
    joint = queries.marginal_log_prob(along, x, both)
    marginal = queries.marginal_log_prob(along, x, known)
    conditional = queries.conditional_log_prob(along, x, target, given)
    torch.testing.assert_close(joint, marginal + conditional, rtol=0, atol=1e-12)


@every_net
def test_marginals_equal_sums_over_the_joint(name):
    D, x = 5, all_states(5)
    model = orderless(name, D).under(Ordering([2, 4, 1, 0, 3]))
    known = torch.tensor([False, False, True, False, True])
    p = model.log_prob(x).exp()
    marginal = queries.marginal_log_prob(model, torch.where(known, x, math.nan), known)
    for row in range(0, len(x), 5):
        same = (x[:, known] == x[row, known]).all(-1)
        assert p[same].sum().log().item() == pytest.approx(marginal[row].item(), abs=1e-10)


@pytest.mark.parametrize("name", ["mlp-1", "mlp-3"])
def test_a_conditional_of_an_ensemble_weighs_orderings_by_p_given(name):
    """By enumeration; and plainly averaging the conditionals gives another, wrong number."""
    D, x = 4, all_states(4)
    given, target = [0, 1, 2], [3]
    first = list(itertools.permutations(given))
    ensemble = orderless(name, D).ensemble(Ordering([[*f, 3] for f in first]))
    p = ensemble.log_prob(x).exp()
    for row in range(len(x)):
        same = (x[:, given] == x[row, given]).all(-1)
        truth = (p[row] / p[same].sum()).log().item()
        got = queries.conditional_log_prob(ensemble, x[row : row + 1], target, given).item()
        assert got == pytest.approx(truth, abs=1e-10)
    target, given = [2, 3], [0, 1]
    mixed = orderless(name, D).ensemble(Ordering([[0, 1, 2, 3], [1, 0, 3, 2], [0, 1, 3, 2]]))
    p, wrong = mixed.log_prob(x).exp(), 0.0
    for row in range(len(x)):
        same = (x[:, given] == x[row, given]).all(-1)
        truth = (p[row] / p[same].sum()).item()
        got = queries.conditional_log_prob(mixed, x[row : row + 1], target, given).exp().item()
        assert got == pytest.approx(truth, abs=1e-10)
        members = [mixed.member(k) for k in range(3)]
        plain = [
            queries.conditional_log_prob(m, x[row : row + 1], target, given).exp().item() for m in members
        ]
        wrong = max(wrong, abs(np.mean(plain) - truth))
    assert wrong > 1e-3


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ["orderless", "ensemble"])
def test_samples_given_evidence_against_enumeration(kind, k):
    D, n = 4, 60_000
    model = orderless("mlp-1", D)
    observed = torch.tensor([False, True, True, False])
    evidence = torch.tensor([[math.nan, 1.0, 0.0, math.nan]], dtype=torch.float64)
    x = all_states(D)
    match = (x[:, 1] == 1) & (x[:, 2] == 0)
    if kind == "ensemble":
        asked = model.ensemble(Ordering([[1, 2, 0, 3], [2, 1, 3, 0], [2, 1, 0, 3]][:k]))
        joint = asked.log_prob(x).exp()
    else:  # the object: an ensemble of k drawn orderings "observed, rest"; draw the same ones
        asked = model
        parts = (~observed).long().expand(1, D)
        orders = queries._make_orders(model, parts, k, generator(11) if k > 1 else None)[:, 0]
        joint = model.ensemble(Ordering(orders)).log_prob(x).exp()
    truth = (joint[match] / joint[match].sum()).detach().numpy()
    g = generator(11)
    draws = queries.sample_given(
        asked, evidence, observed, n, orderings=k if kind == "orderless" else 1, generator=g
    )
    assert draws.shape == (n, 1, D)
    assert (draws[:, 0, 1] == 1).all()
    assert (draws[:, 0, 2] == 0).all()
    if (
        kind == "orderless" and k == 1
    ):  # with a generator the order of the rest is drawn too: ask for that object
        orders = queries._make_orders(model, (~observed).long().expand(1, D), 1, generator(11))[:, 0]
        joint = model.ensemble(Ordering(orders)).log_prob(x).exp()
        truth = (joint[match] / joint[match].sum()).detach().numpy()
    seen = np.array([((draws[:, 0] == s).all(-1)).float().mean().item() for s in x[match]])
    assert np.abs(seen - truth).max() < 4.5 * math.sqrt(0.25 / n)


def test_rows_with_their_own_evidence_are_completed_together():
    model = orderless("mlp-3", 5)
    x = torch.tensor(
        [[1.0, math.nan, 0, 0, math.nan], [math.nan] * 5, [0.0, 1, 0, 1, 1]], dtype=torch.float64
    )
    draws = queries.impute(model, x, n=7, orderings=2, generator=generator(12))
    known = ~torch.isnan(x)
    assert draws.shape == (7, 3, 5)
    assert torch.equal(draws[:, known], x[known].expand(7, -1))
    assert not torch.isnan(draws).any()


def test_single_imputation_takes_the_likelier_value():
    D = 5
    model = orderless("mlp-1", D)
    x = torch.tensor([[1.0, math.nan, 0, math.nan, 1]], dtype=torch.float64)
    filled = queries.impute(model, x)
    for i in (1, 3):
        p = queries.conditional(model, i, {0: 1, 2: 0, 4: 1}).mean()
        assert filled[0, i].item() == float(p > 0.5)
    with pytest.raises(ValueError, match="only an orderless model"):
        queries.impute(model.under(Ordering.natural(D)), x, orderings=Ordering.random(D, k=2))


@every_net
def test_conditional_distribution_object(name):
    model, given = orderless(name, 5), {3: 1.0, 0: 0.0}
    law = queries.conditional(model, 2, given)
    rows = torch.zeros(2, 5, dtype=torch.float64)
    rows[:, 3], rows[1, 2] = 1, 1
    expected = queries.conditional_log_prob(model, rows, [2], [0, 3]).exp()
    assert [law.pmf(0), law.pmf(1)] == pytest.approx(expected.tolist(), abs=1e-12)
    assert law.mean() == pytest.approx(expected[1].item())
    assert law.cdf(0) == pytest.approx(expected[0].item())
    assert law.cdf(1) == 1
    assert law.quantile(law.cdf(0) * 0.99) == 0
    assert law.quantile(min(1.0, law.cdf(0) * 1.01 + 1e-6)) == 1
    assert law.pdf(1) == law.pmf(1)
    assert law.sample(2000, generator(1)).mean().item() == pytest.approx(law.mean(), abs=0.05)
    eta = model.conditionals(rows[:1], torch.tensor([[True, False, False, True, False]]))
    assert law.mean() == pytest.approx(torch.sigmoid(eta[0, 2, 0]).item(), abs=1e-12)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            lambda m, x: queries.conditional_log_prob(m, x, [1], [1, 2]),
            "variable 1 is both asked for and given",
        ),
        (lambda m, x: queries.conditional_log_prob(m, x, [], [1]), "no target"),
        (lambda m, x: queries.conditional_log_prob(m, x, [7], [1]), "target variable 7 does not exist"),
        (lambda m, x: queries.conditional_log_prob(m, x, [2, 2], [1]), "named twice"),
        (lambda m, x: queries.conditional_log_prob(m, x + 0.5, [2], [1]), "exactly 0 or 1"),
        (
            lambda m, x: queries.conditional_log_prob(m, x * math.nan, [2], [1]),
            "given or asked for, but missing",
        ),
        (lambda m, x: queries.conditional_log_prob(m, x[:, :3], [2], [1]), "4 columns"),
        (lambda m, x: queries.conditional_log_prob(m, x, [2], [1], orderings=0), "at least 1"),
        (lambda m, x: queries.conditional_log_prob(m, x, [2], [1], orderings=2), "give a generator"),
        (
            lambda m, x: queries.conditional_log_prob(m.under(Ordering([3, 2, 1, 0])), x, [2], [0]),
            "not tractable",
        ),
        (lambda m, x: queries.sample_given(m, x, x.bool(), 0), "at least 1"),
        (lambda m, x: queries.conditional(m, 1, {1: 0}), "both asked for and given"),
        (lambda m, x: queries.conditional(m, 1, {0: 3}), "exactly 0 or 1"),
        (lambda m, x: queries.conditional(m, 9, {0: 1}), "does not exist"),
        (lambda m, x: queries.conditional(m, 1, {0: 1}).quantile(2), "between 0 and 1"),
        (lambda m, x: m.under(Ordering([0, 1, 1, 2])), "permutation"),
        (lambda m, x: m.check(torch.tensor([[0.0, 1, 0, 1], [math.nan] * 4])), "row 1 has no value at all"),
        (lambda m, x: score_orderings(m, x), r"give a \(K, D\) batch"),
        (lambda m, x: orderless_estimate(m, x, draws=1), "at least 2 draws"),
    ],
)
def test_questions_that_make_no_sense_get_one_sentence(ask, words):
    with pytest.raises(ValueError, match=words):
        ask(orderless("mlp-1", 4), all_states(4))
    with pytest.raises(TypeError, match="observed is bool"):
        queries.marginal_log_prob(orderless("mlp-1", 4), all_states(4), all_states(4))
