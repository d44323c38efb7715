"""Schemas and data sets."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pynade.tables import Column, Dataset, Schema
from pynade.tables.dataset import validation_rows

rows_of_bits = arrays(np.uint8, st.tuples(st.integers(2, 30), st.integers(1, 5)), elements=st.integers(0, 1))


def toy(train, valid=None, test=None, **more) -> Dataset:
    return Dataset("toy", train, valid, test, Schema.binary(train.shape[1]), **more)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Column("a", "complex"), "column 'a' has kind 'complex'; expected one of: binary, real"),
        (lambda: Schema.binary(2, ["a"]), "1 column names were given for 2 columns"),
        (lambda: Schema.binary(2, ["a", "a"]), "column name 'a' occurs more than once"),
    ],
)
def test_schema_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_split_gives_parts_and_all():
    bits = np.eye(4, dtype=np.uint8)
    data = toy(bits[:2], None, bits[2:])
    assert data.sizes == {"train": 2, "test": 2}
    np.testing.assert_array_equal(data.split("all"), bits)
    np.testing.assert_array_equal(data.split("test"), bits[2:])
    with pytest.raises(ValueError, match=r"data set 'toy' has no 'valid' part; it has: train, test$"):
        data.split("valid")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: Dataset("toy", x[0], None, None, Schema.binary(4)), "'train' part of .* has shape"),
        (lambda x: toy(x, x[:, :2]), "'valid' part of data set 'toy' has 2 columns, but its schema has 4"),
        (lambda x: toy(x[:0]), "data set 'toy' has no training rows"),
        (lambda x: toy(x, test_groups=np.arange(4)), "has no test part, but its test groups have shape"),
        (
            lambda x: toy(x, test=x, test_groups=np.arange(3)),
            "has 4 rows in its 'test' part, but its test groups",
        ),
        (lambda x: toy(x, image_shape=(3, 3)), "4 variables, which do not fill an image of shape"),
    ],
)
def test_dataset_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make(np.eye(4, dtype=np.uint8))


def test_checksum_is_as_documented():
    train, test = np.array([[0, 1]], dtype=np.uint8), np.array([[1, 1], [0, 0]], dtype=np.uint8)
    expected = hashlib.sha256(b"train uint8 1x2\n" + b"\x00\x01" + b"test uint8 2x2\n" + b"\x01\x01\x00\x00")
    assert toy(train, None, test).checksum == expected.hexdigest()


@given(rows_of_bits)
def test_checksum_depends_on_content_alone(rows):
    data = toy(rows)
    again = Dataset("other", np.asfortranarray(rows), None, None, data.schema, {"source": "elsewhere"})
    assert again.checksum == data.checksum
    big_endian = Dataset("b", rows.astype(">f8"), None, None, data.schema)
    assert big_endian.checksum == toy(rows.astype("<f8")).checksum != data.checksum
    changed = rows.copy()
    changed[0, 0] ^= 1
    assert toy(changed).checksum != data.checksum
    assert toy(rows, rows).checksum != data.checksum


@given(rows_of_bits, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_with_validation_moves_rows_and_repeats(rows, fraction, seed):
    data = toy(rows)
    cut = data.with_validation(fraction, seed)
    assert cut.sizes["train"] + cut.sizes["valid"] == len(rows)
    assert min(cut.sizes.values()) >= 1
    assert sorted(map(bytes, cut.split("all"))) == sorted(map(bytes, rows))
    assert cut.checksum == data.with_validation(fraction, seed).checksum
    assert cut.provenance["validation"] == {"fraction": fraction, "seed": seed}
    assert cut.with_validation(fraction, seed) is cut


@pytest.mark.parametrize("fraction", [0, 1, -0.5, float("nan")])
def test_with_validation_wants_a_fraction(fraction):
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        toy(np.eye(4, dtype=np.uint8)).with_validation(fraction, 0)


def test_validation_rows_never_change():
    """Records name a seed, not rows; these are the rows of version 0.1.0."""
    assert validation_rows(30, 0.1, 0)[1].tolist() == [2, 11, 26]
    assert validation_rows(30, 0.2, 7)[1].tolist() == [4, 12, 14, 22, 24, 28]
    rows = np.arange(30.0)[:, None]
    cut = Dataset("toy", rows, None, None, Schema.uniform("real", 1)).with_validation(0.2, 7)
    assert cut.valid.ravel().tolist() == validation_rows(30, 0.2, 7)[1].tolist()


@given(st.integers(2, 40), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_validation_rows_cut_all_rows_in_two(n, fraction, seed):
    train, valid = validation_rows(n, fraction, seed)
    assert len(valid) == min(max(round(fraction * n), 1), n - 1)
    assert sorted([*train, *valid]) == list(range(n))
    assert (np.diff(train) > 0).all()
    assert (np.diff(valid) > 0).all()


def test_one_row_cannot_be_cut():
    with pytest.raises(ValueError, match="1 row was given; two are needed"):
        toy(np.eye(1, dtype=np.uint8)).with_validation(0.5, 0)
