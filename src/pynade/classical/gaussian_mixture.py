"""Mixtures of Gaussians with full covariances, and EM for them on all rows or on random ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from pynade.classical import gaussian_em
from pynade.classical.em import EM, Array, EMOptions, Parameters, Random, run_em, stopping
from pynade.classical.gaussian_em import GaussianEM
from pynade.classical.gaussian_marginals import (
    GaussianComponents,
    filled,
    inverse_of,
    log_normalised,
    positive_factor,
)
from pynade.classical.moments import Components, Rows, Scale, cholesky
from pynade.likelihood import Estimate
from pynade.training.checkpoint import State
from pynade.training.history import History
from pynade.training.loop import Stopping

if TYPE_CHECKING:
    from pynade.tables.dataset import RowSource

LOST = 1e-3  # rows of a batch: a component that expects fewer, or has fewer, has none
MISSED = 20.0  # rows: a component that expected as many and had none has lost its rows
FIRST = 10  # minibatches more, at most, to start from: until every column has a value
VALIDATE_EVERY = 10  # iterations, of minibatches
PARTS = ("weights", "means", "covariances")


class GaussianMixture(GaussianComponents):
    """p(x) = Σ_k w_k N(x; μ_k, Σ_k), every Σ_k full.

    Stored are log w, μ and A_k = L_k⁻¹, the inverse of the Cholesky factor of Σ_k, so that the residuals
    A_k (x - μ_k) of all rows under all components are one matrix product.

    A new mixture is K equal standard normals; `em_gaussian` and `minibatch_em` fit one.

    Args:
        n_variables: D.
        n_components: K.

    Example:
        >>> import torch
        >>> means = torch.tensor([[-3.0], [3.0]])
        >>> model = GaussianMixture.from_moments(torch.tensor([0.25, 0.75]), means, torch.ones(2, 1, 1))
        >>> round(model.log_prob(torch.tensor([[3.0]])).exp().item(), 4)  # 0.75 φ(0)
        0.2992
    """

    inverse_factors: Tensor

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__(n_variables, n_components)
        self.register_buffer("inverse_factors", torch.eye(n_variables).repeat(n_components, 1, 1))

    @classmethod
    def from_moments(cls, weights: Tensor, means: Tensor, covariances: Tensor) -> GaussianMixture:
        """From weights (K,), means (K, D) and covariances (K, D, D), in the dtype of the means."""
        inverse = inverse_of(positive_factor(covariances, "the covariance of component"))
        parts = {"log_weights": log_normalised(weights), "means": means, "inverse_factors": inverse}
        return filled(cls(means.shape[1], len(means)), means.dtype, **parts)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        factors = inverse_of(self.inverse_factors.double())
        return self.log_weights.double(), self.means.double(), factors @ factors.mT

    def _residuals(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        K, D = self.n_components, self.n_variables
        inverse = self.inverse_factors
        weights = inverse.reshape(K * D, D).T.contiguous()
        shift = -(inverse.double() @ self.means.double()[..., None]).flatten().to(x.dtype)
        scales = inverse.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
        constant = self.log_weights.double() + scales - 0.5 * D * math.log(2 * math.pi)

        def squares(rows: Tensor) -> Tensor:
            z = torch.addmm(shift, rows, weights).view(-1, K, D)
            return z.square().sum(-1, dtype=torch.float64)

        return constant, squares

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """A component for each row, then μ_k + L_k z."""
        return self._draw(n, generator, inverse_of(self.inverse_factors))


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

    Raises:
        ValueError: fewer rows than components, or a covariance that is singular in spite of the floor.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(500, 2, generator=g) - 4, torch.randn(500, 2, generator=g) + 4])
        >>> model, history = em_gaussian(x, 2, generator=g)
        >>> model.means.sort(0).values.round().tolist()
        [[-4.0, -4.0], [4.0, 4.0]]
    """
    options = EMOptions(epochs=201, patience=10, tol=1e-4) | options
    floor, rule = gaussian_em.checked_floor("covariance_floor", covariance_floor), stopping(options)
    x = gaussian_em.real_rows(x, n_components)
    scale, generator = Scale.of(x, standardise), options.get("generator")
    rows, held = Rows(x, scale), gaussian_em.valid_rows(valid, scale)
    start = _starting_point(rows, n_components, init, covariance_floor, generator)
    learner = _MixtureEM([(rows, held)], start, [rule], floor, [generator])
    (history,) = run_em(learner, options)
    return _mixture_of(scale, *(learner.best[name][0] for name in start)), history


