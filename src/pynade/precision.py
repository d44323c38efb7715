"""The floating-point type in which nets compute; log-probabilities are always at least float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
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
    mine = _Setting(matmul, tf32, benchmark)
    with _lock:
        if not _settings:
            cudnn = torch.backends.cudnn
            before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
            _settings.append(_Setting(*before))
        _settings.append(mine)
        mine.set()
    try:
        with bfloat16:
            yield
    finally:
        with _lock:
            _settings.remove(mine)
            _settings[-1].set()
            if len(_settings) == 1:
                _settings.clear()


@dataclass(eq=False)
class _Setting:
    matmul: str
    tf32: bool
    benchmark: bool

    def set(self) -> None:
        torch.set_float32_matmul_precision(self.matmul)
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = self.tf32, self.benchmark


_lock = Lock()
_settings: list[_Setting] = []  # before the first block, then of every block that has not ended
