"""Commands on runs whose files lack something, or say what cannot be: one sentence that names the file."""

import json
import re
import shutil

import numpy as np
import pytest

from pynade.digest import add_digest, read_json

RESULT = ["epochs", "best_epoch", "train_log_likelihood", "valid", "seconds", "valid.mean", "valid.exact"]
ODD = [float("inf"), float("nan"), 1e300, -3, 0, "x", None, [], [1e9], {"a": 1}, 10**30, [[1]], True]


@pytest.fixture
def folder(finished_run, tmp_path):
    return shutil.copytree(finished_run, tmp_path / "r")


def change(path, place, *value):
    """Give an entry another value, or leave it out, and seal the file again."""
    facts = part = read_json(path)
    *above, key = place.split(".")
    for name in above:
        part = part[name]
    del part[key]
    part |= dict.fromkeys([key], *value) if value else {}
    path.write_text(json.dumps(add_digest(facts)))


@pytest.mark.parametrize("value", [(), ("x",), ([[]],)], ids=str)
@pytest.mark.parametrize("key", RESULT)
def test_a_result_that_lacks_something_is_named(folder, run, key, value):
    if value and key in ("best_epoch", "train_log_likelihood"):
        return  # printed as they are
    change(folder / "result.json", key, *value)
    code, out, err = run("fit", "--resume", "r")
    assert (code, out) == (4, "")
    name = key.split(".")[-1]
    assert re.fullmatch(rf"Error: r/result\.json is damaged: expected {name} \(.*\n", err), err


@pytest.mark.parametrize("key", ["hidden", "epochs", "batch_size", "learning_rate", "device", "random_state"])
@pytest.mark.parametrize("value", ODD, ids=str)
def test_settings_that_cannot_be_name_their_file(folder, run, key, value):
    change(folder / "spec.json", f"parameters.{key}", value)
    for name in ("result.json", "model.safetensors"):
        (folder / name).unlink()
    code, _, err = run("fit", "--resume", "r")
    assert code in (0, 1)
    if code and not ("diverged" in err or "are not those the run in r began with" in err):  # of another seed
        assert re.fullmatch(r"Error: .*the run cannot go on as r/spec\.json says: .*\n", err), err
    assert run("info", "r")[0] == 0


def test_one_validation_row_has_no_standard_error(run, tmp_path):
    X = (np.random.default_rng(0).random((41, 4)) < 0.4).astype(np.uint8)
    np.savez(tmp_path / "one.npz", train=X[:40], valid=X[40:], test=X[40:])
    code, out, err = run("fit", "one.npz", "--model", "nade", "--hidden", "2", "--epochs", "1", "--out", "r")
    assert code == 0, err
    assert re.search(r"validation -\d+\.\d{3} nats \(exact\)", out)
    words = ["sweep", "one.npz", "--model", "nade", "--set", "epochs=1", "--grid", "hidden=2", "--out", "s"]
    code, out, err = run(*words)
    assert code == 0, err
    assert re.search(r"test -\d+\.\d{3} nats \(s\.e\. over 1 rows\)", out)
