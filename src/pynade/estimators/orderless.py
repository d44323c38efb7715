"""DeepNADE and EoNADE: one network, every ordering, every question."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from pynade import queries
from pynade.estimators.base import BinaryDensity, _count, torch_device
from pynade.evaluation import OrderingScores, score_orderings
from pynade.families import Bernoulli
from pynade.learn import Callback, pretrain
from pynade.learn.step import fast_matmul
from pynade.models import Density, Orderless
from pynade.nets import MaskedMLP, Net
from pynade.ordering import Ordering

ROWS_AT_ONCE = 2_000  # (row, ordering) pairs of a query that walk together


@dataclass(eq=False, repr=False)
class OrderlessDensity(BinaryDensity):
    """What DeepNADE and EoNADE share: training on random orderings, and every question afterwards.

    NaN marks a missing value, in training, scoring and queries alike.

    Attributes:
        hidden: units of each layer; an int for one layer.
        activation: "relu", "tanh", "sigmoid" or "silu".
        input_observed: tell the net which inputs are observed (False: the paper's "no input masks").
        residual: residual connections between layers of equal width.
        layer_norm: normalise every layer's pre-activations.
        dropout: share of hidden activations dropped in training.
        pretrain_epochs: epochs after each new layer of layer-wise pretraining (Algorithm 2 uses 20); 0 starts
            the whole net from random weights.
        stratified: spread the prefix lengths evenly over each minibatch.
    """

    hidden: int | Sequence[int] = (500, 500)
    activation: str = "relu"
    input_observed: bool = True
    residual: bool = False
    layer_norm: bool = False
    dropout: float = 0.0
    pretrain_epochs: int = 0
    stratified: bool = True
    patience: int | None = field(default=30, kw_only=True)  # the validation score is an estimate: wait longer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def score_samples(self, X: Any, orderings: int | Ordering | None = None) -> np.ndarray:
        """Exact log p of each row, in nats: (N, D) -> (N,); missing cells are marginalised.

        Args:
            X: rows, NaN = missing.
            orderings: a number K or a batch of orderings: exact for that ensemble. None takes the
                estimator's own (one ordering, or its `n_orderings`). For a row with missing cells these
                are taken with its observed cells moved to the front.
        """
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        chosen = self.orderings(orderings)
        model = self._scoring_model()
        complete = ~np.isnan(rows).any(1)
        out = np.empty(len(rows))
        with fast_matmul():
            if complete.any():
                out[complete] = score_orderings(model, rows[complete], chosen).ensemble_rows()
            if not complete.all():
                out[~complete] = self._marginal(model, rows[~complete], chosen)
        return out

    def score_orderings(
        self, X: Any, orderings: int | Ordering, folder: Path | str | None = None, progress: Any = None
    ) -> OrderingScores:
        """Exact log p of each complete row under each ordering (see `pynade.evaluation.score_orderings`)."""
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        if np.isnan(rows).any():
            raise ValueError(
                "scoring under given orderings needs complete rows; score_samples takes missing values"
            )
        with fast_matmul():
            return score_orderings(
                self._scoring_model(), rows, self.orderings(orderings), folder=folder, progress=progress
            )

    def orderings(self, k: int | Ordering | None = None) -> Ordering:
        """The first k of this estimator's random orderings; k orderings begin with the k-1 orderings."""
        check_is_fitted(self, "model_")
        if isinstance(k, Ordering):
            if k.n_variables != self.n_features_in_:
                raise ValueError(
                    f"the orderings have {k.n_variables} variables, the data {self.n_features_in_}"
                )
            return k if k.is_batch else Ordering.trusted(k.order[None])
        k = self._default_orderings() if k is None else k
        if k < 1:
            raise ValueError(f"the number of orderings must be at least 1, not {k}")
        return self._ordering(self.n_features_in_, torch.Generator().manual_seed(self.seed_), k)

    def density(self) -> Density:
        """The density of the estimator's own orderings, on its device."""
        chosen = self.orderings()
        model: Orderless = copy.deepcopy(self.model_).to(torch_device(self.device))
        return model.under(chosen[0]) if len(chosen) == 1 else model.ensemble(chosen)

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        given: Mapping[int | str, float] | None = None,
    ) -> np.ndarray:
        """Exact draws, integers 0/1 (n_samples, D); with `given`, draws that agree with it.

        Args:
            n_samples: how many.
            random_state: seed.
            given: values of known variables by index or column name. Exact for orderings that put
                them first.
        """
        if given is None:
            return super().sample(n_samples, random_state)
        known = self._given(given)
        model = self._scoring_model().float()
        x = torch.full((1, model.n_variables), torch.nan, device=model.device)
        for i, value in known.items():
            x[0, i] = value
        generator = self._generator(random_state)
        draws = queries.sample_given(
            model, x, ~torch.isnan(x), _count(n_samples), orderings=self.orderings(), generator=generator
        )
        return draws[:, 0].cpu().numpy().astype(np.int64)

    def impute(self, X: Any, n: int | None = None, random_state: Any = None) -> np.ndarray:
        """Fill missing cells (NaN).

        Args:
            X: rows with NaN. With `binarize`, observed cells come back thresholded.
            n: None fills in each cell's likelier value given the observed cells, (N, D); a number gives
                that many joint draws, (n, N, D), for multiple imputation.
            random_state: seed of the draws.
        """
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        model = self._scoring_model().float()
        generator = self._generator(random_state)
        chosen = self.orderings()
        parts = []
        together = max(1, ROWS_AT_ONCE // (len(chosen) * (n or 1)))
        for part in torch.as_tensor(rows, dtype=torch.float32).split(together):
            filled = queries.impute(model, part.to(model.device), n, orderings=chosen, generator=generator)
            parts.append(filled.cpu())
        return torch.cat(parts, dim=-2).numpy().astype(np.int64)

    def conditional(
        self, i: int | str, given: Mapping[int | str, float] | None = None
    ) -> queries.Conditional:
        """p(x_i | given) as a distribution with mean, pmf, cdf and quantiles.

        Args:
            i: the variable asked for, by index or column name.
            given: values of known variables.
        """
        check_is_fitted(self, "model_")
        return queries.conditional(
            copy.deepcopy(self.model_).double(), self._index(i), self._given(given or {})
        )

    def _default_orderings(self) -> int:
        return 1

    def _net(self, n_variables: int, generator: torch.Generator) -> Net:
        return MaskedMLP(
            n_variables,
            hidden=self.hidden,
            activation=self.activation,
            input_observed=self.input_observed,
            residual=self.residual,
            layer_norm=self.layer_norm,
            dropout=self.dropout,
            generator=generator,
        )

    def _model(self, net: Net, generator: torch.Generator) -> Orderless:
        self._ordering(net.n_variables, generator, k=self._default_orderings())  # refuses what is bad early
        assert isinstance(net, MaskedMLP)
        return Orderless(net, Bernoulli(), self.stratified)

    def _warm_up(
        self,
        model: Density | Orderless,
        train: np.ndarray,
        seed: int,
        folder: Path | str | None,
        callbacks: Sequence[Callback],
    ) -> Density | Orderless:
        if self.pretrain_epochs < 0:
            raise ValueError(f"pretrain_epochs must be at least 0, not {self.pretrain_epochs}")
        if self.pretrain_epochs == 0:
            return model
        assert isinstance(model, Orderless)
        return pretrain(
            model,
            train,
            self.how(),
            iterations=self.pretrain_epochs,
            seed=seed,
            folder=folder,
            callbacks=callbacks,
        )

    def _binary(self, X: np.ndarray) -> np.ndarray:
        """Zeros and ones as uint8; as float32 with NaN where cells are missing."""
        missing = np.isnan(X) if X.dtype.kind == "f" else np.zeros(1, dtype=bool)
        if not missing.any():
            return super()._binary(X)
        if missing.all(1).any():
            row = int(missing.all(1).argmax())
            raise ValueError(f"row {row} has no value at all: every cell is missing")
        if np.isinf(X).any():
            row, column = np.argwhere(np.isinf(X))[0]
            raise ValueError(f"row {row}, column {column} is inf; missing cells are marked by NaN")
        filled = super()._binary(np.where(missing, 0.0 if self.binarize is None else self.binarize, X))
        return np.where(missing, np.float32(np.nan), filled.astype(np.float32))

    def _scoring_model(self) -> Orderless:
        """A copy on the device: float64 on a CPU, float32 (TF32 products) on a GPU."""
        device = torch_device(self.device)
        model: Orderless = copy.deepcopy(self.model_)
        return model.double() if device.type == "cpu" else model.float().to(device)

    def _marginal(self, model: Orderless, rows: np.ndarray, chosen: Ordering) -> np.ndarray:
        out = []
        with torch.no_grad():
            for part in torch.as_tensor(rows, dtype=model.dtype).split(max(1, ROWS_AT_ONCE // len(chosen))):
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


@dataclass(eq=False, repr=False)
class DeepNADE(OrderlessDensity):
    """Deep, order-agnostic NADE; scored and sampled along one ordering, asked any conditional.

    Args:
        **parameters: see `OrderlessDensity` and `BinaryDensity`.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)  # four equal columns
        >>> model = DeepNADE(hidden=(32, 32), learning_rate=0.01, epochs=60, random_state=0).fit(X)
        >>> model.impute(np.array([[1.0, np.nan, np.nan, 1.0]])).tolist()
        [[1, 1, 1, 1]]
        >>> bool(model.conditional(2, given={0: 0}).mean() < 0.1)
        True
    """


@dataclass(eq=False, repr=False)
class EoNADE(OrderlessDensity):
    """Ensemble of orderings of one deep NADE: p(x) is the mean of their probabilities.

    The number of orderings costs nothing in training and may be changed afterwards. With one hidden
    layer of 500 units and 16 orderings this is the paper's NADE-E.

    Args:
        n_orderings: K.
        **parameters: see `OrderlessDensity` and `BinaryDensity`.

    Example:
        >>> import numpy as np
        >>> X = np.eye(4).repeat(50, axis=0)
        >>> model = EoNADE(hidden=32, n_orderings=4, epochs=5, random_state=0).fit(X)
        >>> model.score_samples(X[:2]).shape
        (2,)
    """

    n_orderings: int = 8

    def _default_orderings(self) -> int:
        return self.n_orderings
