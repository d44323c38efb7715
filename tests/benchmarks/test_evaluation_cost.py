"""The cost of a log-likelihood: passes, errors and the figure of them."""

import numpy as np
import pytest

from pynade.runs.run import start_run
from pynade_benchmarks.evaluation_cost import measure_cost
from pynade_paper.benchmark_figures import cost_figure


def test_the_cost_of_a_number_is_counted_in_passes_and_its_error_falls(tmp_path):
    rows = (np.random.default_rng(0).random((400, 6)) < 0.4).astype(np.uint8)
    rows[:, 3:] = rows[:, :3]
    np.save(tmp_path / "t.npy", rows)
    settings = {"hidden": [8], "epochs": 3, "device": "cpu", "learning_rate": 0.01}
    start_run(tmp_path / "run", "deepnade", settings, str(tmp_path / "t.npy"))
    made = measure_cost(tmp_path / "run", str(tmp_path / "t.npy"), "all", 300, draws=(2, 64), orderings=4)
    assert [p["passes"] for p in made["estimates"]] == [2, 64]
    assert [p["passes"] for p in made["ensembles"]] == [6, 12, 24]
    assert made["estimates"][1]["error"] < made["estimates"][0]["error"] / 2
    means = [p["mean"] for p in made["ensembles"]]
    assert means[0] == made["typical"][0]["mean"]  # an ensemble of one
    assert all(
        e["mean"] >= t["mean"] for e, t in zip(made["ensembles"], made["typical"], strict=True)
    )  # Jensen
    for corrected, exact in zip(made["corrected"], made["ensembles"], strict=True):
        assert abs(corrected["mean"] - exact["mean"]) < 5 * corrected["error"]
    figure = cost_figure(made)
    assert [axis.get_xscale() for axis in figure.axes] == ["log", "log"]
    with pytest.raises(ValueError, match="two orderings"):
        measure_cost(tmp_path / "run", str(tmp_path / "t.npy"), "all", orderings=1)
