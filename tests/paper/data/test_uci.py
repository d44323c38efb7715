"""The UCI tables: which columns are kept, how folds are cut and normalised, from small made-up files."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynade import tables
from pynade_paper.data.catalogue import Upstream
from pynade_paper.data.digests import check_file, file_digest
from pynade_paper.data.download import DownloadError
from pynade_paper.data.entries import ENTRIES
from pynade_paper.data.loading import load_entry
from pynade_paper.data.uci import continuous_columns, cut_folds, fold_dataset

NAMES = ("a", "b", "c")


def tagged(n: int) -> np.ndarray:
    """Rows that can be told apart."""
    return np.arange(3.0 * n).reshape(n, 3) + 0.5


@given(st.integers(20, 60), st.integers(0, 5))
def test_folds_partition_the_rows(n, seed):
    rows = tagged(n)
    tested, validated = [], []
    for training, test in cut_folds(rows, seed):
        assert len(training) == 9
        both = np.concatenate([*training, test])
        np.testing.assert_array_equal(np.sort(both[:, 0]), rows[:, 0])
        sizes = [len(part) for part in (*training, test)]
        assert max(sizes) - min(sizes) <= 1
        tested.append(test)
        validated.append(training[-1])
    for parts in (tested, validated):  # every row is once a test row and once a validation row
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)[:, 0]), rows[:, 0])


def test_the_seed_makes_the_folds():
    rows = tagged(40)
    first, again, other = (cut_folds(rows, seed)[4][1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@given(st.integers(20, 60), st.integers(0, 9), st.integers(0, 100))
def test_folds_are_normalised_by_their_training_rows_alone(n, k, seed):
    rows = np.random.default_rng(seed).normal([1e3, -5.0, 0.0], [10.0, 1e-3, 1.0], (n, 3))
    fold = cut_folds(rows)[k]
    data = fold_dataset(fold, NAMES, str(k + 1), seed=0)
    both = np.concatenate([data.train, data.valid])
    np.testing.assert_allclose(both.mean(axis=0), 0.0, atol=1e-10)
    np.testing.assert_allclose(both.std(axis=0), 1.0, rtol=1e-10)
    mean, std = (np.array(data.provenance[key]) for key in ("mean", "std"))
    np.testing.assert_allclose(data.test * std + mean, fold[1], rtol=1e-10)
    np.testing.assert_allclose(data.valid * std + mean, fold[0][8], rtol=1e-10)
    assert data.train.dtype == data.test.dtype == np.float64
    assert data.provenance["units"] == "normalised: these are the data"
    assert data.provenance["fold"] == k + 1
    moved = fold_dataset((fold[0], fold[1] + 1e6), NAMES, "1", seed=0)
    np.testing.assert_array_equal(moved.train, data.train)


def test_a_constant_column_is_named():
    rows = tagged(20)
    rows[:, 1] = 0.1 + 0.2
    rows[cut_folds(np.arange(20)[:, None])[0][1][:, 0], 1] = 7.5  # varies, but in the test rows only
    rows[:, 1] = np.where(rows[:, 1] == 7.5, 7.5, 0.25)
    with pytest.raises(ValueError, match="column 'b' is constant in the training rows of fold 1"):
        fold_dataset(cut_folds(rows)[0], NAMES, "1", seed=0)


@given(st.integers(0, 1000))
def test_the_earlier_column_of_a_correlated_pair_goes(seed):
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(200, 6))
    rows[:, 1] = draw.integers(0, 9, 200)
    rows[:, 4] = -2 * rows[:, 2] + 1e-3 * draw.normal(size=200)
    assert continuous_columns(rows).tolist() == [0, 3, 4, 5]
    assert continuous_columns(rows, limit=1.0).tolist() == [0, 2, 3, 4, 5]


def red_file(path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for k, (training, test) in enumerate(cut_folds(rows, seed=7), start=1):
            file[f"folds/{k}/tests/1/data"] = test.astype(np.float32)
            for i, part in enumerate(training, start=1):
                file[f"folds/{k}/training/{i}/data"] = part.astype(np.float32)


def unchecked(name: str):
    """A data set whose file is not checked."""
    item = ENTRIES[name]
    return {name: replace(item, form=replace(item.form, check=lambda path: None))}


KNOWN = {**ENTRIES, **unchecked("red_wine")}
folds, load, resolve = (
    partial(function, known=KNOWN) for function in (tables.folds, tables.load, tables.resolve)
)


@pytest.fixture
def red(tmp_path):
    """The rows of a file of red wine, whose content is not checked."""
    rows = np.random.default_rng(0).normal(3.0, 2.0, (57, 11))
    red_file(tmp_path / "uci" / "red_wine_folds.hdf5", rows)
    return rows


def test_red_wine_has_the_folds_of_its_file(tmp_path, red):
    found = folds("red_wine", tmp_path)
    assert len(found) == 10
    for k, (data, (training, test)) in enumerate(zip(found, cut_folds(red, seed=7), strict=True), start=1):
        mean, std = (np.array(data.provenance[key]) for key in ("mean", "std"))
        np.testing.assert_allclose(data.test * std + mean, test, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(data.valid * std + mean, training[8], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            data.train * std + mean, np.concatenate(training[:8]), rtol=1e-6, atol=1e-6
        )
        assert data.name == f"red_wine/{k}"
        assert data.provenance["fold_seed"] is None
        assert data.provenance["file"] == "red_wine_folds.hdf5"
        assert str(tmp_path) not in str(data.provenance)


def test_folds_by_name(tmp_path, red, monkeypatch):
    found = folds("red_wine", tmp_path)
    assert load("red_wine", tmp_path).checksum == found[0].checksum
    assert resolve("red_wine", tmp_path).checksum == found[0].checksum
    assert resolve("red_wine/3", tmp_path).checksum == found[2].checksum
    for wrong in ("red_wine/11", "red_wine/0", "red_wine/x", "red_wine/"):
        with pytest.raises(
            ValueError, match=rf"there is no '{wrong}': expected one of red_wine/1, .*_wine/10$"
        ):
            resolve(wrong, tmp_path)
    with pytest.raises(ValueError, match="there is no 'adult/3': 'adult' has no folds"):
        load("adult/3", tmp_path)
    with pytest.raises(
        ValueError, match="data set 'adult' has no folds; those with folds are: red_wine, white"
    ):
        folds("adult")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "red_wine").mkdir()
    (tmp_path / "red_wine" / "mine.csv").write_text("1,2\n3,4\n")
    assert resolve("red_wine/mine.csv", tmp_path).name == "mine"


def test_red_wine_without_a_file_says_what_to_do(tmp_path):
    message = (
        r"red_wine_folds.hdf5: no address is known .* winequality-red.csv, which can be given as a plain"
    )
    for download in (True, False):
        with pytest.raises(FileNotFoundError, match=message):
            load("red_wine", tmp_path, download=download)


def test_red_wine_without_h5py_names_the_extra(tmp_path, red, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"needs h5py; install it with `pip install h5py`"):
        load("red_wine", tmp_path)


def test_damaged_folds_are_named(tmp_path, red):
    path = tmp_path / "uci" / "red_wine_folds.hdf5"
    red_file(path, red[:, :4])
    with pytest.raises(ValueError, match=r"shape \(6, 4\) at folds/1/training/1/data; expected rows of 11"):
        load("red_wine", tmp_path)
    with h5py.File(path, "w") as file:
        file["all"] = red
    with pytest.raises(ValueError, match="is damaged or holds no folds"):
        load("red_wine", tmp_path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is damaged or holds no folds"):
        load("red_wine", tmp_path)


def test_another_file_of_the_same_name_is_refused(tmp_path):
    path = tmp_path / "uci" / "winequality-white.csv"
    path.parent.mkdir()
    path.write_text("a;b\n1;2\n")
    with pytest.raises(
        ValueError, match=r"-white.csv is not data set 'white_wine': its SHA-256 is \w+, not 76c3"
    ):
        load("white_wine", tmp_path)


def test_a_download_is_checked_and_kept(site, tmp_path):
    rows = np.random.default_rng(1).normal(size=(30, 3))
    text = "a;b;grade\n" + "".join(f"{a!r};{b!r};{i % 5}\n" for i, (a, b, _) in enumerate(rows.tolist()))
    address = site.put("winequality-white.csv", text)
    good = tmp_path / "good"
    good.write_text(text)
    item = ENTRIES["white_wine"]
    form = replace(item.form, check=partial(check_file, sha256=file_digest(good)))
    item = replace(item, upstream=(Upstream(address),), form=form)
    data = load_entry(item, tmp_path, variant="2")
    assert data.schema.names == ("a", "b")
    assert data.schema.kinds == ("real", "real")
    assert (tmp_path / "uci" / "winequality-white.csv").read_text() == text
    assert load_entry(item, tmp_path, download=False, variant="2").checksum == data.checksum
    site.put("winequality-white.csv", text + "1;2;3\n")
    with pytest.raises(DownloadError, match=r"not those expected: its SHA-256 is .* renamed to"):
        load_entry(item, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere" / "uci" / "winequality-white.csv").exists()
