"""The EM loop of binary mixtures: any two steps, early stopping, a history."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pynade.classical.em_history import EMCallback, EMHistory, EMProgress
from pynade.models import Density
from pynade.training.checkpoint import Keeper, State


def expectation_maximisation(
    model: Density,
    expect: Callable[[], tuple[float, float]],
    maximise: Callable[[int], list[str]],
    validate: Callable[[], float] | None,
    *,
    iterations: int,
    patience: int | None,
    tolerance: float,
    callback: EMCallback | None,
    keeper: Keeper | None = None,
    seeded: Tensor | None = None,
) -> EMHistory:
    """Alternate the two steps; with validation, end with the parameters that scored best.

    Args:
        model: changed in place by `maximise`.
        expect: E-step; gives the objective and the training log-likelihood, both per row.
        maximise: M-step of the statistics just gathered; is told the iteration, gives messages.
        validate: mean log-likelihood of the validation rows.
        iterations: M-steps at most.
        patience: M-steps without a better validation score before stopping; None never stops so.
        tolerance: stop when the objective rises by less than this, in nats per row; 0 never stops so.
        callback: told of each iteration; one that returns True ends it.
        keeper: keeps the state, and gives it back where an interrupted EM goes on.
        seeded: what `maximise` remembers besides the model, changed in place.
    """
    if iterations < 0 or (patience is not None and patience < 1):
        raise ValueError(
            f"EM takes iterations >= 0 and patience >= 1, not iterations={iterations}, patience={patience}"
        )
    history, began, best = EMHistory(), time.perf_counter(), -np.inf
    kept: dict[str, Tensor] = {}
    anew, first = False, 0  # whether the last M-step has seeded a component; where to begin
    memory = {} if seeded is None else {"seeded": seeded}

    def state(t: int) -> State:
        facts = {"t": t, "best": best, "anew": anew, "history": asdict(history)}
        return {"model": model.state_dict(), "kept": kept, "memory": memory}, facts

    if keeper is not None and keeper.found is not None:
        tensors, facts = keeper.found
        model.load_state_dict(tensors["model"])
        kept = tensors.get("kept", {})
        for name, tensor in memory.items():
            tensor.copy_(tensors["memory"][name])
        first, best, anew, history = facts["t"], facts["best"], facts["anew"], EMHistory(**facts["history"])
        began -= history.seconds
        if history.stopped:
            return history
    for t in range(first, iterations + 1):
        objective, train = expect()
        history.objective.append(objective)
        history.train.append(train)
        score = train
        if validate is not None:
            score = validate()
            history.valid.append(score)
            history.valid_at.append(t)
        if validate is None or score > best:
            best, history.best_iteration = score, t
            if validate is not None:
                kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        history.seconds = time.perf_counter() - began
        valid = score if validate is not None else None
        told = EMProgress(t, iterations, objective, train, valid, history.seconds)
        if callback is not None and callback(told):
            history.stopped = "callback"
        elif t == iterations:
            history.stopped = "iterations"
        elif patience is not None and validate is not None and t - history.best_iteration >= patience:
            history.stopped = "validation no longer improved"
        elif tolerance and t and not anew and objective - history.objective[-2] < tolerance:
            history.stopped = "converged"
        if history.stopped:
            break
        messages = maximise(t + 1)
        anew = bool(messages)
        history.messages += messages
        if keeper is not None:
            keeper.keep(partial(state, t + 1))
    if kept:
        model.load_state_dict(kept)
    history.seconds = time.perf_counter() - began
    if keeper is not None:
        kept = {}  # the model has them
        keeper.keep(partial(state, t + 1), ended=True)
    return history


def binary_rows(
    x: Tensor | np.ndarray, word: str, n_variables: int | None = None, *, missing: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Rows as uint8 (small in memory), and which cells are observed; None if all are.

    Args:
        x: (N, D), values exactly 0 or 1, NaN where missing.
        word: what to call these rows in a message.
        n_variables: D, where it is known already.
        missing: whether NaN is allowed.
    """
    rows = torch.as_tensor(x)
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(f"{word} rows have shape (N, D) with at least one row, not {tuple(rows.shape)}")
    if n_variables is not None and rows.shape[1] != n_variables:
        raise ValueError(f"{word} rows have {rows.shape[1]} columns, the model has {n_variables} variables")
    observed = ~torch.isnan(rows) if rows.is_floating_point() else None
    if observed is None or bool(observed.all()):
        observed = None
    elif not missing:
        raise ValueError(f"{word} rows have missing values (NaN), which this method cannot use")
    values = rows if observed is None else torch.where(observed, rows, 0)
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError(f"{word} rows must hold values that are exactly 0 or 1")
    return values.to(torch.uint8), observed
