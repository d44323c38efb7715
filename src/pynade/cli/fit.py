"""`pynade fit`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pynade.cli.screen import console, next_commands, training_bar
from pynade.estimators.registry import ALIASES, MODELS

Where: Any = partial(Option, rich_help_panel="Data and output")


def _models() -> str:
    """Which model suits which data, a line for each kind."""
    short = {name: alias for alias, (name, preset) in ALIASES.items() if not preset}
    groups: dict[str, list[str]] = {}
    for name, entry in MODELS.items():
        groups.setdefault(entry.data, []).append(short.get(name, name))
    lines = [f"  {data:18} {', '.join(some)}" for data, some in groups.items()]
    presets = ", ".join(alias for alias, (_, preset) in ALIASES.items() if preset)
    return "\n".join([*lines, f"  {'with presets':18} {presets}"])


HELP = f"""Train a model and keep it in a run folder.

DATA is a registered name (`pynade data list`) or a file: .csv, .parquet, .npy or .npz; of images
a folder of PNG files or an .npy stack. `pynade fit --model X --help` shows all options of a model.

\b
Models by data ("with gaps": missing values may stand anywhere):
{_models()}

\b
Examples:
  pynade fit table.csv --model deepnade
  pynade fit measurements.csv --model rnade --n-components 10 --out runs/table
  pynade fit mushrooms --model mob --n-components 32 --n-components 64
  pynade fit --resume runs/table
"""


def fit(
    data: Annotated[str | None, Argument(metavar="DATA", help="A registered data set or a file.")] = None,
    model: Annotated[str, Option(help="A model named above.", rich_help_panel="Model")] = "nade",
    out: Annotated[Path | None, Where(help="Run folder to make (by default runs/DATA-MODEL).")] = None,
    overwrite: Annotated[bool, Where("--overwrite", help="Replace an earlier run in that folder.")] = False,
    resume: Annotated[Path | None, Where(metavar="RUN", help="Go on with an interrupted run.")] = None,
    drop_constant: Annotated[
        bool, Where("--drop-constant", help="Leave out columns that never vary.")
    ] = False,
    data_dir: Annotated[Path | None, Where(help="Folder of the data sets [$PYNADE_DATA].")] = None,
    *,
    parameters: dict[str, Any],
) -> None:
    """Train a model (the help is HELP above); `parameters` are the options of the model."""
    from pynade.runs.run import resume_run, start_run
    from pynade.runs.summary import read_spec

    with training_bar() as bar:
        if resume is not None:
            if data is not None or out is not None:
                own = "--resume RUN takes everything from the run folder"
                raise ValueError(f"{own}; give no DATA and no --out")
            if parameters or model != "nade" or overwrite or drop_constant:
                raise ValueError("--resume RUN goes on with the run's own settings; give no others")
            folder, result = resume, resume_run(resume, data_dir=data_dir, callbacks=[bar])
        else:
            if data is None:
                raise ValueError("name the data to train on: pynade fit DATA")
            folder = out or default_folder(data, model)
            kept: Any = {"overwrite": overwrite, "drop_constant": drop_constant}
            result = start_run(folder, model, parameters, data, data_dir=data_dir, callbacks=[bar], **kept)
    _print_result(folder, result)
    next_commands(("score", folder, data or read_spec(folder)["data"]), ("sample", folder, "-n", 10))


def default_folder(data: str, model: str) -> Path:
    """Where a run goes if no folder is given.

    Example:
        >>> default_folder("tables/people.csv", "nade").as_posix()
        'runs/people-nade'
        >>> default_folder("red_wine/3", "rnade").as_posix()
        'runs/red_wine-3-rnade'
    """
    file = Path(data)
    name = file.stem if file.exists() or file.suffix else data.replace("/", "-").replace(":", "-")
    return Path("runs") / f"{name or 'data'}-{model}"


def _print_result(folder: Path, result: dict[str, Any]) -> None:
    valid, score = result["valid"], ""
    if valid is not None:
        kind = "exact" if valid["exact"] else "estimate"
        score = f", validation {valid['mean']:.3f} ± {valid['stderr']:.3f} nats ({kind})"
    if len(result.get("choices", ())) > 1:
        score += ", chosen " + ", ".join(f"{name} {value}" for name, value in result["chosen"].items())
    epochs = "epoch" if result["epochs"] == 1 else "epochs"
    best = f"{result['epochs']} {epochs}, best {result['best_epoch']}{score}"
    console.print(f"{folder}: {best}, {result['seconds']:.1f} s ({result['stopped']})")
    for message in result.get("messages", ()):
        console.print(message)
