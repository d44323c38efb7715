"""TIMIT: SPHERE files, and the split, on a small tree of the same shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pynade.tables import resolve
from pynade_paper.data.audio import read_audio, sphere_header
from pynade_paper.data.timit import CORE_TEST, find_recordings, timit, validation_speakers

from .test_speech import noise, wav


def sphere(samples: np.ndarray, order: str = "01", **fields: str) -> bytes:
    fields = {
        "channel_count -i": "1",
        "sample_count -i": str(len(samples)),
        "sample_rate -i": "16000",
        "sample_n_bytes -i": "2",
        "sample_byte_format -s2": order,
        "sample_coding -s3": "pcm",
    } | {key.replace("__", " -"): value for key, value in fields.items()}
    lines = "".join(f"{key} {value}\n" for key, value in fields.items())
    header = f"NIST_1A\n   1024\n{lines}end_head\n".encode().ljust(1024)
    return header + samples.astype("<i2" if order == "01" else ">i2").tobytes()


@pytest.mark.parametrize("order", ["01", "10"])
def test_sphere_files_keep_their_samples(order):
    samples = noise(0.05)
    read = read_audio(sphere(samples, order), "toy")
    np.testing.assert_array_equal(read, samples)
    assert read.dtype == np.int16


def test_sphere_headers():
    fields, size = sphere_header(sphere(noise(0.01), database_id__s5="TIMIT"), "toy")
    assert size == 1024
    assert fields["sample_rate"] == "16000"
    assert fields["database_id"] == "TIMIT"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            sphere(noise(0.01), sample_coding__s3="pcm,embedded-shorten-v2.00"),
            r"coded as 'pcm,embedded-shorten-v2.00'; expected 'pcm'; unpack it first",
        ),
        (sphere(noise(0.01), sample_coding__s3="ulaw"), r"coded as 'ulaw'; expected 'pcm'$"),
        (sphere(noise(0.01), sample_n_bytes__i="1"), "samples of 1 bytes; expected 2"),
        (sphere(noise(0.01), sample_byte_format__s2="1"), "byte order '1'; expected '01' or '10'"),
        (sphere(noise(0.01), sample_rate__i="8000"), "sampling rate of 8000 Hz; expected 16000"),
        (sphere(noise(0.01))[:-2], "cut off: expected 160 samples, but there are 159"),
        (b"NIST_1A\n   1024\nsample_rate -i 16000\n", "damaged NIST SPHERE header"),
    ],
)
def test_wrong_sphere_files_are_named(content, message):
    with pytest.raises(ValueError, match=message):
        read_audio(content, "toy")


TRAINING = [f"F{letter}AB0" for letter in "BCDEFGHIJKLMNOPQRSTU"]


@pytest.fixture
def tree(tmp_path) -> Path:
    """Two sentences of each speaker, in small letters for some; an SA sentence; a test speaker too many."""
    root = tmp_path / "disc" / "TIMIT"
    places = [f"TRAIN/DR{i % 8 + 1}/{speaker}" for i, speaker in enumerate(TRAINING)]
    places += [f"test/dr{i % 8 + 1}/{speaker.lower()}" for i, speaker in enumerate(sorted(CORE_TEST))]
    places.append("TEST/DR1/FAKS0")
    for i, place in enumerate(places):
        (root / place).mkdir(parents=True)
        for j, sentence in enumerate(("SA1", "SI943", "SX313")):
            name = f"{sentence}.WAV" if i % 2 else f"{sentence.lower()}.wav"
            (root / place / name).write_bytes(sphere(noise(0.2 + 0.01 * j, 3 * i + j)))
        (root / place / "SX313.TXT").write_text("no recording")
    return tmp_path


def test_the_tree_is_split_by_speaker(tree):
    data = timit(tree)
    assert data.provenance["recordings"] == {"train": 36, "valid": 4, "test": 48}
    assert len(data.provenance["valid_speakers"]) == 2
    assert set(data.provenance["valid_speakers"]) == validation_speakers(set(TRAINING)) < set(TRAINING)
    assert data.n_variables == 231
    assert data.sizes == data.provenance["windows"]
    assert data.sizes["test"] == 24 * ((19 - 10) + (20 - 10))  # frames of 0.21 and 0.22 s, less ten
    assert str(tree) not in str(data.provenance)
    assert data.name == "timit"


def test_timit_by_name(tree):
    assert resolve(f"timit:{tree}").checksum == timit(tree / "disc" / "TIMIT").checksum


def test_converted_copies_beside_the_originals_count_once(tree):
    before = timit(tree)
    files = find_recordings(tree)
    for path in list(files.values()):
        path.with_name(path.name + ".wav").write_bytes(wav(noise(0.3)))
    assert find_recordings(tree) == files
    assert timit(tree).checksum == before.checksum


def test_converted_copies_alone_are_read(tree):
    before = timit(tree)
    for path in find_recordings(tree).values():
        path.write_bytes(wav(read_audio(path.read_bytes(), "it")))
        path.rename(path.with_name(path.name + ".wav"))
    assert timit(tree).checksum == before.checksum


def test_what_is_no_timit_is_refused(tree, tmp_path_factory):
    gone = next(path for key, path in find_recordings(tree).items() if key[1] == "MDAB0").parent
    for path in gone.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="lacks 1 of the 24 speakers of the core test set: MDAB0"):
        timit(tree)
    with pytest.raises(ValueError, match="holds no TIMIT tree; expected TRAIN/DR1"):
        timit(tmp_path_factory.mktemp("empty"))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        resolve("timit:/no/such/folder")


def test_a_compressed_file_is_named(tree):
    path = next(path for key, path in find_recordings(tree).items() if key[0] == "TRAIN" and key[2] != "SA1")
    path.write_bytes(sphere(noise(0.2), sample_coding__s3="pcm,embedded-shorten-v2.00"))
    with pytest.raises(ValueError, match=rf"{path.name} has its samples coded as .*shorten"):
        timit(tree)


def test_the_core_test_set_is_whole():
    assert len(CORE_TEST) == 24
    assert sum(speaker.startswith("F") for speaker in CORE_TEST) == 8
