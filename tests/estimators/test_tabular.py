"""TabularNADE: tables as users have them, answers about columns, and scikit-learn's tools."""

import copy
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pynade
from tests.estimators.mixed import KINDS, table, tabular, with_gaps

NUMBERS = [name for name, kind in KINDS.items() if kind not in ("binary", "category", "ordinal", "date")]


@pytest.fixture(scope="module")
def model():
    """Fitted to a column of every kind; a test must not change it."""
    return tabular(epochs=20).fit(table(300))


@pytest.fixture(scope="module")
def X():
    return table(40, seed=1)


FRAMES = {
    "pandas": lambda X: X,
    "polars": pl.from_pandas,
    "lazy": lambda X: pl.from_pandas(X).lazy(),
    "pyarrow": lambda X: pa.Table.from_pandas(X, preserve_index=False),
    "array": lambda X: X.to_numpy(dtype=object),
    "list": lambda X: X.to_numpy(dtype=object).tolist(),
    "dictionary": lambda X: {name: X[name].tolist() for name in X},
}
frames = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


# --------------------------------------------------------------------------------- tables as users have them


@frames
def test_every_kind_of_table_scores_the_same(frame, model, X):
    for table_ in (X, with_gaps(X)):
        np.testing.assert_array_equal(model.score_samples(frame(table_)), model.score_samples(table_))


@frames
def test_what_goes_in_comes_out(frame, X):
    given = frame(with_gaps(X))
    model = tabular().fit(given)
    for out in (model.impute(given), model.sample(4, random_state=0), model.surprise(given)):
        kind = {pl.LazyFrame: pl.DataFrame, dict: pl.DataFrame, list: np.ndarray}.get(
            type(given), type(given)
        )
        assert type(out) is kind
    listed = model.surprise(given, top=3)
    names = list(getattr(listed, "column_names", listed.columns))
    assert names[:6] == ["row", "column", "value", "log_odds", "p_value", "surprise"]
    assert names[6:] == ["expected", "low", "high"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: X.drop(columns="flag"), "trained on other columns: there is no column 'flag'$"),
        (
            lambda X: X[["flag"]],
            "there are no columns 'city', 'grade', 'children', 'price', 'change' and 4 more$",
        ),
        (lambda X: pd.concat([X, X["flag"]], axis=1), "column name 'flag' occurs more than once"),
        (lambda X: X.assign(height="tall"), "column 'height' is given as 'tall', which is no number"),
        (
            lambda X: X.assign(day="tomorrow"),
            "column 'day' is given as 'tomorrow', which is no date such as 2024",
        ),
        (lambda X: X.assign(day=3.5), "column 'day' held dates in training, but holds numbers"),
        (lambda X: X.assign(height=X["day"]), "column 'height' held numbers in training, but holds dates"),
        (lambda X: X.assign(city=X["day"]), "column 'city' held levels in training, but holds dates"),
        (
            lambda X: X.assign(height=np.inf),
            "column 'height' holds an infinite value; expected finite numbers",
        ),
        (lambda X: X["height"], r"expected a table \(2D\), got an array of shape"),
        (lambda X: X.to_numpy()[:, :4], "X has 4 features, but TabularNADE is expecting 10"),
        (lambda X: np.zeros((0, 10)), r"Found array with 0 sample\(s\)"),
    ],
)
def test_wrong_tables_are_answered_with_a_sentence(change, words, model, X):
    for ask in (model.score_samples, model.impute, model.surprise):
        with pytest.raises(ValueError, match=words) as caught:
            ask(change(X))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("frame", [FRAMES[name] for name in ("polars", "pyarrow")], ids=["polars", "pyarrow"])
