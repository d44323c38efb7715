"""The examples of the documents run as they are written, with fewer epochs where none are given."""

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pynade
from pynade.cli.main import app

ROOT = Path(__file__).parents[1]
EPOCHS = 40


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S)


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """A folder of its own, no window, and at most 40 epochs for TabularNADE."""
    options = pynade.TabularNADE.options

    def fewer(model):
        found = options(model)
        return dataclasses.replace(found, epochs=min(found.epochs, EPOCHS))

    monkeypatch.setattr(pynade.TabularNADE, "options", fewer)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def run_commands(lines):
    for line in lines:  # in this process, since importing torch takes seconds
        program, *words = shlex.split(line)
        assert program == "pynade"
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, (line, done.output)


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


def test_the_page_of_models_runs():
    python = blocks(ROOT / "docs/models.md", "python")
    assert len(python) == 2
    exec("\n".join(python), {"__name__": "models"})
    (shell,) = blocks(ROOT / "docs/models.md", "sh")
    run_commands(shell.splitlines())


def test_the_page_of_models_names_all_of_them():
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8").partition("\n\nA model")[0]
    estimators = {name for name in pynade.__all__ if hasattr(getattr(pynade, name), "score_samples")}
    assert set(re.findall(r"`(\w+)`", text)) == estimators


def test_the_tutorial_runs():
    tutorial = blocks(ROOT / "docs/tutorial.md", "python")
    assert len(tutorial) >= 10
    exec("\n".join(tutorial), {"__name__": "tutorial"})
    (shell,) = blocks(ROOT / "docs/tutorial.md", "sh")
    run_commands(shell.splitlines())


def test_the_schema_in_the_tutorial_is_that_of_the_model():
    (shown,) = re.findall(r"```\n(column .*?)```", (ROOT / "docs/tutorial.md").read_text("utf-8"), flags=re.S)
    model = pynade.TabularNADE(epochs=1, random_state=0).fit(pynade.datasets.penguins())
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        [column.name, column.kind] for column in model.schema_.columns
    ]
