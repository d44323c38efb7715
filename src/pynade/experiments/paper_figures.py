"""The paper's figures of samples, each as one command: train what it shows, draw it.

`paper/figures.toml` says how, in commands of `pynade`; this module fills in folders and leaves out what has
been done. The figures of numbers are drawn from the records by `pynade.experiments.record_figures`.
"""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path


@dataclass(frozen=True)
class PaperFigure:
    """One figure: the commands that make it, with {work}, {device} and {out} to be filled in."""

    name: str
    caption: str
    steps: list[str]

    def commands(self, out: Path, work: Path, device: str) -> list[list[str]]:
        """The commands' words; a finished `fit` is left out, an interrupted one goes on."""
        made = []
        for step in self.steps:
            # (split first: a folder's name may have blanks)
            words = [word.format(work=work, device=device, out=out) for word in shlex.split(step)]
            if words[0] == "fit":
                run = Path(words[words.index("--out") + 1])
                if (run / "result.json").is_file():
                    continue
                words = ["fit", "--resume", str(run)] if (run / "spec.json").is_file() else words
            made.append(words)
        return made

    def described(self) -> str:
        """The caption, with the command that makes the figure."""
        return f"{self.caption} `pynade figure paper {self.name}`."


def paper_figures() -> dict[str, PaperFigure]:
    """All of them by name.

    Example:
        >>> paper_figures()["mnist-samples-nade"].commands(Path("a.png"), Path("runs"), "cpu")[-1]
        ['sample', 'runs/nade', '-n', '64', '--plot', 'a.png']
    """
    text = files("pynade.experiments").joinpath("paper/figures.toml").read_text("utf-8")
    return {entry["name"]: PaperFigure(**entry) for entry in tomllib.loads(text)["figure"]}
