"""EM of mixtures of Gaussians and of factor analysers (Ghahramani & Hinton, 1996), many of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Unpack

import torch
from torch import Tensor

from pynade.classical.em import EM, Array, EMOptions, Parameters, Random, draw_components, draw_rows
from pynade.classical.gaussian_marginals import FactorAnalysers, GaussianComponents, GaussianMixture
from pynade.classical.moments import Components, Moments, Rows, Scale, cholesky, factor_covariances
from pynade.likelihood import Estimate
from pynade.training.history import History

START_ROWS = 10_000  # rows for k-means++, and fifty more for each component
BATCH_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 27}  # numbers in the covariances of all members of a batch


@dataclass(frozen=True, eq=False)
class FactorTask:
    """One mixture of factor analysers to fit; tasks with the same tensor objects share computations.

    Attributes:
        x: training rows (N, D).
        n_components: K.
        n_factors: Q, from 1 to D.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        init: "rows" (random rows as means, loadings from the pooled covariance), "k-means++", or a mixture
            of factor analysers to start from. Early stopping works best with "rows".
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
    """EM of several mixtures of Gaussians on standardised rows; mixtures of similar size form a batch.

    The parameters of a member are `weights` (K,), `means` (K, D) and those of its covariances, padded to the
    largest sizes of its batch; those of a batch are (M, K, …). `floor` is the name and value of an option.
    """

    zero_means = False  # whether all means stay zero
    keep = True  # whether features of rows are cached between iterations

    def __init__(
        self,
        tasks: Sequence[FactorTask],
        options: EMOptions,
        floor: tuple[str, float],
        standardise: bool | Scale,
    ) -> None:
        if not floor[1] >= 0:
            raise ValueError(f"{floor[0]} must be at least 0, not {floor[1]}")

        @cache  # tasks with the same tensors share their rows
        def standardised_rows(x: Tensor, valid: Tensor | None = None) -> Rows:
            if valid is not None:
                valid = check_rows(valid.to(x.device), 1, "valid", every_column=False)
                return Rows(valid.double(), standardised_rows(x).scale)
            scale = standardise if isinstance(standardise, Scale) else Scale.of(x.double(), standardise)
            return Rows(x.double(), scale, self.keep)

        self.tasks, self.floor, self.validated = tasks, floor, tasks[0].valid is not None
        self.tables: list[tuple[Rows, Rows | None]] = []  # training and validation rows of each member
        for t in tasks:
            train = standardised_rows(check_rows(t.x, t.n_components))
            self.tables.append((train, None if t.valid is None else standardised_rows(t.x, t.valid)))
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

    def covariance_parameters(self, covariances: Tensor, m: int) -> Parameters:
        """Parameters of a member's covariances that are close to the given (..., D, D)."""
        return {"covariances": covariances + torch.diag(self.floors[m])}

    def model_parameters(self, model: Any, m: int) -> Parameters:
        """Parameters of the covariances of a model from which a member starts."""
        scale = self.tables[m][0].scale.scale
        return {"covariances": model.components()[2].to(scale) / scale / scale[:, None]}

    def m_step(self, params: Parameters, moments: Moments, floors: Tensor) -> Parameters:
        """Means and parameters of the covariances, from the moments; floors (M, 1, D)."""
        covariances = moments.covariances(self.zero_means) + torch.diag_embed(floors)
        return {"means": params["means"] if self.zero_means else moments.means(), "covariances": covariances}

    def model(self, params: Parameters, m: int) -> Any:
        """The density of the unstandardised data with these parameters of a member."""
        moments = self.tables[m][0].scale.data_units(params["means"], params["covariances"])
        return GaussianMixture.from_moments(params["weights"], *moments)

    def start(self, m: int) -> Parameters:
        """Initial parameters of a member: those of a model, from random rows, or from k-means++ clusters."""
        task, rows, floor = self.tasks[m], self.tables[m][0], self.floors[m]
        K, D, init, generator = task.n_components, len(floor), task.init, task.generator
        if not isinstance(init, str):
            found_sizes = _sizes(init.n_components, init.n_variables, getattr(init, "n_factors", 0))
            if found_sizes != (expected := _sizes(K, D, task.n_factors)):
                raise ValueError(f"init has {found_sizes}, expected {expected}")
            means = (init.means.to(floor) - rows.scale.shift) / rows.scale.scale * (not self.zero_means)
            weights = init.log_weights.to(floor).exp()
            return {"weights": weights, "means": means, **self.model_parameters(init, m)}
        if init not in ("k-means++", "rows"):
            raise ValueError(f"unknown init {init!r}; known: 'k-means++', 'rows' or a model")
        pooled = rows.pooled()
        device = pooled.device if generator is None else generator.device
        order = torch.randperm(rows.n, generator=generator, device=device).to(pooled.device)
        if init == "rows":
            if self.zero_means:
                raise ValueError("with zero means, init='rows' makes all components equal; use 'k-means++'")
            covariances = self.covariance_parameters(pooled.repeat(K, 1, 1), m)
            return {"weights": pooled.new_full((K,), 1 / K), "means": rows.filled[order[:K]], **covariances}
        sample = rows.filled[order[: START_ROWS + 50 * K]]
        centres, ones = _kmeans_plus_plus(sample, K, generator), torch.ones_like(floor)
        # with such narrow components, almost all of a row's responsibility is that of its nearest centre
        narrow = 0.1 * torch.diag(ones).expand(1, K, D, D)
        components = Components.of(centres.new_zeros(1, K), centres[None], narrow)
        moments = Rows(sample, Scale(0 * ones, ones, ones), keep=False).moments(components)
        n = moments.counts[0, :, None]  # rows of each component; D more have the pooled covariance
        smoothed = (n[..., None] * moments.covariances(self.zero_means)[0] + D * pooled) / (n[..., None] + D)
        means = torch.where(n > 0, moments.means()[0], centres) * (not self.zero_means)
        weights, covariances = (n[:, 0] + 1) / (len(sample) + K), self.covariance_parameters(smoothed, m)
        return {"weights": weights, "means": means, **covariances}

    def expect(self) -> list[float | None]:
        """E-step; log-likelihoods per row, in the units of the data."""
        self.groups: list[tuple[list[int], Rows | None, Components]] = []  # of members with the same rows
        train: dict[int, float] = {}
        for active, params in self._batches():
            roots = cholesky(self.covariances(params), self.floor)
            components = Components.of(params["weights"].log(), params["means"], roots)
            tables = [self.tables[m] for m in active]
            for rows, valid in dict.fromkeys(tables):
                group = [k for k, table in enumerate(tables) if table == (rows, valid)]
                whole_batch, members = len(group) == len(active), [active[k] for k in group]
                selected = components if whole_batch else Components(*(t[group] for t in components))
                moments = rows.moments(selected)
                self.groups.append((members, valid, selected))
                self.moments |= zip(members, zip(*moments, strict=True), strict=True)
                train |= zip(members, rows.per_row(moments).tolist(), strict=True)
        return [train[m] for m in self.active]

    def score(self, epoch: int) -> list[Estimate] | None:
        """Mean log-likelihoods of the validation rows."""
        scores: dict[int, Estimate] = {}
        for members, valid, components in self.groups:
            if valid is None:
                return None
            means = valid.per_row(valid.moments(components, likelihood_only=True)).tolist()
            scores |= {m: Estimate(v, math.nan, valid.n) for m, v in zip(members, means, strict=True)}
        return [scores[m] for m in self.active]

    def maximise(self) -> None:
        """M-step; components that have lost their rows start anew."""
        for active, params in self._batches():
            moments = Moments(*map(torch.stack, zip(*(self.moments[m] for m in active), strict=True)))
            floors = torch.stack([self.floors[m] for m in active])[:, None]
            updated, is_lost = self.update(params, moments, floors)
            for m, member_params in zip(active, zip(*updated.values(), strict=True), strict=True):
                self.params[m] = dict(zip(updated, member_params, strict=True))
            for k in is_lost.any(-1).nonzero()[:, 0].tolist():
                self.restart_components(active[k], is_lost[k])

    def update(self, params: Parameters, moments: Moments, floors: Tensor) -> tuple[Parameters, Tensor]:
        """Parameters after an M-step, and which components (M, K) have lost their rows."""
        occupied = moments.occupied()
        updated = {"weights": moments.counts / moments.counts.sum(-1, keepdim=True)}
        for name, t in self.m_step(params, moments, floors).items():  # padding and empty components stay
            updated[name] = torch.where(occupied.view(*occupied.shape, *[1] * (t.ndim - 2)), t, params[name])
        return updated, ~occupied & (params["weights"] > 0)

    def restart_components(self, m: int, is_lost: Tensor) -> None:
        """Move components to random rows, with the pooled covariance (with zero means: scaled by rows)."""
        (rows, _), task, params = self.tables[m], self.tasks[m], self.params[m]
        drawn, covariances = draw_rows(rows.filled, int(is_lost.sum()), task.generator), rows.pooled()
        if self.zero_means:
            covariances = (drawn.square().mean(1) / rows.filled.square().mean())[:, None, None] * covariances
        else:
            params["means"][is_lost] = drawn
        for name, value in self.covariance_parameters(covariances, m).items():
            params[name][is_lost, ..., : value.shape[-1]] = value
        params["weights"][is_lost] = 1 / task.n_components
        params["weights"] /= params["weights"].sum()
        text = "component {} was empty and started anew at a random row"
        self.notes[m] += [text.format(k) for k in is_lost.nonzero().squeeze(-1).tolist()]

    def fit(self) -> list[tuple[Any, History]]:
        """The best density of every member, in the units of the data, and its history."""
        fitted = []
        for m, history in enumerate(self.run()):
            params = {name: t[: self.tasks[m].n_components] for name, t in self.best[m].items()}
            fitted.append((self.model(params, m), history))
        return fitted

    def _batches(self) -> Iterator[tuple[list[int], Parameters]]:
        """The active members of each batch, and their stacked parameters."""
        for batch in self.batches:
            if active := [m for m in batch if m in self.active]:
                yield active, {n: torch.stack([self.params[m][n] for m in active]) for n in self.params[0]}


