"""EM of mixtures of Gaussians and of factor analysers (Ghahramani & Hinton, 1996), many of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Unpack

import torch
from torch import Tensor

from pynade.classical.em import EM, Array, EMOptions, Parameters, Random, draw_components, random_rows
from pynade.classical.gaussian_marginals import FactorAnalysers, GaussianComponents, GaussianMixture
from pynade.classical.moments import Components, Moments, Rows, Scale, cholesky, factor_covariances
from pynade.likelihood import Estimate
from pynade.training.history import History

START_ROWS = 10_000  # that k-means++ uses, besides fifty for each component
ROOM = {"cpu": 1 << 24, "cuda": 1 << 27}  # numbers in the covariances of the members of one batch


@dataclass(frozen=True, eq=False)
class FactorTask:
    """One mixture of factor analysers to fit; tasks that are given the same tensor objects share the work.

    Attributes:
        x: training rows (N, D).
        n_components: K.
        n_factors: Q, from 1 to D.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        init: "rows" (random rows as means, loadings from the pooled covariance), "k-means++", or a mixture
            of factor analysers to go on from. Early stopping works best from the first, which begins broad.
        stop_at_train: as in `EMOptions`, of this task.
        generator: draws the starting point; each task has its own.
    """

    x: Tensor
    n_components: int
    n_factors: int
    valid: Tensor | None = None
    init: str | GaussianComponents = "rows"
    stop_at_train: float | None = None
    generator: Random = None


class GaussianEM(EM):
    """EM of mixtures of Gaussians (full covariances) in standardised units, those of like size together.

    Parameters are `weights` (K,), `means` (K, D) and what `covariances` needs, padded to the largest sizes of
    a batch, and (M, K, …) where a method takes those of a batch. `floor` is name and value of an option.
    """

    zero_means = False  # keep all means at zero
    keep = True  # features of rows between iterations

    def __init__(
        self,
        tasks: Sequence[FactorTask],
        options: EMOptions,
        floor: tuple[str, float],
        standardise: bool | Scale,
    ) -> None:
        if not floor[1] >= 0:
            raise ValueError(f"{floor[0]} must be at least 0, not {floor[1]}")

        @cache  # the same tensors give the same rows
        def rows(x: Tensor, valid: Tensor | None = None) -> Rows:
            if valid is not None:
                valid = checked(valid.to(x.device), 1, "valid", every_column=False)
                return Rows(valid.double(), rows(x).scale)
            scale = standardise if isinstance(standardise, Scale) else Scale.of(x.double(), standardise)
            return Rows(x.double(), scale, self.keep)

        self.tasks, self.floor, self.validated = tasks, floor, tasks[0].valid is not None
        self.tables = [
            (rows(checked(t.x, t.n_components)), None if t.valid is None else rows(t.x, t.valid))
            for t in tasks
        ]
        self.floors = [floor[1] / table.scale.unit for table, _ in self.tables]  # (D,) each
        starts = [self.start(m) for m in range(len(tasks))]
        self.batches = _batches(tasks)
        for batch in self.batches:
            _pad([starts[m] for m in batch])
        super().__init__(starts, options, [t.generator for t in tasks])
        rule = self.stopping[0]
        limits = [rule.stop_at_train if t.stop_at_train is None else t.stop_at_train for t in tasks]
        self.stopping = [replace(rule, stop_at_train=limit) for limit in limits]
        self.moments: dict[int, tuple[Tensor, ...]] = {}  # of each active member

    def covariances(self, params: Parameters) -> Tensor:
        """Covariances (M, K, D, D) of all components."""
        return params["covariances"]

    def shaped(self, covariances: Tensor, m: int) -> Parameters:
        """What covariances need, of components of a member with covariances near these (..., D, D)."""
        return {"covariances": covariances + torch.diag(self.floors[m])}

    def given(self, model: Any, m: int) -> Parameters:
        """What covariances need, of a model from which a member starts."""
        scale = self.tables[m][0].scale.scale
        return {"covariances": model.components()[2].to(scale) / scale / scale[:, None]}

    def m_step(self, params: Parameters, moments: Moments, floors: Tensor) -> Parameters:
        """Means, and what covariances need, from the moments; floors (M, 1, D)."""
        covariances = moments.covariances(self.zero_means) + torch.diag_embed(floors)
        return {"means": params["means"] if self.zero_means else moments.means(), "covariances": covariances}

    def model(self, own: Parameters, m: int) -> Any:
        """The density of the data with these parameters of a member."""
        moments = self.tables[m][0].scale.data_units(own["means"], own["covariances"])
        return GaussianMixture.from_moments(own["weights"], *moments)

    def start(self, m: int) -> Parameters:
        """Where a member begins: at a model, at random rows, or with the moments of rows near centres."""
        task, rows, floor = self.tasks[m], self.tables[m][0], self.floors[m]
        K, D, init, generator = task.n_components, len(floor), task.init, task.generator
        if not isinstance(init, str):
            has = _sizes(init.n_components, init.n_variables, getattr(init, "n_factors", 0))
            if has != (wanted := _sizes(K, D, task.n_factors)):
                raise ValueError(f"init has {has}, expected {wanted}")
            means = (init.means.to(floor) - rows.scale.shift) / rows.scale.scale * (not self.zero_means)
            return {"weights": init.log_weights.to(floor).exp(), "means": means, **self.given(init, m)}
        if init not in ("k-means++", "rows"):
            raise ValueError(f"unknown init {init!r}; known: 'k-means++', 'rows' or a model")
        pooled = rows.pooled()
        where = pooled.device if generator is None else generator.device
        order = torch.randperm(rows.n, generator=generator, device=where).to(pooled.device)
        if init == "rows":
            if self.zero_means:
                raise ValueError("with zero means, init='rows' makes all components equal; use 'k-means++'")
            means, near = rows.filled[order[:K]], pooled.repeat(K, 1, 1)
            return {"weights": pooled.new_full((K,), 1 / K), "means": means, **self.shaped(near, m)}
        some = rows.filled[order[: START_ROWS + 50 * K]]
        centres, one = _spread(some, K, generator), torch.ones_like(floor)
        # components this narrow share a row only where two centres are about equally near
        narrow = 0.1 * torch.diag(one).expand(1, K, D, D)
        given = Components.of(centres.new_zeros(1, K), centres[None], narrow)
        found = Rows(some, Scale(0 * one, one, one), keep=False).moments(given)
        n = found.counts[0, :, None]  # as if D rows of the pooled covariance were among them
        near = (n[..., None] * found.covariances(self.zero_means)[0] + D * pooled) / (n[..., None] + D)
        means = torch.where(n > 0, found.means()[0], centres) * (not self.zero_means)
        return {"weights": (n[:, 0] + 1) / (len(some) + K), "means": means, **self.shaped(near, m)}

    def expect(self) -> list[float | None]:
        """Moments of all active members; log-likelihoods per row, in the units of the data."""
        self.together: list[tuple[list[int], Rows | None, Components]] = []  # members with the same rows
        train: dict[int, float] = {}
        for active, params in self._batches():
            roots = cholesky(self.covariances(params), self.floor)
            given = Components.of(params["weights"].log(), params["means"], roots)
            tables = [self.tables[m] for m in active]
            for rows, valid in dict.fromkeys(tables):
                group = [k for k, table in enumerate(tables) if table == (rows, valid)]
                own = given if len(group) == len(active) else Components(*(t[group] for t in given))
                moments, members = rows.moments(own), [active[k] for k in group]
                self.together.append((members, valid, own))
                self.moments |= zip(members, zip(*moments, strict=True), strict=True)
                train |= zip(members, rows.per_row(moments).tolist(), strict=True)
        return [train[m] for m in self.active]

    def score(self, epoch: int) -> list[Estimate] | None:
        """Mean log-likelihoods of the validation rows."""
        scores: dict[int, Estimate] = {}
        for members, valid, given in self.together:
            if valid is None:
                return None
            means = valid.per_row(valid.moments(given, likelihood_only=True)).tolist()
            scores |= {m: Estimate(v, math.nan, valid.n) for m, v in zip(members, means, strict=True)}
        return [scores[m] for m in self.active]

    def maximise(self) -> None:
        """M-step; components without rows start anew."""
        for active, params in self._batches():
            moments = Moments(*map(torch.stack, zip(*(self.moments[m] for m in active), strict=True)))
            new, lost = self.update(params, moments, torch.stack([self.floors[m] for m in active])[:, None])
            for m, own in zip(active, zip(*new.values(), strict=True), strict=True):
                self.params[m] = dict(zip(new, own, strict=True))
            for k in lost.any(-1).nonzero()[:, 0].tolist():
                self.start_anew(active[k], lost[k])

    def update(self, params: Parameters, moments: Moments, floors: Tensor) -> tuple[Parameters, Tensor]:
        """Parameters after an M-step, and which components (M, K) have lost their rows."""
        seen, new = moments.seen(), {"weights": moments.counts / moments.counts.sum(-1, keepdim=True)}
        for name, t in self.m_step(params, moments, floors).items():  # padding, and what is lost, stays
            new[name] = torch.where(seen.view(*seen.shape, *[1] * (t.ndim - 2)), t, params[name])
        return new, ~seen & (params["weights"] > 0)

    def start_anew(self, m: int, lost: Tensor) -> None:
        """Put components at random rows (without means: at their scale), with the pooled covariance."""
        (rows, _), task, own = self.tables[m], self.tasks[m], self.params[m]
        some, near = random_rows(rows.filled, int(lost.sum()), task.generator), rows.pooled()
        if self.zero_means:
            near = (some.square().mean(1) / rows.filled.square().mean())[:, None, None] * near
        else:
            own["means"][lost] = some
        for name, value in self.shaped(near, m).items():
            own[name][lost, ..., : value.shape[-1]] = value
        own["weights"][lost] = 1 / task.n_components
        own["weights"] /= own["weights"].sum()
        said = "component {} was empty and started anew at a random row"
        self.notes[m] += [said.format(k) for k in lost.nonzero().squeeze(-1).tolist()]

    def fit(self) -> list[tuple[Any, History]]:
        """The best of every member in the units of the data, and its history."""
        fitted = []
        for m, history in enumerate(self.run()):
            own = {name: t[: self.tasks[m].n_components] for name, t in self.best[m].items()}
            fitted.append((self.model(own, m), history))
        return fitted

    def _batches(self) -> Iterator[tuple[list[int], Parameters]]:
        """The active members of each batch, and their parameters, stacked."""
        for batch in self.batches:
            if some := [m for m in batch if m in self.active]:
                yield some, {n: torch.stack([self.params[m][n] for m in some]) for n in self.params[0]}


@torch.no_grad()
def em_factors(
    tasks: Sequence[FactorTask],
    *,
    noise_floor: float = 1e-6,
    standardise: bool = True,
    **options: Unpack[EMOptions],
) -> list[tuple[FactorAnalysers, History]]:
    """Fit mixtures of factor analysers by EM, such as all settings × folds of a cross-validation.

    Everything runs in float64 on the device of the rows. Missing values (NaN) are integrated out exactly. A
    component that no row belongs to any more starts anew at a random row, and `history.messages` says so.
    Members of like size are computed together; each stops for itself, and its result is as if it were alone.

    Args:
        tasks: what to fit; all have validation rows, or none has.
        noise_floor: the smallest noise variance Ψ_ii an M-step may choose.
        standardise: the floor is in units in which each column has standard deviation 1; otherwise in the
            units of the data.
        options: see `EMOptions`; by default epochs=501, patience=20, tol=1e-4. Tasks have their own
            generators, and may have their own `stop_at_train`.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(500, 1, generator=g) * torch.ones(3) + 0.1 * torch.randn(500, 3, generator=g)
        >>> tasks = [FactorTask(x, k, 1, generator=torch.Generator().manual_seed(0)) for k in (1, 2)]
        >>> (one, history), (two, _) = em_factors(tasks)
        >>> bool((one.noise.sqrt() - 0.1).abs().max() < 0.02), two.n_components
        (True, 2)
    """
    options = EMOptions(epochs=501, patience=20, tol=1e-4) | options
    for task in tasks:
        FactorAnalysers(task.x.shape[-1], task.n_components, task.n_factors)  # raises for impossible sizes
    if len({task.valid is None for task in tasks}) > 1:
        raise ValueError("either all tasks have validation rows or none has")
    return _FactorEM(tasks, options, ("noise_floor", noise_floor), standardise).fit() if tasks else []


class _FactorEM(GaussianEM):
    def covariances(self, params: Parameters) -> Tensor:
        return factor_covariances(params["loadings"], params["noise"])

    def shaped(self, covariances: Tensor, m: int) -> Parameters:
        """The Q largest principal directions are the loadings."""
        values, vectors = torch.linalg.eigh(covariances)
        D, Q = values.shape[-1], self.tasks[m].n_factors
        rest = values[..., : D - Q].mean(-1) if Q < D else 0.5 * values[..., 0]
        rest = rest.clamp_min(0)[..., None]
        # a loading of exactly zero would stay zero for ever, so none is
        lengths = torch.maximum(values[..., D - Q :] - rest, 0.1 * rest + 1e-8).sqrt()
        loadings = vectors[..., D - Q :] * lengths[..., None, :]
        noise = covariances.diagonal(dim1=-2, dim2=-1) - loadings.square().sum(-1)
        noise = torch.maximum(noise, torch.maximum(0.1 * rest, self.floors[m]))
        return {"loadings": loadings, "noise": noise}

    def given(self, model: FactorAnalysers, m: int) -> Parameters:
        scale = self.tables[m][0].scale.scale
        noise = torch.maximum(model.noise.to(scale) / scale.square(), self.floors[m])
        return {"loadings": model.loadings.to(scale) / scale[:, None], "noise": noise}

    def model(self, own: Parameters, m: int) -> FactorAnalysers:
        scale = self.tables[m][0].scale
        loadings = own["loadings"][..., : self.tasks[m].n_factors] * scale.scale[:, None]
        means, noise = own["means"] * scale.scale + scale.shift, own["noise"] * scale.scale.square()
        return FactorAnalysers.from_parts(own["weights"], means, loadings, noise)

    def m_step(self, params: Parameters, moments: Moments, floors: Tensor) -> Parameters:
        """From a component's weighted mean m and covariance S, since E[s | x] = β (x - μ) is linear in x.

        Λ' = S βᵀ (I - βΛ + β S βᵀ)⁻¹, μ' = μ + (I - Λ'β)(m - μ), Ψ' = diag(S - Λ'β S); β = Λᵀ(ΛΛᵀ + Ψ)⁻¹.
        """
        loadings, means = params["loadings"], params["means"]
        Q = loadings.shape[-1]
        roots = torch.linalg.cholesky(self.covariances(params))
        beta = torch.cholesky_solve(loadings, roots).mT  # (M, K, Q, D)
        eye = torch.eye(means.shape[-1], dtype=means.dtype, device=means.device)
        covariance = torch.where(moments.seen()[..., None, None], moments.covariances(), eye)
        cross = covariance @ beta.mT  # S βᵀ
        latent = eye[:Q, :Q] - beta @ loadings + beta @ cross
        new = torch.cholesky_solve(cross.mT, torch.linalg.cholesky(latent)).mT
        shift = (moments.means() - means)[..., None]
        moved = means + (shift - new @ (beta @ shift))[..., 0]
        noise = covariance.diagonal(dim1=-2, dim2=-1) - (new * cross).sum(-1)
        return {"means": moved, "loadings": new, "noise": torch.maximum(noise, floors)}


def _sizes(n_components: int, n_variables: int, n_factors: int) -> str:
    more = f" with {n_factors} factors" if n_factors else ""
    return f"{n_components} components in {n_variables} variables{more}"


def _batches(tasks: Sequence[FactorTask]) -> list[list[int]]:
    """Indexes of tasks to fit together: components equal up to a factor of two, and not too many."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, task in enumerate(tasks):
        alike.setdefault(((task.n_components - 1).bit_length(), task.x.shape[-1]), []).append(i)
    batches, room = [], ROOM.get(tasks[0].x.device.type, ROOM["cpu"])
    for (bits, D), which in alike.items():
        size = max(1, room // (2**bits * D * D))
        batches += [which[i : i + size] for i in range(0, len(which), size)]
    return batches


def _pad(starts: Sequence[Parameters]) -> None:
    """Pad parameters in place to the largest sizes among them; weights and loadings by zeros."""
    for name in starts[0]:
        shape = [max(sizes) for sizes in zip(*(start[name].shape for start in starts), strict=True)]
        for start in starts:
            whole = start[name].new_full(shape, 1.0 if name == "noise" else 0.0)
            whole[tuple(map(slice, start[name].shape))] = start[name]
            start[name] = whole


def checked(x: Array, n_components: int = 1, word: str = "x", *, every_column: bool = True) -> Tensor:
    """Rows: two axes, finite or missing (NaN) values, no empty row (nor column), one for each component."""
    x = torch.as_tensor(x)
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"expected rows (N, D) for {word}, got an array of shape {tuple(x.shape)}")
    if torch.isinf(x).any():
        row, column = torch.isinf(x).nonzero()[0].tolist()
        raise ValueError(f"expected finite numbers, but row {row}, column {column} of {word} is infinite")
    if len(x) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, not {len(x)}")
    missing = torch.isnan(x)
    for axis, name in ((1, "row"), (0, "column")):
        empty = missing.all(axis) & (axis == 1 or every_column)
        if empty.any():
            raise ValueError(f"{name} {int(empty.nonzero()[0, 0])} of {word} has no value at all")
    return x


def _spread(x: Tensor, n_components: int, generator: Random) -> Tensor:
    """K rows by k-means++ (Arthur & Vassilvitskii): each next one with probability ∝ its squared distance."""
    chosen = [random_rows(x, 1, generator)[0]]
    distance = (x - chosen[0]).square().sum(-1)
    for _ in range(n_components - 1):
        chances = torch.where(distance.sum() > 0, distance, 1.0)  # only duplicates left: any will do
        chosen.append(x[draw_components(chances, 1, generator)[0]])
        distance = torch.minimum(distance, (x - chosen[-1]).square().sum(-1))
    return torch.stack(chosen)
