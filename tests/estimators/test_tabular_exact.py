"""TabularNADE is a distribution: masses and densities add up to one, and answers follow from the joint."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch

from pynade.ordering import Ordering
from pynade.tables.column import FAR, FAR_STEPS
from tests.contracts.cases import shaken
from tests.estimators.mixed import KINDS, table, tabular, with_gaps


@pytest.fixture(scope="module")
def fitted():
    """Models of some columns of the table, with weights so large that every dependence shows."""
    models = {}

    def get(*names):
        if names not in models:
            model = tabular().fit(table()[list(names)])
            shaken(model.model_.net, seed=3, scale=0.3)
            models[names] = model
        return models[names]

    return get


def grid(model, name):
    """Values of a column and their weights: 1 for a mass, of a quadrature for a density."""
    i = model.schema_.index(name)
    column, family = model.schema_.columns[i], model.model_.family
    if column.n_levels:
        known = [*column.levels, *column.known_rare]
        return known + (["never seen"] if column.kind == "category" else []), np.ones(len(known) + 1)
    if column.resolution:
        reach = 400 if column.low is None or column.high is None else 0
        low = -reach if column.low is None else column.low
        high = reach if column.high is None else column.high
        values = column.decode(np.arange(low, high + 1))
        return (values.astype("datetime64[us]") if column.kind == "date" else values), np.ones(len(values))
    knots = family.knots[i].numpy()  # the density is smooth between them
    more = np.array(
        [1, 2, 4, 8, 16, 23, *([] if column.high else [32, 64, 128])]
    )  # logits round to 0 and 1 far out
    inside = np.linspace(knots[0], knots[-1], 50)  # a straight line has three knots
    edges = np.unique(np.concatenate([knots, inside, knots[0] - more, knots[-1] + more]))
    node, weight = np.polynomial.legendre.leggauss(16)
    half = np.diff(edges)[:, None] / 2
    codes = (edges[:-1, None] + half * (1 + node)).ravel()
    x = column.decode(codes)
    slope = 1.0 if column.low is None else x * (1 - x) if column.high else x
    return x, (half * weight).ravel() * column.scale * slope


def all_cells(model, names):
    """A table of all combinations of the columns' values, and the weights of its rows."""
    grids = [grid(model, name) for name in names]
    rows = list(itertools.product(*(values for values, _ in grids)))
    weights = np.array([math.prod(w) for w in itertools.product(*(w[: len(v)] for v, w in grids))])
    X = pd.DataFrame({name: pd.Series([row[k] for row in rows]) for k, name in enumerate(names)})
    if "grade" in names:
        X["grade"] = X["grade"].astype(object)
    return X, weights


def inside(model, name):
    """Probability that a value is in range; an unseen level is a row of `all_cells`."""
    column = model.schema_.columns[model.schema_.index(name)]
    return 1.0 if column.kind == "category" else 1 - 1 / (column.n + 1)


def test_the_table_has_every_kind(fitted):
    found = {name: fitted(name).schema_.kinds[0] for name in KINDS}
    assert found == KINDS
    assert fitted("city").schema_.columns[0].rare
    assert fitted("price").schema_.columns[0].low is not None
    assert fitted("change").schema_.columns[0].low is None
    ends = [fitted(name).schema_.columns[0] for name in ("height", "income", "share")]
    assert [(column.low, column.high) for column in ends] == [(None, None), (0, None), (0, 1)]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_column_sums_or_integrates_to_one(name, fitted):
    model = fitted(name)
    X, weights = all_cells(model, [name])
    p = np.exp(model.score_samples(X))
    assert (p * weights).sum() == pytest.approx(inside(model, name), abs=1e-7)
    density = model.score_samples(X, density=True)
    step = model.schema_.columns[0].resolution or 1.0
    np.testing.assert_allclose(density, np.log(p) - math.log(step), rtol=1e-9)


@pytest.mark.parametrize(
    "names",
    [
        ("city", "change"),
        ("children", "share"),
        ("income", "flag", "grade"),
        ("day", "height"),
        ("price", "city"),
    ],
)
def test_columns_together_sum_or_integrate_to_one(names, fitted):
    model = fitted(*names)
    X, weights = all_cells(model, names)
    total = (np.exp(model.score_samples(X)) * weights).sum()
    assert total == pytest.approx(math.prod(inside(model, name) for name in names), abs=1e-5)


