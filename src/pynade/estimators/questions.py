"""Questions to models that can answer all of them: any conditional, any gap filled.

Models with a fixed ordering fill gaps too, by an estimate (`impute_along`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data

from pynade import queries
from pynade.estimators.base import DensityEstimator, _count, torch_device
from pynade.families import Bernoulli
from pynade.models import Autoregressive, Ensemble, Marginalisable, Orderless
from pynade.ordering import Ordering

ROWS_AT_ONCE = 2_000  # (row, ordering) pairs of a query that walk together


class Questions(DensityEstimator):
    """Abstract estimator whose model answers every question; NaN marks a missing value everywhere."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _query_orderings(self) -> int | Ordering:
        """The orderings an orderless model is asked under; 1 for a model that needs none."""
        return 1

    def _asked(self) -> Orderless | Marginalisable:
        """A copy of the model on the device: float64 on a CPU, float32 on a GPU."""
        check_is_fitted(self, "model_")
        device = torch_device(self.device)
        model: Orderless | Marginalisable = copy.deepcopy(self.model_)
        return model.double() if device.type == "cpu" else model.float().to(device)

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        given: Mapping[int | str, float] | None = None,
    ) -> np.ndarray:
        """Exact draws (n_samples, D); with `given`, draws that agree with it.

        Args:
            n_samples: how many.
            random_state: seed.
            given: values of known variables by index or column name. For an orderless model exact for
                orderings that put them first.
        """
        if given is None:
            return super().sample(n_samples, random_state)
        known = self._given(given)
        model = self._asked()
        x = torch.full((1, model.n_variables), torch.nan, dtype=model.dtype, device=model.device)
        for i, value in known.items():
            x[0, i] = value
        draws = queries.sample_given(
            model,
            x,
            ~torch.isnan(x),
            _count(n_samples),
            orderings=self._query_orderings(),
            generator=self._generator(random_state),
        )
        return self._native(draws[:, 0])

    def impute(self, X: Any, n: int | None = None, random_state: Any = None) -> np.ndarray:
        """Fill missing cells (NaN).

        Args:
            X: rows with NaN. With `binarize`, observed cells come back thresholded.
            n: None fills in each cell's best guess given the observed cells (the likelier value of a binary
                cell, the mean of a real one), (N, D); a number gives that many joint draws, (n, N, D), for
                multiple imputation.
            random_state: seed of the draws.
        """
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        model = self._asked()
        generator = self._generator(random_state)
        chosen = self._query_orderings()
        k = 1 if isinstance(chosen, int) else len(chosen)
        parts = []
        for part in torch.as_tensor(rows, dtype=model.dtype).split(max(1, _at_once(model) // (k * (n or 1)))):
            made = queries.impute(model, part.to(model.device), n, orderings=chosen, generator=generator)
            parts.append(made.cpu())
        return _with_gaps_filled(self, rows, torch.cat(parts, dim=-2))

    def conditional(
        self, i: int | str, given: Mapping[int | str, float] | None = None
    ) -> queries.Conditional:
        """p(x_i | given) as a distribution with mean, pmf or pdf, cdf and quantiles.

        Args:
            i: the variable asked for, by index or column name.
            given: values of known variables.
        """
        check_is_fitted(self, "model_")
        return queries.conditional(
            copy.deepcopy(self.model_).double(), self._index(i), self._given(given or {})
        )

    def _marginal(
        self, model: Orderless | Marginalisable, rows: np.ndarray, chosen: int | Ordering
    ) -> np.ndarray:
        """log p of the observed cells of rows with gaps."""
        k = 1 if isinstance(chosen, int) else len(chosen)
        out = []
        with torch.no_grad():
            for part in torch.as_tensor(rows, dtype=model.dtype).split(max(1, _at_once(model) // k)):
                x = part.to(model.device)
                out.append(queries.marginal_log_prob(model, x, ~torch.isnan(x), orderings=chosen).cpu())
        return torch.cat(out).numpy()

    def _index(self, variable: int | str) -> int:
        if isinstance(variable, str):
            names = list(getattr(self, "feature_names_in_", getattr(self, "columns_", ())))
            if variable not in names:
                raise ValueError(
                    f"there is no column {variable!r}" + (f" among {names[:8]}" if names else "")
                )
            return names.index(variable)
        return int(variable)

    def _given(self, given: Mapping[int | str, float]) -> dict[int, float]:
        check_is_fitted(self, "model_")
        indexes = [self._index(variable) for variable in given]
        queries.variable_flags(indexes, self.n_features_in_, "given")
        known = dict(zip(indexes, map(float, given.values()), strict=True))
        for variable, value in known.items():
            if value != value:
                raise ValueError(f"variable {variable} is given as NaN; leave out what is not known")
        return known


def impute_along(
    estimator: DensityEstimator, X: Any, n: int | None, random_state: Any, particles: int
) -> np.ndarray:
    """`impute` of an estimator whose model has a fixed ordering: by `particles` weighted walkers a row.

    Such an estimator takes no gaps elsewhere, so its check of values sees a zero in their place.
    """
    check_is_fitted(estimator, "model_")
    X = validate_data(estimator, X, reset=False, dtype="numeric", ensure_all_finite=False)
    missing = np.isnan(X) if X.dtype.kind == "f" else np.zeros(X.shape, dtype=bool)
    refuse_empty_rows(missing)
    rows = estimator._convert(np.where(missing, 0, X), reset=False)
    rows = np.where(missing, np.nan, rows.astype(np.float64))
    model = estimator.density()
    assert isinstance(model, Autoregressive | Ensemble)
    if model.device.type == "cpu" and not isinstance(model.family, Bernoulli):
        model = model.double()  # zeros and ones lose nothing in float32, which is four times as fast
    x, generator = torch.as_tensor(rows, device=model.device), estimator._generator(random_state)
    filled = queries.impute(model, x, n, generator=generator, particles=particles)
    return _with_gaps_filled(estimator, rows, filled)


def refuse_empty_rows(missing: np.ndarray) -> None:
    """Raise a ValueError if a row has no value at all; missing is bool (N, D)."""
    if missing.all(1).any():
        row = int(missing.all(1).argmax())
        raise ValueError(f"row {row} has no value at all: every cell is missing")


def _with_gaps_filled(estimator: DensityEstimator, rows: np.ndarray, made: torch.Tensor) -> np.ndarray:
    """Rows (N, D) with what was made, (…, N, D), where they are NaN; observed cells come back exactly."""
    filled = estimator._native(made)
    return np.where(np.isnan(rows), filled, rows).astype(filled.dtype)


def _at_once(model: Orderless | Marginalisable) -> int:
    """(row, ordering) pairs that walk together: fewer where a net needs much memory for each."""
    room = model.net.rows_at_once(model.device) if isinstance(model, Orderless) else ROWS_AT_ONCE
    return min(ROWS_AT_ONCE, room)
