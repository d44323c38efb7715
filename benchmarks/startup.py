"""CPU time until a command is done that computes nothing: python benchmarks/startup.py [RUN]."""

from __future__ import annotations

import resource
import subprocess
import sys

COMMANDS = ["--help", "fit --help", "score --help", "data list", "data --help"]


def cpu_seconds(words: list[str]) -> float:
    """User and system time of one `pynade` command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pynade.cli.main", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    commands = [words.split() for words in COMMANDS] + [["info", run] for run in sys.argv[1:]]
    for words in commands:
        seconds = sorted(cpu_seconds(words) for _ in range(7))
        print(f"pynade {' '.join(words):20s} {seconds[0]:.3f} s least, {seconds[3]:.3f} s median of 7")


if __name__ == "__main__":
    main()
