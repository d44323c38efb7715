"""Speech: log mel filter banks and energy of frames, and windows of eleven frames as rows.

The features of a recording are those of the paper's section on speech acoustics: 20 filter banks plus energy.
The details that the paper does not give are:

- Samples are 16-bit whole numbers at 16 kHz. Before anything else, noise uniform in [−½, ½) is added to them
  (half a bit of dither): where a recording is digitally silent, the logarithms would otherwise fall onto one
  point, and a density there could grow without bound.
- Frames are 25 ms long (400 samples), one every 10 ms (160 samples); only whole frames are used.
- Energy is the log of the sum of squares of a frame's samples.
- For the filter banks the signal is pre-emphasised, y_t = x_t − 0.97 x_{t−1} (the sample before the first
  counts as equal to the first), a frame is multiplied by a Hamming window and padded to 512 points, and its
  power spectrum is weighted by 20 triangles. They are equally spaced and linear in mel(f) = 2595 log10(1 +
  f / 700), from 0 to 8000 Hz; each reaches from the centre of its lower neighbour to that of its upper one.
  The features are logs of the sums.
- A frame is its 20 filter banks in ascending frequency, then its energy; a row is 11 frames in time.
- Every feature is normalised by its mean and standard deviation over all frames of the training recordings.
  Densities are of the normalised values.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.tables.dataset import PARTS, Dataset, Schema
from pynade_paper.data.audio import RATE, read_audio

FRAME, HOP, N_FFT = 400, 160, 512
N_FILTERS = 20
PRE_EMPHASIS = 0.97

#: Filter banks and energy.
N_FEATURES = N_FILTERS + 1

#: Seed of the dither; the random stream of a recording also depends on its name.
DITHER_SEED = 0

#: All windows of a part are its rows, unless there are more than this: then a draw of as many, by the seed.
MOST_ROWS = {"train": (200_000, 0), "valid": (20_000, 1)}

#: Endings of a user's own recordings.
SUFFIXES = (".wav", ".flac")


def filter_bank() -> np.ndarray:
    """Return the weights of the mel filters on the power spectrum, shape (20, 257)."""
    mel = 2595 * np.log10(1 + np.fft.rfftfreq(N_FFT, 1 / RATE) / 700)
    step = mel[-1] / (N_FILTERS + 1)
    centres = step * np.arange(1, N_FILTERS + 1)
    return np.maximum(0, 1 - np.abs(mel - centres[:, None]) / step)


def frame_features(samples: np.ndarray, name: str, seed: int = DITHER_SEED) -> np.ndarray:
    """Return the features of every frame of a recording, (frames, 21) float32, not normalised.

    The samples are 16-bit whole numbers at 16 kHz; the recording's name and the seed determine the dither.

    Example:
        >>> frame_features(np.zeros(16000, dtype=np.int16), "silence").shape
        (98, 21)
    """
    draw = np.random.default_rng([seed, zlib.crc32(name.encode())])
    signal = samples + draw.uniform(-0.5, 0.5, len(samples))
    if len(signal) < FRAME:
        return np.empty((0, N_FEATURES), dtype=np.float32)
    emphasised = signal - PRE_EMPHASIS * np.concatenate([signal[:1], signal[:-1]])
    plain, sharp = (np.lib.stride_tricks.sliding_window_view(x, FRAME)[::HOP] for x in (signal, emphasised))
    power = np.abs(np.fft.rfft(sharp * np.hamming(FRAME), N_FFT)) ** 2
    energy = np.einsum("tn,tn->t", plain, plain)
    return np.log(np.column_stack([power @ filter_bank().T, energy])).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Recordings:
    """The frames of a corpus, not normalised.

    Example:
        >>> corpus = Recordings.of([("a", "train", np.zeros(16000, dtype=np.int16))])
        >>> corpus.lengths.tolist(), corpus.parts
        ([98], ('train',))
    """

    frames: np.ndarray  # of all recordings, one recording after the other, (F, 21) float32
    lengths: np.ndarray  # number of frames of each recording
    parts: tuple[str, ...]  # to which each recording belongs: "train", "valid" or "test"
    speakers: tuple[str, ...]  # of each recording; its own name where the speaker is not known

    @classmethod
    def of(
        cls,
        files: Iterable[tuple[str, str, np.ndarray]],
        seed: int = DITHER_SEED,
        speakers: Mapping[str, str] | None = None,
    ) -> Recordings:
        """Return the recordings of name, part and samples of each; speakers by the names of recordings."""
        found = [(name, part, frame_features(samples, name, seed)) for name, part, samples in files]
        each = [frames for _, _, frames in found]
        frames = np.concatenate([np.empty((0, N_FEATURES), np.float32), *each])
        lengths = np.array([len(frames) for frames in each], dtype=np.int64)
        who = [name if speakers is None else speakers[name] for name, _, _ in found]
        return cls(frames, lengths, tuple(part for _, part, _ in found), tuple(who))

    def of_part(self, part: str) -> list[np.ndarray]:
        """Return the frames of each recording of a part."""
        each = np.split(self.frames, np.cumsum(self.lengths)[:-1])
        return [frames for frames, its in zip(each, self.parts, strict=True) if its == part]


def windows_dataset(
    name: str, corpus: Recordings, provenance: dict[str, Any], grouped_by: str = "recording"
) -> Dataset:
    """Return the windows of a corpus as a data set, with a source of training windows.

    The rows of a part are all its windows in order. Of train and valid, if they have more than 200,000 and
    20,000, they are a draw of as many by a fixed seed; test is always complete.

    Example:
        >>> noise = np.random.default_rng(0).integers(-99, 99, 16000)
        >>> data = windows_dataset("toy", Recordings.of([("a", "train", noise), ("b", "test", noise)]), {})
        >>> data.sizes, data.n_variables
        ({'train': 88, 'test': 88}, 231)
    """
    from pynade_paper.data.places import fixed_rows
    from pynade_paper.data.windows import LENGTH, Windows

    training = corpus.of_part("train")
    if not training:
        raise ValueError(f"data set {name!r} has no recordings to train on")
    both = np.concatenate(training).astype(np.float64)
    mean, std = both.mean(axis=0), both.std(axis=0)
    sources = {
        part: Windows.of([(frames - mean) / std for frames in corpus.of_part(part)])
        for part in PARTS
        if part in corpus.parts
    }
    rows, recordings = {}, {}
    for part, source in sources.items():
        most, seed = MOST_ROWS.get(part, (source.n_places, 0))
        drawn = source.every() if source.n_places <= most else fixed_rows(source, most, seed)
        rows[part], recordings[part] = drawn
    features = [*(f"mel{i + 1}" for i in range(N_FILTERS)), "energy"]
    columns = [f"t{t + 1} {feature}" for t in range(LENGTH) for feature in features]
    facts = {
        "row": "11 frames in time, each 20 log mel filter banks in ascending frequency, then log energy",
        "units": "every feature normalised over the frames of the training recordings: these are the data",
        "recordings": {part: corpus.parts.count(part) for part in sources},
        "windows": {part: source.n_places for part, source in sources.items()},
        "dither_seed": DITHER_SEED,
        "draw_seeds": {part: seed for part, (_, seed) in MOST_ROWS.items()},
        "mean": mean.tolist(),
        "std": std.tolist(),
    }
    schema = Schema.uniform("real", len(columns), columns)
    parts = rows["train"], rows.get("valid"), rows.get("test")
    groups: dict[str, Any] = {}
    if "test" in rows:
        pairs = zip(corpus.speakers, corpus.parts, strict=True)
        numbers = np.unique([who for who, part in pairs if part == "test"], return_inverse=True)[1]
        groups = {"test_groups": numbers[recordings["test"]], "grouped_by": grouped_by}
    return Dataset(name, *parts, schema, provenance | facts, source=sources["train"], **groups)


def speech_dataset(folder: str | Path, name: str | None = None) -> Dataset:
    """Return the windows of a user's own recordings as a data set.

    Args:
        folder: A folder with folders ``train`` and, as there are, ``valid`` and ``test``; all ``.wav`` and
            ``.flac`` files in them, however deep, are taken in the order of their names. Keep a speaker's
            recordings in one part. Without a folder ``valid``, a seeded tenth of the recordings of ``train``
            is for validation.
        name: Name of the data set; that of the folder when left out.

    Example:
        >>> import tempfile, wave
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "train").mkdir()
        >>> with wave.open(str(folder / "train" / "a.wav"), "wb") as out:
        ...     out.setparams((1, 2, 16000, 0, "NONE", ""))
        ...     out.writeframes(bytes(32000))
        >>> speech_dataset(folder, "silence").sizes
        {'train': 88}
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    files = [(part, path) for part in PARTS for path in _recordings(folder / part)]
    if "train" not in (part for part, _ in files):
        wanted = f"expected {' or '.join(SUFFIXES)} files"
        raise ValueError(f"{folder} has no recordings in a folder 'train'; {wanted}")
    if not any(part == "valid" for part, _ in files):  # whole recordings, since windows of one overlap
        trained = [k for k, (part, _) in enumerate(files) if part == "train"]
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(trained))
        for k in order[: len(trained) // 10]:
            files[trained[k]] = ("valid", files[trained[k]][1])
    corpus = Recordings.of(
        (path.relative_to(folder).as_posix(), part, read_audio(path.read_bytes(), str(path)))
        for part, path in files
    )
    return windows_dataset(name or folder.resolve().name, corpus, {"source": folder.resolve().name})


def _recordings(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
