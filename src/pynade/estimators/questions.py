"""Queries of a fitted model: scores, samples, imputation, conditionals, orderings.

Orderless models and classical densities support all queries. Models with a fixed ordering support those that
the ordering permits; for the others they raise an error that names suitable models.
"""

from __future__ import annotations

import copy
import math
import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from pynade.device import torch_device
from pynade.estimators.cells import LARGEST_NUMBER
from pynade.estimators.modules import evaluation, likelihood, models, ordering, queries, torch
from pynade.tables.frames import build_frame, fill_cells, frame_kind, native_frame

Orders: TypeAlias = "int | ordering.Ordering"  # a number or a batch of orderings
Given = Mapping[int | str, float] | None  # values of known variables by index or column name
PARTICLES = 256  # per row, for imputation by a model with a fixed ordering
LARGE_WEIGHT = 1e6  # models with larger weights compute in float64: products may overflow in float32


class Questions(DensityMixin, BaseEstimator):
    """Abstract base class with the queries of all fitted estimators."""

    device: str
    _double: ClassVar[bool] = False  # compute in float64 on a GPU too

    @abstractmethod
    def _cells(self) -> Any:
        """The kind of the table's cells (see `pynade.estimators.cells`)."""

    @abstractmethod
    def _rows(self, X: Any, *, missing: bool | None = None) -> np.ndarray:
        """Checked rows as numbers (see `DensityEstimator`)."""

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def score_samples(self, X: Any, orderings: Orders | None = None) -> np.ndarray:
        """Exact log p of each row, in nats: (N, D) -> (N,).

        Rows with missing cells: classical models marginalise them. An orderless model scores the observed
        cells along orderings that begin with them. That is exact for these orderings, but it is not the
        marginal of the density of complete rows; the difference shrinks with more `orderings`, and
        `disagreement` measures it in nats.

        On a CPU the score of a row does not depend on the other rows: it is the same to within 1e-12
        (relative or absolute), whatever their number and order.

        Args:
            X: rows; NaN = missing, for models that take missing values.
            orderings: for an orderless model, a number K or a batch of orderings, whose ensemble is scored
                exactly. None takes the estimator's own.
        """
        return evaluation.exact_scores(self._get_model(), self._rows(X), self._query_orderings(orderings))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood per row, in nats; higher is better.

        Args:
            X: rows.
            y: not used; scikit-learn passes it.
        """
        return float(self.score_samples(X).mean())

    def summary(self, log_probs: Any) -> likelihood.Estimate:
        """Mean score with its standard error, and whether the scores are exact.

        Args:
            log_probs: scores of rows, from `score_samples`.
        """
        return likelihood.Estimate.from_rows(log_probs)

    def sample(self, n_samples: int = 1, random_state: Any = None, *, given: Given = None) -> Any:
        """Exact draws (n_samples, D), as a data frame of the kind that the model was fitted to, or an array.

        Binary models draw integers, real ones floats, models of mixed tables the types of the columns.

        Args:
            n_samples: number of rows.
            random_state: seed.
            given: values of known variables by index or column name, to draw from the conditional
                distribution given them. An orderless model uses orderings that begin with them.
        """
        check_is_fitted(self, "model_")
        count, generator = checked_count(n_samples), self._generator(random_state)
        if given is None:
            return self._native(self.density().sample(count, generator), generator)
        model, x = self._get_model(), self._row(self._parse_given(given))
        options: Any = {"orderings": self._query_orderings(), "generator": generator}
        draws = queries.sample_given(model, x, ~torch.isnan(x), count, **options)
        return self._native(draws[:, 0], generator)

    def _row(self, known: Mapping[int, float]) -> torch.Tensor:
        """One row (1, D) with these known values, NaN elsewhere."""
        cells = [known.get(i, math.nan) for i in range(self.model_.n_variables)]
        return torch.tensor([cells], dtype=torch.float64, device=torch_device(self.device))

    def _native(self, draws: Any, generator: torch.Generator | None = None) -> Any:
        """Draws as a table: a data frame if the model was fitted to one, else an array."""
        rows, names = self._cells().native(draws), self._names()
        if getattr(self, "frame_", None) is None:
            return rows
        labels = names or range(rows.shape[1])  # a pandas frame with integer column labels
        columns = {str(label): rows[:, i] for i, label in enumerate(labels)}
        return build_frame(columns, {str(label): {"label": label} for label in labels}, self.frame_)

    def impute(
        self, X: Any, n: int | None = None, random_state: Any = None, particles: int = PARTICLES
    ) -> Any:
        """Fill missing cells (NaN); returns an array or, for a data frame, a frame (with n: a list of them).

        Exact for orderless models and classical densities. Models with a fixed ordering estimate the missing
        values with weighted particles, and warn if the effective sample size is small.

        Args:
            X: rows with NaN. With `binarize`, observed cells are returned thresholded.
            n: None fills each cell with its best guess given the observed cells (the likelier value of a
                binary cell, the mean of a real one), (N, D); a number returns that many joint draws,
                (n, N, D), for multiple imputation.
            random_state: seed of the draws and particles.
            particles: number per row, for a model with a fixed ordering; more are more accurate and slower.
        """
        rows = self._rows(X, missing=True)
        filled = self._cells().native(self._completions(rows, n, random_state, particles))
        if frame_kind(X) is None:
            return np.where(np.isnan(rows), filled, rows).astype(filled.dtype)
        names = self._names() or native_frame(X)[0].columns
        gaps = [(name, np.flatnonzero(np.isnan(rows[:, i]))) for i, name in enumerate(names)]
        frames = [
            fill_cells(X, {name: (r, table[r, i]) for i, (name, r) in enumerate(gaps) if len(r)}, {}, ())
            for table in (filled if n is not None else filled[None])
        ]
        return frames if n is not None else frames[0]

    def _completions(self, rows: np.ndarray, n: int | None, random_state: Any, particles: int) -> Any:
        """Rows with their missing cells filled by best guesses, (N, D), or by n draws, (n, N, D)."""
        model, orders = self._get_model(imputing=True), self._query_orderings()
        options: Any = {"orderings": orders, "generator": self._generator(random_state)}
        limit = evaluation.query_rows_at_once(model, orders, n or 1)
        parts = [
            queries.impute(model, part.to(model.device), n, particles=particles, **options).cpu()
            for part in torch.as_tensor(rows, dtype=torch.float64).split(limit)
        ]
        filled = torch.cat(parts, dim=-2)
        if (invalid := ~torch.isfinite(filled).all(-1)).any():
            row = int(invalid.nonzero()[0, -1])
            raise ValueError(f"row {row} cannot be filled: its values are too far from those of training")
        return filled

    def conditional(self, i: int | str, given: Given = None) -> Any:
        """p(x_i | given) as a distribution with mean, pmf or pdf, cdf and quantiles.

        Args:
            i: the variable, by index or column name.
            given: values of known variables.
        """
        model, ([index], known) = self._copy().cpu().double(), self._parse_query([i], given)
        return queries.conditional(model, index, {j: x for j, x in known.items() if x == x})

    def _parse_query(
        self, variables: Sequence[int | str], given: Given
    ) -> tuple[list[int], dict[int, float]]:
        """Indexes of the queried variables, and the given values by index."""
        known, indexes = (
            self._parse_given({} if given is None else given),
            [self._index(v) for v in variables],
        )
        if not indexes or len(set(indexes)) < len(indexes):
            raise ValueError(f"ask about one column or several different ones, not {list(variables)}")
        for variable, index in zip(variables, indexes, strict=True):
            if index in known:
                raise ValueError(f"column {variable!r} is both asked for and given")
        return indexes, known

    def estimate(self, X: Any, draws: int = 16, random_state: int = 0, **options: Any) -> likelihood.Estimate:
        """Unbiased estimate of an orderless model's mean log-likelihood over rows and all orderings.

        For models of images, whose exact score under one ordering takes as many passes of the net as there
        are variables; see `pynade.likelihood.orderless_estimate`.

        Args:
            X: rows; NaN = missing.
            draws: random prefixes (passes of the net) per row.
            random_state: seed.
            **options: `precision` and `progress`, as for `score_orderings`.
        """
        model, options = self._orderless_model().float(), {"precision": "tf32", **options}
        return likelihood.orderless_estimate(model, self._rows(X), draws, random_state, **options)

    def score_orderings(self, X: Any, orderings: Orders, **options: Any) -> evaluation.OrderingScores:
        """Exact log p of each complete row under each ordering (see `pynade.evaluation.score_orderings`).

        Args:
            X: complete rows.
            orderings: a number or a batch of orderings.
            **options: `folder` for finished parts; `progress`, called as progress(done, total); `precision`
                of the net on a GPU, by default "tf32".
        """
        model, orders, rows = self._get_model(), self.orderings(orderings), self._complete_rows(X)
        return evaluation.score_orderings(model, rows, orders, **{"precision": "tf32"} | options)

    def control_variate_ensemble(
        self, X: Any, orderings: Orders, draws: int = 16, every: int = 10, **options: Any
    ) -> evaluation.ControlVariateEnsemble:
        """Mean log-likelihood of an ensemble, with orderless estimates as the control variate.

        All rows are scored by the estimate, every n-th row is also scored exactly.

        Args:
            X: complete rows.
            orderings: a number or a batch of orderings.
            draws: random prefixes (passes of the net) per row of the estimate.
            every: n.
            **options: as for `score_orderings`.
        """
        model, orders, rows = self._orderless_model(), self.orderings(orderings), self._complete_rows(X)
        options = {"precision": "tf32", "every": every, "draws": draws, **options}
        return evaluation.control_variate_ensemble(model, rows, orders, **options)

    @property
    def has_orderings(self) -> bool:
        """Whether the fitted model can be scored under any ordering (orderless or `causal`)."""
        model = getattr(self, "model_", None)
        return isinstance(model, models.Orderless) or getattr(model, "fresh", False)

    def orderings(self, k: Orders | None = None) -> ordering.Ordering:
        """The first k orderings of this estimator's fixed random sequence of orderings.

        Args:
            k: their number, or a batch of orderings that is returned instead; None takes `n_orderings`.
        """
        raise ValueError(
            f"{type(self).__name__} has no choice of orderings; orderless models have (DeepNADE, EoNADE, "
            "DeepRNADE, ConvNADE, ImageNADE, TransformerNADE)"
        )

    def density(self) -> models.Density:
        """The fitted density that `score_samples` evaluates: a copy, on this estimator's device."""
        model = self._copy()
        if self._double:
            model = model.double()
        if isinstance(model, models.Orderless):
            orders = self.orderings()
            model = model.under(orders[0]) if len(orders) == 1 else model.ensemble(orders)
        return model

    def _copy(self) -> Any:
        """A copy of the fitted model on this estimator's device, with its present number of orderings."""
        check_is_fitted(self, "model_")
        model: Any = copy.deepcopy(self.model_).to(torch_device(self.device))
        model = model.under(self.orderings()) if getattr(model, "fresh", False) else model
        return model.double() if has_large_weights(model) else model

    def _get_model(self, imputing: bool = False) -> Any:
        """A copy of the model for queries: in float64 on a CPU, float32 on a GPU."""
        model = self._copy()
        if imputing and hasattr(model, "order") and self._cells().kind == "binary":
            return model  # float32: imputation along a fixed ordering is four times as fast
        return model.double() if model.device.type == "cpu" or self._double else model.float()

    def _query_orderings(self, k: Orders | None = None) -> Orders:
        """The orderings of a query; 1 for a model with fixed orderings or without any."""
        return self.orderings(k) if isinstance(self.model_, models.Orderless) or k is not None else 1

    def _orderless_model(self) -> Any:
        model = self._get_model()
        if isinstance(model, models.Orderless):
            return model
        raise ValueError(
            f"{type(self).__name__} cannot be estimated: its scores along its own orderings are exact; "
            "orderless models can (DeepNADE, DeepRNADE, ConvNADE, ImageNADE, TransformerNADE)"
        )

    def _complete_rows(self, X: Any) -> np.ndarray:
        rows = self._rows(X)
        if not np.isnan(rows).any():
            return rows
        raise ValueError(
            "scoring under given orderings needs complete rows; score_samples takes missing values"
        )

    def _generator(self, random_state: Any) -> torch.Generator:
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return torch.Generator(torch_device(self.device)).manual_seed(seed)

    def _index(self, variable: int | str) -> int:
        names = self._names() or []
        if isinstance(variable, str) and variable in names:
            return names.index(variable)
        if isinstance(variable, str):
            known = f" among {names[:8]}" if names else ", since the model was fitted without column names"
            raise ValueError(f"there is no column {variable!r}{known}")
        try:
            return operator.index(variable)
        except TypeError:
            raise ValueError(f"a variable is an index or a column name, not {variable!r}") from None

    def _parse_given(self, given: Any) -> dict[int, float]:
        if not hasattr(given, "items"):
            raise ValueError(
                f"given is a mapping from columns to values, such as {{'a': 1}}, not {given!r:.60}"
            )
        items = list(given.items())
        indexes = [self._index(variable) for variable, _ in items]
        queries.variable_flags(indexes, self.model_.n_variables, "given")
        return {i: self._code(i, *item) for i, item in zip(indexes, items, strict=True)}

    def _code(self, i: int, variable: int | str, value: Any) -> float:
        """The number that stands for a given value in the model."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"column {variable!r} is given as {value!r}, which is no number") from None
        if number != number:
            raise ValueError(f"variable {variable} is given as NaN; leave out what is not known")
        if abs(number) > LARGEST_NUMBER:
            raise ValueError(
                f"variable {variable} is given as {number:g}; expected at most {LARGEST_NUMBER:g}"
            )
        return number


def has_large_weights(model: torch.nn.Module) -> bool:
    """Whether any weight is so large that sums of products may overflow in float32."""
    largest = [
        torch.linalg.vector_norm(w.detach().float(), math.inf) for w in model.parameters() if w.numel()
    ]
    return bool(largest) and float(torch.stack(largest).max()) > LARGE_WEIGHT


def checked_count(n: int) -> int:
    """The number of samples; a ValueError if it is below 1."""
    if operator.index(n) < 1:
        raise ValueError(f"n_samples must be at least 1, not {n}")
    return n
