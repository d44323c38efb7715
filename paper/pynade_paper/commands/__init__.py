"""Commands that this package adds to `pynade`."""

from __future__ import annotations

import typer

from pynade_paper.commands import figure, reproduce


def register(app: typer.Typer) -> None:
    """Add `reproduce`, `results` and `figure`."""
    app.command("reproduce")(reproduce.reproduce)
    app.command("results")(reproduce.results_pages)
    app.add_typer(figure.app, name="figure")