def test_wrong_frames_too(frame, model, X):
    for change, words in (
        (X.drop(columns="flag"), "there is no column 'flag'$"),
        (X.assign(height="tall"), "column 'height' is given as 'tall', which is no number"),
        (X.assign(day=3.5), "column 'day' held dates in training, but holds numbers"),
        (X.assign(city=X["day"]), "column 'city' held levels in training, but holds dates"),
    ):
        with pytest.raises(ValueError, match=words):
            model.score_samples(frame(change))
    np.testing.assert_array_equal(model.score_samples(frame(X.assign(more=1))), model.score_samples(X))
    assert np.isfinite(model.score_samples(frame(X.assign(city="Nowhere")))).all()


def test_other_columns_are_passed_through_and_frames_are_not_modified(model, X):
    more = with_gaps(X.assign(note="n", number=1.5))[["note", *list(X)[::-1], "number"]]
    before = more.copy(deep=True)
    assert (model.score_samples(more) == model.score_samples(more[list(X)])).all()
    filled = model.impute(more)
    assert list(filled.columns) == list(more.columns)
    pd.testing.assert_frame_equal(filled[["note", "number"]], more[["note", "number"]])
    for ask in (model.surprise, lambda X: model.predict(X, "city"), lambda X: model.impute(X, 2), model.gain):
        ask(more)
    pd.testing.assert_frame_equal(more, before)
    assert (model.surprise(more).index == more.index).all()


def test_columns_of_any_name(X):
    numbered = with_gaps(X).set_axis([3, 1, *X.columns[2:-2], 7, 2.5], axis=1)
    model = tabular().fit(numbered)
    for made in (model.impute(numbered), model.sample(4, random_state=0), model.surprise(numbered)):
        assert list(made.columns) == list(numbered.columns)
    methods = X.rename(columns={"flag": "collect", "city": "column_names"})
    assert np.isfinite(tabular().fit(methods).score_samples(methods)).all()
    levels = X.set_axis(pd.MultiIndex.from_product([["a"], X.columns]), axis=1)
    with pytest.raises(
        ValueError, match=r"^column names have 2 levels \(a MultiIndex\), expected one: [^.]*"
    ):
        tabular().fit(levels)


def test_numbers_and_dates_written_as_text_are_understood(model, X):
    text = X.assign(height=X["height"].map(repr), day=X["day"].astype(str), flag=X["flag"].astype(str))
    np.testing.assert_array_equal(model.score_samples(text), model.score_samples(X))


def test_values_never_seen_have_a_finite_score(model, X):
    row = X.iloc[:1]
    n = 300
    for name, value in {
        "city": "Nowhere", "children": -3, "price": -1.0, "share": 1.5, "income": 0.0, "height": 1.7e308,
        "change": -1e300, "day": pd.Timestamp("1900-01-01"),
    }.items():  # fmt: skip
        odd = row.assign(**{name: [value]})
        score, without = model.score_samples(odd)[0], model.score_samples(row.assign(**{name: None}))[0]
        column = model.schema_.columns[model.schema_.index(name)]
        assert np.isfinite(score)
        assert score - without == pytest.approx(
            column.encode([value if name == "city" else column.parse(value)])[1][0], abs=1e-9
        )
        assert score - without <= np.log(1 / (n + 1)) + 1e-9 or column.resolution == 0
        assert np.isfinite(model.surprise(odd)[name][0])
        if name != "city":
            assert np.isfinite(model.conditional(name).log_prob(value))
    everything = row.assign(children=10**18, price=1.7e308, change=1.7e308, income=1.7e308, share=-1.7e308)
    assert np.isfinite(model.score_samples(everything)).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows(rows, X):
    for frame in FRAMES.values():
        if frame in (FRAMES["array"], FRAMES["list"]) and rows == 0:
            continue
        with pytest.raises(ValueError, match=f"a table needs at least 2 rows to fit a model, but has {rows}"):
            tabular().fit(frame(X.iloc[:rows]))


