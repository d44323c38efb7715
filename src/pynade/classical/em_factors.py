"""Mixtures of factor analysers by EM (Ghahramani & Hinton, 1996), many settings and folds at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pynade.classical.em import (
    EMPTY,
    Member,
    Parameters,
    afresh_messages,
    check_floor,
    expectation_maximisation,
    prepare,
    random_rows,
    starting_moments,
)
from pynade.classical.em_history import EMCallback, EMHistory, EMProgress
from pynade.classical.factor_analysers import FactorAnalysers
from pynade.classical.moments import Moments, Rows, Scale, cholesky

ROOM = {"cpu": 1 << 24, "cuda": 1 << 27}  # numbers in the covariances of the members of one batch


@dataclass(frozen=True, eq=False)
class FactorTask:
    """One mixture of factor analysers to fit; see `em_factors` for the meaning of each field.

    Tasks that are given the same tensor objects share the work on them.
    """

    x: Tensor
    n_components: int
    n_factors: int
    x_valid: Tensor | None = None
    init: str | FactorAnalysers = "rows"
    stop_at_train: float | None = None
    generator: torch.Generator | None = None


@torch.no_grad()
def em_factors(
    x: Tensor,
    n_components: int,
    n_factors: int,
    *,
    x_valid: Tensor | None = None,
    iterations: int = 500,
    tol: float = 1e-4,
    patience: int | None = 20,
    noise_floor: float = 1e-6,
    init: str | FactorAnalysers = "rows",
    stop_at_train: float | None = None,
    generator: torch.Generator | None = None,
    callback: EMCallback | None = None,
) -> tuple[FactorAnalysers, EMHistory]:
    """Fit a mixture of K factor analysers with Q factors by EM, on the device of x and in float64.

    Missing values (NaN) are integrated out exactly. A component that no row belongs to any more starts afresh
    at a random row, and `history.messages` says so. With validation rows, the parameters of the iteration
    that scored best on them are returned.

    Args:
        x: training rows (N, D).
        n_components: K.
        n_factors: Q, from 1 to D.
        x_valid: validation rows, scored at every iteration.
        iterations: the most M-steps.
        tol: stop when the mean training log-likelihood changes by less.
        patience: stop when validation has not improved for this many iterations; None runs on.
        noise_floor: the smallest noise variance Ψ_ii an M-step may choose.
        init: "rows" (random rows as means, loadings from the pooled covariance), "k-means++", or a mixture
            of factor analysers to go on from. Early stopping works best from the first, which begins broad.
        stop_at_train: stop when the mean training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `train_log_likelihood` of the validated run).
        generator: draws the starting point.
        callback: told of each iteration; one that returns True ends it.

    Raises:
        ValueError: fewer rows than components, or a covariance that is singular in spite of the floor.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(500, 1, generator=g) * torch.ones(3) + 0.1 * torch.randn(500, 3, generator=g)
        >>> model, history = em_factors(x, n_components=1, n_factors=1, generator=g)
        >>> bool((model.noise.sqrt() - 0.1).abs().max() < 0.02)
        True
    """
    task = FactorTask(x, n_components, n_factors, x_valid, init, stop_at_train, generator)
    return em_factors_batch(
        [task], iterations=iterations, tol=tol, patience=patience, noise_floor=noise_floor, callback=callback
    )[0]


@torch.no_grad()
def em_factors_batch(
    tasks: Sequence[FactorTask],
    *,
    iterations: int = 500,
    tol: float = 1e-4,
    patience: int | None = 20,
    noise_floor: float = 1e-6,
    callback: EMCallback | None = None,
) -> list[tuple[FactorAnalysers, EMHistory]]:
    """Fit many mixtures of factor analysers as one program, such as settings × folds of a cross-validation.

    Members of like size go together, padded to the largest number of components and of factors among them: a
    padded component has weight zero and a padded factor loadings of zero, which EM leaves at zero. Each
    stops for itself and then leaves the batch; its result does not depend on the others. The arguments
    are those of `em_factors`.

    Example:
        >>> import torch
        >>> x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
        >>> tasks = [FactorTask(x[:200], k, q, x_valid=x[200:]) for k in (1, 2) for q in (1, 3)]
        >>> fitted = em_factors_batch(tasks, iterations=5)
        >>> [(model.n_components, model.n_factors) for model, _ in fitted]
        [(1, 1), (1, 3), (2, 1), (2, 3)]
    """
    check_floor("noise_floor", noise_floor)
    for task in tasks:
        FactorAnalysers(task.x.shape[-1], task.n_components, task.n_factors)  # complains of impossible sizes
        if len(task.x) < task.n_components:
            raise ValueError(f"{task.n_components} components need at least as many rows, not {len(task.x)}")
    found: dict[int, tuple[FactorAnalysers, EMHistory]] = {}
    alike, asked = _alike(tasks), False
    for done, which in enumerate(alike):

        def tell(now: EMProgress, done: int = done) -> bool:
            nonlocal asked
            steps = now.iterations + 1  # the start is one of them
            now = replace(now, iteration=done * steps + now.iteration, iterations=len(alike) * steps - 1)
            asked = asked or (callback is not None and bool(callback(now)))
            return asked  # once asked, no batch goes beyond its start

        fitted = _together([tasks[i] for i in which], iterations, tol, patience, noise_floor, tell)
        found.update(zip(which, fitted, strict=True))
    return [found[i] for i in range(len(tasks))]


def _alike(tasks: Sequence[FactorTask]) -> list[list[int]]:
    """Indexes of tasks to fit together: components equal up to a factor of two, and not too many."""
    buckets: dict[tuple[int, int], list[int]] = {}
    for i, task in enumerate(tasks):
        buckets.setdefault(((task.n_components - 1).bit_length(), task.x.shape[-1]), []).append(i)
    parts = []
    for (bits, D), which in buckets.items():
        room = ROOM.get(tasks[which[0]].x.device.type, ROOM["cpu"])
        size = max(1, room // (2**bits * D * D))
        parts += [which[i : i + size] for i in range(0, len(which), size)]
    return parts


def _together(
    tasks: Sequence[FactorTask],
    iterations: int,
    tol: float,
    patience: int | None,
    noise_floor: float,
    callback: EMCallback,
) -> list[tuple[FactorAnalysers, EMHistory]]:
    """One batch, padded."""
    members: list[Member] = []
    scales: list[Scale] = []
    known: dict[object, tuple[Rows, Scale]] = {}
    for task in tasks:
        if id(task.x) not in known:
            x = prepare(task.x, task.n_components)
            scale = Scale.of(x)
            known[id(task.x)] = Rows(x, scale), scale
        rows, scale = known[id(task.x)]
        both = id(task.x), id(task.x_valid)
        if task.x_valid is not None and both not in known:
            known[both] = (
                Rows(prepare(task.x_valid.to(rows.filled.device), 1, "x_valid", False), scale),
                scale,
            )
        valid = None if task.x_valid is None else known[both][0]
        members.append(Member(rows, valid, task.stop_at_train))
        scales.append(scale)
    floors = torch.stack([noise_floor / scale.scale.square() for scale in scales])[:, None]  # (M, 1, D)
    start = _stack(tasks, members, floors)
    reseeded: list[Counter[int]] = [Counter() for _ in tasks]

    def factors(params: Parameters) -> Tensor:
        return cholesky(_covariances(params), "noise_floor", noise_floor)

    def update(params: Parameters, moments: Moments, active: list[int]) -> Parameters:
        new = m_step(params, moments, floors[active])
        real = torch.isfinite(params["log_weights"])
        empty = real & (moments.counts <= EMPTY * moments.counts.sum(-1, keepdim=True))
        if bool(empty.any()):
            for a, k in empty.nonzero().tolist():
                _afresh(new, a, k, members[active[a]].rows, tasks[active[a]], floors[active[a]])
                reseeded[active[a]][k] += 1
        return new

    params, histories = expectation_maximisation(
        members, start, factors, update, iterations=iterations, tol=tol, patience=patience, callback=callback
    )
    found = []
    for m, (task, scale) in enumerate(zip(tasks, scales, strict=True)):
        own = {name: tensor[m, : task.n_components] for name, tensor in params.items()}
        model = FactorAnalysers.from_parts(
            own["log_weights"].exp(),
            scale.means(own["means"]),
            own["loadings"][..., : task.n_factors] * scale.scale[:, None],
            own["noise"] * scale.scale.square(),
        )
        histories[m].messages = afresh_messages(reseeded[m])
        found.append((model, histories[m]))
    return found


def m_step(params: Parameters, moments: Moments, floor: Tensor) -> Parameters:
    """One M-step of Ghahramani & Hinton, from moments instead of rows.

    E[s | x] = β (x - μ) with β = Λᵀ(ΛΛᵀ + Ψ)⁻¹ is linear in x, so each component's weighted mean m and
    covariance S are all that is needed. The joint regression of x on (s, 1) is, with the means taken out,
    Λ' = S βᵀ (I - βΛ + β S βᵀ)⁻¹, μ' = μ + (I - Λ'β)(m - μ), Ψ' = diag(S - Λ'β S).

    Args:
        params: `log_weights` (M, K), `means` (M, K, D), `loadings` (M, K, D, Q), `noise` (M, K, D).
        moments: of the E-step under these parameters.
        floor: the smallest noise variance, broadcast against `noise`.
    """
    loadings, means = params["loadings"], params["means"]
    Q = loadings.shape[-1]
    root = torch.linalg.cholesky(_covariances(params))
    beta = torch.cholesky_solve(loadings, root).mT  # (M, K, Q, D)
    some = moments.counts > EMPTY * moments.counts.sum(-1, keepdim=True)
    eye = torch.eye(len(means[0, 0]), dtype=means.dtype, device=means.device)
    covariance = torch.where(some[..., None, None], moments.covariances(), eye)
    cross = covariance @ beta.mT  # S βᵀ
    latent = eye[:Q, :Q] - beta @ loadings + beta @ cross
    new = torch.cholesky_solve(cross.mT, torch.linalg.cholesky(latent)).mT
    shift = (moments.means() - means)[..., None]
    moved = means + (shift - new @ (beta @ shift))[..., 0]
    noise = covariance.diagonal(dim1=-2, dim2=-1) - (new * cross).sum(-1)
    return {  # a component without rows (padding, or empty) keeps what it has
        "log_weights": (moments.counts / moments.counts.sum(-1, keepdim=True)).log(),
        "means": torch.where(some[..., None], moved, means),
        "loadings": torch.where(some[..., None, None], new, loadings),
        "noise": torch.where(some[..., None], torch.maximum(noise, floor), params["noise"]),
    }


def _covariances(params: Parameters) -> Tensor:
    loadings = params["loadings"]
    return loadings @ loadings.mT + torch.diag_embed(params["noise"])


def factorised(covariances: Tensor, n_factors: int, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Loadings (..., D, Q) and noise (..., D) near given covariances: the Q largest principal directions."""
    values, vectors = torch.linalg.eigh(covariances)
    D, Q = values.shape[-1], n_factors
    rest = values[..., : D - Q].mean(-1) if Q < D else 0.5 * values[..., 0]
    rest = rest.clamp_min(0)[..., None]
    # a loading of exactly zero would stay zero for ever, so none is
    loadings = (
        vectors[..., D - Q :]
        * torch.maximum(values[..., D - Q :] - rest, 0.1 * rest + 1e-8).sqrt()[..., None, :]
    )
    noise = covariances.diagonal(dim1=-2, dim2=-1) - loadings.square().sum(-1)
    return loadings, torch.maximum(noise, torch.maximum(0.1 * rest, floor))


def _stack(tasks: Sequence[FactorTask], members: Sequence[Member], floors: Tensor) -> Parameters:
    """Starting points of all tasks, padded and stacked."""
    M, D = len(tasks), members[0].rows.n_variables
    K, Q = max(t.n_components for t in tasks), max(t.n_factors for t in tasks)
    stacked = {
        "log_weights": floors.new_full((M, K), -torch.inf),
        "means": floors.new_zeros(M, K, D),
        "loadings": floors.new_zeros(M, K, D, Q),
        "noise": floors.new_ones(M, K, D),
    }
    for m, (task, member) in enumerate(zip(tasks, members, strict=True)):
        scale, k, q = member.rows.scale, task.n_components, task.n_factors
        if isinstance(task.init, FactorAnalysers):
            given = task.init
            if (given.n_variables, given.n_components, given.n_factors) != (D, k, q):
                raise ValueError(
                    f"init has (variables, components, factors) = ({given.n_variables}, "
                    f"{given.n_components}, {given.n_factors}), expected ({D}, {k}, {q})"
                )
            log_weights = given.log_weights.to(floors)
            means = (given.means.to(floors) - scale.shift) / scale.scale
            loadings = given.loadings.to(floors) / scale.scale[:, None]
            noise = torch.maximum(given.noise.to(floors) / scale.scale.square(), floors[m])
        else:
            weights, means, covariances = starting_moments(member.rows, k, task.init, task.generator)
            log_weights = weights.log()
            loadings, noise = factorised(covariances, q, floors[m])
        for name, value in (("log_weights", log_weights), ("means", means), ("noise", noise)):
            stacked[name][m, :k] = value
        stacked["loadings"][m, :k, :, :q] = loadings
    return stacked


def _afresh(params: Parameters, a: int, k: int, rows: Rows, task: FactorTask, floor: Tensor) -> None:
    """Component k of member a has no rows left: start it again at a random row."""
    loadings, noise = factorised(rows.pooled(), task.n_factors, floor[0])
    params["means"][a, k] = random_rows(rows.filled, 1, task.generator)[0]
    params["loadings"][a, k, :, : task.n_factors] = loadings
    params["noise"][a, k] = noise
    weights = params["log_weights"][a].exp()
    weights[k] = 1 / task.n_components
    params["log_weights"][a] = (weights / weights.sum()).log()
