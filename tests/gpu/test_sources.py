"""Sources on a GPU: the same rows as on the CPU, and draws that a CUDA graph can replay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pynade.tables.dataset import RowSource
from pynade_paper.data.patches import Patches
from pynade_paper.data.windows import Windows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

draw = np.random.default_rng(0)
SOURCES = {
    "patches": Patches.of([draw.integers(0, 256, shape, dtype=np.uint8) for shape in ((30, 50), (41, 20))]),
    "windows": Windows.of([draw.normal(size=(n, 21)) for n in (40, 5, 100)]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_place_holds_the_same_row_on_every_device(name):
    source = SOURCES[name]
    places = torch.arange(source.n_places)
    assert torch.equal(source.to("cuda").at(places.cuda()).cpu(), source.at(places))


@pytest.mark.parametrize("name", SOURCES)
def test_draws_can_be_captured_and_replayed(name):
    source: RowSource = SOURCES[name].to("cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    eager = [source.draw(64, generator).clone() for _ in range(3)]
    generator.manual_seed(0)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        rows = source.draw(64, generator)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(rows.clone())
    assert not torch.equal(replayed[0], replayed[1])
    for one, other in zip(eager, replayed, strict=True):
        assert torch.equal(one, other)
