"""Headers of model files, read without torch."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pynade
from pynade.digest import read_header
from pynade.store import load_density

RNG = np.random.default_rng(0)
BITS = (RNG.random((60, 6)) < 0.4).astype(np.uint8)
REALS = RNG.normal(size=(60, 6))


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (pynade.NADE(hidden=3, epochs=1), BITS),
        (pynade.MADE(hidden=(4,), epochs=1), BITS),
        (pynade.RNADE(hidden=3, epochs=1), REALS),
        (pynade.DeepRNADE(hidden=(3, 4), epochs=1), REALS),
        (pynade.RBM(hidden=4, epochs=1), BITS),
        (pynade.ChowLiu(), BITS),
        (pynade.Gaussian(), REALS),
        (pynade.ConvNADE(blueprint="2@2x2(valid)->1@2x2(full)", image_shape=(2, 3), epochs=1), BITS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_and_variables_are_those_of_the_model(tmp_path, model, rows):
    path = tmp_path / "m.safetensors"
    model.fit(rows).save(path)
    density, facts = load_density(path)
    numbers = sum(p.numel() for p in density.parameters())
    if not numbers:
        numbers = sum(b.numel() for b in density.buffers() if b.is_floating_point())
    header = read_header(path)
    assert header.n_weights == numbers
    assert header.n_variables == rows.shape[1]
    assert header.facts == facts
    assert header._replace(facts={**facts, "estimator": {}}).n_variables == rows.shape[1]


def write(path, header: bytes, length: int | None = None):
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header)


def test_other_files_are_refused_in_one_sentence(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(FileNotFoundError, match="there is no model file at"):
        read_header(path)
    for content in (b"", b"abc", b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged or no model file"):
            read_header(path)
    write(path, b"[1, 2]")
    with pytest.raises(ValueError, match="is damaged or no model file"):
        read_header(path)
    write(path, b"{}", length=10**9)
    with pytest.raises(ValueError, match="its header is longer than the file"):
        read_header(path)
    write(path, b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}')
    with pytest.raises(ValueError, match="not one that pynade wrote"):
        read_header(path)
    for facts, message in (
        ("{", "metadata of .* is damaged"),
        ('{"format": 1}', "metadata of .* is damaged: 'spec'"),
        ('{"format": 99, "spec": {}, "version": "9.9"}', "has format 99, written by pynade 9.9"),
    ):
        write(path, json.dumps({"__metadata__": {"pynade": facts}}).encode())
        with pytest.raises(ValueError, match=message):
            read_header(path)
