"""Figures of fitted models: the numbers behind them, every kind of column, every estimator."""

import re
import warnings

import numpy as np
import pandas as pd
import polars
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib import pyplot

import pynade
from pynade import plots
from pynade.plots.cells import calibration_limits, cell_cdfs
from pynade.plots.drawing import association, shown_tables
from tests.estimators.cases import ESTIMATORS, rows, states
from tests.estimators.mixed import KINDS, table, tabular, with_gaps

REAL = (
    "rnade",
    "gaussian",
    "gaussianmixture",
    "mfa",
)  # whose conditionals belong to one density


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def mixed():
    return tabular(epochs=20).fit(with_gaps(table(300)))


@pytest.fixture(scope="module")
def fitted():
    """Small fitted estimators, made when first asked for."""
    made = {}

    def get(name):
        make, kind = ESTIMATORS[name]
        if name not in made:
            with warnings.catch_warnings(action="ignore"):
                made[name] = make().fit(rows(kind))
        return made[name], rows(kind, 60, seed=5)

    return get


@pytest.mark.parametrize("name", ["nade", "made", "fvsbn", "chowliu", "bernoullimixture", "rbm", *REAL])
def test_a_right_model_leaves_the_band_as_seldom_as_it_says(fitted, name):
    model, _ = fitted(name)
    outside = 0
    for seed in range(40):
        _, distances, limits = calibration_limits(
            plots.pit(model, model.sample(300, random_state=seed), seed)
        )
        outside += (distances > limits).any()
    assert outside <= 8  # of 40 with probability 0.05: more in about one of 8,000 tests


@pytest.mark.parametrize("name", ["nade", "made", "fvsbn"])
def test_steps_of_the_cdf_multiply_to_the_probability_of_a_row(fitted, name):
    model, _ = fitted(name)
    below, up_to = cell_cdfs(model, states(5))
    np.testing.assert_allclose((up_to - below).prod(1), np.exp(model.score_samples(states(5))), rtol=1e-9)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_has_pit_values(fitted, name):
    model, X = fitted(name)
    values = plots.pit(model, X)
    assert values.shape == X.shape
    assert ((values >= 0) & (values <= 1)).all()


def test_a_wrong_model_is_seen():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    model = pynade.Gaussian().fit(X)
    held = rng.normal(size=(500, 3)) * [1, 1.5, 1] + [0, 0, 0.5]  # the second too certain, the third shifted
    _, distances, limits = calibration_limits(plots.pit(model, held))
    assert (distances > limits).tolist() == [False, True, True]
    ax = plots.calibration(model, pd.DataFrame(held, columns=["a", "b", "c"]).to_numpy())
    assert ax.get_title() == "Calibration on 500 rows: 1 of 3 columns inside the band"
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    left, right = (np.interp(p, ax.lines[2].get_xdata(), lines["x2"]) for p in (0.15, 0.85))
    assert left > limits[1] > -limits[1] > right  # too certain
    assert lines["x3"].min() < -limits[2]  # values too small: fewer cells below than expected
    assert {"x1", "x2", "x3"} <= {text.get_text() for text in ax.get_legend().get_texts()}


def test_pit_follows_the_cdf_and_randomises_discrete_cells(mixed):
    X = table(300).head(40)
    values = plots.pit(mixed, X, random_state=0)
    again = plots.pit(mixed, X, random_state=1)
    for i, name in enumerate(mixed.schema_.names):
        given = {other: X[other][3] for other in mixed.schema_.names if other != name}
        answer = mixed.conditional(name, given)
        if mixed.schema_.columns[i].kind == "real":
            assert values[3, i] == again[3, i] == pytest.approx(answer.cdf(X[name][3]), abs=1e-5)
        elif name in ("children", "grade", "day"):
            high, p = answer.inner.cdf(mixed.schema_.encode(X)[0][3, i]), answer.pmf(X[name][3])
            for each in (values, again):
                assert high - p - 1e-4 <= each[3, i] <= high + 1e-4
    assert np.isnan(plots.pit(mixed, with_gaps(X))).sum() == with_gaps(X).isna().to_numpy().sum()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True),
    kind=st.sampled_from(["pandas", "polars", "numbers"]),
    gaps=st.booleans(),
)
def test_tables_of_every_kind(kinds, kind, gaps):
    X = table(60)[kinds]
    X = with_gaps(X) if gaps else X
    if kind == "polars":
        X = polars.from_pandas(X.convert_dtypes() if gaps else X)
    elif kind == "numbers":
        X = np.asarray(table(60)[["height", "children", "price"]], dtype=float)
    try:
        model = tabular().fit(X)
    except ValueError:  # a column of which nothing is left
        return
    D = len(model.schema_)
    assert plots.pairs(model, X, n=50).shape == (D, D)
    assert len(plots.marginals(model, X, n=50)) == D
    assert plots.dependence(model, X, n=50).images[0].get_array().shape == (D, D)
    assert len(plots.calibration(model, X).lines) == D + 1
    ax = plots.surprise(model, X, rows=5)
    assert [len(ax.get_yticks()), len(ax.get_xticks())] == [5, D]
    assert plots.training(model).lines
    for name in model.schema_.names:
        assert model.conditional(name).plot().get_title() == name
    if D > 1:
        assert model.conditional(list(model.schema_.names)[:2]).plot().collections
    for number in pyplot.get_fignums():
        pyplot.figure(number).canvas.draw()
    pyplot.close("all")


