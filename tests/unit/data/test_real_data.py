"""The real data sets, from the folder PYNADE_DATA names."""

from __future__ import annotations

import gzip
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from pynade.data import Upstream, entry, load, load_entry, names
from pynade.data.convert import LETTERS_SEED, shuffled
from pynade.data.registry import prepared_path

from .helpers import letter_line, libsvm_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("PYNADE_DATA"), reason="PYNADE_DATA names no folder of real data"),
]

CHECKSUMS = {
    "adult": "9516c85dd182",
    "connect4": "ea980eb3cd22",
    "dna": "25acc2755fbd",
    "mushrooms": "427458225ea7",
    "nips_0_12": "70bef4661c33",
    "ocr_letters": "43936bef340a",
    "web": "054527b3fa4d",
    "binarized_mnist": "2c07dcd1c50d",
    "digits": "28a87e65a46a",
    "rcv1_valid_only": "0ba8c3afd337",
}


def loaded(name: str):
    if not entry(name).bundled and not prepared_path(name).exists():
        pytest.skip(f"no prepared file of {name}")
    return load(name, download=False)


@pytest.mark.parametrize("name", names())
def test_prepared_files_load_quickly_and_are_what_they_say(name):
    loaded("digits")  # so that scikit-learn is imported before the clock starts
    start = time.perf_counter()
    data = loaded(name)
    assert time.perf_counter() - start < 1.0
    item = entry(name)
    assert data.n_variables == item.D
    assert data.sizes == item.sizes
    assert data.image_shape == item.image_shape
    assert set(np.unique(data.split("all"))) == {0, 1}


@pytest.mark.parametrize("name", CHECKSUMS)
def test_prepared_copies_have_the_recorded_checksum(name):
    assert loaded(name).checksum.startswith(CHECKSUMS[name])


def test_the_share_of_test_rows_seen_in_training():
    for name, share in {"web": 0.27, "adult": 0.127, "ocr_letters": 0.062, "dna": 0.052}.items():
        data = loaded(name)
        seen = set(map(bytes, data.train))
        found = np.mean([bytes(row) in seen for row in data.test])
        assert found == pytest.approx(share, abs=0.005), name


def test_web_says_whose_partition_it_is():
    assert "not Larochelle's" in loaded("web").provenance["partition"]


def amat_text(rows: np.ndarray, end: str = "\n") -> bytes:
    text = np.full((len(rows), 2 * rows.shape[1]), ord(" "), dtype=np.uint8)
    text[:, ::2] = rows + ord("0")
    return b"".join(row[:-1].tobytes() + end.encode() for row in text)


def published(name: str, data) -> list[bytes]:
    """Write the files again as they are published."""
    if name == "ocr_letters":
        rows = np.empty((52152, 128), dtype=np.uint8)
        rows[shuffled(52152, LETTERS_SEED)] = data.split("all")
        return [gzip.compress("".join(letter_line(row) for row in rows).encode(), compresslevel=1)]
    if name == "nips_0_12":
        return [amat_text(rows, " 0\n") for rows in data.parts.values()]
    if name == "binarized_mnist":
        return [amat_text(rows) for rows in data.parts.values()]
    return [libsvm_text(rows).encode() for rows in data.parts.values()]


@pytest.mark.parametrize(
    "name", ["adult", "connect4", "dna", "mushrooms", "nips_0_12", "ocr_letters", "web", "binarized_mnist"]
)
def test_a_download_gives_the_same_data_set(site, tmp_path, name):
    """For binarized MNIST the text must even have the published SHA-256."""
    data = loaded(name)
    item = entry(name)
    upstream = tuple(
        Upstream(site.put(file.address.rsplit("/", 1)[1], content), file.sha256)
        for file, content in zip(item.upstream, published(name, data), strict=True)
    )
    again = load_entry(replace(item, upstream=upstream), tmp_path)
    assert again.checksum == data.checksum


def test_ocr_letters_unshuffled_spell_the_first_word():
    """The published file begins with the letters o, m, m: the second and third are low."""
    data = loaded("ocr_letters")
    order = shuffled(52152, LETTERS_SEED)
    at = {int(position): row for position, row in zip(order[32152:], data.split("all")[32152:], strict=True)}
    for position in (1, 2):
        ink = at[position].reshape(16, 8).any(axis=1)
        assert ink.sum() < 6
    assert at[0].reshape(16, 8).any(axis=1).sum() > 8
