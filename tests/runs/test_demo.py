"""The demos fit their models and write a picture; they are quick."""

import pytest
from typer.testing import CliRunner

from pynade.cli.main import app
from pynade.runs import demo as of_penguins
from pynade.runs.demo import digits_demo, models


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return of_penguins.demo(tmp_path_factory.mktemp("demo") / "demo.png", epochs=30)


def test_demo_fills_every_gap(found):
    assert len(found.filled) == 19
    assert {cell.column for cell in found.filled} == {
        *("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g", "sex")
    }
    for cell in found.filled:
        if cell.probability is None:
            assert cell.low <= cell.value <= cell.high
        else:
            assert 0.5 <= cell.probability <= 1


def test_demo_finds_odd_cells(found):
    odds = found.odd["log_odds"].to_list()
    assert len(odds) == 5
    assert odds == sorted(odds, reverse=True)
    assert odds[-1] > 1
    assert found.gain > 1


def test_demo_prints_schema_gaps_and_odd_cells_and_writes_a_picture(found, monkeypatch, tmp_path):
    def quick(picture, callbacks):
        of_penguins.save_figure(of_penguins.penguin_figure(found), picture)
        return found

    monkeypatch.setattr(of_penguins, "demo", quick)
    out = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo.png")], catch_exceptions=False)
    assert all(word in out.stdout for word in ("Schema", "body_mass_g", "90 % interval", "Oddest cells"))
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_demo_of_digits_ranks_the_models(tmp_path):
    lines = digits_demo(tmp_path / "demo.png")
    independent, fvsbn, made, nade = (test for _, test, _ in lines)
    assert independent.mean < fvsbn.mean - 3 * fvsbn.stderr
    assert fvsbn.mean < min(made.mean, nade.mean)
    assert all(test.exact and test.n == 300 for _, test, _ in lines)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_of_digits_trains_small_models_for_few_epochs():
    """Which is why it takes less than a minute on two cores."""
    nets = [model for model in models().values() if hasattr(model, "learning_rate")]
    assert len(nets) == 3
    assert sum(model.epochs for model in nets) <= 220
    assert max(size for model in nets for size in _sizes(model)) <= 500


def _sizes(model):
    hidden = getattr(model, "hidden", 0)
    return [hidden] if isinstance(hidden, int) else hidden
