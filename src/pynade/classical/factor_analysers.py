"""Mixtures of factor analysers (Ghahramani & Hinton, 1996): densities, and EM for many of them at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.classical import gaussian_em
from pynade.classical.em import EMOptions, Parameters, Random, run_em, stopping
from pynade.classical.gaussian_em import GaussianEM, Member
from pynade.classical.gaussian_marginals import GaussianComponents, filled, log_normalised
from pynade.classical.moments import Moments, Scale
from pynade.likelihood import Estimate
from pynade.training.checkpoint import State
from pynade.training.history import History
from pynade.training.loop import Learner, Report, Stopping

ROOM = {"cpu": 1 << 24, "cuda": 1 << 27}  # numbers in the covariances of the members of one batch


class FactorAnalysers(GaussianComponents):
    """p(x) = Σ_k w_k N(x; μ_k, Λ_k Λ_kᵀ + Ψ_k), Λ_k of shape (D, Q) and Ψ_k diagonal.

    In each component x = μ + Λ s + noise with Q standard normal factors s (Ghahramani & Hinton, 1996). With
    Q = D it contains every mixture of full-covariance Gaussians.

    A new one is K standard normals without loadings; `em_factors` fits one.

    Args:
        n_variables: D.
        n_components: K.
        n_factors: Q, from 1 to D.

    Example:
        >>> import torch
        >>> model = FactorAnalysers(3, n_components=1, n_factors=1)
        >>> _ = model.loadings.fill_(1.0)
        >>> model.covariances()[0].tolist()
        [[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]
        >>> round(model.log_prob(torch.zeros(1, 3)).item(), 4)  # -½ log((2π)³ · 4)
        -3.45
    """

    loadings: Tensor
    noise: Tensor

    def __init__(self, n_variables: int, n_components: int, n_factors: int) -> None:
        super().__init__(n_variables, n_components)
        check_positive(n_factors=n_factors)
        if n_factors > n_variables:
            raise ValueError(
                f"n_factors must be at most the number of variables, {n_variables}, not {n_factors}"
            )
        self.n_factors = n_factors
        self.register_buffer("loadings", torch.zeros(n_components, n_variables, n_factors))
        self.register_buffer("noise", torch.ones(n_components, n_variables))

    @classmethod
    def from_parts(cls, weights: Tensor, means: Tensor, loadings: Tensor, noise: Tensor) -> FactorAnalysers:
        """From weights (K,), means (K, D), loadings (K, D, Q) and noise variances (K, D)."""
        if not bool((noise > 0).all()):
            raise ValueError("every noise variance must be positive")
        parts = {"log_weights": log_normalised(weights), "means": means, "loadings": loadings, "noise": noise}
        return filled(cls(means.shape[1], len(means), loadings.shape[2]), means.dtype, **parts)

    def covariances(self) -> Tensor:
        """Λ Λᵀ + Ψ of each component, (K, D, D)."""
        return _covariances(self.loadings, self.noise)

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,), means (K, D) and covariances (K, D, D), float64."""
        covariances = _covariances(self.loadings.double(), self.noise.double())
        return self.log_weights.double(), self.means.double(), covariances

    def _residuals(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """By the Woodbury identity, in Q × Q matrices.

        With y = Ψ^{-½}(x - μ) and B = Ψ^{-½}Λ, the quadratic form is min_s |y - B s|² + |s|², taken at the
        posterior mean s = (I + BᵀB)⁻¹Bᵀy: a sum of squares, where the textbook difference of two loses digits
        as Ψ → 0.
        """
        noise = self.noise.double()
        scaled = self.loadings.double() / noise.sqrt()[..., None]  # B
        gram = torch.eye(self.n_factors, dtype=torch.float64, device=x.device) + scaled.mT @ scaled
        root = torch.linalg.cholesky(gram)
        posterior = torch.cholesky_solve(scaled.mT, root).to(x.dtype)  # (K, Q, D), y -> s
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + noise.log().sum(-1)
        constant = self.log_weights.double() - 0.5 * log_det - 0.5 * self.n_variables * math.log(2 * math.pi)
        spread, scaled = noise.rsqrt().to(x.dtype), scaled.to(x.dtype)

        def squares(rows: Tensor) -> Tensor:
            y = (rows - self.means[:, None]) * spread[:, None]  # (K, rows, D)
            s = y @ posterior.mT
            rest = torch.baddbmm(y, s, scaled.mT, alpha=-1)
            return (rest.square().sum(-1, dtype=torch.float64) + s.square().sum(-1, dtype=torch.float64)).mT

        return constant, squares

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """A component for each row, then μ + Λ s + Ψ^½ e."""
        return self._draw(n, generator, self.loadings, self.noise)


def _covariances(loadings: Tensor, noise: Tensor) -> Tensor:
    return loadings @ loadings.mT + torch.diag_embed(noise)


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
        stop_at_train: stop when the mean training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `train_log_likelihood` of the validated run).
        generator: draws the starting point; each task has its own.
    """

    x: Tensor
    n_components: int
    n_factors: int
    valid: Tensor | None = None
    init: str | FactorAnalysers = "rows"
    stop_at_train: float | None = None
    generator: Random = None


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

    Members of like size are computed together, padded to the largest number of components and of factors
    among them: a padded component has weight zero and a padded factor loadings of zero, which EM leaves at
    zero. Each member stops for itself; its result does not depend on the others.

    Args:
        tasks: what to fit; all have validation rows, or none has.
        noise_floor: the smallest noise variance Ψ_ii an M-step may choose.
        standardise: the floor is in units in which each column has standard deviation 1; otherwise in the
            units of the data.
        options: see `EMOptions`; by default epochs=501, patience=20, tol=1e-4. Tasks have their own
            generators, and may have their own `stop_at_train`.

    Raises:
        ValueError: fewer rows than components, or a covariance that is singular in spite of the floor.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.randn(500, 1, generator=g) * torch.ones(3) + 0.1 * torch.randn(500, 3, generator=g)
        >>> tasks = [FactorTask(x, k, 1, generator=torch.Generator().manual_seed(0)) for k in (1, 2)]
        >>> (one, history), (two, _) = em_factors(tasks)
        >>> bool((one.noise.sqrt() - 0.1).abs().max() < 0.02), two.n_components
        (True, 2)
    """
    options = EMOptions(epochs=501, patience=20, tol=1e-4) | options
    floor, rule = gaussian_em.checked_floor("noise_floor", noise_floor), stopping(options)
    for task in tasks:
        FactorAnalysers(task.x.shape[-1], task.n_components, task.n_factors)  # raises for impossible sizes
        gaussian_em.enough_rows(task.x, task.n_components)
    if len({task.valid is None for task in tasks}) > 1:
        raise ValueError("either all tasks have validation rows or none has")
    if not tasks:
        return []
    tables = {id(t.x): t.x for t in tasks}
    rows = {key: gaussian_em.train_rows(x, standardise) for key, x in tables.items()}
    pairs = {(id(t.x), id(t.valid)): t.valid for t in tasks}
    held = {key: gaussian_em.valid_rows(valid, rows[key[0]].scale) for key, valid in pairs.items()}
    members = [
        Member(rows[id(t.x)], held[id(t.x), id(t.valid)], t.n_components, t.init, t.generator, t.n_factors)
        for t in tasks
    ]
    rules = [rule if t.stop_at_train is None else replace(rule, stop_at_train=t.stop_at_train) for t in tasks]
    batches = [
        (_FactorEM([members[i] for i in own], [rules[i] for i in own], floor), own) for own in _batches(tasks)
    ]
    histories = run_em(_Together(batches, rules), options)
    models: dict[int, FactorAnalysers] = {}
    for part, own in batches:
        models |= dict(zip(own, part.models(), strict=True))
        for m, number in enumerate(own):
            histories[number].messages = part.messages_of(m)
    return [(models[i], history) for i, history in enumerate(histories)]


def _batches(tasks: Sequence[FactorTask]) -> list[list[int]]:
    """Indexes of tasks to fit together: components equal up to a factor of two, and not too many."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, task in enumerate(tasks):
        alike.setdefault(((task.n_components - 1).bit_length(), task.x.shape[-1]), []).append(i)
    parts = []
    for (bits, D), which in alike.items():
        room = ROOM.get(tasks[which[0]].x.device.type, ROOM["cpu"])
        size = max(1, room // (2**bits * D * D))
        parts += [which[i : i + size] for i in range(0, len(which), size)]
    return parts


class _FactorEM(GaussianEM):
    def covariances(self) -> Tensor:
        return _covariances(self.params["loadings"], self.params["noise"])

    def shaped(self, covariances: Tensor, member: Member, floor: Tensor) -> Parameters:
        assert member.n_factors is not None
        loadings, noise = factorised(covariances, member.n_factors, floor)
        most = max(m.n_factors or 0 for m in self.members)
        return {"loadings": functional.pad(loadings, (0, most - member.n_factors)), "noise": noise}

    def given(self, model: FactorAnalysers, scale: Scale, floor: Tensor) -> Parameters:
        return {
            "log_weights": model.log_weights.to(floor),
            "means": (model.means.to(floor) - scale.shift) / scale.scale,
            "loadings": model.loadings.to(floor) / scale.scale[:, None],
            "noise": torch.maximum(model.noise.to(floor) / scale.scale.square(), floor),
        }

    def m_step(self) -> Parameters:
        return m_step(self.params, self.moments, self.floors[self.active][:, None])

    def model(self, own: Parameters, member: Member) -> FactorAnalysers:
        scale = member.rows.scale
        loadings = own["loadings"][..., : member.n_factors] * scale.scale[:, None]
        means, noise = own["means"] * scale.scale + scale.shift, own["noise"] * scale.scale.square()
        return FactorAnalysers.from_parts(own["weights"], means, loadings, noise)


class _Together(Learner):
    """The batches as one learner, which has all tasks as its members."""

    unit, advice = _FactorEM.unit, _FactorEM.advice

    def __init__(self, batches: Sequence[tuple[_FactorEM, list[int]]], stopping: Sequence[Stopping]) -> None:
        self.batches, self.parts = batches, [part for part, _ in batches]
        self.stopping, self.validated = stopping, self.parts[0].validated

    @property
    def active(self) -> list[int]:  # type: ignore[override]
        return [numbers[m] for part, numbers in self.batches for m in part.active]

    def advance(self, report: Report) -> list[float | None]:
        return [value for part in self.parts if part.active for value in part.advance(report)]

    def score(self, epoch: int) -> list[Estimate] | None:
        scores = [part.score(epoch) for part in self.parts if part.active]
        return [score for each in scores for score in each or ()] if self.validated else None

    def accept(self, better: Sequence[int]) -> None:
        for part, numbers in self.batches:
            part.accept([k for k, number in enumerate(numbers) if number in better])

    def drop(self, members: Sequence[int]) -> None:
        for part, numbers in self.batches:
            if part.active:
                part.drop([k for k, number in enumerate(numbers) if number in members])

    def state(self) -> State:
        states = [part.state() for part in self.parts]
        groups = {f"{k} {name}": t for k, (tensors, _) in enumerate(states) for name, t in tensors.items()}
        return groups, {"parts": [facts for _, facts in states]}

    def restore(self, state: State) -> None:
        for k, (part, facts) in enumerate(zip(self.parts, state[1]["parts"], strict=True)):
            names = [name for name in state[0] if name.split(" ")[0] == str(k)]
            part.restore(({name.split(" ")[1]: state[0][name] for name in names}, facts))

    def revert(self, epoch: int, folder: object) -> str:
        return self.parts[0].revert(epoch, folder)


def m_step(params: Parameters, moments: Moments, floor: Tensor) -> Parameters:
    """One M-step of Ghahramani & Hinton, from moments instead of rows.

    E[s | x] = β (x - μ) with β = Λᵀ(ΛΛᵀ + Ψ)⁻¹ is linear in x, so each component's weighted mean m and
    covariance S are all that is needed. The joint regression of x on (s, 1) is, with the means taken out,
    Λ' = S βᵀ (I - βΛ + β S βᵀ)⁻¹, μ' = μ + (I - Λ'β)(m - μ), Ψ' = diag(S - Λ'β S).

    Parameters: `log_weights` (M, K), `means` (M, K, D), `loadings` (M, K, D, Q), `noise` (M, K, D).
    """
    loadings, means = params["loadings"], params["means"]
    Q = loadings.shape[-1]
    root = torch.linalg.cholesky(_covariances(loadings, params["noise"]))
    beta = torch.cholesky_solve(loadings, root).mT  # (M, K, Q, D)
    some = moments.counts > gaussian_em.EMPTY * moments.counts.sum(-1, keepdim=True)
    eye = torch.eye(len(means[0, 0]), dtype=means.dtype, device=means.device)
    covariance = torch.where(some[..., None, None], moments.covariances(), eye)
    cross = covariance @ beta.mT  # S βᵀ
    latent = eye[:Q, :Q] - beta @ loadings + beta @ cross
    new = torch.cholesky_solve(cross.mT, torch.linalg.cholesky(latent)).mT
    shift = (moments.means() - means)[..., None]
    moved = means + (shift - new @ (beta @ shift))[..., 0]
    noise = covariance.diagonal(dim1=-2, dim2=-1) - (new * cross).sum(-1)
    return {  # a component without rows (padding, or empty) keeps what it has
        "means": torch.where(some[..., None], moved, means),
        "loadings": torch.where(some[..., None, None], new, loadings),
        "noise": torch.where(some[..., None], torch.maximum(noise, floor), params["noise"]),
    }


def factorised(covariances: Tensor, n_factors: int, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Loadings (..., D, Q) and noise (..., D) near given covariances: the Q largest principal directions."""
    values, vectors = torch.linalg.eigh(covariances)
    D, Q = values.shape[-1], n_factors
    rest = values[..., : D - Q].mean(-1) if Q < D else 0.5 * values[..., 0]
    rest = rest.clamp_min(0)[..., None]
    # a loading of exactly zero would stay zero for ever, so none is
    lengths = torch.maximum(values[..., D - Q :] - rest, 0.1 * rest + 1e-8).sqrt()
    loadings = vectors[..., D - Q :] * lengths[..., None, :]
    noise = covariances.diagonal(dim1=-2, dim2=-1) - loadings.square().sum(-1)
    return loadings, torch.maximum(noise, torch.maximum(0.1 * rest, floor))
