"""The table that comes with the library."""

import subprocess
import sys
from pathlib import Path

import pytest

import pynade
from pynade import datasets

COLUMNS = [
    *("species", "island", "bill_length_mm", "bill_depth_mm"),
    *("flipper_length_mm", "body_mass_g", "sex", "year"),
]


@pytest.mark.parametrize("frame", ["pandas", "polars", None])
def test_penguins(frame):
    table = pynade.datasets.penguins(frame)
    assert type(table).__module__.startswith(frame or "pandas")
    assert table.shape == (344, 8)
    assert list(table.columns) == COLUMNS


def test_gaps_and_values_of_the_penguins():
    table = datasets.penguins("pandas")
    assert table.isna().sum().sum() == 19
    assert table["species"].value_counts().to_dict() == {"Adelie": 152, "Gentoo": 124, "Chinstrap": 68}
    means = table[["bill_length_mm", "body_mass_g"]].mean().round(2).tolist()
    assert means == [43.92, 4201.75]  # as published
    assert pynade.datasets.penguins("polars").to_dicts()[3]["sex"] is None


def test_without_pandas_it_is_a_polars_frame(monkeypatch):
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    assert type(datasets.penguins()).__module__.startswith("polars")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="'pandas' or 'polars', not 'arrow'"):
        datasets.penguins("arrow")
    with pytest.raises(ValueError, match="no table 'iris'"):
        datasets.path("iris")


def test_files_are_small_and_their_licence_lies_beside_them():
    folder = Path(datasets.__file__).parent
    assert datasets.path("penguins").stat().st_size <= 20_000
    assert "CC0 1.0" in (folder / "penguins.LICENSE.txt").read_text(encoding="utf-8")
    assert "CC0 1.0" in datasets.penguins.__doc__


def test_importing_them_is_quick():
    code = (
        "import sys, pynade.datasets; print([m for m in ('pandas', 'polars', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_penguins_are_a_named_data_set():
    from typer.testing import CliRunner

    from pynade.cli.main import app
    from pynade.tables import resolve

    data = resolve("penguins")
    assert data.framed
    assert data.sizes == {"train": 344}
    shown = CliRunner().invoke(app, ["data", "info", "penguins"], catch_exceptions=False).stdout
    assert "19 of the training cells" in shown
    assert "CC0 1.0" in shown
