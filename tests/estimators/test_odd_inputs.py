"""Arrays and frames that are hard to take: the right answer, or one sentence about them."""

import decimal
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest

import pynade
from tests.estimators.cases import COMPLETE_ROWS, ESTIMATORS, gaps, make, real, rows
from tests.estimators.mixed import tabular

every = pytest.mark.parametrize("name", ESTIMATORS)
REAL = [name for name, (_, kind) in ESTIMATORS.items() if kind == "real" and name != "tabularnade"]
WITH_GAPS = [name for name in ESTIMATORS if name not in COMPLETE_ROWS]
pytestmark = pytest.mark.filterwarnings("ignore")


def one_sentence(error):
    return "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", WITH_GAPS)
def test_a_mask_means_missing(name, whole):
    X = gaps(rows(ESTIMATORS[name][1], 60))
    X = np.round(X * [1, 1e5, 1]) if whole and ESTIMATORS[name][1] == "real" else X
    hidden = np.where(np.isnan(X), 1e8, X)
    masked = np.ma.masked_array(hidden.astype(np.int64) if whole else hidden, np.isnan(X))
    model, same = make(name).fit(masked), make(name).fit(X)
    np.testing.assert_array_equal(model.score_samples(masked), same.score_samples(X))
    np.testing.assert_array_equal(model.impute(masked), same.impute(X))
    np.testing.assert_array_equal(model.sample(5, random_state=0), same.sample(5, random_state=0))


@pytest.mark.parametrize("name", COMPLETE_ROWS)
def test_a_mask_is_refused_where_rows_must_be_complete(name):
    X = rows(ESTIMATORS[name][1], 60)
    with pytest.raises(ValueError, match="row 3, column 1 is NaN"):
        make(name).fit(np.ma.masked_array(X, (np.arange(60)[:, None] == 3) & (np.arange(X.shape[1]) == 1)))
    np.testing.assert_array_equal(
        make(name).fit(np.ma.masked_array(X)).score_samples(X), make(name).fit(X).score_samples(X)
    )


def test_a_masked_stack_of_images_has_missing_pixels():
    X = gaps(rows("image", 60))
    masked = np.ma.masked_array(np.nan_to_num(X, nan=7), np.isnan(X)).reshape(60, 2, 2)
    model = make("convnade").fit(masked)
    np.testing.assert_array_equal(model.score_samples(masked), make("convnade").fit(X).score_samples(X))


@every
def test_complex_numbers_durations_and_records_are_refused(name):
    X = rows(ESTIMATORS[name][1], 20)
    for odd in (X + 1j, (X + 1j).tolist(), X.astype(int).astype("timedelta64[s]"), np.zeros(X.shape, "V4")):
        with pytest.raises(ValueError, match=r"Complex data not supported|durations?|bytes|V4") as error:
            make(name).fit(odd)
        assert one_sentence(error)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "tabularnade"])
def test_dates_are_no_numbers(name):
    X = rows(ESTIMATORS[name][1], 20).astype("datetime64[D]")
    for odd in (X, np.full_like(X, "NaT"), pd.DataFrame(X)):
        with pytest.raises(ValueError, match="column 0 holds dates such as"):
            make(name).fit(odd)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "tabularnade"])
@pytest.mark.parametrize("cell", [[1], {"a": 1}, 1j, 10**400, pd.Period("2024"), pd.Interval(0, 1)], ids=repr)
def test_a_cell_that_is_no_number_is_named_with_its_column(name, cell):
    X = rows(ESTIMATORS[name][1], 20).astype(object)
    X[3, 1] = cell
    with pytest.raises((TypeError, ValueError), match="column 1 holds ") as error:
        make(name).fit(X)
    assert one_sentence(error)


@pytest.mark.parametrize("name", [name for name in WITH_GAPS if name != "tabularnade"])
def test_a_column_without_a_value_is_refused(name):
    X = rows(ESTIMATORS[name][1], 40).astype(float)
    X[:, 1] = np.nan
    with pytest.raises(ValueError, match="column 1 has no value at all"):
        make(name).fit(X)


