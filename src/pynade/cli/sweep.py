"""`pynade sweep`."""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.live import Live
from rich.table import Table
from typer import Option

from pynade.cli.arguments import Data, DataDir
from pynade.cli.screen import LINE_SECONDS, console, errors, next_commands, plain_table

if TYPE_CHECKING:
    from pynade.runs.population_sweep import SweepProgress

LINES = 12  # settings of the live table
GRID = "Values to try; repeat for more parameters."
FIXED = "A parameter that does not vary; repeat for more."
RETRAIN = """Train the chosen settings again on train + valid before the test, or score the validated weights
as they are."""
REPEATS = """Train the chosen setting with this many seeds (from --seed on) and score each on the test part:
the record gets their standard deviation. For one split, not for folds."""
QUICK = """Two folds, a tenth of the epochs, validation rows in place of the test part: a trial that does not
count."""


def sweep(
    data: Data,
    out: Annotated[Path, Option(help="Folder of the sweep.")],
    grid: Annotated[list[str] | None, Option(metavar="NAME=V1,V2,…", help=GRID)] = None,
    model: Annotated[str, Option(help="Any model of `pynade fit`.")] = "rnade",
    fixed: Annotated[list[str] | None, Option("--set", metavar="NAME=VALUE", help=FIXED)] = None,
    folds: Annotated[int | None, Option(help="Cut data without folds of their own into this many.")] = None,
    retrain: Annotated[bool, Option(help=RETRAIN)] = True,
    repeats: Annotated[int, Option(help=REPEATS)] = 1,
    quick: Annotated[bool, Option("--quick", help=QUICK)] = False,
    seed: Annotated[int, Option(help="Of orderings, weights and shuffling.")] = 0,
    record: Annotated[Path | None, Option(help="Write the result here too (.json).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Try a grid of settings, all trained at once; choose on validation, score the test part once.

    Settings × folds that share an architecture are trained as one batched program. Data sets with folds
    (red_wine, white_wine, parkinsons) are swept over all of them, `red_wine/3` over one. On each fold the
    best setting is trained again on train + valid, until its training likelihood passes that of its best
    validation epoch; with --no-retrain the weights of that epoch are scored as they are. `--repeats 10`
    trains the chosen setting with ten seeds, and says how much the test result depends on them: on the
    ordering of the variables, the initial weights, the shuffling. The folder keeps everything; an interrupted
    sweep goes on when the command is given again.

    \b
    Examples:
      pynade sweep white_wine --model rnade --grid learning_rate=0.01,0.003 --grid n_components=5,10 --out s/a
      pynade sweep my.csv --folds 10 --model deep-rnade --set hidden=200+200 --grid dropout=0,0.1 --out s/b
      pynade sweep parkinsons --model mfa --grid n_components=2,4,8 --grid n_factors=2,4,6 --out s/mfa
      pynade sweep mushrooms --model nade --set hidden=500 --grid learning_rate=0.01,0.003,0.001 --out s/nade
      pynade sweep dna --model nade --grid learning_rate=0.05,0.005 --no-retrain --repeats 10 --out s/orders
    """
    from pynade.atomic import write_json
    from pynade.runs.sweep import run_sweep
    from pynade.tables.files import check_destination

    if record is not None:
        check_destination(record, ".json")
    values = dict(parse_values(text) for text in grid or [])
    plain = dict(parse_values(text) for text in fixed or [])
    for name, given in plain.items():
        if len(given) != 1:
            raise ValueError(f"--set takes one value for {name}; --grid takes several")
        (plain[name],) = given
    with Live(console=errors, transient=True, auto_refresh=False) as live:
        options: dict[str, Any] = {"seed": seed, "data_dir": data_dir, "n_folds": folds, "retrain": retrain}
        options |= {"repeats": repeats, "quick": quick, "report": Standings(live)}
        result = run_sweep(out, model, data, plain, values, **options)
    if record is not None:
        write_json(record, result)
    part = "valid" if quick else "test"
    score = result[part]
    table = plain_table("fold", *values, "validation", "best epoch", "its score again" if quick else part)
    means = score.get("folds", [score["mean"]])
    for line, mean in zip(result["chosen"], means, strict=True):
        shown = [line["fold"], *(line[name] for name in values), f"{line['valid']:.3f}", line["best_epoch"]]
        table.add_row(*map(str, shown), f"{mean:.3f}")
    console.print(table)
    over = "folds" if len(means) > 1 else f"{score['n']:,} rows"
    note = " (quick: does not count)" if quick else ""
    mean = f"{score['mean']:.3f} ± {score['stderr']:.3f} nats"
    console.print(f"{part} {mean} (s.e. over {over}){note} -> {out}")
    if repeats > 1:
        many = result["repeats"]
        std = f"standard deviation {many['std']:.3f} ± {many['stderr_of_std']:.3f}"
        console.print(f"{repeats} seeds: {part} {many['mean']:.3f} on average, {std}{note}")
    first = out / "fold-1.safetensors"
    next_commands(("info", first), ("sample", first, "-n", 10))


def parse_values(text: str) -> tuple[str, list[Any]]:
    """ "hidden=500,200+200" as a name and its values.

    Example:
        >>> parse_values("learning-rate=0.1,1e-3"), parse_values("hidden=50,20+20")
        (('learning_rate', [0.1, 0.001]), ('hidden', [50, (20, 20)]))
    """
    name, sign, values = text.partition("=")
    if not sign or not name.strip() or not values.strip():
        raise ValueError(f"parameters are written NAME=VALUE or NAME=V1,V2,…, not {text!r}")
    return name.strip().replace("-", "_"), [_value(word.strip()) for word in values.split(",")]


def _value(word: str) -> Any:
    if "+" in word[1:] and "e+" not in word.lower():
        return tuple(_value(part) for part in word.split("+"))
    words = {"true": "True", "yes": "True", "false": "False", "no": "False", "none": "None"}
    try:
        return ast.literal_eval(words.get(word.lower(), word))
    except (ValueError, SyntaxError):
        return word


class Standings:
    """A live table of the settings of the present population, by their validation scores."""

    def __init__(self, live: Live) -> None:
        self.live, self.printed, self.drawn = live, time.monotonic(), 0.0

    def __call__(self, progress: SweepProgress) -> None:
        """Show how far a sweep is."""
        now, moment = progress.now, time.monotonic()
        running = sum(not history.stopped for history in now.histories)
        where = f"{progress.what} {progress.part}/{progress.parts}, epoch {now.epoch}/{now.epochs}"
        head = f"{where}, {running} of {len(now.histories)} in training, {now.seconds:.0f} s"
        if not errors.is_terminal and moment - self.printed > LINE_SECONDS:
            self.printed = moment
            errors.print(head)
        elif errors.is_terminal and moment - self.drawn > 0.5 and progress.settings:
            self.drawn = moment
            best = [history.best_valid for history in now.histories]
            self.live.update(self._table(head, progress.settings, best), refresh=True)

    def _table(self, head: str, settings: list[dict[str, Any]], best: Sequence[float | None]) -> Table:
        """The settings with the best validation scores, averaged over folds."""
        scores: dict[str, list[float]] = {}
        for setting, value in zip(settings, best, strict=True):
            shown = {k: v for k, v in setting.items() if k not in ("stop_at_train", "patience")}
            label = ", ".join(f"{name} {given}" for name, given in shown.items())
            scores.setdefault(label, []).append(-math.inf if value is None else value)
        table = plain_table("setting", "validation (mean over folds)")
        table.title = head
        means = {label: sum(values) / len(values) for label, values in scores.items()}
        for label, mean in sorted(means.items(), key=lambda item: -item[1])[:LINES]:
            table.add_row(label, f"{mean:.3f}" if math.isfinite(mean) else "–")
        if len(means) > LINES:
            table.add_row(f"… {len(means) - LINES} more", "")
        return table
