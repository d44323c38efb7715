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


class Costs:
    """How much can be computed within the time limit, by trials: a thread cannot be stopped.

    Args:
        limits: of one request.
        n_columns: of the model.
    """

    def __init__(self, limits: Limits, n_columns: int) -> None:
        self.seconds, self.n_columns = limits.seconds, n_columns
        self.rows: dict[tuple[str, int], tuple[float, float]] = {}  # seconds of rows of a page, by a trial

    def affordable(self, work: Callable[[int], Any], wanted: int, probe: int = 512) -> int:
        """How many rows or draws can be made within the time limit, by a trial of a few.

        Args:
            work: makes so many.
            wanted: how many at most.
            probe: the number of the trial.
        """
        began = time.monotonic()
        work(1)  # compiles what has to be compiled
        first = max(time.monotonic() - began, 1e-9)
        if first > self.seconds:
            return 1
        probe, began = (
            int(np.clip(0.2 * self.seconds / first, 1, min(probe, wanted))),
            time.monotonic(),
        )
        work(probe)
        each = max(time.monotonic() - began, 1e-9) / probe
        return int(np.clip(self.seconds / each, 1, wanted))

    def in_time(
        self,
        name: str,
        work: Callable[[int], Any],
        rows: int,
        columns: Callable[[], Any] | None = None,
    ) -> bool:
        """Whether so many rows of a page take no longer than the limit, by a trial that is made once.

        Args:
            name: of the computation.
            work: makes so many rows.
            rows: how many are wanted.
            columns: a computation that the one of a row makes for every column, where these may be many.
        """
        trial = name, min(rows, 8)
        if trial not in self.rows:
            self.rows[trial] = self._cost(work, trial[1], columns)
        one, more = self.rows[trial]
        return one + more * (rows - 1) <= self.seconds

    def _cost(
        self, work: Callable[[int], Any], few: int, columns: Callable[[], Any] | None
    ) -> tuple[float, float]:
        """Seconds of the first row and of each further one, infinite if one row is too much."""

        def seconds(call: Callable[..., Any], *n: int) -> float:
            began = time.monotonic()
            call(*n)
            return time.monotonic() - began

        if columns is not None:
            columns()  # may compile something
            if seconds(columns) * self.n_columns > self.seconds:
                return math.inf, 0.0
        if seconds(work, 1) > self.seconds:
            return math.inf, 0.0
        one, some = seconds(work, 1), seconds(work, few)
        return one, max(0.0, some - one) / max(1, few - 1)

    def check(self, work: Callable[[int], Any], rows: int) -> None:
        """Refuse rows that take longer than the time limit."""
        if (n := self.affordable(work, rows)) < rows:
            raise TooMuch(f"{rows:,} rows take longer than {self.seconds:g} s: send {n:,} at a time")
