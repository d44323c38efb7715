"""The demo ranks its models as it should; `pynade demo` prints how long each took."""

import pytest

from pynade.runs.demo import demo, models


@pytest.mark.slow
def test_demo_ranks_the_models(tmp_path):
    lines = demo(tmp_path / "demo.png")
    independent, fvsbn, made, nade = (line.test for line in lines)
    assert independent.mean < fvsbn.mean - 3 * fvsbn.stderr
    assert fvsbn.mean < min(made.mean, nade.mean)
    assert all(line.test.exact and line.test.n == 300 for line in lines)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_trains_small_models_for_few_epochs():
    """Which is why it takes less than a minute on two cores."""
    assert sum(model.epochs for model in models().values()) <= 220
    assert max(size for model in models().values() for size in _sizes(model)) <= 500


def _sizes(model):
    hidden = getattr(model, "hidden", 0)
    return [hidden] if isinstance(hidden, int) else hidden
