"""Standard errors over groups of test rows, and what records say of them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynade.likelihood import Estimate
from pynade.runs.groups import group_facts, grouped_stderr
from pynade.runs.run import start_run
from pynade.runs.score import score_run, write_record
from pynade.runs.sweep import Sweep
from pynade.tables import Dataset, Schema


def toy(groups=None, n_test: int = 40, seed: int = 0) -> Dataset:
    rows = np.random.default_rng(seed).normal(size=(100 + n_test, 3))
    schema = Schema.uniform("real", 3)
    return Dataset("toy", rows[:80], rows[80:100], rows[100:], schema, test_groups=groups, grouped_by="image")


values = st.lists(st.floats(-50, 50), min_size=2, max_size=30).filter(lambda x: np.ptp(x) > 1e-3)


@given(values, st.integers(1, 5), st.integers(0, 99))
def test_the_error_is_that_of_independent_groups(scores, copies, seed):
    """Groups of one row: the usual error. Copies of every row, in any order, change nothing."""
    each = Estimate.from_rows(scores).stderr
    order = np.random.default_rng(seed).permutation(copies * len(scores))
    repeated, groups = (np.repeat(x, copies)[order] for x in (scores, np.arange(len(scores))))
    found = group_facts(toy(groups, len(groups)), "test", repeated)["groups"]
    assert found["stderr"] == pytest.approx(each, rel=1e-9)
    np.testing.assert_allclose(found["means"], scores, atol=1e-6)
    assert found["rows"] == [copies] * len(scores)
    assert grouped_stderr(found["means"], found["rows"]) == pytest.approx(each, rel=1e-3)


@given(st.lists(st.integers(0, 4), min_size=20, max_size=20).filter(lambda g: len(set(g)) > 1))
def test_groups_of_unequal_size_follow_the_definition(groups):
    scores = np.random.default_rng(0).normal(size=20)
    found = group_facts(toy(np.array(groups), 20), "test", scores)["groups"]
    sums = [sum(scores[i] - scores.mean() for i in range(20) if groups[i] == g) for g in set(groups)]
    n = len(sums)
    assert found["stderr"] == pytest.approx((n / (n - 1) * sum(s * s for s in sums)) ** 0.5 / 20)
    assert np.dot(found["means"], found["rows"]) / 20 == pytest.approx(scores.mean(), abs=1e-6)


def test_without_groups_nothing_is_said():
    scores, groups = np.zeros(40), np.arange(40) // 10
    assert group_facts(toy(), "test", scores) == {}
    assert group_facts(toy(groups), "valid", scores[:20]) == {}
    assert group_facts(toy(groups), "test", np.empty(0)) == {}  # an estimate of the mean alone
    assert group_facts(toy(np.zeros(40)), "test", scores) == {}  # one group has no error
    assert group_facts(toy(groups), "test", scores[:25])["groups"]["rows"] == [10, 10, 5]


def test_parts_that_are_cut_anew_have_no_groups_of_another_cut():
    data = toy(np.arange(40) // 10)
    assert all(fold.test_groups is None for fold in data.folds(3, 0))
    cut = Dataset("toy", data.train, None, data.test, data.schema, test_groups=data.test_groups)
    assert cut.with_validation(0.2, 0).test_groups is data.test_groups


def test_runs_and_sweeps_record_the_groups(tmp_path, monkeypatch):
    data = toy(np.arange(40) // 10)
    for place in ("pynade.runs.run.data_for", "pynade.runs.score.data_for"):
        monkeypatch.setattr(place, lambda *_, **__: data, raising=False)
    for place in ("pynade.runs.run.resolve", "pynade.runs.sweep.resolve"):
        monkeypatch.setattr(place, lambda *_, **__: data, raising=False)
    start_run(tmp_path / "run", "gaussian", {"random_state": 0, "device": "cpu"}, "toy")
    score = score_run(tmp_path / "run", "toy")
    write_record(tmp_path / "run.json", tmp_path / "run", score)
    record = json.loads((tmp_path / "run.json").read_text())["groups"]
    np.testing.assert_allclose(record["means"], score.log_probs.reshape(4, 10).mean(1), atol=1e-6)
    assert record["by"] == "image"
    sweep = Sweep(tmp_path / "sweep", "gaussian", "toy", {"device": "cpu"}, {}, retrain=False).run()
    assert sweep["groups"] == record