@pytest.mark.parametrize(
    "name", [name for name, kind in KINDS.items() if kind not in ("binary", "category", "ordinal")]
)
def test_values_out_of_range_have_the_rest_of_the_probability(name, fitted):
    column = fitted(name).schema_.columns[0]
    if column.resolution:
        low, high = (-FAR_STEPS if column.low is None else column.low), column.high or FAR_STEPS
        d, m = np.arange(1.0, 2001), np.ones(2000)
        sides = [column.origin + column.resolution * codes for codes in (low - d, high + d)]
        unit = min(high - low + 1, 2.0**20)
        left = unit / (unit + d[-1])
    else:
        first, last = column._axis(np.array([-FAR, FAR]))
        first, last = (column.low if column.low is not None else first), (column.high or last)
        t, w = np.polynomial.legendre.leggauss(200)
        t, w = 10 * (t + 1), 10 * w
        d, m, left = column.unit * np.expm1(t), column.unit * np.exp(t) * w, math.exp(-20)
        sides = [first - d, last + d] if last < 1e300 else [first - d]
    for x in sides:
        codes, offsets = column.encode(x)
        assert np.isnan(codes).all()
        share = (np.exp(offsets) * m).sum() + left * 0.5 / (column.n + 1)
        assert share == pytest.approx(0.5 / (column.n + 1), rel=1e-4)


def test_a_value_out_of_range_leaves_the_distribution_of_the_rest_whole(fitted):
    model = fitted("children", "share")
    X, weights = all_cells(fitted("children", "share"), ["share"])
    X.insert(0, "children", -3)
    offset = model.schema_.columns[0].encode([-3.0])[1][0]
    total = (np.exp(model.score_samples(X)) * weights).sum()
    assert math.log(total / inside(model, "share")) == pytest.approx(offset, abs=1e-6)


def test_the_joint_is_the_product_of_conditionals_along_an_ordering(fitted):
    names = list(KINDS)
    model, X = fitted(*names), table().iloc[[0, 3, 40, 41]]
    for order in ([3, 1, 4, 0, 9, 2, 6, 5, 8, 7], list(range(9, -1, -1))):
        along = Ordering([order])
        scores = model.score_samples(X, orderings=along)
        for row, score in zip(X.to_dict("records"), scores, strict=True):
            given, total = {}, 0.0
            for i in order:
                total += model.conditional(i, given).log_prob(row[names[i]])
                given[names[i]] = row[names[i]]
            assert total == pytest.approx(score, abs=1e-9)
    few = X[["city", "share", "day"]].to_dict("records")[0]
    joint = model.conditional(["share", "day"], given={"city": few["city"]})
    parts = [
        model.conditional(a, {"city": few["city"]}).log_prob(few[a])
        + model.conditional(b, {"city": few["city"], a: few[a]}).log_prob(few[b])
        for a, b in (("share", "day"), ("day", "share"))
    ]
    assert min(parts) - 1e-9 <= joint.log_prob(few) <= max(parts) + 1e-9
    drawn = joint.sample(20, random_state=0)
    assert list(drawn.columns) == ["share", "day"]


def test_missing_cells_are_marginalised_under_an_ordering(fitted):
    """Σ over the levels and ∫ over the reals of a complete row = the row with gaps."""
    model = fitted("income", "flag", "grade")
    X, weights = all_cells(model, ["income", "flag", "grade"])
    here = (X["grade"] == "mid").to_numpy()
    order = Ordering([[2, 0, 1]])
    total = (np.exp(model.score_samples(X[here], orderings=order)) * weights[here]).sum()
    gap = pd.DataFrame({"income": [np.nan], "flag": [None], "grade": ["mid"]})
    expected = model.score_samples(gap, orderings=order)[0]
    assert math.log(total / inside(model, "income") / inside(model, "flag")) == pytest.approx(
        expected, abs=1e-6
    )


def test_a_row_scores_the_same_in_any_company(fitted):
    model, X = fitted(*KINDS), with_gaps(table(), 0.15)
    together = model.score_samples(X)
    np.testing.assert_allclose(model.score_samples(X.iloc[::-1])[::-1], together, rtol=1e-12, atol=1e-12)
    alone = [model.score_samples(X.iloc[[k]])[0] for k in range(0, 80, 9)]
    np.testing.assert_allclose(alone, together[::9], rtol=1e-12, atol=1e-12)
    first = model.surprise(X.iloc[:5])
    np.testing.assert_allclose(first, model.surprise(X).iloc[:5], rtol=0, atol=1e-4)  # float32


def test_an_empty_row_scores_zero_and_is_filled_from_the_marginal(fitted):
    model = fitted(*KINDS)
    empty = with_gaps(table().iloc[:2], share=1.1)
    assert model.score_samples(empty).tolist() == [0.0, 0.0]
    filled = model.impute(empty)
    assert not filled.isna().any().any()
    assert filled["city"][0] == model.conditional("city").mode()
    assert filled["height"][0] == pytest.approx(model.conditional("height").mean(), rel=1e-3)


def test_the_model_in_float32_finds_the_same(fitted):
    """What fills gaps is computed in float32: its parameters agree with those of scores."""
    model, X = fitted(*KINDS), table()
    codes, _ = model.schema_.encode(X)
    known = np.random.default_rng(0).random(codes.shape) < 0.5
    (_, eta), *_ = model._compute_etas(codes, known)
    with torch.no_grad():
        exact = model.model_.double().conditionals(torch.as_tensor(codes), torch.as_tensor(known))
    np.testing.assert_allclose(eta.double(), exact, rtol=0, atol=1e-3)
