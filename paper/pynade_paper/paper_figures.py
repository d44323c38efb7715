"""The paper's figures of samples, each by one command: train the models, draw the figure.

`protocols/figures.toml` has the steps as commands of `pynade`. This module fills in folders and leaves out
finished steps. `pynade_paper.record_figures` draws the figures of numbers from the records.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from pynade_paper.cells import cells, tables_named
from pynade_paper.tables import FIGURES, protocols


@dataclass(frozen=True)
class PaperFigure:
    """One figure: the commands that make it, with {work}, {device} and {out} to be filled in."""

    name: str
    caption: str
    steps: list[str]
    title: str = ""  # the name in words when left out

    def commands(self, out: Path, work: Path, device: str, again: bool = False) -> list[list[str]]:
        """The commands as lists of words; a finished `fit` is left out, an interrupted one is resumed.

        With `again` both are trained again; a cell of which only the record is left always is.
        """
        commands = []
        for step in self.steps:
            # (split first: the name of a folder may have spaces)
            words = [word.format(work=work, device=device, out=out) for word in shlex.split(step)]
            if words[0] == "fit":
                run = Path(words[words.index("--out") + 1])
                status = _status(run)
                if status == "finished" and not again:
                    continue
                if status == "started" and not again:
                    words = ["fit", "--resume", str(run)]
                elif status is not None:
                    words.append("--overwrite")
            elif words[0] == "reproduce" and (again or _only_records(words, work)):
                words.append("--again")
            commands.append(words)
        return commands

    def described(self) -> str:
        """The caption, with the command that makes the figure."""
        return f"{self.caption} `pynade figure paper {self.name}`."


def _status(run: Path) -> str | None:
    """The status of the run in a folder: "started", that of its result ("finished", "diverged"), or None."""
    if (run / "result.json").is_file():
        return str(json.loads((run / "result.json").read_text(encoding="utf-8"))["status"])
    return "started" if (run / "spec.json").is_file() else None


def _only_records(words: list[str], work: Path) -> bool:
    """Whether a cell of a `reproduce` command has its record, but no models any more."""
    given = dict(pairwise(words))
    model, data = given.get("--model"), given.get("--dataset")
    names = [cell.name for cell in cells(tables_named(words[1]), model, data)]
    return any((work / "results" / f"{n}.json").is_file() and not (work / "full" / n).exists() for n in names)


@cache
def read_figures(folder: Path | None = None) -> Mapping[str, PaperFigure]:
    """All figures of samples by name, from the file figures.toml of a folder or of this package.

    Example:
        >>> read_figures()["mnist-samples-nade"].commands(Path("a.png"), Path("runs"), "cpu")[-1]
        ['sample', 'runs/nade', '-n', '64', '--plot', 'a.png']
    """
    content = tomllib.loads(protocols(folder).joinpath(FIGURES).read_text("utf-8"))
    return {entry["name"]: PaperFigure(**entry) for entry in content["figure"]}
