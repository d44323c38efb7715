"""Answers about columns of a mixed table, in the user's own units: the distribution of one or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.estimators.modules import families, plots, queries, torch
from pynade.tables.column import Column
from pynade.tables.frames import native_frame

if TYPE_CHECKING:
    from pynade.estimators.table_questions import TableQuestions


def lacks(column: Column, what: str) -> ValueError:
    """The error about a question that makes no sense for the kind of a column."""
    return ValueError(f"column {column.name!r} is {column.kind}; it has no {what}")


def shown(column: Column, values: np.ndarray) -> np.ndarray:
    """Values of a column as users see them: dates as such."""
    return values.astype("datetime64[us]") if column.kind == "date" else values


class ColumnConditional:
    """The distribution of one column given values of others.

    It is exact for every ordering that puts the given columns first and this one next. `disagreement` says
    how far other orderings of the same columns are from it.

    A value that no training row had (an unseen level, a number out of range) has the probability that
    `pynade.tables.Column` describes; `cdf`, `quantile`, `mean` and `sample` are of the values in range.
    """

    def __init__(
        self, model: TableQuestions, i: int, given: Mapping[int, Any], inner: families.Conditional
    ) -> None:
        self.model, self.i, self.given, self.inner = model, i, given, inner
        self.column: Column = model.schema_.columns[i]
        self.name = self.column.name

    def probabilities(self) -> dict[Any, float]:
        """Probability of each level, of a column that has levels; rare ones with their share."""
        if not self.column.n_levels:
            raise lacks(self.column, "levels (see quantile, pdf)")
        known = [*self.column.levels, *self.column.known_rare]
        return dict(zip(known, np.exp(self.log_prob(known)).tolist(), strict=True))

    def log_prob(self, value: Any, density: bool = False) -> Any:
        """Log-probability of a value (levels, values on a lattice) or log-density (real), at each value.

        Args:
            value: one value or several.
            density: of a lattice, divide the probability by its resolution.
        """
        values = [self.column.parse(v) for v in (value if np.ndim(value) else [value])]
        codes, offsets = self.column.encode(values, density)
        known = ~np.isnan(codes)
        log_p = np.where(known, self.inner.log_prob(np.where(known, codes, 0.0)), 0.0) + offsets
        return log_p if np.ndim(value) else float(log_p[0])

    def pmf(self, value: Any) -> Any:
        """Probability of each value (of a real column, density).

        Args:
            value: one value or several, in the units of the data.
        """
        p = np.exp(self.log_prob(value))
        return p if isinstance(p, np.ndarray) else float(p)

    def pdf(self, value: Any) -> Any:
        """Density at each value; of a lattice, its probability over its resolution.

        Args:
            value: one value or several, in the units of the data.
        """
        p = np.exp(self.log_prob(value, density=True))
        return p if isinstance(p, np.ndarray) else float(p)

    def cdf(self, value: Any) -> Any:
        """P(X <= value), of a column with an order.

        Args:
            value: one value or several, in the units of the data.
        """
        self._ordered("cdf")
        values = [self.column.parse(v) for v in (value if np.ndim(value) else [value])]
        codes = self.column.encode(values)[0]
        p = self.inner.cdf(np.nan_to_num(codes))
        middle = self.column.decode(np.array([self.inner.quantile(0.5)]))[0]
        for k in np.flatnonzero(np.isnan(codes)):  # below or above the range
            p[k] = float(values[k] > middle)
        return p if np.ndim(value) else float(p[0])

    def quantile(self, q: Any) -> Any:
        """Smallest value whose cdf is at least q, for each probability q; of a column with an order.

        Args:
            q: a probability or several.
        """
        self._ordered("quantile")
        values = self._values(np.atleast_1d(self.inner.quantile(q)))
        return values if np.ndim(q) else values[0]

    def median(self) -> Any:
        """The value in the middle."""
        return self.quantile(0.5)

    def interval(self, level: float = 0.9) -> tuple[Any, Any]:
        """Two values between which the column lies with this probability, as much below as above.

        Args:
            level: how much probability lies within.
        """
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval is between 0 and 1, not {level}")
        low, high = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return low, high

    def mean(self) -> float:
        """Expected value, of a column of numbers."""
        if not self.column.numeric:
            raise lacks(self.column, "mean (see mode, probabilities)")
        if self.column.n_levels:
            values, weights = map(np.array, zip(*self.probabilities().items(), strict=True))
        else:
            family: Any = self.inner.family
            codes, weights = (t[0].double().numpy() for t in family.nodes(self.inner.eta, self.inner.i))
            values, weights = self.column.decode(codes[weights > 0]), weights[weights > 0]
        return float((values.astype(np.float64) * weights).sum() / weights.sum())

    def mode(self) -> Any:
        """The likeliest level; of numbers, the likeliest of many values across the range."""
        if self.column.n_levels:
            found = self.probabilities()
            return max(found, key=lambda level: found[level])
        values = self._values(np.unique(self.inner.quantile(np.linspace(0.005, 0.995, 199))))
        return values[int(np.argmax(self.log_prob(values)))]

    def sample(self, n: int = 1, random_state: Any = None) -> Any:
        """n draws, in the units of the data.

        Args:
            n: how many.
            random_state: seed of the draws.
        """
        seed = self.model._generator(random_state).initial_seed()
        codes = self.inner.sample(n, torch.Generator().manual_seed(seed)).double().numpy()
        return self._values(codes, np.random.default_rng(seed))

    def disagreement(self, k: int = 8) -> float:
        """How far orderings disagree: the largest total variation distance from this distribution.

        0 means that k orderings of all these columns give it by Bayes' rule, 1 that one gives an entirely
        different one.

        Args:
            k: how many orderings.
        """
        if not self.given:
            return 0.0
        codes = np.arange(self.column.n_levels, dtype=float)
        if not self.column.n_levels:
            codes = np.unique(self.inner.quantile(np.linspace(0.01, 0.99, 33)))
        model, x = self.model._ready(), self.model._row(self.model._given(self.given)).repeat(len(codes), 1)
        given, at = ~torch.isnan(x), torch.tensor([self.i], device=x.device)
        x[:, self.i] = torch.as_tensor(codes)
        with torch.no_grad():
            eta = model.conditionals(x, given)[:, self.i]
            direct = model.family.log_prob(x[:, self.i], eta, at).softmax(0)
            known, orders = ~torch.isnan(x), self.model.orderings(k)
            others = [queries.marginal_log_prob(model, x, known, orderings=one).softmax(0) for one in orders]
        return max(float(0.5 * (other - direct).abs().sum()) for other in others)

    def plot(self, ax: Any = None) -> Any:
        """Draw the distribution on Matplotlib axes: bars of levels, else a curve with median and interval.

        Args:
            ax: Matplotlib axes; new ones when left out.
        """
        return plots.conditional(self, ax)

    def _ordered(self, what: str) -> None:
        column = self.column
        if column.n_levels and (column.rare or not (column.numeric or column.kind == "ordinal")):
            raise ValueError(f"column {self.name!r} is {column.kind} without an order, so it has no {what}")

    def _values(self, codes: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        return shown(self.column, self.column.decode(codes, rng))

    def _likeliest(self, n: int) -> dict[Any, float]:
        return dict(sorted(self.probabilities().items(), key=lambda item: -item[1])[:n])

    def __repr__(self) -> str:
        if self.column.n_levels:
            text = ", ".join(f"{level}: {p:.3f}" for level, p in self._likeliest(6).items())
        else:
            low, high = self.interval()
            text = f"median {self.median()}, 90 % between {low} and {high}"
        return f"<{self.name} | {len(self.given)} given: {text}>"


class JointConditional:
    """The joint distribution of several columns given values of others; answers use the model's orderings."""

    def __init__(self, model: TableQuestions, asked: Sequence[str | int], given: Mapping[Any, Any]) -> None:
        self.model, self.given = model, dict(given)
        self.places, self._known = model._asked(asked, given)
        self.columns = [model.schema_.columns[i] for i in self.places]
        self.names = [column.name for column in self.columns]

    def log_prob(self, values: Mapping[str, Any]) -> float:
        """Log-probability (with reals: log-density) of values of all these columns together.

        Args:
            values: a value of each column, by name.
        """
        missing = [name for name in self.names if name not in values]
        if missing:
            raise ValueError(f"give a value of every column that is asked about; {missing[0]!r} has none")
        codes = self._known | self.model._given({name: values[name] for name in self.names})
        offset = sum(float(c.encode([c.parse(values[c.name])])[1][0]) for c in self.columns)
        asked, given = ([i for i in some if codes[i] == codes[i]] for some in (self.places, self._known))
        if not asked:
            return offset
        model, x, orders = self.model._ready(), self.model._row(codes), self.model.orderings()
        with torch.no_grad():
            log_p = queries.conditional_log_prob(model, x, asked, given, orderings=orders)
        return float(log_p) + offset

    def sample(self, n: int = 1, random_state: Any = None) -> Any:
        """n joint draws, as a table of these columns.

        Args:
            n: how many.
            random_state: seed of the draws.
        """
        drawn = self.model.sample(n, random_state, given=self.given or None)
        if isinstance(drawn, np.ndarray):
            return drawn[:, self.places]
        return native_frame(drawn)[0].select(self.names).to_native()

    def plot(self, ax: Any = None, n: int = 500, random_state: Any = 0) -> Any:
        """Draw n joint draws on Matplotlib axes: two columns as points, more of them in pairs.

        Args:
            ax: Matplotlib axes for two columns; new ones when left out.
            n: how many draws.
            random_state: their seed.
        """
        drawn = self.model.sample(n, random_state, given=self.given or None)
        table = plots.drawing.shown_tables([drawn], self.model.schema_)[0]
        return plots.drawing.draw_joint([table[i] for i in self.places], ax)
