"""The floating-point type in which nets compute; log-probabilities are always at least float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

import torch

PRECISIONS = ("float32", "tf32", "bf16")


def fast_matmul() -> AbstractContextManager[None]:
    """TF32 matrix products on GPUs that have them, and each shape's fastest convolution, in this block."""
    return _computing("high", tf32=True, benchmark=True)


def computing_in(precision: str | None, device: torch.device) -> AbstractContextManager[None]:
    """In this block nets on `device` compute in this precision; their weights and the families do not change.

    Args:
        precision: "float32"; "tf32", matrix products with a mantissa of 10 bits; or "bf16", torch's autocast
            to bfloat16. All are for GPUs and have no effect on a CPU. With "float32" convolutions follow
            torch's setting for matrix products. None changes nothing.
        device: where the model is.
    """
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"unknown precision {precision!r}; known: {', '.join(PRECISIONS)}")
    if precision is None or device.type == "cpu":
        return nullcontext()
    if precision == "float32":
        matmul = torch.get_float32_matmul_precision()
        return _computing(matmul, tf32=matmul != "highest", benchmark=torch.backends.cudnn.benchmark)
    return fast_matmul() if precision == "tf32" else _computing("high", True, True, cast=device)


@contextmanager
def _computing(matmul: str, tf32: bool, benchmark: bool, cast: torch.device | None = None) -> Iterator[None]:
    """Matrix products of this precision; convolutions in TF32, and the fastest (measured at first use).

    Torch has one setting for all threads: the last block that began and has not ended decides, and when
    all have ended, in whatever order, the setting is that from before the first.
    """
    # no cache of converted weights: it would not be valid after the capture of a CUDA graph
    bfloat16 = torch.autocast(cast.type, torch.bfloat16, cache_enabled=False) if cast else nullcontext()
    block = object()
    with _lock:
        if not _settings:
            cudnn = torch.backends.cudnn
            _settings[None] = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
        _settings[block] = matmul, tf32, benchmark
        _use_last()
    try:
        with bfloat16:
            yield
    finally:
        with _lock:
            del _settings[block]
            _use_last()
            if len(_settings) == 1:
                _settings.clear()


_lock = Lock()
_settings: dict[object, tuple[str, bool, bool]] = {}  # by block, in order; None: before the first block


def _use_last() -> None:
    matmul, tf32, benchmark = list(_settings.values())[-1]
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
