"""Speed, as ratios against what a user would otherwise write or install."""

from __future__ import annotations

import typer

from pynade_benchmarks import command


def register(app: typer.Typer) -> None:
    """Add `bench` to the commands of `pynade`."""
    app.command("bench", help=command.HELP)(command.bench)