@torch.no_grad()
def em_factors(
    tasks: Sequence[FactorTask],
    *,
    noise_floor: float = 1e-6,
    standardise: bool = True,
    **options: Unpack[EMOptions],
) -> list[tuple[FactorAnalysers, History]]:
    """Fit mixtures of factor analysers by EM, such as all settings × folds of a cross-validation.

    Computations are in float64 on the device of the rows. Missing values (NaN) are integrated out exactly. A
    component that has lost all its rows starts anew at a random row, which `history.messages` reports. Tasks
    of similar size are computed together; each stops by itself, with the result that it has alone.

    Args:
        tasks: what to fit; either all have validation rows or none has.
        noise_floor: the smallest noise variance Ψ_ii.
        standardise: whether the floor applies to standardised columns, or else to the data as given.
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

    def covariance_parameters(self, covariances: Tensor, m: int) -> Parameters:
        """The Q largest principal directions are the loadings."""
        values, vectors = torch.linalg.eigh(covariances)
        D, Q = values.shape[-1], self.tasks[m].n_factors
        residual = values[..., : D - Q].mean(-1) if Q < D else 0.5 * values[..., 0]
        residual = residual.clamp_min(0)[..., None]
        # a loading of exactly zero would never change
        lengths = torch.maximum(values[..., D - Q :] - residual, 0.1 * residual + 1e-8).sqrt()
        loadings = vectors[..., D - Q :] * lengths[..., None, :]
        noise = covariances.diagonal(dim1=-2, dim2=-1) - loadings.square().sum(-1)
        noise = torch.maximum(noise, torch.maximum(0.1 * residual, self.floors[m]))
        return {"loadings": loadings, "noise": noise}

    def model_parameters(self, model: FactorAnalysers, m: int) -> Parameters:
        scale = self.tables[m][0].scale.scale
        noise = torch.maximum(model.noise.to(scale) / scale.square(), self.floors[m])
        return {"loadings": model.loadings.to(scale) / scale[:, None], "noise": noise}

    def model(self, params: Parameters, m: int) -> FactorAnalysers:
        scale = self.tables[m][0].scale
        loadings = params["loadings"][..., : self.tasks[m].n_factors] * scale.scale[:, None]
        means, noise = params["means"] * scale.scale + scale.shift, params["noise"] * scale.scale.square()
        return FactorAnalysers.from_parts(params["weights"], means, loadings, noise)

    def m_step(self, params: Parameters, moments: Moments, floors: Tensor) -> Parameters:
        """From a component's weighted mean m and covariance S, since E[s | x] = β (x - μ) is linear in x.

        Λ' = S βᵀ (I - βΛ + β S βᵀ)⁻¹, μ' = μ + (I - Λ'β)(m - μ), Ψ' = diag(S - Λ'β S); β = Λᵀ(ΛΛᵀ + Ψ)⁻¹.
        """
        loadings, means = params["loadings"], params["means"]
        Q = loadings.shape[-1]
        roots = torch.linalg.cholesky(self.covariances(params))
        beta = torch.cholesky_solve(loadings, roots).mT  # (M, K, Q, D)
        eye = torch.eye(means.shape[-1], dtype=means.dtype, device=means.device)
        covariance = torch.where(moments.occupied()[..., None, None], moments.covariances(), eye)
        cross = covariance @ beta.mT  # S βᵀ
        second_moment = eye[:Q, :Q] - beta @ loadings + beta @ cross
        new_loadings = torch.cholesky_solve(cross.mT, torch.linalg.cholesky(second_moment)).mT
        shift = (moments.means() - means)[..., None]
        new_means = means + (shift - new_loadings @ (beta @ shift))[..., 0]
        noise = covariance.diagonal(dim1=-2, dim2=-1) - (new_loadings * cross).sum(-1)
        return {"means": new_means, "loadings": new_loadings, "noise": torch.maximum(noise, floors)}


def _sizes(n_components: int, n_variables: int, n_factors: int) -> str:
    factors = f" with {n_factors} factors" if n_factors else ""
    return f"{n_components} components in {n_variables} variables{factors}"


def _batches(tasks: Sequence[FactorTask]) -> list[list[int]]:
    """Indexes of tasks to fit together: numbers of components differ by a factor of two at most."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, task in enumerate(tasks):
        groups.setdefault(((task.n_components - 1).bit_length(), task.x.shape[-1]), []).append(i)
    batches, limit = [], BATCH_NUMBERS.get(tasks[0].x.device.type, BATCH_NUMBERS["cpu"])
    for (bits, D), indexes in groups.items():
        size = max(1, limit // (2**bits * D * D))
        batches += [indexes[i : i + size] for i in range(0, len(indexes), size)]
    return batches


def _pad(starts: Sequence[Parameters]) -> None:
    """Pad parameters in place to the largest sizes among them: noise by ones, others by zeros."""
    for name in starts[0]:
        shape = [max(sizes) for sizes in zip(*(start[name].shape for start in starts), strict=True)]
        for start in starts:
            padded = start[name].new_full(shape, 1.0 if name == "noise" else 0.0)
            padded[tuple(map(slice, start[name].shape))] = start[name]
            start[name] = padded


def check_rows(x: Array, n_components: int = 1, name: str = "x", *, every_column: bool = True) -> Tensor:
    """Rows (N, D) as a tensor; a ValueError for infinite values, empty rows or columns, and too few rows."""
    x = torch.as_tensor(x)
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"expected rows (N, D) for {name}, got an array of shape {tuple(x.shape)}")
    if torch.isinf(x).any():
        row, column = torch.isinf(x).nonzero()[0].tolist()
        raise ValueError(f"expected finite numbers, but row {row}, column {column} of {name} is infinite")
    if len(x) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, not {len(x)}")
    missing = torch.isnan(x)
    for axis, axis_name in ((1, "row"), (0, "column")):
        empty = missing.all(axis) & (axis == 1 or every_column)
        if empty.any():
            raise ValueError(f"{axis_name} {int(empty.nonzero()[0, 0])} of {name} has no value at all")
    return x


def _kmeans_plus_plus(x: Tensor, n_components: int, generator: Random) -> Tensor:
    """K rows by k-means++ (Arthur & Vassilvitskii), drawn with probability ∝ their squared distances."""
    centres = [draw_rows(x, 1, generator)[0]]
    distance = (x - centres[0]).square().sum(-1)
    for _ in range(n_components - 1):
        weights = torch.where(distance.sum() > 0, distance, 1.0)  # (all are duplicates)
        centres.append(x[draw_components(weights, 1, generator)[0]])
        distance = torch.minimum(distance, (x - centres[-1]).square().sum(-1))
    return torch.stack(centres)
