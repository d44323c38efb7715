"""The demo's promises: a sensible ranking, and under a minute on two cores."""

import time

import pytest

from pynade.runs.demo import demo


@pytest.mark.slow
def test_demo_takes_under_a_minute_and_ranks_the_models(tmp_path):
    begin = time.perf_counter()
    lines = demo(tmp_path / "demo.png")
    assert time.perf_counter() - begin < 60
    independent, fvsbn, made, nade = (line.test for line in lines)
    assert independent.mean < fvsbn.mean - 3 * fvsbn.stderr
    assert fvsbn.mean < min(made.mean, nade.mean)
    assert all(line.test.exact and line.test.n == 300 for line in lines)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
