"""Working memory of the CPU kernels, kept from call to call.

New memory is mapped page by page at its first use, which takes about as long as the kernels' own work. A few
buffers are therefore kept and used again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

LINE = 64  # bytes: buffers start on a cache line, so that no vector straddles two
KEPT = 2**24  # bytes: larger buffers are given back to the system

_free: defaultdict[int, deque[np.ndarray]] = defaultdict(lambda: deque(maxlen=4))  # by size, powers of two


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
