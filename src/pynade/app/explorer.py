"""Answers about one model and its data, as JSON values: what the endpoints of the explorer return."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars

from pynade.app.code import Code
from pynade.app.limits import Costs, Limits, TooMuch
from pynade.estimators import ImageEstimator
from pynade.estimators.images import image_sides
from pynade.models import Orderless
from pynade.plots.drawing import column_names
from pynade.tables.column import DAY, Column
from pynade.tables.frames import check_columns, native_frame

BINS, GRID = 48, 28  # ranges of a histogram, and of each axis of a joint density
DRAWS = 1000  # of an estimate with particles
ORDERINGS = 8  # at most, that are compared
POINTS = 400  # real rows shown over a joint density
WARNINGS = threading.Lock()  # filters of warnings belong to the whole process
NEAR = 0.1  # share of the rows on each side that count as near to a given number
EXACT = {"kind": "exact", "text": "exact"}
NOTHING: dict[str, Any] = {}  # is given


def estimate_badge(error: float, digits: str = ".3f") -> dict[str, Any]:
    """The label of an estimate with its standard error."""
    return {"kind": "estimate", "text": f"estimate ± {error:{digits}}", "error": error}


class Draws:
    """A distribution known by draws only; the functions are those of a conditional."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.sort(values.astype(np.float64))

    def pmf(self, levels: Sequence[Any]) -> np.ndarray:
        """Share of each level among the draws."""
        return np.array([(self.values == level).mean() for level in levels])

    def cdf(self, x: Any) -> np.ndarray:
        """Share of draws that are at most x, for each x."""
        return np.searchsorted(self.values, x, side="right") / len(self.values)

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles of the draws."""
        return np.quantile(self.values, q, method="inverted_cdf")

    def mean(self) -> float:
        """Mean of the draws."""
        return float(self.values.mean())


def json_value(value: Any) -> Any:
    """A cell as JSON can hold it: dates as text, NaN as null."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return text.removesuffix("T00:00:00")


def level_text(level: Any) -> str:
    """A level as polars writes it."""
    return str(level).lower() if isinstance(level, bool) else str(level)


def axis_values(column: Column, numbers: np.ndarray) -> np.ndarray:
    """Numbers of the axis of a column (of dates: microseconds) as its distributions take them."""
    return numbers.round().astype("datetime64[us]") if column.kind == "date" else numbers


