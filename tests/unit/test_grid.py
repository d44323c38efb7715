import json

import pytest

from pynade.experiments.grid import run_grid


def test_a_grid_chooses_on_validation_and_resumes(tmp_path):
    fixed = {"hidden": 4, "epochs": 3}
    grid = {"learning_rate": [1e-6, 0.05], "gamma": [0.0]}
    record = tmp_path / "record.json"
    chosen = run_grid(tmp_path / "runs", record, "nade", "digits", fixed, grid)
    assert chosen == {"learning_rate": 0.05, "gamma": 0.0}
    content = json.loads(record.read_text())
    assert content["test"]["n"] == 300
    tried = content["validation_grid"]
    assert [t["learning_rate"] for t in tried] == [1e-6, 0.05]
    assert tried[1]["valid"] == content["valid"]
    assert tried[1]["valid"]["mean"] > tried[0]["valid"]["mean"]
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("model.safetensors")}
    assert run_grid(tmp_path / "runs", record, "nade", "digits", fixed, grid) == chosen
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("model.safetensors")}


def test_other_settings_are_not_taken_for_finished_ones(tmp_path):
    grid = {"learning_rate": [0.05]}
    run_grid(tmp_path / "runs", tmp_path / "a.json", "nade", "digits", {"hidden": 4, "epochs": 1}, grid)
    with pytest.raises(ValueError, match="other settings"):
        run_grid(tmp_path / "runs", tmp_path / "b.json", "nade", "digits", {"hidden": 9, "epochs": 1}, grid)


def test_a_diverging_setting_is_a_result_too(tmp_path):
    fixed, grid = {"hidden": 4, "epochs": 2, "optimizer": "sgd"}, {"learning_rate": [1e39, 0.01]}
    for _ in range(2):  # also the second time, from what the first left
        chosen = run_grid(tmp_path / "runs", tmp_path / "r.json", "nade", "digits", fixed, grid)
        assert chosen == {"learning_rate": 0.01}
    tried = json.loads((tmp_path / "r.json").read_text())["validation_grid"]
    assert [line["status"] for line in tried] == ["diverged", "finished"]