@pytest.mark.parametrize("name", REAL)
def test_numbers_whose_squares_overflow_or_vanish_are_refused(name):
    X = rows("real", 60)
    model = make(name).fit(X)
    for size in (1e200, 1.7e308, np.longdouble("1e4000")):
        far = X.astype(type(size))
        far[5] = -size
        for ask in (make(name).fit, model.score_samples, model.impute):
            with pytest.raises(ValueError, match=r"column 0 are too large: row 5 has .* at most 1e\+100"):
                ask(far)
        with pytest.raises(ValueError, match="variable 0 is given as"):
            model.sample(given={0: float(size)})
    for size in (1e-165, 1e-300):
        with pytest.raises(ValueError, match=r"column 1 holds values from .* give them in a smaller unit"):
            make(name).fit(X * [1, size, 1])


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, size) for name in ("rnade", "deeprnade", "gaussianmixture", "mfa") for size in (1e-30, 1e38)]
    + [("tabularnade", size) for size in (1e-165, 1e-30, 1e38, 1e200)],
)
def test_the_unit_of_a_column_only_shifts_scores(name, size):
    X = rows("real", 60)
    small = {"covariance_floor": 0.0} if name == "gaussianmixture" else {}
    small |= {"noise_floor": 0.0} if name == "mfa" else {}
    a, b = (make(name, **small).fit(x).score_samples(x) for x in (X, X * [1, size, 1]))
    np.testing.assert_allclose(b + np.log(size), a, rtol=1e-3, atol=0.02)


@pytest.mark.parametrize("name", ["rnade", "deeprnade", "transformernade", "deepnade", "bernoullimixture"])
def test_a_score_that_is_no_number_is_one_sentence(name):
    X = rows(ESTIMATORS[name][1], 40)
    model = make(name).fit(X)
    for weights in model.model_.parameters():
        weights.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="row 0 has no score: its values are too far"):
        model.score_samples(X)


@pytest.mark.parametrize("size", [1e7, 1e38, -1e38])
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "rbm"])  # (it has a stored constant)
def test_draws_under_huge_weights_are_those_that_are_scored_or_refused(name, size):
    X = rows(ESTIMATORS[name][1], 40)
    model = make(name).fit(X)
    for weights in model.model_.parameters():
        weights.data.fill_(size)
    asked = np.where(np.eye(*X.shape) == 1, np.nan, X) if name in WITH_GAPS else X
    for ask in (lambda: model.sample(20, random_state=0), lambda: model.impute(asked)):
        refused, drawn = "", np.zeros(1)
        try:
            drawn = np.asarray(ask(), float)
        except ValueError as error:
            refused = str(error)
        assert not refused or re.search("weights are too large|no finite numbers|cannot be filled", refused)
        assert np.isfinite(drawn).all()
        if ESTIMATORS[name][1] != "real" and len(drawn) == 20:
            assert model.score_samples(drawn).min() > -1  # (such weights leave one possible row)


# ------------------------------------------------------------------------------ TabularNADE


ODD = {
    "period": pd.period_range("2024-01", periods=60, freq="M"),
    "interval": pd.array(pd.interval_range(0, 60, 60)),
    "lists": [[1, 2]] * 60,
    "dicts": [{"a": 1}] * 60,
    "some lists": [1, [2]] * 30,
    "tuples": [(1, 2)] * 60,
    "sets": [{1}] * 60,
    "complex": [1 + 2j] * 60,
    "huge": [10**400, 1] * 30,
    "huge among text": pd.Series([10**5000, 1] * 30, dtype=object),
    "durations": pd.timedelta_range("1h", periods=60),
}


@pytest.mark.parametrize("as_frame", [True, False])
@pytest.mark.parametrize("kind", ODD)
def test_columns_of_a_mixed_table_that_hold_no_single_values_are_named(kind, as_frame):
    table = {"good": np.random.default_rng(0).normal(size=60), "bad": ODD[kind]}
    with pytest.raises(ValueError, match="column 'bad' holds ") as error:
        make("tabularnade").fit(pd.DataFrame(table) if as_frame else table)
    assert one_sentence(error)


