"""Speech: reading recordings, features against a slow loop, windows, and data sets of made-up corpora."""

from __future__ import annotations

import io
import math
import shutil
import sys
import tarfile
import wave
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from pynade.tables import resolve
from pynade.tables.registry import load
from pynade_paper.data import librispeech, speech
from pynade_paper.data.audio import read_audio
from pynade_paper.data.digests import read_tar, tar_digest
from pynade_paper.data.entries import ENTRIES
from pynade_paper.data.librispeech import write_features
from pynade_paper.data.places import uniform_places
from pynade_paper.data.speech import Recordings, frame_features, speech_dataset, windows_dataset
from pynade_paper.data.windows import Windows


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3000, 3000, round(16000 * seconds), dtype=np.int16)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flac(samples: np.ndarray, rate: int = 16000) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format="FLAC", subtype="PCM_16")
    return stream.getvalue()


def wav(samples: np.ndarray, rate: int = 16000, channels: int = 1) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as out:
        out.setparams((channels, 2, rate, 0, "NONE", ""))
        out.writeframes(samples.astype("<i2").tobytes())
    return stream.getvalue()


# Recordings


@pytest.mark.parametrize("write", [flac, wav])
def test_recordings_keep_their_samples(write):
    samples = noise(0.1)
    read = read_audio(write(samples), "toy")
    assert read.dtype == np.int16
    np.testing.assert_array_equal(read, samples)


def test_wav_of_other_widths_goes_through_soundfile():
    stream = io.BytesIO()
    soundfile.write(stream, noise(0.1), 16000, format="WAV", subtype="PCM_24")
    np.testing.assert_array_equal(read_audio(stream.getvalue(), "toy"), noise(0.1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wav(noise(0.1), 8000), "toy has a sampling rate of 8000 Hz; expected 16000"),
        (flac(noise(0.1), 44100), "toy has a sampling rate of 44100 Hz; expected 16000"),
        (wav(noise(0.1), channels=2), "toy has 2 channels; expected one"),
        (flac(noise(0.1).reshape(-1, 2)), "toy has 2 channels; expected one"),
        (b"", "toy is damaged or no recording"),
        (b"nonsense", "toy is damaged or no recording"),
        (flac(noise(0.1))[:40], "toy is damaged or no recording"),
    ],
)
def test_wrong_recordings_are_named(content, message):
    with pytest.raises(ValueError, match=message):
        read_audio(content, "toy")


def test_without_soundfile_wav_is_read_and_flac_names_the_package(monkeypatch):
    content = flac(noise(0.1))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    np.testing.assert_array_equal(read_audio(wav(noise(0.1)), "toy"), noise(0.1))
    with pytest.raises(ImportError, match="toy needs soundfile; install it with `pip install soundfile`"):
        read_audio(content, "toy")


# Features


def slow_features(samples, name, seed):
    """The definition, frame by frame and filter by filter."""
    dither = np.random.default_rng([seed, zlib.crc32(name.encode())]).uniform(-0.5, 0.5, len(samples))
    x = [float(s) + float(e) for s, e in zip(samples, dither, strict=True)]
    y = [x[t] - 0.97 * x[max(t - 1, 0)] for t in range(len(x))]
    mels = [2595 * math.log10(1 + k * 16000 / 512 / 700) for k in range(257)]
    top = 2595 * math.log10(1 + 8000 / 700)
    edges = [top * i / 21 for i in range(22)]
    frames = []
    for start in range(0, len(x) - 399, 160):
        window = [0.54 - 0.46 * math.cos(2 * math.pi * i / 399) for i in range(400)]
        padded = [y[start + i] * window[i] for i in range(400)] + [0.0] * 112
        power = np.abs(np.fft.fft(padded)[:257]) ** 2
        frame = []
        for low, centre, high in zip(edges, edges[1:], edges[2:], strict=False):
            total = 0.0
            for k, m in enumerate(mels):
                if low < m <= centre:
                    total += power[k] * (m - low) / (centre - low)
                elif centre < m < high:
                    total += power[k] * (high - m) / (high - centre)
            frame.append(math.log(total))
        frames.append([*frame, math.log(sum(v * v for v in x[start : start + 400]))])
    return np.array(frames)


