"""The named data sets of real numbers: their sizes, where they are published, how they are read."""

from __future__ import annotations

from functools import partial

from pynade_paper.data import bsds, librispeech, uci
from pynade_paper.data.catalogue import Entry, Form, Upstream
from pynade_paper.data.digests import check_file, check_tar

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_WINE = "Cortez, Cerdeira, Almeida, Matos and Reis (2009), UCI Wine Quality, CC BY 4.0"
_UNITS = "normalised by the mean and standard deviation of train and valid: these are the data"
_NUMBERS = tuple(str(k) for k in range(1, uci.FOLDS + 1))
_RED_SHA256 = "2c68a6970e234f1c76c21b140042fcdba21b4b34a841babaeb42cde2beed9d42"
_WHITE_SHA256 = "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836"
_PARKINSONS_SHA256 = "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39"


def _seeded_folds(file: str, sha256: str) -> Form:
    """A published table, cut into folds by a seed."""
    check = partial(check_file, sha256=sha256)
    return Form((file,), uci.table_fold, check, write=uci.copy_file, variants=_NUMBERS)


_RED = Entry(
    name="red_wine",
    title="Red wine: physical and chemical measurements, the paper's own ten folds",
    D=11,
    sizes={"train": 1272, "valid": 168, "test": 159},
    citation=f"{_WINE}; the folds are those of Uria, Côté, Gregor, Murray and Larochelle (2016)",
    upstream=(),
    notes=(
        _UNITS,
        "values are coarsely rounded and 240 rows repeat others: densities can have very narrow spikes",
    ),
    kind="real",
    form=Form(
        files=("uci/red_wine_folds.hdf5",),
        read=uci.published_fold,
        check=partial(check_file, sha256=_RED_SHA256),
        variants=_NUMBERS,
    ),
    by_hand=(
        "no address is known for certain that publishes the authors' folds of it, so put your copy there;"
        " the rows without these folds are UCI's winequality-red.csv, which can be given as a plain file"
    ),
)

_WHITE = Entry(
    name="white_wine",
    title="White wine: physical and chemical measurements, ten seeded folds",
    D=11,
    sizes={"train": 3919, "valid": 489, "test": 490},
    citation=_WINE,
    upstream=(Upstream(f"{_UCI}wine-quality/winequality-white.csv", _WHITE_SHA256),),
    notes=(
        _UNITS,
        f"the folds are pynade's own (seed {uci.FOLD_SEED}): those of the paper are not published",
        "values are coarsely rounded and 937 rows repeat others: densities can have very narrow spikes",
    ),
    kind="real",
    form=_seeded_folds("uci/winequality-white.csv", _WHITE_SHA256),
)

_PARKINSONS = Entry(
    name="parkinsons",
    title="Parkinsons: measurements of the voice (telemonitoring), ten seeded folds",
    D=15,
    sizes={"train": 4700, "valid": 587, "test": 588},
    citation="Tsanas, Little, McSharry and Ramig (2009), UCI Parkinsons Telemonitoring, CC BY 4.0",
    upstream=(Upstream(f"{_UCI}parkinsons/telemonitoring/parkinsons_updrs.data", _PARKINSONS_SHA256),),
    notes=(
        _UNITS,
        f"the folds are pynade's own (seed {uci.FOLD_SEED}): those of the paper are not published",
        "columns of whole numbers (subject#, age, sex) are left out, and the earlier of two columns with a"
        f" correlation beyond {uci.MAX_CORRELATION}",
        "rows of one subject occur both in train and in test",
    ),
    kind="real",
    form=_seeded_folds("uci/parkinsons_updrs.data", _PARKINSONS_SHA256),
)

_BSDS = Entry(
    name="bsds300",
    title="BSDS300: patches of 8 × 8 grey pixels from photographs, their last pixel dropped",
    D=63,
    sizes=bsds.ROWS,
    citation=(
        "Martin, Fowlkes, Tal and Malik (2001), Berkeley Segmentation Dataset; for non-commercial research"
        " and education; used as by Zoran and Weiss (2011)"
    ),
    upstream=(
        Upstream("https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/bsds/BSDS300-images.tgz"),
    ),
    notes=(
        "the parts are fixed draws; training may draw fresh patches from the source of the data set",
        "20 of the 200 training images, chosen by a seed, are for validation; bsds300/all trains on all 200",
        "densities are those of the 63 values of a patch in [0, 1] less its mean",
    ),
    kind="real",
    form=Form(
        files=("bsds300/bsds300_images.tar",),
        read=bsds.read_patches,
        check=partial(check_tar, digest="607795de925f4678b1942de77f9897a11e9c4ef59815c1907e061d1d7fb94d47"),
        write=bsds.write_archive,
        variants=("", bsds.ALL_IMAGES),
    ),
)

_SPEECH = Entry(
    name="librispeech",
    title="Speech: 11 frames of 20 mel filter banks and energy, from 89 speakers of LibriSpeech",
    D=231,
    sizes={"train": 78796, "valid": 10326, "test": 20848},
    citation="Panayotov, Chen, Povey and Khudanpur (2015), LibriSpeech, CC BY 4.0; a small part of it",
    upstream=(),
    notes=(
        "a replacement for TIMIT: numbers do not compare with those on TIMIT, the order of models may",
        "split by speaker: 62 for train, 10 for valid, 17 for test",
        "every feature is normalised over the frames of the training recordings: these are the data",
        "the parts hold all windows; the source of the data set draws training windows on the fly",
    ),
    kind="real",
    form=Form(
        files=(librispeech.FEATURES, librispeech.ARCHIVE),
        read=librispeech.read,
        check=librispeech.check,
    ),
    by_hand=(
        "this part of LibriSpeech is not published as a file of its own, so put your copy there; recordings"
        " of your own, in folders train, valid and test, can be given as speech:FOLDER"
    ),
)

#: In the order of the paper's sections.
REAL_ENTRIES: tuple[Entry, ...] = (_RED, _WHITE, _PARKINSONS, _BSDS, _SPEECH)
