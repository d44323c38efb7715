"""The questions one can ask of a fitted model: scores, samples, gaps filled, conditionals, orderings.

What can be answered is a property of the fitted model: orderless models and classical densities answer
everything; models with a fixed ordering answer what their ordering allows, and name the models that can do
the rest.
"""

from __future__ import annotations

import copy
import operator
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from pynade.device import torch_device
from pynade.tables.frames import frame_kind
from pynade.tables.native import build_frame, fill_cells

if TYPE_CHECKING:
    import torch

    from pynade.evaluation import ControlVariateEnsemble, OrderingScores
    from pynade.likelihood import Estimate
    from pynade.models import Density
    from pynade.ordering import Ordering
    from pynade.queries import Conditional

PARTICLES = 256  # per row, where a fixed ordering fills gaps by an estimate


class Questions(DensityMixin, BaseEstimator):
    """Abstract: the queries that every fitted estimator has."""

    device: str
    _double: ClassVar[bool] = False  # compute in float64 on a GPU too

    @abstractmethod
    def _cells(self) -> Any:
        """What the cells of the table are (see `pynade.estimators.cells`)."""

    @abstractmethod
    def _rows(self, X: Any, **options: Any) -> np.ndarray:
        """Converted rows, or one clear sentence; columns of a frame are put into the fitted order."""

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def score_samples(self, X: Any, orderings: int | Ordering | None = None) -> np.ndarray:
        """Exact log p of each row, in nats: (N, D) -> (N,); missing cells are marginalised.

        Args:
            X: rows; NaN = missing, where the model takes missing values.
            orderings: for an orderless model, a number K or a batch of orderings: exact for that ensemble.
                None takes the estimator's own. For a row with missing cells these are taken with its
                observed cells moved to the front.
        """
        from pynade.evaluation import exact_scores

        check_is_fitted(self, "model_")
        rows = self._rows(X)
        return exact_scores(self._ready(), rows, self._query_orderings(orderings))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood per row, in nats; higher is better."""
        return float(self.score_samples(X).mean())

    def summary(self, log_probs: Any) -> Estimate:
        """The mean of scores of this model, with its standard error and whether it is exact."""
        from pynade.likelihood import Estimate

        return Estimate.from_rows(log_probs)

    def sample(
        self, n_samples: int = 1, random_state: Any = None, *, given: Mapping[int | str, float] | None = None
    ) -> Any:
        """Exact draws (n_samples, D): integers of a binary table, else floats.

        They are a frame of the kind that the model was fitted to, or an array.

        Args:
            n_samples: how many.
            random_state: seed.
            given: values of known variables by index or column name: draws that agree with them. An
                orderless model takes orderings that put them first.
        """
        import torch

        from pynade import queries

        check_is_fitted(self, "model_")
        count = checked_count(n_samples)
        if given is None:
            return self._native(self.density().sample(count, self._generator(random_state)))
        known = self._given(given)
        model: Any = self._ready()
        x = torch.full((1, model.n_variables), torch.nan, dtype=model.dtype, device=model.device)
        for i, value in known.items():
            x[0, i] = value
        generator = self._generator(random_state)
        draws = queries.sample_given(
            model, x, ~torch.isnan(x), count, orderings=self._query_orderings(), generator=generator
        )
        return self._native(draws[:, 0])

    def _native(self, draws: Any) -> Any:
        """Draws as the user's table: a frame where the model was fitted to one."""
        rows, names = self._cells().native(draws), self._names()
        if names is None or getattr(self, "frame_", None) is None:
            return rows
        return build_frame({name: rows[:, i] for i, name in enumerate(names)}, {}, self.frame_)

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
        import torch

        from pynade import queries
        from pynade.evaluation import query_rows_at_once

        check_is_fitted(self, "model_")
        rows = self._rows(X, missing=True)
        model: Any = self._ready(imputing=True)
        chosen, generator = self._query_orderings(), self._generator(random_state)
        limit = query_rows_at_once(model, chosen, n or 1)
        parts = [
            queries.impute(
                model, part.to(model.device), n, orderings=chosen, generator=generator, particles=particles
            ).cpu()
            for part in torch.as_tensor(rows, dtype=_row_dtype(model)).split(limit)
        ]
        filled = self._cells().native(torch.cat(parts, dim=-2))
        if frame_kind(X) is None or self._names() is None:
            return np.where(np.isnan(rows), filled, rows).astype(filled.dtype)
        gaps = [(name, np.flatnonzero(np.isnan(rows[:, i]))) for i, name in enumerate(self._names() or ())]
        frames = [
            fill_cells(X, {name: (at, one[at, i]) for i, (name, at) in enumerate(gaps) if len(at)}, {}, ())
            for one in (filled if n is not None else filled[None])
        ]
        return frames if n is not None else frames[0]

    def conditional(self, i: int | str, given: Mapping[int | str, float] | None = None) -> Conditional:
        """p(x_i | given) as a distribution with mean, pmf or pdf, cdf and quantiles.

        Args:
            i: the variable, by index or column name.
            given: values of known variables.
        """
        from pynade import queries

        check_is_fitted(self, "model_")
        model: Any = copy.deepcopy(self.model_)
        return queries.conditional(
            model.double(), self._index(i), self._given({} if given is None else given)
        )

    def estimate(
        self, X: Any, draws: int = 16, random_state: int = 0, precision: str = "tf32", progress: Any = None
    ) -> Estimate:
        """Unbiased estimate of the mean log-likelihood over rows and all orderings, of an orderless model.

        For nets that run as a whole at every step (images), where an exact score of one ordering costs as
        many passes as there are variables; see `pynade.likelihood.orderless_estimate`.

        Args:
            X: rows; NaN = missing.
            draws: passes of the net per row.
            random_state: seed.
            precision: of the net on a GPU (see `pynade.precision`).
            progress: called as progress(rows_done, rows).
        """
        from pynade.likelihood import orderless_estimate

        model = self._orderless("estimated").float()
        return orderless_estimate(
            model, self._rows(X), draws, random_state, precision=precision, progress=progress
        )

    def score_orderings(
        self,
        X: Any,
        orderings: int | Ordering,
        folder: Path | str | None = None,
        progress: Any = None,
        precision: str = "tf32",
    ) -> OrderingScores:
        """Exact log p of each complete row under each ordering (see `pynade.evaluation.score_orderings`).

        Args:
            X: complete rows.
            orderings: a number or a batch of orderings.
            folder: keep finished parts here.
            progress: called as progress(done, total).
            precision: of the net on a GPU.
        """
        from pynade.evaluation import score_orderings

        check_is_fitted(self, "model_")
        chosen, rows, model = self.orderings(orderings), self._complete(X), self._ready()
        return score_orderings(model, rows, chosen, folder=folder, progress=progress, precision=precision)

    def control_variate_ensemble(
        self,
        X: Any,
        orderings: int | Ordering,
        draws: int = 16,
        every: int = 10,
        folder: Path | str | None = None,
        progress: Any = None,
        precision: str = "tf32",
    ) -> ControlVariateEnsemble:
        """The ensemble's log-likelihood on all rows: estimates on all of them, exact on every n-th.

        Args:
            X: complete rows.
            orderings: a number or a batch of orderings.
            draws: passes of the net per row, of the estimate.
            every: n.
            folder: keep finished parts here.
            progress: called as progress(done, total).
            precision: of the net on a GPU.
        """
        from pynade.evaluation import control_variate_ensemble

        model, rows, chosen = self._orderless("estimated"), self._complete(X), self.orderings(orderings)
        options: dict[str, Any] = {"folder": folder, "progress": progress, "precision": precision}
        return control_variate_ensemble(model, rows, chosen, every=every, draws=draws, **options)

    @property
    def has_orderings(self) -> bool:
        """Whether the fitted model can be scored under any ordering: an orderless one, or a causal net."""
        from pynade.models import Ensemble, Orderless

        model = getattr(self, "model_", None)
        return isinstance(model, Orderless) or (isinstance(model, Ensemble) and model.fresh)

    def orderings(self, k: int | Ordering | None = None) -> Ordering:
        """The first k of this estimator's random orderings; k orderings begin with the k-1 orderings."""
        raise ValueError(
            f"{type(self).__name__} has no choice of orderings; orderless models have (DeepNADE, EoNADE, "
            "DeepRNADE, ConvNADE, ImageNADE, TransformerNADE)"
        )

    def density(self) -> Density:
        """The fitted density, a copy on this estimator's device: the object of `score_samples`."""
        from pynade.models import Ensemble, Orderless

        check_is_fitted(self, "model_")
        model: Any = copy.deepcopy(self.model_).to(torch_device(self.device))
        if self._double:
            model = model.double()
        if isinstance(model, Orderless):
            chosen = self.orderings()
            return model.under(chosen[0]) if len(chosen) == 1 else model.ensemble(chosen)
        if isinstance(model, Ensemble) and model.fresh:
            return model.under(self.orderings())
        density: Density = model
        return density

    def _ready(self, imputing: bool = False) -> Any:
        """A copy of the model on the device to ask: float64 on a CPU, float32 on a GPU.

        Filling gaps of binary cells along a fixed ordering stays in float32, which is four times as fast.
        """
        from pynade.models import Ensemble, Orderless

        check_is_fitted(self, "model_")
        device = torch_device(self.device)
        model: Any = copy.deepcopy(self.model_)
        if isinstance(model, Ensemble) and model.fresh:
            model = model.under(self.orderings())
        fixed = hasattr(model, "order") and not isinstance(model, Orderless)
        if imputing and fixed and self._cells().kind == "binary":
            return model.to(device)
        return model.double().to(device) if device.type == "cpu" or self._double else model.float().to(device)

    def _query_orderings(self, k: int | Ordering | None = None) -> int | Ordering:
        """The orderings of a query; 1 for a model that has its own or needs none."""
        from pynade.models import Orderless

        if isinstance(self.model_, Orderless) or k is not None:
            return self.orderings(k)
        return 1

    def _orderless(self, what: str) -> Any:
        from pynade.models import Orderless

        model = self._ready()
        if not isinstance(model, Orderless):
            raise ValueError(
                f"{type(self).__name__} cannot be {what}: its scores along its own orderings are exact; "
                "orderless models can (DeepNADE, DeepRNADE, ConvNADE, ImageNADE, TransformerNADE)"
            )
        return model

    def _complete(self, X: Any) -> np.ndarray:
        rows = self._rows(X)
        if np.isnan(rows).any():
            raise ValueError(
                "scoring under given orderings needs complete rows; score_samples takes missing values"
            )
        return rows

    def _generator(self, random_state: Any) -> torch.Generator:
        import torch

        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return torch.Generator(torch_device(self.device)).manual_seed(seed)

    def _index(self, variable: int | str) -> int:
        names = self._names() or []
        if isinstance(variable, str):
            if variable not in names:
                known = (
                    f" among {names[:8]}" if names else ", since the model was fitted without column names"
                )
                raise ValueError(f"there is no column {variable!r}{known}")
            return names.index(variable)
        try:
            return operator.index(variable)
        except TypeError:
            raise ValueError(f"a variable is an index or a column name, not {variable!r}") from None

    def _given(self, given: Any) -> dict[int, float]:
        from pynade import queries

        if not hasattr(given, "items"):
            raise ValueError(
                f"given is a mapping from columns to values, such as {{'a': 1}}, not {given!r:.60}"
            )
        known: dict[int, float] = {}
        indexes = [self._index(variable) for variable, _ in given.items()]
        queries.variable_flags(indexes, self.n_features_in_, "given")
        for index, (variable, value) in zip(indexes, given.items(), strict=True):
            try:
                known[index] = float(value)
            except (TypeError, ValueError):
                raise ValueError(f"column {variable!r} is given as {value!r}, which is no number") from None
            if known[index] != known[index]:
                raise ValueError(f"variable {variable} is given as NaN; leave out what is not known")
        return known


def checked_count(n: int) -> int:
    """A number of samples, at least 1."""
    if operator.index(n) < 1:
        raise ValueError(f"n_samples must be at least 1, not {n}")
    return n


def _row_dtype(model: Any) -> Any:
    import torch

    return torch.float64 if hasattr(model, "order") else model.dtype