@pytest.mark.parametrize("size", [-1.7e308, -1e50, -1e10, 1e10, 1e200, 1.7e308])
def test_one_cell_far_away_does_not_make_the_others_one_code(size):
    X = real(60)
    far = np.where(np.arange(180).reshape(60, 3) == 16, size, X)  # row 5, column 1
    model, plain = make("tabularnade").fit(far), make("tabularnade").fit(np.delete(X, 5, axis=0))
    inside = X[:, 1].min() - 1e-3, X[:, 1].max() + 1e-3
    for asked in (model.sample(50, random_state=0), model.impute(np.where(np.arange(3) == 1, np.nan, X))):
        assert np.abs(np.median(asked[:, 1])) < inside[1]
        assert len(np.unique(asked[:, 1])) > 20
        assert ((inside[0] < asked[:, 1]) & (asked[:, 1] < inside[1])).mean() > 0.8
    assert model.score_samples(X).mean() > plain.score_samples(X).mean() - 1
    assert np.isfinite(model.score_samples(far)).all()


@pytest.mark.parametrize("gap", [0.0, np.nan])
def test_a_sparse_column_is_taken_as_its_cells(gap):
    rng = np.random.default_rng(0)
    dense = pd.DataFrame({"a": rng.normal(size=60), "b": rng.choice([gap, gap, 1.5, 2.25], 60)})
    sparse = dense.assign(b=pd.arrays.SparseArray(dense["b"]))
    one, other = make("tabularnade").fit(dense), make("tabularnade").fit(sparse)
    np.testing.assert_array_equal(one.score_samples(dense), other.score_samples(sparse))
    filled = other.impute(sparse)
    assert filled.dtypes.tolist() == sparse.dtypes.tolist()
    np.testing.assert_array_equal(filled, one.impute(dense))
    columns = {"a": dense["a"], "b": sparse["b"].array}
    np.testing.assert_array_equal(
        make("tabularnade").fit(columns).score_samples(columns), one.score_samples(dense)
    )


def test_columns_of_a_dictionary_keep_every_cell():
    rng = np.random.default_rng(0)
    x, hidden = rng.normal(size=60), rng.random(60) < 0.3
    columns = {
        "masked": np.ma.masked_array(np.where(hidden, 1e8, x), hidden),
        "long": x.astype(np.longdouble),
        "seconds": np.datetime64("2024-01-01", "s") + np.arange(60),
        "whole": pd.array(np.arange(60) % 7, dtype="Int64"),
        "money": [decimal.Decimal("1.5"), decimal.Decimal("2.5"), None] * 20,
    }
    model = make("tabularnade").fit(columns)
    kinds = dict(zip(model.schema_.names, model.schema_.kinds, strict=True))
    assert kinds == {
        "masked": "real",
        "long": "real",
        "seconds": "date",
        "whole": "ordinal",
        "money": "binary",
    }
    missing = np.isnan(model.schema_.encode(columns)[0]).sum(0)
    assert missing.tolist() == [hidden.sum(), 0, 0, 0, 20]
    assert np.abs(model.sample(100, random_state=0)["masked"].to_numpy()).max() < 1e4


def test_the_mask_of_dates_and_words_means_missing():
    days = np.ma.masked_array(np.full((20, 2), np.datetime64("2024-01-01")), np.eye(20, 2))
    words = np.ma.masked_array(np.array([["a", "b"], ["b", "a"]] * 10, dtype=object), np.eye(20, 2))
    for table in (days, words):
        schema = pynade.tables.Schema.inferred(table)
        np.testing.assert_array_equal(np.isnan(schema.encode(table)[0]), np.eye(20, 2) == 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint64])
def test_any_type_of_numbers_is_taken_without_a_warning(dtype):
    X = np.random.default_rng(0).integers(0, 100, (40, 3))
    same = [pynade.GaussianMixture(n_components=1, random_state=0).fit(rows) for rows in (X, X.astype(dtype))]
    np.testing.assert_array_equal(same[0].score_samples(X), same[1].score_samples(X.astype(dtype)))


def close(kind):
    """Twenty whole numbers that float64 does not have, one after the other."""
    return pl.Series("i", [2**62 + k for k in range(20)] * 3, dtype=kind)


@pytest.mark.parametrize("kind", ["Int64", "UInt64", "Int128", "pandas", "object"])
def test_whole_numbers_that_rounding_makes_equal_are_left_out(kind):
    i = close(getattr(pl, kind, pl.Int64))
    X = pl.DataFrame([i, pl.Series("x", real(60)[:, 0])])
    if kind in ("pandas", "object"):
        X = pd.DataFrame({"i": pd.Series(X["i"].to_list(), dtype="int64" if kind == "pandas" else object)})
        X["x"] = real(60)[:, 0]
    with pytest.warns(UserWarning, match="column 'i' is left out: whole numbers beyond"):
        assert tabular().fit(X).schema_.names == ("x",)
    assert "i" in tabular(schema={"i": "real"}).fit(X).schema_.names


