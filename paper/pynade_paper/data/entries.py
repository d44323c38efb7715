"""The table of named data sets; here those of zeros and ones, see `real_entries` for the others."""

from __future__ import annotations

from collections.abc import Mapping

from pynade_paper.data.catalogue import Entry, Upstream
from pynade_paper.data.convert import (
    amat_parts,
    amat_parts_with_target,
    letters_parts,
    libsvm_parts,
)
from pynade_paper.data.real_entries import REAL_ENTRIES

_LAROCHELLE = "https://www.cs.toronto.edu/~larocheh/public/datasets/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
_SPLIT = "Larochelle, Bengio and Turian (2010), Neural Computation 22(9), for the binary form and the split"
_PRESPLIT = (
    "downloaded as Larochelle's three files, one for each part; the unsplit originals are on the LIBSVM page"
)


def _sizes(train: int, valid: int, test: int) -> dict[str, int]:
    return {"train": train, "valid": valid, "test": test}


def _each(
    folder: str, pattern: str, parts: tuple[str, ...] = ("train", "valid", "test")
) -> tuple[Upstream, ...]:
    return tuple(Upstream(f"{_LAROCHELLE}{folder}/{pattern.format(part)}") for part in parts)


_ADULT = Entry(
    name="adult",
    title="Adult: census records, one-hot (LIBSVM a5a)",
    D=123,
    sizes=_sizes(5000, 1414, 26147),
    citation=f"Becker and Kohavi (1996), UCI Adult, CC BY 4.0; LIBSVM a5a; {_SPLIT}",
    upstream=_each("adult", "a5a_{}.libsvm"),
    convert=libsvm_parts,
    content={
        "train": "6776783827a2cb28e72e87f35cfea16cfd83f607958cac0101641106be93656d",
        "valid": "80b83958c88fa145c5261080963ff6f9660ffe8d067ca0d8c0540bf2917dbe6c",
        "test": "0af826685a720bb36eec36aaa6bfd23e41ec215027992e52c424ccaa71b8df93",
    },
    notes=("12.7 % of the test rows also occur in train", _PRESPLIT),
)

_CONNECT4 = Entry(
    name="connect4",
    title="Connect-4: board positions, three indicators for each of 42 cells",
    D=126,
    sizes=_sizes(16000, 4000, 47557),
    citation=f"Tromp (1995), UCI Connect-4, CC BY 4.0; LIBSVM connect-4; {_SPLIT}",
    upstream=_each("connect-4", "connect-4_{}.libsvm"),
    convert=libsvm_parts,
    content={
        "train": "0ab4138be074c74d30175cb7de4646f503225ded8c8525cc5a9a3f690d6a83b9",
        "valid": "5399645d5f137da6d67397003db28b5272664c1edab9dd716872e5dafa083ad7",
        "test": "d1c8709edef9997daae2c083a625398414732c3276bb01d2958db56961102f9e",
    },
    notes=(_PRESPLIT,),
)

_DNA = Entry(
    name="dna",
    title="DNA: splice junctions, three indicators for each of 60 bases",
    D=180,
    sizes=_sizes(1400, 600, 1186),
    citation=f"UCI splice-junction sequences, CC BY 4.0, in the Statlog form; LIBSVM dna; {_SPLIT}",
    upstream=tuple(Upstream(f"{_LIBSVM}multiclass/dna.scale.{end}") for end in ("tr", "val", "t")),
    convert=libsvm_parts,
    content={
        "train": "f1b551870f6ce414661edbbc1c8f1319a169c3825da764c4f53a9f98c69860aa",
        "valid": "b60fe74da8b8392b545b67cdbd506e551f79ae1b647c9065a302c92c22c1a1c3",
        "test": "579485be99616e5a2b162799551ef435288ce00882da5ac98c426d317c791b4e",
    },
    notes=("5.2 % of the test rows also occur in train",),
)

_MUSHROOMS = Entry(
    name="mushrooms",
    title="Mushrooms: field-guide descriptions, one-hot",
    D=112,
    sizes=_sizes(2000, 500, 5624),
    citation=f"UCI Mushroom (1981), CC BY 4.0; LIBSVM mushrooms; {_SPLIT}",
    upstream=_each("mushrooms", "mushrooms_{}.libsvm"),
    convert=libsvm_parts,
    content={
        "train": "34696e7d85c884581463a258317c839cfb887e55128bbdb739302ab476d99c20",
        "valid": "d7e6cefe6cca3f8950419f20ac062e1c434831226884fa251f252097ada50738",
        "test": "e8dc0077a1981765c9a436834cffbbe066c7ab27fc37419c515d652a6668a60c",
    },
    notes=(_PRESPLIT,),
)

_NIPS = Entry(
    name="nips_0_12",
    title="NIPS-0-12: which of 500 words occur in a paper of NIPS volumes 0 to 12",
    D=500,
    sizes=_sizes(400, 100, 1240),
    citation=f"Roweis, NIPS 0-12 text corpus, no licence stated; {_SPLIT}",
    upstream=_each("nips-0-12", "nips-0-12_all_shuffled_bidon_target_{}.amat"),
    convert=amat_parts_with_target,
    content={
        "train": "9fc2b10a1ec1d460104c477eb27ef632251acb552d94e20b895bf6f290d92382",
        "valid": "7c0261338bfb567b6b0383b913c7d582614528916c0276252dba3d362c12e774",
        "test": "59d60709015c8c2191a3ba8b4c061ecfa92c3ea4228ef884953c4be1a887a76d",
    },
    notes=("the last column of the published files is a dummy target and is dropped",),
)

