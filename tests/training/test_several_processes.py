"""Several processes, and one that computes minibatches in pieces, train as one that computes them whole."""

import json
import shutil
import signal
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pynade.digest import read_json
from pynade.nets.layers import apply_dropout
from pynade.processes import enter_in_first, minibatch_part, process_slices
from pynade.training import Gradient, Member, fit_population
from tests.cli.conftest import run as run  # a fixture
from tests.cli.test_resume import data
from tests.estimators.cases import ESTIMATORS, binary
from tests.training.several import NETS, course, fitted, torchrun

CLOSE = {"rtol": 1e-4, "atol": 5e-6}
whole = cache(fitted)


def assert_same_course(found, expected):
    for name in ("stopped", "best_epoch"):
        assert found[name] == expected[name]
    for ours, theirs in zip(found["epochs"], expected["epochs"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder in which two processes have put the fitted models of all estimators."""
    folder = tmp_path_factory.mktemp("two")
    done = torchrun(2, "models", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", NETS)
def test_two_processes_train_as_one(two, name):
    expected, found = whole(name), load_file(two / f"{name}.safetensors")
    for key, tensor in expected.model_.state_dict().items():
        torch.testing.assert_close(found[key], tensor, **CLOSE)
    assert_same_course(json.loads((two / f"{name}.json").read_text()), course(expected))


def test_two_processes_decide_alike(two):
    first, second = json.loads((two / "facts.json").read_text())
    assert first["calls"] >= 2
    assert second["calls"] == 0
    assert first | {"calls": 0} == second
    assert first["epochs"] == 2
    own, tree = first["refusals"]
    assert "draws other random numbers in every process" in own
    assert tree == "ChowLiu is fitted by one process: start it without torchrun"


@pytest.mark.parametrize("name", NETS)
def test_a_minibatch_in_pieces_gives_the_same_updates(name):
    expected, found = whole(name), fitted(name, accumulate=3)
    for key, tensor in expected.model_.state_dict().items():
        torch.testing.assert_close(found.model_.state_dict()[key], tensor, **CLOSE)
    assert_same_course(course(found), course(expected))


@pytest.mark.parametrize("name", ["made-e", "deepnade", "permuted-transformer"])
def test_so_it_does_in_a_population(name):
    make, kind = ESTIMATORS[name]
    x = binary(60) if kind == "binary" else np.random.default_rng(0).normal(size=(60, 3))
    trained = []
    for count in (1, 4):
        models = [make(dropout=0.2).build(x, seed) for seed in (0, 1)]
        options = Gradient(epochs=3, batch_size=25, accumulate=count)
        fit_population([Member(model, x, None, options) for model in models])
        trained.append([model.state_dict() for model in models])
    for plain, cut in zip(*trained, strict=True):
        for key in plain:
            torch.testing.assert_close(cut[key], plain[key], **CLOSE)


@pytest.mark.parametrize("how", ["rows", "members", "maps", "maps last", "a rate for each"])
def test_what_a_piece_drops_is_what_the_minibatch_drops_there(how):
    axis, x = int(how == "members"), torch.zeros(13, 2)
    h = torch.ones((13, 4, 3, 5) if "maps" in how else (3, 13, 6) if axis else (13, 6))
    h = h.contiguous(memory_format=torch.channels_last) if how == "maps last" else h
    rate = torch.tensor(0.4) if how == "a rate for each" else 0.4
    expected = apply_dropout(h, rate, torch.Generator().manual_seed(0), axis)
    assert 0 < expected.count_nonzero() < h.numel()
    for rows in process_slices(13, 4):
        own = h.narrow(axis, rows.start, rows.stop - rows.start)
        with minibatch_part(x, rows):
            found = apply_dropout(own, rate, torch.Generator().manual_seed(0), axis)
        assert torch.equal(found, expected.narrow(axis, rows.start, rows.stop - rows.start))


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 4, 100])
def test_the_pieces_of_all_processes_are_all_rows_in_order(monkeypatch, size, count, n):
    found = []
    for rank in range(size):
        monkeypatch.setattr("pynade.processes.rank_and_size", lambda rank=rank: (rank, size))
        mine = process_slices(n, count)
        assert len(mine) <= count
        found += mine
    sizes = [part.stop - part.start for part in found]
    assert sum(sizes) == n
    assert all(a.stop == b.start for a, b in pairwise(found))
    assert not sizes or max(sizes) <= -(-n // (size * count))
    assert not sizes or min(sizes) > 0


def test_what_the_first_process_is_refused_ends_all(monkeypatch):
    class Refused:
        def __enter__(self):
            raise ValueError("in use")

        def __exit__(self, *error):
            raise AssertionError

    with pytest.raises(ValueError, match="in use"), enter_in_first(Refused()):
        raise AssertionError
    monkeypatch.setattr("pynade.processes.is_first", lambda: False)
    monkeypatch.setattr("pynade.processes.value_of_first", lambda value: True)
    with pytest.raises(SystemExit, match="1"), enter_in_first(Refused()):
        raise AssertionError


def results(folder):
    """What a run has left: tensors, and facts without times and digests."""
    facts = read_json(folder / "result.json")
    for name in ("seconds", "digest"):
        facts.pop(name, None)
    return SimpleNamespace(tensors=load_file(folder / "model.safetensors"), facts=facts)


def test_a_fit_by_torchrun_that_was_killed_goes_on_to_the_identical_result(run, tmp_path):
    table = data(tmp_path, "mixed")
    fit = ["fit", table, "--hidden", 8, "--epochs", 7, "--batch-size", 32, "--dropout", 0.1]
    fit += ["--device", "cpu"]
    assert run(*fit, "--out", "one")[0] == 0
    done = torchrun(2, *fit, "--out", "two", module="pynade")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Next: pynade score two") == 1
    assert {p.name for p in (tmp_path / "two").iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}
    assert read_json(tmp_path / "two" / "provenance.json")["processes"] == 2

    killed = torchrun(2, "command", 1, 3, int(signal.SIGKILL), *fit, "--out", "killed")
    assert killed.returncode != 0
    said = "Error: another process of this job has ended or does not answer", "pynade fit --resume killed"
    assert any(words in killed.stderr for words in said)  # (what it met first)
    asked = torchrun(2, "command", 1, 5, int(signal.SIGTERM), "fit", "--resume", "killed")
    assert asked.returncode != 0
    assert len((tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()) == 5
    shutil.copytree(tmp_path / "killed", tmp_path / "alone")
    done = torchrun(2, "fit", "--resume", "killed", module="pynade")
    assert done.returncode == 0, done.stderr
    assert run("fit", "--resume", "alone")[0] == 0

    one, two, again, alone = (results(tmp_path / name) for name in ("one", "two", "killed", "alone"))
    assert again.facts == two.facts
    for key, tensor in two.tensors.items():
        assert torch.equal(again.tensors[key], tensor)
    for other in (one, alone):  # by one process, from the beginning or from the fifth epoch on
        for key, tensor in two.tensors.items():
            torch.testing.assert_close(other.tensors[key], tensor, **CLOSE)
        for name in ("valid", "gain"):
            assert other.facts[name] == pytest.approx(two.facts[name], rel=1e-4, abs=1e-5)
