"""The paper's figures of samples, each as one command: train what it shows, draw it.

`protocols/figures.toml` says how, in commands of `pynade`; this module fills in folders and leaves out what
has been done. The figures of numbers are drawn from the records by `pynade_paper.record_figures`.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pynade_paper.reproduce import cells


@dataclass(frozen=True)
class PaperFigure:
    """One figure: the commands that make it, with {work}, {device} and {out} to be filled in."""

    name: str
    caption: str
    steps: list[str]

    def commands(self, out: Path, work: Path, device: str, again: bool = False) -> list[list[str]]:
        """The commands' words; a finished `fit` is left out, an interrupted one goes on.

        What is there is made anew where `again` is wanted, or where only its record is left.
        """
        made = []
        for step in self.steps:
            # (split first: a folder's name may have blanks)
            words = [word.format(work=work, device=device, out=out) for word in shlex.split(step)]
            if words[0] == "fit":
                run = Path(words[words.index("--out") + 1])
                status = _status(run)
                if status == "finished" and not again:
                    continue
                if status == "begun" and not again:
                    words = ["fit", "--resume", str(run)]
                elif status is not None:
                    words.append("--overwrite")
            elif words[0] == "reproduce" and (again or _only_records(words, work)):
                words.append("--again")
            made.append(words)
        return made

    def described(self) -> str:
        """The caption, with the command that makes the figure."""
        return f"{self.caption} `pynade figure paper {self.name}`."


def _status(run: Path) -> str | None:
    """How the run in a folder stands: "begun", as its result says ("finished", "diverged"), or None."""
    if (run / "result.json").is_file():
        return str(json.loads((run / "result.json").read_text(encoding="utf-8"))["status"])
    return "begun" if (run / "spec.json").is_file() else None


def _only_records(words: list[str], work: Path) -> bool:
    """Whether a cell that `reproduce` is to make has its record, but not its models."""
    model, data = (
        words[words.index(option) + 1] if option in words else None for option in ("--model", "--dataset")
    )
    names = [cell.name for cell in cells([words[1]], model, data)]
    return any((work / "results" / f"{n}.json").is_file() and not (work / "full" / n).exists() for n in names)


def paper_figures() -> dict[str, PaperFigure]:
    """All of them by name.

    Example:
        >>> paper_figures()["mnist-samples-nade"].commands(Path("a.png"), Path("runs"), "cpu")[-1]
        ['sample', 'runs/nade', '-n', '64', '--plot', 'a.png']
    """
    text = files("pynade_paper").joinpath("protocols/figures.toml").read_text("utf-8")
    return {entry["name"]: PaperFigure(**entry) for entry in tomllib.loads(text)["figure"]}
