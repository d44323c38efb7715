"""`pynade fit`; its options are made from the parameters of estimators: a new one needs no edit here."""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import re
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from pynade.cli import lazy
from pynade.cli.arguments import DATA, Usage, parse_shape
from pynade.cli.screen import console, errors, next_commands, print_schema, row_bar, training_bar
from pynade.estimators.parameters import DOCS, constructor_fields, parameter_text
from pynade.estimators.registry import ALIASES, MODELS, PARAMETERS, estimator_class

#: Options that `pynade fit --help` shows, and their types; `pynade fit --model X --help` shows all.
COMMON = {"hidden": "int | Sequence[int]", "epochs": "int", "learning_rate": "float"}
COMMON |= {"random_state": "int", "device": "str", "schema": "Mapping[str, Any]", "drop": "Sequence[str]"}
#: Where the help shows parameters, if it is not "Model".
PANELS = dict.fromkeys(("epochs", "learning_rate", "batch_size", "weight_decay", "dropout"), "Training")
PANELS |= dict.fromkeys(("patience", "tol", "validation_fraction", "device", "random_state"), "Training")
#: What an option means on the command line, where Python takes something else.
TEXTS = {
    "image_shape": "shape of an image, HxW or CxHxW; by default that of the data.",
    "ordering": "of the variables: random or natural.",
    "random_state": "seed of everything that is random in training.",
    "device": "where to train: auto, cpu or cuda.",
    "binarize": "threshold: values above it become 1, the others 0 (of grey images a share of white); or "
    "random, random:SEED: pixels drawn with their share of white.",
    "schema": "a column's kind: binary, category, ordinal, integer, rounded, real or date.",
}
SHORT = {"hidden": "hidden units of each layer.", "drop": "name of a column to leave out."}
SHORT |= {"schema": "kind of a column, such as zip=category."}
TABLES = (".csv", ".csv.gz", ".parquet")  # endings of files of mixed columns
NAMED = ("penguins",)  # data sets of mixed columns
PLACES = ("--out", "--data-dir", "--resume")  # options that take a folder
WORDS = {"None": "none", "True": "yes", "False": "no"}  # of defaults, in the help
#: Older names of options, and the present ones.
OLDER = {f"--{old}".replace("_", "-"): f"--{name}".replace("_", "-") for old, name in PARAMETERS.items()}
COLUMNS = 60  # that `fit` prints the schema of
NUMBERS = ("INT", "FLOAT")  # options of numbers, as the help calls them
MODEL = "A model named above; auto: by the data."
CONSTANT = "Leave out columns that never vary."
CHANGE = "If a column was not understood: --column zip=category; to leave one out: --drop id"

Where: Any = functools.partial(typer.Option, rich_help_panel="Data and output")


def _models() -> str:
    """Which model suits which data, a line for each kind."""
    short = {name: alias for alias, (name, preset) in ALIASES.items() if not preset}
    groups: dict[str, list[str]] = {}
    for name, entry in MODELS.items():
        groups.setdefault(entry.data, []).append(short.get(name, name))
    lines = [f"  {data:18} {', '.join(names)}" for data, names in groups.items()]
    presets = ", ".join(alias for alias, (_, preset) in ALIASES.items() if preset)
    return "\n".join([*lines, f"  {'with presets':18} {presets}"])


