"""Queries of a fitted model of a mixed table, in the units of the table."""

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
from pynade.estimators.answers import ColumnConditional, JointConditional, to_user_values, unsupported_error
from pynade.estimators.modules import families, models, torch
from pynade.estimators.net import OrderlessEstimator
from pynade.estimators.questions import PARTICLES, has_large_weights
from pynade.tables.frames import build_frame, fill_cells, native_frame
from pynade.tables.schema import Schema

Given = Mapping[int | str, Any]
ROWS_PER_PASS = 4096  # at most, for one pass of the net
MEASURES = ("log_p", "p_value", "log_odds")  # of `surprise`
ODD_CELL_TYPES: dict[str, Any] = {"row": np.int64, "column": object, "value": object, "log_odds": float}
ODD_CELL_TEXTS = ("value", "expected", "low", "high")
ODD_CELL_TYPES |= {"p_value": float, "surprise": float} | dict.fromkeys(
    ODD_CELL_TEXTS[1:], object
)  # of odd cells


class MixedCells:
    """Cells of a mixed table."""

    takes = "numbers, text, true or false, and dates"
    kind = "mixed"
    white = 1


@dataclass(kw_only=True, eq=False, repr=False)
class TableQuestions(TransformerMixin, OrderlessEstimator):
    """Abstract estimator of a mixed table: draws, imputation, conditionals, predictions, unlikely cells."""

    schema_: Schema = field(init=False)  # what the columns of the fitted table are

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def _cells(self) -> Any:
        return MixedCells()

    def _check_table(self, X: Any, fitting: bool = False) -> Any:
        """A data frame or an array; raises an error for other types and for arrays of the wrong shape."""
        if not fitting:
            check_is_fitted(self, "schema_")
        if issparse(X):
            raise TypeError("a sparse matrix was passed, but dense data is required")
        if isinstance(X, str | PathLike):
            advice = "pynade.stream takes files"
            raise TypeError(f"expected a data frame or an array, not {fspath(X)!r}; {advice}")
        if hasattr(type(X), "columns") or isinstance(X, dict):
            return X.collect() if hasattr(type(X), "collect") else X  # a lazy frame
        rows = X if isinstance(X, np.ndarray) else np.asarray(X)
        if rows.ndim != 2:
            shape = f"expected a table (2D), got an array of shape {rows.shape}"
            raise ValueError(f"{shape}. Reshape your data: a single row is [row]")
        if 0 in rows.shape:
            size = "0 sample(s)" if rows.shape[0] == 0 else f"0 feature(s) (shape={rows.shape})"
            raise ValueError(f"Found array with {size} while a minimum of 1 is required.")
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
        """The table with its missing cells filled; observed cells and other columns are unchanged.

        Args:
            X: a table with missing cells.
            n: None fills each cell with its best guess given the observed cells of its row: the likeliest
                level, or the mean of a number, rounded to its lattice. A number returns a list of that many
                tables (for an array: one array with a further axis), filled with joint draws (multiple
                imputation).
            random_state: seed of the draws.
            particles: ignored; a parameter of models with a fixed ordering.
        """
        X = self._check_table(X)
        codes, offsets = self.schema_.encode(X)
        gaps = np.isnan(codes) & (offsets == 0)
        if n is None:
            return self._fill(X, gaps, self._guess_cells(codes, gaps))
        if n < 1:
            raise ValueError(f"the number of draws must be at least 1, not {n}")
        draws, rows = np.repeat(codes[None], n, axis=0), gaps.any(1)
        if rows.any():
            draws[:, rows] = self._completions(codes[rows], n, random_state, particles).double().numpy()
        rng = np.random.default_rng(self._generator(random_state).initial_seed())
        columns = [(int(i), self.schema_.columns[i]) for i in np.flatnonzero(gaps.any(0))]
        values = [{i: c.decode(draw[gaps[:, i], i], rng) for i, c in columns} for draw in draws]
        tables = [self._fill(X, gaps, cells) for cells in values]
        return np.stack(tables) if isinstance(tables[0], np.ndarray) else tables

    def transform(self, X: Any) -> Any:
        """Fill missing cells with best guesses, as `impute` does.

        Args:
            X: a table with the model's columns.
        """
        return self.impute(X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of `transform`, which are those of the table.

        Args:
            input_features: not used; scikit-learn passes it.
        """
        check_is_fitted(self, "schema_")
        return np.asarray(self.schema_.order, dtype=object)

    def _fill(self, X: Any, gaps: np.ndarray, values: Mapping[int, np.ndarray]) -> Any:
        """The user's table with these values, by column, in the cells that `gaps` marks."""
        schema = self.schema_
        cells = {schema.names[i]: (np.flatnonzero(gaps[:, i]), column) for i, column in values.items()}
        return fill_cells(X, cells, {c.name: c.dtype for c in schema.columns}, schema.order)

    def _compute_etas(self, codes: np.ndarray, observed: np.ndarray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Parameters (B, D, P) of all columns given the observed ones, for parts of the rows, in float32."""
        device, model = torch_device(self.device), self._copy()
        model = model if has_large_weights(model) else model.float()
        size = max(1, min(ROWS_PER_PASS, (1 << 24) // (model.net.n_params * model.n_variables)))
        for start in range(0, max(1, len(codes)), size):
            part = slice(start, start + size)
            x, known = (torch.as_tensor(a[part]).to(device) for a in (codes, observed))
            with torch.no_grad():
                eta = model.conditionals(x, known)
            models.density.refuse_nan(torch.isnan(eta).any())
            yield part, eta

    def _guess_cells(self, codes: np.ndarray, gaps: np.ndarray) -> dict[int, np.ndarray]:
        """Best guesses of the cells that `gaps` marks given the observed ones, by column."""
        guesses: dict[int, list[np.ndarray]] = {int(i): [] for i in np.flatnonzero(gaps.any(0))}
        rows = np.flatnonzero(gaps.any(1))
        for part, eta in self._compute_etas(codes[rows], ~np.isnan(codes[rows])):
            for i, values in guesses.items():
                values.append(self._best_guess(i, eta[:, i].cpu()[gaps[rows[part], i]]))
        return {i: np.concatenate(values) for i, values in guesses.items()}

    def _best_guess(self, i: int, eta: torch.Tensor) -> np.ndarray:
        """Best guesses of one column: its likeliest level, or its mean in the units of the table."""
        column, family, index = self.schema_.columns[i], self.model_.family, torch.tensor([i])
        if column.n_levels:
            if column.rare:  # rare levels share one code: use the probability of the most frequent of them
                eta = eta.clone()
                eta[:, column.n_levels - 1] += math.log(column.rare[0][1])
            return column.decode(family.best_guess(eta, index).double().numpy())
        codes, weights = (t.double().numpy() for t in family.nodes(eta, index))
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
        """Best guess of a column for every row, given the other observed cells of the row.

        Args:
            X: a table; the target column may be absent, and its values are not used.
            target: name or index of the column.
        """
        i = self._index(target)
        values = self._predict_cells(X, i, lambda eta: self._best_guess(i, eta))
        types = {type(v) for v in values.tolist()} if values.dtype == object else set()
        if len(types) == 1 and types <= {int, float, bool}:
            values = values.astype(types.pop())  # levels that are numbers
        return to_user_values(self.schema_.columns[i], values)

    def predict_proba(self, X: Any, target: str | int) -> np.ndarray:
        """Probabilities (N, L) of the levels of a column for every row; `levels(target)` names them.

        Args:
            X: a table; the target column may be absent, and its values are not used.
            target: name or index of a column with levels.
        """
        i = self._index(target)
        column, family = self.schema_.columns[i], self.model_.family
        if not column.n_levels:
            raise unsupported_error(column, "levels (see predict, conditional)")
        p = self._predict_cells(
            X, i, lambda eta: family._probabilities(eta, torch.tensor([i])).double().numpy()
        )
        return p[:, : column.n_levels]

    def _predict_cells(self, X: Any, i: int, function: Callable[[torch.Tensor], np.ndarray]) -> np.ndarray:
        """A function of column i's parameters given the other columns, for every row."""
        codes = self.schema_.encode(self._check_table(X), without=i)[0]
        etas = self._compute_etas(codes, ~np.isnan(codes))
        return np.concatenate([function(eta[:, i].cpu()) for _, eta in etas])

    def levels(self, target: str | int) -> list[Any]:
        """The levels of a column, in the order of `predict_proba`; the last one stands for all rare levels.

        Args:
            target: name or index of a column.
        """
        column = self.schema_.columns[self._index(target)]
        return [*column.levels, *(["(rare)"] if column.rare else [])]

    def surprise(
        self, X: Any, top: int | None = None, measure: str = "log_p", folds: int | None = None
    ) -> Any:
        """-log p(cell | the other observed cells of its row), in nats, for every cell.

        For a real column this is the density of the standardised value (of its logarithm or logit, if it is
        bounded). It is NaN for missing cells.

        Args:
            X: a table.
            top: None returns a table with the same columns; a number returns that many cells, by decreasing
                `log_odds`, as a table with row, column, value, log_odds, p_value, surprise, expected, and
                low and high (the central 90 % interval).
            measure: "log_p", as above; or a measure that is comparable across columns: "p_value", -log of
                the probability of a value at least as unlikely; "log_odds", log q(cell) - log p(cell | the
                others), how much likelier the value is as an error. q is an equal mixture of the marginal
                distribution of the column (swapped values) and a very broad one (wrong digits or units).
            folds: for a table that this model was fitted to, errors included: the rows are divided into this
                many parts, each of which is scored by a model fitted to the other parts with the parameters
                of this estimator. None uses this model.
        """
        if measure not in MEASURES:
            raise ValueError(f"measure is one of {', '.join(MEASURES)}, not {measure!r}")
        X = self._check_table(X)
        frame, kind = native_frame(X)
        parts = [(np.arange(len(frame)), X, self)] if folds is None else self._fit_folds(X, folds)
        if top is not None:
            check_positive(top=top)
            lists = []
            for rows, part, model in parts:
                cells = model._find_odd_cells(part, top)
                lists.append(cells | {"row": rows[cells["row"]]})
            cells = {name: np.concatenate([part[name] for part in lists]) for name in ODD_CELL_TYPES}
            order = np.argsort(-cells["log_odds"], kind="stable")[:top]
            cells = {name: values[order] for name, values in cells.items()}
            return odd_cells_frame(cells, "polars" if kind == "numpy" else kind)
        result = np.full((len(frame), len(self.schema_)), np.nan)
        for rows, part, model in parts:
            codes, offsets = model.schema_.encode(part)
            measures = model._measure_cells(codes, offsets, [measure])[measure]
            for name, values in zip(model.schema_.names, measures.T, strict=True):
                if name in self.schema_.names:
                    result[rows, self.schema_.names.index(name)] = values
        labels = {c.name: {"label": c.dtype.get("label", c.name)} for c in self.schema_.columns}
        table = build_frame(dict(zip(self.schema_.names, result.T, strict=True)), labels, kind)
        return table.set_axis(X.index, axis=0) if kind == "pandas" else table

    def _fit_folds(self, X: Any, folds: int) -> Iterator[tuple[np.ndarray, Any, Any]]:
        """Row numbers and rows of each part of a table, and a model that is fitted to the other parts."""
        order: Any = self.schema_.order
        names = order if np.ndim(X) and np.shape(X)[1] == len(order) else self.schema_.names
        frame = native_frame(X, names)[0]
        self.schema_.encode(frame.head(1))  # raises an error if a column is missing
        frame = frame.select([name for name in frame.columns if name in order])
        check_positive(folds=folds)
        if not 2 <= folds <= len(frame) // 2:
            bounds = f"at least 2 and at most half the number of rows ({len(frame) // 2})"
            raise ValueError(f"folds must be {bounds}, not {folds}")
        shuffled = np.random.default_rng(self.seed_).permutation(len(frame))
        for rows in map(np.sort, np.array_split(shuffled, folds)):
            others = frame[np.setdiff1d(shuffled, rows)].to_native()
            yield rows, frame[rows].to_native(), clone(self).fit(others)

    def _find_odd_cells(self, X: Any, top: int) -> dict[str, np.ndarray]:
        """The cells of largest `log_odds`, as columns for `odd_cells_frame`; not rounded, may be NaN."""
        codes, offsets = self.schema_.encode(X)
        log_p, p_value, log_odds = self._measure_cells(codes, offsets, MEASURES).values()
        cells: list[dict[str, Any]] = []
        order = np.argsort(-np.nan_to_num(log_odds.ravel(), nan=-math.inf), kind="stable")[:top]
        for row, i in (divmod(int(index), len(self.schema_)) for index in order):
            cell = {"row": row, "column": self.schema_.names[i], "log_odds": log_odds[row, i]}
            cell |= {"p_value": math.exp(-p_value[row, i]), "surprise": log_p[row, i]}
            finite = np.isfinite(log_p[row, i])
            texts = self._describe_cell(codes[[row]], i) if finite else dict.fromkeys(ODD_CELL_TEXTS, "")
            cells.append(cell | texts)
        return {
            name: np.array([cell[name] for cell in cells], dtype) for name, dtype in ODD_CELL_TYPES.items()
        }

    def _measure_cells(
        self, codes: np.ndarray, offsets: np.ndarray, measures: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """These measures of `surprise` for every cell, (N, D); NaN for missing cells."""
        known, results = ~np.isnan(codes), {name: np.full(codes.shape, np.nan) for name in measures}
        family, marginals = self.model_.family, torch.tensor(self.independent_, dtype=torch.float64)
        for i, column in enumerate(self.schema_.columns):
            real = column.resolution == 0 and not column.n_levels  # the density of the code needs no offset
            for part, etas in self._compute_etas(codes, _known_except(known, i)):
                has_code, offset = known[part, i], offsets[part, i]
                x, index = torch.as_tensor(np.where(has_code, codes[part, i], 0.0)), torch.tensor([i])
                eta, unseen = etas[:, i].cpu().double(), ~has_code & (offset != 0)  # e.g. out of the range
                log_p = family.log_prob(x, eta, index)
                for_unseen = {"log_p": -offset - real * math.log(column.unit), "log_odds": -offset}
                for name, cells in results.items():
                    if name == "log_p":
                        values = -log_p.numpy() - offset * (not real)
                    elif name == "p_value":
                        values = -family.p_value(x, eta, index).clamp(min=1e-300).log().numpy()
                    else:
                        marginal = family.log_prob(x, marginals[i].expand(len(x), -1), index)
                        q = torch.logaddexp(marginal, family.broad_log_prob(x, index)) - math.log(2)
                        values = (q - log_p).numpy()
                    others = for_unseen.get(name, math.log(column.n + 1))
                    cells[part, i] = np.where(has_code, values, np.where(unseen, others, np.nan))
        return results

    def _describe_cell(self, codes: np.ndarray, i: int) -> dict[str, str]:
        """Value of a cell, its best guess and the ends of its central 90 % interval, as text."""
        column, known = self.schema_.columns[i], ~np.isnan(codes)
        ((_, etas),) = self._compute_etas(codes, _known_except(known, i))
        eta = etas[:, i].cpu()
        inner = families.Conditional(self.model_.family, eta, torch.tensor([i]))
        conditional = ColumnConditional(self, i, {}, inner)
        value = conditional._values(codes[:, i]) if known[0, i] else ["out of range or unseen"]
        ends = ("", "") if column.n_levels else conditional.quantile([0.05, 0.95])
        values = (value[0], to_user_values(column, self._best_guess(i, eta))[0], *ends)
        texts = [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in values]
        return dict(zip(ODD_CELL_TEXTS, texts, strict=True))


def odd_cells_frame(columns: dict[str, np.ndarray], kind: str) -> Any:
    """The cells of `_find_odd_cells` with finite surprise as a data frame, with rounded numbers."""
    finite = np.isfinite(columns["surprise"])
    rounded = {name: values[finite] for name, values in columns.items()}
    rounded["p_value"] = np.array([float(f"{p:.3g}") for p in rounded["p_value"]], dtype=np.float64)
    for name in ("surprise", "log_odds"):
        rounded[name] = np.array([round(s, 3) for s in rounded[name]], dtype=np.float64)
    return build_frame(rounded, {}, kind)


def _known_except(known: np.ndarray, i: int) -> np.ndarray:
    """The mask of known cells, with column i unknown."""
    return known & (np.arange(known.shape[1]) != i)
