"""Figures of tables and of training."""

from __future__ import annotations

import numpy as np
import polars
import pytest
from matplotlib.figure import Figure

from pynade import plots
from pynade.runs.figures import picture, save_figure, table_figure
from pynade.tables import Schema

RNG = np.random.default_rng(0)


def texts(figure):
    return {text for axis in figure.axes for text in (axis.get_xlabel(), axis.get_ylabel(), axis.get_title())}


def test_few_real_columns_are_drawn_in_pairs(tmp_path):
    x = RNG.normal(size=100)
    figure = table_figure(np.c_[x, -x, np.ones(100)], ["height", "weight", "constant"])
    assert len(figure.axes) == 9
    assert {"height", "weight", "constant"} <= texts(figure)
    shown = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert shown == ["r = -1.00", "–", "–"]
    scatter = figure.axes[3].collections[0].get_offsets()
    np.testing.assert_allclose(scatter, np.c_[x, -x])
    assert figure.axes[0].patches[0].get_data().values.sum() == pytest.approx(1)
    save_figure(figure, tmp_path / "t.png")


def test_many_real_columns_are_drawn_as_histograms(tmp_path):
    figure = table_figure(RNG.normal(size=(30, 7)), [f"column {i}" for i in range(7)])
    assert {f"column {i}" for i in range(7)} <= texts(figure)
    wide = table_figure(RNG.normal(size=(30, 100)))
    assert len(wide.axes) == 64
    assert wide.get_suptitle() == "30 rows, the first 64 of 100 columns"


def test_every_column_of_a_frame_is_drawn():
    frame = polars.DataFrame({"city": ["Paris", "Rome", "Rome"], "age": [40.0, 30.0, None]})
    figure = table_figure(frame, schema=Schema.inferred(frame))
    assert len(figure.axes) == 4
    assert {"city", "age"} <= texts(figure)
    assert [patch.get_height() for patch in figure.axes[0].patches] == pytest.approx([1 / 3, 2 / 3])


def test_a_binary_table_shows_shares_and_correlations(tmp_path):
    bits = np.array([[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=np.uint8)
    figure = table_figure(bits, ["a", "b", "c"])
    left, right = figure.axes[:2]
    assert [patch.get_width() for patch in left.patches] == [0.5, 0.5, 0]
    correlation = np.ma.filled(right.images[0].get_array(), np.nan)
    np.testing.assert_allclose(correlation[:2, :2], [[1, -1], [-1, 1]])
    assert np.isnan(correlation[2]).all()
    assert [label.get_text() for label in left.get_yticklabels()] == ["a", "b", "c"]
    save_figure(figure, tmp_path / "t.svg")


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (1, 9), (3, 1)])
@pytest.mark.parametrize("binary", [True, False])
def test_small_tables_and_gaps(tmp_path, shape, binary):
    rows = np.ones(shape) if binary else RNG.normal(size=shape)
    save_figure(table_figure(rows), tmp_path / "t.png")
    rows[0, 0] = np.nan
    save_figure(table_figure(rows), tmp_path / "t.png")


def test_rows_of_three_channels_are_pictures_in_colour():
    assert picture(np.zeros(12), (3, 2, 2)).shape == (2, 2, 3)
    assert picture(np.zeros(4), (2, 2)).shape == (2, 2)


def test_training_shows_log_likelihoods():
    line = {"valid_stderr": 0.1, "valid_mc_stderr": None}
    epochs = [
        {**line, "epoch": 1, "train": -3.0, "valid": -3.5, "best": False},
        {**line, "epoch": 2, "train": -2.0, "valid": -2.5, "best": True},
    ]
    train, valid = plots.training(epochs, Figure().subplots()).lines[:2]
    assert list(train.get_ydata()) == [-3, -2]
    assert list(valid.get_ydata()) == [-3.5, -2.5]
