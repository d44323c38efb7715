"""The floating-point precision of nets; log-probabilities are always at least float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

import torch

PRECISIONS = ("float32", "tf32", "bf16")


def fast_matmul() -> AbstractContextManager[None]:
    """In this block GPUs use TF32 matrix products, where supported, and the fastest convolutions."""
    return _computing("high", tf32=True, benchmark=True)


def computing_in(precision: str | None, device: torch.device) -> AbstractContextManager[None]:
    """In this block nets on `device` compute in this precision; weights and families keep their type.

    Args:
        precision: "float32"; "tf32", matrix products with a mantissa of 10 bits; or "bf16", torch's autocast
            to bfloat16. They have no effect on a CPU. With "float32", torch's setting for matrix products
            applies to convolutions too. None changes nothing.
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
    """Set the precision of matrix products, TF32 for convolutions, and the search for the fastest of these.

    Torch has one setting for all threads: that of the last block that is still active. When all blocks have
    ended, in any order, the setting from before the first is restored.
    """
    # without autocast's cache of converted weights, which the capture of a CUDA graph makes invalid
    bfloat16 = torch.autocast(cast.type, torch.bfloat16, cache_enabled=False) if cast else nullcontext()
    key = object()
    with _lock:
        if not _settings:
            cudnn = torch.backends.cudnn
            _settings[None] = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
        _settings[key] = matmul, tf32, benchmark
        _apply_last()
    try:
        with bfloat16:
            yield
    finally:
        with _lock:
            del _settings[key]
            _apply_last()
            if len(_settings) == 1:
                _settings.clear()


_lock = Lock()
_settings: dict[object, tuple[str, bool, bool]] = {}  # of active blocks, in order; None: before the first


def _apply_last() -> None:
    matmul, tf32, benchmark = list(_settings.values())[-1]
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, benchmark
