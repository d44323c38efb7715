"""What every net promises: autoregressive to the last bit, and one function seen in two ways."""

import pytest
import torch

from pynade.nets import stepwise
from pynade.ordering import Ordering

from .cases import NETS, generator, net

# nets in which every allowed dependence exists (no dead ReLU, no layer narrower than the variables)
CONNECTED = (
    "nade-sigmoid",
    "nade-one-unit",
    "fvsbn",
    "made-0",
    "table",
    "hybrid",
    "unet",
    "transformer",
    "causal-transformer",
)

every_net = pytest.mark.parametrize("name", NETS)
every_shape = pytest.mark.parametrize(("n_params", "n_features"), [(1, 1), (3, 2)])


@every_net
@every_shape
def test_jacobian_is_exactly_zero_where_the_ordering_forbids(name, n_params, n_features):
    D = 6
    model = net(name, D, n_params=n_params, n_features=n_features)
    ordering = Ordering.random(D, generator=generator(4))
    x = torch.randn(D, n_features, dtype=torch.float64, generator=generator(5))
    J = torch.autograd.functional.jacobian(lambda f: model(f[None], ordering)[0], x)  # (D, P, D, F)
    touched = (J != 0).any(dim=1).any(dim=-1)  # (D, D): output i depends on input j
    assert not touched[~ordering.before].any()
    assert touched.any()
    if name in CONNECTED:
        assert torch.equal(touched, ordering.before)  # and everything that is allowed is used


@every_net
@every_shape
@pytest.mark.parametrize("D", [1, 2, 8])
def test_parallel_equals_sequential(name, n_params, n_features, D):
    model = net(name, D, n_params=n_params, n_features=n_features)
    ordering = Ordering.random(D, generator=generator(6))
    features = torch.randn(5, D, n_features, dtype=torch.float64, generator=generator(7))
    parallel = model(features, ordering)
    assert parallel.shape == (5, D, n_params)
    torch.testing.assert_close(parallel, stepwise(model, features, ordering), rtol=0, atol=1e-12)


@every_net
def test_rows_may_follow_their_own_orderings(name):
    D, B = 7, 6
    model = net(name, D)
    orderings = Ordering.random(D, k=B, generator=generator(8))
    features = torch.randn(B, D, 1, dtype=torch.float64, generator=generator(9))
    together = model(features, orderings)
    for b in range(B):
        alone = model(features[b : b + 1], orderings[b])
        torch.testing.assert_close(together[b : b + 1], alone, rtol=0, atol=1e-12)


@every_net
def test_gradients_of_both_views_agree(name):
    D = 5
    model = net(name, D)
    ordering = Ordering.random(D, generator=generator(10))
    features = torch.randn(4, D, 1, dtype=torch.float64, generator=generator(11))
    weights = torch.randn(4, D, 1, dtype=torch.float64, generator=generator(12))
    params = list(model.parameters())
    views = (model(features, ordering), stepwise(model, features, ordering))
    first, second = (torch.autograd.grad((v * weights).sum(), params) for v in views)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@every_net
def test_output_bias_is_the_whole_prediction_when_nothing_is_connected(name):
    model = net(name, 4)
    for parameter in model.parameters():
        parameter.data.zero_()
    eta = torch.tensor([[0.3], [-1.0], [2.0], [0.0]], dtype=torch.float64)
    model.set_output_bias(eta)
    features = torch.ones(3, 4, 1, dtype=torch.float64)
    assert torch.equal(model(features, Ordering.natural(4)), eta.expand(3, -1, -1))


@every_net
def test_config_builds_the_same_architecture(name):
    model = net(name, 5)
    again = type(model)(**model.config())
    assert {n: p.shape for n, p in again.state_dict().items()} == {
        n: p.shape for n, p in model.state_dict().items()
    }


@every_net
def test_initial_weights_come_from_the_generator_alone(name):
    first = NETS[name](5, **({} if name == "fvsbn" else {"generator": generator(1)}))
    torch.manual_seed(99)
    second = NETS[name](5, **({} if name == "fvsbn" else {"generator": generator(1)}))
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@every_net
def test_input_weights_are_parameters(name):
    model = net(name, 5)
    assert set(model.input_weights) <= {n for n, _ in model.named_parameters()}
    assert model.input_weights
