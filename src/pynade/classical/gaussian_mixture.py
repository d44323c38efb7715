"""Mixtures of Gaussians with full covariances, and EM for them on all rows or on random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from pynade.classical import gaussian_em
from pynade.classical.em import Array, EMOptions, Parameters, run_em, stopping
from pynade.classical.gaussian_em import GaussianEM, Member
from pynade.classical.gaussian_marginals import GaussianMixture
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
    rows = gaussian_em.train_rows(x, standardise, n_components)
    held = gaussian_em.valid_rows(valid, rows.scale)
    learner = GaussianEM([Member(rows, held, n_components, init, options.get("generator"))], [rule], floor)
    (history,) = run_em(learner, options)
    return learner.models()[0], history


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
    generator, checkpoint = options.get("generator"), options.get("checkpoint")
    if isinstance(source, Tensor):
        gaussian_em.enough_rows(source, n_components)
        if bool((empty := torch.isnan(source).all(1)).any()):
            raise ValueError(f"row {int(empty.nonzero()[0, 0])} of x has no value at all")

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
    member = Member(rows, gaussian_em.valid_rows(valid, scale), n_components, init, generator)
    sizes = (options["epochs"] - 1, step_size, zero_means)
    learner = _MinibatchEM(member, rule, floor, draw, *sizes)
    (history,) = run_em(learner, options)
    return learner.models()[0], history


class _MinibatchEM(GaussianEM):
    """The M-step of a minibatch follows its E-step at once, so that a checkpoint needs no rows."""

    def __init__(
        self,
        member: Member,
        rule: Stopping,
        floor: tuple[str, float],
        draw: Callable[[], Tensor],
        updates: int,
        step_size: float,
        zero_means: bool,
    ) -> None:
        self.draw, self.updates_in_all, self.step_size = draw, updates, step_size
        self.zero_means = zero_means
        super().__init__([member], [rule], floor)
        self.missed = torch.zeros_like(self.params["weights"])  # rows a component expected since it had any
        self.next = {name: t.clone() for name, t in self.params.items()}  # after the next M-step
        self.train: float | None = None

    def start(self, member: Member, floor: Tensor) -> Parameters:
        start = super().start(member, floor)
        return {"weights": start.pop("log_weights").exp(), **start}

    def maximise(self) -> None:
        self.params = {name: t.clone() for name, t in self.next.items()}

    def expect(self) -> list[float | None]:
        weights, means, covariances = self.params.values()
        given = Components.of(weights.log(), means, cholesky(covariances, self.floor))
        self._groups = [([0], given)]
        if self.steps < self.updates_in_all:
            if self.steps:
                rows = Rows(self.draw().double(), self.members[0].rows.scale, keep=False)
                self.members = [self.members[0]._replace(rows=rows)]
            self._update(self.members[0].rows, given)
        return [self.train]

    def _update(self, rows: Rows, given: Components) -> None:
        params, self.moments = self.params, rows.moments(given)
        counts = self.moments.counts
        self.train = float(rows.per_row(self.moments.log_likelihood))
        seen = (counts > gaussian_em.EMPTY * rows.n)[..., None]
        new = {"weights": counts / rows.n, **self.m_step()}
        new["means"] = torch.where(seen & (not self.zero_means), new["means"], params["means"])
        new["covariances"] = torch.where(seen[..., None], new["covariances"], params["covariances"])
        self.missed = torch.where(counts < LOST, self.missed + params["weights"] * rows.n, 0.0)
        eta = self.step_size * (1 - self.steps / self.updates_in_all)
        self.next = {name: torch.lerp(params[name], new[name], eta) for name in params}
        lost = ((self.next["weights"] * rows.n < LOST) | (self.missed > MISSED))[0]
        if self.steps < self.updates_in_all // 2 and bool(lost.any()):
            self.start_anew(self.next, 0, lost)
            self.missed[0, lost] = 0.0

    def score(self, epoch: int) -> list[Estimate] | None:
        between = self.steps % VALIDATE_EVERY and epoch <= self.updates_in_all
        return None if between else super().score(epoch)

    def state(self) -> State:
        self.memory = {"missed": self.missed, **self.next}
        tensors, facts = super().state()
        return {**tensors, "scale": asdict(self.members[0].rows.scale)}, {**facts, "train": self.train}

    def restore(self, state: State) -> None:
        self.memory = {"missed": self.missed, **self.next}
        super().restore(state)
        self.train = state[1]["train"]

    def put(self, params: Parameters) -> None:
        self.params = params  # what follows from them is in the checkpoint
