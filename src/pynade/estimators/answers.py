"""Conditional distributions of one or of several columns of a mixed table, in the units of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.estimators.modules import families, plots, queries, torch
from pynade.tables.column import Column
from pynade.tables.frames import native_frame

if TYPE_CHECKING:
    from pynade.estimators.table_questions import TableQuestions


def unsupported_error(column: Column, what: str) -> ValueError:
    """The ValueError for a query that the kind of a column does not support."""
    return ValueError(f"column {column.name!r} is {column.kind}; it has no {what}")


def to_user_values(column: Column, values: np.ndarray) -> np.ndarray:
    """Values of a column in the type of the user's table: datetime64 for a column of dates."""
    return values.astype("datetime64[us]") if column.kind == "date" else values


class ColumnConditional:
    """The distribution of one column given values of others.

    It is exact for every ordering that begins with the given columns, followed by this one. `disagreement`
    measures how much the distribution differs under other orderings of the same columns.

    The probability of a value that was not in the training rows (an unseen level, a number out of range) is
    defined in `pynade.tables.Column`; `cdf`, `quantile`, `mean` and `sample` are for values in range.
    """

    def __init__(
        self, model: TableQuestions, i: int, given: Mapping[int, Any], inner: families.Conditional
    ) -> None:
        self.model, self.i, self.given, self.inner = model, i, given, inner
        self.column: Column = model.schema_.columns[i]
        self.name = self.column.name

    def probabilities(self) -> dict[Any, float]:
        """Probability of each level of a column with levels, rare levels included."""
        if not self.column.n_levels:
            raise unsupported_error(self.column, "levels (see quantile, pdf)")
        levels = [*self.column.levels, *self.column.known_rare]
        return dict(zip(levels, np.exp(self.log_prob(levels)).tolist(), strict=True))

    def log_prob(self, value: Any, density: bool = False) -> Any:
        """Log-probability (levels, numbers on a lattice) or log-density (real numbers) at each value.

        Args:
            value: one value or several.
            density: for numbers on a lattice, divide the probability by the resolution.
        """
        codes, offsets = self.column.encode(self._parse(value), density)
        known = ~np.isnan(codes)
        log_p = np.where(known, self.inner.log_prob(np.where(known, codes, 0.0)), 0.0) + offsets
        return log_p if np.ndim(value) else float(log_p[0])

    def pmf(self, value: Any) -> Any:
        """Probability of each value (density, for a real column).

        Args:
            value: one value or several, in the units of the data.
        """
        p = np.exp(self.log_prob(value))
        return p if isinstance(p, np.ndarray) else float(p)

    def pdf(self, value: Any) -> Any:
        """Density at each value; for numbers on a lattice, probability divided by resolution.

        Args:
            value: one value or several, in the units of the data.
        """
        p = np.exp(self.log_prob(value, density=True))
        return p if isinstance(p, np.ndarray) else float(p)

    def cdf(self, value: Any) -> Any:
        """P(X <= value), for a column whose values have an order.

        Args:
            value: one value or several, in the units of the data.
        """
        self._check_order("cdf")
        values = self._parse(value)
        codes = self.column.encode(values)[0]
        p = self.inner.cdf(np.nan_to_num(codes))
        middle = self.column.decode(np.array([self.inner.quantile(0.5)]))[0]
        for k in np.flatnonzero(np.isnan(codes)):  # below or above the range
            p[k] = float(values[k] > middle)
        return p if np.ndim(value) else float(p[0])

    def quantile(self, q: Any) -> Any:
        """Smallest value whose cdf is at least q, for each probability q; needs values with an order.

        Args:
            q: one probability or several.
        """
        self._check_order("quantile")
        values = self._values(np.atleast_1d(self.inner.quantile(q)))
        return values if np.ndim(q) else values[0]

    def median(self) -> Any:
        """The quantile at 0.5."""
        return self.quantile(0.5)

    def interval(self, level: float = 0.9) -> tuple[Any, Any]:
        """The central interval of this probability: its lower and its upper end.

        Args:
            level: probability of the interval.
        """
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval is between 0 and 1, not {level}")
        low, high = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return low, high

    def mean(self) -> float:
        """Expected value of a column of numbers."""
        if not self.column.numeric:
            raise unsupported_error(self.column, "mean (see mode, probabilities)")
        if self.column.n_levels:
            values, weights = map(np.array, zip(*self.probabilities().items(), strict=True))
        else:
            family: Any = self.inner.family
            codes, weights = (t[0].double().numpy() for t in family.nodes(self.inner.eta, self.inner.i))
            values, weights = self.column.decode(codes[weights > 0]), weights[weights > 0]
        return float((values.astype(np.float64) * weights).sum() / weights.sum())

    def mode(self) -> Any:
        """The likeliest level; for numbers, the likeliest of 199 quantiles."""
        if self.column.n_levels:
            probabilities = self.probabilities()
            return max(probabilities, key=probabilities.__getitem__)
        values = self._values(np.unique(self.inner.quantile(np.linspace(0.005, 0.995, 199))))
        return values[int(np.argmax(self.log_prob(values)))]

    def sample(self, n: int = 1, random_state: Any = None) -> Any:
        """n random draws, in the units of the data.

        Args:
            n: number of draws.
            random_state: seed of the draws.
        """
        seed = self.model._generator(random_state).initial_seed()
        codes = self.inner.sample(n, torch.Generator().manual_seed(seed)).double().numpy()
        return self._values(codes, np.random.default_rng(seed))

    def disagreement(self, k: int = 8) -> float:
        """Largest total variation distance of this distribution from those of k orderings of the columns.

        Each ordering of the given columns and this one yields a conditional distribution by Bayes' rule.
        0 means that all are equal to this one, 1 that one of them has no overlap with it.

        Args:
            k: number of orderings.
        """
        if not self.given:
            return 0.0
        codes = np.arange(self.column.n_levels, dtype=float)
        if not self.column.n_levels:
            codes = np.unique(self.inner.quantile(np.linspace(0.01, 0.99, 33)))
        model, row = self.model._get_model(), self.model._row(self.model._parse_given(self.given))
        x = row.repeat(len(codes), 1)
        given, i = ~torch.isnan(x), torch.tensor([self.i], device=x.device)
        x[:, self.i] = torch.as_tensor(codes)
        with torch.no_grad():
            eta = model.conditionals(x, given)[:, self.i]
            direct = model.family.log_prob(x[:, self.i], eta, i).softmax(0)
            joint, orders = ~torch.isnan(x), self.model.orderings(k)
            others = [queries.marginal_log_prob(model, x, joint, orderings=order) for order in orders]
        return max(float(0.5 * (other.softmax(0) - direct).abs().sum()) for other in others)

    def plot(self, ax: Any = None) -> Any:
        """Plot the distribution: bars for levels, else a curve with median and interval.

        Args:
            ax: Matplotlib axes; None creates new ones.
        """
        return plots.conditional(self, ax)

    def _check_order(self, what: str) -> None:
        column = self.column
        if column.n_levels and (column.rare or not (column.numeric or column.kind == "ordinal")):
            raise ValueError(f"column {self.name!r} is {column.kind} without an order, so it has no {what}")

    def _parse(self, value: Any) -> list[Any]:
        return [self.column.parse(v) for v in (value if np.ndim(value) else [value])]

    def _values(self, codes: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        return to_user_values(self.column, self.column.decode(codes, rng))

    def __repr__(self) -> str:
        if self.column.n_levels:
            likeliest = sorted(self.probabilities().items(), key=lambda item: -item[1])[:6]
            text = ", ".join(f"{level}: {p:.3f}" for level, p in likeliest)
        else:
            low, high = self.interval()
            text = f"median {self.median()}, 90 % between {low} and {high}"
        return f"<{self.name} | {len(self.given)} given: {text}>"


class JointConditional:
    """The joint distribution of several columns given values of others, under the model's orderings."""

    def __init__(self, model: TableQuestions, columns: Sequence[str | int], given: Mapping[Any, Any]) -> None:
        self.model, self.given = model, dict(given)
        self.indexes, self._given = model._parse_query(columns, given)
        self.columns = [model.schema_.columns[i] for i in self.indexes]
        self.names = [column.name for column in self.columns]

    def log_prob(self, values: Mapping[str, Any]) -> float:
        """Joint log-probability of values of these columns (log-density, if any of them is real).

        Args:
            values: a value of each column, by name.
        """
        missing = [name for name in self.names if name not in values]
        if missing:
            raise ValueError(f"give a value of every column of the query; {missing[0]!r} has none")
        codes = self._given | self.model._parse_given({name: values[name] for name in self.names})
        offset = sum(float(c.encode([c.parse(values[c.name])])[1][0]) for c in self.columns)
        columns, given = ([i for i in part if codes[i] == codes[i]] for part in (self.indexes, self._given))
        if not columns:
            return offset
        model, x, orders = self.model._get_model(), self.model._row(codes), self.model.orderings()
        with torch.no_grad():
            log_p = queries.conditional_log_prob(model, x, columns, given, orderings=orders)
        return float(log_p) + offset

    def sample(self, n: int = 1, random_state: Any = None) -> Any:
        """n joint draws, as a table of these columns.

        Args:
            n: number of draws.
            random_state: seed of the draws.
        """
        rows = self.model.sample(n, random_state, given=self.given or None)
        if isinstance(rows, np.ndarray):
            return rows[:, self.indexes]
        return native_frame(rows)[0].select(self.names).to_native()

    def plot(self, ax: Any = None, n: int = 500, random_state: Any = 0) -> Any:
        """Scatter plot of n joint draws: two columns in one plot, more columns in pairs.

        Args:
            ax: Matplotlib axes for two columns; None creates new ones.
            n: number of draws.
            random_state: seed of the draws.
        """
        rows = self.model.sample(n, random_state, given=self.given or None)
        table = plots.drawing.shown_tables([rows], self.model.schema_)[0]
        return plots.drawing.draw_joint([table[i] for i in self.indexes], ax)
