"""One Gaussian, and mixtures of Gaussians with full covariances: EM on all rows or on random ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from pynade.classical.em import Array, EMOptions, Parameters, draw_rows
from pynade.classical.gaussian_em import FactorTask, GaussianEM, check_rows
from pynade.classical.gaussian_marginals import GaussianMixture, MultivariateGaussian
from pynade.classical.moments import SINGULAR, Moments, Rows, Scale, cholesky
from pynade.likelihood import Estimate
from pynade.training.checkpoint import State
from pynade.training.history import History

if TYPE_CHECKING:
    from pynade.tables.dataset import RowSource

FEWEST_ROWS = 1e-3  # a component with fewer rows of a minibatch counts as empty
MOST_MISSED = 20.0  # a component that got none of this many expected rows starts anew
MOST_START_BATCHES = 10  # minibatches drawn, at most, to get a value of every column at the start
VALIDATE_EVERY = 10  # iterations with minibatches
EPOCHS, TOL = 151, 1e-9  # of EM of one Gaussian with missing values
HISTORY = 11  # M-steps that an extrapolation uses
LARGEST_STEP = 1.0  # of an extrapolation, in standard deviations


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

    Missing values (NaN) are integrated out exactly. A component that has lost all its rows starts anew at a
    random row, which `history.messages` reports.

    Args:
        x: training rows (N, D).
        n_components: K.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        covariance_floor: added to the diagonal of every covariance at every M-step.
        init: "k-means++", "rows" (random rows as means, the pooled covariance), or a mixture to start from.
        standardise: whether the floor applies to standardised columns, or else to the data as given.
        options: see `EMOptions`; by default epochs=201, patience=10, tol=1e-4.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(500, 2, generator=g) - 4, torch.randn(500, 2, generator=g) + 4])
        >>> model, history = em_gaussian(x, 2, generator=g)
        >>> model.means.sort(0).values.round().tolist()
        [[-4.0, -4.0], [4.0, 4.0]]
    """
    options = EMOptions(epochs=201, patience=10, tol=1e-4) | options
    valid_rows = None if valid is None else torch.as_tensor(valid)
    generator = options.get("generator")
    task = FactorTask(torch.as_tensor(x), n_components, 0, valid_rows, init, generator=generator)
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

    Every iteration draws new rows and moves weights, means and covariances towards their EM update:
    θ_t = (1 - η) θ_{t-1} + η θ_EM, where η falls linearly from `step_size` to 0. A component without rows in
    the batch keeps its mean and covariance. In the first half of the updates, a component starts anew at a
    random row (which `history.messages` reports) if its weight is below a thousandth of a row per batch, or
    if it should have had twenty rows since its last one. Computations are in float64 on the device of the
    rows. Training log-likelihoods are those of the minibatch.

    Args:
        source: rows (N, D), or an object with `draw(n, generator) -> (n, D)`.
        n_components: K.
        valid: validation rows, scored every ten iterations and at the last; the best parameters are returned.
        batch_size: rows per update.
        step_size: η at the first update.
        zero_means: keep all means at zero (Zoran and Weiss).
        covariance_floor: added to the diagonal of every covariance at every update.
        init: as for `em_gaussian`.
        standardise: whether the floor applies to columns scaled by their standard deviation (about zero with
            `zero_means`), or else to the data as given. A tensor has the rows that give the deviations; by
            default it is the source, or its first batches if it is no tensor.
        options: see `EMOptions`; by default epochs=1001, and neither `patience` nor `tol`. The generator is
            on the device of the rows or on the CPU; a checkpoint needs one.

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
        check_rows(source, n_components, every_column=False)
    if checkpoint is not None and checkpoint.previous is not None and generator is not None:
        generator.set_state(checkpoint.previous[0]["generators"]["first"])  # begin with the same rows
    start_states = {} if generator is None else {"first": generator.get_state()}

    def draw() -> Tensor:
        if isinstance(source, Tensor):
            return draw_rows(source, batch_size, generator)
        return source.draw(batch_size, generator)  # type: ignore[arg-type]

    first = draw()
    while bool(torch.isnan(first).all(0).any()) and len(first) <= MOST_START_BATCHES * batch_size:
        first = torch.cat([first, draw()])  # a column may have few values
    first = check_rows(first, n_components, "the first batches").double()
    scale = Scale.of(first, standardise is not False, centred=not zero_means)
    scale_rows = standardise if isinstance(standardise, Tensor) else source
    if standardise is not False and isinstance(scale_rows, Tensor):
        source_scale = Scale.of(scale_rows.to(first), centred=not zero_means)
        scale = scale._replace(unit=(scale.scale / source_scale.scale).square())
    floor = "covariance_floor", covariance_floor
    valid_rows = None if valid is None else torch.as_tensor(valid)
    task = FactorTask(first, n_components, 0, valid_rows, init, generator=generator)
    learner = _MinibatchEM(draw, start_states, step_size, zero_means, [task], options, floor, scale)
    return learner.fit()[0]


