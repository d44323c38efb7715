"""Faults that happen to commands: kills, a full disk, folders that cannot be written to, several writers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.torture.common import Ended, Plan, Row, command, content, difference, ended, row, start

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Job(NamedTuple):
    """A command that is disturbed, in a folder of its own."""

    words: list[str]
    run: str | None = None  # run that it needs, copied into the folder
    resumes: bool = False  # whether `fit --resume` goes on with it; if not, the same command does

    def begin(self, plan: Plan, folder: Path) -> None:
        """Put into the folder what the command needs."""
        if self.run:
            shutil.copytree(plan.data[self.run], folder / "r")

    def again(self, folder: Path) -> list[str]:
        """The words of the command that goes on."""
        begun = self.resumes and (folder / "r/spec.json").is_file()
        return ["fit", "--resume", "r"] if begun else self.words


def jobs(plan: Plan) -> dict[str, Job]:
    """The commands, by name."""
    file = {name: str(path) for name, path in plan.data.items()}
    fit, grid = ["fit", file["bits.npy"], "--hidden", "3", "--epochs", "8"], ["--set", "epochs=4"]
    em = ["fit", file["real.npy"], "--model", "mog", "--n-components", "2", "--n-components", "3"]
    mixed = ["fit", file["mixed.csv"], "--hidden", "4", "--epochs", "3"]
    sweep = ["sweep", file["bits.npy"], "--model", "nade", "--folds", "3", "--grid", "hidden=2,3", *grid]
    return {
        "fit": Job([*fit, "--model", "nade", "--out", "r"], resumes=True),
        "EM": Job([*em, "--epochs", "10", "--tol", "0", "--out", "r"], resumes=True),
        "fit of a mixed table": Job([*mixed, "--out", "r"], resumes=True),
        "sweep": Job([*sweep, "--out", "s"]),
        "score --orderings": Job(
            ["score", "r", file["bits.npy"], "--orderings", "40", "--rows", "o.npy"], "deep"
        ),
        "impute": Job(["impute", "r", file["gaps.csv"], "--draws", "3", "--out", "o.csv"], "deep"),
        "score of a table in files": Job(["score", "r", file["parts"], "--rows", "o.parquet"], "deep"),
        "impute of a table in files": Job(
            ["impute", "r", f"{file['parts']}/*.parquet", "--draws", "2", "--out", "o.csv"], "deep"
        ),
    }


def reference(plan: Plan, job: Job) -> tuple[dict[str, Any], Ended]:
    """The files of an undisturbed command, the same ones twice, and how it ended."""
    if (key := " ".join(job.words)) not in plan.known:
        found = []
        for _ in range(2):
            folder = plan.new("whole")
            job.begin(plan, folder)
            done = command(*job.words, folder=folder)
            found.append(content(folder))
        if done.code != 0 or difference(*found):
            raise RuntimeError(f"pynade {key}: {done.code} {difference(*found)} {done.err}")
        plan.known[key] = found[0], done
    return plan.known[key]


def kills(plan: Plan) -> list[Row]:
    """SIGKILL, SIGTERM or SIGINT, at a random time or before a random change of a file; then going on."""
    every = jobs(plan)
    good, bad = ({name: kind() for name in every} for kind in (Counter[str], list))
    for k, rng in plan.trials(20 * len(every)):
        name, number = [*every][k % len(every)], SIGNALS[k // len(every) % 3]
        job, folder = every[name], plan.new("killed")
        whole, undisturbed = reference(plan, job)
        job.begin(plan, folder)
        for _ in range(1 + int(rng.integers(3) == 0)):  # the second one, if there is one, while it goes on
            if rng.integers(2):
                place = int(rng.integers(1, undisturbed.events + 1))
                stopped = command(*job.again(folder), folder=folder, kill=(number, place))
            else:
                process = start(job.again(folder), folder)
                time.sleep(rng.uniform(0, undisturbed.seconds))
                with suppress(ProcessLookupError):  # it may have ended
                    os.kill(process.pid, number)
                stopped = ended(process)
            wrong = None if stopped.code == -number else stopped.fault(0, 3)
            if wrong:
                break
        again = command(*job.again(folder), folder=folder)
        wrong = wrong or again.fault(0) or difference(content(folder), whole)
        if wrong:
            bad[name].append(f"{number.name}: {wrong}")
        else:
            what = "ended before the signal" if stopped.code == 0 else "went on to the identical files"
            good[name][what] += 1
    return [row(f"kill of {name}", good[name], bad[name]) for name in every if good[name] or bad[name]]


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[bool]:
    """A file system of so many bytes in a folder; gives whether that could be made."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    made = subprocess.run(words, check=False, capture_output=True).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def _remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True, capture_output=True)


