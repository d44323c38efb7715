"""DRAW: its bound and its estimate against log p by quadrature over z."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pynade_paper.comparators.draw import DRAW
from tests.paper.comparators.states import all_states, draws_agree


def small(attention: bool) -> DRAW:
    side = 2 if attention else None
    g = torch.Generator().manual_seed(0)
    net = DRAW(2, 2, steps=2, units=3, latent=1, read=side, write=side, generator=g).double()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return net


@torch.no_grad()
def log_prob(net: DRAW) -> Tensor:
    """log p of all images, the two z integrated by Gauss–Hermite quadrature."""
    at, weight = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(80))
    z = torch.cartesian_prod(at, at).T[:, :, None]  # (2, 6400, 1)
    log_w = torch.cartesian_prod(weight, weight).prod(1).log() - math.log(2 * math.pi)
    logits = net.decode(z)
    x = all_states(4)
    log_p = -functional.softplus((1 - 2 * x[:, None]) * logits).sum(-1)
    return torch.logsumexp(log_p + log_w, 1)


@pytest.fixture(params=[False, True], ids=["whole image", "attention"])
def net(request: pytest.FixtureRequest) -> DRAW:
    return small(request.param)


def test_probabilities_sum_to_one(net: DRAW) -> None:
    assert log_prob(net).exp().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_estimate_is_unbiased_and_below_the_bound(net: DRAW) -> None:
    x, truth = all_states(4), log_prob(net)
    found = net.scores(x, torch.Generator().manual_seed(1), samples=20000)
    assert (found["bound"] > -truth).all()
    torch.testing.assert_close(-found["estimate"], truth, rtol=0, atol=0.02)
    few = [net.scores(x, torch.Generator().manual_seed(k), samples=5) for k in range(200)]
    between = torch.stack([f["estimate"] for f in few]).mean(0)
    assert between.mean() < found["bound"].mean()


def test_loss_is_the_bound(net: DRAW) -> None:
    x = all_states(4)
    losses = net.loss(x.repeat(5000, 1), torch.Generator().manual_seed(2)).view(5000, -1).mean(0)
    bound = net.scores(x, torch.Generator().manual_seed(3), samples=5000)["bound"]
    torch.testing.assert_close(losses, bound, rtol=0, atol=0.1)


def test_gradients_are_those_of_the_loss(net: DRAW) -> None:
    x, params = all_states(4), dict(net.named_parameters())
    loss, found = net.gradients(x, torch.Generator().manual_seed(2))
    own = net.loss(x, torch.Generator().manual_seed(2))
    torch.testing.assert_close(loss, own.detach())
    expected = torch.autograd.grad(own.mean(), list(params.values()))
    torch.testing.assert_close([found[name] for name in params], list(expected))


def test_samples_follow_the_density(net: DRAW) -> None:
    x = net.sample(4000, torch.Generator().manual_seed(4))
    draws_agree(x, log_prob(net).exp())


def test_filters_are_normalised_and_centred() -> None:
    net = DRAW(9, 9, steps=1, units=2, latent=1, read=3, write=3)
    filters, intensity = net._filters(torch.tensor([[0.0, 0.2, -1.0, -1.0, 0.5]]), 3)
    torch.testing.assert_close(filters.sum(-1), torch.ones(1, 2, 3))
    means = (filters * torch.arange(9)).sum(-1)[0]
    stride = math.exp(-1.0) * 8 / 2
    torch.testing.assert_close(means[0], 4 + stride * torch.tensor([-1.0, 0.0, 1.0]), rtol=0, atol=1e-2)
    torch.testing.assert_close(means[1, 1], torch.tensor(5.0), rtol=0, atol=1e-2)
    assert intensity.item() == pytest.approx(math.exp(0.5))


def test_writing_puts_a_patch_on_the_canvas() -> None:
    net = DRAW(9, 9, steps=1, units=2, latent=1, read=1, write=1)
    out = torch.tensor([[2.0, 0.0, 0.0, -6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    canvas = net._written(out)[0].view(9, 9)
    assert canvas[4, 4].item() == pytest.approx(2.0)
    assert canvas.sum().item() == pytest.approx(2.0)
