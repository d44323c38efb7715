"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

Run = Annotated[Path, Argument(metavar="RUN", help="A run folder or a model file.")]
Data = Annotated[str, Argument(metavar="DATA", help="A registered data set or a file.")]
DataDir = Annotated[Path | None, Option(help="Folder of the data sets [$PYNADE_DATA].")]
Picture = Annotated[Path, Option(help="Picture to write.")]


def parse_shape(text: str) -> tuple[int, ...]:
    """The sides of an image, from a text such as 28x28."""
    try:
        return tuple(map(int, text.lower().split("x")))
    except ValueError:
        form = "HxW or CxHxW, such as 28x28"
        raise ValueError(f"an image shape is written {form}, not {text!r}") from None


#: Of every group of commands.
GROUP: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
