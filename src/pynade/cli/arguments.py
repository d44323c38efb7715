"""Arguments and options that several commands share, and texts that are parsed."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

Run = Annotated[Path, Argument(metavar="RUN", help="A run folder or a model file.")]
DATA = Argument(metavar="DATA", help="A registered data set, a file, a folder of files or a pattern.")
Data = Annotated[str, DATA]
DataDir = Annotated[Path | None, Option(help="Folder of the data sets [$PYNADE_DATA].")]
ENGINE = Option(help="Where: local (this machine) or ray (a cluster; pip install 'pynade\\[ray]').")
Engine = Annotated[str, ENGINE]
WORKERS = Option(help="How many processes: by default this one; on ray one for each CPU, or GPU.")
Workers = Annotated[int | None, WORKERS]
Picture = Annotated[Path, Option(help="Picture to write.")]

#: Of every group of commands.
GROUP: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class Usage(ValueError):
    """A command with an option or argument that it does not take, or without one that it needs."""


def parse_shape(text: str) -> tuple[int, ...]:
    """The sides of an image, from a text such as 28x28."""
    try:
        return tuple(map(int, text.lower().split("x")))
    except ValueError:
        form = "HxW or CxHxW, such as 28x28"
        raise ValueError(f"an image shape is written {form}, not {text!r}") from None


def comma_separated(text: str) -> list[str]:
    """The parts of a text between commas, but for commas in double quotes: a=1, city="Paris, Texas"."""
    return [part.strip() for part in re.findall(r'(?:^|,)((?:"[^"]*"|[^,"]|"(?=[^"]*$))*)', text)]


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def parse_given(text: str, columns: Sequence[str] = (), numbers: bool = True) -> dict[int | str, Any]:
    """ "3=1,17=0" or "rain=1" as values of known variables; a column's name has precedence over an index.

    Args:
        text: variables and values; what has a comma stands in double quotes.
        columns: the names of the variables, if they have any.
        numbers: values are numbers; otherwise they stay texts.
    """
    given: dict[int | str, Any] = {}
    for part in comma_separated(text):
        cuts = [(_unquoted(part[: m.start()]), _unquoted(part[m.end() :])) for m in re.finditer("=", part)]
        usual = cuts[-1 if numbers else 0] if cuts else ("", "")
        name, text = next((cut for cut in cuts if cut[0] in columns), usual)
        key: int | str = int(name) if name.isdigit() and name not in columns else name
        value: Any = text
        if numbers:
            value = math.nan
            with suppress(ValueError):
                value = float(text)
        if not name or value != value or value == "":
            form = "3=1,17=0 (index or column = value)" if numbers else "age=40, city=Paris"
            raise ValueError(f"known values are written like {form}, not {part!r}")
        if key in given:
            raise ValueError(f"variable {key!r} is given twice")
        given[key] = value
    return given


def parse_question(text: str, columns: Sequence[str]) -> tuple[list[str], dict[int | str, Any]]:
    """ "income | age=40, city=Paris" as the columns asked about, and the values of the known ones."""
    match = re.fullmatch(r'((?:"[^"]*"|[^|"])+)(?:\|(.*))?', text.strip(), re.DOTALL)
    targets = [_unquoted(part) for part in comma_separated(match[1])] if match else []
    if not match or not all(targets):
        raise ValueError(f'a question is written like "income | age=40, city=Paris", not {text!r}')
    if len(set(targets)) < len(targets):
        raise ValueError(f"a column is asked about twice: {text}")
    given = (match[2] or "").strip()
    return targets, parse_given(given, columns, numbers=False) if given else {}
