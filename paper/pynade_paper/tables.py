"""The paper's tables as data: the printed values, and how each number is made again (`protocols/*.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

FIGURES = "figures.toml"  # beside the tables, see `pynade_paper.paper_figures`
NAMES = {"binarized_mnist": "binarized MNIST", "bsds300": "BSDS300", "connect4": "Connect 4", "dna": "DNA"}
NAMES |= {
    "librispeech": "LibriSpeech",
    "nips_0_12": "NIPS 0-12",
    "ocr_letters": "OCR letters",
    "rcv1": "RCV1",
}
ORDER = ("binary", "orderings", "mnist", "uci", "patches", "speech")


@dataclass(frozen=True)
class Row:
    """One model of a table: the paper's values by data set, and where ours are recorded."""

    model: str  # the name in the table
    record: str  # file under the folder of records, with {data} for the data set
    paper: dict[str, float] = field(default_factory=dict)  # the paper's value for each data set
    kind: str = "exact"  # what the paper's values are: "exact", "estimate" or "bound"
    bold: list[str] = field(default_factory=list)  # data sets for which the paper prints it in bold
    entry: tuple[str, ...] = ("test",)  # where in the record the number is
    fit: dict[str, Any] | None = None  # how the record is made by one run: model, parameters, perhaps data
    sweep: dict[str, Any] | None = None  # or by a grid of settings chosen on validation
    orderings: int | None = None  # under which a run is scored
    draws: int | None = None  # then exact scores on some rows only, and estimates by so many draws on all
    every: int = 10  # the rows with exact scores are every n-th
    precision: str = "tf32"  # of the nets while they are scored
    quick: dict[str, Any] = field(default_factory=dict)  # of a trial run instead: parameters, grid, every
    minutes: float = 5.0  # about how long it takes on an H200
    why: str | None = None  # the reason why `pynade reproduce` does not measure it, other than time

    def sweep_on(self, data: str) -> dict[str, Any]:
        """The sweep on one data set: `own` settings for that data set replace those of the row."""
        assert self.sweep is not None
        sweep = {name: value for name, value in self.sweep.items() if name != "own"}
        for own in self._own(self.sweep, data, {"fixed", "grid"}):
            fixed, grid = own.get("fixed", {}), own.get("grid", {})
            sweep["fixed"] = {k: v for k, v in sweep["fixed"].items() if k not in grid} | fixed
            sweep["grid"] = {k: v for k, v in sweep["grid"].items() if k not in fixed} | grid
        return sweep

    def fit_on(self, data: str) -> dict[str, Any]:
        """The fit on one data set, in the same way."""
        assert self.fit is not None
        fit = {name: value for name, value in self.fit.items() if name != "own"}
        for own in self._own(self.fit, data, {"parameters"}):
            fit["parameters"] = fit["parameters"] | own["parameters"]
        return fit

    def _own(self, protocol: dict[str, Any], data: str, known: set[str]) -> list[dict[str, Any]]:
        for own in protocol.get("own", []):
            if unknown := set(own) - known - {"on"}:
                raise ValueError(f"{self.model}: an own protocol has no {', '.join(sorted(unknown))}")
        return [own for own in protocol.get("own", []) if data in own["on"]]

    @property
    def deviation(self) -> bool:
        """Whether its number is a standard deviation over seeds, not a log-likelihood."""
        return self.entry[-1] == "std"


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    title: str  # heading on the page of results
    about: str  # paragraph below it
    columns: list[str]  # the data sets
    rows: list[Row]  # the models
    bold_by: str  # which are best: "overlap" of two standard errors, "paired" tests over folds, or "none"
    number: list[int]  # the table's numbers in the paper
    unavailable: dict[str, str] = field(default_factory=dict)  # data sets, and why
    compare: bool = True  # False where our data are other data than the paper's
    papers_data: str = "TIMIT"  # the name of the paper's data there
    grouped_by: str = ""  # what test rows have in common that are not independent: "image", "speaker"

    @property
    def deviations(self) -> bool:
        """Whether it is a table of standard deviations over seeds, not of log-likelihoods."""
        return all(row.deviation for row in self.rows)

    @property
    def mixed(self) -> bool:
        """Whether the paper's values are not all exact; then the kind of every number is shown."""
        return any(row.kind != "exact" for row in self.rows)


#: Tables by name; functions that take `tables` use those of the paper when it is left out.
Tables = Mapping[str, Table]


def protocols(folder: Path | None = None) -> Traversable:
    """The folder of protocols: the package's own, or another."""
    return files("pynade_paper").joinpath("protocols") if folder is None else folder


def in_words(data: str) -> str:
    """The name of a data set in titles.

    Example:
        >>> in_words("ocr_letters"), in_words("white_wine")
        ('OCR letters', 'white wine')
    """
    return NAMES.get(data, data.replace("_", " "))


@cache
def read_tables(folder: Path | None = None) -> Tables:
    """All tables by name, in the order of the paper, from the .toml files of a folder or of this package.

    Example:
        >>> read_tables()["uci"].columns
        ['red_wine', 'white_wine', 'parkinsons']
    """
    names = [f.name for f in protocols(folder).iterdir() if f.name.endswith(".toml") and f.name != FIGURES]
    names.sort(key=lambda name: (ORDER.index(name[:-5]) if name[:-5] in ORDER else len(ORDER), name))
    tables = {}
    for name in names:
        content = tomllib.loads(protocols(folder).joinpath(name).read_text("utf-8"))
        rows = [Row(**{**row, "entry": tuple(row.get("entry", ("test",)))}) for row in content.pop("row")]
        tables[name[:-5]] = Table(rows=rows, **content)
    return tables
