"""How much one request may ask for, and how long what it asks for takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for.

    Args:
        rows: of a table that is sent.
        bytes: of a request.
        seconds: of computing, and of sending the request.
        concurrent: requests that are computed at once.
        waiting: requests that wait for these; more are refused.
    """

    rows: int = 100_000
    bytes: int = 16_000_000
    seconds: float = 20.0
    concurrent: int = 2
    waiting: int = 8


class TooMuch(ValueError):
    """A request that is right but larger than the limits."""


def seconds_of(work: Callable[..., Any], *arguments: int) -> float:
    """How long a call takes."""
    start = time.monotonic()
    work(*arguments)
    return max(time.monotonic() - start, 1e-9)


class Costs:
    """How much can be computed within the time limit, by trials: a thread cannot be stopped.

    Args:
        limits: of one request.
        n_columns: of the model.
    """

    def __init__(self, limits: Limits, n_columns: int) -> None:
        self.seconds, self.n_columns = limits.seconds, n_columns
        self.trials: dict[tuple[str, int], tuple[float, float]] = {}  # results of `_cost`

    def affordable(self, work: Callable[[int], Any], wanted: int, probe: int = 512) -> int:
        """How many rows or draws can be made within the time limit, by a trial of a few.

        Args:
            work: makes so many.
            wanted: how many at most.
            probe: the number of the trial.
        """
        first = seconds_of(work, 1)  # compiles what has to be compiled
        if first > self.seconds:
            return 1
        probe = int(np.clip(0.2 * self.seconds / first, 1, min(probe, wanted)))
        return int(np.clip(self.seconds / (seconds_of(work, probe) / probe), 1, wanted))

    def in_time(
        self,
        name: str,
        work: Callable[[int], Any],
        rows: int,
        one_column: Callable[[], Any] | None = None,
    ) -> Any:
        """The result of a computation for the rows of a page; None if, by a first trial, it takes too long.

        Args:
            name: of the computation.
            work: makes so many rows.
            rows: how many are wanted.
            one_column: a computation that the one of a row makes for every column, where these may be many.
        """
        trial = name, min(rows, 8)
        if trial not in self.trials:
            self.trials[trial] = self._cost(work, trial[1], one_column)
        first, further = self.trials[trial]
        return work(rows) if first + further * (rows - 1) <= self.seconds else None

    def _cost(
        self, work: Callable[[int], Any], rows: int, one_column: Callable[[], Any] | None
    ) -> tuple[float, float]:
        """Seconds of the first row and of each further one, infinite if one row is too much."""
        if one_column is not None:
            one_column()  # may compile something
            if seconds_of(one_column) * self.n_columns > self.seconds:
                return math.inf, 0.0
        if seconds_of(work, 1) > self.seconds:
            return math.inf, 0.0
        first, all_rows = seconds_of(work, 1), seconds_of(work, rows)
        return first, max(0.0, all_rows - first) / max(1, rows - 1)

    def check(self, work: Callable[[int], Any], rows: int) -> None:
        """Refuse rows that take longer than the time limit."""
        if (n := self.affordable(work, rows)) < rows:
            raise TooMuch(f"{rows:,} rows take longer than {self.seconds:g} s: send {n:,} at a time")
