"""Files of arrays and images that are damaged, or that claim more than they hold."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynade.tables import resolve
from pynade.tables.files import read_file
from pynade.tables.images import images_dataset

GOOD = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }"


def array(header: str, body: bytes = bytes(96)) -> bytes:
    """An .npy file with this text as its header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def packed(path, content: bytes, method: int = zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("train.npy", content)
    return path


@pytest.mark.parametrize(
    "header",
    [
        GOOD.replace("(3, 4)", "(3, 4, "),
        GOOD.replace("(3, 4), }", "(3, '''"),
        GOOD.replace("(3, 4)", "(1000000000000, 1000)"),
        GOOD.replace("(3, 4)", "(1000000000, 1000, 1000)"),
        GOOD.replace("(3, 4)", "(100000000000000000000000, 1000)"),
        GOOD.replace("(3, 4)", "(-3, 4)"),
        GOOD.replace("(3, 4)", "(-3, -4)"),
        GOOD.replace("(3, 4)", "(3, 5)"),
        GOOD.replace("(3, 4)", "(True, 4, 2)"),
        GOOD.replace("<f8", "<U0").replace("(3, 4)", "(1000000000000, 1000)"),
        GOOD.replace("<f8", "|V0").replace("(3, 4)", "(1000000000000, 1000)"),
        GOOD.replace("<f8", "|O"),
        GOOD.replace("<f8", "nonsense"),
        GOOD.replace("'shape'", "'form'"),
        "(" * 9000,
        "",
    ],
    ids=lambda header: header[-45:],
)
@pytest.mark.parametrize("method", [None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_headers_are_one_sentence_and_take_no_memory(tmp_path, header, method):
    path = tmp_path / "toy.npy"
    path.write_bytes(array(header))
    path = path if method is None else packed(tmp_path / "toy.npz", array(header), method)
    tracemalloc.start()
    for read in (read_file, resolve) if method is None else (read_file,):
        with pytest.raises(ValueError, match=r"toy\.np[yz] is damaged or holds no plain arrays") as error:
            read(path)
        assert "\n" not in str(error.value)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@given(st.data())
def test_any_damage_to_a_file_of_arrays_names_it(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("npy") / "toy.npz"
    packed(path, array(GOOD), data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        rows, _ = read_file(path)
    except ValueError as error:
        assert "toy.npz" in str(error)  # noqa: PT017
    else:
        assert rows.size <= 96


def test_well_compressed_arrays_are_read(tmp_path):
    np.savez_compressed(tmp_path / "toy.npz", train=np.zeros((3000, 1000), np.uint8))
    assert read_file(tmp_path / "toy.npz")[0].shape == (3000, 1000)


def test_numbers_beyond_float64_are_named(tmp_path):
    rows = np.ones((3, 2), np.longdouble)
    rows[1, 1] = np.longdouble("1e4000")
    np.save(tmp_path / "toy.npy", rows)
    with pytest.raises(ValueError, match="expected finite numbers, but inf was found in row 1, col"):
        read_file(tmp_path / "toy.npy")


@pytest.mark.parametrize("n", [[3, 4], 3.5, "3"])
def test_a_number_of_features_that_is_none(tmp_path, n):
    np.savez(tmp_path / "toy.npz", train=np.ones((2, 1), np.uint8), n_features=n)
    with pytest.raises(ValueError, match=r"toy\.npz: n_features is a whole number"):
        read_file(tmp_path / "toy.npz") if n == 3 else resolve(tmp_path / "toy.npz")


def png(width: int, height: int) -> bytes:
    """The header of a PNG image, and hardly any pixel."""

    def part(name: bytes, content: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + sum_

    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(30_000, 30_000), (2**31 - 1, 2**31 - 1), (10_000, 10_000)])
def test_large_images_are_refused_by_their_header(tmp_path, width, height):
    (tmp_path / "a.png").write_bytes(png(width, height))
    tracemalloc.start()
    words = (
        f"a.png cannot be read as a PNG image .it has {width} x {height} pixels; expected at most 16,777,216"
    )
    with pytest.raises(ValueError, match=words):
        images_dataset(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "content", [png(0, 0), png(5, 5), png(5, 5)[:30], b"", b"\x89PNG\r\n\x1a\n" + bytes(40)]
)
def test_damaged_images_are_named(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.png cannot be read as a PNG image"):
        images_dataset(tmp_path)