def full_disk(plan: Plan) -> Row:
    """Commands on a disk with too little room, and once more when there is room: the identical files."""
    good, bad, how = Counter[str](), [], ""
    every = [*jobs(plan).items()]
    for k, rng in plan.trials(60):
        name, job = every[k % len(every)]
        whole, _ = reference(plan, job)
        folder = plan.new("full")
        room = 4096 * int(rng.integers(1, 12))
        with mounted(folder, 1 << 26) as made:
            job.begin(plan, folder)
            how = "" if made else " (a limit on the size of files: mounting is not allowed)"
            if made:
                used = sum(-(-p.stat().st_size // 4096) * 4096 for p in folder.rglob("*") if p.is_file())
                _remount(folder, f"size={used + room}")
            first = command(*job.words, folder=folder, size=None if made else room)
            wrong = first.fault(0, 1)
            if first.code == 1 and "cannot write" not in first.err:
                wrong = wrong or f"no file named: {first.err.strip()!r}"
            if made:
                _remount(folder, f"size={1 << 26}")
            wrong = wrong or command(*job.again(folder), folder=folder).fault(0)
            wrong = wrong or difference(content(folder), whole)
        if wrong:
            bad.append(f"{name}: {wrong}")
        else:
            good["refused in one sentence, identical later" if first.code else "had room enough"] += 1
    return row(f"disk full{how}", good, bad)


def read_only(plan: Plan) -> Row:
    """Folders that cannot be written to: reading commands answer the same, writing ones refuse."""
    good, bad = Counter[str](), []
    file, folder = {name: str(path) for name, path in plan.data.items()}, plan.new("fixed")
    fit = ["fit", file["bits.npy"], "--hidden", "2", "--epochs", "1", "--out"]
    score, every = ["score", "deep", file["bits.npy"], "--orderings", "4"], []
    impute = ["impute", "deep", file["gaps.csv"], "--out"]
    with mounted(folder, 1 << 26) as made:
        for name in ("finished", "unfinished", "deep"):
            shutil.copytree(plan.data[name], folder / name)
        (folder / "file").write_text("")
        before = content(folder)
        answer = command(*score, folder=folder).out.partition("Next")[0]
        if made or os.getuid():
            every += [(0, ["fit", "--resume", "finished"]), (0, ["info", "finished"]), (0, score)]
            every += [(1, [*fit, "new"]), (1, ["fit", "--resume", "unfinished"]), (1, [*impute, "o.csv"])]
            every += [(1, [*score, "--rows", "o.npy"]), (1, [*score, "--record", "o.json"])]
            every += [(1, ["sample", "deep", "--out", "o.csv"]), (1, [*fit, "deep", "--overwrite"])]
            every += [(1, ["sweep", *fit[1:2], "--model", "nade", "--folds", "3", "--out", "s"])]
        else:
            good["skipped: permissions do not bind the superuser, and mounting is not allowed"] += 1
        every += [(1, [*fit, "file"]), (1, [*fit, "file/r"]), (1, [*impute, "file/o.csv"])]
        every += [(1, ["sweep", *fit[1:2], "--model", "nade", "--folds", "3", "--out", "file"])]
        if made:
            _remount(folder, "ro")
        elif os.getuid():
            subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
        for _ in plan.trials(2):
            for code, words in every:
                done = command(*words, folder=folder)
                wrong = done.fault(code) or difference(content(folder), before)
                if words == score and answer not in done.out:
                    wrong = wrong or "another score"
                if wrong:
                    bad.append(f"pynade {' '.join(words)}: {wrong}")
                else:
                    good["refused in one sentence" if code else "answered as before"] += 1
        if os.getuid() and not made:
            subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    return row("folder that cannot be written to", good, bad)


def several_writers(plan: Plan) -> Row:
    """Two or three processes at once on one run: one writes, the others are refused or keep nothing."""
    good, bad = Counter[str](), []
    asked = {"fit --resume": Job(["fit", "--resume", "r"], "unfinished")} | jobs(plan)
    for k, rng in plan.trials(30):
        name, job = [*asked.items()][k % len(asked)]
        whole, _ = reference(plan, job)
        folder, n = plan.new("shared"), 2 + k % 2
        job.begin(plan, folder)
        several = []
        for _ in range(n):
            several.append(start(job.again(folder), folder))
            time.sleep(rng.uniform(0, 0.2))
        done = [ended(process) for process in several]
        wrong = next((text for one in done if (text := one.fault(0, 1))), None)
        words = ("in use by", "already exists")
        refused = [one for one in done if one.code == 1]
        wrong = wrong or next((o.err for o in refused if not any(word in o.err for word in words)), None)
        wrong = wrong or (f"all {n} refused: {done[0].err}" if len(refused) == n else None)
        wrong = wrong or difference(content(folder), whole)
        if wrong:
            bad.append(f"{name}: {wrong}")
        else:
            good[f"identical files, {len(refused)} of {n} processes refused"] += 1
    return row("two or three processes on one run", good, bad)
