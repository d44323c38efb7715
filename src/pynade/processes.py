"""Several processes on one job, started by torchrun: ranks, shares of the rows, and sums over processes.

    torchrun --nproc-per-node 4 -m pynade fit DATA --model unet --out RUN

In a single process these functions do nothing, except `minibatch_part`, which also divides minibatches there.
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

PATIENCE = timedelta(minutes=30)  # how long processes wait for each other
LOST = re.compile(r"connect|peer|timed? ?out|nccl", re.IGNORECASE)  # in messages about another process

_alone = ContextVar("alone", default=False)
_piece: ContextVar[tuple[Tensor, slice] | None] = ContextVar("piece", default=None)


@contextmanager
def together() -> Iterator[int]:
    """Join the processes that torchrun started, each on the GPU of its local rank; yields the rank.

    Gradients are summed by NCCL if every process has its own GPU, on CPUs by gloo. A process that waits for
    one that has ended raises a ConnectionError.
    """
    if not (distributed.is_available() and distributed.is_torchelastic_launched()):
        yield 0
        return
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(local % gpus)
    own_gpu = gpus >= int(os.environ["LOCAL_WORLD_SIZE"]) and distributed.is_nccl_available()
    distributed.init_process_group("cpu:gloo,cuda:nccl" if own_gpu else "gloo", timeout=PATIENCE)
    rank = distributed.get_rank()
    try:
        yield rank
    except Exception as error:
        if rank > 0:  # an error of all processes is reported by the first; then torchrun ends this one
            _wait_to_be_ended()
        if type(error) in (RuntimeError, distributed.DistBackendError) and LOST.search(str(error)):
            raise ConnectionError("another process of this job has ended or does not answer") from error
        raise
    finally:
        distributed.destroy_process_group()


def _wait_to_be_ended() -> None:
    try:
        time.sleep(5)
    except KeyboardInterrupt:
        raise SystemExit(3) from None


def rank_and_size() -> tuple[int, int]:
    """The rank of this process and the number of processes; (0, 1) for a single one."""
    if distributed.is_available() and distributed.is_initialized() and not _alone.get():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def is_first() -> bool:
    """Whether this process is the first, which writes files and messages."""
    return rank_and_size()[0] == 0


@contextmanager
def alone() -> Iterator[None]:
    """In this block the process works without the others, as in a callback of the first one."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def gather_values(value: Any) -> list[Any]:
    """The values of all processes, in the order of ranks; every process waits for all, and gets all."""
    values = [value] * rank_and_size()[1]
    if len(values) > 1:
        distributed.all_gather_object(values, value)
    return values


def value_of_first(value: Any) -> Any:
    """The value of the first process, for all processes."""
    return gather_values(value if is_first() else None)[0]


def sum_over_processes(array: np.ndarray) -> np.ndarray:
    """The sum of the arrays of all processes, for all processes."""
    return np.sum(gather_values(array), axis=0)


@contextmanager
def enter_in_first(block: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter the context in the first process only; if that fails, the others exit without a message."""
    with ExitStack() as stack:
        failure = None
        try:
            if is_first():
                stack.enter_context(block)
        except (ValueError, OSError) as error:
            failure = error
        if value_of_first(failure is not None):
            raise SystemExit(1) if failure is None else failure
        yield


def process_slices(n: int, count: int = 1) -> list[slice]:
    """This process's share of n rows, as at most `count` slices of about the same size, none empty."""
    rank, size = rank_and_size()
    edges = [n * k // (size * count) for k in range(rank * count, (rank + 1) * count + 1)]
    return [slice(a, b) for a, b in pairwise(edges) if b > a]


@contextmanager
def minibatch_part(x: Tensor, rows: slice) -> Iterator[Tensor]:
    """In this block a loss is computed for these rows of the minibatch x (B, D), or (M, B, D).

    Random numbers of a loss (prefixes, orderings, dropout) are drawn for the whole minibatch and then
    restricted to these rows, so that results do not depend on how a minibatch is divided.
    """
    token = _piece.set((x, rows))
    try:
        yield x[..., rows, :]
    finally:
        _piece.reset(token)


def minibatch(x: Tensor) -> tuple[Tensor, slice]:
    """The minibatch for which to draw random numbers, and the slice of its rows that x contains."""
    return _piece.get() or (x, slice(None))


def rows_to_draw(n: int) -> tuple[int, int]:
    """The number of rows for which to draw where n rows are computed, and the index of the first of these."""
    whole = _piece.get()
    return (n, 0) if whole is None else (whole[0].shape[-2], whole[1].start)
