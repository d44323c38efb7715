"""Threads and working memory of compiled loops that release the interpreter's lock.

Torch's worker threads spin for some milliseconds after each operation, and a second set of threads would run
at half speed beside them, so torch's own are used (`private.openmp`). New memory is mapped page by page at
its first use, in about the time of the kernels' own work: a few buffers are kept and used again.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from pynade.kernels import private

LINE = 64  # bytes: buffers start on a cache line, so that no vector straddles two
KEPT = 2**24  # bytes: larger buffers are given back to the system

_free: defaultdict[int, deque[np.ndarray]] = defaultdict(lambda: deque(maxlen=4))  # by size, powers of two
_process = os.getpid()


def forked() -> bool:
    """Whether this is the child of a fork: with OpenMP's records, but not the threads it would wait for."""
    return os.getpid() != _process


def share(task: Callable[[int], None], count: int, threads: int) -> None:
    """Run task(0) … task(count - 1) on so many threads, in any order."""
    threads = min(threads, count)
    numbers = iter(range(count))
    errors: list[BaseException] = []

    def run(_: Any = None) -> None:
        try:
            for number in numbers:
                task(number)
        except BaseException as error:  # no exception may cross into the C library
            errors.append(error)

    parallel = None if forked() else private.openmp()
    if threads < 2:
        run()
    elif parallel is not None:
        parallel(run, threads)
    else:
        list(_pool(threads, os.getpid()).map(run, range(threads)))
    if errors:
        raise errors[0]


_compiled: set[tuple[str, str]] = set()


def thread_count(what: str, x: Tensor | np.ndarray, threads: int) -> int:
    """One the first time: two threads that compile the same function may wait for each other for ever."""
    key = (what, str(x.dtype).removeprefix("torch."))
    if key in _compiled or 0 in x.shape:
        return threads
    _compiled.add(key)
    return 1


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pynade-kernel")


@contextmanager
def borrowed(dtype: np.dtype, *shapes: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    """Arrays of these shapes, not initialised, valid within the block; safe in several threads.

    Example:
        >>> with borrowed(np.dtype("float32"), (10,), (2, 3)) as buffers:
        ...     print([(buffer.shape, buffer.ctypes.data % LINE) for buffer in buffers])
        [((10,), 0), ((2, 3), 0)]
    """
    sizes = [-(-math.prod(shape) * dtype.itemsize // LINE) * LINE for shape in shapes]
    needed = 1 << sum(sizes).bit_length()
    try:
        memory = _free[needed].popleft()
    except IndexError:
        memory = np.empty(needed + LINE, np.uint8)
        memory = memory[-memory.ctypes.data % LINE :]
    ends = itertools.accumulate(sizes)
    yield [np.ndarray(s, dtype, memory, end - n) for s, n, end in zip(shapes, sizes, ends, strict=True)]
    if needed <= KEPT:
        _free[needed].append(memory)


def arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """The tensors as contiguous arrays, without copying where they already are."""
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)
