"""Folders of PNG files and stacks: rows, shapes, grey levels made black and white, and mistakes."""

import numpy as np
import pytest
from PIL import Image

from pynade.tables import resolve
from pynade.tables.images import binarized, images_dataset, is_grey

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 4, 5), dtype=np.uint8)


def write_folder(folder, images, mode=None):
    folder.mkdir(parents=True, exist_ok=True)
    for k, image in enumerate(images):
        Image.fromarray(image).convert(mode).save(folder / f"{k:03d}.png")
    return folder


def test_a_folder_and_a_stack_are_the_same_data(tmp_path):
    folder = resolve(write_folder(tmp_path / "pngs", GREY))
    np.save(tmp_path / "stack.npy", GREY)
    stack = resolve(tmp_path / "stack.npy")
    for data in (folder, stack):
        assert data.image_shape == (4, 5)
        assert data.train.dtype == np.uint8
        np.testing.assert_array_equal(data.train, GREY.reshape(6, 20))
        assert is_grey(data)
    assert folder.checksum == stack.checksum
    assert (folder.name, stack.name) == ("pngs", "stack")


def test_sixteen_bits_become_eight(tmp_path):
    deep = GREY.astype(np.uint16) * 257 + RNG.integers(-100, 100, GREY.shape)
    folder = tmp_path / "deep"
    folder.mkdir()
    for k, image in enumerate(np.clip(deep, 0, 65535).astype(np.uint16)):
        Image.fromarray(image).save(folder / f"{k:03d}.png")
    np.testing.assert_array_equal(resolve(folder).train, GREY.reshape(6, 20))


def test_colours_are_stored_channel_after_channel(tmp_path):
    colour = RNG.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    np.save(tmp_path / "stack.npy", colour)
    data = resolve(tmp_path / "stack.npy")
    assert data.image_shape == (3, 4, 5)
    np.testing.assert_array_equal(data.train[1].reshape(3, 4, 5)[2], colour[1, :, :, 2])
    folder = resolve(write_folder(tmp_path / "pngs", colour))
    np.testing.assert_array_equal(folder.train, data.train)
    np.save(tmp_path / "one.npy", colour[..., :1])
    assert resolve(tmp_path / "one.npy").image_shape == (4, 5)


@pytest.mark.parametrize("kind", ["png", "bool", "ints", "floats", "bytes"])
def test_black_and_white_images_are_zeros_and_ones(tmp_path, kind):
    bits = RNG.integers(0, 2, (5, 3, 3))
    if kind == "png":
        data = resolve(write_folder(tmp_path / "d", [(255 * b).astype(np.uint8) for b in bits], mode="1"))
    else:
        scale = {"bool": bits > 0, "ints": bits, "floats": bits.astype(float), "bytes": 255 * bits}
        np.save(tmp_path / "d.npy", scale[kind])
        data = resolve(tmp_path / "d.npy")
    assert not is_grey(data)
    assert set(data.schema.kinds) == {"binary"}
    np.testing.assert_array_equal(data.train, bits.reshape(5, 9))
    assert binarized(data, 0.5) is data


def test_shares_of_white_become_levels(tmp_path):
    np.save(tmp_path / "d.npy", GREY / 255)
    np.testing.assert_array_equal(resolve(tmp_path / "d.npy").train, GREY.reshape(6, 20))


def test_parts_are_folders(tmp_path):
    for part, n in (("train", 4), ("valid", 1), ("test", 2)):
        write_folder(tmp_path / "d" / part, GREY[:n])
    data = images_dataset(tmp_path / "d")
    assert data.sizes == {"train": 4, "valid": 1, "test": 2}


def test_thresholds_are_shares_of_white(tmp_path):
    data = resolve(write_folder(tmp_path / "d", GREY))
    made = binarized(data, 0.5)
    np.testing.assert_array_equal(made.train, GREY.reshape(6, 20) > 127)
    assert made.image_shape == (4, 5)
    assert not is_grey(made)
    assert made.provenance["binarize"] == 0.5
    assert binarized(data, 0.0).train.sum() == (GREY > 0).sum()


def test_random_pixels_have_the_right_probabilities_and_repeat(tmp_path):
    levels = np.linspace(0, 255, 6).astype(np.uint8)
    np.save(tmp_path / "d.npy", np.broadcast_to(levels.reshape(1, 2, 3), (20_000, 2, 3)))
    data = resolve(tmp_path / "d.npy")
    made = binarized(data, "random")
    share = made.train.mean(0)
    assert share[0] == 0
    assert share[-1] == 1
    np.testing.assert_allclose(share, levels / 255, rtol=0, atol=4 * 0.5 / np.sqrt(20_000))
    assert binarized(data, "random").checksum == made.checksum == binarized(data, "random:0").checksum
    assert binarized(data, "random:7").checksum != made.checksum


def test_mistakes_are_one_sentence(tmp_path):
    mixed = write_folder(tmp_path / "mixed", [GREY[0], GREY[1], GREY[2][:3]])
    with pytest.raises(ValueError, match=r"differ in size: 000\.png is 4x5, 002\.png is 3x5"):
        resolve(mixed)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no tables \(CSV or Parquet files\) and no images"):
        resolve(tmp_path / "empty")
    broken = write_folder(tmp_path / "broken", GREY[:1])
    (broken / "001.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"001\.png cannot be read as a PNG image"):
        resolve(broken)
    write_folder(tmp_path / "half" / "test", GREY[:1])
    with pytest.raises(ValueError, match="no folder train"):
        resolve(tmp_path / "half")
    write_folder(tmp_path / "half" / "train", GREY[:1, :2])
    with pytest.raises(ValueError, match="differ in the size of their images"):
        resolve(tmp_path / "half")
    for stack, words in (
        (np.zeros((2, 3, 4, 5, 6)), r"expected images \(N, H, W\)"),
        (np.full((2, 3, 3), 300), "whole grey levels from 0 to 255"),
        (np.full((2, 3, 3), -0.5), "whole grey levels from 0 to 255"),
        (np.full((2, 3, 3), 2.5), "whole grey levels from 0 to 255"),
        (np.full((2, 3, 3), np.nan), "images have no gaps, found NaN"),
    ):
        np.save(tmp_path / "bad.npy", stack)
        with pytest.raises(ValueError, match=words):
            resolve(tmp_path / "bad.npy")
    np.save(tmp_path / "good.npy", GREY)
    data = resolve(tmp_path / "good.npy")
    for how, words in ((1.5, "share of white"), ("blue", "random:SEED"), ("random:x", "random:SEED")):
        with pytest.raises(ValueError, match=words):
            binarized(data, how)
