"""The equations of the paper against dumb loops, and the limits in which models coincide."""

import numpy as np
import pytest
import torch

from pynade.families import Bernoulli
from pynade.models import Autoregressive, Independent
from pynade.nets import FVSBNNet, MADENet, NADENet
from pynade.ordering import Ordering

from ..reference.loops import fvsbn_eta, mean_field_pass, nade_algorithm_1, nade_eta, sigm
from .cases import all_states, generator, net, shaken

ACTS = {"sigmoid": sigm, "relu": lambda a: np.maximum(a, 0), "tanh": np.tanh}


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1]])
def test_algorithm_1_log_p_and_gradients(order):
    D, H = 5, 6
    model = shaken(Autoregressive(NADENet(D, hidden=H), Bernoulli(), Ordering(order)), seed=3)
    n = model.net
    W, V = n.weight.detach()[:, 0].T.numpy(), n.output.detach()[:, 0].numpy()
    b, c = n.bias.detach()[:, 0].numpy(), n.hidden_bias.detach().numpy()
    for x in all_states(D)[::5]:
        log_p, dW, dV, db, dc = nade_algorithm_1(x.numpy(), order, W, V, b, c)
        loss = -model.log_prob(x[None]).sum()
        got = torch.autograd.grad(loss, [n.weight, n.output, n.bias, n.hidden_bias])
        assert abs(log_p + loss.item()) < 1e-12
        for ours, theirs in zip(got, [dW.T[:, None], dV[:, None], db[:, None], dc], strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ACTS)
@pytest.mark.parametrize(("n_params", "n_features"), [(1, 1), (3, 2)])
def test_nade_equations_2_to_5(activation, n_params, n_features):
    D = 6
    model = shaken(
        NADENet(D, n_params=n_params, hidden=5, n_features=n_features, activation=activation), seed=4
    )
    ordering = Ordering.random(D, generator=generator(1))
    x = torch.randn(3, D, n_features, dtype=torch.float64, generator=generator(2))
    eta = model(x, ordering).detach().numpy()
    parts = [t.detach().numpy() for t in (model.weight, model.output, model.bias, model.hidden_bias)]
    for row in range(3):
        expected = nade_eta(x[row].numpy(), ordering.order.tolist(), *parts, ACTS[activation])
        np.testing.assert_allclose(eta[row], expected, rtol=0, atol=1e-12)


def test_fvsbn_is_a_linear_model_per_variable():
    D = 5
    model = net("fvsbn", D, n_params=2, n_features=2)
    ordering = Ordering.random(D, generator=generator(3))
    x = torch.randn(D, 2, dtype=torch.float64, generator=generator(4))
    expected = fvsbn_eta(
        x.numpy(), ordering.order.tolist(), model.weight.detach().numpy(), model.bias.detach().numpy()
    )
    np.testing.assert_allclose(model(x[None], ordering)[0].detach().numpy(), expected, rtol=0, atol=1e-12)


def test_made_without_hidden_layers_is_an_fvsbn():
    D = 6
    made, fvsbn = net("made-0", D), FVSBNNet(D).double()
    fvsbn.load_state_dict({"weight": made.direct_weight, "bias": made.bias})
    ordering, x = Ordering.random(D, generator=generator(5)), all_states(D)[..., None]
    assert torch.equal(made(x, ordering), fvsbn(x, ordering))


def test_made_with_dead_hidden_units_is_its_direct_part():
    D = 6
    made, fvsbn = net("made-direct", D), FVSBNNet(D).double()
    made.output.data.zero_()
    fvsbn.load_state_dict({"weight": made.direct_weight, "bias": made.bias})
    ordering, x = Ordering.random(D, generator=generator(5)), all_states(D)[..., None]
    assert torch.equal(made(x, ordering), fvsbn(x, ordering))


def test_nade_with_v_zero_is_independent_bernoullis():
    D = 5
    model = net("nade-sigmoid", D)
    model.output.data.zero_()
    nade = Autoregressive(model, Bernoulli(), Ordering.random(D, generator=generator(6)))
    coins = Independent(Bernoulli(), D).double()
    coins.eta.data.copy_(model.bias.data)
    torch.testing.assert_close(
        nade.log_prob(all_states(D)), coins.log_prob(all_states(D)), rtol=0, atol=1e-12
    )


def test_nade_with_tied_weights_is_one_mean_field_pass_of_the_rbm():
    D, H = 5, 4
    model = shaken(NADENet(D, hidden=H), seed=7)
    model.output.data = model.weight.data.clone()  # V = W^T in the paper's shapes
    ordering = Ordering.random(D, generator=generator(8))
    W = model.weight.detach()[:, 0].T.numpy()
    b, c = model.bias.detach()[:, 0].numpy(), model.hidden_bias.detach().numpy()
    for x in all_states(D)[::3]:
        p = torch.sigmoid(model(x[None, :, None], ordering))[0, :, 0].detach().numpy()
        expected = mean_field_pass(x.numpy(), ordering.order.tolist(), W, b, c)
        np.testing.assert_allclose(p, expected, rtol=0, atol=1e-12)


def test_made_homes_are_spread_evenly():
    made = MADENet(7, hidden=(16, 3), generator=generator(1))
    counts = torch.bincount(made.homes[:16], minlength=7)
    assert counts.min() == 2
    assert counts.max() == 3
    assert made.homes[16:].unique().numel() == 3