class _MinibatchEM(GaussianEM):
    """Every E-step draws rows; checkpoints have the generator's state before the draw."""

    keep = False

    def __init__(
        self, draw: Callable[[], Tensor], states: Parameters, step_size: float, zero_means: bool, *common: Any
    ) -> None:
        self.draw, self.start_states, self.step_size, self.zero_means = draw, states, step_size, zero_means
        super().__init__(*common)
        self.n_updates = self.options["epochs"] - 1
        self.memory["missed"] = torch.zeros_like(self.params[0]["weights"])  # expected rows since the last
        self.train: list[float | None] = [None]

    def expect(self) -> list[float | None]:
        self.generator_states = [g.get_state() for g in self.generators]
        if 0 < self.steps < self.n_updates:
            ((rows, valid),) = self.tables
            self.tables = [(Rows(self.draw().double(), rows.scale, keep=False), valid)]
        train = super().expect()
        self.train = train if self.steps < self.n_updates else self.train
        return self.train

    def update(self, params: Parameters, moments: Moments, floors: Tensor) -> tuple[Parameters, Tensor]:
        (updated, _), n = super().update(params, moments, floors), self.tables[0][0].n
        eta = self.step_size * (1 - self.steps / self.n_updates)
        updated |= {"weights": moments.counts / n}
        updated = {name: torch.lerp(params[name], updated[name], eta) for name in params}
        missed = self.memory["missed"] + params["weights"][0] * n
        missed = torch.where(moments.counts[0] < FEWEST_ROWS, missed, 0.0)
        is_lost = (updated["weights"] * n < FEWEST_ROWS) | (missed > MOST_MISSED)
        is_lost &= self.steps < self.n_updates // 2
        self.memory["missed"] = torch.where(is_lost[0], 0.0, missed)
        return updated, is_lost

    def score(self, epoch: int) -> list[Estimate] | None:
        skip = self.steps % VALIDATE_EVERY and epoch <= self.n_updates
        return None if skip else super().score(epoch)

    def state(self) -> State:
        tensors, facts = super().state()
        random = {str(k): state for k, state in enumerate(self.generator_states)}
        return tensors | {"generators": random | self.start_states}, facts


