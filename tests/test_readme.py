"""The code of README and of every page of the documentation runs as it is written, with fewer epochs."""

import dataclasses
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import pynade
from pynade.cli.main import app
from pynade.estimators import NetEstimator

ROOT = Path(__file__).parents[1]
EPOCHS, UPDATES = 2, 4  # of nets, and per epoch: a test of the code, not of the models
WRITTEN = {"results", "tables", "robustness"}  # pages that programs write
PAGES = sorted(p for p in ROOT.glob("docs/**/*.md") if "_build" not in p.parts and p.stem not in WRITTEN)
BLOCK = re.compile(r"^```(python|sh|console|\{code-cell\})\n(.*?)^```$", re.S | re.M)
CODE = {path: BLOCK.findall(path.read_text(encoding="utf-8")) for path in PAGES}
OTHER_BLOCKS = ("text", "", "{toctree}", "{glossary}", "{eval-rst}", "{list-table}", "{commands}")
# Programs that a page may name:
OTHERS = {"source", "python3", "curl", "pip", "torchrun", "make", "uvicorn", "serve"}


def blocks(path, language):
    return [code for kind, code in BLOCK.findall(path.read_text(encoding="utf-8")) if kind == language]


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """A folder of its own, no window, small nets, few updates, and no mixture of Gaussians beside them."""
    for kind in (NetEstimator, pynade.TabularNADE):

        def fewer(model, options=kind.options):
            found = options(model)
            return dataclasses.replace(found, epochs=min(found.epochs, EPOCHS), updates_per_epoch=UPDATES)

        monkeypatch.setattr(kind, "options", fewer)
    small = {"hidden": (16, 16), "members": 1, "dropout": 0.0, "n_orderings": 2}
    small |= {"batch_size": 32, "updates": 500, "work": 1e12}
    monkeypatch.setattr("pynade.estimators.tabular.DEFAULTS", {float("inf"): small})
    monkeypatch.setattr("pynade.estimators.tabular.MOST_NUMBERS", -1)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def run_commands(lines):
    for line in lines:  # in this process, since importing torch takes seconds
        program, *words = shlex.split(line, comments=True)
        assert program == "pynade"
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, (line, done.output)


def check_commands(lines):
    """Commands of a console that need a GPU, a network or another machine: their options must exist."""
    for line in lines:
        prompt, program, *words = shlex.split(line)
        assert prompt == "$", line
        if "pynade.cli.main" in words:
            program, words = "pynade", words[words.index("pynade.cli.main") + 1 :]
        assert program == "pynade" or program in OTHERS
        words = words[2:] if words[:1] == ["--import"] else words  # a module that is not here
        if program == "pynade" and not {"countnade"} & set(words):
            name, *rest = words
            command = typer.main.get_command(app).commands[name]
            while getattr(command, "commands", None):
                name, *rest = rest
                command = command.commands[name]
            command.make_context(name, rest)  # refuses what it does not know


def rows(path):
    return Path(path).read_text(encoding="utf-8").count("\n")


def questions():
    """The cells of the README's table of questions: an expression and a command each."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.partition("| question |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line)[2:4] for line in lines]
    return [[cell.strip(" `").replace("\\|", "|") for cell in pair] for pair in cells]


def test_the_examples_of_the_readme_run():
    (python,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in python.splitlines() if line]) <= 10
    names = {"__name__": "readme"}
    exec(python, names)
    install, repository = blocks(ROOT / "README.md", "sh")
    assert "pip install pynade" in install
    assert "make test" in repository
    asked = questions()
    assert len(asked) >= 8
    for expression, _ in asked:
        assert eval(expression, names) is not None, expression
    run_commands([command for _, command in asked])
    assert rows("filled.csv") == rows("predicted.csv") == 345  # with the names of the columns


@pytest.mark.parametrize("path", [p for p in PAGES if CODE[p]], ids=lambda p: p.stem)
def test_the_code_of_the_pages_runs(path):
    names = {"__name__": "page"}
    for kind, code in CODE[path]:
        lines = code.splitlines()
        if kind == "console":
            check_commands(lines)
        elif kind == "sh":
            run_commands(lines)
        elif lines[0].startswith("!"):  # a command in a notebook
            run_commands([line.removeprefix("!").removesuffix("2>/dev/null") for line in lines])
        else:
            parsed = compile(code, f"{path.name}", "exec")
            if "from ray import serve" not in code or find_spec("fastapi"):  # (of ray[serve])
                exec(parsed, names)


def test_every_block_of_code_is_run():
    """Output is marked as text; other blocks hold no code."""
    for path in PAGES:
        opened = re.findall(r"^(?:```|:::)(\S*)\n", path.read_text(encoding="utf-8"), re.M)
        assert {*opened} <= {"python", "sh", "console", "{code-cell}", *OTHER_BLOCKS}, path


def test_the_page_of_choices_names_all_models():
    text = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    estimators = {name for name in pynade.__all__ if hasattr(getattr(pynade, name), "score_samples")}
    assert estimators <= set(re.findall(r"`(\w+)`", text))
