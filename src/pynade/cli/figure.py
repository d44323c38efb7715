"""`pynade figure`: several models' samples beside real rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pynade.cli.screen import console, errors

app = typer.Typer(
    help="Pictures of several models' samples beside real rows.", no_args_is_help=True, add_completion=False
)

SCATTER_HELP = """Samples of models over data, two columns, a panel for each model.

\b
Example:
  pynade figure scatter runs/gaussian runs/mog --data white_wine --columns 5,6 --out wine.png
"""

SAMPLES_HELP = """Test rows and samples of models as pictures, sorted by density under the last model.

\b
Examples:
  pynade figure samples runs/bsds-mog runs/bsds-rnade --data bsds300 --out patches.png
  pynade figure samples runs/speech-mog runs/speech-rnade --data librispeech -n 60 --out speech.png
"""

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders or model files.")]
Out = Annotated[Path, typer.Option(help="Picture to write (.png, .pdf, .svg).")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets [$PYNADE_DATA].")]
Seed = Annotated[int, typer.Option(help="Of the rows and samples shown.")]


@app.command("scatter", help=SCATTER_HELP)
def scatter(
    runs: Runs,
    data: Annotated[str, typer.Option(help="A registered data set or a file.")],
    columns: Annotated[str, typer.Option(help="Two columns, by name or number: across,up.")],
    out: Out,
    n: Annotated[int, typer.Option("-n", help="Rows and samples shown.")] = 1000,
    seed: Seed = 0,
    data_dir: DataDir = None,
) -> None:
    """Scatter plot (the help is SCATTER_HELP above)."""
    from pynade.experiments.compare_figures import scatter_figure
    from pynade.experiments.figures import save_figure

    names = [name.strip() for name in columns.split(",")]
    if len(names) != 2:
        raise ValueError(f"give two columns separated by a comma, not {columns!r}")
    with errors.status("drawing"):
        save_figure(scatter_figure(runs, data, (names[0], names[1]), n, seed, data_dir=data_dir), out)
    console.print(f"-> {out}")


@app.command("samples", help=SAMPLES_HELP)
def samples(
    runs: Runs,
    data: Annotated[str, typer.Option(help="bsds300, librispeech, or speech of your own.")],
    out: Out,
    n: Annotated[int, typer.Option("-n", help="Rows shown of each.")] = 100,
    seed: Seed = 0,
    data_dir: DataDir = None,
) -> None:
    """Pictures of samples (the help is SAMPLES_HELP above)."""
    from pynade.experiments.compare_figures import sample_figure
    from pynade.experiments.figures import save_figure

    with errors.status("drawing"):
        save_figure(sample_figure(runs, data, n, seed, data_dir=data_dir), out)
    console.print(f"-> {out}")
