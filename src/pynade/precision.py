"""In which floating-point type nets compute; log-probabilities never have fewer bits than float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("float32", "tf32", "bf16")


@contextmanager
def fast_matmul() -> Iterator[None]:
    """TF32 matrix products on GPUs that have them, and each shape's fastest convolution, in this block."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True  # tried out when a shape first comes, before any graph is captured
    try:
        with _convolutions(exact=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


@contextmanager
def computing_in(precision: str, device: torch.device) -> Iterator[None]:
    """Nets that run in this block on `device` compute as asked; their weights and the families do not change.

    Args:
        precision: "float32"; "tf32", matrix products with 10 bits behind the point; or "bf16", torch's
            autocast to bfloat16. The last two are for GPUs: on a CPU they have no effect. With "float32"
            convolutions follow torch's setting for matrix products, exact unless told otherwise (as by
            `fast_matmul`, in training); by itself torch would round them to TF32.
        device: where the model is.

    Example:
        >>> with computing_in("bf16", torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    check_precision(precision)
    if device.type == "cpu":
        yield
    elif precision == "float32":
        with _convolutions(exact=torch.get_float32_matmul_precision() == "highest"):
            yield
    elif precision == "tf32":
        with fast_matmul():
            yield
    else:
        # what autocast would keep of the weights it converts must not outlive the capture of a CUDA graph
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


def check_precision(precision: str, known: tuple[str, ...] = PRECISIONS) -> None:
    """Raise a ValueError unless the word is known."""
    if precision not in known:
        raise ValueError(f"unknown precision {precision!r}; known: {', '.join(known)}")
