"""The questions one can ask of a fitted model: scores, samples, gaps filled, conditionals, orderings.

Orderless models and classical densities answer everything; models with a fixed ordering answer what their
ordering allows, and name the models that can do the rest.
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
from pynade.estimators.cells import FARTHEST
from pynade.estimators.modules import evaluation, likelihood, models, ordering, queries, torch
from pynade.tables.frames import build_frame, fill_cells, frame_kind, native_frame

Orders: TypeAlias = "int | ordering.Ordering"  # a number or a batch of orderings
Given = Mapping[int | str, float] | None  # values of known variables by index or column name
PARTICLES = 256  # per row, where a fixed ordering fills gaps by an estimate
LARGE = 1e6  # weights above it are asked in float64: products of theirs may overflow in float32


class Questions(DensityMixin, BaseEstimator):
    """Abstract: the queries that every fitted estimator has."""

    device: str
    _double: ClassVar[bool] = False  # compute in float64 on a GPU too

    @abstractmethod
    def _cells(self) -> Any:
        """What the cells of the table are (see `pynade.estimators.cells`)."""

    @abstractmethod
    def _rows(self, X: Any, *, missing: bool | None = None) -> np.ndarray:
        """Converted rows, or one clear sentence (see `DensityEstimator`)."""

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def score_samples(self, X: Any, orderings: Orders | None = None) -> np.ndarray:
        """Exact log p of each row, in nats; of a row with gaps, in orderless models, it is no marginal.

        (N, D) -> (N,). An orderless model scores a row with missing cells along orderings that begin with its
        observed ones: exact for these. More `orderings` bring this and the marginal of the density that
        scores complete rows closer, not together; `disagreement` says by how many nats orderings differ.
        Other models marginalise.

        On a CPU the score of a row does not depend on the rows beside it: it is the same to within 1e-12
        (relative or absolute), whatever their number and order.

        Args:
            X: rows; NaN = missing, where the model takes missing values.
            orderings: for an orderless model, a number K or a batch of orderings: exact for that ensemble.
                None takes the estimator's own.
        """
        return evaluation.exact_scores(self._ready(), self._rows(X), self._query_orderings(orderings))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood per row, in nats; higher is better.

        Args:
            X: rows.
            y: not used; scikit-learn passes it.
        """
        return float(self.score_samples(X).mean())

    def summary(self, log_probs: Any) -> likelihood.Estimate:
        """The mean of scores of this model, with its standard error and whether it is exact.

        Args:
            log_probs: of rows, from `score_samples`.
        """
        return likelihood.Estimate.from_rows(log_probs)

    def sample(self, n_samples: int = 1, random_state: Any = None, *, given: Given = None) -> Any:
        """Exact draws (n_samples, D): integers of a binary table, else floats; of a mixed table, its types.

        They are a frame of the kind that the model was fitted to, or an array.

        Args:
            n_samples: how many.
            random_state: seed.
            given: values of known variables by index or column name: draws that agree with them. An
                orderless model takes orderings that put them first.
        """
        check_is_fitted(self, "model_")
        count, generator = checked_count(n_samples), self._generator(random_state)
        if given is None:
            return self._native(self.density().sample(count, generator), generator)
        model, x = self._ready(), self._row(self._given(given))
        named: Any = {"orderings": self._query_orderings(), "generator": generator}
        return self._native(queries.sample_given(model, x, ~torch.isnan(x), count, **named)[:, 0], generator)

    def _row(self, known: Mapping[int, float]) -> torch.Tensor:
        """One row (1, D) of known values, NaN elsewhere."""
        cells = [known.get(i, math.nan) for i in range(self.model_.n_variables)]
        return torch.tensor([cells], dtype=torch.float64, device=torch_device(self.device))

    def _native(self, draws: Any, generator: torch.Generator | None = None) -> Any:
        """Draws as the user's table: a frame where the model was fitted to one."""
        rows, names = self._cells().native(draws), self._names()
        if getattr(self, "frame_", None) is None:
            return rows
        labels = names or range(rows.shape[1])  # numbers, of a pandas frame
        columns = {str(label): rows[:, i] for i, label in enumerate(labels)}
        return build_frame(columns, {str(label): {"label": label} for label in labels}, self.frame_)

    def impute(
        self, X: Any, n: int | None = None, random_state: Any = None, particles: int = PARTICLES
    ) -> Any:
        """Fill missing cells (NaN); a frame comes back as a frame, with n as a list of them.

        Exact for orderless models and classical densities. A model with a fixed ordering fills gaps by an
        estimate with weighted particles, and warns where their effective sample size is small.

        Args:
            X: rows with NaN. With `binarize`, observed cells come back thresholded.
            n: None fills in each cell's best guess given the observed cells (the likelier value of a binary
                cell, the mean of a real one), (N, D); a number gives that many joint draws, (n, N, D), for
                multiple imputation.
            random_state: seed of the draws and particles.
            particles: per row, for a model with a fixed ordering; more are better and take longer.
        """
        rows = self._rows(X, missing=True)
        filled = self._cells().native(self._completions(rows, n, random_state, particles))
        if frame_kind(X) is None:
            return np.where(np.isnan(rows), filled, rows).astype(filled.dtype)
        names = self._names() or native_frame(X)[0].columns
        gaps = [(name, np.flatnonzero(np.isnan(rows[:, i]))) for i, name in enumerate(names)]
        frames = [
            fill_cells(X, {name: (at, one[at, i]) for i, (name, at) in enumerate(gaps) if len(at)}, {}, ())
            for one in (filled if n is not None else filled[None])
        ]
        return frames if n is not None else frames[0]

    def _completions(self, rows: np.ndarray, n: int | None, random_state: Any, particles: int) -> Any:
        """Rows with their missing cells filled by best guesses, (N, D), or by n draws, (n, N, D)."""
        model, orders = self._ready(imputing=True), self._query_orderings()
        named: Any = {"orderings": orders, "generator": self._generator(random_state)}
        limit = evaluation.query_rows_at_once(model, orders, n or 1)
        parts = [
            queries.impute(model, part.to(model.device), n, particles=particles, **named).cpu()
            for part in torch.as_tensor(rows, dtype=torch.float64).split(limit)
        ]
        filled = torch.cat(parts, dim=-2)
        if (lost := ~torch.isfinite(filled).all(-1)).any():
            row = int(lost.nonzero()[0, -1])
            raise ValueError(f"row {row} cannot be filled: its values are too far from those of training")
        return filled

    def conditional(self, i: int | str, given: Given = None) -> Any:
        """p(x_i | given) as a distribution with mean, pmf or pdf, cdf and quantiles.

        Args:
            i: the variable, by index or column name.
            given: values of known variables.
        """
        model, ([place], known) = self._copy().cpu().double(), self._asked([i], given)
        return queries.conditional(model, place, {j: x for j, x in known.items() if x == x})

    def _asked(self, variables: Sequence[int | str], given: Given) -> tuple[list[int], dict[int, float]]:
        """Indexes of the variables that are asked for, and the given values by index."""
        known, places = self._given({} if given is None else given), [self._index(v) for v in variables]
        if not places or len(set(places)) < len(places):
            raise ValueError(f"ask about one column or several different ones, not {list(variables)}")
        for variable, place in zip(variables, places, strict=True):
            if place in known:
                raise ValueError(f"column {variable!r} is both asked for and given")
        return places, known

    def estimate(self, X: Any, draws: int = 16, random_state: int = 0, **options: Any) -> likelihood.Estimate:
        """Unbiased estimate of the mean log-likelihood over rows and all orderings, of an orderless model.

        For nets that run as a whole at every step (images), where an exact score of one ordering costs as
        many passes as there are variables; see `pynade.likelihood.orderless_estimate`.

        Args:
            X: rows; NaN = missing.
            draws: passes of the net per row.
            random_state: seed.
            **options: `precision` and `progress`, as for `score_orderings`.
        """
        model, options = self._orderless().float(), {"precision": "tf32", **options}
        return likelihood.orderless_estimate(model, self._rows(X), draws, random_state, **options)

    def score_orderings(self, X: Any, orderings: Orders, **options: Any) -> evaluation.OrderingScores:
        """Exact log p of each complete row under each ordering (see `pynade.evaluation.score_orderings`).

        Args:
            X: complete rows.
            orderings: a number or a batch of orderings.
            **options: `folder` to keep finished parts in; `progress`, called as progress(done, total);
                `precision` of the net on a GPU, by default "tf32".
        """
        model, chosen, rows = self._ready(), self.orderings(orderings), self._complete(X)
        return evaluation.score_orderings(model, rows, chosen, **{"precision": "tf32"} | options)

    def control_variate_ensemble(
        self, X: Any, orderings: Orders, draws: int = 16, every: int = 10, **options: Any
    ) -> evaluation.ControlVariateEnsemble:
        """The ensemble's log-likelihood on all rows: estimates on all of them, exact on every n-th.

        Args:
            X: complete rows.
            orderings: a number or a batch of orderings.
            draws: passes of the net per row, of the estimate.
            every: n.
            **options: as for `score_orderings`.
        """
        model, chosen, rows = self._orderless(), self.orderings(orderings), self._complete(X)
        options = {"precision": "tf32", "every": every, "draws": draws, **options}
        return evaluation.control_variate_ensemble(model, rows, chosen, **options)

    @property
    def has_orderings(self) -> bool:
        """Whether the fitted model can be scored under any ordering: an orderless one, or a causal net."""
        model = getattr(self, "model_", None)
        return isinstance(model, models.Orderless) or getattr(model, "fresh", False)

    def orderings(self, k: Orders | None = None) -> ordering.Ordering:
        """The first k of this estimator's random orderings; k orderings begin with the k-1 orderings.

        Args:
            k: how many, or a batch of orderings to take instead; None takes `n_orderings`.
        """
        raise ValueError(
            f"{type(self).__name__} has no choice of orderings; orderless models have (DeepNADE, EoNADE, "
            "DeepRNADE, ConvNADE, ImageNADE, TransformerNADE)"
        )

    def density(self) -> models.Density:
        """The fitted density, a copy on this estimator's device: the object of `score_samples`."""
        model = self._copy()
        if self._double:
            model = model.double()
        if isinstance(model, models.Orderless):
            chosen = self.orderings()
            model = model.under(chosen[0]) if len(chosen) == 1 else model.ensemble(chosen)
        return model

    def _copy(self) -> Any:
        """A copy of the fitted model on this estimator's device, under its orderings where these are free."""
        check_is_fitted(self, "model_")
        model: Any = copy.deepcopy(self.model_).to(torch_device(self.device))
        model = model.under(self.orderings()) if getattr(model, "fresh", False) else model
        return model.double() if has_large_weights(model) else model

    def _ready(self, imputing: bool = False) -> Any:
        """A copy of the model on the device to ask: float64 on a CPU, float32 on a GPU."""
        model = self._copy()
        if imputing and hasattr(model, "order") and self._cells().kind == "binary":
            return model  # in float32 gaps are filled along a fixed ordering four times as fast
        return model.double() if model.device.type == "cpu" or self._double else model.float()

    def _query_orderings(self, k: Orders | None = None) -> Orders:
        """The orderings of a query; 1 for a model that has its own or needs none."""
        free = isinstance(self.model_, models.Orderless) or k is not None
        return self.orderings(k) if free else 1

    def _orderless(self) -> Any:
        model = self._ready()
        if isinstance(model, models.Orderless):
            return model
        raise ValueError(
            f"{type(self).__name__} cannot be estimated: its scores along its own orderings are exact; "
            "orderless models can (DeepNADE, DeepRNADE, ConvNADE, ImageNADE, TransformerNADE)"
        )

    def _complete(self, X: Any) -> np.ndarray:
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

    def _given(self, given: Any) -> dict[int, float]:
        if not hasattr(given, "items"):
            raise ValueError(
                f"given is a mapping from columns to values, such as {{'a': 1}}, not {given!r:.60}"
            )
        items = list(given.items())
        indexes = [self._index(variable) for variable, _ in items]
        queries.variable_flags(indexes, self.model_.n_variables, "given")
        return {i: self._code(i, *item) for i, item in zip(indexes, items, strict=True)}

    def _code(self, i: int, variable: int | str, value: Any) -> float:
        """The number that the model sees for a given value."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"column {variable!r} is given as {value!r}, which is no number") from None
        if number != number:
            raise ValueError(f"variable {variable} is given as NaN; leave out what is not known")
        if abs(number) > FARTHEST:
            raise ValueError(f"variable {variable} is given as {number:g}; expected at most {FARTHEST:g}")
        return number


def has_large_weights(model: torch.nn.Module) -> bool:
    """Whether a weight is so large that sums of products may overflow in float32."""
    largest = [
        torch.linalg.vector_norm(w.detach().float(), math.inf) for w in model.parameters() if w.numel()
    ]
    return bool(largest) and float(torch.stack(largest).max()) > LARGE


def checked_count(n: int) -> int:
    """A number of samples, at least 1."""
    if operator.index(n) < 1:
        raise ValueError(f"n_samples must be at least 1, not {n}")
    return n