class _MixtureEM(GaussianEM):
    def maximise(self) -> None:
        (rows, _), moments = self.members[0], self.moments
        floor = torch.diag(self.floor[1] / rows.scale.unit)
        values = (moments.counts / rows.n, moments.means(), moments.covariances() + floor)
        new = dict(zip(PARTS, values, strict=True))
        empty = new["weights"][0] <= gaussian_em.EMPTY
        if bool(empty.any()):
            _start_anew(self, new, empty, rows, floor)
        self.params = {"log_weights": new.pop("weights").log(), **new}


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
    covariances): θ_t = (1 - η) θ_{t-1} + η θ_EM, with η falling linearly from `step_size` to 0. A covariance
    is then a convex combination of covariances and stays positive definite; a component without rows in the
    batch keeps its mean and covariance. One that has lost its rows (its weight says fewer than a thousandth
    of a row in a batch, or it expected twenty rows since it had any) starts anew at a random row, in the
    first half of the updates, after which steps are too short to bring it back; `history.messages` says so.
    Everything runs in float64 on the device of the rows. Training log-likelihoods are those of the minibatch
    (in the last iteration, which draws none, of the one before).

    Args:
        source: rows (N, D), or an object with `draw(n, generator) -> (n, D)`.
        n_components: K.
        valid: validation rows, scored every ten iterations and at the last; the best parameters are returned.
        batch_size: rows per update.
        step_size: η at the first update.
        zero_means: keep all means at zero (Zoran and Weiss); the rows are then not centred either.
        covariance_floor: added to the diagonal of every covariance at every update.
        init: as for `em_gaussian`.
        standardise: the floor is in units in which each column of the source has standard deviation 1 (about
            zero with `zero_means`); a tensor: each column of these rows, instead of the first batches of a
            source that is no tensor; False: in the units of the data.
        options: see `EMOptions`; by default epochs=1001, and neither `patience` nor `tol`. The generator is
            on the device of the rows or on the CPU, and must be given where a checkpoint is.

    Raises:
        ValueError: a covariance is singular in spite of the floor.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(500, 2, generator=g) - 4, torch.randn(500, 2, generator=g) + 4])
        >>> model, history = minibatch_em(x, 2, epochs=21, batch_size=200, generator=g)
        >>> model.means.sort(0).values.round().tolist()
        [[-4.0, -4.0], [4.0, 4.0]]
    """
    options = EMOptions(epochs=1001, patience=None, tol=0.0) | options
    floor, rule = gaussian_em.checked_floor("covariance_floor", covariance_floor), stopping(options)
    if not 0 < step_size <= 1:
        raise ValueError(f"step_size must be in (0, 1], not {step_size}")
    if isinstance(source, Tensor) and len(source) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, not {len(source)}")
    if isinstance(source, Tensor) and bool((empty := torch.isnan(source).all(1)).any()):
        raise ValueError(f"row {int(empty.nonzero()[0, 0])} of x has no value at all")
    generator, checkpoint = options.get("generator"), options.get("checkpoint")

    def draw() -> Tensor:
        if isinstance(source, Tensor):
            return gaussian_em.random_rows(source, batch_size, generator)
        return source.draw(batch_size, generator)  # type: ignore[arg-type]

    first = draw()
    for _ in range(FIRST):  # a column may have few values
        if not bool(torch.isnan(first).all(0).any()):
            break
        first = torch.cat([first, draw()])
    first = gaussian_em.real_rows(first, n_components, "the first batches")
    scale = Scale.of(first, standardise is not False, centred=not zero_means)
    units = standardise if isinstance(standardise, Tensor) else source
    if standardise is not False and isinstance(units, Tensor):
        whole = Scale.of(units.to(first), centred=not zero_means)
        scale = replace(scale, unit=(scale.scale / whole.scale).square())
    if checkpoint is not None and checkpoint.found is not None:
        known = checkpoint.found[0]["scale"]
        scale = Scale(**{name: t.to(first.device) for name, t in known.items()})
    rows = Rows(first, scale, keep=False)
    start = _starting_point(rows, n_components, init, covariance_floor, generator, zero_means)
    sizes = (options["epochs"] - 1, step_size, zero_means)
    held = gaussian_em.valid_rows(valid, scale)
    learner = _MinibatchEM(start, (rows, held), rule, floor, generator, draw, *sizes)
    (history,) = run_em(learner, options)
    weights, means, covariances = (learner.best[name][0] for name in PARTS)
    return _mixture_of(scale, weights.log(), means, covariances), history


class _MinibatchEM(EM):
    """The M-step of a minibatch follows its E-step at once, so that a checkpoint needs no rows."""

    def __init__(
        self,
        start: Parameters,
        member: gaussian_em.Member,
        rule: Stopping,
        floor: tuple[str, float],
        generator: Random,
        draw: Callable[[], Tensor],
        updates: int,
        step_size: float,
        zero_means: bool,
    ) -> None:
        params = {"weights": start["log_weights"].exp(), **{name: start[name] for name in PARTS[1:]}}
        self.rows, self.valid = member
        super().__init__(params, [rule], self.valid is not None, [generator])
        self.floor, self.draw, self.updates_in_all = floor, draw, updates
        self.step_size, self.zero_means = step_size, zero_means
        self.missed = torch.zeros_like(params["weights"])  # rows that a component expected since it had any
        self.next = {name: t.clone() for name, t in params.items()}  # parameters after the next M-step
        self.train: float | None = None

    def maximise(self) -> None:
        self.params = {name: t.clone() for name, t in self.next.items()}

    def expect(self) -> list[float | None]:
        weights, means, covariances = (self.params[name] for name in PARTS)
        self.given = Components.of(weights.log(), means, cholesky(covariances, *self.floor))
        if self.steps < self.updates_in_all:
            if self.steps:
                self.rows = Rows(self.draw().double(), self.rows.scale, keep=False)
            self._update()
        return [self.train]

    def _update(self) -> None:
        rows, params = self.rows, self.params
        moments = rows.moments(self.given)
        self.train = float(rows.per_row(moments.log_likelihood))
        seen = (moments.counts > gaussian_em.EMPTY * rows.n)[..., None]
        floor = torch.diag(self.floor[1] / rows.scale.unit)
        covariances = moments.covariances(self.zero_means) + floor
        new = {
            "weights": moments.counts / rows.n,
            "means": torch.where(seen & (not self.zero_means), moments.means(), params["means"]),
            "covariances": torch.where(seen[..., None], covariances, params["covariances"]),
        }
        self.missed = torch.where(moments.counts < LOST, self.missed + params["weights"] * rows.n, 0.0)
        eta = self.step_size * (1 - self.steps / self.updates_in_all)
        self.next = {name: torch.lerp(params[name], new[name], eta) for name in PARTS}
        lost = ((self.next["weights"] * rows.n < LOST) | (self.missed > MISSED))[0]
        if self.steps < self.updates_in_all // 2 and bool(lost.any()):
            _start_anew(self, self.next, lost, rows, floor, self.zero_means)
            self.missed[0, lost] = 0.0

    def score(self, epoch: int) -> list[Estimate] | None:
        if self.valid is None or (self.steps % VALIDATE_EVERY and epoch <= self.updates_in_all):
            return None
        return [Estimate(float(self.valid.log_likelihood(self.given)), math.nan, self.valid.n)]

    def state(self) -> State:
        self.memory = {"missed": self.missed, **self.next}
        tensors, facts = super().state()
        return {**tensors, "scale": asdict(self.rows.scale)}, {**facts, "train": self.train}

    def restore(self, state: State) -> None:
        self.memory = {"missed": self.missed, **self.next}
        super().restore(state)
        self.train = state[1]["train"]

    def put(self, params: Parameters) -> None:
        self.params = params  # what follows from them is in the checkpoint


def _start_anew(
    learner: EM, params: Parameters, lost: Tensor, rows: Rows, floor: Tensor, zero_means: bool = False
) -> None:
    """Put components at random rows with the covariance of all; without means, at the scale of a row."""
    weights, means, covariances = (params[name][0] for name in PARTS)
    generator = learner.generators[0] if learner.generators else None
    some, pooled = gaussian_em.random_rows(rows.filled, int(lost.sum()), generator), rows.pooled()
    if zero_means:
        size = some.square().mean(1) / rows.filled.square().mean()
        covariances[lost] = size[:, None, None] * pooled + floor
    else:
        means[lost], covariances[lost] = some, pooled + floor
    weights[lost] = 1 / len(lost)
    weights /= weights.sum()
    learner.note_empty(0, lost.nonzero().squeeze(-1).tolist())


def _starting_point(
    rows: Rows,
    n_components: int,
    init: str | GaussianMixture,
    covariance_floor: float,
    generator: Random,
    zero_means: bool = False,
) -> Parameters:
    """Where EM of one mixture begins, in standardised units."""
    scale = rows.scale
    if isinstance(init, GaussianMixture):
        if (init.n_components, init.n_variables) != (n_components, rows.n_variables):
            raise ValueError(
                f"init has {init.n_components} components in {init.n_variables} variables, expected "
                f"{n_components} in {rows.n_variables}"
            )
        log_weights, means, covariances = (t.to(scale.shift.device) for t in init.components())
        means = torch.zeros_like(means) if zero_means else (means - scale.shift) / scale.scale
        covariances = scale.standardised(covariances)
    else:
        start = gaussian_em.starting_moments(rows, n_components, init, generator, zero_means)
        log_weights, means = start[0].log(), start[1]
        covariances = start[2] + torch.diag(covariance_floor / scale.unit)
    return {"log_weights": log_weights[None], "means": means[None], "covariances": covariances[None]}


def _mixture_of(scale: Scale, log_weights: Tensor, means: Tensor, covariances: Tensor) -> GaussianMixture:
    """Standardised parameters as a density of the data."""
    means, covariances = scale.means(means), scale.covariances(covariances)
    return GaussianMixture.from_moments(log_weights.exp(), means, covariances)
