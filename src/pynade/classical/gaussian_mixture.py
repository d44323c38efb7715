"""One Gaussian, and mixtures of Gaussians with full covariances: EM on all rows or on random ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from pynade.classical.em import Array, EMOptions, Parameters, random_rows
from pynade.classical.gaussian_em import FactorTask, GaussianEM, checked
from pynade.classical.gaussian_marginals import GaussianMixture, MultivariateGaussian
from pynade.classical.moments import SINGULAR, Moments, Rows, Scale, cholesky
from pynade.likelihood import Estimate
from pynade.training.checkpoint import State
from pynade.training.history import History

if TYPE_CHECKING:
    from pynade.tables.dataset import RowSource

LOST = 1e-3  # rows of a batch: a component that expects fewer, or has fewer, has none
MISSED = 20.0  # rows: a component that expected as many and had none has lost its rows
FIRST = 10  # minibatches more, at most, to start from: until every column has a value
VALIDATE_EVERY = 10  # iterations, of minibatches
EPOCHS, TOL = 151, 1e-9  # of EM of one Gaussian, where values are missing
LAST = 11  # M-steps from which it extrapolates
FAR = 1.0  # standard deviations: no extrapolation goes further


@torch.no_grad()
def em_gaussian(
    x: Array,
    n_components: int,
    valid: Array | None = None,
    *,
    covariance_floor: float = 1e-6,
    init: str | GaussianMixture = "k-means++",
    standardise: bool = True,
    **options: Unpack[EMOptions],
) -> tuple[GaussianMixture, History]:
    """Fit a mixture of K full-covariance Gaussians by EM, on the device of x and in float64.

    Missing values (NaN) are integrated out: exact EM, grouped by pattern of missing values. A component that
    no row belongs to any more starts anew at a random row, and `history.messages` says so.

    Args:
        x: training rows (N, D).
        n_components: K.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        covariance_floor: added to the diagonal of every covariance at every M-step.
        init: "k-means++", "rows" (random rows as means, the pooled covariance), or a mixture to go on from.
        standardise: the floor is in units in which each column has standard deviation 1; otherwise in the
            units of the data.
        options: see `EMOptions`; by default epochs=201, patience=10, tol=1e-4.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(500, 2, generator=g) - 4, torch.randn(500, 2, generator=g) + 4])
        >>> model, history = em_gaussian(x, 2, generator=g)
        >>> model.means.sort(0).values.round().tolist()
        [[-4.0, -4.0], [4.0, 4.0]]
    """
    options = EMOptions(epochs=201, patience=10, tol=1e-4) | options
    held = None if valid is None else torch.as_tensor(valid)
    task = FactorTask(torch.as_tensor(x), n_components, 0, held, init, generator=options.get("generator"))
    return GaussianEM([task], options, ("covariance_floor", covariance_floor), standardise).fit()[0]


@torch.no_grad()
def minibatch_em(
    source: Tensor | RowSource,
    n_components: int,
    valid: Array | None = None,
    *,
    batch_size: int = 20_000,
    step_size: float = 0.1,
    zero_means: bool = False,
    covariance_floor: float = 1e-6,
    init: str | GaussianMixture = "k-means++",
    standardise: bool | Tensor = True,
    **options: Unpack[EMOptions],
) -> tuple[GaussianMixture, History]:
    """Fit a mixture of K full-covariance Gaussians as the paper did for patches and speech.

    Every iteration draws fresh rows and steps towards the parameters of their EM update (weights, means,
    covariances): θ_t = (1 - η) θ_{t-1} + η θ_EM, with η falling linearly from `step_size` to 0. A component
    without rows in the batch keeps its mean and covariance. In the first half of the updates one that has
    lost its rows (its weight says fewer than a thousandth of a row in a batch, or it expected twenty rows
    since it had any) starts anew at a random row; `history.messages` says so. Everything runs in float64 on
    the device of the rows. Training log-likelihoods are those of the minibatch.

    Args:
        source: rows (N, D), or an object with `draw(n, generator) -> (n, D)`.
        n_components: K.
        valid: validation rows, scored every ten iterations and at the last; the best parameters are returned.
        batch_size: rows per update.
        step_size: η at the first update.
        zero_means: keep all means at zero (Zoran and Weiss).
        covariance_floor: added to the diagonal of every covariance at every update.
        init: as for `em_gaussian`.
        standardise: the floor is in units in which each column of the source has standard deviation 1 (about
            zero with `zero_means`); a tensor: each column of these rows, instead of the first batches of a
            source that is no tensor; False: in the units of the data.
        options: see `EMOptions`; by default epochs=1001, and neither `patience` nor `tol`. The generator is
            on the device of the rows or on the CPU, and must be given where a checkpoint is.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(500, 2, generator=g) - 4, torch.randn(500, 2, generator=g) + 4])
        >>> model, history = minibatch_em(x, 2, epochs=21, batch_size=200, generator=g)
        >>> model.means.sort(0).values.round().tolist()
        [[-4.0, -4.0], [4.0, 4.0]]
    """
    options = EMOptions(epochs=1001, patience=None, tol=0.0) | options
    if not 0 < step_size <= 1:
        raise ValueError(f"step_size must be in (0, 1], not {step_size}")
    generator, checkpoint = options.get("generator"), options.get("checkpoint")
    if isinstance(source, Tensor):
        checked(source, n_components, every_column=False)
    if checkpoint is not None and checkpoint.previous is not None and generator is not None:
        generator.set_state(checkpoint.previous[0]["generators"]["first"])  # begin with the same rows
    begin = {} if generator is None else {"first": generator.get_state()}

    def draw() -> Tensor:
        if isinstance(source, Tensor):
            return random_rows(source, batch_size, generator)
        return source.draw(batch_size, generator)  # type: ignore[arg-type]

    first = draw()
    while bool(torch.isnan(first).all(0).any()) and len(first) <= FIRST * batch_size:
        first = torch.cat([first, draw()])  # a column may have few values
    first = checked(first, n_components, "the first batches").double()
    scale = Scale.of(first, standardise is not False, centred=not zero_means)
    units = standardise if isinstance(standardise, Tensor) else source
    if standardise is not False and isinstance(units, Tensor):
        whole = Scale.of(units.to(first), centred=not zero_means)
        scale = scale._replace(unit=(scale.scale / whole.scale).square())
    held, floor = None if valid is None else torch.as_tensor(valid), ("covariance_floor", covariance_floor)
    task = FactorTask(first, n_components, 0, held, init, generator=generator)
    learner = _MinibatchEM(draw, begin, step_size, zero_means, [task], options, floor, scale)
    return learner.fit()[0]


class _MinibatchEM(GaussianEM):
    """Every E-step draws rows; a checkpoint has the state of the generator from before the draw."""

    keep = False

    def __init__(
        self, draw: Callable[[], Tensor], begin: Parameters, step_size: float, zero_means: bool, *common: Any
    ) -> None:
        self.draw, self.begin, self.step_size, self.zero_means = draw, begin, step_size, zero_means
        super().__init__(*common)
        self.updates_in_all = self.options["epochs"] - 1
        self.memory["missed"] = torch.zeros_like(self.params[0]["weights"])  # rows expected since it had any
        self.train: list[float | None] = [None]

    def expect(self) -> list[float | None]:
        self.drawn_from = [g.get_state() for g in self.generators]
        if 0 < self.steps < self.updates_in_all:
            ((rows, valid),) = self.tables
            self.tables = [(Rows(self.draw().double(), rows.scale, keep=False), valid)]
        train = super().expect()
        self.train = train if self.steps < self.updates_in_all else self.train
        return self.train

    def update(self, params: Parameters, moments: Moments, floors: Tensor) -> tuple[Parameters, Tensor]:
        (new, _), n, done = super().update(params, moments, floors), self.tables[0][0].n, self.steps
        eta = self.step_size * (1 - done / self.updates_in_all)
        new |= {"weights": moments.counts / n}
        new = {name: torch.lerp(params[name], new[name], eta) for name in params}
        missed = self.memory["missed"] + params["weights"][0] * n
        missed = torch.where(moments.counts[0] < LOST, missed, 0.0)
        lost = ((new["weights"] * n < LOST) | (missed > MISSED)) & (done < self.updates_in_all // 2)
        self.memory["missed"] = torch.where(lost[0], 0.0, missed)
        return new, lost

    def score(self, epoch: int) -> list[Estimate] | None:
        between = self.steps % VALIDATE_EVERY and epoch <= self.updates_in_all
        return None if between else super().score(epoch)

    def state(self) -> State:
        tensors, facts = super().state()
        random = {str(k): state for k, state in enumerate(self.drawn_from)}
        return tensors | {"generators": random | self.begin}, facts


@torch.no_grad()
def gaussian(
    x: Array, shrinkage: str | float | None = None, covariance_floor: float = 0.0, standardise: bool = True
) -> MultivariateGaussian:
    """Fit one Gaussian to rows x (N, D): in closed form, or where values are missing (NaN) by exact EM.

    Args:
        x: rows.
        shrinkage: None is maximum likelihood; a number a in [0, 1] gives (1 - a) Σ + a (tr Σ / D) I;
            "ledoit-wolf" lets scikit-learn choose a (complete rows only).
        covariance_floor: added to the diagonal of the covariance.
        standardise: shrinkage and floor are in units in which each column has standard deviation 1;
            otherwise in the units of the data.

    Example:
        >>> model = gaussian(torch.tensor([[0.0, 0.0], [2.0, 1.0], [4.0, -1.0]]))
        >>> model.mean.tolist()
        [2.0, 0.0]
    """
    if not covariance_floor >= 0:
        raise ValueError(f"covariance_floor must be at least 0, not {covariance_floor}")
    x = checked(x).double()
    scale, floor = Scale.of(x, standardise), ("covariance_floor", covariance_floor)
    standardised, gaps = (x - scale.shift) / scale.scale, bool(torch.isnan(x).any())
    if shrinkage == "ledoit-wolf":
        if gaps:
            raise ValueError("Ledoit-Wolf shrinkage needs complete rows; give a number for rows with gaps")
        from sklearn.covariance import ledoit_wolf_shrinkage

        shrinkage = float(ledoit_wolf_shrinkage((standardised * scale.unit.sqrt()).cpu().numpy()))
    if isinstance(shrinkage, str) or not 0 <= (amount := shrinkage or 0.0) <= 1:
        raise ValueError(f"shrinkage is None, 'ledoit-wolf' or a number from 0 to 1, not {shrinkage!r}")

    def regularised(covariance: Tensor) -> Tensor:
        level = (covariance.diagonal(dim1=-2, dim2=-1) * scale.unit).mean(-1, keepdim=True)
        return (1 - amount) * covariance + torch.diag_embed((amount * level + covariance_floor) / scale.unit)

    if gaps:
        options = EMOptions(epochs=EPOCHS, patience=None, tol=TOL)
        learner = _OneGaussianEM(regularised, [FactorTask(x, 1, 0)], options, floor, scale)
        learner.run()
        mean, covariance = (learner.best[0][name][0] for name in ("means", "covariances"))
    else:
        mean = standardised.mean(0)
        centred = standardised - mean
        covariance = regularised(centred.T @ centred / len(x))
    cholesky(covariance, floor)
    return MultivariateGaussian.from_moments(*scale.data_units(mean, covariance))


class _OneGaussianEM(GaussianEM):
    """EM with Anderson acceleration: an M-step is followed by an extrapolation, unless that lowers log p."""

    def __init__(self, regularised: Callable[[Tensor], Tensor], *common: Any) -> None:
        self.regularised = regularised
        super().__init__(*common)
        self.points: list[tuple[Tensor, Tensor]] = []  # before the last M-steps, and what these have added
        self.fallback: Parameters | None = None
        self.level = -math.inf

    def start(self, m: int) -> Parameters:
        pooled = self.regularised(self.tables[m][0].pooled())[None]
        return {"weights": pooled.new_ones(1), "means": 0 * pooled[0, :1], "covariances": pooled}

    def m_step(self, params: Parameters, moments: Moments, floors: Tensor) -> Parameters:
        return {"means": moments.means(), "covariances": self.regularised(moments.covariances())}

    def expect(self) -> list[float | None]:
        (train,) = super().expect()
        assert train is not None
        if self.fallback is not None and not train >= self.level:
            self.params, self.points, self.fallback = [self.fallback], self.points[-1:], None
            return self.expect()
        self.level, self.fallback = train, None
        return [train]

    def maximise(self) -> None:
        before = self._point()
        super().maximise()
        after, own = self._point(), self.params[0]
        self.points = [*self.points, (before, after - before)][-LAST:]
        if len(self.points) == 1:
            return
        x, step = (torch.stack([pair[k].flatten() for pair in self.points], 1).cpu() for k in (0, 1))
        weights = torch.linalg.lstsq(step.diff(dim=1), step[:, -1:], driver="gelsd").solution
        back = (x.diff(dim=1) + step.diff(dim=1)) @ weights
        ahead = after - back.view_as(after).to(after.device)
        root = ahead[1:].tril(-1) + torch.diag(ahead[1:].diagonal().exp())
        if bool((back.abs().max() < FAR) & (root.diagonal().square().min() > 2 * SINGULAR)):
            far = own | {"means": ahead[:1], "covariances": (root @ root.mT)[None]}
            self.params, self.fallback = [far], own

    def _point(self) -> Tensor:
        """Mean and Cholesky factor, its diagonal as logarithms: (1 + D, D), any value of which is valid."""
        root = cholesky(self.params[0]["covariances"][0], self.floor)
        logs = root.tril(-1) + torch.diag(root.diagonal().log())
        return torch.cat([self.params[0]["means"], logs])
