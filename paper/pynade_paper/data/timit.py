"""TIMIT, for those who own it: its licence does not allow redistribution.

Train is the recordings of TIMIT's training speakers, less a tenth of the speakers, chosen by a seed, for
validation; test is the 24 speakers of the core test set. The two SA sentences, which every speaker reads, are
left out as is usual. Features and windows are those of `pynade_paper.data.speech`.

The paper has 605 training and 25 test speakers. TIMIT has 462 training speakers, 24 in the core test
set and 630 in all, so that the paper may have trained on all speakers but those of the test. Numbers
obtained here are therefore similar to the paper's, but not on the same rows.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from pynade.tables.dataset import Dataset
from pynade_paper.data.audio import read_audio
from pynade_paper.data.speech import Recordings, windows_dataset

#: The speakers of the core test set, two men and a woman from each of eight regions.
_CORE = """MDAB0 MWBT0 FELC0 MTAS1 MWEW0 FPAS0 MJMP0 MLNT0 FPKT0 MLLL0 MTLS0 FJLM0
MBPM0 MKLT0 FNLP0 MCMJ0 MJDH0 FMGD0 MGRT0 MNJM0 FDHC0 MJLN0 MPAM0 FMLD0"""
CORE_TEST = frozenset(_CORE.split())

#: Share of the training speakers kept for validation, and the seed that chooses them.
VALID_SHARE, SPLIT_SEED = 0.1, 0

_PLACE = re.compile(r"(?:^|/)(TRAIN|TEST)/(DR\d)/(\w+)/(S[AIX]\d+)\.WAV(?:\.WAV)?$", re.IGNORECASE)


def timit(folder: str | Path) -> Dataset:
    """Return the windows of TIMIT as a data set.

    Args:
        folder: TIMIT's folder, or one above it: files are found as ``TRAIN/DR1/FCJF0/SI1027.WAV`` in letters
            of any case. They may be NIST SPHERE files as published, or converted to WAV.

    Example:
        >>> try:
        ...     timit("no/such/folder")
        ... except FileNotFoundError as error:
        ...     print(error)
        there is no folder no/such/folder
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder.as_posix()}")
    files = find_recordings(folder)
    speakers = {part: {speaker for its, speaker, _ in files if its == part} for part in ("TRAIN", "TEST")}
    if not speakers["TRAIN"]:
        raise ValueError(f"{folder} holds no TIMIT tree; expected TRAIN/DR1/FCJF0/SI1027.WAV and so on in it")
    missing = CORE_TEST - speakers["TEST"]
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} of the 24 speakers of the core test set:"
            f" {', '.join(sorted(missing))}"
        )
    held = validation_speakers(speakers["TRAIN"])
    part_of = dict.fromkeys(speakers["TRAIN"], "train") | dict.fromkeys(held, "valid")
    part_of |= dict.fromkeys(CORE_TEST, "test")
    corpus = Recordings.of(
        (
            (f"{speaker}/{sentence}", part_of[speaker], read_audio(path.read_bytes(), str(path)))
            for (_, speaker, sentence), path in sorted(files.items())
            if speaker in part_of and not sentence.startswith("SA")
        ),
        speakers={f"{speaker}/{sentence}": speaker for _, speaker, sentence in files},
    )
    provenance = {
        "source": "timit",
        "citation": "Garofolo et al. (1993), TIMIT, LDC93S1; owned by its licensees",
        "valid_speakers": sorted(held),
        "split_seed": SPLIT_SEED,
        "notes": [
            "SA sentences are left out",
            "test is the core test set; a tenth of the training speakers, chosen by a seed, is valid",
        ],
    }
    return windows_dataset("timit", corpus, provenance, grouped_by="speaker")


def find_recordings(folder: Path) -> dict[tuple[str, str, str], Path]:
    """Return the recordings of a tree by part, speaker and sentence, in capital letters.

    Where a sentence is there twice, as published and converted, the file whose name sorts first is taken.
    """
    found: dict[tuple[str, str, str], Path] = {}
    for path in sorted(folder.rglob("*")):
        place = _PLACE.search(path.relative_to(folder).as_posix())
        if place is not None and path.is_file():
            found.setdefault((place[1].upper(), place[3].upper(), place[4].upper()), path)
    return found


def validation_speakers(speakers: set[str]) -> set[str]:
    """Return the tenth of the speakers that is kept for validation, at least one.

    Example:
        >>> len(validation_speakers({f"M{i:03}0" for i in range(462)}))
        46
    """
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(speakers))
    ordered = sorted(speakers)
    return {ordered[i] for i in order[: max(1, round(VALID_SHARE * len(speakers)))]}
