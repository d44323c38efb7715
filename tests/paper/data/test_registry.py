"""The registry: names, folders, loading, and conversion of downloads, against small made-up data sets."""

from __future__ import annotations

import gzip
from dataclasses import replace

import numpy as np
import pytest

from pynade.tables import data_directory
from pynade.tables.registry import entries, entry, load
from pynade_paper.data.catalogue import Entry, Upstream
from pynade_paper.data.convert import amat_parts_with_target, letters_parts, libsvm_parts, shuffled
from pynade_paper.data.download import DownloadError
from pynade_paper.data.entries import ENTRIES
from pynade_paper.data.loading import load_entry
from pynade_paper.data.packed import content_digest, pack, write_packed

from .helpers import letter_line, libsvm_text

SIZES = {"train": 6, "valid": 2, "test": 3}


def random_parts(D: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(D)
    return {part: draw.integers(0, 2, (n, D), dtype=np.uint8) for part, n in SIZES.items()}


def made_up(convert, parts, upstream) -> Entry:
    D = parts["train"].shape[1]
    content = {part: content_digest([pack(rows)], D) for part, rows in parts.items()}
    files = tuple(Upstream(address) for address in upstream)
    return Entry("toy", "A toy", D, SIZES, "nobody", files, convert, content, notes=("made up",))


@pytest.fixture
def libsvm_toy(site):
    parts = random_parts(9)
    addresses = [site.put(f"toy_{part}.libsvm", libsvm_text(rows)) for part, rows in parts.items()]
    return parts, made_up(libsvm_parts, parts, addresses)


def assert_parts(data, parts):
    assert data.sizes == {part: len(rows) for part, rows in parts.items()}
    for part, rows in parts.items():
        np.testing.assert_array_equal(data.split(part), rows)
        assert data.split(part).dtype == np.uint8


def test_names_and_entries():
    assert {"adult", "rcv1", "binarized_mnist", "digits", "rcv1_valid_only"} <= set(entries())
    for name in entries():
        item = entry(name)
        assert item.name == name
        assert item.sizes
    for name in ENTRIES:  # those of the paper; the library's own come with it
        assert entry(name).addresses or entry(name).by_hand
        assert set(entry(name).sizes) == {"train", "valid", "test"}
    for item in ENTRIES.values():
        assert all(part in item.stored_sizes for key in item.content for part in key.split("+"))


@pytest.mark.parametrize("wrong", ["mushroms", "Mushrooms"])
def test_an_unknown_name_is_answered_with_the_nearest(wrong):
    message = rf"unknown data set '{wrong}': did you mean 'mushrooms'\? \(known: adult, connect4, "
    with pytest.raises(ValueError, match=message):
        load(wrong)
    with pytest.raises(ValueError, match=r"unknown data set 'zzz' \(known: adult"):
        entry("zzz")


def test_data_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("PYNADE_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("PYNADE_DATA", "")
    assert data_directory().name == "pynade"
    assert data_directory("~/x").is_absolute()


def test_digits_need_neither_network_nor_folder(monkeypatch):
    monkeypatch.setenv("PYNADE_DATA", "/nowhere/at/all")
    data = load("digits", download=False)
    assert data.n_variables == 64
    assert data.train.max() == 1
    assert data.provenance["source"] == "digits"
    assert any("8 or more" in note for note in data.provenance["notes"])


def test_libsvm_end_to_end(site, tmp_path, libsvm_toy, capfd):
    parts, item = libsvm_toy
    calls = []
    data = load_entry(item, tmp_path, progress=lambda *now: calls.append(now))
    assert_parts(data, parts)
    assert data.provenance["notes"] == ["made up"]
    assert data.provenance["file"] == "toy.npz"
    assert str(tmp_path) not in str(data.provenance)
    assert {call[2] for call in calls} == {"toy_train.libsvm", "toy_valid.libsvm", "toy_test.libsvm"}
    assert sorted(file.name for file in (tmp_path / "upstream" / "toy").iterdir()) == sorted(site.asked)
    again = load_entry(item, tmp_path, download=False)
    assert again.checksum == data.checksum
    assert len(site.asked) == 3
    assert capfd.readouterr() == ("", "")


def test_amat_end_to_end(site, tmp_path):
    parts = random_parts(7)
    addresses = [
        site.put(f"{part}.amat", "".join(" ".join(map(str, row)) + " 0\n" for row in rows))
        for part, rows in parts.items()
    ]
    assert_parts(load_entry(made_up(amat_parts_with_target, parts, addresses), tmp_path), parts)


def test_letters_end_to_end(site, tmp_path):
    parts = random_parts(128)
    published = np.empty((11, 128), dtype=np.uint8)
    published[shuffled(11, 12345)] = np.concatenate(list(parts.values()))
    text = "".join(letter_line(row) for row in published).encode()
    item = made_up(letters_parts, parts, [site.put("letter.data.gz", gzip.compress(text))])
    data = load_entry(replace(item, image_shape=(16, 8)), tmp_path)
    assert_parts(data, parts)
    assert data.image_shape == (16, 8)


def test_files_put_there_by_hand_are_used(site, tmp_path, libsvm_toy):
    parts, item = libsvm_toy
    folder = tmp_path / "upstream" / "toy"
    folder.mkdir(parents=True)
    for name, content in site.files.items():
        (folder / name).write_bytes(content)
    assert_parts(load_entry(item, tmp_path), parts)
    assert site.asked == []


def test_published_files_that_changed_are_set_aside(site, tmp_path, libsvm_toy):
    parts, item = libsvm_toy
    good = site.files["toy_test.libsvm"]
    site.put("toy_test.libsvm", libsvm_text(1 - parts["test"]))
    message = "published files of data set 'toy' .* the rows of test are not the recorded ones; .* renamed"
    with pytest.raises(DownloadError, match=message):
        load_entry(item, tmp_path)
    assert not item.path(tmp_path).exists()
    assert (tmp_path / "upstream" / "toy" / "toy_test.libsvm.rejected").exists()
    site.put("toy_test.libsvm", b"no such format")
    with pytest.raises(DownloadError, match="line 1: expected index:value"):
        load_entry(item, tmp_path)
    site.put("toy_test.libsvm", libsvm_text(parts["test"][1:]))
    with pytest.raises(DownloadError, match=r"expected the rows .*'test': 3.* but .*'test': 2"):
        load_entry(item, tmp_path)
    site.put("toy_test.libsvm", good)
    assert_parts(load_entry(item, tmp_path), parts)


def test_no_download_says_which_file_and_which_command(tmp_path):
    message = r"data set 'dna' is not at .*binary.dna\.npz; run `pynade data get dna` to download it$"
    with pytest.raises(FileNotFoundError, match=message):
        load("dna", tmp_path, download=False)


def test_a_failed_download_says_which_data_set(site, tmp_path, libsvm_toy):
    _, item = libsvm_toy
    del site.files["toy_valid.libsvm"]
    with pytest.raises(DownloadError, match=r"data set 'toy' is not at .*, and .* the server answered 404"):
        load_entry(item, tmp_path)
    assert not item.path(tmp_path).exists()


def test_a_prepared_file_in_a_folder_that_cannot_be_written(tmp_path, libsvm_toy):
    parts, item = libsvm_toy
    write_packed(item.path(tmp_path), {part: pack(rows) for part, rows in parts.items()}, item.D)
    folders = [tmp_path / "binary", tmp_path]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert_parts(load_entry(item, tmp_path), parts)
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize("keep", [0, 10, 200, -30])
def test_a_damaged_prepared_file_is_named(tmp_path, libsvm_toy, keep):
    parts, item = libsvm_toy
    path = item.path(tmp_path)
    write_packed(path, {part: pack(rows) for part, rows in parts.items()}, item.D)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"the data file .*toy\.npz is damaged"):
        load_entry(item, tmp_path)


def test_a_prepared_file_of_something_else_is_named(tmp_path, libsvm_toy):
    parts, item = libsvm_toy
    path = item.path(tmp_path)
    packed = {part: pack(rows) for part, rows in parts.items()}
    for wrong, D, message in [
        ({**packed, "valid": packed["valid"][::-1] ^ 128}, 9, "the rows of valid are not the recorded ones"),
        (packed, 10, "expected 9 columns, but 10 were found"),
        ({"train": packed["train"]}, 9, "expected the rows"),
        ({**packed, "test": packed["test"][:, :1]}, 9, "its 'test' part has shape"),
    ]:
        write_packed(path, wrong, D)
        with pytest.raises(ValueError, match=rf"toy\.npz is .*{message}"):
            load_entry(item, tmp_path)
    write_packed(path, {**packed, "valid": packed["valid"][::-1]}, 9)  # another order is no other content
    np.testing.assert_array_equal(load_entry(item, tmp_path).valid, parts["valid"][::-1])


def test_partitions_are_told_apart(tmp_path, libsvm_toy):
    parts, item = libsvm_toy
    packed = {part: pack(rows) for part, rows in parts.items()}
    both = {"train+valid": content_digest([packed["train"], packed["valid"]], 9)}
    item = replace(item, content=both, partitions={item.content["train"]: "ours"})
    write_packed(item.path(tmp_path), packed, 9)
    assert load_entry(item, tmp_path).provenance["partition"] == "ours"
    pool = np.concatenate([packed["valid"], packed["train"]])
    write_packed(item.path(tmp_path), {**packed, "train": pool[:6], "valid": pool[6:]}, 9)
    assert load_entry(item, tmp_path).provenance["partition"].startswith("train and valid as in the files at")


def test_the_validation_part_of_rcv1_is_not_rcv1(tmp_path):
    rows = np.random.default_rng(0).integers(0, 2, (10000, 150), dtype=np.uint8)
    write_packed(ENTRIES["rcv1_valid_only"].path(tmp_path), {"valid": pack(rows)}, 150)
    trap = "rcv1_valid_only.npz beside it is its validation part alone"
    with pytest.raises(FileNotFoundError, match=trap):
        load("rcv1", tmp_path, download=False)
    nowhere = replace(ENTRIES["rcv1"], upstream=(Upstream("http://127.0.0.1:9/rcv1.amat"),))
    with pytest.raises(DownloadError, match=trap):
        load_entry(nowhere, tmp_path)
    item = replace(ENTRIES["rcv1_valid_only"], content={})
    data = load_entry(item, tmp_path)
    assert data.sizes == {"train": 8000, "valid": 1000, "test": 1000}
    assert sorted(map(bytes, data.split("all"))) == sorted(map(bytes, rows))
    assert "not comparable with RCV1" in data.provenance["notes"][0]
