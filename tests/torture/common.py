"""What all faults share: how many trials there are, their table, and commands in processes of their own."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from polars import DataFrame

import pynade.cli.main
from pynade.atomic import LOCK
from pynade.digest import read_entries
from pynade.runs.run import start_run
from pynade.training import Diverged, checkpoint
from tests.estimators.cases import binary, gaps, real

OWN = (ValueError, TypeError, OSError, Diverged)  # kinds of exceptions that users are told of
#: Keys of JSON files whose values differ between two runs of one command.
TIMES = ("seconds", "wall_seconds", "sessions", "started", "trained", "digest", "at", "updates_per_second")
WARM = [
    "pynade.cli.main",
    "pynade.runs.sweep",
    "pynade.runs.score",
    "tests.torture.files",
    "tests.torture.numbers",
]
LONGEST = 600  # seconds that a command may take, on a machine that does much else
NADE = {"hidden": 3, "epochs": 8, "device": "cpu"}


class Row(NamedTuple):
    """A line of the table."""

    fault: str
    trials: int
    survived: int
    what: str  # happened


class Killed(Exception):
    """Ends a training in this process."""


@dataclass
class Plan:
    """How long the attack is, and where its files are."""

    folder: Path
    seed: int = 0
    scale: float = 1.0  # 1.0: the numbers of trials that the functions name
    keep: Path | None = None  # folder for the inputs that failed
    deadline: float = float("inf")  # of the fault in progress
    data: dict[str, Path] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)  # what undisturbed commands make

    def trials(self, n: int) -> Iterator[tuple[int, np.random.Generator]]:
        """Numbers of trials, each with its own random numbers, until the deadline (one at least)."""
        for k in range(max(1, round(n * self.scale))):
            if k and time.monotonic() > self.deadline:
                return
            yield k, np.random.default_rng([self.seed, k])

    def shared(self, items: Collection[Any]) -> Iterator[Any]:
        """The items; each has its share of the time that is left."""
        end = self.deadline
        for k, item in enumerate(items):
            now = time.monotonic()
            self.deadline = now + (end - now) / (len(items) - k)
            yield item
        self.deadline = end

    def new(self, name: str) -> Path:
        """An empty folder of this name."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / name).mkdir(parents=True)
        return self.folder / name


def row(fault: str, good: Counter[str], bad: list[str]) -> Row:
    """The line of a fault: outcomes with their numbers, then what failed (three of them at most)."""
    parts = [f"{n:,} {what}" for what, n in good.most_common()]
    alike = [re.sub(r"[-+]?\d[\d.]*(e[-+]\d+)?", "0", text) for text in bad]  # but for their numbers
    for kind, n in Counter(alike).most_common(3):
        parts.append(f"FAILED {n:,}: {' '.join(bad[alike.index(kind)].split())}")
    return Row(fault, good.total() + len(bad), good.total(), "; ".join(parts))


def fault_in_sentence(error: BaseException, *names: str) -> str | None:
    """What is wrong with an error that a user gets: its kind, its form, no file named; None if nothing is."""
    text = str(error)
    if not isinstance(error, OWN):
        return f"{type(error).__name__}: {text[:200]!r}"
    if "\n" in text.strip() or not 8 < len(text) < 600:
        return f"no sentence: {type(error).__name__} {text[:200]!r}"
    return None if not names or any(name in text for name in names) else f"no file named: {text[:200]!r}"


# ------------------------------------------------------------------------------ files to work on


def prepare(plan: Plan) -> None:
    """Small tables, images and runs, finished and unfinished, in the folder of the plan."""
    place, rng = plan.new("data"), np.random.default_rng(plan.seed)
    bits, numbers = binary(90, seed=plan.seed), real(90, seed=plan.seed)
    holes = gaps(bits)
    mixed = {"n": rng.integers(0, 40, 60), "city": ["Rome", "Oslo", "Bonn"] * 20, "x": numbers[:60, 0]}
    plan.data = {name: place / name for name in ("bits.npy", "real.npy", "bits.npz", "gaps.csv", "mixed.csv")}
    plan.data |= {name: place / name for name in ("mixed.parquet", "mixed.csv.gz", "stack.npy", "sent.json")}
    np.save(place / "bits.npy", bits)
    np.save(place / "real.npy", numbers)
    np.save(place / "stack.npy", bits[:, :4].reshape(-1, 2, 2) * 255)
    np.savez_compressed(place / "bits.npz", train=bits[:60], test=bits[60:])
    DataFrame(holes, schema=[*"abcde"]).fill_nan(None).write_csv(place / "gaps.csv")
    DataFrame(mixed).write_csv(place / "mixed.csv")
    DataFrame(mixed).write_parquet(place / "mixed.parquet")
    plan.data["sent.json"].write_text(json.dumps({"columns": DataFrame(mixed).to_dict(as_series=False)}))
    plan.data["mixed.csv.gz"].write_bytes(gzip.compress(plan.data["mixed.csv"].read_bytes()))
    for name in ("images", "parts"):
        plan.data[name] = place / name
        plan.data[name].mkdir()
    for k in range(4):  # a table in files
        few = DataFrame(holes[20 * k : 20 * k + 20], schema=[*"abcde"]).fill_nan(None)
        few.write_parquet(plan.data["parts"] / f"{k}.parquet")
    Image.fromarray(rng.integers(0, 256, (6, 5), np.uint8)).save(place / "images/1.png")
    table = str(plan.data["bits.npy"])
    start_run(place / "finished", "nade", NADE, table)
    start_run(place / "deep", "deepnade", NADE | {"hidden": 4, "epochs": 2}, table)

    def kill(now: Any) -> None:
        if now.epoch_done and now.epoch == 5:
            raise Killed

    usual, checkpoint.CHECKPOINT_SECONDS = checkpoint.CHECKPOINT_SECONDS, -1.0
    with suppress(Killed):
        start_run(place / "unfinished", "nade", NADE, table, callbacks=[kill])
    checkpoint.CHECKPOINT_SECONDS = usual
    plan.data |= {name: place / name for name in ("finished", "deep", "unfinished")}


