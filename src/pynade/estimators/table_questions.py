"""What may be asked of a fitted model of a mixed table, in the units of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from pynade.arguments import check_positive
from pynade.device import torch_device
from pynade.estimators.answers import ColumnConditional, JointConditional, lacks, shown
from pynade.estimators.modules import families, models, torch
from pynade.estimators.net import OrderlessEstimator
from pynade.estimators.questions import PARTICLES, has_large_weights
from pynade.tables.frames import build_frame, fill_cells, native_frame
from pynade.tables.schema import Schema

Given = Mapping[int | str, Any]
AT_ONCE = 4096  # rows of a question that takes one pass of the net for each
MEASURES = ("log_p", "p_value", "log_odds")  # of surprise
LISTED: dict[str, Any] = {"row": np.int64, "column": object, "value": object, "log_odds": float}
LISTED_TEXTS = ("value", "expected", "low", "high")
LISTED |= {"p_value": float, "surprise": float} | dict.fromkeys(LISTED_TEXTS[1:], object)  # of odd cells


class MixedCells:
    """Cells of a mixed table."""

    takes = "numbers, text, true or false, and dates"
    kind = "mixed"
    white = 1


@dataclass(kw_only=True, eq=False, repr=False)
class TableQuestions(TransformerMixin, OrderlessEstimator):
    """Abstract estimator of a mixed table: draws, gaps filled, conditionals, predictions, odd cells."""

    schema_: Schema = field(init=False)  # what the columns of the fitted table are

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def _cells(self) -> Any:
        return MixedCells()

    def _checked(self, X: Any, fitting: bool = False) -> Any:
        """A table, or one sentence; arrays must have two axes and the right number of columns."""
        if not fitting:
            check_is_fitted(self, "schema_")
        if issparse(X):
            raise TypeError("a sparse matrix was passed, but dense data is required")
        if isinstance(X, str | PathLike):
            advice = "pynade.stream answers questions about files"
            raise TypeError(f"expected a data frame or an array, not {fspath(X)!r}; {advice}")
        if hasattr(type(X), "columns") or isinstance(X, dict):
            return X.collect() if hasattr(type(X), "collect") else X  # a lazy frame
        rows = X if isinstance(X, np.ndarray) else np.asarray(X)
        if rows.ndim != 2:
            shape = f"expected a table (2D), got an array of shape {rows.shape}"
            raise ValueError(f"{shape}. Reshape your data: a single row is [row]")
        if 0 in rows.shape:
            what = "0 sample(s)" if rows.shape[0] == 0 else f"0 feature(s) (shape={rows.shape})"
            raise ValueError(f"Found array with {what} while a minimum of 1 is required.")
        if rows.dtype.kind == "f" and np.isinf(rows).any():
            raise ValueError(
                "the table holds inf (an infinite value); expected finite numbers or NaN for missing cells"
            )
        if not fitting and rows.shape[1] not in (len(self.schema_), len(self.schema_.order)):
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return X if isinstance(X, np.ndarray | list) else rows

    def _native(self, draws: Any, generator: torch.Generator | None = None) -> Any:
        rng = None if generator is None else np.random.default_rng(generator.initial_seed())
        return self.schema_.decode(draws.double().cpu().numpy(), rng)

    def _index(self, variable: int | str) -> int:
        check_is_fitted(self, "schema_")
        return self.schema_.index(variable)

    def _code(self, i: int, variable: int | str, value: Any) -> float:
        """The code of a given value; NaN where it is out of range."""
        column = self.schema_.columns[i]
        if value is None or value != value:
            raise ValueError(f"column {column.name!r} is given as missing; leave out what is not known")
        if (parsed := column.parse(value)) in (math.inf, -math.inf):
            raise ValueError(f"column {column.name!r} is given as {value!r}; expected a finite number")
        return float(column.encode([parsed])[0][0])

    def impute(
        self, X: Any, n: int | None = None, random_state: Any = None, particles: int = PARTICLES
    ) -> Any:
        """The table with its missing cells filled; what is observed stays as it is, other columns too.

        Args:
            X: a table with missing cells.
            n: None fills each cell with its best guess given the observed cells of its row: the likeliest
                level, the mean of a number, on its lattice. A number gives a list of that many tables (of
                arrays: one array with another axis), filled with joint draws (multiple imputation).
            random_state: seed of the draws.
            particles: not used; models with a fixed ordering need them.
        """
        X = self._checked(X)
        codes, offsets = self.schema_.encode(X)
        gaps = np.isnan(codes) & (offsets == 0)
        if n is None:
            return self._filled(X, gaps, self._best_guesses(codes, gaps))
        if n < 1:
            raise ValueError(f"the number of draws must be at least 1, not {n}")
        draws, rows = np.repeat(codes[None], n, axis=0), gaps.any(1)
        if rows.any():
            made = self._completions(codes[rows], n, random_state, particles)
            draws[:, rows] = made.double().numpy()
        rng = np.random.default_rng(self._generator(random_state).initial_seed())
        columns = [(int(i), self.schema_.columns[i]) for i in np.flatnonzero(gaps.any(0))]
        values = [{i: c.decode(one[gaps[:, i], i], rng) for i, c in columns} for one in draws]
        tables = [self._filled(X, gaps, each) for each in values]
        return np.stack(tables) if isinstance(tables[0], np.ndarray) else tables

    def transform(self, X: Any) -> Any:
        """The same as `impute`: fill the gaps with best guesses.

        Args:
            X: a table with the model's columns.
        """
        return self.impute(X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` gives: those of the table.

        Args:
            input_features: not used; scikit-learn passes it.
        """
        check_is_fitted(self, "schema_")
        return np.asarray(self.schema_.order, dtype=object)

    def _filled(self, X: Any, gaps: np.ndarray, values: Mapping[int, np.ndarray]) -> Any:
        """The user's table with values in the cells that are marked, by column."""
        schema = self.schema_
        places = {schema.names[i]: (np.flatnonzero(gaps[:, i]), some) for i, some in values.items()}
        return fill_cells(X, places, {c.name: c.dtype for c in schema.columns}, schema.order)

    def _passes(self, codes: np.ndarray, observed: np.ndarray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Parameters (B, D, P) of all columns given the observed ones, some rows at a time, in float32."""
        device, model = torch_device(self.device), self._copy()
        model = model if has_large_weights(model) else model.float()
        at_once = max(1, min(AT_ONCE, (1 << 24) // (model.net.n_params * model.n_variables)))
        for start in range(0, max(1, len(codes)), at_once):
            part = slice(start, start + at_once)
            x, known = (torch.as_tensor(a[part]).to(device) for a in (codes, observed))
            with torch.no_grad():
                eta = model.conditionals(x, known)
            models.density.refuse_nan(torch.isnan(eta).any())
            yield part, eta

    def _best_guesses(self, codes: np.ndarray, wanted: np.ndarray) -> dict[int, np.ndarray]:
        """Values to fill in for the marked cells given the observed ones, by column."""
        found: dict[int, list[np.ndarray]] = {int(i): [] for i in np.flatnonzero(wanted.any(0))}
        rows = np.flatnonzero(wanted.any(1))
        for part, eta in self._passes(codes[rows], ~np.isnan(codes[rows])):
            for i, values in found.items():
                values.append(self._guess(i, eta[:, i].cpu()[wanted[rows[part], i]]))
        return {i: np.concatenate(values) for i, values in found.items()}

    def _guess(self, i: int, eta: torch.Tensor) -> np.ndarray:
        """Best guesses of one column: its likeliest level, or its mean in the units of the table."""
        column, family, at = self.schema_.columns[i], self.model_.family, torch.tensor([i])
        if column.n_levels:
            if column.rare:  # a rare level has only its share of their code
                eta = eta.clone()
                eta[:, column.n_levels - 1] += math.log(column.rare[0][1])
            return column.decode(family.best_guess(eta, at).double().numpy())
        codes, weights = (t.double().numpy() for t in family.nodes(eta, at))
        if column.resolution:  # codes are proportional to values
            return column.decode(np.round((codes * weights).sum(-1)))
        mean = (column.decode(codes.ravel()).reshape(codes.shape) * weights).sum(-1)
        return np.round(mean).astype(np.int64) if column.kind in ("integer", "date") else mean

    def conditional(self, i: int | str | Sequence[str], given: Given | None = None) -> Any:
        """The distribution of a column given values of others, in the units of the table.

        Args:
            i: the column by name or index; a list of names asks for their joint distribution.
            given: values of known columns by name.
        """
        if not isinstance(i, str) and isinstance(i, Sequence):
            return JointConditional(self, i, {} if given is None else given)
        inner = super().conditional(i, given)
        values = {self._index(name): value for name, value in (given or {}).items()}
        return ColumnConditional(self, self._index(i), values, inner)

    def predict(self, X: Any, target: str | int) -> np.ndarray:
        """Best guess of a column for every row, from whatever else is known in it.

        Args:
            X: a table; the target column may be absent, and its values are not used.
            target: the column.
        """
        i = self._index(target)
        found = self._predicted(X, i, lambda eta: self._guess(i, eta))
        kinds = {type(v) for v in found.tolist()} if found.dtype == object else set()
        if len(kinds) == 1 and kinds <= {int, float, bool}:
            found = found.astype(kinds.pop())  # levels that are numbers
        return shown(self.schema_.columns[i], found)

    def predict_proba(self, X: Any, target: str | int) -> np.ndarray:
        """Probabilities (N, L) of the levels of a column for every row; `levels(target)` names them.

        Args:
            X: a table; the target column may be absent, and its values are not used.
            target: a column of levels.
        """
        i = self._index(target)
        column, family = self.schema_.columns[i], self.model_.family
        if not column.n_levels:
            raise lacks(column, "levels (see predict, conditional)")
        p = self._predicted(X, i, lambda eta: family._probabilities(eta, torch.tensor([i])).double().numpy())
        return p[:, : column.n_levels]

    def _predicted(self, X: Any, i: int, answer: Callable[[torch.Tensor], np.ndarray]) -> np.ndarray:
        """What `answer` makes of the parameters of a column, for every row; its own cells are not used."""
        codes = self.schema_.encode(self._checked(X), without=i)[0]
        return np.concatenate([answer(eta[:, i].cpu()) for _, eta in self._passes(codes, ~np.isnan(codes))])

    def levels(self, target: str | int) -> list[Any]:
        """The levels of a column, in the order of `predict_proba`; a last one stands for all rare ones.

        Args:
            target: name or index of a column.
        """
        column = self.schema_.columns[self._index(target)]
        return [*column.levels, *(["(rare)"] if column.rare else [])]

    def surprise(
        self, X: Any, top: int | None = None, measure: str = "log_p", folds: int | None = None
    ) -> Any:
        """-log p(cell | the other observed cells of its row), in nats, for every cell.

        Of a real column it is the density of the standardised value (of its logarithm or logit, if it is
        bounded). Missing cells have none (NaN).

        Args:
            X: a table.
            top: None gives a table of the same columns; a number gives that many cells, those of the largest
                `log_odds` first, as a table with row, column, value, log_odds, p_value, surprise, expected,
                low and high (the middle 90 %).
            measure: "log_p", as above; or one by which cells of all columns are comparable: "p_value", -log
                of the probability of a value at least as odd; "log_odds", how much likelier the value is as
                an error: log q(cell) - log p(cell | the others), where half of q is the distribution of the
                whole column (values that changed places), half a very broad one (wrong digits or units).
            folds: for a table from which this model has learned, errors included. The rows are divided into
                so many parts, and each is judged by a model of the other parts, fitted for it with the
                parameters of this one. None asks this model.
        """
        if measure not in MEASURES:
            raise ValueError(f"measure is one of {', '.join(MEASURES)}, not {measure!r}")
        X = self._checked(X)
        frame, kind = native_frame(X)
        judged = [(np.arange(len(frame)), X, self)] if folds is None else self._by_other_rows(X, folds)
        if top is not None:
            check_positive(top=top)
            lists = [model._odd_cells(part, top) | {"place": rows} for rows, part, model in judged]
            for cells in lists:
                cells["row"] = cells.pop("place")[cells["row"]]
            every = {name: np.concatenate([cells[name] for cells in lists]) for name in LISTED}
            first = np.argsort(-every["log_odds"], kind="stable")[:top]
            some = {name: values[first] for name, values in every.items()}
            return listed(some, "polars" if kind == "numpy" else kind)
        found = np.full((len(frame), len(self.schema_)), np.nan)
        for rows, part, model in judged:
            codes, offsets = model.schema_.encode(part)
            own = model._oddness(codes, offsets, [measure])[measure]
            for name, values in zip(model.schema_.names, own.T, strict=True):
                if name in self.schema_.names:
                    found[rows, self.schema_.names.index(name)] = values
        labels = {c.name: {"label": c.dtype.get("label", c.name)} for c in self.schema_.columns}
        made = build_frame(dict(zip(self.schema_.names, found.T, strict=True)), labels, kind)
        return made.set_axis(X.index, axis=0) if kind == "pandas" else made

    def _by_other_rows(self, X: Any, folds: int) -> Iterator[tuple[np.ndarray, Any, Any]]:
        """Row numbers and rows of each part of a table, and a model that is fitted to the other parts."""
        order: Any = self.schema_.order
        frame = native_frame(X, order if np.ndim(X) and np.shape(X)[1] == len(order) else self.schema_.names)[
            0
        ]
        self.schema_.encode(frame.head(1))  # refuses a table that lacks a column
        frame = frame.select([name for name in frame.columns if name in order])
        check_positive(folds=folds)
        if not 2 <= folds <= len(frame) // 2:
            wanted = f"at least 2 and at most half the number of rows ({len(frame) // 2})"
            raise ValueError(f"folds must be {wanted}, not {folds}")
        places = np.random.default_rng(self.seed_).permutation(len(frame))
        for rows in map(np.sort, np.array_split(places, folds)):
            part, others = (frame[some].to_native() for some in (rows, np.setdiff1d(places, rows)))
            yield rows, part, clone(self).fit(others)

    def _odd_cells(self, X: Any, top: int) -> dict[str, np.ndarray]:
        """The oddest cells as columns for `listed`, which numbers are not rounded and may be NaN."""
        codes, offsets = self.schema_.encode(X)
        log_p, p_value, log_odds = self._oddness(codes, offsets, MEASURES).values()
        lines: list[dict[str, Any]] = []
        places = np.argsort(-np.nan_to_num(log_odds.ravel(), nan=-math.inf), kind="stable")[:top]
        for row, i in (divmod(int(place), len(self.schema_)) for place in places):
            lines.append({"row": row, "column": self.schema_.names[i], "log_odds": log_odds[row, i]})
            lines[-1] |= {"p_value": math.exp(-p_value[row, i]), "surprise": log_p[row, i]}
            lines[-1] |= dict.fromkeys(LISTED_TEXTS, "")
            if np.isfinite(log_p[row, i]):
                lines[-1] |= self._expected(codes[[row]], i)
        return {name: np.array([line[name] for line in lines], dtype) for name, dtype in LISTED.items()}

    def _oddness(
        self, codes: np.ndarray, offsets: np.ndarray, measures: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """These measures of `surprise` for every cell, (N, D); NaN where one is missing."""
        known, found = ~np.isnan(codes), {name: np.full(codes.shape, np.nan) for name in measures}
        family, usual = self.model_.family, torch.tensor(self.independent_, dtype=torch.float64)
        for i, column in enumerate(self.schema_.columns):
            real = column.resolution == 0 and not column.n_levels  # the density of the code needs no offset
            for part, eta in self._passes(codes, _without(known, i)):
                seen, offset = known[part, i], offsets[part, i]
                x, at = torch.as_tensor(np.where(seen, codes[part, i], 0.0)), torch.tensor([i])
                own, odd = eta[:, i].cpu().double(), ~seen & (offset != 0)  # out of the range, or never seen
                log_p = family.log_prob(x, own, at)
                unseen = {"log_p": -offset - real * math.log(column.unit), "log_odds": -offset}
                for name, cells in found.items():
                    if name == "log_p":
                        values = -log_p.numpy() - offset * (not real)
                    elif name == "p_value":
                        values = -family.p_value(x, own, at).clamp(min=1e-300).log().numpy()
                    else:
                        column_alone = family.log_prob(x, usual[i].expand(len(x), -1), at)
                        q = torch.logaddexp(column_alone, family.broad_log_prob(x, at)) - math.log(2)
                        values = (q - log_p).numpy()
                    other = unseen.get(name, math.log(column.n + 1))
                    cells[part, i] = np.where(seen, values, np.where(odd, other, np.nan))
        return found

    def _expected(self, codes: np.ndarray, i: int) -> dict[str, str]:
        """Value of a cell, its best guess and the ends of the middle 90 %, as text: all columns share one."""
        column, known, at = self.schema_.columns[i], ~np.isnan(codes), torch.tensor([i])
        (_, eta), *_ = self._passes(codes, _without(known, i))
        answer = ColumnConditional(self, i, {}, families.Conditional(self.model_.family, eta[:, i].cpu(), at))
        value = answer._values(codes[:, i]) if known[0, i] else ["out of range or unseen"]
        ends = ("", "") if column.n_levels else answer.quantile([0.05, 0.95])
        values = (value[0], shown(column, self._guess(i, eta[:, i].cpu()))[0], *ends)
        texts = [f"{each:.6g}" if isinstance(each, float) else str(each) for each in values]
        return dict(zip(("value", "expected", "low", "high"), texts, strict=True))


def listed(columns: dict[str, np.ndarray], kind: str) -> Any:
    """A frame of the cells of `_odd_cells` that have a value, with rounded numbers."""
    finite = np.isfinite(columns["surprise"])
    made = {name: values[finite] for name, values in columns.items()}
    made["p_value"] = np.array([float(f"{p:.3g}") for p in made["p_value"]], dtype=np.float64)
    for name in ("surprise", "log_odds"):
        made[name] = np.array([round(s, 3) for s in made[name]], dtype=np.float64)
    return build_frame(made, {}, kind)


def _without(known: np.ndarray, i: int) -> np.ndarray:
    """Marks of the known cells without those of a column."""
    return known & (np.arange(known.shape[1]) != i)
