"""What may be asked of a fitted model of a mixed table, in the units of the table."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from pynade.device import torch_device
from pynade.estimators.answers import ColumnConditional, JointConditional
from pynade.estimators.net import OrderlessEstimator
from pynade.estimators.questions import checked_count
from pynade.tables.frames import fill_cells
from pynade.tables.schema import Schema

if TYPE_CHECKING:
    import torch

Given = Mapping[int | str, Any]
AT_ONCE = 4096  # rows of a question that takes one pass of the net for each


@dataclass(kw_only=True, eq=False, repr=False)
class TableQuestions(TransformerMixin, OrderlessEstimator):
    """Abstract estimator of a mixed table: draws, gaps filled, conditionals, predictions, odd cells."""

    @property
    def _schema(self) -> Schema:
        """What the columns of the fitted table are."""
        check_is_fitted(self, "schema_")
        found: Schema = getattr(self, "schema_")  # noqa: B009
        return found

    @abstractmethod
    def _checked(self, X: Any) -> Any:
        """A table, or one sentence."""

    def sample(self, n_samples: int = 1, random_state: Any = None, *, given: Given | None = None) -> Any:
        """Draws as a table: of the columns that the model has, in the units and types of the fitted table.

        Args:
            n_samples: how many.
            random_state: seed.
            given: values of known columns by name: draws that agree with them.
        """
        codes = self._draw_codes(checked_count(n_samples), random_state, given)
        return self._schema.decode(codes, self._rng(random_state))

    def _draw_codes(self, n: int, random_state: Any, given: Given | None) -> np.ndarray:
        import torch

        from pynade import queries

        check_is_fitted(self, "model_")
        generator = self._generator(random_state)
        if not given:
            drawn: Any = self.density().sample(n, generator)
        else:
            model: Any = self._ready()
            x = torch.as_tensor(self._given_row(given)[0]).to(model.device)
            drawn = queries.sample_given(
                model, x, ~torch.isnan(x), n, orderings=self.orderings(), generator=generator
            )[:, 0]
        codes: np.ndarray = drawn.double().cpu().numpy()
        return codes

    def _rng(self, random_state: Any) -> np.random.Generator:
        return np.random.default_rng(self._generator(random_state).initial_seed())

    def impute(  # type: ignore[override]
        self, X: Any, n: int | None = None, random_state: Any = None, **unused: Any
    ) -> Any:
        """The table with its missing cells filled; what is observed stays as it is, other columns too.

        Args:
            X: a table with missing cells.
            n: None fills each cell with its best guess given the observed cells of its row: the likeliest
                level, the mean of a number, on its lattice. A number gives a list of that many tables (of
                arrays: one array with another axis), filled with joint draws (multiple imputation).
            random_state: seed of the draws.
            **unused: arguments of other models' `impute`.
        """
        import torch

        from pynade import queries

        check_is_fitted(self, "model_")
        X = self._checked(X)
        codes, offsets = self._schema.encode(X)
        gaps = np.isnan(codes) & (offsets == 0)
        if n is None:
            return self._filled(X, gaps, self._best_guesses(codes, gaps))
        if n < 1:
            raise ValueError(f"the number of draws must be at least 1, not {n}")
        model: Any = self._ready()
        chosen, generator = self.orderings(), self._generator(random_state)
        rows = np.flatnonzero(gaps.any(1))
        draws = np.repeat(codes[None], n, axis=0)
        for part in np.array_split(rows, max(1, len(rows) * n * len(chosen) // AT_ONCE)):
            x = torch.as_tensor(codes[part]).to(model.device)
            if len(part):
                made = queries.sample_given(
                    model, x, ~torch.isnan(x), n, orderings=chosen, generator=generator
                )
                draws[:, part] = made.double().cpu().numpy()
        rng = self._rng(random_state)
        columns = self._schema.columns
        where = [int(i) for i in np.flatnonzero(gaps.any(0))]
        tables = [
            self._filled(X, gaps, {i: columns[i].decode(one[gaps[:, i], i], rng) for i in where})
            for one in draws
        ]
        return np.stack(tables) if isinstance(tables[0], np.ndarray) else tables

    def transform(self, X: Any) -> Any:
        """The same as `impute`: fill the gaps with best guesses."""
        return self.impute(X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` gives: those of the table."""
        check_is_fitted(self, "schema_")
        return np.asarray(self._schema.order, dtype=object)

    def _filled(self, X: Any, gaps: np.ndarray, values: dict[int, np.ndarray]) -> Any:
        """The user's table with values in the cells that are marked, by column."""
        names = self._schema.names
        places = {
            names[i]: (np.flatnonzero(gaps[:, i]), values[i]) for i in map(int, np.flatnonzero(gaps.any(0)))
        }
        return fill_cells(X, places, {c.name: c.dtype for c in self._schema.columns}, self._schema.order)

    def _passes(self, codes: np.ndarray, observed: np.ndarray) -> Iterator[tuple[slice, torch.Tensor]]:
        """Parameters (B, D, P) of all columns given the observed ones, some rows at a time, in float32."""
        import torch

        device = torch_device(self.device)
        model: Any = copy.deepcopy(self.model_).float().to(device)
        at_once = max(1, min(AT_ONCE, (1 << 24) // (model.net.n_params * model.n_variables)))
        for start in range(0, max(1, len(codes)), at_once):
            part = slice(start, start + at_once)
            x, known = (torch.as_tensor(a[part]).to(device) for a in (codes, observed))
            with torch.no_grad():
                features = model.family.encode(model.family.fill(x, known).float())
                yield part, model.net.conditionals(features, known)

    def _best_guesses(self, codes: np.ndarray, wanted: np.ndarray) -> dict[int, np.ndarray]:
        """Values to fill in for the marked cells given the observed ones, by column."""
        import torch

        found: dict[int, list[np.ndarray]] = {int(i): [] for i in np.flatnonzero(wanted.any(0))}
        rows = np.flatnonzero(wanted.any(1))
        family = self.model_.family
        for part, eta in self._passes(codes[rows], ~np.isnan(codes[rows])):
            for i, values in found.items():
                chosen = eta[:, i].cpu()[wanted[rows[part], i]]
                values.append(self._guess(i, family, chosen, torch.tensor([i])))
        return {i: np.concatenate(values) for i, values in found.items()}

    def _guess(self, i: int, family: Any, eta: torch.Tensor, at: torch.Tensor) -> np.ndarray:
        """Best guesses of one column: its likeliest level, or its mean in the units of the table."""
        column = self._schema.columns[i]
        if column.n_levels:
            if column.rare:  # a rare level has only its share of their code
                eta = eta.clone()
                eta[:, column.n_levels - 1] += float(np.log(column.rare[0][1]))
            return column.decode(family.best_guess(eta, at).double().numpy())
        codes, weights = (t.double().numpy() for t in family.nodes(eta, at))
        if column.resolution:  # codes are proportional to values
            return column.decode(np.round((codes * weights).sum(-1)))
        values = column.decode(codes.ravel()).reshape(codes.shape)
        mean = (values * weights).sum(-1)
        return np.round(mean).astype(np.int64) if column.kind in ("integer", "date") else mean

    def conditional(self, i: int | str | Sequence[str], given: Given | None = None) -> Any:
        """The distribution of a column given values of others, in the units of the table.

        Args:
            i: the column by name or index; a list of names asks for their joint distribution.
            given: values of known columns by name.
        """
        from pynade import queries

        check_is_fitted(self, "model_")
        given = {} if given is None else given
        if not isinstance(i, str) and isinstance(i, Sequence):
            for name in i:
                if self._schema.index(name) in map(self._schema.index, given):
                    raise ValueError(f"column {name!r} is both asked for and given")
            return JointConditional(self, [str(name) for name in i], given)
        place = self._schema.index(i)
        codes, values = self._given_row(given)
        if place in values:
            raise ValueError(f"column {self._schema.names[place]!r} is both asked for and given")
        known = {j: float(codes[0, j]) for j in values if not np.isnan(codes[0, j])}
        model: Any = copy.deepcopy(self.model_).double()
        return ColumnConditional(self, place, values, queries.conditional(model, place, known))

    def _given_row(self, given: Given) -> tuple[np.ndarray, dict[int, Any]]:
        """Codes (1, D) of given values, and the values by place."""
        if not hasattr(given, "items"):
            raise ValueError(
                f"given is a mapping from columns to values, such as {{'a': 1}}, not {given!r:.60}"
            )
        codes, values = np.full((1, len(self._schema)), np.nan), {}
        for name, value in given.items():
            i = self._schema.index(name)
            column = self._schema.columns[i]
            if value is None or value != value:
                raise ValueError(f"column {column.name!r} is given as missing; leave out what is not known")
            values[i] = value
            codes[0, i] = column.encode([column.parse(value)])[0][0]
        return codes, values

    def _conditional_log_prob(self, target: Given, given: Given) -> float:
        import torch

        from pynade import queries

        x, offset, places = self._given_row({**given, **target})[0], 0.0, []
        for name, value in target.items():
            column = self._schema.columns[self._schema.index(name)]
            offset += float(column.encode([column.parse(value)])[1][0])
            places.append(self._schema.index(name))
        known = [self._schema.index(name) for name in given if not np.isnan(x[0, self._schema.index(name)])]
        places = [i for i in places if not np.isnan(x[0, i])]
        if not places:
            return offset
        model: Any = self._ready()
        with torch.no_grad():
            log_p = queries.conditional_log_prob(
                model, torch.as_tensor(x).to(model.device), places, known, orderings=self.orderings()
            )
        return float(log_p) + offset

    def _disagreement(self, i: int, given: dict[int, Any], codes: np.ndarray, k: int) -> float:
        """Largest total variation distance over k orderings between Bayes' rule and the direct answer."""
        import torch

        from pynade import queries

        model: Any = self._ready()
        row = np.repeat(
            self._given_row({self._schema.names[j]: v for j, v in given.items()})[0], len(codes), 0
        )
        row[:, i] = codes
        x = torch.as_tensor(row).to(model.device)
        with torch.no_grad():
            direct = model.family.log_prob(
                x[:, i],
                model.conditionals(x, ~torch.isnan(x) & (torch.arange(x.shape[1]) != i))[:, i],
                torch.tensor([i]),
            ).softmax(0)
            distances = []
            for order in self.orderings(k):
                log_p = queries.marginal_log_prob(model, x, ~torch.isnan(x), orderings=order)
                distances.append(0.5 * (log_p.softmax(0) - direct).abs().sum())
        return float(max(distances))

    def predict(self, X: Any, target: str | int) -> np.ndarray:
        """Best guess of a column for every row, from whatever else is known in it.

        Args:
            X: a table; the target column may be absent, and its values are not used.
            target: the column.
        """
        import torch

        i, codes = self._without(X, target)
        family, parts = self.model_.family, []
        for _, eta in self._passes(codes, ~np.isnan(codes)):
            parts.append(self._guess(i, family, eta[:, i].cpu(), torch.tensor([i])))
        found = np.concatenate(parts)
        return found.astype("datetime64[us]") if self._schema.columns[i].kind == "date" else _narrow(found)

    def predict_proba(self, X: Any, target: str | int) -> np.ndarray:
        """Probabilities (N, L) of the levels of a column for every row; `levels(target)` names them.

        Args:
            X: a table; the target column may be absent, and its values are not used.
            target: a column of levels.
        """
        import torch

        i, codes = self._without(X, target)
        column = self._schema.columns[i]
        if not column.n_levels:
            raise ValueError(
                f"column {column.name!r} is {column.kind}; it has no levels (see predict, conditional)"
            )
        family, parts = self.model_.family, []
        for _, eta in self._passes(codes, ~np.isnan(codes)):
            p = family._probabilities(eta[:, i].cpu(), torch.tensor([i]))
            parts.append(p[:, : column.n_levels].double().numpy())
        return np.concatenate(parts)

    def levels(self, target: str | int) -> list[Any]:
        """The levels of a column, in the order of `predict_proba`; a last one stands for all rare ones."""
        column = self._schema.columns[self._schema.index(target)]
        return [*column.levels, *(["(rare)"] if column.rare else [])]

    def _without(self, X: Any, target: str | int) -> tuple[int, np.ndarray]:
        """The place of a column, and codes in which it is missing."""
        check_is_fitted(self, "model_")
        i = self._schema.index(target)
        X = self._checked(X)
        return i, self._schema.encode(X, without=i)[0]

    def surprise(self, X: Any, top: int | None = None) -> Any:
        """-log p(cell | the other observed cells of its row), in nats, for every cell.

        Of a real column it is the density of the standardised value (of its logarithm or logit, if it is
        bounded), so that columns can be compared. Missing cells have none (NaN).

        Args:
            X: a table.
            top: None gives a table of the same columns; a number gives that many cells, the oddest first,
                as a table with row, column, value, p_value (the probability of a value at least as odd, by
                which cells of all kinds are comparable), surprise, expected, low and high (the middle 90 %).
        """
        from pynade.estimators.surprise import surprising_cells

        check_is_fitted(self, "model_")
        return surprising_cells(self, self._checked(X), top)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Object arrays of one plain type as arrays of this type."""
    kinds = {type(v) for v in values.tolist()} if values.dtype == object else set()
    return values.astype(kinds.pop()) if len(kinds) == 1 and kinds <= {int, float, bool} else values
