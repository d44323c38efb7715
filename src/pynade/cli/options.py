"""Command-line options made from the parameters of estimators: a new parameter needs no edit here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import click
import typer.core

from pynade.estimators.parameters import parameters, text_of
from pynade.estimators.registry import PARAMETERS, estimator_class

#: Options that `pynade fit --help` shows; `pynade fit --model X --help` shows all of the model's.
COMMON = ("hidden", "n_components", "epochs", "learning_rate", "patience", "random_state", "device")
#: What an option means on the command line, where Python takes something else.
TEXTS = {
    "image_shape": "shape of an image, HxW or CxHxW; by default that of the data.",
    "ordering": "random or natural.",
    "random_state": "seed of everything that is random in training.",
    "binarize": "threshold: values above it become 1, the others 0 (of grey images a share of white); or "
    "random, random:SEED: pixels drawn with their share of white.",
}
DEFAULTS = {"random_state": 0}
KEY = "pynade.parameters"  # where the values are kept in the context


class ModelCommand(typer.core.TyperCommand):
    """A command with the options of the model that `--model` names.

    The values of these options are in `ctx.meta[KEY]`: what was given, by the name of the parameter.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Add the model's options before the arguments are parsed."""
        if not hasattr(self, "own"):
            self.own = list(self.params)
        model = _model_in(args)
        self.params = [*self.own, *model_options(model or _default(self.own), full=model is not None)]
        return super().make_context(info_name, args, parent, **extra)


def given_parameters(ctx: click.Context) -> dict[str, Any]:
    """The parameters of the model that were given on the command line."""
    return dict(ctx.meta.get(KEY, {}))


def model_options(model: str, full: bool = True) -> list[typer.core.TyperOption]:
    """The options of a model's parameters; unless `full`, only the common ones are shown in the help."""
    try:
        kind, preset = estimator_class(model)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    options = []
    for parameter in parameters(kind):
        if parameter.name == "training":
            continue
        default = preset.get(parameter.name, DEFAULTS.get(parameter.name, parameter.default))
        text = TEXTS.get(parameter.name, text_of(kind, parameter.name))
        own = not parameter.kw_only or parameter.name in vars(kind)
        panel = "Model" if own else "Training"
        options.append(
            _option(parameter.name, str(parameter.type), default, text, panel, full, kind.__name__)
        )
    if kind._options is not None:
        texts = attribute_texts(kind._options)
        for option in fields(kind._options):
            default = kind._defaults.get(option.name, option.default)
            panel = "Further options of training"
            text = texts[option.name]
            options.append(_option(option.name, str(option.type), default, text, panel, full, kind.__name__))
    return options


def _option(
    name: str, annotation: str, default: Any, text: str, panel: str, full: bool, model: str
) -> typer.core.TyperOption:
    flag, many = annotation.startswith("bool"), "Sequence[" in annotation and name != "ordering"
    aliases = [f"--{old.replace('_', '-')}" for old, new in PARAMETERS.items() if new == name]
    plain = f"--{name.replace('_', '-')}"
    shown = "" if default is MISSING or default is None else f" [{_word(default)}]"
    repeat = " Repeat for several." if many and name != "image_shape" else ""
    return typer.core.TyperOption(
        param_decls=[f"{plain}/--no-{plain[2:]}" if flag else plain, *aliases, name],
        default=None,
        type=click.BOOL if flag else click.STRING,
        is_flag=flag,
        multiple=not flag,
        help=text[:1].upper() + text[1:].rstrip(".") + "." + repeat + shown,
        metavar="" if flag else _metavar(name, annotation),
        expose_value=False,
        callback=_keep(name, annotation, many, model),
        hidden=not full and name not in COMMON,
        rich_help_panel=panel,
        show_default=False,
    )


def _keep(name: str, annotation: str, many: bool, model: str) -> Any:
    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        if not isinstance(value, tuple):
            converted = value
        elif name == "image_shape":
            converted = _sides(_single(value, name, model))
        elif many:
            values = [_convert(word, name, annotation) for word in value]
            converted = values[0] if len(values) == 1 and annotation.split("|")[0].strip() != annotation else values
            if annotation.startswith("Sequence"):
                converted = values
        else:
            converted = _convert(_single(value, name, model), name, annotation)
        ctx.meta.setdefault(KEY, {})[name] = converted

    return keep


def _single(value: tuple[str, ...], name: str, model: str) -> str:
    if len(value) > 1:
        raise click.UsageError(f"{model} takes one value for --{name.replace('_', '-')}, not {len(value)}")
    return value[0]


def _convert(word: str, name: str, annotation: str) -> Any:
    """A word of the command line as the annotation wants it."""
    if word.lower() == "none" and "None" in annotation:
        return None
    kinds = [int] if "int" in annotation or name == "random_state" else []
    kinds += [float] if "float" in annotation else []  # type: ignore[list-item]
    for kind in kinds:
        try:
            return kind(word)
        except ValueError:
            continue
    if not kinds or "str" in annotation or (name == "binarize" and word.startswith("random")):
        return word
    raise click.UsageError(f"--{name.replace('_', '-')} takes a number, not {word!r}")


def _sides(text: str) -> list[int]:
    try:
        return [int(side) for side in text.lower().split("x")]
    except ValueError:
        raise click.UsageError(f"an image shape is written HxW or CxHxW, such as 28x28, not {text!r}") from None


def _metavar(name: str, annotation: str) -> str:
    if name == "image_shape":
        return "HxW"
    if "int" in annotation or name == "random_state":
        return "INT"
    return "FLOAT" if "float" in annotation else "TEXT"


def _word(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _model_in(args: list[str]) -> str | None:
    for k, word in enumerate(args):
        if word == "--model" and k + 1 < len(args):
            return args[k + 1]
        if word.startswith("--model="):
            return word.partition("=")[2]
    return None


def _default(params: Sequence[click.Parameter]) -> str:
    return next(str(p.default) for p in params if p.name == "model")


def attribute_texts(kind: type) -> dict[str, str]:
    """The texts of the `Attributes` section of a class, by name.

    Example:
        >>> class Options:
        ...     '''Some options.
        ...
        ...     Attributes:
        ...         size: how large,
        ...             in words.
        ...         speed: how fast.
        ...     '''
        >>> attribute_texts(Options)
        {'size': 'how large, in words.', 'speed': 'how fast.'}
    """
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in section.split("\n\n")[0].splitlines():
        start = re.match(r"    (\w+): (.*)", line)
        if start:
            name = start[1]
            texts[name] = start[2]
        elif name:
            texts[name] += " " + line.strip()
    return texts
