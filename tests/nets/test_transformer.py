import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.families import Bernoulli, MixtureOfGaussians
from pynade.models import Autoregressive, Orderless
from pynade.nets import CausalTransformer, Transformer
from pynade.ordering import Ordering
from tests.contracts.cases import generator, shaken

TINY = {"width": 8, "depth": 2, "heads": 2, "mlp_ratio": 2}


def double(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 7), st.integers(0, 2**32), st.data())
def test_outputs_of_unknown_variables_depend_on_all_that_is_observed_and_on_nothing_else(D, seed, data):
    observed = torch.tensor(data.draw(st.lists(st.booleans(), min_size=D, max_size=D)))
    net = shaken(Transformer(D, **TINY), seed)
    features = double(D, 1, seed=seed)
    J = torch.autograd.functional.jacobian(lambda f: net.conditionals(f[None], observed[None])[0], features)
    touched = (J != 0).any(1).any(-1)  # (D, D)
    assert not touched[:, ~observed].any()
    assert touched[:, observed].all()


def test_swapping_two_variables_with_their_positions_changes_nothing_else():
    """Variables differ by their position and bias alone."""
    D, swap = 5, torch.tensor([0, 3, 2, 1, 4])
    net = shaken(Transformer(D, **TINY))
    features, observed = double(3, D, 1), double(3, D, seed=1) > 0
    eta = net.conditionals(features, observed)
    net.position.data = net.position.data[swap]
    net.bias.data = net.bias.data[swap]
    again = net.conditionals(features[:, swap], observed[:, swap])
    torch.testing.assert_close(again, eta[:, swap], rtol=0, atol=1e-12)


@pytest.mark.parametrize("D", [1, 4])
def test_the_first_gradient_is_finite_and_no_parameter_is_idle(D):
    x = double(6, D)
    family = MixtureOfGaussians(3)
    for build, model in (
        (Transformer, lambda net: Orderless(net, family)),
        (CausalTransformer, lambda net: Autoregressive(net, family, Ordering.natural(D))),
    ):
        net = build(D, family.n_params, **TINY, generator=generator(1)).double()
        net.set_output_bias(family.eta_from_marginal(x))
        loss = model(net).loss(x, generator(2)).mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        assert all(g.isfinite().all() for g in gradients)
        assert any((g != 0).any() for g in gradients)


def test_both_start_at_the_output_bias():
    for net in (Transformer(4, 2, **TINY), CausalTransformer(4, 2, **TINY)):
        net.set_output_bias(torch.arange(8.0).view(4, 2))
        features = torch.randn(3, 4, 1, generator=generator(3))
        assert torch.equal(net(features, Ordering([2, 0, 3, 1])), net.bias.expand(3, -1, -1))


def test_dropout_follows_its_generator():
    net = shaken(Transformer(5, dropout=0.4, **TINY))
    features, observed = double(3, 5, 1), torch.ones(3, 5, dtype=torch.bool)
    plain = net.conditionals(features, observed)
    noisy = [net.conditionals(features, observed, generator(s)) for s in (1, 1, 2)]
    assert torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy[0], noisy[2])
    assert not torch.equal(noisy[0], plain)
    assert torch.equal(plain, net.conditionals(features, observed))


def test_low_precision_stays_close_and_eta_is_float32():
    for net in (shaken(Transformer(6, **TINY), scale=0.3), shaken(CausalTransformer(6, **TINY), scale=0.3)):
        features, ordering = double(3, 6, 1), Ordering([5, 2, 0, 1, 4, 3])
        exact = net(features, ordering)
        single = net.float()(features.float(), ordering)
        torch.testing.assert_close(single.double(), exact, rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            half = net(features.float(), ordering)
        assert half.dtype == torch.float32
        assert (half - single).abs().max() < 0.1 * single.abs().max()


def test_every_variable_before_is_seen_and_none_after():
    D = 6
    net, ordering = shaken(CausalTransformer(D, **TINY)), Ordering([4, 1, 5, 0, 3, 2])
    J = torch.autograd.functional.jacobian(lambda f: net(f[None], ordering)[0], double(D, 1))
    assert torch.equal((J != 0).any(1).any(-1), ordering.before)


def test_a_prediction_leaves_the_state_as_it_was_and_is_not_needed_to_observe():
    net = shaken(CausalTransformer(4, **TINY))
    x, order = double(3, 4, 1), [2, 0, 3, 1]
    asked, silent = net.start(1, 3), net.start(1, 3)
    for i in map(torch.tensor, order[:-1]):
        before = {name: tensor.clone() for name, tensor in asked.items()}
        net.predict(asked, torch.tensor([1]))  # another variable than the one observed next
        net.predict(asked, i[None])
        assert all(torch.equal(before[name], asked[name]) for name in before)
        asked = net.observe(asked, i[None], x[None, :, i])
        silent = net.observe(silent, i[None], x[None, :, i])
    last = torch.tensor(order[-1:])
    assert torch.equal(net.predict(asked, last), net.predict(silent, last))
    whole = net(x, Ordering(order))[:, order[-1]]
    torch.testing.assert_close(net.predict(asked, last)[0], whole, rtol=0, atol=1e-12)
    shape = (1, 3, 2, 2, 2, 3, 4)  # groups, rows, blocks, keys and values, heads, steps, width / heads
    assert asked["cache"].shape == shape


def test_a_state_can_be_continued_in_two_ways():
    net = shaken(CausalTransformer(3, **TINY))
    start = net.observe(net.start(1, 1), torch.tensor([1]), double(1, 1, 1))
    one = net.observe(start, torch.tensor([0]), torch.zeros(1, 1, 1, dtype=torch.float64))
    kept = one["cache"].clone()
    net.observe(start, torch.tensor([2]), torch.ones(1, 1, 1, dtype=torch.float64))
    assert torch.equal(one["cache"], kept)
    assert start["cache"].shape[-2] == 1


def test_a_causal_net_learns_what_only_its_order_shows():
    """A coin, then copies of it: given the first, all others are sure."""
    D = 4
    x = (torch.rand(200, 1, generator=generator(4)) < 0.5).float().repeat(1, D)
    net = CausalTransformer(D, **TINY, generator=generator(5))
    model = Autoregressive(net, Bernoulli(), Ordering([3, 1, 0, 2]))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        model.loss(x).mean().backward()
        optimizer.step()
    assert -model.log_prob(x).mean().item() == pytest.approx(0.6931, abs=0.05)


@pytest.mark.parametrize("build", [Transformer, CausalTransformer])
def test_sizes_that_make_no_sense_get_one_sentence(build):
    for sizes, words in (
        ({"width": 9}, "heads must divide the width 9, not 2"),
        ({"depth": 0}, "depth must be at least 1, not 0"),
        ({"mlp_ratio": 0}, "mlp_ratio must be at least 1"),
        ({"heads": 0}, "heads must be at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            build(3, **TINY | sizes)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), not -0\.1"):
        Transformer(3, dropout=-0.1)


@pytest.mark.parametrize("n_params", [1, 60])
def test_a_pass_over_all_tokens_is_given_the_room_it_needs(n_params):
    shallow = {"width": 8, "depth": 1, "heads": 2, "n_params": n_params}
    assert CausalTransformer(5, **shallow).row_floats >= Transformer(5, **shallow).row_floats


def test_every_row_needs_an_ordering_if_rows_have_their_own():
    with pytest.raises(ValueError, match="3 orderings were given for 4 rows"):
        CausalTransformer(5, **TINY)(torch.zeros(4, 5, 1), Ordering.random(5, 3, generator()))
