"""Threads and working memory for compiled loops that release the interpreter's lock.

Torch's worker threads spin for some milliseconds after each operation, and other threads would run at half
speed meanwhile, so the loops run on torch's threads (`private.openmp`). The first use of new memory takes
about as long as a kernel, so that a few buffers are kept for later calls.
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

LINE = 64  # bytes of a cache line: buffers start on one, so that no vector crosses two
LARGEST_KEPT = 2**24  # bytes: larger buffers are released

_free: defaultdict[int, deque[np.ndarray]] = defaultdict(lambda: deque(maxlen=4))  # by size, powers of two
_process = os.getpid()


def is_forked_child() -> bool:
    """Whether this process is the child of a fork, in which OpenMP would wait for missing threads."""
    return os.getpid() != _process


def run_tasks(task: Callable[[int], None], count: int, threads: int) -> None:
    """Run task(0) … task(count - 1) on this number of threads, in any order."""
    threads = min(threads, count)
    numbers = iter(range(count))
    errors: list[BaseException] = []

    def run(_: Any = None) -> None:
        try:
            for number in numbers:
                task(number)
        except BaseException as error:  # no exception may cross into the C library
            errors.append(error)

    parallel = None if is_forked_child() else private.openmp()
    if threads < 2:
        run()
    elif parallel is not None:
        parallel(run, threads)
    else:
        list(_pool(threads, os.getpid()).map(run, range(threads)))
    if errors:
        raise errors[0]


_compiled: set[tuple[str, str]] = set()


def thread_count(function: str, x: Tensor | np.ndarray, threads: int) -> int:
    """`threads`, or 1 at the first call of a function for the type of x: two threads must not compile it."""
    key = (function, str(x.dtype).removeprefix("torch."))
    if key in _compiled or 0 in x.shape:
        return threads
    _compiled.add(key)
    return 1


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pynade-kernel")


@contextmanager
def scratch_arrays(dtype: np.dtype, *shapes: tuple[int, ...]) -> Iterator[list[np.ndarray]]:
    """Uninitialised arrays of these shapes, valid within the block; several threads may call it.

    Example:
        >>> with scratch_arrays(np.dtype("float32"), (10,), (2, 3)) as buffers:
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
    if needed <= LARGEST_KEPT:
        _free[needed].append(memory)


def as_arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """The tensors as contiguous arrays, copied only where they are not contiguous."""
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)
