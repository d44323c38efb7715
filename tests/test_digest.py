"""A changed bit in a saved model, a checkpoint or a JSON file of a run is found, wherever it is."""

import json
import logging
from pathlib import Path

import pytest
import torch

import pynade
from pynade.atomic import write_json
from pynade.digest import Damaged, add_digest, read_json
from pynade.families import Bernoulli
from pynade.models import Autoregressive
from pynade.nets import NADENet
from pynade.ordering import Ordering
from pynade.store import load_density, save_density
from pynade.training.checkpoint import load_checkpoint, save_checkpoint

SAVED = Path(__file__).parent / "data" / "saved_0_1"
FACTS = {"status": "finished", "valid": {"mean": -1.25}, "3": [1, 2], "data_checksum": "ab" * 32}


def save_model(path):
    save_density(Autoregressive(NADENet(3, hidden=2), Bernoulli(), Ordering([1, 0, 2])), path, {"x": 1})


def save_state(path):
    save_checkpoint(path, {"model": {"w": torch.arange(5.0)}, "adam": {"w": torch.ones(2)}}, {"epoch": 3})


KINDS = {
    "model": (save_model, load_density),
    "model of the user": (save_model, pynade.load),
    "checkpoint": (save_state, load_checkpoint),
    "json": (lambda path: write_json(path, add_digest(FACTS)), read_json),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere_is_one_sentence_that_names_the_file(kind, tmp_path):
    write, read = KINDS[kind]
    path = tmp_path / "file"
    write(path)
    read(path)
    content = path.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        if kind == "json" and blank(changed, content):
            continue
        with pytest.raises(Damaged, match="damaged") as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def blank(changed, content):
    """Whether only the space between entries of JSON differs."""
    try:
        return json.loads(changed) == json.loads(content)
    except ValueError:
        return False


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_read(kind, tmp_path):
    write, read = KINDS[kind]
    write(tmp_path / "file")
    found = read(tmp_path / "file")
    if kind == "json":
        assert found == FACTS
    elif kind == "checkpoint":
        assert found[1] == {"epoch": 3}
        assert found[0]["model"]["w"].tolist() == [0, 1, 2, 3, 4]
    else:
        assert kind != "model" or found[1]["x"] == 1


def test_keys_that_are_numbers_have_the_digest_of_their_texts(tmp_path):
    write_json(tmp_path / "a.json", add_digest({"sizes": {9: 1, 10: 2}, "pair": (1, 2)}))
    assert read_json(tmp_path / "a.json") == {"sizes": {"9": 1, "10": 2}, "pair": [1, 2]}


@pytest.mark.parametrize("name", ["nade.safetensors", "run-nade/spec.json"])
def test_files_of_before_load_and_the_log_says_that_they_are_not_verified(name, caplog):
    read = read_json if name.endswith("json") else load_density
    with caplog.at_level(logging.INFO, "pynade"):
        read(SAVED / name)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert name in caplog.text
    assert "has no digest (written by an earlier version): not verified" in caplog.text


def test_new_files_are_not_logged(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "pynade"):
        for kind, (write, read) in KINDS.items():
            write(tmp_path / kind)
            read(tmp_path / kind)
    assert caplog.text == ""
