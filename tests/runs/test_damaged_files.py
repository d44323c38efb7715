"""Files of a run folder that lack something: one sentence that names the file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import pynade
from pynade.digest import Damaged
from pynade.plots import training as training_curve
from pynade.runs.run import resume_run
from pynade.runs.score import score_run, write_record
from pynade.runs.summary import describe_run, read_json, read_metrics, read_spec


@pytest.fixture
def run(finished_run, tmp_path):
    for path in finished_run.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def without(path, key):
    content = json.loads(path.read_text())
    del content[key], content["digest"]  # which would not fit
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("key", ["model", "parameters", "data", "data_checksum"])
def test_a_spec_without_a_key_names_the_file(run, key):
    without(run / "spec.json", key)
    for read in (read_spec, describe_run, resume_run, read_metrics):
        with pytest.raises(ValueError, match=rf"spec\.json is damaged: expected {key} \("):
            read(run)


@pytest.mark.parametrize("key", ["status", "stopped"])
def test_a_result_without_a_key_names_the_file(run, key):
    without(run / "result.json", key)
    with pytest.raises(ValueError, match=rf"result\.json is damaged: expected {key} \("):
        resume_run(run)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("result", "epochs"),
        ("result", "valid"),
        ("result", "seconds"),
        ("provenance", "started"),
        ("spec", "data"),
    ],
)
def test_a_record_needs_all_that_it_says(run, name, key):
    score = score_run(run, read_spec(run)["data"], split="train")
    without(run / f"{name}.json", key)
    with pytest.raises(ValueError, match=rf"{name}\.json is damaged: expected {key} \("):
        write_record(run / "record.json", run, score)
    assert not (run / "record.json").exists()


@pytest.mark.parametrize(
    "text", ["", "[1]", "3", "null", "{", "[" * 100_000, '{"a": ' + "9" * 300_000 + "}", "\xff"]
)
def test_what_is_no_object_of_json_names_the_file(tmp_path, text):
    (tmp_path / "spec.json").write_bytes(text.encode("latin-1"))
    for read in (read_spec, lambda folder: read_json(folder / "spec.json")):
        with pytest.raises(ValueError, match=r"spec\.json is damaged: ") as error:
            read(tmp_path)
        assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "line",
    ["[1]", "3", "null", "{", "[" * 100_000, '{"epoch": 1}', '{"epoch":1,"train":"x","valid":0,"best":true}'],
)
@pytest.mark.parametrize("read", [read_metrics, training_curve])
def test_a_damaged_line_of_metrics_names_the_file(run, line, read):
    (run / "model.safetensors").unlink()  # as of an unfinished run
    (run / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(Damaged, match=r"metrics\.jsonl is damaged"):
        read(run)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"metrics\.jsonl is missing"):
        read(run)


def test_metrics_of_a_finished_run_are_those_of_its_model(run):
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    assert [line["epoch"] for line in read_metrics(run)] == [1, 2]
    changed = json.loads(lines[0])
    changed["train"] -= 0.001
    for other in ([json.dumps(changed), lines[1]], lines[:1], [*lines, lines[1]]):
        path.write_text("\n".join(other) + "\n")
        with pytest.raises(
            Damaged, match=r"metrics\.jsonl is damaged: it differs from the history of the model"
        ):
            read_metrics(run)
        with pytest.raises(Damaged, match="it differs from the history of the model"):
            training_curve(run)
    (run / "model.safetensors").unlink()  # unfinished: there is nothing to compare with
    assert len(read_metrics(run)) == 3


def rewritten(path, key, change):
    """Change the JSON in the metadata of a safetensors file, and its tensors."""
    with safe_open(path, framework="pt") as f:
        facts, tensors = json.loads(f.metadata()[key]), {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    change(facts, tensors)
    save_file(tensors, path, {key: json.dumps(facts)})


@pytest.mark.parametrize(
    "estimator", [3, {"fitted": 3}, {"fitted": {"schema_": {}}}, {"fitted": {"schema_": 3}}]
)
def test_info_about_damaged_metadata_names_the_file(run, estimator):
    rewritten(run / "model.safetensors", "pynade", lambda facts, _: facts.update(estimator=estimator))
    with pytest.raises(Damaged, match=r"model\.safetensors is damaged"):
        describe_run(run)
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be loaded"):
        pynade.load(run)


@pytest.mark.parametrize("key", ["epoch", "history", "tensor"])
def test_a_checkpoint_that_lacks_something_is_named(tmp_path, key):
    X = (np.random.default_rng(0).random((60, 4)) < 0.4).astype(np.uint8)
    model = pynade.NADE(hidden=3, epochs=4, random_state=0)
    model.fit(X, folder=tmp_path)
    (path,) = tmp_path.glob("checkpoint*")

    def change(facts, tensors):
        if key == "tensor":
            tensors.pop(next(name for name in tensors if "bias" in name))
        elif key == "history":
            facts.pop("history", None)
            facts.pop("histories", None)
        else:
            facts.pop(key)

    rewritten(path, "checkpoint", change)
    with pytest.raises(Damaged, match=rf"{path.name} is damaged \(remove it to begin anew\)"):
        model.fit(X, folder=tmp_path, resume=True)
