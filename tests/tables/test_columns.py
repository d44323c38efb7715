"""What columns are understood as, and codes and values at the ends of the floating-point numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from pynade.tables import Schema
from pynade.tables.column import FAR_STEPS, Column
from pynade.tables.infer import MOST_LEVELS, Tally, Unsuitable
from pynade.tables.infer import infer as infer_tally

RNG = np.random.default_rng(0)


def infer(name, values, sort, wanted=None):
    return infer_tally(name, Tally.of(values, sort), wanted)


NORMAL = RNG.normal(size=60)


def few(values):
    """Ties: ten of the values, again and again."""
    return np.asarray(values)[RNG.integers(0, 10, len(values))]


EXTREMES = {
    "tiny": NORMAL * 1e-165,
    "tiny-ties": few(NORMAL * 1e-165),
    "denormal": NORMAL * 1e-310,
    "huge": NORMAL * 1e200,
    "huge-ties": few(NORMAL * 1e200),
    "largest": RNG.choice([-1.7e308, 1.7e308, 1.0], 60) * RNG.random(60),
    "largest-ties": few(NORMAL * 5e307),
    "positive": np.exp(NORMAL * 200),
    "narrow": 1 + RNG.random(60) * 1e-12,
    "narrow-ties": 1e9 + few(RNG.random(60) * 1e-6),
    "far": 1e300 + NORMAL * 1e290,
    "beyond-2^53": 2.0**60 + RNG.integers(0, 2**50, 60),
    "beyond-2^53-steps": 2.0**60 + 256 * RNG.integers(0, 40, 60),
    "beyond-2^63": 2.0**63 + 2048 * RNG.permutation(60),
    "zero-heavy": np.where(RNG.random(60) < 0.9, 0, 1e12 * RNG.random(60)),
}
BAD = np.array([0, -1.7e308, 1.7e308, 5e-324, -5e-324, 1, -1, 1e300, 2**53, np.nan])


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_scales(name):
    """Codes are of order one, offsets finite, values come back to the resolution of the column."""
    x = EXTREMES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        column = infer(name, x, "number")
        codes, offsets = column.encode(x)
        back = np.asarray(column.decode(codes), dtype=float)
        bad_codes, bad_offsets = column.encode(BAD)
        far = np.asarray(column.decode(np.array([-1e5, -3, 3, 1e5])), dtype=float)
        assert column.domain()
    assert not np.isnan(codes).any()
    assert np.isfinite(offsets).all()
    assert np.isfinite(bad_offsets).all()
    assert bad_offsets[-1] == 0
    assert np.isfinite(far).all()
    assert (np.diff(far / 2) >= 0).all()
    assert np.nanmax(np.abs(bad_codes), initial=0) <= FAR_STEPS
    spread = np.abs(x / 2 - x[0] / 2).max()
    assert np.abs(back / 2 - x / 2).max() <= max(0.51 * column.resolution, 1e-9 * spread)


@pytest.mark.parametrize(
    ("values", "kind", "more"),
    [
        ([0, 1] * 20, "binary", {"levels": (0, 1)}),
        ([2.5, 7.0] * 20, "binary", {"levels": (2.5, 7.0)}),
        ([3] * 9, "constant", {"levels": (3,)}),
        (list(range(5)) * 8, "ordinal", {"levels": (0, 1, 2, 3, 4)}),
        (RNG.integers(0, 50, 80), "integer", {"resolution": 1.0, "low": 0.0}),
        (RNG.integers(0, 50, 80) * 50, "integer", {"resolution": 50.0}),
        (RNG.integers(-500, 500, 80) / 10, "rounded", {"resolution": 0.1, "low": None, "decimals": 1}),
        (RNG.integers(4, 90, 80) * 0.25, "rounded", {"resolution": 0.25}),
        (NORMAL, "real", {"low": None, "high": None}),
        (np.exp(NORMAL), "real", {"low": 0.0, "high": None}),
        (RNG.random(60), "real", {"low": 0.0, "high": 1.0}),
        (1000 + NORMAL * 1e-3, "real", {"low": None}),  # too narrow for a logarithm
        (np.where(RNG.random(200) < 0.9, 0, RNG.random(200)), "rounded", {"low": 0.0}),  # a spike has a mass
        (RNG.integers(0, 2**40, 80), "integer", {"low": 0.0}),  # more steps than codes
    ],
)
def test_kinds_of_numbers(values, kind, more):
    column = infer("a", np.asarray(values, dtype=float), "number")
    assert column.kind == kind
    assert (
        {name: getattr(column, name) for name in more} == pytest.approx(more)
        if "levels" not in more
        else True
    )
    assert more.get("levels", column.levels) == column.levels


def test_rare_levels_share_a_code_and_all_levels_one():
    cells = ["a"] * 200 + ["b"] * 100 + ["c", "d", "d", "e"]
    column = infer("t", cells, "text")
    assert column.levels == ("a", "b")
    assert dict(column.rare) == {"d": 0.5, "c": 0.25, "e": 0.25}
    codes, offsets = column.encode([*"abcde", "never", None])
    np.testing.assert_array_equal(codes, [0, 1, 2, 2, 2, np.nan, np.nan])
    n = len(cells)
    shares = np.array([1, 1, 0.25, 0.5, 0.25]) * (1 - 1 / (n + 1))
    np.testing.assert_allclose(np.exp(offsets), [*shares, 1 / (n + 1), 1])
    drawn = column.decode(np.full(4000, 2.0), np.random.default_rng(0))
    assert (drawn == "d").mean() == pytest.approx(0.5, abs=0.03)
    assert column.decode(np.array([2.0])).tolist() == ["d"]
    many = infer("k", [f"t{k % 500}" for k in range(5000)], "text")
    assert (len(many.levels), len(many.rare)) == (MOST_LEVELS, 400)


def test_integers_of_too_wide_a_range_share_codes_and_still_sum_to_one():
    column = infer("a", RNG.integers(0, 2**22, 80).astype(float), "number")
    assert column.per_step == 4
    x = np.arange(int(column.origin) - 4000, int(column.origin))  # 1,000 steps below the range
    codes, offsets = column.encode(x)
    assert np.isnan(codes).all()
    unit = column.high + 1
    assert np.exp(offsets).sum() == pytest.approx(0.5 / 81 * (1 - unit / (unit + 1000)), rel=1e-9)
    inside = column.encode(column.origin + np.arange(8))
    assert inside[0].tolist() == [0] * 4 + [1] * 4
    np.testing.assert_allclose(4 * np.exp(inside[1]), 80 / 81)
    np.testing.assert_allclose(column.encode(x, density=True)[1], offsets)


def test_a_value_between_two_points_of_a_lattice_has_the_nearest_code():
    column = infer("a", np.array([0.5, 1.0, 2.5, 0.5] * 9), "number")
    assert column.resolution == 0.5
    assert column.encode([0.74, 0.76, 0.0, -0.3])[0].tolist()[:3] == [0, 1, -1]
    assert np.isnan(column.encode([-0.3])[0][0])  # below 0


@pytest.mark.parametrize(
    ("name", "values", "sort", "words"),
    [
        ("id", np.arange(50.0) * 3, "number", "identifier by its name"),
        ("n", np.arange(50.0), "number", "counts the rows"),
        ("t", [f"text {k}" for k in range(50)], "text", "50 different texts in 50 rows, such as 'text 0'$"),
        ("d", [f"{1950 + k}-01-31" for k in range(50)], "text", "such as '1950-01-31'; read dates as dates$"),
        ("e", np.full(5, np.nan), "number", "every cell is missing"),
        ("e", [None] * 5, "text", "every cell is missing"),
    ],
)
def test_unsuitable_columns(name, values, sort, words):
    with pytest.raises(Unsuitable, match=words):
        infer(name, values, sort)


def test_text_of_digits_with_leading_zeros_is_a_code_and_stays_text():
    codes = ["03111", "02208", "11300", "02208"] * 20
    column = infer("lesion", codes, "text")
    assert column.kind == "category"
    assert set(column.levels) == set(codes)
    assert infer("price", ["0.5", "10", "-0.25", "3"] * 20, "text").kind != "category"
    assert infer("lesion", codes, "text", "integer").kind == "integer"


def test_overrides():
    X = pd.DataFrame(
        {"zip": RNG.integers(0, 50, 80), "price": np.round(np.abs(NORMAL[:1]) + RNG.random(80), 1)}
    )
    X["size"] = ["1", "inf", "2", "3"] * 20
    schema = Schema.inferred(X, {"zip": "categorical", "price": {"kind": "rounded", "low": 0, "high": 5}})
    assert schema.kinds == ("category", "rounded", "category")
    column = schema.columns[1]
    assert np.isnan(column.encode([5.2])[0][0])
    assert not np.isnan(column.encode([4.9])[0][0])
    for wrong, words in (
        ({"zip": "colour"}, "column 'zip' has kind 'colour'; expected one of: binary"),
        ({"zap": "real"}, "schema names a column 'zap' that the table does not have"),
        ({"price": "integer"}, "column 'price' cannot be integer: it holds"),
        ({"size": "real"}, "column 'size' cannot be real: it holds 'inf'"),
        (
            {"zip": {"kind": "category", "low": 0}},
            "column 'zip' is category; a column of numbers takes a kind",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            Schema.inferred(X, wrong)
    assert Schema.inferred(X, {"zip": "real"}).kinds[0] == "real"


def test_missing_words_can_be_chosen():
    X = pd.DataFrame({"a": ["x", "y", "none", "-", "x", "y"]})
    assert Schema.inferred(X).columns[0].levels == ("-", "x", "y")
    assert Schema.inferred(X, missing=["-"]).columns[0].levels == ("none", "x", "y")


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (Column("a", "binary", levels=(False, True)), "yes", True),
        (Column("a", "binary", levels=(0, 1)), "1.0", 1),
        (Column("a", "category", levels=("x", "y")), " y ", "y"),
        (Column("a", "integer", resolution=1.0), "12", 12.0),
        (Column("a", "date", resolution=1.0), "1970-01-02", 86_400e6),
        (Column("a", "date", resolution=1.0), np.datetime64("1970-01-02"), 86_400e6),
        (Column("a", "date", resolution=1.0), "1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_words_of_users(column, value, expected):
    assert column.parse(value) == expected


def test_the_schema_prints_what_was_understood_and_why():
    schema = Schema.inferred(
        pd.DataFrame({"k": [1, 2] * 9, "day": pd.date_range("2024", periods=18), "e": None})
    )
    lines = str(schema).splitlines()
    assert lines[0].split() == ["column", "kind", "values", "why"]
    assert "steps of 1 days" in lines[2]
    assert lines[3].split()[:2] == ["e", "ignored"]
    assert lines[3].endswith("every cell is missing")


def test_a_real_column_stays_between_the_ends_that_are_given():
    X = {"latitude": np.append(90 * np.tanh(NORMAL), np.nan), "gain": np.append(NORMAL, 0.5)}
    ends = {"latitude": {"kind": "real", "low": -90, "high": 90}, "gain": {"kind": "real", "low": -10}}
    schema = Schema.inferred(X, ends)
    codes, offsets = schema.encode(X)
    far = schema.decode(np.full((2, 2), [[-50.0], [50.0]])).to_dict(as_series=False)
    assert -90 < far["latitude"][0] < -89.9 < 89.9 < far["latitude"][1] < 90
    assert far["gain"][0] > -10
    for i, column in enumerate(schema.columns):  # the offset is the log-slope of the code
        x, h = np.array([-1.0, 0.3, 2.0]), 1e-6
        slope = (column.encode(x + h)[0] - column.encode(x - h)[0]) / (2 * h)
        np.testing.assert_allclose(
            column.encode(x)[1] - np.log1p(-1 / (column.n + 1)), np.log(slope), atol=1e-6
        )
        assert np.isclose(np.nanmean(codes[:, i]), 0, atol=1e-9)
        assert offsets.shape == codes.shape
    for wrong, words in (
        ({"high": 90}, "has an upper end, so it needs a lower one"),
        ({"low": -90, "high": 10}, r"holds values from -\S+ to \S+; expected above -90 and below 10$"),
    ):
        with pytest.raises(ValueError, match=words):
            Schema.inferred(X, {"latitude": {"kind": "real", **wrong}})


@pytest.mark.parametrize("odd", [(14.66666667, 9.33333333), (1019.5, 1029.666667, 1032.333333)])
def test_a_few_averages_do_not_make_a_lattice_finer(odd):
    values = np.concatenate([np.tile(np.arange(9.0, 70.0), 100), odd])
    column = infer("t", values, "number")
    assert (column.kind, column.resolution, column.decimals) == ("rounded", 1.0, 0)
    decoded = column.decode(column.encode(values)[0])
    np.testing.assert_array_equal(decoded[: -len(odd)], values[: -len(odd)])
    half = infer("t", np.append(values, np.arange(9.5, 60)), "number")  # that are more than a few
    assert half.resolution == 0.5


@pytest.mark.parametrize("far", [10**7, 10**9, -(10**15), 2**62])
def test_one_whole_number_far_away_leaves_steps_of_one(far):
    ages = np.r_[RNG.integers(18, 80, 200), far].astype(float)
    column = infer("age", ages, "number")
    assert (column.kind, column.per_step, column.resolution) == ("integer", 1, 1.0)
    assert "1 cell far out of range" in column.reason
    codes, offsets = column.encode(ages)
    assert np.isnan(codes).tolist() == [False] * 200 + [True]  # scored by the rule for values out of range
    assert np.isfinite(offsets).all()
    np.testing.assert_array_equal(column.decode(codes[:-1]), ages[:-1])


def test_wide_integers_keep_their_range():
    spread = RNG.integers(0, 2**40, 300)
    spike = np.where(RNG.random(300) < 0.96, 0, RNG.integers(0, 2**40, 300) // 2**8 * 2**8)
    spike[:12] = np.arange(12) * 2**36  # (more than a few values)
    for values in (spread, spike):
        column = infer("n", values.astype(float), "number")
        assert column.origin + (column.high + 1) * column.resolution > values.max()
        assert not np.isnan(column.encode(values.astype(float))[0]).any()


def test_draws_are_of_all_values_in_a_step():
    values = RNG.integers(0, 2**23, 400).astype(float)
    column = infer("n", values, "number")
    assert column.per_step > 1
    drawn = column.decode(np.full(4000, 5.0), np.random.default_rng(0)) - column.decode(np.array([5.0]))
    assert set(drawn) == set(range(column.per_step))
    codes = column.encode((drawn + column.decode(np.array([5.0]))).astype(float))[0]
    assert (codes == 5).all()
