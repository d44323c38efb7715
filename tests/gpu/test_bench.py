"""The benchmark of the baselines on a GPU: the same results, and the CPU beside it."""

import pytest
import torch

from pynade_benchmarks.baselines import OURS_ON_CPU, QUICK, bench_baselines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_the_baselines_are_timed_on_both_devices():
    result = bench_baselines(torch.device("cuda"), QUICK, repeats=3)
    assert "cuda" in result["device"]
    assert len(result["problems"]) == 3
    for entry in result["problems"]:
        assert OURS_ON_CPU in entry["ratios"]
        assert entry["difference"] < 1e-9