def test_text_of_more_digits_than_float64_has_stays_text():
    texts = [f"{2**62 + k % 3}" for k in range(60)]
    model = tabular().fit(pl.DataFrame({"i": texts, "x": real(60)[:, 0]}))
    assert set(model.schema_.columns[0].levels) == set(texts)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("kind", ["real", "rounded"])
def test_draws_for_a_narrow_type_are_rounded_and_never_wrap_around(library, kind):
    numbers = np.r_[np.arange(200, 256), 0, 1, 2, 255].astype(np.uint8)
    X = pl.DataFrame({"i": numbers, "x": real(60)[:, 0]})
    X = X.to_pandas() if library == "pandas" else X.to_arrow() if library == "pyarrow" else X
    model = tabular(schema={"i": kind}).fit(X)
    drawn, plain = model.sample(300, random_state=0), tabular(schema={"i": kind})
    drawn = np.array(drawn["i"].to_pylist() if library == "pyarrow" else drawn["i"].to_list())
    plain.fit(np.c_[numbers, X["x"]], columns=["i", "x"])
    expected = np.asarray(plain.sample(300, random_state=0)[:, 0], float)
    assert expected.max() > 255.5
    np.testing.assert_array_equal(drawn, np.round(expected))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_type_that_has_no_place_for_a_guess_is_named(library):
    X = pl.DataFrame({"i": np.arange(60) * 7, "x": np.arange(60) / 60 + 0.001 * real(60)[:, 0]})
    model = tabular(epochs=1).fit(X)
    narrow = pl.DataFrame({"i": pl.Series([None, 3], dtype=pl.Int8), "x": [1.0, 0.0]})
    narrow = (
        pd.DataFrame({"i": pd.array([None, 3], "Int8"), "x": [1.0, 0.0]}) if library == "pandas" else narrow
    )
    with pytest.raises(ValueError, match="column 'i' is of type Int8, which has no place for ") as error:
        model.impute(narrow)
    assert one_sentence(error)
    whole = pl.DataFrame({"i": [7, 14], "x": pl.Series([None, 0], dtype=pl.Int64)})
    guess = model.impute(whole.cast({"x": pl.Float64}))["x"][0]
    assert model.impute(whole)["x"][0] == round(guess)


def test_values_that_are_no_numbers_are_no_answer():
    model = tabular().fit(pd.DataFrame({"i": np.arange(60) % 17, "x": real(60)[:, 0]}))
    for name in ("i", "x"):
        answer = model.conditional(name)
        for value in (np.nan, "nan", 10**400, None):
            for ask in (answer.log_prob, answer.cdf, answer.pdf):
                with pytest.raises(ValueError, match="which is no number") as error:
                    ask(value)
                assert one_sentence(error)
    for value in ("nan", np.inf, "-inf", 10**400):
        with pytest.raises(ValueError, match=r"no number|expected a finite number"):
            model.sample(1, given={"x": value})
    for asked in ([], ["x", "x"], ["x", 1]):
        with pytest.raises(ValueError, match="ask about one column or several different ones"):
            model.conditional(asked)
    for top in (0, -1):
        with pytest.raises(ValueError, match="top must be at least 1"):
            model.surprise(pd.DataFrame({"i": [1], "x": [0.0]}), top)
    with pytest.raises(ValueError, match="'x' holds an infinite value"):
        model.score_samples(pd.DataFrame({"i": [1, 2], "x": ["9" * 400, "1"]}))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"missing": "NA"}, "missing is a list of texts, not 'NA'"),
        ({"drop": "x"}, "drop is a list of texts, not 'x'"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"time_limit": float("nan")}, "time_limit must be positive, not nan"),
    ],
)
def test_parameters_that_would_be_misunderstood_are_refused_before_training(parameters, words):
    X = pd.DataFrame({"i": np.arange(60) % 17, "x": real(60)[:, 0]})
    with pytest.raises(ValueError, match=words):
        tabular(**parameters).check_request(X)
