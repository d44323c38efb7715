"""Several processes on one job, started by torchrun: who is who, and sums over all of them.

    torchrun --nproc-per-node 4 -m pynade.cli.main score RUN DATA --orderings 16

In a single process the functions here do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import distributed


@contextmanager
def together() -> Iterator[int]:
    """Join the processes that torchrun started, each with the GPU of its local number; gives one's number."""
    if not (distributed.is_available() and distributed.is_torchelastic_launched()):
        yield 0
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("gloo")  # they exchange a few numbers at the end, on the CPU
    try:
        yield distributed.get_rank()
    finally:
        distributed.destroy_process_group()


def rank_and_size() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) for one on its own."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def gathered(value: Any) -> list[Any]:
    """The values of all processes, by their numbers, in every one of them; each waits for all."""
    everyone = [value] * rank_and_size()[1]
    if len(everyone) > 1:
        distributed.all_gather_object(everyone, value)
    return everyone


def sum_over_processes(array: np.ndarray) -> np.ndarray:
    """The sum of the arrays that the processes hold, in every one of them."""
    return np.sum(gathered(array), axis=0)
