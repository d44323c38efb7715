import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pynade.nets import PAPER_BLUEPRINT, MaskedConv
from pynade.nets.masked_conv import Layer, parse_blueprint, resolve_blueprint

side = st.integers(1, 9)
layer = st.one_of(
    st.builds(Layer, st.sampled_from(["valid", "same", "full"]), side, side, st.integers(1, 99)),
    st.builds(Layer, st.sampled_from(["pool", "up"]), side, side),
)


@given(st.lists(layer, min_size=1, max_size=6), st.sampled_from(["->", "→", " -> ", "\n→ "]))
def test_text_and_layers_are_two_forms_of_one_thing(layers, arrow):
    text = "->".join(map(str, layers))
    assert parse_blueprint(text) == layers
    assert parse_blueprint(text.replace("->", arrow)) == layers


@given(st.lists(side, min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 9))
def test_full_undoes_valid(sizes, height, width):
    """The paper's rule: valid filters in the first half, the same ones full in the second."""
    h, w = height + sum(sizes), width + sum(sizes)
    layers = [Layer("valid", s, s, 3) for s in sizes]
    layers += [Layer("full", s, s, 3) for s in reversed(sizes)]
    shapes = resolve_blueprint("->".join(map(str, layers)), (1, h, w), 3)[1]
    assert shapes[-1] == (3, h, w)
    assert shapes[len(sizes)] == (3, height + len(sizes), width + len(sizes))


def test_the_papers_maps_shrink_and_grow_as_its_figure_said():
    shapes = resolve_blueprint(PAPER_BLUEPRINT, (2, 28, 28), 1)[1]
    assert shapes[4:6] == [(64, 7, 7), (64, 13, 13)]
    assert [s[1] for s in shapes[1:]] == [21, 18, 13, 7, 13, 18, 21, 28]
    assert [s[0] for s in shapes[1:]] == [64] * 7 + [1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "64@4x4(valid)->8@2x2(same)->64@9x9(valid)->1@1x1(full)",
            r"^layer 3, '64@9x9\(valid\)': a 9x9 filter does not fit a 6x6 map$",
        ),
        ("8@3x3(valid)->pool@2x2->1@3x3(full)", r"^layer 2, 'pool@2x2': tiles of 2x2 do not cover a 7x7 map"),
        ("8@3x3(vaild)->1@3x3(full)", r"^layer 1, '8@3x3\(vaild\)': the type is valid, same or full"),
        ("8@3x3(valid)->8@3by3(full)", r"^layer 2, '8@3by3\(full\)': expected maps@HxW"),
        ("8@3x3(valid)->", r"^layer 2, '': expected maps@HxW"),
        ("", "^layer 1, '': expected"),
        ("0@3x3(same)->1@1x1(same)", r"^layer 1, '0@3x3\(same\)': maps, height and width must be at least 1"),
        ("up@0x2->1@1x1(same)", "^layer 1, 'up@0x2': maps, height and width"),
        ("8@3x3(valid)->1@3x3(same)", r"^last layer 2, '1@3x3\(same\)': it leaves a 7x7 map.*image is 9x9"),
        ("8@3x3(same)->up@1x1", "^last layer 2, 'up@1x1': the last layer must be a convolution"),
        ("8@3x3(same)->5@3x3(same)", r"^last layer 2, '5@3x3\(same\)': .* 1 map or exactly 6, not 5"),
    ],
)
def test_errors_name_the_layer(text, words):
    with pytest.raises(ValueError, match=words):
        resolve_blueprint(text, (2, 9, 9), 6)
    with pytest.raises(ValueError, match=words):
        MaskedConv((9, 9), 3, text, channels=2)


def test_the_last_layer_may_say_its_own_number():
    for maps in (1, 6):
        net = MaskedConv((4, 4), 3, f"5@3x3(same)->{maps}@3x3(same)", channels=2)
        assert net.weights[-1].shape == (6, 5, 3, 3)
        assert net.config()["blueprint"] == "5@3x3(same)->6@3x3(same)"
        eta = net.conditionals(torch.zeros(1, 32, 1), torch.zeros(1, 32, dtype=torch.bool))
        assert eta.shape == (1, 32, 3)
