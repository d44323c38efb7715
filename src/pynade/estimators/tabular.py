"""TabularNADE: an exact density of a table of mixed columns, with gaps anywhere."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from pynade.device import torch_device
from pynade.estimators.answers import ColumnConditional, JointConditional
from pynade.estimators.net import OWN, OrderlessEstimator
from pynade.estimators.parameters import documented
from pynade.estimators.questions import checked_count
from pynade.tables.native import fill_cells, native_frame
from pynade.tables.schema import Schema
from pynade.training.options import Gradient

if TYPE_CHECKING:
    import torch

    from pynade.ordering import Ordering

Given = Mapping[int | str, Any]
SMALL = 2000  # rows below which a table has a smaller net and more orderings
AT_ONCE = 4096  # rows of a question that takes one pass of the net for each


class MixedCells:
    """Cells of a mixed table."""

    takes = "numbers, text, true or false, and dates"
    kind = "mixed"
    white = 1


@documented
@dataclass(eq=False, repr=False)
class TabularNADE(TransformerMixin, OrderlessEstimator):
    """Density of a table of mixed columns with gaps anywhere: one net for every ordering of the columns.

    `fit` finds out what each column is (`schema_`, which prints as a table): levels, integers and rounded
    numbers, whose cells have probabilities, or real numbers, whose cells have densities. A row's score is the
    sum of the logarithms of both. Everything is in the units of the table, and tables come back as the kind
    of frame that went in.

    Example:
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> kind = rng.choice(["cat", "dog"], 300)
        >>> weight = rng.normal(np.where(kind == "cat", 4, 20), 1).round(1)
        >>> table = pd.DataFrame({"kind": kind, "weight": weight})
        >>> model = TabularNADE(hidden=(32, 32), epochs=60, random_state=0).fit(table)
        >>> model.conditional("kind", given={"weight": 4.2}).mode()
        'cat'
        >>> gaps = pd.DataFrame({"kind": ["dog"], "weight": [None]})
        >>> bool(abs(model.impute(gaps)["weight"][0] - 20) < 1)
        True
    """

    hidden: int | Sequence[int] | None = None
    n_components: int = 10
    dropout: float | None = None
    schema: Mapping[str, Any] | None = None
    missing: Sequence[str] | None = None
    drop: Sequence[str] = ()
    n_orderings: int | None = None
    epochs: int | None = None  # type: ignore[assignment]
    learning_rate: float = 0.002
    batch_size: int | None = None  # type: ignore[assignment]
    weight_decay: float = 0.02
    patience: int | None = None

    _defaults: ClassVar[dict[str, Any]] = {
        "optimizer": "adamw",
        "schedule": "cosine",
        "warm_up": 100,
        "ema": 0.99,
        "clip": 1.0,
    }
    _facts: ClassVar[tuple[str, ...]] = ("schema_", "n_rows_", "independent_", "disagreement_")

    def _cells(self) -> Any:
        return MixedCells()

    def _rows(self, X: Any, **options: Any) -> np.ndarray:
        """Codes of a table; fitting finds out its schema."""
        if not options.get("fitting", False):
            check_is_fitted(self, "schema_")
            return self.schema_.encode(self._checked(X))[0]
        X = self._checked(X)
        frame, _ = native_frame(X, options.get("columns"))
        if len(frame) < 2:
            raise ValueError(
                f"a table needs at least 2 rows to fit a model, but has {len(frame)} (n_samples={len(frame)})"
            )
        self.schema_: Schema = Schema.inferred(
            X, self.schema, self.missing, tuple(self.drop), options.get("columns")
        )
        self.n_features_in_ = len(frame.columns)
        if self.schema_.frame != "numpy":
            self.feature_names_in_ = np.asarray(frame.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        for name, reason in self.schema_.ignored:
            if name not in self.drop:
                warnings.warn(f"column {name!r} is left out: {reason}", UserWarning, stacklevel=4)
        self.n_rows_ = len(frame)
        return self.schema_.encode(X)[0]

    def _checked(self, X: Any) -> Any:
        """A table, or one sentence; arrays must have two axes and the right number of columns."""
        from scipy.sparse import issparse

        if issparse(X):
            raise TypeError("a sparse matrix was passed, but dense data is required")
        if hasattr(X, "collect") or hasattr(X, "columns") or isinstance(X, dict):
            return X.collect() if hasattr(X, "collect") else X
        rows = X if isinstance(X, np.ndarray) else np.asarray(X)
        if rows.ndim != 2:
            raise ValueError(
                f"expected a table (2D), got an array of shape {rows.shape}. Reshape your data: "
                "a single row is [row]"
            )
        if rows.shape[0] == 0 or rows.shape[1] == 0:
            what = "0 sample(s)" if rows.shape[0] == 0 else f"0 feature(s) (shape={rows.shape})"
            raise ValueError(f"Found array with {what} while a minimum of 1 is required.")
        if rows.dtype.kind == "f" and np.isinf(rows).any():
            raise ValueError(
                "the table holds inf (an infinite value); expected finite numbers or NaN for missing cells"
            )
        if (
            hasattr(self, "schema_")
            and hasattr(self, "model_")
            and rows.shape[1]
            not in (
                len(self.schema_),
                len(self.schema_.order),
            )
        ):
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return X if isinstance(X, np.ndarray | list) else rows

    def options(self) -> Gradient:
        """All options of training; epochs and the size of minibatches follow from the number of rows."""
        own = {name: getattr(self, name) for name in OWN}
        n, columns = getattr(self, "n_rows_", 1000), len(getattr(self, "schema_", range(10)))
        if own["batch_size"] is None:
            own["batch_size"] = int(np.clip(2 ** round(np.log2(max(n, 16) / 16)), 32, 512))
        updates = -(-n // own["batch_size"])
        if own["epochs"] is None:
            wanted = np.clip(100 * np.sqrt(n * max(columns, 10) / 10), 300, 6000)
            own["epochs"] = max(2, int(wanted) // updates)
        if own["patience"] is None:
            own["patience"] = max(20, own["epochs"] // 3)
        training = asdict(self._training_options())
        training["warm_up"] = min(training["warm_up"], own["epochs"] * updates // 4)
        held = max(1, round(self.validation_fraction * n))
        training["valid_draws"] = max(training["valid_draws"], min(32, 4000 // held))
        return Gradient(**training, **own)

    def build(self, train: np.ndarray, seed: int) -> Any:
        """The untrained model for rows of codes; its output bias starts at their marginals."""
        import torch

        from pynade.families import PerColumn
        from pynade.models import Orderless
        from pynade.nets import TableNet

        generator, columns = torch.Generator().manual_seed(seed), self.schema_.columns
        family = PerColumn.fitted(
            train,
            [c.n_levels for c in columns],
            [c.resolution > 0 for c in columns],
            [(c.low, c.high) if c.resolution else (None, None) for c in columns],
            self.schema_.periods(),
            self.n_components,
        )
        outputs = [n or 3 * self.n_components for n in family.levels]
        small = len(train) < SMALL
        net = TableNet(
            family.levels,
            family.n_params,
            outputs,
            (128, 128) if small and self.hidden is None else self.hidden or (256, 256, 256),
            n_features=family.n_features,
            dropout=(0.2 if small else 0.1) if self.dropout is None else self.dropout,
            generator=generator,
        )
        net.set_output_bias(family.eta_from_marginal(torch.as_tensor(train)))
        self._ordering(len(columns), generator, k=self._n_orderings())
        return Orderless(net, family, self.stratified)

    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: Any) -> None:
        if train.shape[0] and np.isnan(train).all(1).any():
            train = train[~np.isnan(train).all(1)]  # rows without any value say nothing
        if valid is not None:
            valid = valid[~np.isnan(valid).all(1)]
            valid = valid if len(valid) >= 2 else None
        super()._fit(train, valid, seed, request)
        from pynade.models import Independent

        alone = Independent.fitted(self.model_.family, self._complete_codes(train)).double()
        self.independent_ = alone.eta.detach().tolist()
        some = train[~np.isnan(train).any(1)] if valid is None else valid[~np.isnan(valid).any(1)]
        scores = self._ordering_scores(some[:500], 8)
        self.disagreement_ = None if scores is None else float(scores.std(0).mean())

    def _complete_codes(self, codes: np.ndarray) -> Any:
        import torch

        return torch.as_tensor(codes)

    def _ordering_scores(self, codes: np.ndarray, k: int) -> np.ndarray | None:
        """log p of complete rows under each of k orderings, (k, N); None without a row."""
        import torch

        from pynade.models import Rows

        if not len(codes):
            return None
        model: Any = self._ready()
        orders = self.orderings(k).order.to(model.device)
        with torch.no_grad():
            rows = Rows(model.net, model.family, torch.as_tensor(codes).to(model.device))
            return rows.log_probs(orders).cpu().numpy()

    def _n_orderings(self) -> int:
        if self.n_orderings is not None:
            return self.n_orderings
        n = getattr(self, "n_rows_", 1000)
        return 16 if n < SMALL else 4 if n < 10 * SMALL else 1

    def orderings(self, k: int | Ordering | None = None) -> Ordering:
        """The first k of this model's random orderings of its columns; None takes its own number."""
        import torch

        from pynade.ordering import Ordering

        if isinstance(k, Ordering):
            return k if k.is_batch else Ordering.trusted(k.order[None])
        k = self._n_orderings() if k is None else k
        if k < 1:
            raise ValueError(f"the number of orderings must be at least 1, not {k}")
        return self._ordering(len(self.schema_), torch.Generator().manual_seed(self.seed_), k)

    def score_samples(
        self, X: Any, orderings: int | Ordering | None = None, density: bool = False
    ) -> np.ndarray:
        """Exact log p of the observed cells of each row, in nats: (N,).

        It adds up the log-probabilities of cells of levels, integers, dates and rounded numbers and the
        log-densities of real cells, in the units of the table. Missing cells are marginalised: the row is
        scored along orderings that begin with its observed cells. That is exact for the ensemble of these
        orderings, which is not the marginal of the one that scores complete rows; more orderings bring them
        closer, and `disagreement` says how far orderings differ.

        Args:
            X: a table with the model's columns; others are passed over.
            orderings: a number K or a batch of orderings; None takes the model's own.
            density: everything as a density (probabilities over the resolution of their column), to compare
                with other tools.
        """
        from pynade.evaluation import exact_scores

        check_is_fitted(self, "model_")
        codes, offsets = self.schema_.encode(self._checked(X), density)
        return exact_scores(self._ready(), codes, self.orderings(orderings)) + offsets.sum(1)

    def gain(self, X: Any) -> np.ndarray:
        """How much better each row is scored than by independent columns, in nats: (N,)."""
        import torch

        check_is_fitted(self, "model_")
        codes, offsets = self.schema_.encode(self._checked(X))
        family = copy.deepcopy(self.model_.family).double()
        eta = torch.tensor(self.independent_, dtype=torch.float64)
        known = ~np.isnan(codes)
        log_p = family.log_prob(torch.as_tensor(np.where(known, codes, 0.0)), eta.expand(len(codes), -1, -1))
        alone = np.where(known, log_p.numpy(), 0.0).sum(1) + offsets.sum(1)
        return self.score_samples(X) - alone

    def disagreement(self, X: Any, k: int = 8) -> np.ndarray:
        """Standard deviation over k orderings of each complete row's log p, in nats: (N,); NaN with gaps."""
        check_is_fitted(self, "model_")
        codes = self._rows(X)
        complete, out = ~np.isnan(codes).any(1), np.full(len(codes), np.nan)
        scores = self._ordering_scores(codes[complete], k)
        if scores is not None:
            out[complete] = scores.std(0)
        return out

    def sample(self, n_samples: int = 1, random_state: Any = None, *, given: Given | None = None) -> Any:
        """Draws as a table: of the columns that the model has, in the units and types of the fitted table.

        Args:
            n_samples: how many.
            random_state: seed.
            given: values of known columns by name: draws that agree with them.
        """
        codes = self._draw_codes(checked_count(n_samples), random_state, given)
        return self.schema_.decode(codes, self._rng(random_state))

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
                level, the mean of a number, on its lattice. A number gives a list of that many tables, filled
                with joint draws (multiple imputation).
            random_state: seed of the draws.
            **unused: arguments of other models' `impute`.
        """
        import torch

        from pynade import queries

        check_is_fitted(self, "model_")
        X = self._checked(X)
        codes, offsets = self.schema_.encode(X)
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
        columns = self.schema_.columns
        return [
            self._filled(
                X,
                gaps,
                {
                    i: columns[i].decode(one[gaps[:, i], i], rng)
                    for i in map(int, np.flatnonzero(gaps.any(0)))
                },
            )
            for one in draws
        ]

    def transform(self, X: Any) -> Any:
        """The same as `impute`: fill the gaps with best guesses."""
        return self.impute(X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` gives: those of the table."""
        check_is_fitted(self, "schema_")
        return np.asarray(self.schema_.order, dtype=object)

    def _filled(self, X: Any, gaps: np.ndarray, values: dict[int, np.ndarray]) -> Any:
        """The user's table with values in the cells that are marked, by column."""
        names = self.schema_.names
        places = {
            names[i]: (np.flatnonzero(gaps[:, i]), values[i]) for i in map(int, np.flatnonzero(gaps.any(0)))
        }
        return fill_cells(X, places, {c.name: c.dtype for c in self.schema_.columns}, self.schema_.order)

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
        column = self.schema_.columns[i]
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
                if self.schema_.index(name) in map(self.schema_.index, given):
                    raise ValueError(f"column {name!r} is both asked for and given")
            return JointConditional(self, [str(name) for name in i], given)
        place = self.schema_.index(i)
        codes, values = self._given_row(given)
        if place in values:
            raise ValueError(f"column {self.schema_.names[place]!r} is both asked for and given")
        known = {j: float(codes[0, j]) for j in values if not np.isnan(codes[0, j])}
        model: Any = copy.deepcopy(self.model_).double()
        return ColumnConditional(self, place, values, queries.conditional(model, place, known))

    def _given_row(self, given: Given) -> tuple[np.ndarray, dict[int, Any]]:
        """Codes (1, D) of given values, and the values by place."""
        if not hasattr(given, "items"):
            raise ValueError(
                f"given is a mapping from columns to values, such as {{'a': 1}}, not {given!r:.60}"
            )
        codes, values = np.full((1, len(self.schema_)), np.nan), {}
        for name, value in given.items():
            i = self.schema_.index(name)
            column = self.schema_.columns[i]
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
            column = self.schema_.columns[self.schema_.index(name)]
            offset += float(column.encode([column.parse(value)])[1][0])
            places.append(self.schema_.index(name))
        known = [self.schema_.index(name) for name in given if not np.isnan(x[0, self.schema_.index(name)])]
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
            self._given_row({self.schema_.names[j]: v for j, v in given.items()})[0], len(codes), 0
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
        return found.astype("datetime64[us]") if self.schema_.columns[i].kind == "date" else _narrow(found)

    def predict_proba(self, X: Any, target: str | int) -> np.ndarray:
        """Probabilities (N, L) of the levels of a column for every row; `levels(target)` names them.

        Args:
            X: a table; the target column may be absent, and its values are not used.
            target: a column of levels.
        """
        import torch

        i, codes = self._without(X, target)
        column = self.schema_.columns[i]
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
        column = self.schema_.columns[self.schema_.index(target)]
        return [*column.levels, *(["(rare)"] if column.rare else [])]

    def _without(self, X: Any, target: str | int) -> tuple[int, np.ndarray]:
        """The place of a column, and codes in which it is missing."""
        check_is_fitted(self, "model_")
        i = self.schema_.index(target)
        X = self._checked(X)
        return i, self.schema_.encode(X, without=i)[0]

    def surprise(self, X: Any, top: int | None = None) -> Any:
        """-log p(cell | the other observed cells of its row), in nats, for every cell.

        Of a real column it is the density of the standardised value (of its logarithm or logit, if it is
        bounded), so that columns can be compared. Missing cells have none (NaN).

        Args:
            X: a table.
            top: None gives a table of the same columns; a number gives that many cells, the most surprising
                first, as a table with row, column, value, surprise, expected, low and high (the middle 90 %).
        """
        from pynade.estimators.surprise import surprising_cells

        check_is_fitted(self, "model_")
        return surprising_cells(self, self._checked(X), top)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Object arrays of one plain type as arrays of this type."""
    kinds = {type(v) for v in values.tolist()} if values.dtype == object else set()
    return values.astype(kinds.pop()) if len(kinds) == 1 and kinds <= {int, float, bool} else values
