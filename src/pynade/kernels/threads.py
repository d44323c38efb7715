"""Threads and working memory of compiled loops that release the interpreter's lock.

After each parallel operation torch's worker threads spin for some milliseconds, waiting for the next one. A
second set of threads would have to share the cores with them and run at half speed, so torch's own threads
are used (`private.openmp`). (numba's parallel loops start a second set too, and abort a process that was
forked after their first use.)

New memory is mapped page by page at its first use, which takes about as long as the kernels' own work. A few
buffers are therefore kept and used again.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from pynade.kernels import private

LINE = 64  # bytes: buffers start on a cache line, so that no vector straddles two
KEPT = 2**24  # bytes: larger buffers are given back to the system

_free: defaultdict[int, deque[np.ndarray]] = defaultdict(lambda: deque(maxlen=4))  # by size, powers of two
_forked = False


def forked() -> bool:
    """Whether this process is the child of a fork, without the threads that torch had before it."""
    return _forked


def share(task: Callable[[int], None], count: int, threads: int) -> None:
    """Run task(0) … task(count - 1) on so many threads, the caller's among them, in any order."""
    threads = min(threads, count)
    numbers = iter(range(count))
    errors: list[BaseException] = []

    def run(_: Any = None) -> None:
        try:
            for number in numbers:
                task(number)
        except BaseException as error:  # no exception may cross into the C library
            errors.append(error)

    parallel = None if _forked else private.openmp()
    if threads < 2:
        run()
    elif parallel is not None:
        parallel(run, threads)
    else:
        others = [_pool(threads - 1, os.getpid()).submit(run) for _ in range(threads - 1)]
        run()
        for other in others:
            other.result()
    if errors:
        raise errors[0]


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pynade-kernel")


def _after_fork() -> None:
    """A forked child has OpenMP's records but not its threads, and would wait for them for ever."""
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def borrowed(size: int, dtype: np.dtype) -> Iterator[np.ndarray]:
    """An array of so many numbers, not initialised, valid within the block; safe in several threads.

    Example:
        >>> with borrowed(10, np.dtype("float32")) as buffer:
        ...     print(buffer.shape, buffer.ctypes.data % LINE)
        (10,) 0
    """
    needed = 1 << (size * dtype.itemsize + LINE).bit_length()
    try:
        memory = _free[needed].popleft()
    except IndexError:
        memory = np.empty(needed, np.uint8)
    skip = -memory.ctypes.data % LINE
    yield memory[skip : skip + size * dtype.itemsize].view(dtype)
    if needed <= KEPT:
        _free[needed].append(memory)
