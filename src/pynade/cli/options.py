"""Command-line options made from the parameters of estimators: a new parameter needs no edit here."""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from pynade.estimators.parameters import DOCS, parameters, text_of
from pynade.estimators.registry import PARAMETERS, estimator_class

#: Options that `pynade fit --help` shows, and their types; `pynade fit --model X --help` shows all.
COMMON = {"hidden": "int | Sequence[int]", "epochs": "int", "learning_rate": "float"}
COMMON |= {"random_state": "int", "device": "str", "schema": "Mapping[str, Any]", "drop": "Sequence[str]"}
#: Parameters that the help shows as options of training.
TRAINING = {"epochs", "learning_rate", "batch_size", "weight_decay", "dropout", "patience", "tol"}
TRAINING |= {"validation_fraction", "device", "random_state"}
#: What an option means on the command line, where Python takes something else.
TEXTS = {
    "image_shape": "shape of an image, HxW or CxHxW; by default that of the data.",
    "ordering": "of the variables: random or natural.",
    "random_state": "seed of everything that is random in training.",
    "device": "where to train: auto, cpu or cuda.",
    "binarize": "threshold: values above it become 1, the others 0 (of grey images a share of white); or "
    "random, random:SEED: pixels drawn with their share of white.",
}
TEXTS |= {"schema": "a column's kind: binary, category, ordinal, integer, rounded, real or date."}
SHORT = {"hidden": "hidden units of each layer.", "drop": "name of a column to leave out."}
SHORT |= {"schema": "kind of a column, such as zip=category."}
DEFAULTS = {"random_state": 0}
TABLES = (".csv", ".csv.gz", ".parquet")  # endings of files of mixed columns
NAMED = ("penguins",)  # data sets of mixed columns
WORDS = {"None": "none", "True": "yes", "False": "no"}  # of defaults, in the help


class ModelCommand(TyperCommand):
    """A command with the options of the model that `--model` names.

    Its function has a parameter `parameters`, which gets what was given for the model's options.
    """

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Add the model's options before the arguments are parsed."""
        self.function = inspect.unwrap(self.callback)  # type: ignore[arg-type]
        words = [part for word in args for part in word.split("=", 1)]
        model = next((after for word, after in itertools.pairwise(words) if word == "--model"), None)
        if model is None and {"-h", "--help"}.isdisjoint(args):
            model = str(inspect.signature(self.function).parameters["model"].default)
        model = model and model_for(model, words)
        args = [_current_name(word) for word in args]
        app = typer.Typer(add_completion=False)
        app.command()(with_options(self.function, model))
        command = typer.main.get_command(app)
        self.params, self.callback = command.params, command.callback
        _check_options(args, [name for p in self.params for name in (*p.opts, *p.secondary_opts)], model)
        return super().make_context(info_name, args, parent, **extra)


def model_for(model: str, words: Sequence[str]) -> str:
    """The model that "auto" stands for, by the data that is among the words of a command.

    Example:
        >>> model_for("auto", ["people.csv"]), model_for("auto", ["digits"]), model_for("made", ["a.csv"])
        ('tabularnade', 'nade', 'made')
    """
    if model != "auto":
        return model
    mixed = any(word.lower().endswith(TABLES) or word in NAMED for word in words)
    return "tabularnade" if mixed else "nade"


def with_options(function: Callable[..., None], model: str | None) -> Callable[..., None]:
    """The function with a keyword for every parameter of a model, in place of `parameters`.

    Args:
        function: takes `parameters`, a dictionary.
        model: name of the model; None has the options that most models share, for the help.
    """
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "parameters"]
    known = common_options() if model is None else model_options(model)
    options = {option.name: option for option in known}

    @functools.wraps(function)
    def command(**given: Any) -> None:
        mine = {p.name: given.pop(p.name) for p in own}
        chosen = {k: options[k].convert(value) for k, value in given.items() if value not in (None, [])}
        function(**mine, parameters=chosen)

    extra = [option.parameter() for option in options.values() if option.name not in signature.parameters]
    command.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
    return command


