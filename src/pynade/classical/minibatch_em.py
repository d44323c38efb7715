"""EM on random rows with decreasing steps, for more rows than one wants to see at every iteration."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import asdict
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from pynade.classical.em import EMPTY, Parameters, afresh_messages, check_floor, prepare, random_rows
from pynade.classical.em_gaussian import floor_matrix, mixture_of, starting_point
from pynade.classical.em_history import EMCallback, EMHistory, EMProgress
from pynade.classical.gaussian_mixture import GaussianMixture
from pynade.classical.moments import Components, Rows, Scale, cholesky
from pynade.training.checkpoint import Keeper, State

LOST = 1e-3  # rows of a batch: a component that expects fewer, or has fewer, has none
MISSED = 20.0  # rows: a component that expected as many and had none has lost its rows
FIRST = 10  # minibatches more, at most, to start from: until every column has a value


class RowSource(Protocol):
    """Anything that gives random rows, such as patches cut from images on a GPU."""

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n random rows (n, D), on the device where learning is to run."""


@torch.no_grad()
def minibatch_em(
    source: Tensor | RowSource,
    n_components: int,
    *,
    x_valid: Tensor | None = None,
    iterations: int = 1000,
    batch_size: int = 20_000,
    step_size: float = 0.1,
    zero_means: bool = False,
    covariance_floor: float = 1e-6,
    init: str | GaussianMixture = "k-means++",
    validate_every: int = 10,
    patience: int | None = None,
    generator: torch.Generator | None = None,
    callback: EMCallback | None = None,
    keeper: Keeper | None = None,
) -> tuple[GaussianMixture, EMHistory]:
    """Fit a mixture of K full-covariance Gaussians as the paper did for patches and speech.

    Every iteration draws fresh rows and steps towards the parameters of their EM update (weights, means,
    covariances): θ_t = (1 - η) θ_{t-1} + η θ_EM, with η falling linearly from `step_size` to 0. A covariance
    is then a convex combination of covariances and stays positive definite; a component without rows in the
    batch keeps its mean and covariance. One that has lost its rows (its weight says fewer than a thousandth
    of a row in a batch, or it expected twenty rows since it had any) starts afresh at a random row, in the
    first half of the updates, after which steps are too short to bring it back; `history.messages` says so.
    Everything runs in float64 on the device of the rows.

    Args:
        source: rows (N, D), or an object with `draw(n, generator) -> (n, D)`.
        n_components: K.
        x_valid: validation rows; the best of the validated parameters are returned.
        iterations: updates.
        batch_size: rows per update.
        step_size: η at the first update.
        zero_means: keep all means at zero (Zoran and Weiss); the rows are then not centred either.
        covariance_floor: added to the diagonal of every covariance at every update.
        init: "k-means++", "rows", or a mixture to go on from.
        validate_every: iterations between validations (the last one is always validated).
        patience: stop when this many validations in a row have not improved; None runs on.
        generator: draws rows and starting point; on the device of the rows or on the CPU.
        callback: told of each iteration; one that returns True ends it.
        keeper: keeps the state, and gives it back where an interrupted EM goes on (with a generator).

    Raises:
        ValueError: a covariance is singular in spite of the floor.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(500, 2, generator=g) - 4, torch.randn(500, 2, generator=g) + 4])
        >>> model, history = minibatch_em(x, 2, iterations=20, batch_size=200, generator=g)
        >>> model.means.sort(0).values.round().tolist()
        [[-4.0, -4.0], [4.0, 4.0]]
    """
    check_floor("covariance_floor", covariance_floor)
    if not 0 < step_size <= 1:
        raise ValueError(f"step_size must be in (0, 1], not {step_size}")
    began = time.perf_counter()

    def draw() -> Tensor:
        if isinstance(source, Tensor):
            return random_rows(source, batch_size, generator)
        return source.draw(batch_size, generator)

    if isinstance(source, Tensor) and len(source) < n_components:
        raise ValueError(f"{n_components} components need at least as many rows, not {len(source)}")
    if isinstance(source, Tensor) and bool((empty := torch.isnan(source).all(1)).any()):
        raise ValueError(f"row {int(empty.nonzero()[0, 0])} of x has no value at all")
    first = draw()
    for _ in range(FIRST):  # a column may have few values
        if not bool(torch.isnan(first).all(0).any()):
            break
        first = torch.cat([first, draw()])
    first = prepare(first, n_components, "the first batches")
    scale = Scale.of(first)
    if zero_means:
        scale = Scale(torch.zeros_like(scale.shift), first.square().nanmean(0).sqrt().clamp_min(1e-300))
    if keeper is not None and keeper.found is not None:
        scale = Scale(*(keeper.found[0]["scale"][name].to(first.device) for name in ("shift", "scale")))
    rows = Rows(first, scale, keep=False)
    params = starting_point(rows, n_components, init, covariance_floor, generator, zero_means)
    params["weights"] = params.pop("log_weights").exp()
    floor = floor_matrix(scale, covariance_floor)
    valid = None if x_valid is None else Rows(prepare(x_valid.to(first.device), 1, "x_valid", False), scale)
    history, train = EMHistory(), []
    best, kept = -math.inf, params
    afresh: Counter[int] = Counter()
    missed = torch.zeros_like(params["weights"])  # rows that a component expected since it had any
    begin = 0
    if keeper is not None and keeper.found is not None:
        tensors, facts = keeper.found
        tensors = {group: {n: v.to(first.device) for n, v in own.items()} for group, own in tensors.items()}
        params, more = tensors["params"], tensors["more"]
        kept = tensors.get("kept", params)
        missed, train = more["missed"], list(more["train"])
        history, best, begin = EMHistory(**facts["history"]), facts["best"], facts["t"]
        afresh = Counter({int(k): n for k, n in facts["afresh"].items()})
        began -= facts["seconds"]
        if generator is not None and "generator" in more:
            generator.set_state(more["generator"].cpu())

    def state(t: int) -> State:
        more = {"missed": missed, "train": torch.stack(train) if train else missed[:0]}
        if generator is not None:
            more["generator"] = generator.get_state()
        seconds = time.perf_counter() - began
        facts = {"t": t, "best": best, "afresh": afresh, "history": asdict(history), "seconds": seconds}
        other = {} if kept is params else {"kept": kept}
        units = {"shift": scale.shift, "scale": scale.scale}
        return {"params": params, "more": more, "scale": units, **other}, facts

    for t in range(begin, iterations + 1) if not history.stopped else ():
        roots = cholesky(params["covariances"], "covariance_floor", covariance_floor)[None]
        given = Components.of(params["weights"].log()[None], params["means"][None], roots)
        if valid is not None and (t % validate_every == 0 or t == iterations):
            score = float(valid.log_likelihood(given))
            history.valid.append(score)
            history.valid_at.append(t)
            if score > best:
                best, kept, history.best_iteration = score, params, t
            since = len(history.valid) - 1 - history.valid_at.index(history.best_iteration)
            if patience is not None and since >= patience:
                history.stopped = "validation no longer improved"
                break
        if t == iterations:
            break
        if t:
            rows = Rows(draw().double(), scale, keep=False)
        moments = rows.moments(given)
        train.append(rows.per_row(moments.log_likelihood)[0])
        seen = moments.counts[0] > EMPTY * rows.n
        new: Parameters = {
            "weights": moments.counts[0] / rows.n,
            "means": torch.where(seen[:, None] & (not zero_means), moments.means()[0], params["means"]),
            "covariances": torch.where(
                seen[:, None, None], moments.covariances(zero_means)[0] + floor, params["covariances"]
            ),
        }
        eta = step_size * (1 - t / iterations)
        missed = torch.where(moments.counts[0] < LOST, missed + params["weights"] * rows.n, 0.0)
        params = {name: torch.lerp(params[name], new[name], eta) for name in new}
        lost = (params["weights"] * rows.n < LOST) | (missed > MISSED)
        if t < iterations // 2 and bool(lost.any()):
            _start_afresh(params, lost, rows, floor, zero_means, generator)
            missed[lost] = 0.0
            afresh.update(lost.nonzero().squeeze(-1).tolist())
        if callback is not None:
            latest = history.valid[-1] if history.valid_at and history.valid_at[-1] == t else None
            log_p, seconds = float(train[-1]), time.perf_counter() - began
            if callback(EMProgress(t, iterations, log_p, log_p, latest, seconds)):
                history.stopped = "callback"
                break
        if keeper is not None:
            keeper.keep(partial(state, t + 1))
    history.stopped, history.messages = history.stopped or "iterations", afresh_messages(afresh)
    if keeper is not None:
        keeper.keep(partial(state, iterations), ended=True)
    history.train = [float(v) for v in torch.stack(train)] if train else []
    if valid is None:
        kept, history.best_iteration = params, len(train)
    history.seconds = time.perf_counter() - began
    result = dict(kept)
    result["log_weights"] = result.pop("weights").log()
    return mixture_of(result, scale), history


def _start_afresh(
    params: Parameters,
    lost: Tensor,
    rows: Rows,
    floor: Tensor,
    zero_means: bool,
    generator: torch.Generator | None,
) -> None:
    """Put components at random rows with the covariance of all; without means, at a random row's scale."""
    some = random_rows(rows.filled, int(lost.sum()), generator)
    pooled = rows.pooled()
    if zero_means:
        size = some.square().mean(1) / rows.filled.square().mean()
        params["covariances"][lost] = size[:, None, None] * pooled + floor
    else:
        params["means"][lost], params["covariances"][lost] = some, pooled + floor
    params["weights"][lost] = 1 / len(lost)
    params["weights"] /= params["weights"].sum()
