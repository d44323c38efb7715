"""`pynade fit`."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pynade.cli.options import model_for
from pynade.cli.screen import console, next_commands, print_schema, training_bar
from pynade.estimators.registry import ALIASES, MODELS

COLUMNS = 60  # that `fit` prints the schema of
MODEL = "A model named above; auto: by the data."
CHANGE = "If a column was not understood: --column zip=category; to leave one out: --drop id"

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

DATA is a table of any columns (.csv, .csv.gz, .parquet), a registered name (`pynade data list`),
a matrix (.npy, .npz) or images (PNG files, .npy). `pynade fit --model X --help` has all options.

\b
Models by data ("with gaps": missing values may stand anywhere):
{_models()}

\b
Examples:
  pynade fit people.csv
  pynade fit people.csv --column zip=category --drop id --out runs/people
  pynade fit measurements.csv --model rnade --n-components 10 --out runs/table
"""


def fit(
    data: Annotated[str | None, Argument(metavar="DATA", help="A registered data set or a file.")] = None,
    model: Annotated[str, Option(help=MODEL, rich_help_panel="Model")] = "auto",
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

    with training_bar() as bar, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column .* is left out")  # `_print_columns` says it
        if resume is not None:
            if data is not None or out is not None:
                own = "--resume RUN takes everything from the run folder"
                raise ValueError(f"{own}; give no DATA and no --out")
            if parameters or model != "auto" or overwrite or drop_constant:
                raise ValueError("--resume RUN goes on with the run's own settings; give no others")
            folder, result = resume, resume_run(resume, data_dir=data_dir, callbacks=[bar])
        else:
            if data is None:
                raise ValueError("name the data to train on: pynade fit DATA")
            model = model_for(model, [data])
            folder = out or default_folder(data, model)
            kept: Any = {"overwrite": overwrite, "drop_constant": drop_constant, "checked": _print_columns}
            result = start_run(folder, model, parameters, data, data_dir=data_dir, callbacks=[bar], **kept)
    _print_result(folder, result)
    data = data or read_spec(folder)["data"]
    more = [("surprise", folder, data, "--top", 10)] if "gain" in result else []
    next_commands(("score", folder, data), ("sample", folder, "-n", 10), *more)


def default_folder(data: str, model: str) -> Path:
    """Where a run goes if no folder is given.

    Example:
        >>> default_folder("tables/people.csv", "nade").as_posix()
        'runs/people-nade'
        >>> default_folder("red_wine/3", "rnade").as_posix()
        'runs/red_wine-3-rnade'
    """
    from pynade.tables.files import stem

    file = Path(data)
    name = stem(file) if file.exists() or file.suffix else data.replace("/", "-").replace(":", "-")
    return Path("runs") / f"{name or 'data'}-{model}"


def _print_columns(estimator: Any) -> None:
    """What a model of mixed tables understood."""
    if hasattr(estimator, "schema_"):
        print_schema(estimator.schema_, COLUMNS)
        console.print(CHANGE, soft_wrap=True)


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
    if gain := result.get("gain"):
        console.print(
            f"gain over independent columns {gain['mean']:.3f} ± {gain['stderr'] or 0:.3f} nats a row"
        )
    if result.get("disagreement") is not None:
        console.print(f"orderings disagree by {result['disagreement']:.3f} nats a row (standard deviation)")
    for message in result.get("messages", ()):
        console.print(message)
