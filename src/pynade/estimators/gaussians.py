"""What the estimators of Gaussians share: the units in which they learn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pynade import models
from pynade.estimators.baselines import Baseline, Found, Task, best_of
from pynade.estimators.domain import RealCells
from pynade.learn import EMHistory, EMProgress

if TYPE_CHECKING:
    from pynade.data.source import RowSource

Told = Callable[..., bool]  # of an `EMProgress`, and of which setting


@dataclass(frozen=True)
class Units:
    """Shift and scale (D,) of the columns, float64: learning runs on (x - shift) / scale.

    Floors and shrinkage then mean the same whatever units the columns are in; densities, scores and
    histories are in the units of the data all the same.
    """

    shift: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, standardise: bool, centred: bool = True) -> Units:
        """Mean and standard deviation of each column (about zero, if it is not to be centred).

        Raises:
            ValueError: a column's squares are too large for a float64.
        """
        shift, scale = torch.zeros_like(x[0]), torch.ones_like(x[0])
        endless = ~torch.isfinite(x.square().nanmean(0))
        if bool(endless.any()):
            raise ValueError(
                f"the values of column {int(endless.nonzero()[0, 0])} are too large: their variance is not a "
                "finite number; give them in a larger unit"
            )
        if standardise and centred:
            shift = x.nanmean(0)
        if standardise:
            scale = (x - shift).square().nanmean(0).sqrt()
            scale = torch.where(scale > 0, scale, 1.0)  # held-out rows may have all that varied
        return cls(shift, scale)

    def enter(self, x: Tensor) -> Tensor:
        """Rows as learning sees them."""
        return (x - self.shift) / self.scale

    def offset(self, x: Tensor) -> float:
        """What to take from a mean log-likelihood of such rows: Σ log scale over the cells there are."""
        return float((~torch.isnan(x)).double().mean(0) @ self.scale.log())

    def leave(self, model: models.GaussianMarginals) -> models.GaussianMarginals:
        """The density of the data."""
        if isinstance(model, models.FactorAnalysers):
            return models.FactorAnalysers.from_parts(
                model.log_weights.exp(),
                model.means * self.scale + self.shift,
                model.loadings * self.scale[:, None],
                model.noise * self.scale.square(),
            )
        log_weights, means, covariances = model.components()
        means = means * self.scale + self.shift
        covariances = covariances * self.scale * self.scale[:, None]
        if isinstance(model, models.MultivariateGaussian):
            return models.MultivariateGaussian.from_moments(means[0], covariances[0])
        return models.GaussianMixture.from_moments(log_weights.exp(), means, covariances)


@dataclass(frozen=True)
class Entering:
    """A source of rows in the units of learning."""

    source: RowSource
    units: Units

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n random rows."""
        assert generator is not None
        return self.units.enter(self.source.draw(n, generator).double())


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianTable(RealCells, Baseline):
    """Abstract estimator of Gaussians and their mixtures; NaN is missing, in fitting too.

    Attributes:
        standardise: learn on (x - mean) / deviation of the training rows, so that floors and shrinkage do not
            depend on the columns' units; everything comes out in the units of the data.
    """

    standardise: bool = True

    @abstractmethod
    def _fit_all(
        self, task: Task, x: Tensor, valid: Tensor | None, units: Units, told: Told
    ) -> list[tuple[Any, EMHistory]]:
        """Learn every setting on rows in the units of learning."""

    def _learn(self, task: Task) -> Found:
        x, valid = task.rows()
        units = Units.of(x, self.standardise, centred=not getattr(self, "zero_means", False))
        cut, valid_cut = units.offset(x), 0.0 if valid is None else units.offset(valid)

        def told(now: EMProgress, setting: int = 0) -> bool:
            score = None if now.valid is None else now.valid - valid_cut
            return task.watch.em(replace(now, train=now.train - cut, valid=score), setting)

        inside = None if valid is None else units.enter(valid)
        found = self._fit_all(task, units.enter(x), inside, units, told)
        for _, history in found:
            history.train = [score - cut for score in history.train]
            history.valid = [score - valid_cut for score in history.valid]
        return best_of([(units.leave(model), history) for model, history in found])
