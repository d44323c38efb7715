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
from pynade.tables.column import DAY, Column
from pynade.tables.frames import check_columns, native_frame

BINS, GRID = 48, 28  # ranges of a histogram, and of each axis of a joint density
DRAWS = 1000  # of an estimate with particles
ORDERINGS = 8  # at most, that are compared
POINTS = 400  # real rows shown over a joint density
WARNINGS = threading.Lock()  # filters of warnings belong to the whole process
NEAR = 0.1  # share of the rows on each side that count as near to a given number


@contextmanager
def caught_warnings(model: Any) -> Iterator[list[Any]]:
    """What a model with a fixed ordering warns of; others do not, and need not wait for each other."""
    if not hasattr(model.model_, "order"):
        yield []
        return
    with WARNINGS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield caught


class Draws:
    """A distribution known by draws only; the functions are those of a conditional."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.sort(values.astype(np.float64))

    def pmf(self, levels: Sequence[Any]) -> np.ndarray:
        """Share of each level among the draws."""
        return np.array([(self.values == level).mean() for level in levels])

    def cdf(self, x: Any) -> np.ndarray:
        """Share of draws that are at most x, for each x."""
        return np.searchsorted(self.values, np.asarray(x, float), side="right") / len(self.values)

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles of the draws."""
        return np.quantile(self.values, q, method="inverted_cdf")

    def mean(self) -> float:
        """Mean of the draws."""
        return float(self.values.mean())


