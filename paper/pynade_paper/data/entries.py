"""The named data sets of the paper: the binary ones of `binary.toml`, then those of `real.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from pynade_paper.data import bsds, convert, librispeech, uci
from pynade_paper.data.catalogue import Entry, Form, Upstream
from pynade_paper.data.digests import check_file, check_tar

_FOLDS = tuple(str(k) for k in range(1, uci.FOLDS + 1))
_RED_SHA256 = "2c68a6970e234f1c76c21b140042fcdba21b4b34a841babaeb42cde2beed9d42"
_WHITE_SHA256 = "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836"
_PARKINSONS_SHA256 = "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39"
_BSDS_DIGEST = "607795de925f4678b1942de77f9897a11e9c4ef59815c1907e061d1d7fb94d47"


def _seeded_folds(file: str, sha256: str) -> Form:
    """A published table, cut into folds by a seed."""
    check = partial(check_file, sha256=sha256)
    return Form((file,), uci.table_fold, check, write=uci.copy_file, variants=_FOLDS)


#: How the data sets of `real.toml` are stored.
FORMS: Mapping[str, Form] = {
    "red_wine": Form(
        ("uci/red_wine_folds.hdf5",),
        uci.published_fold,
        partial(check_file, sha256=_RED_SHA256),
        variants=_FOLDS,
    ),
    "white_wine": _seeded_folds("uci/winequality-white.csv", _WHITE_SHA256),
    "parkinsons": _seeded_folds("uci/parkinsons_updrs.data", _PARKINSONS_SHA256),
    "bsds300": Form(
        ("bsds300/bsds300_images.tar",),
        bsds.read_patches,
        partial(check_tar, digest=_BSDS_DIGEST),
        bsds.write_archive,
        ("", bsds.ALL_IMAGES),
    ),
    "librispeech": Form((librispeech.FEATURES, librispeech.ARCHIVE), librispeech.read, librispeech.check),
}


def _entries(file: str) -> Iterator[Entry]:
    """The entries of a file."""
    content = tomllib.loads(files("pynade_paper.data").joinpath(file).read_text("utf-8"))
    for fields in content["entry"]:
        shape: Any = fields.pop("image_shape", None)
        how = fields.pop("convert", None)
        yield Entry(
            sizes=dict(zip(("train", "valid", "test"), fields.pop("sizes"), strict=True)),
            upstream=tuple(Upstream(**published) for published in fields.pop("upstream")),
            convert=None if how is None else getattr(convert, how),
            notes=tuple(fields.pop("notes", ())),
            image_shape=None if shape is None else tuple(shape),
            form=FORMS.get(fields["name"]),
            **fields,
        )


#: All by name.
ENTRIES: Mapping[str, Entry] = {e.name: e for file in ("binary.toml", "real.toml") for e in _entries(file)}