@pytest.mark.parametrize("name", ["nade", "rnade", "deeprnade", "chowliu", "gaussianmixture", "imagenade"])
def test_estimators_of_arrays(fitted, name):
    model, X = fitted(name)
    D = X.shape[1]
    assert plots.pairs(model, X, n=40).shape == (D, D)
    assert plots.surprise(model, X, rows=4).texts
    assert len(plots.calibration(model, X).lines) == D + 1
    assert plots.dependence(model, X, n=40).get_xticklabels()[0].get_text() == "x1"
    given = {} if name in ("nade", "rnade") else {0: X[0, 0]}
    first = int(model.model_.order[0]) if name in ("nade", "rnade") else 1
    assert plots.conditional(model.conditional(first, given)).get_ylabel() in ("density", "probability")


def test_a_frequent_value_is_drawn_with_its_probability():
    """Also where a range has many values: its height is the probability of all of them."""
    rng = np.random.default_rng(0)
    gains = np.where(rng.random(400) < 0.8, 0, rng.integers(1, 9999, 400))
    frame = pd.DataFrame({"gain": gains, "x": rng.normal(size=400)})
    answer = tabular().fit(frame).conditional("gain")
    ax = answer.plot()
    (steps,) = ax.patches[:1]
    heights, edges, _ = steps.get_data()
    assert len(heights) <= 80
    assert ax.get_ylabel() == f"probability of {round(edges[1] - edges[0])} values"
    assert heights[0] >= answer.pmf(0) > 0.3
    assert edges[0] < 0 < edges[1]
    assert heights.sum() == pytest.approx(1, abs=0.02)


def test_pairs_show_real_rows_below_and_samples_above():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=200), "b": rng.choice(["x", "y"], 200)})
    model = tabular().fit(X)
    axes = plots.pairs(model, X, ["b", "a"], n=30)
    below, above = axes[1, 0].collections[0].get_offsets(), axes[0, 1].collections[0].get_offsets()
    np.testing.assert_allclose(below[:, 1], X["a"])
    np.testing.assert_allclose(np.round(below[:, 0]), X["b"] == "y")
    assert (len(below), len(above)) == (200, 30)
    assert axes[1, 1].get_xlabel() == "a"
    shares = [patch.get_height() for patch in axes[0, 0].patches[:2]]
    assert shares == pytest.approx([(X["b"] == level).mean() for level in "xy"])
    with pytest.raises(ValueError, match="there is no column 'c' among"):
        plots.pairs(model, X, ["c"])


def test_association_is_one_of_a_function_and_zero_of_independent_columns():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3000))
    found = association(shown_tables([np.c_[x, 2 * x, y, x > 0, np.ones(3000)]])[0])
    assert found[0, 1] == pytest.approx(1)
    assert found[0, 3] > 0.8
    assert found[0, 2] < 0.05
    assert found[4, :4].max() == 0


def test_the_odd_cell_is_first_and_its_value_is_written(mixed):
    X = table(300).head(50)
    X.loc[17, "height"] = 5000.0
    ax = plots.surprise(mixed, X, rows=3, columns=["flag", "height"], index=list(range(100, 150)))
    assert ax.get_yticklabels()[0].get_text() == "row 117"
    assert [text.get_text() for text in ax.texts[:2]] == [str(X["flag"][17]), "5000"]
    shade = ax.collections[0].get_array()
    assert shade[0, 1] < 0.05
    assert (shade[0, 1] <= shade[1:]).all()


def test_training_takes_a_run_a_history_an_estimator_and_lines(tmp_path):
    model = pynade.RNADE(hidden=3, epochs=3, random_state=0).fit(rows("real"), folder=tmp_path)
    curves = [plots.training(s).lines[0].get_ydata().tolist() for s in (model, model.history_, tmp_path)]
    assert curves[0] == curves[1] == [line["train"] for line in model.history_.epochs]
    np.testing.assert_allclose(curves[2], curves[0])
    axis = plots.training([{"epoch": 1, "train": None, "valid": None, "best": True}])
    shown = [tick for tick in axis.get_xticks() if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
    assert shown == [1]
    assert axis.get_ylabel() == "log-likelihood (nats per row)"
    with pytest.raises(ValueError, match=re.escape("nowhere is no run folder")):
        plots.training("nowhere")


def test_given_axes_are_used_and_returned(mixed):
    X, (_, axis) = table(300).head(30), pyplot.subplots()
    for draw in (plots.calibration, plots.surprise, plots.dependence):
        assert draw(mixed, X, ax=axis) is axis
    assert plots.training(mixed, axis) is axis
    assert mixed.conditional("city").plot(axis) is axis
    assert len(pyplot.get_fignums()) == 1
    assert mixed.conditional(["city", "height", "day"]).plot().shape == (3, 3)