def json_value(value: Any) -> Any:
    """A cell as JSON can hold it: dates as text, NaN as null."""
    value = value.item() if isinstance(value, np.generic) and value.dtype.kind != "M" else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return text.removesuffix("T00:00:00")


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
        n, named = model.model_.n_variables, list(getattr(model, "feature_names_in_", ()))
        if self.mixed:
            self.columns: list[Column] = list(model.schema_.columns)
        else:
            cells, names = model._cells(), named or [f"x{i + 1}" for i in range(n)]
            form: dict[str, Any] = {"kind": "real"}
            if cells.kind == "binary":
                form = {"kind": "binary", "levels": (0, 1)}
                if cells.white > 1:
                    form = {"kind": "integer", "resolution": 1.0, "low": 0.0, "high": float(cells.white)}
            self.columns = [Column(str(name), **form) for name in names]
        self.nameless = not (self.mixed or named)
        self.keys: dict[str, Any] = {
            c.name: i if self.nameless else c.name for i, c in enumerate(self.columns)
        }
        self.by_name = {c.name: c for c in self.columns}
        shape = image_shape or getattr(model, "image_shape", None)
        if shape is None and isinstance(model, ImageEstimator):
            shape = image_sides(None, n)
        self.shape = None if shape is None or math.prod(shape) != n else [*map(int, shape)][-3:]
        self.table: Any = None
        if data is not None:
            self.table = self.frame(data)
            check_columns(self.table.columns, [*self.by_name])
        self.white = int(model._cells().white)
        self.order: Any = None  # rows of the data sorted by log p, once they were asked for
        self.scored: Any = None  # comparisons with simpler models, likewise
        self.costs = Costs(limits, n)

    def frame(self, data: Any) -> Any:
        """A table as a polars frame that has the model's columns."""
        names = list(self.model.schema_.order) if self.mixed else list(self.by_name)
        data = data.reshape(len(data), -1) if isinstance(data, np.ndarray) else data
        frame = native_frame(data, names)[0].to_polars()
        if self.nameless and frame.width == len(names):  # columns are matched by their places
            frame.columns = names
        return frame

    def rows_of(self, frame: Any) -> Any:
        """A table as the model takes it: an array where it was fitted without column names."""
        return frame.to_numpy().astype(np.float64) if self.nameless else frame

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
        found, notes = {}, []
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
            else:
                if not math.isfinite(parsed):
                    raise ValueError(f"column {name!r:.60} is given as {value!r:.20}, which is no number")
                value = int(parsed) if parsed.is_integer() and abs(parsed) < 2**53 else parsed
            found[name] = value
            if self.mixed and math.isnan(float(column.encode([parsed])[0][0])):
                notes.append(f"{name} = {value} is outside of the range in training, so it counts as unknown")
        return found, notes

    def keyed(self, given: dict[str, Any]) -> dict[Any, Any]:
        """Given values by the keys that the model takes: names, or numbers of columns without names."""
        return {self.keys[name]: value for name, value in given.items()}

    def near(self, given: dict[str, Any]) -> Any:
        """Rows of the data near to what is given: the same levels, numbers within a tenth of the ranks."""
        table = self.table
        for name, value in given.items():
            column, cells = self.by_name[name], table[name]
            if column.n_levels:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                table = table.filter(cells.cast(polars.String) == text)
                continue
            numbers, known = self.numbers(table, column), self.numbers(self.table, column)
            known = np.sort(known[~np.isnan(known)])
            if len(known):
                rank = np.searchsorted(known, [column.parse(value)]).item() / len(known)
                low, high = np.quantile(known, np.clip([rank - NEAR, rank + NEAR], 0, 1))
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
            "orderings": self.k,
            "sorts_rows": not (self.table is None or isinstance(self.model, ImageEstimator)),
            "limits": {"rows": self.limits.rows, "bytes": self.limits.bytes, "seconds": self.limits.seconds},
            "code": self.code.model(),
        }

    @property
    def k(self) -> int | None:
        """Orderings that a score averages; None of a model that needs none."""
        return len(self.model.orderings()) if self.orderless else None

    def score_badge(self, log_p: Any, k: int | None = None) -> dict[str, Any]:
        """How log p of rows, along k orderings (None: the model's own), is known: an RBM may estimate it."""
        summary = self.model.summary(log_p)
        if not summary.exact:
            error = summary.mc_stderr
            return {"kind": "estimate", "text": f"estimate ± {error:.3f}", "error": error}
        return self.exact_badge(k)

    def exact_badge(self, k: int | None = None) -> dict[str, Any]:
        """Of an exact log p along k orderings (None: the model's own)."""
        if self.k is None:
            return {"kind": "exact", "text": "exact"}
        k = k or self.k
        return {"kind": "orderings", "text": f"exact for {k} ordering{'s' * (k > 1)}"}

    def spread_of_scores(self, rows: Any) -> np.ndarray:
        """Standard deviation of log p of rows, which may have gaps, over 8 orderings; NaN of other models."""
        if not self.orderless:
            return np.full(len(rows), math.nan)
        return np.std(
            [self.model.score_samples(rows, orderings=one) for one in self.model.orderings(ORDERINGS)], 0
        )

    def _answer(
        self, name: str, given: dict[str, Any], caught: list[Any] | None = None
    ) -> tuple[Any, dict[str, Any], str]:
        """The distribution of a column given others, how it is known, and code that makes it.

        Warnings of the trial, which draws less, are taken out of those that were caught.
        """
        caught = [] if caught is None else caught
        before = len(caught)
        model, key = self.model, self.keys[name]
        try:
            answer, exact = model.conditional(key, self.keyed(given)), {"kind": "exact", "text": "exact"}
            return answer, exact, self.code.conditional(key, self.keyed(given))
        except ValueError:
            if not hasattr(model.model_, "order"):
                raise
        names = [*self.by_name]
        place, known = names.index(name), {names.index(other): value for other, value in given.items()}
        if given:
            row = np.full((1, len(names)), np.nan)
            row[0, [*known]] = [*known.values()]
            n = self.costs.affordable(
                lambda n: model.impute(row, n=n, random_state=0, particles=4 * n), DRAWS, 8
            )
            del caught[before:]
            values = np.asarray(model.impute(row, n=n, random_state=0, particles=4 * n))[:, 0, place]
        else:
            n = self.costs.affordable(lambda n: model.sample(n, 0), DRAWS, 8)
            values = np.asarray(model.sample(n, 0))[:, place]
        badge = {"kind": "estimate", "text": f"estimate from {n:,} draws", "error": 0.5 / math.sqrt(n)}
        return Draws(values), badge, self.code.draws(place, known, len(names), n)

    def _moment(self, column: Column, number: float) -> Any:
        """A number of the axis of a column as its distributions take it."""
        return np.datetime64(round(number), "us") if self.mixed and column.kind == "date" else number

    @staticmethod
    def _number(value: Any) -> float:
        return float(
            value.astype("datetime64[us]").astype(np.int64) if isinstance(value, np.datetime64) else value
        )

    def conditional(self, asked: Any, given: Any) -> dict[str, Any]:
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
        found = [self._summary(column, known) for column in columns]
        if len(found) == 1:
            return found[0] | {"notes": notes + found[0]["notes"]}
        return {"columns": found, "notes": notes} | self._joint(columns, known)

    def _summary(self, column: Column, given: dict[str, Any]) -> dict[str, Any]:
        with caught_warnings(self.model) as caught:
            answer, badge, code = self._answer(column.name, given, caught)
            marginal = answer if not given else self._answer(column.name, {})[0]
        out: dict[str, Any] = {"column": column.name, "kind": column.kind, "badge": badge, "code": code}
        out |= {"notes": [str(w.message) for w in caught], "n_given": len(given)}
        if column.n_levels:
            levels = [*column.levels, *column.known_rare]
            p, before = (np.asarray(each.pmf(levels), float) for each in (answer, marginal))
            out |= {"levels": [*map(json_value, levels)], "p": p.tolist(), "marginal": before.tolist()}
            return out | {"mode": json_value(levels[int(p.argmax())])}
        ends = np.array(
            [[self._number(x) for x in each.quantile([0.005, 0.995])] for each in (marginal, answer)]
        )
        edges = column.bins(float(ends[:, 0].min()), float(ends[:, 1].max()), BINS)
        places = [self._moment(column, edge) for edge in edges]
        for label, each in (("p", answer), ("marginal", marginal)):
            out[label] = np.maximum(np.diff(np.asarray(each.cdf(places), float)), 0).tolist()
        out["step"] = column.resolution
        low, median, high = answer.quantile([0.05, 0.5, 0.95])
        out |= {"edges": edges.tolist(), "at": [self._number(x) for x in (low, median, high)]}
        out |= {"median": json_value(median), "low": json_value(low), "high": json_value(high)}
        out |= {"middle": self._number(marginal.quantile([0.5])[0])}
        return out | ({} if column.kind == "date" else {"mean": json_value(answer.mean())})

    def _parts(self, column: Column, given: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Ends of ranges across the distribution of a column, and a value that stands for each range.

        It is the middle one by probability. Levels stand for themselves and have no ends.
        """
        if column.n_levels:
            return [], list(column.levels)[:GRID]
        answer = self._answer(column.name, given)[0]
        low, high = (self._number(x) for x in answer.quantile([0.01, 0.99]))
        edges = column.bins(low, high, GRID)
        ends = [self._moment(column, edge) for edge in edges]
        below = np.asarray(answer.cdf(ends), float)
        middles = [self._number(x) for x in answer.quantile((below[1:] + below[:-1]) / 2)]
        middles = np.clip(middles, edges[:-1] + column.resolution, edges[1:]).tolist()
        values = [self._moment(column, number) for number in middles]
        as_given = json_value if column.kind == "date" else float
        return [*map(as_given, ends)], [*map(as_given, values)]

    def _joint(self, columns: list[Column], given: dict[str, Any]) -> dict[str, Any]:
        """Probabilities of the cells of a grid over two columns, by the chain rule in both orders."""
        self._refuse_estimates(columns[0], given)
        parts = [self._parts(column, given) for column in columns]
        keys, model, known = [self.keys[c.name] for c in columns], self.model, self.keyed(given)
        end = time.monotonic() + self.limits.seconds

        def of(k: int, answer: Any) -> np.ndarray:
            if time.monotonic() > end:
                raise TooMuch(
                    f"the density of two columns takes longer than {self.limits.seconds:g} s: ask about one"
                )
            ends, values = parts[k]
            return np.diff(answer.cdf(ends)) if ends else np.asarray(answer.pmf(values))

        def along(first: int, second: int) -> np.ndarray:
            key, other = keys[first], keys[second]
            each = [of(second, model.conditional(other, {**known, key: v})) for v in parts[first][1]]
            return of(first, model.conditional(key, known))[:, None] * np.maximum(each, 0)

        one, two = along(0, 1), along(1, 0).T
        distance = 0.5 * float(np.abs(one / max(one.sum(), 1e-300) - two / max(two.sum(), 1e-300)).sum())
        badge = {"kind": "orderings", "text": "exact for 2 orderings", "spread": distance}
        points: list[Any] = []
        if self.table is not None:
            rows = self.near(given).drop_nulls([c.name for c in columns])
            rows = rows.sample(min(POINTS, rows.height), seed=0)
            sides = [list(rows[c.name] if c.n_levels else self.numbers(rows, c)) for c in columns]
            points = [[json_value(v) for v in pair] for pair in zip(*sides, strict=True)]
        axes = [
            [column.parse(end) for end in ends] or values
            for (ends, values), column in zip(parts, columns, strict=True)
        ]
        out = {"x_at": axes[0], "y_at": axes[1], "p": ((one + two) / 2).tolist(), "points": points}
        return out | {"badge": badge, "code": self.code.joint(keys, known, parts)}

    def _refuse_estimates(self, column: Column, given: dict[str, Any]) -> None:
        if self._answer(column.name, given)[1]["kind"] == "estimate":
            raise ValueError("this model has a fixed ordering: ask about one column at a time")

    def spread(self, asked: Any, given: Any) -> dict[str, Any]:
        """How far orderings disagree about the distribution of a column."""
        if not isinstance(asked, list) or len(asked) != 1:
            raise ValueError("asked must be a list of one column name")
        column, (known, _) = self.column(asked[0]), self.given(given)
        k = int(np.clip(200 // (len(known) + 1), 1, ORDERINGS))
        if not self.mixed or not known:
            return {"spread": None, "k": k}
        answer = self.model.conditional(column.name, known)
        code = self.code.conditional(column.name, known)
        return {
            "spread": answer.disagreement(k),
            "k": k,
            "code": f"{code}spread = answer.disagreement({k})\n",
        }
