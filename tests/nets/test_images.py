"""MaskedConv, Hybrid and UNet on images: against loops, in every size, and from their first gradient on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.families import Bernoulli
from pynade.models import Autoregressive, Orderless
from pynade.nets import AnyOrderNet, Hybrid, MaskedConv, MaskedMLP, UNet
from pynade.nets.layers import convolve
from pynade.ordering import Ordering
from tests.contracts.cases import all_states, generator, shaken
from tests.reference.convolutions import masked_conv_eta

SMALL = {"width": 8, "groups": 4, "heads": 2, "multipliers": (1, 2), "blocks": 1, "attention": (1,)}


def conv(shape=(3, 3), **kw):
    return MaskedConv(shape, **{"blueprint": "5@2x2(full)->4@3x3(same)->1@2x2(valid)"} | kw)


def hybrid(shape=(3, 3), channels=1, dropout=0.0, generator=None):
    D = channels * shape[0] * shape[1]
    first = conv(shape, channels=channels, dropout=dropout, generator=generator)
    return Hybrid(first, MaskedMLP(D, hidden=(6, 6), dropout=dropout, generator=generator))


def unet(shape=(3, 3), **kw):
    return UNet(shape, **SMALL | {"dropout": 0.0} | kw)


BUILD = {"conv": conv, "hybrid": hybrid, "unet": unet}
every_net = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD.keys())


def rows(net, B=4, share=0.5, dtype=torch.float64):
    D, F = net.n_variables, net.n_features
    features = torch.randn(B, D, F, generator=generator(1), dtype=torch.float64).to(dtype)
    return features, torch.rand(B, D, generator=generator(2)) < share


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(
        [
            ("3@2x2(valid)->1@2x2(full)", [("valid",), ("full",)]),
            ("2@3x2(same)->pool@1x1->3@1x2(full)->1@1x2(valid)",
             [("same",), ("pool", 1, 1), ("full",), ("valid",)]),
            ("up@2x3->2@2x2(same)->pool@2x3->1@3x3(same)",
             [("up", 2, 3), ("same",), ("pool", 2, 3), ("same",)]),
        ]
    ),
    st.integers(2, 4), st.integers(2, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2),
    st.booleans(),
)  # fmt: skip
def test_convolutions_equal_the_loop(blueprint, H, W, C, P, F, flags):
    text, layers = blueprint
    net = shaken(MaskedConv((H, W), P, text, channels=C, n_features=F, input_observed=flags))
    features, observed = rows(net, B=2)
    eta = net.conditionals(features, observed).detach().view(2, C, H, W, P)
    numbers = [p.detach().numpy() for p in net.weights], [p.detach().numpy() for p in net.hidden_bias]
    for b in range(2):
        slow = masked_conv_eta(
            features[b].view(C, H, W, F).numpy(),
            observed[b].view(C, H, W).numpy(),
            layers,
            *numbers,
            net.bias.detach().view(C, H, W, P).numpy(),
            flags,
        )
        torch.testing.assert_close(eta[b], torch.from_numpy(slow), rtol=0, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_looking_through_windows_changes_nothing(data):
    """Layers of any type and size, ending as an image does; any pixel; groups with pixels of their own."""
    kinds = {"valid": -1, "full": 1, "same": 0}
    side, text = [data.draw(st.integers(3, 9)), data.draw(st.integers(3, 9))], []
    shape = tuple(side)
    for _ in range(data.draw(st.integers(0, 4))):
        kind = data.draw(st.sampled_from(list(kinds)))
        most = [min(4, n) if kind == "valid" else 4 for n in side]
        size = [data.draw(st.integers(1, m)) for m in most]
        side = [n + kinds[kind] * (k - 1) for n, k in zip(side, size, strict=True)]
        text.append(f"{data.draw(st.integers(1, 3))}@{size[0]}x{size[1]}({kind})")
    steps = [(shape[0] - side[0], "x"), (shape[1] - side[1], "y")]  # what is left to go, one side at a time
    for gap, which in steps:
        size = f"{abs(gap) + 1}x1" if which == "x" else f"1x{abs(gap) + 1}"
        text.append(f"{1 if which == 'y' else 2}@{size}({'full' if gap >= 0 else 'valid'})")
    C, P, F = (data.draw(st.integers(1, 2)) for _ in range(3))
    act = data.draw(st.sampled_from(["relu", "silu", "sigmoid"]))  # the last is not zero at zero
    net = shaken(MaskedConv(shape, P, "->".join(text), channels=C, n_features=F, activation=act))
    features, observed = rows(net, B=6)
    state = {"features": features.view(3, 2, *features.shape[1:]), "observed": observed.view(3, 2, -1)}
    i = torch.tensor(data.draw(st.lists(st.integers(0, net.n_variables - 1), min_size=3, max_size=3)))
    expected = AnyOrderNet.predict(net, state, i)
    torch.testing.assert_close(net.predict(state, i), expected, rtol=0, atol=1e-10)
    both = shaken(Hybrid(net, MaskedMLP(net.n_variables, P, hidden=(4,), n_features=F)))
    expected = AnyOrderNet.predict(both, state, i)
    torch.testing.assert_close(both.predict(state, i), expected, rtol=0, atol=1e-10)


def test_the_papers_net_looks_through_three_windows():
    assert [window.size for window in MaskedConv((28, 28)).windows] == [(16, 16), (11, 11), (8, 8)]


def test_a_window_larger_than_its_map_counts_as_what_a_row_needs():
    assert MaskedConv((28, 28)).row_floats == 4 * 64 * 21 * 21
    assert MaskedConv((28, 28), blueprint="64@28x28(valid)->1@28x28(full)").row_floats == 4 * 64 * 28 * 28


def test_the_papers_blueprint_fits_every_image_of_at_least_22_pixels_a_side():
    net = MaskedConv((22, 31))
    assert net.conditionals(torch.zeros(1, 682, 1), torch.zeros(1, 682, dtype=torch.bool)).shape == (
        1,
        682,
        1,
    )
    with pytest.raises(
        ValueError, match=r"^layer 4, '64@7x7\(valid\)': a 7x7 filter does not fit a 6x16 map"
    ):
        MaskedConv((21, 31))


def test_hybrid_is_the_sum_of_its_parts():
    first, second = shaken(conv(), 1), shaken(MaskedMLP(9, hidden=(6, 5)), 2)
    features, observed = rows(first)
    apart = first.conditionals(features, observed) + second.conditionals(features, observed)
    count = sum(p.numel() for net in (first, second) for p in net.parameters())
    both = Hybrid(first, second)
    torch.testing.assert_close(both.conditionals(features, observed), apart, rtol=0, atol=1e-12)
    parts = first.conditionals(features, observed) + second.conditionals(features, observed) + both.bias
    assert torch.equal(both.conditionals(features, observed), parts)
    # one bias is left of three, and it alone is set
    assert sum(p.numel() for p in both.parameters()) == count - 9
    assert not {"first.bias", "second.bias"} & {n for n, _ in both.named_parameters()}
    before = both.bias.detach().clone()
    both.set_output_bias(before + 2)
    torch.testing.assert_close(both.conditionals(features, observed), parts + 2, rtol=0, atol=1e-12)
    assert both.input_weights == ("first.weights.0", "second.weight")


def test_parts_of_a_hybrid_must_agree():
    with pytest.raises(ValueError, match=r"same n_variables.*\(9, 1, 1\) and \(8, 1, 1\)"):
        Hybrid(conv(), MaskedMLP(8))


@every_net
@pytest.mark.parametrize(("shape", "channels"), [((3, 3), 1), ((2, 2), 2)])
def test_all_images_sum_to_one_along_any_ordering(build, shape, channels):
    net = shaken(build(shape, channels=channels))
    D = net.n_variables
    x = all_states(D)
    for seed in range(3):
        ordering = Ordering.random(D, generator=generator(seed))
        with torch.no_grad():
            total = Autoregressive(net, Bernoulli(), ordering).log_prob(x).exp().sum()
        assert abs(total.item() - 1) < 1e-10


@every_net
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (5, 1), (3, 3), (7, 9), (8, 8)])
def test_every_size_works_and_the_first_gradient_is_finite(build, shape):
    """At the start of training, where some layers are silent; and no parameter is idle."""
    net = build(shape, generator=generator(3)).double()
    model = Orderless(net, Bernoulli())
    x = (torch.rand(6, net.n_variables, generator=generator(4)) < 0.5).double()
    loss = model.loss(x, generator(5)).mean()
    names, parameters = zip(*net.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)  # an error if one were not used at all
    assert all(g.isfinite().all() for g in gradients)
    moved = dict(zip(names, gradients, strict=True))
    assert (moved["bias"] != 0).any()


def test_a_unet_starts_at_its_output_bias_and_then_learns():
    net = unet((5, 6), generator=generator(6)).double()
    features, observed = rows(net)
    net.set_output_bias(torch.randn(30, 1, generator=generator(7)))
    assert torch.equal(net.conditionals(features, observed), net.bias.expand(4, -1, -1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    target, losses = torch.sign(features), []
    for _ in range(30):
        loss = ((net.conditionals(features, observed) - target) ** 2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.3 * losses[0]


@every_net
def test_dropout_follows_its_generator(build):
    net = shaken(build(dropout=0.4))
    features, observed = rows(net)
    plain = net.conditionals(features, observed)
    noisy = [net.conditionals(features, observed, generator(s)) for s in (1, 1, 2)]
    assert torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy[0], noisy[2])
    assert not torch.equal(noisy[0], plain)
    assert torch.equal(plain, net.conditionals(features, observed))
    still = shaken(build(dropout=0.0))
    assert torch.equal(plain, still.conditionals(features, observed, generator(1)))


@every_net
def test_low_precision_stays_close_and_eta_is_float32(build):
    net = shaken(build((6, 6)), scale=0.2)
    features, observed = rows(net)
    exact = net.conditionals(features, observed)
    single = net.float().conditionals(features.float(), observed)
    torch.testing.assert_close(single.double(), exact, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        half = net.conditionals(features.float(), observed)
    assert half.dtype == torch.float32
    assert (half - single).abs().max() < 0.1 * single.abs().max()


@every_net
def test_whole_images_are_seen_by_a_unet_and_neighbourhoods_by_convolutions(build):
    """Which of the 81 pixels of a 9 × 9 image can change the eta of the one in a corner."""
    net = shaken(build((9, 9)))
    features = torch.zeros(1, 81, 1, dtype=torch.float64)
    observed = torch.ones(1, 81, dtype=torch.bool)
    observed[0, 0] = False
    J = torch.autograd.functional.jacobian(lambda f: net.conditionals(f, observed)[0, 0, 0], features)
    seen = (J[0, :, 0] != 0).view(9, 9)
    assert not seen[0, 0]
    if isinstance(net, MaskedConv):  # filters of 2, 3 and 2: two pixels each way
        assert not seen[3:].any()
        assert not seen[:, 3:].any()
        assert seen[:3, :3].any()
    if isinstance(net, UNet):  # group norms and attention reach everywhere
        assert seen.flatten()[1:].all()


def test_the_number_observed_is_told_where_asked_for():
    """Without flags, coordinates and signs, an image of zeros says nothing about what is observed."""
    for tells in (True, False):
        net = shaken(unet(input_observed=False, signed=False, coordinates=False, count_embedding=tells))
        features = torch.zeros(2, 9, 1, dtype=torch.float64)
        observed = torch.zeros(2, 9, dtype=torch.bool)
        observed[1, :5] = True
        first, second = net.conditionals(features, observed)
        assert torch.allclose(first, second, rtol=1e-12, atol=1e-12) != tells


def test_attention_is_at_the_low_resolutions_unless_said_otherwise():
    assert UNet((8, 8), width=16).attention == (1, 2)
    assert UNet((8, 8), width=16, multipliers=(1,)).attention == ()
    assert UNet((8, 8), width=16, attention=[0]).config()["attention"] == [0]


def test_signs_tell_a_zero_from_an_unobserved_pixel():
    for signed in (True, False):
        net = shaken(unet(input_observed=False, signed=signed, count_embedding=False))
        observed = torch.eye(9, dtype=torch.bool)[:2]
        first, second = net.conditionals(torch.zeros(2, 9, 1, dtype=torch.float64), observed)
        assert torch.allclose(first, second, rtol=1e-12, atol=1e-12) != signed


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: UNet((3,)), r"image_shape is \(height, width\).*not \(3,\)"),
        (lambda: UNet((3, 0)), "both at least 1"),
        (lambda: MaskedConv((28, 28), channels=0), "channels must be at least 1, not 0"),
        (lambda: MaskedConv((20, 20)), r"^layer 4, '64@7x7\(valid\)': a 7x7 filter does not fit a 5x5 map"),
        (lambda: conv(activation="step"), "unknown activation 'step'"),
        (lambda: conv(dropout=1.0), r"dropout must be in \[0, 1\), not 1"),
        (lambda: unet(width=6), "larger multiple of groups=4, not 6"),
        (lambda: unet(width=4), "larger multiple of groups=4, not 4"),
        (lambda: unet(heads=3), "heads must divide the 16 maps of level 1, not 3"),
        (lambda: unet(attention=(2,)), r"attention names levels 0 … 1, not \(2,\)"),
        (lambda: unet(multipliers=()), "multipliers are whole numbers of at least 1"),
        (lambda: unet(blocks=0), "blocks must be at least 1"),
    ],
)  # fmt: skip
def test_sizes_that_make_no_sense_get_one_sentence(build, words):
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.parametrize(("n_in", "n_out", "stride"), [(2, 1, 1), (4, 64, 2), (8, 3, 1), (8, 8, 1)])
def test_convolutions_filled_up_to_eight_maps_are_the_same(n_in, n_out, stride):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, n_in, 7, 6, generator=g, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(n_out, n_in, 3, 3, generator=g, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(n_out, generator=g, dtype=torch.float64, requires_grad=True)
    ends = []
    for fill in (False, True):
        y = convolve(x, weight, bias, stride=stride, padding=1, fill=fill)
        ends.append((y, *torch.autograd.grad(y.square().sum(), (x, weight, bias))))
    for plain, filled in zip(*ends, strict=True):
        assert plain.shape == filled.shape
        torch.testing.assert_close(filled, plain, rtol=1e-12, atol=1e-12)
