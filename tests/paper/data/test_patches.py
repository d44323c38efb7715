"""Patches of images: drawn where they should be, made as the paper says, from small made-up pictures."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pynade import tables
from pynade.tables import Dataset, Schema
from pynade_paper.data import bsds
from pynade_paper.data.catalogue import Upstream
from pynade_paper.data.digests import check_tar, read_tar, tar_digest
from pynade_paper.data.download import DownloadError
from pynade_paper.data.entries import ENTRIES
from pynade_paper.data.loading import load_entry
from pynade_paper.data.patches import Patches, whole_patches
from pynade_paper.data.places import fixed_rows, uniform_places

KNOWN = dict(ENTRIES)  # the registry of these tests
load, resolve = partial(tables.load, known=KNOWN), partial(tables.resolve, known=KNOWN)
shapes = st.lists(st.tuples(st.integers(3, 9), st.integers(3, 9)), min_size=1, max_size=4)


def random_images(shapes, seed=0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slow_patches(images, size):
    """Every patch of every image, one after the other."""
    for image in images:
        for row in range(image.shape[0] - size + 1):
            for column in range(image.shape[1] - size + 1):
                yield image[row : row + size, column : column + size].reshape(-1)


@given(shapes, st.integers(1, 3))
def test_every_place_holds_the_patch_of_the_slow_loop(shapes, size):
    images = random_images(shapes)
    source = Patches.of(images, size)
    expected = np.stack(list(slow_patches(images, size)))
    assert source.n_places == len(expected)
    np.testing.assert_array_equal(source.at(torch.arange(source.n_places)).numpy(), expected)


@given(shapes, st.integers(2, 3), st.integers(0, 99))
def test_draws_are_made_step_by_step(shapes, size, seed):
    images = random_images(shapes, seed)
    source = Patches.of(images, size)
    rows = source.draw(20, seeded(seed)).double().numpy()
    assert rows.shape == (20, source.n_variables)
    again = seeded(seed)
    places = uniform_places(20, source.n_places, again, torch.device("cpu"))
    noise = torch.rand(20, size**2, generator=again).double().numpy()
    every = list(slow_patches(images, size))
    for row, place, extra in zip(rows, places.tolist(), noise, strict=True):
        values = (every[place] + extra) / 256
        np.testing.assert_allclose(row, (values - values.mean())[:-1], atol=1e-6)


@given(st.integers(0, 99))
def test_patches_lie_in_the_images(seed):
    """Without knowing the draws: a patch of the images explains each row up to noise below one grey value."""
    images = random_images([(10, 9), (8, 12)], seed)
    patches = whole_patches(Patches.of(images).draw(5, seeded(seed)).double()).reshape(-1, 64)
    np.testing.assert_allclose(patches.mean(axis=1), 0.0, atol=1e-7)
    every = np.stack(list(slow_patches(images, 8))).astype(float)
    for patch in patches:
        gap = 256 * patch - every  # noise less a constant, where the patch is the right one
        assert np.any(np.ptp(gap, axis=1) < 1 + 1e-4)


def test_draws_are_uniform_over_places():
    """Images count by their number of places: 1, 30 and 4 of them here."""
    images = [np.full((8, 8), 0, np.uint8), np.zeros((12, 13), np.uint8), np.zeros((9, 9), np.uint8)]
    source = Patches.of(images)
    assert source.n_places == 35
    counts = np.bincount(uniform_places(35_000, 35, seeded(), torch.device("cpu")).numpy(), minlength=35)
    assert ((counts - 1000) ** 2 / 1000).sum() < 66.6  # chi-squared with 34 degrees of freedom, p = 0.0007


def test_places_beyond_32_bits_of_resolution():
    total = 2**40
    places = uniform_places(10_000, total, seeded(), torch.device("cpu"))
    assert places.min() >= 0
    assert places.max() < total
    assert len(places.unique()) == 10_000
    assert places.double().mean() / total == pytest.approx(0.5, abs=0.02)


def test_the_noise_fills_the_gaps_between_grey_values():
    source = Patches.of([np.full((8, 8), 200, np.uint8)])
    rows = source.draw(4000, seeded()).double()
    assert rows.abs().max() < 1 / 256
    assert rows.std() * 256 == pytest.approx((63 / 64 / 12) ** 0.5, rel=0.02)


def test_same_seed_same_rows(monkeypatch):
    source = Patches.of(random_images([(20, 30)]))
    rows, _ = fixed_rows(source, 100, seed=3)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, source.draw(100, seeded(3)))
    np.testing.assert_array_equal(rows, fixed_rows(source, 100, seed=3)[0])
    assert not np.array_equal(rows, fixed_rows(source, 100, seed=4)[0])
    monkeypatch.setattr("pynade_paper.data.places.CHUNK", 32)
    rows, origins = fixed_rows(source, 100, seed=3)
    assert (rows.shape, origins.shape) == ((100, 63), (100,))


def test_fixed_rows_know_their_image(monkeypatch):
    """Images of 1, 30 and 4 places, each with a step of its own from pixel to pixel."""
    monkeypatch.setattr("pynade_paper.data.places.CHUNK", 32)
    steps = np.array([0, 10, 5])
    sides = zip([8, 12, 9], [8, 13, 9], steps.tolist(), strict=True)
    images = [np.arange(w, dtype=np.uint8) * np.full((h, 1), step, np.uint8) for h, w, step in sides]
    rows, origins = fixed_rows(Patches.of(images), 300, seed=0)
    slope = np.diff(rows[:, :8], axis=1).mean(axis=1) * 256  # noise moves it by less than 1/7
    np.testing.assert_array_equal(steps[origins], np.round(slope / 5) * 5)
    assert set(origins) == {0, 1, 2}


def test_to_moves_every_tensor():
    source = Patches.of(random_images([(9, 9)])).to("meta")
    assert {value.device.type for value in vars(source).values() if torch.is_tensor(value)} == {"meta"}
    assert source.n_places == 4
    places = torch.zeros(5, dtype=torch.int64, device="meta")
    assert source.at(places).shape == (5, 64)  # a tensor without values: nothing may ask for one


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "at least one image"),
        ([np.zeros((7, 20), np.uint8)], r"image 0 has shape \(7, 20\) .* at least 8 × 8"),
        ([np.zeros((8, 8), np.uint8), np.zeros((8, 8))], "image 1 has shape .* type float64"),
        ([np.zeros((8, 8, 3), np.uint8)], r"shape \(8, 8, 3\)"),
    ],
)
def test_wrong_images_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        Patches.of(images)


def test_rows_that_are_no_patches_are_refused():
    with pytest.raises(ValueError, match="such as 63, but 60 were given"):
        whole_patches(np.zeros((2, 60)))


def test_a_source_must_fit_the_schema():
    source = Patches.of(random_images([(9, 9)]))
    with pytest.raises(
        ValueError, match="the source of data set 'toy' draws rows of 63 columns, but its schema has 2"
    ):
        Dataset("toy", np.zeros((1, 2)), None, None, Schema.uniform("real", 2), source=source)


def test_rows_kept_for_validation_are_not_drawn_for_training():
    source = Patches.of(random_images([(9, 9)]))
    data = Dataset("toy", np.zeros((9, 63)), None, None, Schema.uniform("real", 63), source=source)
    cut = data.with_validation(0.3, seed=0)
    assert cut.sizes == {"train": 6, "valid": 3}
    assert cut.source is None
    assert cut.with_validation(0.3, seed=0) is cut
    whole = replace(data, valid=np.zeros((2, 63)))
    assert whole.with_validation(0.3, seed=0).source is source


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))
def test_grey_is_the_integer_formula(r, g, b):
    assert bsds.grey(np.array([[[r, g, b]]], np.uint8))[0, 0] == (299 * r + 587 * g + 114 * b + 500) // 1000


def tar_bytes(files: dict[str, bytes], mode: str = "w", mtime: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def pictures() -> dict[str, bytes]:
    files = {}
    for number in range(30):
        part = "train" if number < 25 else "test"
        buffer = io.BytesIO()
        colours = np.full((12, 16, 3), 7 * number, np.uint8)
        Image.fromarray(colours).save(buffer, "jpeg", quality=95)
        files[f"{part}/{1000 - number}.jpg"] = buffer.getvalue()
    return files


@pytest.fixture
def small(monkeypatch):
    """Thirty tiny pictures, and the registered set of them, which has fewer rows."""
    files = pictures()
    monkeypatch.setattr(bsds, "ROWS", {"train": 300, "valid": 40, "test": 500})
    item = ENTRIES["bsds300"]
    form = replace(item.form, check=partial(check_tar, digest=tar_digest(files)))
    monkeypatch.setitem(KNOWN, "bsds300", replace(item, form=form))
    return files, KNOWN["bsds300"]


def test_bsds300_end_to_end(site, tmp_path, small):
    files, item = small
    published = {f"BSDS300/images/{name}": content for name, content in files.items()}
    published |= {"BSDS300/iids_test.txt": b"1\n2\n", "BSDS300/images/train/notes.txt": b"no picture"}
    address = site.put("BSDS300-images.tgz", tar_bytes(published, "w:gz", mtime=99))
    data = load_entry(replace(item, upstream=(Upstream(address),)), tmp_path)
    assert read_tar(tmp_path / "bsds300" / "bsds300_images.tar") == files
    assert data.sizes == {"train": 300, "valid": 40, "test": 500}
    assert data.train.dtype == np.float32
    assert data.image_shape is None
    assert set(data.schema.kinds) == {"real"}
    assert "non-commercial" in data.provenance["licence"]
    assert data.provenance["images"] == {"train": 5, "valid": 20, "test": 5}
    json.dumps(data.provenance)
    again = load("bsds300", tmp_path, download=False)
    assert again.checksum == data.checksum
    rows = data.source.draw(7, seeded())
    assert rows.shape == (7, 63)
    assert data.source.n_variables == data.n_variables


def test_training_and_validation_images_differ_unless_all_are_wanted(tmp_path, small):
    files, _ = small
    path = tmp_path / "bsds300" / "bsds300_images.tar"
    path.parent.mkdir()
    path.write_bytes(tar_bytes(files))
    images = bsds.read_images(path)
    assert {part: len(found) for part, found in images.items()} == {"train": 25, "test": 5}
    assert list(images["train"]) == sorted(images["train"])
    for number, image in images["train"].items():
        assert image.shape == (12, 16)
        np.testing.assert_allclose(image, 7 * (1000 - number), atol=2)
    train, valid = bsds.split_images(list(images["train"]))
    assert sorted(train + valid) == list(images["train"])
    assert len(valid) == 20
    part, whole = (resolve(name, tmp_path) for name in ("bsds300", "bsds300/all"))
    assert part.source.pixels.numel() == 5 * 12 * 16
    assert whole.source.pixels.numel() == 25 * 12 * 16
    assert whole.name == "bsds300/all"
    assert whole.provenance["valid_images_are_trained_on"] is True
    np.testing.assert_array_equal(whole.test, part.test)
    with pytest.raises(ValueError, match="there is no 'bsds300/3': expected one of bsds300/all"):
        load("bsds300/3", tmp_path)


def test_another_archive_is_refused(site, tmp_path, small):
    files, item = small
    path = tmp_path / "bsds300" / "bsds300_images.tar"
    path.parent.mkdir()
    path.write_bytes(tar_bytes({**files, "train/5.jpg": b"more"}))
    with pytest.raises(ValueError, match=r"bsds300_images.tar is not data set 'bsds300': what it holds has"):
        load("bsds300", tmp_path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is damaged or not a tar archive"):
        load("bsds300", tmp_path)
    address = site.put("BSDS300-images.tgz", tar_bytes({"images/train/1.jpg": b"x"}, "w:gz"))
    with pytest.raises(
        DownloadError, match="the published files of data set 'bsds300' are not those expected"
    ):
        load_entry(replace(item, upstream=(Upstream(address),)), tmp_path / "new")


def test_archives_with_other_members_are_named(tmp_path):
    path = tmp_path / "images.tar"
    path.write_bytes(tar_bytes({"train/one.png": b""}))
    with pytest.raises(ValueError, match=r"holds 'train/one.png'; expected train/<number>.jpg"):
        bsds.read_images(path)
    path.write_bytes(tar_bytes({"train/1.jpg": b"no picture"}))
    with pytest.raises(ValueError, match=r"train/1.jpg in the data file .* is no picture"):
        bsds.read_images(path)