def test_two_rows_and_no_rows(model, X):
    two = tabular().fit(X.iloc[:2])
    assert np.isfinite(two.score_samples(X)).all()
    assert len(two.sample(5, random_state=0)) == 5
    none = X.iloc[:0]
    assert model.score_samples(none).shape == (0,)
    assert model.impute(none).shape == none.shape
    assert model.predict(none, "city").shape == (0,)
    assert model.predict_proba(none, "city").shape == (0, len(model.levels("city")))
    assert len(model.surprise(none)) == len(model.surprise(none, top=3)) == 0


def test_columns_that_are_left_out_or_constant(X):
    more = X[["height"]].assign(empty=np.nan, same=7, user_id=np.arange(40) * 13 % 997, note=list("ab" * 20))
    with pytest.warns(UserWarning, match="left out") as notices:
        model = tabular().fit(more)
    assert [str(n.message) for n in notices if "left out" in str(n.message)] == [
        f"column {what} (a kind in schema keeps it, its name in drop silences this)"
        for what in (
            "'empty' is left out: every cell is missing",
            "'user_id' is left out: an identifier by its name, and hardly a value occurs twice",
        )
    ]
    assert model.schema_.names == ("height", "same", "note")
    assert model.schema_.kinds[1] == "constant"
    assert (model.sample(5, random_state=0)["same"] == 7).all()
    filled = model.impute(more.assign(same=None))
    assert (filled["same"] == 7).all()
    assert filled["empty"].isna().all()
    with pytest.raises(ValueError, match="column 'empty' is not part of the model: every cell is missing"):
        model.conditional("empty")
    with pytest.raises(ValueError, match=r"no column that can be modelled \('e': every cell is missing\)"):
        tabular().fit(pd.DataFrame({"e": [None] * 5}))
    with pytest.raises(ValueError, match="no column that can be modelled"):
        tabular().fit(X[[]])


def test_rows_without_a_value_do_not_matter_in_training(X):
    empty = pd.DataFrame({name: [None] * 30 for name in ("height", "price")}, dtype=float)
    both = tabular(validation_fraction=0).fit(pd.concat([X[["height", "price"]], empty], ignore_index=True))
    assert np.isfinite(both.score_samples(X)).all()
    assert both.score_samples(empty).tolist() == [0.0] * 30


def test_ten_thousand_levels():
    rng = np.random.default_rng(0)
    key = np.concatenate([np.arange(10_000), rng.integers(0, 10_000, 11_000)])
    X = pd.DataFrame({"k": [f"l{k}" for k in key], "y": rng.normal(size=len(key))})
    model = tabular(epochs=1, batch_size=512).fit(X)
    column = model.schema_.columns[0]
    assert (len(column.levels), len(column.rare)) == (100, 9900)
    known = [*column.levels, *column.known_rare]
    p = np.exp(model.score_samples(pd.DataFrame({"k": known, "y": None})))
    assert p.sum() == pytest.approx(1 - 1 / (len(X) + 1), abs=1e-9)
    assert set(model.sample(50, random_state=0)["k"]) <= set(known)


def test_two_thousand_columns():
    X = pd.DataFrame(np.random.default_rng(0).integers(0, 3, (30, 2000)) * 1.0).add_prefix("c")
    model = tabular(n_orderings=1, epochs=1, validation_fraction=0).fit(X)
    gaps = X.iloc[:2].mask(np.random.default_rng(1).random((2, 2000)) < 0.2)
    assert np.isfinite(model.score_samples(X.iloc[:2])).all()
    assert not model.impute(gaps).isna().any().any()


