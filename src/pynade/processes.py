"""Several processes on one job, started by torchrun: who is who, the share of each, and sums over all.

    torchrun --nproc-per-node 4 -m pynade fit DATA --model unet --out RUN

In a single process the functions here do nothing, but for `piece`, by which a minibatch is computed in parts.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

PATIENCE = timedelta(minutes=30)  # that processes wait for each other
LOST = re.compile(r"connect|peer|timed? ?out|nccl", re.IGNORECASE)  # in errors about another process

_alone = ContextVar("alone", default=False)
_piece: ContextVar[tuple[Tensor, slice] | None] = ContextVar("piece", default=None)


@contextmanager
def together() -> Iterator[int]:
    """Join the processes that torchrun started, each with the GPU of its local number; gives one's number.

    GPUs add up gradients by NCCL if every process has its own, CPUs by gloo. A process that waits for one
    that has ended raises a ConnectionError.
    """
    if not (distributed.is_available() and distributed.is_torchelastic_launched()):
        yield 0
        return
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(local % gpus)
    one_each = gpus >= int(os.environ["LOCAL_WORLD_SIZE"]) and distributed.is_nccl_available()
    distributed.init_process_group("cpu:gloo,cuda:nccl" if one_each else "gloo", timeout=PATIENCE)
    rank = distributed.get_rank()
    try:
        yield rank
    except Exception as error:
        if rank > 0:  # the first process says the same, if it has met it too, and torchrun ends this one
            _wait_for_the_end()
        if type(error) in (RuntimeError, distributed.DistBackendError) and LOST.search(str(error)):
            raise ConnectionError("another process of this job has ended or does not answer") from error
        raise
    finally:
        distributed.destroy_process_group()


def _wait_for_the_end() -> None:
    try:
        time.sleep(5)
    except KeyboardInterrupt:
        raise SystemExit(3) from None


def rank_and_size() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) for one on its own."""
    if distributed.is_available() and distributed.is_initialized() and not _alone.get():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks for all."""
    return rank_and_size()[0] == 0


@contextmanager
def alone() -> Iterator[None]:
    """In this block a process computes by itself what it asks for, as in a callback of the first one."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def gathered(value: Any) -> list[Any]:
    """The values of all processes, by their numbers, in every one of them; each waits for all."""
    everyone = [value] * rank_and_size()[1]
    if len(everyone) > 1:
        distributed.all_gather_object(everyone, value)
    return everyone


def of_first(value: Any) -> Any:
    """The value of the first process, in every one of them."""
    return gathered(value if is_first() else None)[0]


def sum_over_processes(array: np.ndarray) -> np.ndarray:
    """The sum of the arrays that the processes hold, in every one of them."""
    return np.sum(gathered(array), axis=0)


@contextmanager
def in_first(block: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter the context in the first process only; where that fails, the others end without a word."""
    with ExitStack() as held:
        failure = None
        try:
            if is_first():
                held.enter_context(block)
        except (ValueError, OSError) as error:
            failure = error
        if of_first(failure is not None):
            raise SystemExit(1) if failure is None else failure
        yield


def pieces(n: int, count: int = 1) -> list[slice]:
    """This process's share of n rows, in so many pieces of about the same size; fewer, if some are empty."""
    rank, size = rank_and_size()
    edges = [n * k // (size * count) for k in range(rank * count, (rank + 1) * count + 1)]
    return [slice(a, b) for a, b in pairwise(edges) if b > a]


@contextmanager
def piece(x: Tensor, rows: slice) -> Iterator[Tensor]:
    """In this block a loss is computed of these rows only, of the minibatch x (B, D), or (M, B, D).

    What a loss draws for every row (prefixes, orderings, dropout) is drawn for the whole minibatch, and cut:
    the result does not depend on how a minibatch is divided.
    """
    token = _piece.set((x, rows))
    try:
        yield x[..., rows, :]
    finally:
        _piece.reset(token)


def minibatch(x: Tensor) -> tuple[Tensor, slice]:
    """The minibatch for whose rows to draw, and which of them x are: all of x, but for a `piece`."""
    return _piece.get() or (x, slice(None))


def rows_drawn(n: int) -> tuple[int, int]:
    """How many rows to draw for where n are computed, and the first of these: (n, 0) but in a `piece`."""
    found = _piece.get()
    return (n, 0) if found is None else (found[0].shape[-2], found[1].start)
