"""Small models that the explorer's tests ask, and clients of their applications."""

import pytest

import pynade
from pynade.runs.run import start_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Runs of a mixed table and of images, made once."""
    folder = tmp_path_factory.mktemp("runs")
    start_run(folder / "penguins", "tabularnade", {"epochs": 4, "hidden": (16,), "members": 1}, "penguins")
    start_run(folder / "digits", "deepnade", {"epochs": 1, "hidden": (16,)}, "digits")
    start_run(folder / "fixed", "nade", {"epochs": 1, "hidden": 8}, "digits")
    net = {"epochs": 1, "blueprint": "4@3x3(same)->1@3x3(same)"}
    start_run(folder / "conv", "convnade", net, "digits")
    return folder


@pytest.fixture(scope="session")
def client(runs):
    """Makes a client of the application of a run."""
    from starlette.testclient import TestClient

    from pynade.app.serve import explorer_of_run

    def made(name, base_url="http://127.0.0.1", **options):
        application, note = explorer_of_run(runs / name, **options)
        assert not note
        return TestClient(application, base_url=base_url, follow_redirects=False)

    return made


@pytest.fixture(scope="session")
def penguins(client):
    return client("penguins")


@pytest.fixture(scope="session")
def model(runs):
    return pynade.load(runs / "penguins")


@pytest.fixture(scope="session")
def digits(client):
    return client("digits")
