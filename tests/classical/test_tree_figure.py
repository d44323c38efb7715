"""Pictures of Chow–Liu trees."""

import pytest

from pynade.classical import ChowLiuTree, chow_liu
from pynade.runs.figures import circular_layout, tree_figure
from tests.classical.test_binary import clustered


def test_the_picture_has_every_edge_and_name():
    tree = chow_liu(clustered(50, 7, 3))
    figure = tree_figure(tree, names=[f"v{d}" for d in range(7)])
    axis = figure.axes[0]
    assert len(axis.lines) == 6
    assert {text.get_text() for text in axis.texts} == {f"v{d}" for d in range(7)}
    forest = tree_figure(ChowLiuTree(300))
    assert not forest.axes[0].lines
    assert not forest.axes[0].texts


def test_leaves_are_evenly_on_the_circle():
    places = circular_layout(ChowLiuTree(3, parent=[-1, 0, 0]))
    assert places.round(6).tolist() == [[0, 0], [1, 0], [-1, 0]]


def test_every_variable_has_one_name():
    with pytest.raises(ValueError, match="1 names were given for 2 variables"):
        tree_figure(ChowLiuTree(2), ["one"])
