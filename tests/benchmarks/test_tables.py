"""The comparison of systems on tables: splits, planted errors, measures, record and page."""

import shutil
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pynade.digest import read_json

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(BENCHMARKS))
    import table_measures
    import table_page
    import table_systems
    import tables

    yield tables, table_systems, table_measures, table_page
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b"], 200)
    size = rng.normal(np.where(kind == "a", 2, 9), 1).round(1)
    frame = pd.DataFrame({"size": size, "other": (size + rng.normal(size=200)).round(2), "kind": kind})
    frame.loc[::9, "other"] = np.nan
    path = tmp_path_factory.mktemp("table") / "toy.csv"
    frame.to_csv(path, index=False)
    return path


def test_a_table_is_split_measured_and_reported(modules, file, tmp_path):
    tables, table_systems, table_measures, table_page = modules
    asked = Namespace(
        seeds=[1],
        tables=[str(file)],
        data=None,
        work=tmp_path / "work",
        limit=3600,
        environments=None,
        processes=1,
    )
    asked.systems, asked.questions = (
        ["gaussian", "marginals"],
        ["scores", "fill", "draws", "sample", "surprise"],
    )
    tables.run(asked)
    folder = tmp_path / "work" / "toy" / "1"
    task = table_systems.Task(folder, dates=False)
    assert (len(task.train), len(task.test), task.target) == (160, 40, "kind")
    assert task.numbers == ["size", "other"]
    assert task.step.tolist() == [0.1, 0.01]
    found = {s: read_json(folder / s / "measures.json") for s in asked.systems}
    assert not any("errors" in one for one in found.values())
    assert found["gaussian"]["rmse_30"] < found["marginals"]["rmse_30"]
    assert found["gaussian"]["crps_30"] < found["marginals"]["crps_30"]
    assert 0.5 < found["marginals"]["two_sample_auc"] <= 1
    assert found["gaussian"]["surprise_auc_all"] > 0.5

    (folder / "gaussian").rename(folder / "pynade")  # stands for ours
    tables.run(asked)
    (tmp_path / "tables.md").write_text(f"above\n{table_page.BEGIN}\nold\n{table_page.END}\nbelow\n")

    def report():
        table_measures.report(tmp_path / "work", tmp_path / "tables.json", [str(file)], tmp_path)
        return read_json(tmp_path / "tables.json")["tables"]["toy"]["systems"]["gaussian"]["1"]["log_density"]

    assert report()["to_pynade"] == 0
    page = (tmp_path / "tables.md").read_text()
    assert "old" not in page
    assert page.startswith("above")
    assert page.endswith("below\n")
    assert "| toy | 160 × 3 |" in page
    assert (tmp_path / "tables.png").stat().st_size > 10_000

    shutil.rmtree(folder / "gaussian")  # ours is measured again, alone
    assert report().keys() == {"mean", "stderr", "scored"}


def test_planted_errors_are_where_they_are_marked(modules, file):
    tables, *_ = modules
    frame = pd.read_csv(file)
    columns = [{"name": n, "levels": [], "step": 0.1, "origin": ""} for n in ("size", "other")]
    columns.append({"name": "kind", "levels": ["a", "b"], "step": 0, "origin": ""})
    marks, wrong = tables.planted(frame, columns, np.random.default_rng(0))
    same = (wrong == frame) | (wrong.isna() & frame.isna())
    assert (marks > 0).any(0).all()
    assert not (~same.to_numpy() & (marks == 0)).any()
    assert not same.to_numpy()[marks == 1].any()  # cells that changed places differ
    for name in frame:  # and a column keeps the values that were moved
        moved = marks[:, list(frame).index(name)] == 1
        assert sorted(wrong[name][moved]) == sorted(frame[name][moved])


def test_rows_are_unseen_unless_a_training_row_equals_them_but_for_the_target(modules):
    *_, table_measures, _ = modules
    train, test = (
        np.array(rows)
        for rows in ([[1, 0.0, 5], [2, np.nan, 6]], [[1, -0.0, 9], [2, np.nan, 6], [2, 0.0, 6]])
    )
    task = SimpleNamespace(train=train, test=test, matrix=lambda rows: rows)
    assert table_measures.unseen(task, 2).tolist() == [False, False, True]
    assert table_measures.unseen(task, 0).tolist() == [True, False, True]


def test_levels_are_spelled_alike(modules):
    _, systems, *_ = modules
    assert [systems.spelled(v) for v in (2, 2.0, np.float64(2.5), "2", True)] == [
        "2",
        "2",
        "2.5",
        "2",
        "True",
    ]
    assert systems.level_codes(pd.Series([2.0, None, "3", 9]), ["2", "3"]).tolist() == [0, -1, 1, -1]


def test_the_page_shows_the_record(modules):
    *_, table_measures, table_page = modules
    root = BENCHMARKS.parent
    record = read_json(root / "paper" / "results" / "benchmarks" / "tables.json")
    shown = (root / "docs" / "tables.md").read_text().split(table_page.BEGIN)[1].split(table_page.END)[0]
    assert shown.strip() == table_page.measured_part(table_measures.summarised(record)).strip()
