"""A small part of LibriSpeech, split by speaker: an open replacement for TIMIT."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import numpy as np

from pynade.atomic import write_atomically
from pynade.tables.dataset import Dataset
from pynade.tables.registry import data_directory
from pynade_paper.data import speech
from pynade_paper.data.audio import read_audio
from pynade_paper.data.digests import check_tar, read_tar, tar_digest
from pynade_paper.data.packed import DAMAGE
from pynade_paper.data.speech import Recordings, windows_dataset

#: The archive of recordings, and the frames made of it, in the data directory.
ARCHIVE = "speech/librispeech_subset.tar"
FEATURES = "speech/librispeech_features.npz"

#: See `pynade_paper.data.digests.tar_digest`.
DIGEST = "2b8686eff45cb1bbfa1bb5388a9d847d0927b47144e5c0964302d100f2e00741"

#: The settings with which a file of frames must have been made.
SETTINGS: dict[str, float] = {"frame": speech.FRAME, "hop": speech.HOP, "fft": speech.N_FFT}
SETTINGS |= {
    "filters": speech.N_FILTERS,
    "pre_emphasis": speech.PRE_EMPHASIS,
    "dither_seed": speech.DITHER_SEED,
}


def read_archive(path: Path) -> Recordings:
    """Return the frames of the recordings that the archive's ``manifest.csv`` lists, by name."""
    files = read_tar(path)
    if "manifest.csv" not in files:
        raise ValueError(f"the data file {path} has no manifest.csv")
    manifest = csv.DictReader(io.StringIO(files["manifest.csv"].decode()))
    known = {f"{line['split']}/{line['file']}": line for line in manifest}
    listed = sorted((name, line["split"]) for name, line in known.items())
    absent = next((name for name, _ in listed if name not in files), None)
    if absent is not None:
        raise ValueError(f"the data file {path} lacks {absent}, which its manifest.csv lists")
    speakers = {name: line["speaker"] for name, line in known.items()}
    return Recordings.of(
        ((name, part, read_audio(files[name], name)) for name, part in listed), speakers=speakers
    )


def write_features(
    path: str | os.PathLike[str] | None = None, data_dir: str | os.PathLike[str] | None = None
) -> Path:
    """Write the frames of the recordings, so that a machine without soundfile can use them; returns the path.

    At ``speech/librispeech_features.npz`` in the data directory (the path when left out) the file is read
    instead of the archive and gives the same data set. It holds ``frames`` (float32, not normalised), the
    ``lengths``, ``parts`` and ``speakers`` of the recordings, the archive's ``digest``, and the features'
    ``settings``.
    """
    archive = data_directory(data_dir) / ARCHIVE
    if not archive.exists():
        raise FileNotFoundError(f"there is no archive of recordings at {archive}")
    path = data_directory(data_dir) / FEATURES if path is None else Path(path)
    corpus = read_archive(archive)
    arrays = {
        "frames": corpus.frames,
        "lengths": corpus.lengths,
        "parts": np.array(corpus.parts),
        "speakers": np.array(corpus.speakers),
        "digest": np.array(tar_digest(read_tar(archive))),
        "settings": np.array(json.dumps(SETTINGS)),
    }

    def write(draft: Path) -> None:
        with draft.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)
    return path


def read_features(path: Path) -> tuple[Recordings, str]:
    """Read what `write_features` wrote: the frames, and the digest of the archive they were made of."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            words = (tuple(archive[name].tolist()) for name in ("parts", "speakers"))
            corpus = Recordings(archive["frames"], archive["lengths"], *words)
            digest, settings = str(archive["digest"]), json.loads(str(archive["settings"]))
    except PermissionError:
        raise
    except DAMAGE as error:
        raise ValueError(f"the data file {path} is damaged or holds no frames ({error})") from error
    if settings != SETTINGS:
        raise ValueError(f"the data file {path} was made with other settings of the features; make it again")
    fits = corpus.frames.shape == (corpus.lengths.sum(), speech.N_FEATURES)
    if not fits or len(corpus.parts) != len(corpus.lengths):
        raise ValueError(
            f"the data file {path} is damaged: its frames and its recordings do not fit together"
        )
    return corpus, digest


def check(path: Path, digest: str = DIGEST) -> None:
    """Raise ValueError unless the archive, or the file of frames, is the expected one."""
    if path.suffix != ".npz":
        check_tar(path, digest)
    elif (found := read_features(path)[1]) != digest:
        raise ValueError(f"it was made of an archive with the digest {found}, not {digest}")


def read(path: Path, variant: str = "") -> Dataset:
    """Return the windows of the recordings, from the archive or from the file of frames."""
    corpus = read_features(path)[0] if path.suffix == ".npz" else read_archive(path)
    return windows_dataset("librispeech", corpus, {}, grouped_by="speaker")