class Explorer:
    """One model with its data, and what may be asked of them.

    Args:
        model: a fitted estimator.
        data: rows to show beside it: a frame or an array; None has none.
        code: where the model and the data come from, in the Python code that is shown.
        result: what the run knows of its scores (result.json).
        image_shape: of a row, if rows are images.
        limits: of one request.
    """

    def __init__(
        self, model: Any, data: Any, code: Code, result: dict[str, Any], image_shape: Any, limits: Limits
    ) -> None:
        self.model, self.code, self.result, self.limits = model, code, result, limits
        self.mixed = hasattr(model, "schema_")
        self.orderless = isinstance(model.model_, Orderless)
        self.has_fixed_ordering = hasattr(model.model_, "order")
        n, cells = model.model_.n_variables, model._cells()
        self.white = int(cells.white)
        kind: dict[str, Any] = {"kind": "real"}
        if cells.kind == "binary":
            kind = {"kind": "binary", "levels": (0, 1)}
            if self.white > 1:
                kind = {"kind": "integer", "resolution": 1.0, "low": 0.0, "high": float(self.white)}
        names = column_names(model)
        self.columns = model.schema_.columns if self.mixed else [Column(name, **kind) for name in names]
        self.by_name: dict[str, Column] = dict(zip(names, self.columns, strict=True))
        self.nameless = not self.mixed and model._names() is None
        self.keys: dict[str, Any] = {name: i if self.nameless else name for i, name in enumerate(names)}
        shape = image_shape or getattr(model, "image_shape", None)
        if shape is None and isinstance(model, ImageEstimator):
            shape = image_sides(None, n)
        self.shape = None if shape is None or math.prod(shape) != n else [*map(int, shape)][-3:]
        self.table: Any = None
        if data is not None:
            self.table = self.frame(data)
            check_columns(self.table.columns, [*self.by_name])
        self.sorted_rows: Any = None  # numbers of rows of the data by log p, once they were asked for
        self.scores: Any = None  # comparisons with simpler models, likewise
        self.costs = Costs(limits, n)

    def frame(self, data: Any) -> Any:
        """A table as a polars frame that has the model's columns."""
        names = list(self.model.schema_.order) if self.mixed else list(self.by_name)
        data = data.reshape(len(data), -1) if isinstance(data, np.ndarray) else data
        frame = native_frame(data, names)[0].to_polars()
        if self.nameless and frame.width == len(names):  # columns are matched by their places
            frame.columns = names
        return frame

    def model_rows(self, frame: Any) -> Any:
        """A table as the model takes it: an array where it was fitted without column names."""
        return frame.to_numpy().astype(np.float64) if self.nameless else frame

    @contextmanager
    def caught_warnings(self) -> Iterator[list[Any]]:
        """Collect the warnings of a model with a fixed ordering; others give none and need no lock."""
        if not self.has_fixed_ordering:
            yield []
            return
        with WARNINGS, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield caught

    # what is asked

    def column(self, name: Any) -> Column:
        """The column of this name."""
        if not isinstance(name, str) or name not in self.by_name:
            raise ValueError(f"there is no column {name!r:.60}")
        return self.by_name[name]

    def given(self, given: Any) -> tuple[dict[str, Any], list[str]]:
        """Checked values of known columns by name, and notes about those that are out of range."""
        if not isinstance(given, dict):
            raise ValueError("given must be an object from column names to values")
        values, notes = {}, []
        for name, value in given.items():
            column = self.column(name)
            if not isinstance(value, str | int | float) or len(str(value)) > 500:
                raise ValueError(f"column {name!r:.60} is given as something that is neither number nor text")
            if isinstance(value, int | float) and not abs(value) < 1e300:
                raise ValueError(f"column {name!r:.60} is given as a number that is too large")
            parsed = column.parse(value)
            if column.kind == "date":
                value = str(value)
            elif column.n_levels:
                value = parsed
            elif math.isfinite(parsed):
                value = int(parsed) if parsed.is_integer() and abs(parsed) < 2**53 else parsed
            else:
                raise ValueError(f"column {name!r:.60} is given as {value!r:.20}, which is no number")
            values[name] = value
            if self.mixed and math.isnan(float(column.encode([parsed])[0][0])):
                notes.append(f"{name} = {value} is outside of the range in training, so it counts as unknown")
        return values, notes

    def by_key(self, given: dict[str, Any]) -> dict[Any, Any]:
        """Given values by the keys that the model takes: names, or numbers of columns without names."""
        return {self.keys[name]: value for name, value in given.items()}

    def rows_near(self, given: dict[str, Any]) -> Any:
        """Rows of the data near to what is given: the same levels, numbers within a tenth of the ranks."""
        table = self.table
        for name, value in given.items():
            column = self.by_name[name]
            if column.n_levels:
                table = table.filter(table[name].cast(polars.String) == level_text(value))
                continue
            numbers, ranked = self.numbers(table, column), self.numbers(self.table, column)
            ranked = ranked[~np.isnan(ranked)]
            if len(ranked):
                rank = (ranked < column.parse(value)).mean()
                low, high = np.quantile(ranked, np.clip([rank - NEAR, rank + NEAR], 0, 1))
                table = table.filter(polars.Series((numbers >= low) & (numbers <= high)))
        return table

    @staticmethod
    def numbers(table: Any, column: Column) -> np.ndarray:
        """The cells of a column of numbers or dates (microseconds), NaN where they are missing."""
        cells = table[column.name]
        if cells.dtype in (polars.Date, polars.Datetime):
            cells = cells.dt.timestamp("us")
        elif column.kind == "date":
            return np.array([math.nan if v is None else column.parse(v) for v in cells])
        return cells.cast(polars.Float64, strict=False).to_numpy().astype(np.float64)

    # answers

    def about(self) -> dict[str, Any]:
        """Model, columns, training curve, and which views there are."""
        history = [
            {k: json_value(v) for k, v in line.items() if k in ("epoch", "train", "valid")}
            for line in getattr(self.model.history_, "epochs", [])
        ]
        columns = [
            {"name": c.name, "kind": c.kind, "values": c.domain(), "step": c.resolution}
            | {"levels": [*map(json_value, c.levels)], "rare": [*map(json_value, c.known_rare)]}
            | {"days": c.resolution % DAY == 0}
            for c in self.columns
        ]
        return {
            "model": type(self.model).__name__,
            "run": self.code.run,
            "data": None if self.table is None else {"name": self.code.data, "rows": self.table.height},
            "columns": columns,
            "image_shape": self.shape,
            "white": self.white,
            "history": history,
            "orderings": self.n_orderings,
            "sorts_rows": not (self.table is None or isinstance(self.model, ImageEstimator)),
            "limits": {"rows": self.limits.rows, "bytes": self.limits.bytes, "seconds": self.limits.seconds},
            "code": self.code.model(),
        }

    @property
    def n_orderings(self) -> int | None:
        """Orderings that a score averages; None of a model that needs none."""
        return len(self.model.orderings()) if self.orderless else None

    def score_badge(self, log_p: Any, k: int | None = None) -> dict[str, Any]:
        """How log p of rows, along k orderings (None: the model's own), is known: an RBM may estimate it."""
        summary = self.model.summary(log_p)
        return self.exact_badge(k) if summary.exact else estimate_badge(summary.mc_stderr)

    def exact_badge(self, k: int | None = None) -> dict[str, Any]:
        """Of an exact log p along k orderings (None: the model's own)."""
        k = k or self.n_orderings
        return EXACT if k is None else {"kind": "orderings", "text": f"exact for {k} ordering{'s' * (k > 1)}"}

    def spread_of_scores(self, rows: Any) -> np.ndarray:
        """Standard deviation of log p of rows (gaps or not) over 8 orderings of an orderless model."""
        orderings = self.model.orderings(ORDERINGS)
        return np.std([self.model.score_samples(rows, orderings=ordering) for ordering in orderings], 0)

    def _distribution(self, name: str, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The distribution of a column given others: whether it is exact, the code for it, and notes."""
        model, key, by_key = self.model, self.keys[name], self.by_key(given)
        try:
            facts = {"badge": EXACT, "code": self.code.conditional(key, by_key), "notes": []}
            return model.conditional(key, by_key), facts
        except ValueError:
            if not self.has_fixed_ordering:
                raise
        names = [*self.by_name]
        place, known = names.index(name), {names.index(other): value for other, value in given.items()}
        row = np.array([[known.get(i, math.nan) for i in range(len(names))]])

        def draw(n: int) -> np.ndarray:
            if not given:
                return np.asarray(model.sample(n, 0))[:, place]
            return np.asarray(model.impute(row, n=n, random_state=0, particles=4 * n))[:, 0, place]

        with self.caught_warnings() as caught:
            n = self.costs.affordable(draw, DRAWS, 8)
            caught.clear()  # of the trial, which draws less
            draws = Draws(draw(n))
        badge = {"kind": "estimate", "text": f"estimate from {n:,} draws", "error": 0.5 / math.sqrt(n)}
        code = self.code.draws(place, known, len(names), n)
        return draws, {"badge": badge, "code": code, "notes": [str(w.message) for w in caught]}

    def conditional(self, asked: Any, given: Any = NOTHING) -> dict[str, Any]:
        """The distribution of a column given others over its marginal, or the joint one of two columns."""
        if not isinstance(asked, list) or not 1 <= len(asked) <= 2:
            raise ValueError("asked must be a list of one or two column names")
        known, notes = self.given(given)
        columns = [self.column(name) for name in asked]
        for column in columns:
            if column.name in known:
                raise ValueError(f"column {column.name!r:.60} is both asked for and given")
        if len({*asked}) < len(asked):
            raise ValueError("a column is asked for twice")
        distributions, summaries = zip(*(self._summary(column, known) for column in columns), strict=True)
        if len(columns) == 1:
            return summaries[0] | {"notes": notes + summaries[0]["notes"]}
        if any(isinstance(distribution, Draws) for distribution in distributions):
            raise ValueError("this model has a fixed ordering: ask about one column at a time")
        return {"columns": summaries, "notes": notes} | self._joint(columns, distributions, known)

    def _summary(self, column: Column, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The distribution of a column given others, and what the page shows of it, over its marginal."""
        answer, facts = self._distribution(column.name, given)
        marginal = self._distribution(column.name, {})[0] if given else answer
        out = facts | {"column": column.name, "kind": column.kind, "n_given": len(given)}
        if column.n_levels:
            levels = [*column.levels, *column.known_rare]
            p, before = (np.asarray(each.pmf(levels), float) for each in (answer, marginal))
            out |= {"levels": [*map(json_value, levels)], "p": p.tolist(), "marginal": before.tolist()}
            return answer, out | {"mode": json_value(levels[int(p.argmax())])}
        ends = [[column.parse(x) for x in each.quantile([0.005, 0.995])] for each in (marginal, answer)]
        edges = column.bins(min(low for low, _ in ends), max(high for _, high in ends), BINS)
        for label, each in (("p", answer), ("marginal", marginal)):
            out[label] = np.maximum(np.diff(each.cdf(axis_values(column, edges))), 0).tolist()
        low, median, high = answer.quantile([0.05, 0.5, 0.95])
        out |= {"median": json_value(median), "low": json_value(low), "high": json_value(high)}
        out |= {"edges": edges.tolist(), "at": [*map(column.parse, (low, median, high))]}
        out |= {"step": column.resolution, "middle": column.parse(marginal.quantile([0.5])[0])}
        return answer, out | ({} if column.kind == "date" else {"mean": json_value(answer.mean())})

    @staticmethod
    def _ranges(column: Column, distribution: Any) -> tuple[list[Any], list[Any]]:
        """Ends of ranges across the distribution of a column, and a value that stands for each range.

        It is the middle one by probability. Levels stand for themselves and have no ends.
        """
        if column.n_levels:
            return [], list(column.levels)[:GRID]
        low, high = map(column.parse, distribution.quantile([0.01, 0.99]))
        edges = column.bins(low, high, GRID)
        ends = axis_values(column, edges)
        below = np.asarray(distribution.cdf(ends), float)
        middles = [*map(column.parse, distribution.quantile((below[1:] + below[:-1]) / 2))]
        values = axis_values(column, np.clip(middles, edges[:-1] + column.resolution, edges[1:]))
        return [*map(json_value, ends)], [*map(json_value, values)]

    def _joint(
        self, columns: list[Column], distributions: Sequence[Any], given: dict[str, Any]
    ) -> dict[str, Any]:
        """Probabilities of the cells of a grid over two columns, by the chain rule in both orders."""
        grid = [self._ranges(*pair) for pair in zip(columns, distributions, strict=True)]
        keys, by_key = [self.keys[column.name] for column in columns], self.by_key(given)
        end = time.monotonic() + self.limits.seconds

        def probabilities(k: int, distribution: Any) -> np.ndarray:
            if time.monotonic() > end:
                raise TooMuch(
                    f"the density of two columns takes longer than {self.limits.seconds:g} s: ask about one"
                )
            ends, values = grid[k]
            return np.diff(distribution.cdf(ends)) if ends else np.asarray(distribution.pmf(values))

        def chain_rule(first: int, second: int) -> np.ndarray:
            lines = [
                probabilities(second, self.model.conditional(keys[second], {**by_key, keys[first]: value}))
                for value in grid[first][1]
            ]
            return probabilities(first, distributions[first])[:, None] * np.maximum(lines, 0)

        p, q = chain_rule(0, 1), chain_rule(1, 0).T
        distance = 0.5 * float(np.abs(p / max(p.sum(), 1e-300) - q / max(q.sum(), 1e-300)).sum())
        badge = {"kind": "orderings", "text": "exact for 2 orderings", "spread": distance}
        points: list[Any] = []
        if self.table is not None:
            rows = self.rows_near(given).drop_nulls([column.name for column in columns])
            rows = rows.sample(min(POINTS, rows.height), seed=0)
            sides = [list(rows[c.name] if c.n_levels else self.numbers(rows, c)) for c in columns]
            points = [[json_value(v) for v in pair] for pair in zip(*sides, strict=True)]
        x_at, y_at = (
            [*map(column.parse, ends)] or values for (ends, values), column in zip(grid, columns, strict=True)
        )
        out = {"x_at": x_at, "y_at": y_at, "p": ((p + q) / 2).tolist(), "points": points}
        return out | {"badge": badge, "code": self.code.joint(keys, by_key, grid)}

    def spread(self, asked: Any, given: Any = NOTHING) -> dict[str, Any]:
        """How far orderings disagree about the distribution of a column."""
        if not isinstance(asked, list) or len(asked) != 1:
            raise ValueError("asked must be a list of one column name")
        column, (known, _) = self.column(asked[0]), self.given(given)
        k = int(np.clip(200 // (len(known) + 1), 1, ORDERINGS))
        if not self.mixed or not known:
            return {"spread": None, "k": k}
        spread = self.model.conditional(column.name, known).disagreement(k)
        code = f"{self.code.conditional(column.name, known)}spread = answer.disagreement({k})\n"
        return {"spread": spread, "k": k, "code": code}
