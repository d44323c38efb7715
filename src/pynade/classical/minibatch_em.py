"""EM of mixtures of Gaussians on random rows with decreasing steps, for very many rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pynade.classical import gaussian_em
from pynade.classical.em import EM, Parameters, run_em
from pynade.classical.gaussian_mixture import GaussianMixture, mixture_of, starting_point
from pynade.classical.moments import Components, Rows, Scale, cholesky
from pynade.likelihood import Estimate
from pynade.training.checkpoint import Checkpoint, State
from pynade.training.history import History
from pynade.training.loop import Callback, Stopping

if TYPE_CHECKING:
    from pynade.tables.dataset import RowSource

LOST = 1e-3  # rows of a batch: a component that expects fewer, or has fewer, has none
MISSED = 20.0  # rows: a component that expected as many and had none has lost its rows
FIRST = 10  # minibatches more, at most, to start from: until every column has a value
VALIDATE_EVERY = 10  # iterations


@torch.no_grad()
def minibatch_em(
    source: Tensor | RowSource,
    n_components: int,
    valid: Tensor | np.ndarray | None = None,
    *,
    epochs: int = 1001,
    batch_size: int = 20_000,
    step_size: float = 0.1,
    zero_means: bool = False,
    covariance_floor: float = 1e-6,
    init: str | GaussianMixture = "k-means++",
    patience: int | None = None,
    standardise: bool | Tensor = True,
    generator: torch.Generator | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
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
        epochs: iterations at most, one more than updates.
        batch_size: rows per update.
        step_size: η at the first update.
        zero_means: keep all means at zero (Zoran and Weiss); the rows are then not centred either.
        covariance_floor: added to the diagonal of every covariance at every update.
        init: "k-means++", "rows" (random rows as means, the pooled covariance), or a mixture to go on from.
        patience: validations without a better score before stopping; None never stops so.
        standardise: the floor is in units in which each column of the source has standard deviation 1 (about
            zero with `zero_means`); a tensor: each column of these rows, instead of the first batches of a
            source that is no tensor; False: in the units of the data.
        generator: draws rows and starting point; on the device of the rows or on the CPU.
        callbacks: called with a `Progress` after each iteration; one that returns True ends EM.
        checkpoint: keeps the state, and gives it back where an interrupted EM goes on (with a generator).

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
    gaussian_em.check_floor("covariance_floor", covariance_floor)
    if not 0 < step_size <= 1:
        raise ValueError(f"step_size must be in (0, 1], not {step_size}")
    if isinstance(source, Tensor) and len(source) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, not {len(source)}")
    if isinstance(source, Tensor) and bool((empty := torch.isnan(source).all(1)).any()):
        raise ValueError(f"row {int(empty.nonzero()[0, 0])} of x has no value at all")
    draw = _Draw(source, batch_size, generator)
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
    start = starting_point(rows, n_components, init, covariance_floor, generator, zero_means)
    options = _Options(epochs, step_size, zero_means, covariance_floor)
    learner = _MinibatchEM(
        start, rows, draw, gaussian_em.valid_rows(valid, scale), Stopping(patience), options
    )
    (history,) = run_em(learner, epochs, callbacks, checkpoint)
    weights, means, covariances = (learner.best[name][0] for name in PARTS)
    return mixture_of(scale, weights.log(), means, covariances), history


PARTS = ("weights", "means", "covariances")


class _Draw:
    """Random rows of a tensor or of a source."""

    def __init__(self, source: Tensor | RowSource, n: int, generator: torch.Generator | None) -> None:
        self.source, self.n, self.generator = source, n, generator

    def __call__(self) -> Tensor:
        if isinstance(self.source, Tensor):
            return gaussian_em.random_rows(self.source, self.n, self.generator)
        return self.source.draw(self.n, self.generator)  # type: ignore[arg-type]


class _Options(NamedTuple):
    epochs: int
    step_size: float
    zero_means: bool
    covariance_floor: float


class _MinibatchEM(EM):
    """The M-step of a minibatch follows its E-step at once, so that a checkpoint needs no rows."""

    def __init__(
        self,
        start: Parameters,
        rows: Rows,
        draw: _Draw,
        valid: Rows | None,
        stopping: Stopping,
        options: _Options,
    ) -> None:
        params = {"weights": start["log_weights"].exp(), **{name: start[name] for name in PARTS[1:]}}
        super().__init__(params, [stopping], valid is not None, [draw.generator])
        self.rows, self.draw, self.valid, self.options = rows, draw, valid, options
        self.missed = torch.zeros_like(params["weights"])  # rows that a component expected since it had any
        self.next = {name: t.clone() for name, t in params.items()}  # parameters after the next M-step
        self.train: float | None = None

    def maximise(self) -> None:
        self.params = {name: t.clone() for name, t in self.next.items()}

    def expect(self) -> list[float | None]:
        weights, means, covariances = (self.params[name] for name in PARTS)
        roots = cholesky(covariances, "covariance_floor", self.options.covariance_floor)
        self.given = Components.of(weights.log(), means, roots)
        if self.steps < self.options.epochs - 1:
            if self.steps:
                self.rows = Rows(self.draw().double(), self.rows.scale, keep=False)
            self._update()
        return [self.train]

    def _update(self) -> None:
        rows, updates = self.rows, self.options.epochs - 1
        moments = rows.moments(self.given)
        self.train = float(rows.per_row(moments.log_likelihood))
        seen = (moments.counts > gaussian_em.EMPTY * rows.n)[..., None]
        floor = torch.diag(self.options.covariance_floor / rows.scale.unit)
        covariances = moments.covariances(self.options.zero_means) + floor
        new = {
            "weights": moments.counts / rows.n,
            "means": torch.where(seen & (not self.options.zero_means), moments.means(), self.params["means"]),
            "covariances": torch.where(seen[..., None], covariances, self.params["covariances"]),
        }
        expected = self.missed + self.params["weights"] * rows.n
        self.missed = torch.where(moments.counts < LOST, expected, 0.0)
        eta = self.options.step_size * (1 - self.steps / updates)
        self.next = {name: torch.lerp(self.params[name], new[name], eta) for name in PARTS}
        lost = ((self.next["weights"] * rows.n < LOST) | (self.missed > MISSED))[0]
        if self.steps < updates // 2 and bool(lost.any()):
            self._start_anew(lost, floor)
            self.missed[0, lost] = 0.0
            self.notes[0] += [gaussian_em.PLACED_AGAIN.format(k) for k in lost.nonzero().squeeze(-1).tolist()]

    def _start_anew(self, lost: Tensor, floor: Tensor) -> None:
        """Put components at random rows with the covariance of all; without means, at the scale of a row."""
        rows, (weights, means, covariances) = self.rows, (self.next[name][0] for name in PARTS)
        some = gaussian_em.random_rows(rows.filled, int(lost.sum()), self.draw.generator)
        pooled = rows.pooled()
        if self.options.zero_means:
            size = some.square().mean(1) / rows.filled.square().mean()
            covariances[lost] = size[:, None, None] * pooled + floor
        else:
            means[lost], covariances[lost] = some, pooled + floor
        weights[lost] = 1 / len(lost)
        weights /= weights.sum()

    def score(self, epoch: int) -> list[Estimate] | None:
        if self.valid is None or (self.steps % VALIDATE_EVERY and epoch < self.options.epochs):
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
