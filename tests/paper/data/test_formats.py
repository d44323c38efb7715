"""The readers of published text formats."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pynade_paper.data.convert import cut, shuffled
from pynade_paper.data.formats import read_amat, read_letters, read_libsvm
from pynade_paper.data.packed import content_digest, pack, read_packed, unpack, write_packed

from .helpers import letter_line, libsvm_text

bits = arrays(np.uint8, st.tuples(st.integers(1, 8), st.integers(1, 20)), elements=st.integers(0, 1))


@given(bits)
def test_libsvm_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("libsvm") / "toy"
    path.write_text(libsvm_text(rows))
    read = read_libsvm(path, rows.shape[1])
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, rows)


def test_libsvm_takes_zeros_comments_and_empty_lines(tmp_path):
    path = tmp_path / "toy"
    path.write_text("1 1:0 2:1.0  # a comment\n\n2\n")
    assert read_libsvm(path, 2).tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:1\n1 4:1\n", r"toy, line 2: index 4 is outside 1 to 3"),
        ("1 0:1\n", r"line 1: index 0 is outside 1 to 3"),
        ("1 2:0.5\n", r"line 1: expected a value of 0 or 1, but '2:0.5' was found"),
        ("1 2:-1\n", r"expected a value of 0 or 1, but '2:-1'"),
        ("1 2:x\n", r"expected a value of 0 or 1, but '2:x'"),
        ("1 2\n", r"line 1: expected index:value, but '2' was found"),
        ("1 a:1\n", r"expected index:value, but 'a:1'"),
        ("1:1 2:1\n", r"line 1: expected a label first, but '1:1' was found"),
        ("\n", r"toy has no rows"),
    ],
)
def test_libsvm_errors_name_file_and_line(tmp_path, text, message):
    path = tmp_path / "toy"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_libsvm(path, 3)


@given(bits, st.sampled_from(["{:d}", "{:.1f}", "{:.6e}"]), st.sampled_from(["", "\n", " \r\n"]))
def test_amat_round_trip(tmp_path_factory, rows, form, end):
    path = tmp_path_factory.mktemp("amat") / "toy.amat"
    path.write_text("\n".join(" ".join(form.format(int(v)) for v in row) for row in rows) + end)
    read = read_amat(path)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, rows)
    if rows.shape[1] > 1:
        np.testing.assert_array_equal(read_amat(path, drop_last=True), rows[:, :-1])


def test_amat_drops_a_last_column_of_any_kind(tmp_path):
    path = tmp_path / "toy.amat"
    path.write_text("# two rows\n0 1 -17\n1 1 C15\n")
    assert read_amat(path, drop_last=True).tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("text", "drop_last", "message"),
    [
        ("0 1\n0 2\n", False, r"toy.amat, line 2: expected a value of 0 or 1, but '2' was found"),
        ("0 1\n0 x\n", False, r"line 2: expected a value of 0 or 1, but 'x' was found"),
        ("0 1 1\n0 1\n", False, r"line 2: expected 3 values, but 2 were found"),
        ("1\n0\n", True, r"toy.amat has no values"),
        ("\n", False, r"toy.amat has no values"),
    ],
)
def test_amat_errors_name_file_and_line(tmp_path, text, drop_last, message):
    path = tmp_path / "toy.amat"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_amat(path, drop_last)


@pytest.mark.parametrize("compressed", [True, False])
def test_letters(tmp_path, compressed):
    pixels = np.random.default_rng(0).integers(0, 2, (5, 128), dtype=np.uint8)
    text = "".join(letter_line(row, fold) for fold, row in enumerate(pixels)).encode()
    path = tmp_path / "letter.data"
    path.write_bytes(gzip.compress(text) if compressed else text)
    read, folds = read_letters(path)
    np.testing.assert_array_equal(read, pixels)
    assert folds.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (letter_line(np.ones(127, int)), "line 2: expected 134 values, but 133 were found"),
        (letter_line(np.full(128, 2)), "line 2: expected pixels that are 0 or 1"),
        (letter_line(np.full(128, 10)), "line 2: expected pixels that are 0 or 1"),
        (letter_line(np.ones(128, int)).replace("\t3\t", "\tx\t"), "expected a fold number, but 'x'"),
    ],
)
def test_letters_errors_name_file_and_line(tmp_path, line, message):
    path = tmp_path / "letter.data"
    path.write_text(letter_line(np.ones(128, int)) + line)
    with pytest.raises(ValueError, match=message):
        read_letters(path)


def test_letters_cut_short_or_empty(tmp_path):
    path = tmp_path / "letter.data.gz"
    whole = gzip.compress(letter_line(np.ones(128, int)).encode())
    path.write_bytes(whole[:-12])
    with pytest.raises(ValueError, match=r"letter.data.gz is damaged"):
        read_letters(path)
    path.write_bytes(gzip.compress(b"\n"))
    with pytest.raises(ValueError, match=r"letter.data.gz has no rows"):
        read_letters(path)


def test_the_old_shuffle_is_the_published_one():
    # Worked out by hand from the first draws 0.4166, 0.0102, 0.8252, 0.2986 of the seed:
    # exchange 4 with 2, 3 with 0, 2 with itself, 1 with 0.
    assert shuffled(5, 12345).tolist() == [1, 3, 4, 0, 2]
    assert sorted(shuffled(100, 1).tolist()) == list(range(100))


def test_cut_wants_all_rows():
    with pytest.raises(ValueError, match="expected 4 rows, but 3 were found"):
        cut(np.arange(3), {"train": 3, "test": 1})


@given(bits, st.randoms(use_true_random=False))
def test_packed_files_keep_the_bits(tmp_path_factory, rows, chance):
    path = tmp_path_factory.mktemp("packed") / "made" / "toy.npz"
    write_packed(path, {"train": pack(rows)}, rows.shape[1])
    parts, n_features = read_packed(path)
    np.testing.assert_array_equal(unpack(parts["train"], n_features), rows)
    assert [file.name for file in path.parent.iterdir()] == ["toy.npz"]
    order = list(range(len(rows)))
    chance.shuffle(order)
    assert content_digest([pack(rows[order])], n_features) == content_digest([pack(rows)], n_features)


def test_content_digest_counts_rows_and_columns():
    rows = pack(np.eye(3, dtype=np.uint8))
    assert content_digest([rows], 3) != content_digest([rows, rows[:1]], 3)
    assert content_digest([rows], 3) != content_digest([rows], 4)
