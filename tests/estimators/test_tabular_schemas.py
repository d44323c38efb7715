"""Random schemas: whatever the columns are, a table fits, scores, fills, draws and is saved."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pynade
from tests.estimators.mixed import tabular

TYPES = {
    "text": lambda rng, n: rng.choice(["a", "b", "c", "d d", "é"], n).astype(object),
    "many": lambda rng, n: np.array([f"t{k}" for k in rng.zipf(1.5, n) % 30], dtype=object),
    "category": lambda rng, n: pd.Categorical(rng.choice(["x", "y"], n), categories=["z", "y", "x"]),
    "ordered": lambda rng, n: pd.Categorical(rng.choice([3, 1, 2], n), categories=[3, 2, 1], ordered=True),
    "boolean": lambda rng, n: pd.array(rng.random(n) < 0.3, dtype="boolean"),
    "zero-one": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "count": lambda rng, n: pd.array(rng.poisson(8, n), dtype="Int64"),
    "spike": lambda rng, n: np.where(rng.random(n) < 0.8, 0.0, rng.integers(0, 10**5, n)),
    "large": lambda rng, n: pd.array(rng.integers(2**40, 2**62, n), dtype="Int64"),
    "rounded": lambda rng, n: np.round(rng.normal(size=n), 1),
    "grid": lambda rng, n: rng.integers(3, 40, n) * 0.25,
    "real": lambda rng, n: rng.standard_t(1.5, n) * 10.0 ** rng.integers(-160, 160),
    "positive": lambda rng, n: np.exp(rng.normal(size=n) * 3),
    "unit": lambda rng, n: rng.beta(0.5, 0.5, n).clip(1e-9, 1 - 1e-9),
    "day": lambda rng, n: pd.Timestamp("2020-02-28") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
    "moment": lambda rng, n: (
        pd.Timestamp("1999-12-31", tz="Asia/Tokyo") + pd.to_timedelta(rng.integers(0, 10**12, n), unit="us")
    ),
    "constant": lambda rng, n: np.full(n, 3.5),
}


def frame(kinds, n, share, seed):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({f"{k}:{kind}": TYPES[kind](rng, n) for k, kind in enumerate(kinds)})
    holes = rng.random(X.shape) < share
    holes[:3] = False
    for k in range(len(kinds)):
        X.isetitem(k, X.iloc[:, k].mask(holes[:, k]))
    return X.set_index(pd.Index(rng.permutation(n) * 3, name="key"))


def in_domain(column, values):
    """Whether all values are among those that a column can have."""
    known = column.encode(values)[0]
    return not np.isnan(known).any()


def cells_of(model, X):
    return [model.schema_._values(__import__("narwhals").from_native(X), c) for c in model.schema_.columns]


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kinds=st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=6),
    n=st.integers(20, 60),
    share=st.sampled_from([0.0, 0.2, 0.6]),
    seed=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore:column .* is left out")
def test_any_schema(kinds, n, share, seed, tmp_path):
    X = frame(kinds, n, share, seed)
    before = X.copy(deep=True)
    model = tabular().fit(X)
    scores = model.score_samples(X)
    assert np.isfinite(scores).all()
    assert np.isfinite(model.score_samples(X, density=True)).all()

    drawn = model.sample(200, random_state=0)
    pd.testing.assert_series_equal(drawn.dtypes, X.dtypes)
    assert not drawn.isna().any().any()
    for column, values in zip(model.schema_.columns, cells_of(model, drawn), strict=True):
        assert in_domain(column, values), column
    assert np.isfinite(model.score_samples(drawn)).all()

    for filled in (model.impute(X), *model.impute(X, 2, random_state=1)):
        pd.testing.assert_series_equal(filled.dtypes, X.dtypes)
        pd.testing.assert_index_equal(filled.index, X.index)
        pd.testing.assert_index_equal(filled.columns, X.columns)
        assert not filled.isna().any().any()
        known = X.notna()
        for name in X:
            pd.testing.assert_series_equal(filled[name][known[name]], X[name][known[name]])
        for column, values in zip(model.schema_.columns, cells_of(model, filled), strict=True):
            assert in_domain(column, values), column
    surprise = model.surprise(X)
    assert (surprise.notna().to_numpy() == X.notna().to_numpy()).all()
    pd.testing.assert_frame_equal(X, before)

    model.save(tmp_path / "model.safetensors")
    again = pynade.load(tmp_path / "model.safetensors")
    assert again.schema_ == model.schema_
    assert (again.score_samples(X) == scores).all()
    pd.testing.assert_frame_equal(again.sample(20, random_state=3), model.sample(20, random_state=3))
    pd.testing.assert_frame_equal(again.impute(X), model.impute(X))


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_alone(kind, tmp_path):
    test_any_schema.hypothesis.inner_test([kind], 40, 0.2, 7, tmp_path)


def test_dates_are_never_numbers():
    X = frame(["day", "real"], 40, 0.2, 0)
    model = tabular().fit(X)
    with pytest.raises(ValueError, match=r"^column '0:day' held dates in training, but holds numbers$"):
        model.score_samples(X.assign(**{"0:day": 5.0}))
    with pytest.raises(ValueError, match=r"^column '1:real' held numbers in training, but holds dates$"):
        model.score_samples(X.assign(**{"1:real": X["0:day"]}))
    table = X[["0:day", "1:real"]].to_numpy(dtype=object)
    drawn = tabular().fit(table).sample(3, random_state=0)
    assert all(isinstance(v, dt.datetime) for v in drawn[:, 0])