def test_features_are_those_of_the_slow_loop():
    samples = noise(0.05)
    features = frame_features(samples, "a", seed=3)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, slow_features(samples, "a", 3), rtol=1e-6)


@given(st.integers(0, 2000))
def test_only_whole_frames_count(n):
    frames = frame_features(np.zeros(n, np.int16), "a")
    assert frames.shape == (max(0, (n - 400) // 160 + 1), 21)
    assert np.isfinite(frames).all()


def test_silence_is_no_point_mass():
    """Dither spreads the logarithms of digital silence; they are below those of one bit of signal."""
    silence = frame_features(np.zeros(16000, np.int16), "a")
    assert len(np.unique(silence[:, 20])) == len(silence)
    assert silence.std(axis=0).min() > 0.01
    assert silence[:, 20].mean() == pytest.approx(math.log(400 / 12), abs=0.05)


def test_a_tone_is_loudest_in_its_band():
    bank = speech.filter_bank()
    peaks = bank.argmax(axis=1) * 16000 / 512
    assert (np.diff(peaks) > 0).all()
    assert bank.shape == (20, 257)
    for band in (3, 10, 19):
        tone = 8000 * np.sin(2 * np.pi * peaks[band] * np.arange(4000) / 16000)
        assert (frame_features(tone.round(), "a")[:, :20].argmax(axis=1) == band).all()


def test_the_dither_is_a_recordings_own():
    samples = np.zeros(800, np.int16)
    first = frame_features(samples, "a")
    np.testing.assert_array_equal(first, frame_features(samples, "a"))
    assert not np.array_equal(first, frame_features(samples, "b"))
    assert not np.array_equal(first, frame_features(samples, "a", seed=1))


# Windows


def tagged(lengths) -> list[np.ndarray]:
    """Recordings whose frames say which recording and which time they are of."""
    return [np.array([[r, t] for t in range(n)]).reshape(n, 2) for r, n in enumerate(lengths)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_windows_are_those_of_the_slow_loop(lengths, length):
    expected = [
        [[r, t + i] for i in range(length)] for r, n in enumerate(lengths) for t in range(n - length + 1)
    ]
    if not expected:
        with pytest.raises(ValueError, match=f"at least one recording of {length} frames or more"):
            Windows.of(tagged(lengths), length)
        return
    source = Windows.of(tagged(lengths), length)
    assert source.n_places == len(expected)
    rows, recordings = source.every()
    np.testing.assert_array_equal(rows.reshape(-1, length, 2), expected)
    np.testing.assert_array_equal(recordings, rows[:, 0])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 99))
def test_windows_never_cross_recordings_and_run_in_time(lengths, seed):
    source = Windows.of(tagged([*lengths, 15]))
    rows = source.draw(50, seeded(seed))
    assert rows.dtype == torch.float32
    assert rows.shape == (50, source.n_variables)
    recordings, times = rows.reshape(50, 11, 2).unbind(dim=2)
    assert (recordings == recordings[:, :1]).all()
    assert (times.diff(dim=1) == 1).all()
    assert torch.equal(rows, source.draw(50, seeded(seed)))


def test_windows_are_uniform_over_places():
    source = Windows.of(tagged([11, 20, 5, 14]))
    assert source.n_places == 1 + 10 + 4
    rows = source.draw(15_000, seeded())
    places = uniform_places(15_000, 15, seeded(), torch.device("cpu"))
    assert torch.equal(rows, torch.from_numpy(source.every()[0])[places])
    counts = places.bincount(minlength=15).double()
    assert ((counts - 1000) ** 2 / 1000).sum() < 37.0  # chi-squared with 14 degrees of freedom, p = 0.0007


def test_to_moves_every_tensor():
    moved = Windows.of(tagged([12])).to("meta")
    assert {value.device.type for value in vars(moved).values() if torch.is_tensor(value)} == {"meta"}
    assert moved.n_variables == 22
    places = torch.zeros(5, dtype=torch.int64, device="meta")
    assert moved.at(places).shape == (5, 22)  # a tensor without values: nothing may ask for one


# Data sets


def small_corpus() -> Recordings:
    parts = ("train", "train", "valid", "test", "test")
    return Recordings.of((f"r{i}", part, noise(0.3 + 0.1 * i, i)) for i, part in enumerate(parts))


def test_windows_are_normalised_by_the_training_frames():
    corpus = small_corpus()
    data = windows_dataset("toy", corpus, {"source": "toy"})
    training = np.concatenate(corpus.of_part("train")).astype(np.float64)
    mean, std = (np.array(data.provenance[key]) for key in ("mean", "std"))
    np.testing.assert_allclose(mean, training.mean(axis=0))
    np.testing.assert_allclose(std, training.std(axis=0))
    raw = np.concatenate(corpus.of_part("test")[:1])
    first = data.test[0].reshape(11, 21) * std + mean
    np.testing.assert_allclose(first, raw[:11], rtol=1e-5)
    assert data.sizes == data.provenance["windows"]
    assert data.provenance["recordings"] == {"train": 2, "valid": 1, "test": 2}
    assert data.schema.names[20:22] == ("t1 energy", "t2 mel1")
    assert data.train.dtype == np.float32
    assert data.source.n_places == len(data.train)


def test_test_windows_know_their_speaker():
    parts, speakers = ("test", "train", "test", "test"), {"r0": "b", "r1": "c", "r2": "a", "r3": "b"}
    files = [(f"r{i}", part, noise(0.3 + 0.1 * i, i)) for i, part in enumerate(parts)]
    known = windows_dataset("toy", Recordings.of(files, speakers=speakers), {}, grouped_by="speaker")
    lengths = [18, 38, 48]  # of the recordings of test: 28, 48 and 58 frames
    np.testing.assert_array_equal(known.test_groups, np.repeat([1, 0, 1], lengths))
    alone = windows_dataset("toy", Recordings.of(files), {})
    np.testing.assert_array_equal(alone.test_groups, np.repeat([0, 1, 2], lengths))
    assert (known.grouped_by, alone.grouped_by) == ("speaker", "recording")
    assert known.checksum == alone.checksum


def test_too_many_windows_become_a_seeded_draw(monkeypatch):
    corpus = small_corpus()
    whole = windows_dataset("toy", corpus, {})
    monkeypatch.setattr(speech, "MOST_ROWS", {"train": (20, 0), "valid": (20_000, 1)})
    part, again = (windows_dataset("toy", corpus, {}) for _ in range(2))
    assert part.sizes == {**whole.sizes, "train": 20}
    assert part.checksum == again.checksum
    assert set(map(bytes, part.train)) <= set(map(bytes, whole.train))
    assert part.source.n_places == len(whole.train)


def test_a_folder_of_ones_own(tmp_path):
    for place, content in {
        "train/ann/1.wav": wav(noise(0.3, 1)),
        "train/ann/2.FLAC": flac(noise(0.3, 2)),
        "train/notes.txt": b"no recording",
        "test/ben.flac": flac(noise(0.3, 3)),
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(content)
    data = resolve(f"speech:{tmp_path}")
    assert data.provenance["recordings"] == {"train": 2, "test": 1}
    assert data.sizes == {"train": 36, "test": 18}
    assert data.name == tmp_path.name
    assert str(tmp_path) not in str(data.provenance)
    assert data.checksum == speech_dataset(tmp_path, "mine").checksum
    (tmp_path / "valid").mkdir()
    (tmp_path / "valid" / "slow.wav").write_bytes(wav(noise(0.3), 8000))
    with pytest.raises(ValueError, match=r"slow.wav has a sampling rate of 8000 Hz; expected 16000"):
        speech_dataset(tmp_path)
    shutil.rmtree(tmp_path / "train")
    with pytest.raises(ValueError, match=r"has no recordings in a folder 'train'; expected .wav or .flac"):
        speech_dataset(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        speech_dataset(tmp_path / "none")


def archive_bytes() -> bytes:
    files = {}
    lines = ["file,speaker,sex,split,seconds,sha256"]
    for i, part in enumerate(["valid", "train", "train", "test"]):
        files[f"{part}/{9 - i}.flac"] = flac(noise(0.3, i))
        lines.append(f"{9 - i}.flac,{i},F,{part},0.3,unused")
    files |= {"manifest.csv": "\n".join(lines).encode(), "LICENSE.TXT": b"CC BY 4.0"}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def libri(tmp_path):
    path = tmp_path / librispeech.ARCHIVE
    path.parent.mkdir()
    path.write_bytes(archive_bytes())
    return path


def test_librispeech_from_recordings_and_from_features(tmp_path, libri, monkeypatch):
    check = partial(librispeech.check, digest=tar_digest(read_tar(libri)))
    item = replace(ENTRIES["librispeech"], form=replace(ENTRIES["librispeech"].form, check=check))
    data = item.load(data_dir=tmp_path)
    assert data.sizes == {"train": 36, "valid": 18, "test": 18}
    assert data.n_variables == 231
    assert data.provenance["file"] == "librispeech_subset.tar"
    assert write_features(data_dir=tmp_path) == tmp_path / librispeech.FEATURES
    libri.unlink()
    monkeypatch.setitem(sys.modules, "soundfile", None)
    again = item.load(data_dir=tmp_path)
    assert again.provenance["file"] == "librispeech_features.npz"
    assert again.checksum == data.checksum
    assert torch.equal(again.source.draw(9, seeded()), data.source.draw(9, seeded()))
    with pytest.raises(FileNotFoundError, match="there is no archive of recordings at"):
        write_features(data_dir=tmp_path)


def test_features_that_do_not_fit_are_refused(tmp_path, libri, monkeypatch):
    path = write_features(tmp_path / "features.npz", tmp_path)
    found, digest = librispeech.read_features(path)
    assert digest == tar_digest(read_tar(libri))
    np.testing.assert_array_equal(found.frames, librispeech.read_archive(libri).frames)
    with pytest.raises(ValueError, match=r"made of an archive with the digest .* not 1234"):
        librispeech.check(path, "1234")
    with np.load(path) as arrays:
        broken = dict(arrays) | {"lengths": arrays["lengths"][1:]}
    np.savez(tmp_path / "broken.npz", **broken)
    with pytest.raises(ValueError, match="its frames and its recordings do not fit together"):
        librispeech.read_features(tmp_path / "broken.npz")
    monkeypatch.setattr(librispeech, "SETTINGS", {"frame": 1})
    with pytest.raises(ValueError, match="was made with other settings"):
        librispeech.read_features(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is damaged or holds no frames"):
        librispeech.read_features(path)


def test_librispeech_without_a_file_says_what_to_do(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"librispeech_subset.tar: this part .* given as speech:FOLDER"
    ):
        load("librispeech", tmp_path)


def test_an_archive_must_hold_what_it_lists(tmp_path):
    path = tmp_path / "some.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("manifest.csv")
        content = b"file,split\na.flac,train\n"
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    with pytest.raises(ValueError, match=r"lacks train/a.flac, which its manifest.csv lists"):
        librispeech.read_archive(path)
    with tarfile.open(path, "w"):
        pass
    with pytest.raises(ValueError, match=r"has no manifest.csv"):
        librispeech.read_archive(path)
