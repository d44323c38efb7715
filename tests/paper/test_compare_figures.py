"""Samples of several models beside real rows."""

import numpy as np
import pytest

import pynade
from pynade.runs.figures import save_figure
from pynade.tables import Dataset, Schema
from pynade_paper.compare_figures import sample_figure, scatter_figure, speech_pictures, title


def model(D, tmp_path, name="m", **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, D)).cumsum(1)
    made = pynade.RNADE(hidden=4, n_components=2, epochs=1, random_state=0, device="cpu", **options).fit(X)
    made.save(tmp_path / f"{name}.safetensors")
    return tmp_path / f"{name}.safetensors", X


def dataset(X):
    return Dataset("d", X, None, X, Schema.uniform("real", X.shape[1]))


def test_a_scatter_plot_has_a_panel_for_each_model_with_data_and_samples(tmp_path):
    a, X = model(3, tmp_path, "a")
    b, _ = model(3, tmp_path, "b", family="gaussian")
    figure = scatter_figure([a, b], dataset(X), ("0", "x3"), n=50)
    assert [axis.get_title() for axis in figure.axes] == [
        "RNADE-mog, K = 2, 4 units",
        "RNADE-gaussian, 4 units",
    ]
    data, samples = figure.axes[0].collections
    assert {tuple(p) for p in data.get_offsets()} <= {(x[0], x[2]) for x in X}
    assert len(samples.get_offsets()) == 50
    save_figure(figure, tmp_path / "f.png")
    with pytest.raises(ValueError, match="no column 'z'"):
        scatter_figure([a], dataset(X), ("0", "z"))


@pytest.mark.parametrize("D", [8, 231])
def test_pictures_are_made_of_patches_and_of_speech(D, tmp_path):
    path, X = model(D, tmp_path)
    figure = sample_figure([path], dataset(X), n=10)
    assert figure.axes[0].get_title() == "test data"
    assert figure.axes[1].get_title().startswith(title(pynade.load(path)))
    save_figure(figure, tmp_path / "f.png")


def test_windows_of_speech_stand_upright():
    rows = np.arange(231.0)[None]
    picture = speech_pictures(rows)[0]
    assert picture.shape == (21, 11)
    assert picture[-1].tolist() == [20.0 + 21 * t for t in range(11)]  # energies at the bottom
    assert picture[0].tolist() == [19.0 + 21 * t for t in range(11)]  # the highest filter on top
    assert picture[-2, 0] == 0  # the lowest filter just above the energy
