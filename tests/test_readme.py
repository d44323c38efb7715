"""The examples of README and tutorial run as they are written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S)


def test_the_examples_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = blocks(ROOT / "README.md", "python")
    assert len(python) == 3
    exec("\n".join(python), {"__name__": "readme"})
    install, shell, repository = blocks(ROOT / "README.md", "sh")
    assert install.startswith("pip install pynade")
    assert "make test" in repository
    commands = [shlex.split(line) for line in shell.splitlines()]
    assert len(commands) >= 8
    code = [sys.executable, "-c", "from pynade.cli.main import main; main()"]
    for program, *words in commands:
        assert program == "pynade"
        done = subprocess.run([*code, *words], capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "filled.csv").read_text().count("\n") == (tmp_path / "weather.csv").read_text().count(
        "\n"
    )


def test_the_tutorial_runs():
    tutorial = blocks(ROOT / "docs/tutorial.md", "python")
    assert len(tutorial) >= 6
    exec("\n".join(tutorial), {"__name__": "tutorial"})