@dataclass(frozen=True)
class ModelOption:
    """An option for one parameter of a model.

    Attributes:
        name: of the parameter.
        annotation: its type, as written.
        default: its value if it is not given.
        text: what it means.
        panel: where the help shows it.
        model: class name of the model.
    """

    name: str
    annotation: str
    default: Any
    text: str
    panel: str
    model: str

    @property
    def word(self) -> str:
        """The option's name on the command line."""
        return "--column" if self.name == "schema" else f"--{self.name.replace('_', '-')}"

    @property
    def many(self) -> bool:
        """Whether it may be repeated."""
        several = self.annotation.startswith("Mapping[") or "Sequence[" in self.annotation
        return several and self.name not in ("ordering", "image_shape")

    def parameter(self) -> inspect.Parameter:
        """The keyword of a typer command."""
        flag = self.annotation.startswith("bool")
        several = " Repeat for several." if self.many else ""
        option = typer.Option(
            f"{self.word}/--no-{self.word[2:]}" if flag else self.word,
            help=escape(self.text[:1].upper() + self.text[1:] + several + self.shown_default()),
            metavar=None if flag else self._metavar(),
            rich_help_panel=self.panel,
            show_default=False,
        )
        kind: Any = Annotated[bool | None if flag else list[str] | None, option]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)

    def shown_default(self) -> str:
        """The default as the help shows it; nothing where it depends on the model.

        Example:
            >>> ModelOption("tol", "float | None", None, "", "", "MFA").shown_default()
            ' [none]'
        """
        if self.default is MISSING:
            return ""
        several = isinstance(self.default, list | tuple)
        text = " ".join(map(str, self.default if several else [self.default]))
        return f" [{WORDS.get(text, text)}]"

    def convert(self, value: bool | list[str]) -> Any:
        """The value of the parameter from the words of the command line."""
        if isinstance(value, bool):
            return value
        if not self.many and len(value) > 1:
            raise ValueError(f"{self.model} takes one value for {self.word}, not {len(value)}")
        if self.name == "image_shape":
            try:
                return [int(side) for side in value[0].lower().split("x")]
            except ValueError:
                form = "HxW or CxHxW, such as 28x28"
                raise ValueError(f"an image shape is written {form}, not {value[0]!r}") from None
        if self.name == "schema":
            pairs = [word.rpartition("=") for word in value]
            for word in (
                word for word, (name, _, kind) in zip(value, pairs, strict=True) if not name or not kind
            ):
                raise ValueError(f"--column takes NAME=KIND, such as zip=category, not {word!r}")
            return {name.strip(): kind.strip() for name, _, kind in pairs}
        values = [self._number(word) for word in value]
        return values if len(values) > 1 or self.annotation.startswith("Sequence") else values[0]

    def _number(self, word: str) -> Any:
        if self.annotation.startswith("Sequence[str]"):
            return word
        if word.lower() == "none" and "None" in self.annotation:
            return None
        kinds: list[Any] = [int] if self._metavar() == "INT" else []
        kinds += [float] if "float" in self.annotation else []
        for kind in kinds:
            try:
                return kind(word)
            except ValueError:
                continue
        if not kinds or "str" in self.annotation or self.name == "binarize":  # which may be random
            return word
        raise ValueError(f"{self.word} takes a number, not {word!r}")

    def _metavar(self) -> str:
        if self.name == "image_shape":
            return "HxW"
        if self.name == "schema":
            return "NAME=KIND"
        if self.annotation.startswith(("int", "Sequence[int]")) or self.name == "random_state":
            return "INT"
        return "FLOAT" if "float" in self.annotation else "TEXT"


def common_options() -> list[ModelOption]:
    """Options that most models share, without defaults, which differ: no estimator is imported."""
    texts = DOCS | TEXTS | SHORT
    return [ModelOption(name, kind, MISSING, texts[name], _panel(name), "") for name, kind in COMMON.items()]


def model_options(model: str) -> list[ModelOption]:
    """The options of a model: its parameters, and the options of its training."""
    kind, preset = estimator_class(model)
    known = []  # name, type, default, text and panel of each
    for p in parameters(kind):
        default = preset.get(p.name, DEFAULTS.get(p.name, p.default))
        text = TEXTS.get(p.name, text_of(kind, p.name))
        known.append((p.name, p.type, default, text, _panel(p.name)))
    if kind._options is not None:
        texts = attribute_texts(kind._options)
        for f in fields(kind._options):
            default = kind._defaults.get(f.name, f.default)
            known.append((f.name, f.type, default, texts[f.name], "Further options of training"))
    known = [line for line in known if line[0] != "training"]
    return [ModelOption(n, _written(of), d, text, panel, kind.__name__) for n, of, d, text, panel in known]


def _panel(name: str) -> str:
    return "Training" if name in TRAINING else "Model"


def _written(annotation: Any) -> str:
    """A type as it is written in the source, in modules with and without postponed annotations."""
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return written.replace("collections.abc.", "")


def _current_name(word: str) -> str:
    """An argument with the present name of an option: --random-state=3 for --seed=3."""
    option, sign, value = word.partition("=")
    name = PARAMETERS.get(option[2:].replace("-", "_")) if option.startswith("--") else None
    return word if name is None else f"--{name.replace('_', '-')}{sign}{value}"


def _check_options(args: Sequence[str], known: list[str], model: str | None) -> None:
    """Refuse an unknown option in one sentence, which names the nearest known one."""
    known = [name for name in known if name.startswith("--")]
    for word in itertools.takewhile(lambda word: word != "--", args):
        option = word.partition("=")[0]
        if option.startswith("--") and option not in (*known, "--help"):
            close = difflib.get_close_matches(option, known, n=1)
            nearest = f": did you mean {close[0]}?" if close else ""
            where = f"(pynade fit --model {model} --help shows all)"
            raise ValueError(f"model {model!r} has no option {option}{nearest} {where}")


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
    texts = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section.split("\n\n")[0], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in texts}