# ----------------------------------------------------------------------------------- answers about a column


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("given", [{}, {"height": -25.0, "grade": "mid"}])
def test_answers_about_a_column_agree(name, given, model):
    given = {key: value for key, value in given.items() if key != name}
    found = model.conditional(name, given)
    column, n = found.column, 4000
    drawn = found.sample(n, random_state=0)
    n_cells = column.n + 1
    if column.n_levels:
        p = found.probabilities()
        assert sum(p.values()) == pytest.approx(1 - 1 / n_cells, abs=1e-9)
        assert found.mode() == max(p, key=p.get)
        for level, share in p.items():
            assert (drawn == level).mean() == pytest.approx(share, abs=0.04)
            assert found.pmf(level) == pytest.approx(share)
    if column.n_levels and column.kind != "ordinal":
        for ask in (found.median, lambda: found.cdf(column.levels[0]), found.interval):
            with pytest.raises(ValueError, match="without an order"):
                ask()
        return
    qs = [0.05, 0.25, 0.5, 0.75, 0.95]
    values = found.quantile(qs)
    assert isinstance(values, np.ndarray)
    assert [found.quantile(q) for q in qs] == list(values)
    assert found.median() == values[2]
    np.testing.assert_array_equal(found.interval(0.9), found.quantile([(1 - 0.9) / 2, (1 + 0.9) / 2]))
    cdf = found.cdf(values)
    assert (np.diff(cdf) >= 0).all()
    assert (cdf >= np.array(qs) - 1e-6).all()
    if column.kind == "ordinal":
        assert cdf[-1] <= 1 + 1e-12
        return
    for value, p in zip(values, cdf, strict=True):
        assert found.cdf(value) == pytest.approx(p)
        assert (drawn <= value).mean() == pytest.approx(p, abs=0.04)
    span = values[4] - values[0]
    if column.kind == "date":
        with pytest.raises(ValueError, match="has no mean"):
            found.mean()
    elif name != "income":  # heavy tails
        assert found.mean() == pytest.approx(drawn.mean(), abs=0.08 * span)
    mode = found.mode()
    assert (found.pmf(mode) >= found.pmf(values) - 1e-12).all()
    if column.resolution:
        step = column.resolution
        near = column.decode(np.arange(*column.encode([column.parse(v) for v in values[[0, 4]]])[0] + [0, 1]))
        shown = near.astype("datetime64[us]") if column.kind == "date" else near
        mass = found.pmf(shown)
        assert mass.sum() == pytest.approx((cdf[4] - cdf[0]) * (1 - 1 / n_cells) + mass[0], abs=1e-9)
        np.testing.assert_allclose(found.pdf(shown), mass / step)
    else:
        grid = np.linspace(values[0], values[4], 20_001)
        area = np.trapezoid(found.pdf(grid), grid)
        assert area == pytest.approx((cdf[4] - cdf[0]) * (1 - 1 / n_cells), abs=2e-3)
        assert found.pmf(mode) == found.pdf(mode)


def test_values_beyond_the_range_have_a_cdf_of_zero_or_one(model):
    assert model.conditional("children").cdf([-5, 10**9]).tolist() == [0, 1]
    assert model.conditional("share").cdf([-0.5, 1.5]).tolist() == [0, 1]
    assert model.conditional("day").cdf(["1800-01-01", "2200-01-01"]).tolist() == [0, 1]


