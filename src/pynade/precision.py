"""The floating-point type in which nets compute; log-probabilities are always at least float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

PRECISIONS = ("float32", "tf32", "bf16")


@contextmanager
def fast_matmul() -> Iterator[None]:
    """TF32 matrix products on GPUs that have them, and each shape's fastest convolution, in this block."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True  # measured at a shape's first use, before any graph is captured
    try:
        with _convolutions(exact=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


def computing_in(precision: str | None, device: torch.device) -> AbstractContextManager[None]:
    """In this block nets on `device` compute in this precision; their weights and the families do not change.

    Args:
        precision: "float32"; "tf32", matrix products with a mantissa of 10 bits; or "bf16", torch's
            autocast to bfloat16. The last two are for GPUs and have no effect on a CPU. With "float32"
            convolutions follow torch's setting for matrix products, which is exact unless changed (as
            `fast_matmul` does, in training); torch's own default rounds them to TF32. None changes nothing.
        device: where the model is.

    Example:
        >>> with computing_in("bf16", torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    if precision is None or device.type == "cpu":
        return nullcontext()
    if precision == "float32":
        return _convolutions(exact=torch.get_float32_matmul_precision() == "highest")
    return fast_matmul() if precision == "tf32" else _bfloat16(device)


@contextmanager
def _bfloat16(device: torch.device) -> Iterator[None]:
    # no cache of converted weights: it would not be valid after the capture of a CUDA graph
    with fast_matmul(), torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
        yield


@contextmanager
def _convolutions(exact: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = not exact
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
