"""`pynade sweep`."""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.live import Live
from rich.table import Table
from typer import Option

from pynade.atomic import write_json
from pynade.cli import lazy
from pynade.cli.arguments import Data, DataDir, Engine, Workers
from pynade.cli.screen import LINE_SECONDS, console, errors, next_commands, plain_table

if TYPE_CHECKING:
    from pynade.runs.sweep import SweepProgress

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
    engine: Engine = "local",
    workers: Workers = None,
) -> None:
    """Try a grid of settings, all trained at once; choose on validation, score the test part once.

    Settings × folds that share an architecture are trained as one batched program. Data sets with folds
    (red_wine, white_wine, parkinsons) are swept over all of them, `red_wine/3` over one. On each fold the
    best setting is trained again on train + valid, until its training likelihood passes that of its best
    validation epoch; with --no-retrain the weights of that epoch are scored as they are. `--repeats 10`
    trains the chosen setting with ten seeds, and says how much the test result depends on them: on the
    ordering of the variables, the initial weights, the shuffling. The folder keeps everything; an interrupted
    sweep goes on when the command is given again. --workers or --engine ray train several architectures (of
    a classical model: folds) at a time, with the same result.

    \b
    Examples:
      pynade sweep white_wine --model rnade --grid learning_rate=0.01,0.003 --grid n_components=5,10 --out s/a
      pynade sweep my.csv --folds 10 --model deep-rnade --set hidden=200+200 --grid dropout=0,0.1 --out s/b
      pynade sweep parkinsons --model mfa --grid n_components=2,4,8 --grid n_factors=2,4,6 --out s/mfa
      pynade sweep mushrooms --model nade --set hidden=500 --grid learning_rate=0.01,0.003,0.001 --out s/nade
      pynade sweep dna --model nade --grid learning_rate=0.05,0.005 --no-retrain --repeats 10 --out s/orders
    """
    if record is not None:
        lazy.files.check_destination(record, ".json")
    tried, parameters = (dict(map(parse_values, texts or ())) for texts in (grid, fixed))
    for name, values in parameters.items():
        if len(values) != 1:
            raise ValueError(f"--set takes one value for {name}; --grid takes several")
        (parameters[name],) = values
    with standings() as show:
        options: dict[str, Any] = {"seed": seed, "data_dir": data_dir, "folds": folds, "retrain": retrain}
        options |= {"repeats": repeats, "quick": quick, "report": show, "engine": engine, "workers": workers}
        result = lazy.sweep.Sweep(out, model, data, parameters, tried, **options).run()
    if record is not None:
        write_json(record, result)
    part, heading = ("valid", "its score again") if quick else ("test", "test")
    score = result[part]
    means = score.get("folds", [score["mean"]])
    rows = [
        [line["fold"], *map(line.get, tried), f"{line['valid']:.3f}", line["best_epoch"], f"{mean:.3f}"]
        for line, mean in zip(result["chosen"], means, strict=True)
    ]
    console.print(plain_table("fold", *tried, "validation", "best epoch", heading, rows=rows))
    over = "folds" if len(means) > 1 else f"{score['n']:,} rows"
    note = " (quick: does not count)" if quick else ""
    mean = f"{lazy.summary.with_error(score)} nats"
    console.print(f"{part} {mean} (s.e. over {over}){note} -> {out}")
    if repeats > 1:
        seeds = result["repeats"]
        std = f"standard deviation {seeds['std']:.3f} ± {seeds['stderr_of_std']:.3f}"
        console.print(f"{repeats} seeds: {part} {seeds['mean']:.3f} on average, {std}{note}")
    first = out / "fold-1.safetensors"
    next_commands(("info", first), ("sample", first, "-n", 10))


def parse_values(text: str) -> tuple[str, list[Any]]:
    """ "hidden=500,200+200" as a name and its values: ("hidden", [500, (200, 200)])."""
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


@contextmanager
def standings() -> Iterator[Callable[[SweepProgress], None]]:
    """Show the settings of the present population by their validation scores; yields a callback of a sweep.

    Where there is no terminal, it prints a line now and then instead.
    """
    last = time.monotonic()

    def show(progress: SweepProgress) -> None:
        nonlocal last
        if time.monotonic() - last < (0.5 if errors.is_terminal else LINE_SECONDS):
            return
        last, now = time.monotonic(), progress.now
        running = sum(not history.stopped for history in now.histories)
        title = f"{progress.phase} {progress.part}/{progress.parts}, epoch {now.epoch}/{now.epochs}"
        title += f", {running} of {len(now.histories)} in training, {now.seconds:.0f} s"
        if not errors.is_terminal:
            errors.print(title)
        elif progress.settings:
            table = _best_settings(progress.settings, [history.best_valid for history in now.histories])
            table.title = title
            live.update(table, refresh=True)

    with Live(console=errors, transient=True, auto_refresh=False) as live:
        yield show


def _best_settings(settings: list[dict[str, Any]], best: Sequence[float | None]) -> Table:
    """The settings with the best validation scores, averaged over folds."""
    scores: dict[str, list[float]] = {}
    for setting, value in zip(settings, best, strict=True):
        texts = [f"{k} {v}" for k, v in setting.items() if k not in ("stop_at_train", "patience")]
        scores.setdefault(", ".join(texts), []).append(-math.inf if value is None else value)
    means = sorted(((sum(folds) / len(folds), label) for label, folds in scores.items()), reverse=True)
    rows = [(label, f"{mean:.3f}" if math.isfinite(mean) else "–") for mean, label in means[:LINES]]
    rows += [(f"… {len(means) - LINES} more", "")] if len(means) > LINES else []
    return plain_table("setting", "validation (mean over folds)", rows=rows)