_OCR = Entry(
    name="ocr_letters",
    title="OCR-letters: handwritten letters, 16 × 8 pixels",
    D=128,
    sizes=_sizes(32152, 10000, 10000),
    citation=f"Kassel (1995) and Taskar, Guestrin and Koller (2003), no licence stated; {_SPLIT}",
    upstream=(Upstream("https://ai.stanford.edu/~btaskar/ocr/letter.data.gz"),),
    convert=letters_parts,
    content={
        "train": "45b4d55740a624fc5924eef825b6e56e3245ac26aa15437a305fbad3ff594ffd",
        "valid": "55b146914c622d7f8a7c00d3e52c1544221ab413488d60fd7cf1053fd3f78689",
        "test": "689df185c51bf7594245e145173d1077a046915342abe5f2e7f02a3deb592027",
    },
    notes=(
        "6.2 % of the test rows also occur in train",
        "split by mlpython's shuffle (Python 2, seed 12345), not by the folds of the file",
    ),
    image_shape=(16, 8),
)

_RCV1_VALID = "c818577354e8f34828b510c9296985c7c79b1085e67093b42f936c1ed4a061ab"

_RCV1 = Entry(
    name="rcv1",
    title="RCV1: which of 150 words occur in a Reuters news story",
    D=150,
    sizes=_sizes(40000, 10000, 150000),
    citation=f"Lewis, Yang, Rose and Li (2004), Reuters Corpus Volume 1; {_SPLIT}",
    upstream=_each("rcv1", "rcv1_all_subset.binary_{}_voc_150.amat"),
    convert=amat_parts_with_target,
    content={"valid": _RCV1_VALID},
    notes=("the train and test parts are checked by their sizes only: no digest of them was to be had",),
)

_RCV1_VALID_ONLY = Entry(
    name="rcv1_valid_only",
    title="The validation part of RCV1 alone, cut anew: for smoke tests",
    D=150,
    sizes=_sizes(8000, 1000, 1000),
    citation=_RCV1.citation,
    upstream=_each("rcv1", "rcv1_all_subset.binary_{}_voc_150.amat", ("valid",)),
    convert=amat_parts_with_target,
    content={"valid": _RCV1_VALID},
    notes=("not comparable with RCV1 results: the 10,000 validation rows, shuffled with seed 0 and cut",),
    stored={"valid": 10000},
)

_WEB = Entry(
    name="web",
    title="Web: which of 300 keywords occur on a web page (LIBSVM w6a)",
    D=300,
    sizes=_sizes(14000, 3188, 32561),
    citation=f"Platt (1998), no licence stated; LIBSVM w6a; {_SPLIT}",
    upstream=_each("web", "w6a_{}.libsvm"),
    convert=libsvm_parts,
    content={
        "train+valid": "eb74ba88a09aee2bbffc57ddfe649d63e65e8804b2a2a147d5d7b8c72b2fadf0",
        "test": "3a8b82263866538af641d53a975684ee0f99aa52ca4c6aee42e836e2998454ec",
    },
    partitions={
        "13140365f482f4f39c9aaa60ea21b650b58468548d0b02af5e94a677b0036700": (
            "train and valid are pynade's own partition of w6a, not Larochelle's: say so beside any number"
        ),
    },
    notes=(
        "about 27 % of the test rows also occur in train",
        "train and valid are checked together only: a download has Larochelle's partition,"
        " the project's prepared copy one of its own",
    ),
)

_MNIST = Entry(
    name="binarized_mnist",
    title="Binarized MNIST: handwritten digits, 28 × 28 pixels",
    D=784,
    sizes=_sizes(50000, 10000, 10000),
    citation=(
        "LeCun, Bottou, Bengio and Haffner (1998) for MNIST;"
        " Salakhutdinov and Murray (2008) for the fixed binarization; no licence stated for this form"
    ),
    upstream=tuple(
        Upstream(f"{_LAROCHELLE}binarized_mnist/binarized_mnist_{part}.amat", sha256)
        for part, sha256 in (
            ("train", "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d"),
            ("valid", "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2"),
            ("test", "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c"),
        )
    ),
    convert=amat_parts,
    content={
        "train": "2277eaa4642a1b755a8a6feaedffdee7a9c8579f21276f7a977aba6139a34aa7",
        "valid": "19bd80512e90b313a12f3f73e55215699b1c456e03e0015fa54861d14d774109",
        "test": "dff2244650e54bc8853276c60b6306935960ced649f4556adb79bbed2e212da8",
    },
    notes=("the test part is sorted by class: never take its first rows as a sample",),
    image_shape=(28, 28),
)

#: Every named data set: the binary ones in the order of the paper's table, others, then real-valued ones.
ENTRIES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        _ADULT,
        _CONNECT4,
        _DNA,
        _MUSHROOMS,
        _NIPS,
        _OCR,
        _RCV1,
        _WEB,
        _MNIST,
        _RCV1_VALID_ONLY,
        *REAL_ENTRIES,
    )
}
