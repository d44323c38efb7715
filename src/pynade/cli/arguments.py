"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

Run = Annotated[Path, Argument(metavar="RUN", help="A run folder or a model file.")]
Data = Annotated[str, Argument(metavar="DATA", help="A registered data set or a file.")]
DataDir = Annotated[Path | None, Option(help="Folder of the data sets [$PYNADE_DATA].")]
Picture = Annotated[Path, Option(help="Picture to write.")]

#: Of every group of commands.
GROUP: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
