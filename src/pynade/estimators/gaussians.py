"""What the estimators of Gaussians share: the units in which they learn."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pynade import classical
from pynade.classical import EMHistory, EMProgress
from pynade.estimators.baselines import Baseline, Found, Task, best_of
from pynade.estimators.domain import RealCells

if TYPE_CHECKING:
    from pynade.tables.source import RowSource


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

    def leave(self, model: classical.GaussianMarginals) -> classical.GaussianMarginals:
        """The density of the data."""
        if isinstance(model, classical.FactorAnalysers):
            return classical.FactorAnalysers.from_parts(
                model.log_weights.exp(),
                model.means * self.scale + self.shift,
                model.loadings * self.scale[:, None],
                model.noise * self.scale.square(),
            )
        log_weights, means, covariances = model.components()
        means = means * self.scale + self.shift
        covariances = covariances * self.scale * self.scale[:, None]
        if isinstance(model, classical.MultivariateGaussian):
            return classical.MultivariateGaussian.from_moments(means[0], covariances[0])
        return classical.GaussianMixture.from_moments(log_weights.exp(), means, covariances)


@dataclass(frozen=True)
class Entering:
    """A source of rows in the units of learning."""

    source: RowSource
    units: Units

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n random rows."""
        assert generator is not None
        return self.units.enter(self.source.draw(n, generator).double())


class Inside:
    """A task in the units of learning; what is told and found comes out in those of the data."""

    def __init__(self, task: Task, standardise: bool, centred: bool) -> None:
        x, valid = task.rows()
        self.task, self.units = task, Units.of(x, standardise, centred)
        self.x = self.units.enter(x)
        self.valid = None if valid is None else self.units.enter(valid)
        self.cut = self.units.offset(x)  # from training scores
        self.valid_cut = 0.0 if valid is None else self.units.offset(valid)

    def told(self, now: EMProgress, setting: int = 0) -> bool:
        """Tell the callbacks; True if one has asked for the end."""
        score = None if now.valid is None else now.valid - self.valid_cut
        return self.task.watch.em(replace(now, train=now.train - self.cut, valid=score), setting)

    def found(self, fitted: list[tuple[Any, EMHistory]]) -> Found:
        """The best of all settings' models."""
        for _, history in fitted:
            history.train = [score - self.cut for score in history.train]
            history.valid = [score - self.valid_cut for score in history.valid]
        return best_of([(self.units.leave(model), history) for model, history in fitted])


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianTable(RealCells, Baseline):
    """Abstract estimator of Gaussians and their mixtures; NaN is missing, in fitting too.

    Attributes:
        standardise: learn on (x - mean) / deviation of the training rows, so that floors and shrinkage do not
            depend on the columns' units; everything comes out in the units of the data.
    """

    standardise: bool = True

    @abstractmethod
    def _fit_all(self, inside: Inside) -> list[tuple[Any, EMHistory]]:
        """Learn every setting of the task, in the units of learning."""

    def _inside(self, task: Task) -> Inside:
        return Inside(task, self.standardise, centred=not getattr(self, "zero_means", False))

    def _learn(self, task: Task) -> Found:
        inside = self._inside(task)
        return inside.found(self._fit_all(inside))
