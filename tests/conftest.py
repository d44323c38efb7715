"""One thread per test process, since pytest-xdist already uses every core; a run for several folders."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The folder of a finished run of NADE on 60 rows; tests copy it."""
    from pynade.runs.run import start_run  # (needs polars, which tests on a GPU need not)

    place = tmp_path_factory.mktemp("runs")
    np.save(place / "toy.npy", (np.random.default_rng(0).random((60, 4)) < 0.4).astype(np.uint8))
    start_run(place / "run", "nade", {"hidden": 3, "epochs": 2}, str(place / "toy.npy"))
    return place / "run"
