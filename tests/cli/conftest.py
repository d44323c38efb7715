"""What all command-line tests share."""

import sys

import pytest

from pynade.cli.main import main


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `pynade …` in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["pynade", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call