def content(folder: Path) -> dict[str, Any]:
    """All files of a folder by name, without times: what a run that was disturbed must have, too.

    Killed processes may leave locks, which nobody holds, and parts of files that they wrote outside of runs.
    """
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in LOCK]
    files = [p for p in files if p.parent != folder or p.suffix != ".part"]
    return {str(p.relative_to(folder)): _content(p) for p in files}


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        metadata, entries = read_entries(path, "pynade")
        facts = {k: _timeless(json.loads(v)) for k, v in metadata.items() if k != "digest"}
        return facts, entries, path.read_bytes()[8 + int.from_bytes(path.read_bytes()[:8], "little") :]
    if path.name == "sessions.json":
        return None
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [_timeless(json.loads(line)) for line in lines]
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str | None:
    """Which files differ, are missing or too many; None if none."""
    other = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    return f"other content: {', '.join(other)}" if other or found.keys() != expected.keys() else None


# ------------------------------------------------------------------------------ commands


class Ended(NamedTuple):
    """How a command ended."""

    code: int | None  # None: it did not end in time
    out: str
    err: str
    seconds: float

    @property
    def events(self) -> int:
        """How often it changed a file, if it was not killed."""
        return int(self.out.rpartition("events ")[2] or 0)

    def fault(self, *codes: int) -> str | None:
        """What is wrong: another exit code than these, a traceback, a refusal that is no sentence."""
        if self.code not in codes or "Traceback" in self.err:
            return f"exit code {self.code}: {self.err.strip()[-300:]!r}"
        lines = [line for line in self.err.splitlines() if line.startswith("Error: ")]
        if self.code in (1, 4) and (len(lines) != 1 or not 20 < len(lines[0]) < 600):
            return f"no sentence: {self.err.strip()[-300:]!r}"
        return None


def processes() -> Any:
    """Processes that begin as copies of one that has imported the library: a tenth of a second each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    return context


def start(words: list[str], folder: Path, kill: Any = None, size: int | None = None) -> Any:
    """Start `pynade …` in a folder.

    Args:
        words: of the command.
        kill: a signal and the number of the change of a file before which the process gets it.
        size: the most bytes that a file may have.
    """
    log = folder.parent / f"{folder.name}-{time.monotonic_ns()}"
    process = processes().Process(target=_command, args=(words, folder, log, kill, size))
    process.start()
    process.log, process.began = log, time.monotonic()
    return process


def ended(process: Any) -> Ended:
    """Wait for a process that `start` has started."""
    process.join(LONGEST)
    code, seconds = process.exitcode, time.monotonic() - process.began
    if code is None:
        process.kill()
        process.join()
    texts = []
    for end in (".out", ".err"):
        file = process.log.with_name(process.log.name + end)
        texts.append(file.read_text(errors="replace") if file.is_file() else "")
        file.unlink(missing_ok=True)
    return Ended(code, *texts, seconds)


def command(*words: str, folder: Path, **options: Any) -> Ended:
    """Run `pynade …` to its end; arguments as for `start`."""
    return ended(start([*map(str, words)], folder, **options))


def _command(words: list[str], folder: Path, log: Path, kill: Any, size: int | None) -> None:
    """`pynade …` in a fresh process; it ends here."""
    os.chdir(folder)
    for number, end in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(f"{log}{end}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    for number in (signal.SIGINT, signal.SIGTERM):  # until the command begins
        signal.signal(number, signal.SIG_DFL)
    checkpoint.CHECKPOINT_SECONDS = 0.0  # at the end of every epoch
    changes = _count_changes(str(folder), kill)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    sys.argv, code = ["pynade", *words], 0
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pynade.cli.main.main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        traceback.print_exc()
        code = 70
    with suppress(BaseException):
        print("events", len(changes), flush=True)
        sys.stderr.flush()
    os._exit(code)


def _count_changes(folder: str, kill: tuple[int, int] | None) -> list[str]:
    """A list that gets every change of a file below a folder, just before it is made."""
    changes: list[str] = []
    writing = os.O_WRONLY | os.O_RDWR

    def notice(event: str, args: Any) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            return
        if not isinstance(args[0], str | os.PathLike) or (event == "open" and not args[2] & writing):
            return
        if not os.path.abspath(os.fspath(args[0])).startswith(folder):
            return
        changes.append(event)
        if kill is not None and len(changes) == kill[1]:
            os.kill(os.getpid(), kill[0])

    sys.addaudithook(notice)
    return changes
