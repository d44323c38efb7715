"""`pynade fit --resume` after a kill: every kind of model ends as if it had not been interrupted."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pynade.digest import read_json
from pynade.runs.run import resume_run, start_run

NET = {"hidden": 5, "epochs": 6, "batch_size": 20}
WILD = {"optimizer": "sgd", "batch_size": 1, "learning_rate": 100.0, "weight_decay": 0.1}
IMAGE = {"blueprint": "4@3x3(valid)->4@3x3(full)->1@3x3(same)", "epochs": 3}
MIXED = {"width": 8, "depth": 1, "heads": 2, "n_components": 2, "epochs": 5}
EM = {"epochs": 8, "tol": 0.0, "patience": None}

#: model, its parameters, its data, and the ends of epochs after which it is killed, one after the other
KINDS = {
    "nade": ("nade", NET | {"momentum": 0.9, "optimizer": "sgd"}, "binary", (2, 3)),
    "nade, averaged weights": ("nade", NET | {"ema": 0.9, "schedule": "cosine"}, "binary", (4,)),
    "nade, whose rate was divided by ten": ("nade", NET | WILD, "binary", (1, 3)),
    "made-e": ("made-e", NET | {"n_orderings": 3, "dropout": 0.2}, "binary", (1, 2)),
    "deepnade, pretrained": ("deepnade", NET | {"hidden": [5, 4], "pretrain_epochs": 2}, "binary", (6,)),
    "rnade": ("rnade", NET | {"n_components": 2, "patience": 1}, "real", (1,)),
    "transformer": ("transformer", MIXED, "real", (3,)),
    "permuted-transformer": ("permuted-transformer", MIXED | {"n_orderings": 2}, "real", (3,)),
    "tabularnade": ("tabularnade", {"hidden": 8, "epochs": 5, "schema": {"a": "integer"}}, "mixed", (1, 3)),
    "tabularnade, of rows that are read in parts": (
        "tabularnade",
        {"hidden": 8, "epochs": 5, "updates_per_epoch": 3, "stream_above": 0.0, "members": 1},
        "mixed",
        (1, 3),
    ),
    "convnade": ("convnade", IMAGE, "digits", (2,)),
    "mob": ("mob", EM | {"n_components": [2, 3]}, "binary", (4, 10)),
    "chow-liu": ("chow-liu", EM | {"n_components": 2, "alpha": [0.1, 1.0]}, "binary", (3, 12)),
    "gaussian": ("gaussian", {}, "real", (1,)),
    "mog": ("mog", EM | {"n_components": [1, 3]}, "real", (5, 9)),
    "mog in minibatches": (
        "mog",
        EM | {"n_components": [2, 3], "minibatch": True, "batch_size": 30},
        "real",
        (5, 9),
    ),
    "mfa": ("mfa", EM | {"n_components": [1, 2], "n_factors": [1, 2], "tol": 0.01}, "real", (2, 3)),
    "rbm": (
        "rbm",
        {"hidden": 4, "learning_rate": [0.1, 0.02], "epochs": 8, "evaluate_every": 3, "persistent": True},
        "binary",
        (2, 4),
    ),
    "rbm too large for exact scores": (
        "rbm",
        {"hidden": 27, "epochs": 4, "ais_chains": 5, "ais_steps": 10},
        "wide",
        (2,),
    ),
}


class Killed(Exception):
    pass


def data(tmp_path, kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 1)) * np.where(np.arange(30) % 2, 1, -1) + rng.normal(size=(90, 30))
    tables = {"binary": (x[:, :5] > 0.2).astype(int), "wide": (x > 0).astype(int), "real": x[:, :4]}
    if kind in tables:
        np.save(tmp_path / f"{kind}.npy", tables[kind])
        return f"{kind}.npy"
    if kind == "mixed":
        lines = [f"{a:.0f},{'xyz'[i % 3]},{b if i % 5 else ''}" for i, (a, b) in enumerate(x[:, :2])]
        (tmp_path / "mixed.csv").write_text("\n".join(["a,b,c", *lines]))
        return "mixed.csv"
    return kind


def parts(folder):
    """What is left of a finished run, without wall times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    facts = [read_json(folder / name) for name in ("result.json", "spec.json")]
    for line in (*lines, *facts):
        line.pop("seconds", None)
    return lines, facts


@pytest.mark.filterwarnings("ignore:the partition function of so large an RBM is estimated")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_to_the_identical_result(run, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)
    model, parameters, name, kills = KINDS[kind]
    table, parameters = data(tmp_path, name), parameters | {"device": "cpu", "random_state": 3}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    epochs = []
    start_run(whole, model, parameters, table, callbacks=[lambda p: epochs.append(p.epoch_done) and None])
    assert sum(epochs) >= sum(kills)

    def kill_after(n):
        ends = []

        def kill(p):
            ends.append(p.epoch_done)
            if sum(ends) == n:
                raise Killed

        return kill

    with pytest.raises(Killed):
        start_run(killed, model, parameters, table, callbacks=[kill_after(kills[0])])
    for n in kills[1:]:
        with pytest.raises(Killed):
            resume_run(killed, callbacks=[kill_after(n)])
    assert not (killed / "result.json").exists()
    assert "unfinished" in run("info", "killed")[1]
    code, _, err = run("fit", "--resume", "killed")
    assert code == 0, err
    assert parts(killed) == parts(whole)
    mine, its = (load_file(folder / "model.safetensors") for folder in (killed, whole))
    assert mine.keys() == its.keys()
    for key, tensor in its.items():
        np.testing.assert_array_equal(mine[key], tensor)
    assert {p.name for p in killed.iterdir()} == {p.name for p in whole.iterdir()}  # no checkpoint is left


def test_resume_goes_on_after_the_last_checkpoint_and_does_not_begin_anew(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)
    for model, parameters, name, _ in (KINDS["nade"], KINDS["mog in minibatches"], KINDS["rbm"]):
        table, folder = data(tmp_path, name), tmp_path / model

        def kill(p):
            if p.epoch == 5:
                raise Killed

        with pytest.raises(Killed):
            start_run(folder, model, parameters | {"device": "cpu"}, table, callbacks=[kill])
        first = []
        resume_run(folder, callbacks=[lambda p, first=first: first.append(p.epoch) and None])
        assert first[0] == 5


def test_a_run_keeps_the_name_of_its_data_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("penguins", "again"):  # the first run is such a folder
        start_run(Path(name), "tabularnade", {"hidden": 8, "epochs": 1, "members": 1}, "penguins")
        assert read_json(Path(name, "spec.json"))["data"] == "penguins"
