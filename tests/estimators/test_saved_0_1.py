"""Models and run folders that version 0.1 wrote, before the redesign: they load, with the same answers.

tests/data/saved_0_1 has a model of every name, run folders of the command line, and scores.json: rows, their
scores, and samples (random_state=1), as that code computed them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import pynade
from pynade.estimators.registry import estimator_class
from pynade.runs.run import resume_run
from pynade.runs.summary import read_metrics
from pynade.tables.dataset import validation_rows
from tests.estimators.cases import ESTIMATORS

SAVED = Path(__file__).parents[1] / "data" / "saved_0_1"
FACTS = json.loads((SAVED / "scores.json").read_text(encoding="utf-8"))
RUNS = {"run-deepnade": "DeepNADE", "run-mob": "BernoulliMixture", "run-nade": "NADE"}
OLD_NAMES = {"iterations": "epochs", "tolerance": "tol", "n_hidden": "hidden"}


def header(path):
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["pynade"])


def test_there_is_a_file_of_every_model_and_no_path_of_a_machine():
    files = sorted(SAVED.glob("*.safetensors"))
    assert sorted(FACTS) == sorted(path.stem for path in files)
    older = [name for name in ESTIMATORS if name != "tabularnade"]  # which came after these files
    assert len(FACTS) == len(older) == 21
    assert {estimator_class(name)[0] for name in FACTS} == {estimator_class(name)[0] for name in older}
    for path in SAVED.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(b"/%s/" % root in content for root in (b"tmp", b"home", b"root", b"work")), path


@pytest.mark.parametrize("name", FACTS)
def test_a_saved_model_has_the_scores_and_samples_it_had(name):
    facts, kept = FACTS[name], header(SAVED / f"{name}.safetensors")["estimator"]
    model = pynade.load(SAVED / f"{name}.safetensors")
    assert type(model) is estimator_class(name)[0]
    rows = np.array(facts["rows"])
    table = pd.DataFrame(rows, columns=facts["columns"]) if facts["columns"] else rows
    np.testing.assert_allclose(model.score_samples(table), facts["scores"], rtol=0, atol=1e-9)
    images = {"fresh_orderings": True} if isinstance(model, pynade.estimators.ImageEstimator) else {}
    drawn = model.sample(2, random_state=1, **images)  # as images were drawn then
    np.testing.assert_allclose(drawn, np.array(facts["sample"]), rtol=0, atol=1e-9)
    if facts["columns"]:
        assert list(model.feature_names_in_) == facts["columns"]
        np.testing.assert_array_equal(
            model.score_samples(table[facts["columns"][::-1]]), model.score_samples(table)
        )
    flat = model.flat_parameters()
    for parameter, value in kept["params"].items():
        assert flat[OLD_NAMES.get(parameter, parameter)] == value, parameter


@pytest.mark.parametrize("name", FACTS)
def test_the_history_of_a_saved_model_has_log_likelihoods(name):
    kept = header(SAVED / f"{name}.safetensors")["estimator"]["fitted"]["history_"]
    history = pynade.load(SAVED / f"{name}.safetensors").history_
    assert len(history.epochs) == len(kept["epochs"]) > 0
    for line, old in zip(history.epochs, kept["epochs"], strict=True):
        for part in ("train", "valid"):
            was = old[f"{part}_nll"]
            assert line[part] == (None if was is None else -was)
        assert not any(entry.endswith("_nll") for entry in line)
    assert history.best_valid == kept["best_valid"]
    assert np.isfinite(history.train_log_likelihood)


@pytest.mark.parametrize("name", FACTS)
def test_a_saved_model_is_saved_again_and_fitted_again(name, tmp_path):
    model = pynade.load(SAVED / f"{name}.safetensors")
    rows = np.array(FACTS[name]["rows"])
    model.save(tmp_path / "again.safetensors")
    again = pynade.load(tmp_path / "again.safetensors")
    np.testing.assert_array_equal(again.score_samples(rows), model.score_samples(rows))
    assert again.flat_parameters() == model.flat_parameters()
    table = np.random.default_rng(0).permutation(np.vstack([rows] * 8 + [1 - rows] * 8))
    table = table + 0.1 * np.random.default_rng(1).normal(size=table.shape) if rows.dtype == float else table
    assert np.isfinite(clone(model).fit(table).score(rows))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_folder_loads_is_described_and_scored(name, run):
    model = pynade.load(SAVED / name)
    assert type(model).__name__ == RUNS[name]
    result = json.loads((SAVED / name / "result.json").read_text(encoding="utf-8"))
    spec = json.loads((SAVED / name / "spec.json").read_text(encoding="utf-8"))
    kept = header(SAVED / name / "model.safetensors")
    assert list(model.feature_names_in_) == kept["columns"]
    code, out, err = run("info", SAVED / name)
    assert (code, err) == (0, "")
    for words in (spec["model"], spec["data"], result["stopped"], "pynade 0.1.0, format 1"):
        assert words in " ".join(out.split())
    data = SAVED / "binary.csv" if spec["data"] == "binary.csv" else spec["data"]
    part = "all" if spec["data"] == "binary.csv" else "valid"
    code, out, err = run("score", SAVED / name, data, "--split", part)
    assert (code, err) == (0, "")
    if part == "valid":
        assert f"{result['valid']['mean']:.3f}" in out or f"{result['valid']['mean']:.2f}" in out
    assert resume_run(SAVED / name) == result


def test_the_run_of_a_table_has_its_scores_and_matches_columns_by_name():
    model = pynade.load(SAVED / "run-deepnade")
    frame = pd.read_csv(SAVED / "binary.csv")
    scores = model.score_samples(frame)
    np.testing.assert_array_equal(model.score_samples(frame[list("fedcba")]), scores)
    with pytest.raises(ValueError, match="there is no column 'a'"):
        model.score_samples(frame[list("bcdef")])
    result = json.loads((SAVED / "run-deepnade" / "result.json").read_text(encoding="utf-8"))
    held = validation_rows(len(frame), 0.1, 0)[1]
    assert scores[held].mean() == pytest.approx(result["valid"]["mean"], abs=1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_metrics_are_read_as_log_likelihoods(name, tmp_path, run):
    text = (SAVED / name / "metrics.jsonl").read_text(encoding="utf-8")
    old = [json.loads(line) for line in text.splitlines()]
    lines = read_metrics(SAVED / name)
    assert [line["epoch"] for line in lines] == [line["epoch"] for line in old]
    assert [(line["train"], line["valid"]) for line in lines] == [
        (-line["train_nll"], -line["valid_nll"]) for line in old
    ]
    assert all(line["valid"] < 0 for line in lines)
    copy = shutil.copytree(SAVED / name, tmp_path / "copy")
    code, _, err = run("info", copy, "--curve", tmp_path / "curve.png")
    assert (code, err) == (0, "")
    assert (tmp_path / "curve.png").stat().st_size > 0