HELP = f"""Train a model and keep it in a run folder.

DATA: a table (.csv, .csv.gz, .parquet, a folder or pattern of them), a name (`pynade data list`),
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
    ctx: typer.Context,
    data: Annotated[str | None, DATA] = None,
    model: Annotated[str, typer.Option(help=MODEL, rich_help_panel="Model")] = "auto",
    out: Annotated[Path | None, Where(help="Run folder to make (by default runs/DATA-MODEL).")] = None,
    overwrite: Annotated[bool, Where("--overwrite", help="Replace an earlier run in that folder.")] = False,
    resume: Annotated[Path | None, Where(metavar="RUN", help="Go on with an interrupted run.")] = None,
    drop_constant: Annotated[bool, Where("--drop-constant", help=CONSTANT)] = False,
    data_dir: Annotated[Path | None, Where(help="Folder of the data sets [$PYNADE_DATA].")] = None,
) -> None:
    """Train a model (the help is HELP above); the context has the options of the model."""
    parameters: dict[str, Any] = ctx.obj
    if resume is not None and (data is not None or out is not None):
        raise ValueError("--resume RUN takes everything from the run folder; give no DATA and no --out")
    if resume is not None and (parameters or model != "auto" or overwrite or drop_constant):
        raise ValueError("--resume RUN goes on with the run's own settings; give no others")
    if resume is None and data is None:
        raise Usage("name the data to train on: pynade fit DATA")

    def print_columns(estimator: Any) -> None:  # of mixed tables
        if rank == 0 and hasattr(estimator, "schema_"):
            print_schema(estimator.schema_, COLUMNS)
            console.print(CHANGE, soft_wrap=True)

    model = model_for(model, [data or ""])
    folder = resume or out or default_folder(data or "", model)
    options: Any = {"data_dir": data_dir}
    rank = 0
    try:
        with lazy.processes.together() as rank, ExitStack() as stack, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "column .* is left out")  # `print_columns` says it
            if rank == 0:  # which speaks for all
                options["callbacks"] = [stack.enter_context(training_bar())]
                options["progress"] = stack.enter_context(row_bar(rows=True))
            if data is None:
                result = lazy.run.resume_run(folder, **options)
            else:
                options |= {"overwrite": overwrite, "drop_constant": drop_constant, "checked": print_columns}
                result = lazy.run.start_run(folder, model, parameters, data, **options)
    except KeyboardInterrupt:  # Ctrl-C or SIGTERM
        if rank > 0:
            raise typer.Exit(3) from None
        begun = (folder / "spec.json").is_file()
        errors.print("Stopped; to go on:" if begun else "Stopped before training began.")
        next_commands(*[("fit", "--resume", folder)] if begun else [], to=errors)
        raise typer.Exit(3) from None
    if rank > 0:
        return
    _print_result(folder, result)
    data = data or lazy.summary.read_spec(folder)["data"]
    more: list[Any] = [("sample", folder, "-n", 10)]
    if "gain" in result:  # of a mixed table
        more = [("impute", folder, data, "--out", "filled.csv"), ("surprise", folder, data, "--top", 10)]
        more += [("report", folder)]
    next_commands(("score", folder, data), *more)


def default_folder(data: str, model: str) -> Path:
    """Where a run goes if no folder is given: runs/people-nade of tables/people.csv."""
    file = Path(data)
    file = file.parent if any(mark in file.name for mark in "*?[") else file  # of a pattern
    name = lazy.files.stem(file) if file.exists() or file.suffix else data.replace("/", "-").replace(":", "-")
    return Path("runs") / f"{name or 'data'}-{model}"


def _print_result(folder: Path, result: dict[str, Any]) -> None:
    valid, score, n = result["valid"], "", result["epochs"]
    if valid is not None:
        kind = "exact" if valid["exact"] else "estimate"
        score = f", validation {lazy.summary.with_error(valid)} nats ({kind})"
    if len(result.get("choices", ())) > 1:
        score += ", chosen " + ", ".join(f"{name} {value}" for name, value in result["chosen"].items())
    best = f"{n} epoch{'s' * (n != 1)}, best {result['best_epoch']}{score}"
    console.print(f"{folder}: {best}, {result['seconds']:.1f} s ({result['stopped']})")
    if gain := result.get("gain"):
        console.print(f"gain over independent columns {lazy.summary.with_error(gain)} nats a row")
    if result.get("disagreement") is not None:
        console.print(f"orderings disagree by {result['disagreement']:.3f} nats a row (standard deviation)")
    for message in result.get("messages", ()):
        console.print(message)


class ModelCommand(TyperCommand):
    """A command with the options of the model that `--model` names, which the context gets as `obj`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Add the model's options before the arguments are parsed."""
        words = [part for word in args for part in word.split("=", 1)]
        default = "auto" if {"-h", "--help"}.isdisjoint(args) else None
        model = next((after for word, after in itertools.pairwise(words) if word == "--model"), default)
        model = model and model_for(model, words)
        fixed = {p.name for p in self.params}
        self.options = {option.name: option for option in model_options(model) if option.name not in fixed}

        def empty() -> None: ...

        empty.__signature__ = inspect.Signature([o.parameter() for o in self.options.values()])  # type: ignore[attr-defined]
        app = typer.Typer(add_completion=False)
        app.command()(empty)
        self.params += typer.main.get_command(app).params
        names = [name for p in self.params for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]
        for n, word in enumerate(itertools.takewhile(lambda word: word != "--", args)):
            option, sign, value = word.partition("=")
            option = OLDER.get(option.replace("_", "-"), option)
            args[n] = f"{option}{sign}{value}"
            if option.startswith("--") and option not in (*names, "--help"):
                close = difflib.get_close_matches(option, names, n=1)
                nearest = f": did you mean {close[0]}?" if close else ""
                advice = f"(pynade fit --model {model} --help shows all)"
                raise Usage(f"model {model!r} has no option {option}{nearest} {advice}")
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Convert the words that were given for the model's options."""
        given = {name: ctx.params.pop(name) for name in self.options}
        ctx.obj = {k: self.options[k].convert(v) for k, v in given.items() if v not in (None, (), [])}
        return super().invoke(ctx)