@pytest.mark.parametrize("name", KINDS)
def test_predictions_are_those_of_conditionals(name, model, X):
    rows = with_gaps(X.iloc[:6], 0.3)
    rest = rows.drop(columns=name)
    known = [rest.loc[k].dropna().to_dict() for k in rest.index]
    found = [model.conditional(name, given) for given in known]
    guesses = model.predict(rows, name)
    np.testing.assert_array_equal(guesses, model.predict(rows.drop(columns=name), name))
    filled = model.impute(rows.assign(**{name: None}))[name]
    column = found[0].column
    if column.n_levels:
        assert guesses.tolist() == [one.mode() for one in found] == filled.tolist()
        p = model.predict_proba(rows, name)
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
        for k, level in enumerate(column.levels):
            expected = [one.pmf(level) / (1 - 1 / (column.n + 1)) for one in found]
            np.testing.assert_allclose(p[:, k], expected, atol=1e-5)
        return
    assert pd.Series(guesses).tolist() == pd.Series(filled.to_numpy().astype(guesses.dtype)).tolist()
    with pytest.raises(ValueError, match=f"column '{name}' is {column.kind}; it has no levels"):
        model.predict_proba(rows, name)
    if column.kind != "date":
        expected = np.array([one.mean() for one in found])
        np.testing.assert_allclose(guesses, expected, rtol=1e-3, atol=0.51 * column.resolution + 1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_surprise_is_the_negative_log_probability_given_the_rest(name, model, X):
    column = model.schema_.columns[model.schema_.index(name)]
    found = model.surprise(X.iloc[:4])[name]
    for row, value in zip(X.iloc[:4].to_dict("records"), found, strict=True):
        rest = {k: v for k, v in row.items() if k != name}
        log_p = model.conditional(name, rest).log_prob(row[name])
        if column.kind == "real":  # of the standardised value
            log_p -= column.encode([row[name]])[1][0]
        assert value == pytest.approx(-log_p, abs=2e-3)


def test_folds_judge_rows_by_models_of_the_other_rows():
    X = table(60)
    X.index = X.index[::-1]
    model = tabular(epochs=2).fit(X)
    found, top = model.surprise(X, folds=2), model.surprise(X, top=6, folds=2)
    assert found.index.equals(X.index)
    halves = np.array_split(np.random.default_rng(model.seed_).permutation(60), 2)
    for rows, others in (halves, halves[::-1]):
        rows, others = np.sort(rows), np.sort(others)
        by_hand = clone(model).fit(X.iloc[others]).surprise(X.iloc[rows])
        pd.testing.assert_frame_equal(found.iloc[rows], by_hand)
    for row, column, surprise in zip(top["row"], top["column"], top["surprise"], strict=True):
        assert surprise == pytest.approx(found[column].iloc[row], abs=1e-3)
    more = model.surprise(X.assign(further="x"), folds=2)  # which the models do not learn
    pd.testing.assert_frame_equal(more, found)
    with pytest.raises(ValueError, match="there is no column 'city'"):
        model.surprise(X.drop(columns="city"), folds=2)
    odds = model.surprise(X, measure="log_odds", folds=2).to_numpy().ravel()
    assert top["log_odds"].tolist() == pytest.approx(np.sort(odds[np.isfinite(odds)])[::-1][:6], abs=1e-3)


def test_an_odd_cell_is_found_with_what_was_expected(model):
    X = table(20, seed=5)
    X.loc[7, "height"] = 300.0
    top = model.surprise(X, top=2)
    first = top.iloc[0]
    assert (first["row"], first["column"], first["value"]) == (7, "height", "300")
    assert float(first["low"]) <= float(first["expected"]) <= float(first["high"]) < 50
    assert top["log_odds"].is_monotonic_decreasing
    everything = model.surprise(X, top=10**6)
    assert len(everything) == X.size
    for measure, listed in (
        ("p_value", -np.log(everything["p_value"])),
        ("log_odds", everything["log_odds"]),
        ("log_p", everything["surprise"]),
    ):
        cells = model.surprise(X, measure=measure)
        places = zip(everything["row"], everything["column"], strict=True)
        np.testing.assert_allclose(listed, [cells[c].iloc[r] for r, c in places], rtol=6e-3, atol=6e-3)


def test_log_odds_are_those_of_half_the_column_alone_and_half_a_broad_distribution(model, X):
    """A value likelier in its row than in the column has negative odds; odds of q against p, cell by cell."""
    rows = X.iloc[:30].reset_index(drop=True)
    odds, surprise = (model.surprise(rows, measure=m).to_numpy(float) for m in ("log_odds", "log_p"))
    codes, offsets = model.schema_.encode(rows)
    real = [c.resolution == 0 and not c.n_levels for c in model.schema_.columns]
    log_q = odds - surprise - np.where(real, 0, offsets)  # of the codes
    family = copy.deepcopy(model.model_.family).double()
    eta = torch.tensor(model.independent_, dtype=torch.float64).expand(len(rows), -1, -1)
    x = torch.as_tensor(codes)
    alone = family.log_prob(x, eta)
    broad = torch.stack([family.broad_log_prob(x[:, i], torch.tensor([i])) for i in range(x.shape[1])], 1)
    expected = torch.logaddexp(alone, broad) - math.log(2)
    np.testing.assert_allclose(log_q, expected.numpy(), atol=1e-4)
    assert (odds < 0).mean() > 0.5


def test_questions_that_make_no_sense_are_refused(model):
    for ask, words in (
        (lambda: model.conditional("z"), "there is no column 'z' among"),
        (
            lambda: model.surprise(table(9), measure="z"),
            "measure is one of log_p, p_value, log_odds",
        ),
        (lambda: model.surprise(table(9), folds=1), "folds must be at least 2 and at most .* [(]4[)], not 1"),
        (lambda: model.conditional(99), "there is no column 99"),
        (lambda: model.conditional("city", {"city": "Rome"}), "column 'city' is both asked for and given"),
        (lambda: model.conditional(["city"], {"city": "Rome"}), "column 'city' is both asked for and given"),
        (
            lambda: model.conditional("flag", {"city": "Nowhere"}),
            "column 'city' has no level 'Nowhere'; its levels",
        ),
        (lambda: model.conditional("flag", {"height": "tall"}), "column 'height' is given as 'tall'"),
        (lambda: model.conditional("flag", {"height": np.nan}), "'height' is given as missing; leave out"),
        (lambda: model.conditional("flag", [1.0]), "given is a mapping from columns to values"),
        (lambda: model.conditional("height").probabilities(), "column 'height' is real; it has no levels"),
        (lambda: model.conditional("city").mean(), "column 'city' is category; it has no mean"),
        (lambda: model.conditional("height").interval(90), "between 0 and 1, not 90"),
        (lambda: model.conditional("height").quantile(2), "between 0 and 1, not 2"),
        (lambda: model.conditional(["city", "flag"]).log_prob({"city": "Rome"}), "'flag' has none"),
        (lambda: model.impute(table(9), 0), "number of draws must be at least 1, not 0"),
    ):
        with pytest.raises(ValueError, match=words):
            ask()


def test_draws_agree_with_what_is_given(model):
    drawn = model.sample(50, random_state=0, given={"city": "Rome", "day": "2024-01-07", "price": 3.5})
    assert (drawn["city"] == "Rome").all()
    assert (drawn["day"] == pd.Timestamp("2024-01-07")).all()
    assert (drawn["price"] == 3.5).all()
    assert drawn["height"].nunique() == 50
    pd.testing.assert_frame_equal(model.sample(9, random_state=3), model.sample(9, random_state=3))


def test_disagreement_of_orderings(model, X):
    assert model.conditional("flag").disagreement() == 0
    assert 0 < model.conditional("flag", {"height": -25.0, "city": "Rome"}).disagreement(4) < 1
    apart = model.disagreement(with_gaps(X))
    assert (np.isnan(apart) == with_gaps(X).isna().any(axis=1).to_numpy()).all()
    assert model.disagreement_ > 0


# -------------------------------------------------------------------------------------- scikit-learn's tools


def test_copies(model, X, tmp_path):
    copied = clone(model)
    assert copied.get_params() == model.get_params()
    assert not hasattr(copied, "schema_")
    assert clone(model).set_params(n_components=4, schema={"price": "real"}).schema == {"price": "real"}
    model.save(tmp_path / "m.safetensors")
    for again in (pickle.loads(pickle.dumps(model)), pynade.load(tmp_path / "m.safetensors")):
        assert again.schema_ == model.schema_
        assert (again.score_samples(X) == model.score_samples(X)).all()
        pd.testing.assert_frame_equal(again.sample(9, random_state=0), model.sample(9, random_state=0))
        pd.testing.assert_frame_equal(again.surprise(X), model.surprise(X))
        assert again.conditional("height").mean() == model.conditional("height").mean()


def test_transform_fills_in_pipelines(X):
    numbers = with_gaps(table(80)[NUMBERS]).astype(float)
    y = numbers["height"].fillna(0)
    pipe = make_pipeline(tabular(), StandardScaler(), LinearRegression()).fit(numbers, y)
    assert np.isfinite(pipe.predict(numbers)).all()
    assert list(pipe[0].get_feature_names_out()) == NUMBERS
    imputer = tabular().fit(numbers)
    pd.testing.assert_frame_equal(imputer.transform(numbers), imputer.impute(numbers))
    out = tabular().set_output(transform="polars").fit(numbers).transform(numbers)
    assert isinstance(out, pl.DataFrame)
    assert out.columns == NUMBERS
    out = tabular().set_output(transform="pandas").fit(numbers.to_numpy()).transform(numbers.to_numpy())
    assert isinstance(out, pd.DataFrame)
    columns = ColumnTransformer(
        [("model", tabular(), ["height", "share"]), ("rest", SimpleImputer(), ["price"])]
    ).set_output(transform="pandas")
    out = columns.fit_transform(numbers)
    assert list(out.columns) == ["model__height", "model__share", "rest__price"]
    assert not out.isna().any().any()


def test_grid_search_compares_likelihoods():
    X = with_gaps(table(60)[["height", "city", "flag"]])
    search = GridSearchCV(tabular(epochs=1), {"n_components": [1, 2], "hidden": [(4,), (8,)]}, cv=2).fit(X)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_an_array_of_another_width_can_be_fitted_again():
    model, rng = tabular(epochs=1), np.random.default_rng(0)
    for width in (4, 3):
        rows = rng.normal(size=(40, width))
        assert model.fit(rows).score_samples(rows).shape == (40,)
    assert (model.n_features_in_, len(model.schema_)) == (3, 3)


def test_several_columns_may_be_asked_for_by_index(model):
    by_index, by_name = model.conditional([1, 0]), model.conditional(list(model.schema_.names[1::-1]))
    assert by_index.names == by_name.names
    pd.testing.assert_frame_equal(by_index.sample(3, random_state=0), by_name.sample(3, random_state=0))


def test_text_that_holds_numbers_comes_back_as_text():
    rng = np.random.default_rng(0)
    texts = pd.DataFrame({"code": rng.choice(["1", "2"], 60), "size": rng.integers(10, 99, 60).astype(str)})
    texts = texts.astype(object)
    model = pynade.TabularNADE(hidden=(8, 8), members=1, epochs=2, mixture=False).fit(texts)
    filled = model.impute(with_gaps(texts, 0.3))
    for made in (model.sample(20, random_state=0), filled):
        assert {type(cell) for name in texts for cell in made[name]} == {str}


def test_a_time_limit_is_planned_for_and_forgotten_when_it_is_taken_back():
    X, model = table(60), tabular(epochs=None, hidden=(8, 8))
    usual = model.fit(X).options()
    model._plan = 100.0, 5  # updates that can be had in time, and scores of the validation rows
    short = model.options()
    assert short.epochs * short.updates_per_epoch == 100
    assert short.epochs == 5
    assert model.fit(X).options() == usual
    tiny = tabular(epochs=9, hidden=(8, 8), time_limit=1e-6).fit(X)
    assert tiny.history_.stopped == "the time limit of 1e-06 s was reached"


def test_wider_tables_are_not_trained_for_more_work():
    columns = [SimpleNamespace(n_levels=levels) for levels in [0, 3] * 100]
    for n in (300, 1999, 4000, 50_000):
        model, updates = pynade.TabularNADE(), []
        model.n_rows_ = n
        for width in (2, 10, 30, 60, 100, 200):
            model.schema_ = SimpleNamespace(columns=columns[:width])
            updates.append(model._n_updates(n, model.options().batch_size))
        assert min(updates) >= 500
        assert max(updates) <= model._default("updates")
        assert updates[-3:] == sorted(updates[-3:], reverse=True)
    assert updates[-1] < max(updates)