@torch.no_grad()
def gaussian(
    x: Array, shrinkage: str | float | None = None, covariance_floor: float = 0.0, standardise: bool = True
) -> MultivariateGaussian:
    """Fit one Gaussian to rows x (N, D), in closed form, or by exact EM if values are missing (NaN).

    Args:
        x: rows.
        shrinkage: None is maximum likelihood; a number a in [0, 1] gives (1 - a) Σ + a (tr Σ / D) I;
            "ledoit-wolf" estimates a by scikit-learn (complete rows only).
        covariance_floor: added to the diagonal of the covariance.
        standardise: whether shrinkage and floor apply to standardised columns, or else to the data as given.

    Example:
        >>> model = gaussian(torch.tensor([[0.0, 0.0], [2.0, 1.0], [4.0, -1.0]]))
        >>> model.mean.tolist()
        [2.0, 0.0]
    """
    if not covariance_floor >= 0:
        raise ValueError(f"covariance_floor must be at least 0, not {covariance_floor}")
    x = check_rows(x).double()
    scale, floor = Scale.of(x, standardise), ("covariance_floor", covariance_floor)
    standardised, has_gaps = (x - scale.shift) / scale.scale, bool(torch.isnan(x).any())
    if shrinkage == "ledoit-wolf":
        if has_gaps:
            raise ValueError("Ledoit-Wolf shrinkage needs complete rows; give a number for rows with gaps")
        from sklearn.covariance import ledoit_wolf_shrinkage

        shrinkage = float(ledoit_wolf_shrinkage((standardised * scale.unit.sqrt()).cpu().numpy()))
    if isinstance(shrinkage, str) or not 0 <= (amount := shrinkage or 0.0) <= 1:
        raise ValueError(f"shrinkage is None, 'ledoit-wolf' or a number from 0 to 1, not {shrinkage!r}")

    def regularised(covariance: Tensor) -> Tensor:
        level = (covariance.diagonal(dim1=-2, dim2=-1) * scale.unit).mean(-1, keepdim=True)
        return (1 - amount) * covariance + torch.diag_embed((amount * level + covariance_floor) / scale.unit)

    if has_gaps:
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
    """EM with Anderson acceleration: each M-step is extrapolated unless that lowers the log-likelihood."""

    def __init__(self, regularised: Callable[[Tensor], Tensor], *common: Any) -> None:
        self.regularised = regularised
        super().__init__(*common)
        self.points: list[tuple[Tensor, Tensor]] = []  # points before the last M-steps, and their changes
        self.fallback: Parameters | None = None  # parameters of the M-step before its extrapolation
        self.last_log_likelihood = -math.inf

    def start(self, m: int) -> Parameters:
        pooled = self.regularised(self.tables[m][0].pooled())[None]
        return {"weights": pooled.new_ones(1), "means": 0 * pooled[0, :1], "covariances": pooled}

    def m_step(self, params: Parameters, moments: Moments, floors: Tensor) -> Parameters:
        return {"means": moments.means(), "covariances": self.regularised(moments.covariances())}

    def expect(self) -> list[float | None]:
        (train,) = super().expect()
        assert train is not None
        if self.fallback is not None and not train >= self.last_log_likelihood:
            self.params, self.points, self.fallback = [self.fallback], self.points[-1:], None
            return self.expect()
        self.last_log_likelihood, self.fallback = train, None
        return [train]

    def maximise(self) -> None:
        before = self._point()
        super().maximise()
        after, em_params = self._point(), self.params[0]
        self.points = [*self.points, (before, after - before)][-HISTORY:]
        if len(self.points) == 1:
            return
        x, step = (torch.stack([pair[k].flatten() for pair in self.points], 1).cpu() for k in (0, 1))
        weights = torch.linalg.lstsq(step.diff(dim=1), step[:, -1:], driver="gelsd").solution
        correction = (x.diff(dim=1) + step.diff(dim=1)) @ weights
        extrapolated = after - correction.view_as(after).to(after.device)
        root = extrapolated[1:].tril(-1) + torch.diag(extrapolated[1:].diagonal().exp())
        if bool((correction.abs().max() < LARGEST_STEP) & (root.diagonal().square().min() > 2 * SINGULAR)):
            params = em_params | {"means": extrapolated[:1], "covariances": (root @ root.mT)[None]}
            self.params, self.fallback = [params], em_params

    def _point(self) -> Tensor:
        """Mean and Cholesky factor with the logarithms of its diagonal: an unconstrained (1 + D, D)."""
        root = cholesky(self.params[0]["covariances"][0], self.floor)
        log_root = root.tril(-1) + torch.diag(root.diagonal().log())
        return torch.cat([self.params[0]["means"], log_root])
