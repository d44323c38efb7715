"""Transformers over the columns of a table, of real numbers or of zeros and ones, as estimators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pynade.estimators.base import DensityEstimator
from pynade.estimators.domain import BinaryTable, RealTable
from pynade.estimators.gradient import GradientEstimator
from pynade.estimators.orderless import AnyOrderDensity
from pynade.estimators.questions import impute_along
from pynade.evaluation import OrderingScores, score_orderings
from pynade.families import Family
from pynade.models import Density, Ensemble, Orderless
from pynade.nets import CausalTransformer, Net, Transformer
from pynade.ordering import Ordering
from pynade.particles import PARTICLES


@dataclass(eq=False, repr=False)
class TransformerDensity(AnyOrderDensity):
    """What transformers over the columns of a table share, whatever its cells are.

    There are three. By default what is said of a column depends on *which* others are known, and every
    question has an exact answer; the price is a pass of the net for every column that is scored. A causal
    one says all columns along an ordering in one pass: `causal` learns all orderings, `fixed_order` one.

    Attributes:
        width: numbers per token; a multiple of `heads`.
        depth: blocks of attention and a two-layer net.
        heads: attention heads.
        mlp_ratio: hidden units of the two-layer nets, as a multiple of `width`.
        dropout: share of what each half of a block adds that is dropped in training.
        fixed_order: True is a causal transformer along one ordering: exact scores in one pass, no questions
            about any variable given any others, gaps filled by an estimate, no other missing values.
        causal: True is a causal transformer that is trained on a random ordering of every row, and scored
            and asked under `n_orderings` of them: exact scores take one pass an ordering. It is asked as
            models with a fixed ordering are.
        n_orderings: K, orderings whose densities are averaged in scores and samples, unless it is fixed.
    """

    width: int = 256
    depth: int = 6
    heads: int = 8
    mlp_ratio: int = 4
    dropout: float = 0.0
    fixed_order: bool = False
    causal: bool = False
    n_orderings: int = 1

    @property
    def along(self) -> bool:
        """Whether the model has orderings of its own, rather than answers for any set of known columns."""
        return self.fixed_order or self.causal

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = not self.along
        return tags

    def score_samples(self, X: Any, orderings: int | Ordering | None = None) -> np.ndarray:
        """Exact log p of each row, in nats: (N, D) -> (N,); `orderings` as for other orderless models."""
        if self.along and orderings is None:
            return DensityEstimator.score_samples(self, X)
        if self.causal:
            return self.score_orderings(X, self.orderings(orderings)).ensemble_rows()
        return super().score_samples(X, orderings)

    def score_orderings(
        self,
        X: Any,
        orderings: int | Ordering,
        folder: Path | str | None = None,
        progress: Any = None,
        precision: str = "tf32",
    ) -> OrderingScores:
        """Exact log p of each complete row under each ordering; in one pass an ordering, if `causal`."""
        if not self.causal:
            return super().score_orderings(X, orderings, folder, progress, precision)
        model, chosen = self._asked(), self.orderings(orderings)
        assert isinstance(model, Ensemble)
        how: dict[str, Any] = {"folder": folder, "progress": progress, "precision": precision}
        return score_orderings(model, self._complete_rows(X), chosen, **how)

    def impute(
        self, X: Any, n: int | None = None, random_state: Any = None, particles: int = PARTICLES
    ) -> np.ndarray:
        """Fill missing cells (NaN), as other orderless models do; along a fixed ordering it is an estimate.

        Args:
            X: rows with NaN.
            n: None fills in the mean of each cell given the observed cells, (N, D); a number gives that many
                joint draws, (n, N, D).
            random_state: seed.
            particles: weighted walkers of each row along a fixed ordering (see `RNADE.impute`); an any-order
                model needs none.
        """
        if self.along:
            return impute_along(self, X, n, random_state, particles)
        return super().impute(X, n, random_state)

    def density(self) -> Density:
        """The density along the model's own ordering or orderings, on its device."""
        return self._chosen(DensityEstimator.density(self)) if self.along else super().density()

    def _asked(self) -> Any:
        return self._chosen(super()._asked())

    def _chosen(self, model: Any) -> Any:
        """The model under as many orderings as `n_orderings` says now, if it has learnt all of them."""
        return model.under(self.orderings()) if self.causal else model

    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        rows = super()._rows(X, reset=reset)
        if self.along and np.isnan(rows).any():  # with orderings of its own it learns, and scores, whole rows
            row, column = np.argwhere(np.isnan(rows))[0]
            raise ValueError(
                f"a causal transformer takes finite numbers, but row {row}, column {column} is NaN; "
                "a transformer that is not causal (nor fixed_order) takes missing values"
            )
        return rows

    def _orderless(self) -> Orderless:
        if self.fixed_order:
            raise ValueError("a causal transformer has one ordering only; fixed_order=False has all of them")
        if self.causal:
            raise ValueError(
                "a causal transformer is scored along orderings, exactly and in one pass each "
                "(score_orderings); there is nothing to estimate"
            )
        return super()._orderless()

    def _query_orderings(self) -> int | Ordering:  # type: ignore[override]
        return 1 if self.along else super()._query_orderings()

    def _default_orderings(self) -> int:
        return self.n_orderings

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        kind = CausalTransformer if self.along else Transformer
        return kind(
            n_variables,
            family.n_params,
            n_features=family.n_features,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            mlp_ratio=self.mlp_ratio,
            dropout=self.dropout,
            generator=generator,
        )

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Density | Orderless:
        if self.fixed_order:
            if self.causal:
                raise ValueError(
                    "give fixed_order=True or causal=True, not both: one ordering, or all of them"
                )
            if self.n_orderings != 1:
                raise ValueError(
                    f"fixed_order=True has one ordering, so n_orderings is 1, not {self.n_orderings}"
                )
            return GradientEstimator._model(self, net, family, generator)
        if self.causal:
            again = torch.Generator().manual_seed(generator.initial_seed())  # those of `orderings`
            chosen = self._ordering(net.n_variables, again, k=self.n_orderings)
            return Ensemble(net, family, chosen, fresh=True)
        return super()._model(net, family, generator)


@dataclass(eq=False, repr=False)
class TransformerNADE(RealTable, TransformerDensity):
    """Transformer over the columns of a table of real numbers, any-order or along a fixed ordering.

    Args:
        **parameters: see `TransformerDensity`, `RealTable` and `GradientEstimator`.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(400, 1))
        >>> X = np.hstack([x, -x]) + 0.1 * np.random.default_rng(1).normal(size=(400, 2))
        >>> small = {"width": 16, "depth": 1, "heads": 2, "n_components": 2, "random_state": 0}
        >>> model = TransformerNADE(**small, fixed_order=True, epochs=60, learning_rate=0.01).fit(X)
        >>> bool(model.score(X) > -1.5)  # independent columns: -2.8
        True
    """


@dataclass(eq=False, repr=False)
class BinaryTransformerNADE(BinaryTable, TransformerDensity):
    """Transformer over the columns of a table of zeros and ones, any-order or along a fixed ordering.

    Args:
        **parameters: see `TransformerDensity`, `BinaryTable` and `GradientEstimator`.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).integers(0, 2, (300, 1)).repeat(4, axis=1)  # four equal columns
        >>> small = {"width": 16, "depth": 1, "heads": 2, "random_state": 0}
        >>> model = BinaryTransformerNADE(**small, epochs=40, learning_rate=0.01).fit(X)
        >>> model.impute(np.array([[1.0, np.nan, np.nan, 1.0]])).tolist()
        [[1, 1, 1, 1]]
    """
