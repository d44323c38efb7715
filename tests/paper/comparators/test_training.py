"""Training of the comparators: the schedule, what is kept, and the command line at tiny size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor, nn

from pynade_paper.comparators.train import RECIPES, main, stripes
from pynade_paper.comparators.training import Comparator, Settings, State, annealed, train
from pynade_paper.compare_figures import comparator_figure


class Mean(Comparator):
    """Distance from one number; validation says that it is best at 0.5."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def loss(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return (x[:, 0] - self.value) ** 2

    def scores(
        self, x: Tensor, generator: torch.Generator | None = None, samples: int = 1
    ) -> dict[str, Tensor]:
        return {"distance": (x[:, 0] - self.value) ** 2}


def test_rate_rises_and_falls_to_zero() -> None:
    rates = [annealed(k / 100, 0.1) for k in range(101)]
    assert max(rates) == rates[10] == 1.0
    assert rates[-1] == pytest.approx(0.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_weights_of_the_best_validation_are_kept() -> None:
    model, quiet = Mean(), lambda line: None
    how = Settings(rate=0.03, batch_size=10, updates=200, validations=40, ema=0.5, clip=None)
    history = train(model, torch.ones(20, 1), torch.full((5, 1), 0.5), how, quiet)
    assert history.updates == 200
    assert len(history.curve) == 40
    assert 0 < history.best_at < 200
    assert abs(model.value.item() - 0.5) < 0.15  # training alone would end at 1
    assert history.best == pytest.approx((model.value.item() - 0.5) ** 2, abs=1e-6)


def test_training_is_repeated_by_its_seed() -> None:
    found = []
    for _ in range(2):
        model = Mean()
        rows = torch.rand(50, 1, generator=torch.Generator().manual_seed(0))
        train(model, rows, rows, Settings(batch_size=10, updates=30, seed=3), lambda line: None)
        found.append(model.value.item())
    assert found[0] == found[1]


def test_a_loss_that_is_not_finite_ends_training() -> None:
    model = Mean()
    rows = torch.ones(20, 1)
    rows[3] = float("nan")
    how = Settings(batch_size=10, updates=20, validations=2)
    history = train(model, rows, torch.ones(5, 1), how, lambda line: None)
    assert "nan" in history.stopped


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_at_tiny_size(name: str, tmp_path: Path) -> None:
    found = main([name, "--smoke", "--out", str(tmp_path), "--test", "--updates", "6"])
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept == json.loads(json.dumps(found))
    assert set(kept["test"]) == set(kept["valid"])
    for score in kept["test"].values():
        assert score["stderr"] > 0
    weights = load_file(tmp_path / "weights.safetensors")
    assert weights["samples"].shape == (100, 36)
    assert "--updates 6 " in kept["command"]
    assert image_of(comparator_figure([tmp_path])) == (4.2, 4.5)
    again = ["--smoke", "--out", str(tmp_path / "more"), "--among", str(tmp_path), "--samples", "2"]
    more = main([name, *again])
    assert more["stages"] == kept["stages"]
    assert list(more["chosen_from"]) == [tmp_path.name]
    assert "test" not in more


def image_of(figure: Figure) -> tuple[float, ...]:
    (axis,) = figure.axes
    assert axis.images[0].get_array().shape == (71, 71)  # ten images of 6 × 6 and the gaps across
    return tuple(figure.get_size_inches())


def test_a_folder_without_samples_has_no_figure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished run"):
        comparator_figure([tmp_path])


@pytest.mark.parametrize("name", ["draw-attention", "darn-noise"])
def test_a_run_goes_on_along_its_schedule(name: str, tmp_path: Path) -> None:
    half = main([name, "--smoke", "--out", str(tmp_path / "a"), "--updates", "6", "--until", "0.5"])
    assert "valid" not in half
    assert half["stages"][0]["share"] == 0.5
    found = main(
        [name, "--smoke", "--out", str(tmp_path / "b"), "--resume", str(tmp_path / "a"), "--updates", "4"]
    )
    (stage,) = found["stages"]
    assert stage["updates"] == 10
    assert stage["share"] == 1.0
    assert [row[0] for row in stage["curve"]] == [6, 10]
    assert found["earlier"][0]["settings"]["until"] == 0.5
    assert set(found["valid"]) == {"bound", "estimate"}


def test_training_in_two_parts_keeps_what_an_update_changes() -> None:
    rows = torch.ones(10, 1)  # one batch, so that the order of rows does not matter
    whole, parts = Mean(), Mean()
    how = Settings(batch_size=10, updates=20, validations=4, rate=0.05)
    train(whole, rows, rows, how, lambda line: None)
    kept: list[State] = []
    first = replace(how, updates=10, until=0.5)
    train(parts, rows, rows, first, lambda line: None, keep=kept.append)
    train(parts, rows, rows, replace(how, updates=10), lambda line: None, kept[-1])
    torch.testing.assert_close(whole.value, parts.value)


def test_stripes_are_binary_and_the_same_each_time() -> None:
    first, second = stripes()[0], stripes()[0]
    assert torch.equal(first["train"], second["train"])
    assert set(first["valid"].unique().tolist()) == {0.0, 1.0}


def test_a_budget_and_data_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["darn", "--out", str(tmp_path), "--updates", "3"])
    with pytest.raises(SystemExit):
        main(["darn", "--out", str(tmp_path), "--data", "x.npz"])
    assert "--data is missing" in capsys.readouterr().err