def model_for(model: str, words: Sequence[str]) -> str:
    """The model that "auto" stands for, by the data that is among the words of a command."""
    mixed = any(word.lower().endswith(TABLES) or word in NAMED for word in words)
    pairs = itertools.pairwise(["", *words])
    if model == "auto" and not mixed:
        folders = [word for before, word in pairs if before not in PLACES and Path(word or "-").is_dir()]
        mixed = any(map(lazy.tables.is_table, folders))
    return model if model != "auto" else "tabularnade" if mixed else "nade"


@dataclass
class ModelOption:
    """An option for one parameter of a model."""

    name: str  # of the parameter
    annotation: str  # its type, as written
    default: Any  # its value if it is not given
    text: str  # what it means
    panel: str  # where the help shows it
    model: str = ""  # class name of the model

    def __post_init__(self) -> None:
        integer = self.annotation.startswith(("int", "Sequence[int]")) or self.name == "random_state"
        number = "INT" if integer else "FLOAT" if "float" in self.annotation else "TEXT"
        plural = self.annotation.startswith("Mapping[") or "Sequence[" in self.annotation
        self.word = "--column" if self.name == "schema" else f"--{self.name.replace('_', '-')}"
        self.metavar = {"image_shape": "HxW", "schema": "NAME=KIND"}.get(self.name, number)
        self.many = plural and self.name not in ("ordering", "image_shape")  # it may be repeated

    def parameter(self) -> inspect.Parameter:
        """The keyword of a typer command; its help shows the default, where there is one for all models."""
        flag, text = self.annotation.startswith("bool"), self.text[:1].upper() + self.text[1:]
        if self.many:
            text += " Several with commas." if self.metavar in NUMBERS else " Repeat for several."
        if self.default is not MISSING:
            values = self.default if isinstance(self.default, list | tuple) else [self.default]
            default = " ".join(map(str, values))
            text += f" [{WORDS.get(default, default)}]"
        words = f"{self.word}/--no-{self.word[2:]}" if flag else self.word
        options: Any = {"metavar": None if flag else self.metavar, "rich_help_panel": self.panel}
        option = typer.Option(words, help=escape(text), show_default=False, **options)
        kind: Any = Annotated[bool | None if flag else list[str] | None, option]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)

    def convert(self, value: bool | list[str]) -> Any:
        """The value of the parameter from the words of the command line."""
        if isinstance(value, bool):
            return value
        if not self.many and len(value) > 1:
            raise Usage(f"{self.model} takes one value for {self.word}, not {len(value)}")
        if self.name == "image_shape":
            return list(parse_shape(value[0]))
        if self.name == "schema":
            kinds = {word: [part.strip() for part in word.rpartition("=")] for word in value}
            for word in (word for word, (name, _, kind) in kinds.items() if not name or not kind):
                raise ValueError(f"--column takes NAME=KIND, such as zip=category, not {word!r}")
            return {name: kind for name, _, kind in kinds.values()}
        if self.many and self.metavar in NUMBERS:
            value = [number for word in value for number in word.split(",")]
        values = [self._value(word) for word in value]
        return values if len(values) > 1 or self.annotation.startswith("Sequence") else values[0]

    def _value(self, word: str) -> Any:
        if self.annotation.startswith("Sequence[str]"):
            return word
        if word.lower() == "none" and "None" in self.annotation:
            return None
        kinds: list[Any] = [int] if self.metavar == "INT" else []
        kinds += [float] if "float" in self.annotation else []
        for kind in kinds:
            with suppress(ValueError):
                return kind(word)
        if not kinds or "str" in self.annotation or self.name == "binarize":  # which may be random
            return word
        raise Usage(f"{self.word} takes a number, not {word!r}")


def model_options(model: str | None) -> list[ModelOption]:
    """The options of a model: its parameters, and the options of its training.

    None has those that most models share, without defaults, which differ: no estimator is imported.
    """
    if model is None:
        texts, common = DOCS | TEXTS | SHORT, COMMON.items()
        return [ModelOption(name, of, MISSING, texts[name], PANELS.get(name, "Model")) for name, of in common]
    kind, preset = estimator_class(model)
    texts = {} if kind._options is None else attribute_texts(kind._options)
    further = () if kind._options is None else fields(kind._options)
    usual, options = {"random_state": 0} | kind._defaults | preset, []
    for f in [f for f in (*constructor_fields(kind), *further) if f.name != "training"]:
        written: Any = f.type if isinstance(f.type, str) else inspect.formatannotation(f.type)
        text = texts[f.name] if f in further else TEXTS.get(f.name, parameter_text(kind, f.name))
        panel = "Further options of training" if f in further else PANELS.get(f.name, "Model")
        facts = usual.get(f.name, f.default), text, panel, kind.__name__
        options.append(ModelOption(f.name, written.replace("collections.abc.", ""), *facts))
    return options


def attribute_texts(kind: type) -> dict[str, str]:
    """The texts of the `Attributes` section of a class, by name."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    texts = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section.split("\n\n")[0], re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in texts}
