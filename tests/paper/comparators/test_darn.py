"""DARN: description length, estimate and gradients against the sum over all hidden states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pynade_paper.comparators.darn import DARN
from tests.paper.comparators.states import all_states, draws_agree


def random_net(noise: bool = False, scale: float = 0.5) -> DARN:
    g = torch.Generator().manual_seed(0)
    net = DARN(2, 2, units=3, noise=noise, generator=g).double()
    with torch.no_grad():
        for p in (*net.weights.values(), *net.biases.values()):
            p += scale * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return net


def joint(net: DARN, x: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x, h) and log q(h | x) of all hidden states: (B, 8) each."""
    h = all_states(3)
    many = x.repeat_interleave(8, 0)
    log_p = -net._length(many, h.repeat(len(x), 1), False, None).view(-1, 8)
    logits = net._infer(x, False, None)[0]
    return log_p, -functional.softplus((1 - 2 * h) * logits[:, None]).sum(-1)


def exact_length(net: DARN, x: Tensor) -> Tensor:
    log_p, log_q = joint(net, x)
    return (log_q.exp() * (log_q - log_p)).sum(1)


def log_prob(net: DARN) -> Tensor:
    return torch.logsumexp(joint(net, all_states(4))[0], 1).detach()


def test_probabilities_sum_to_one() -> None:
    assert log_prob(random_net()).exp().sum().item() == pytest.approx(1.0, abs=1e-12)


def test_estimate_is_right_and_below_the_bound() -> None:
    net, x = random_net(), all_states(4)
    found = net.scores(x, torch.Generator().manual_seed(1), samples=20000)
    torch.testing.assert_close(found["estimate"], -log_prob(net), rtol=0, atol=0.05)
    torch.testing.assert_close(found["bound"], exact_length(net, x).detach(), rtol=0, atol=0.05)
    assert (exact_length(net, x) >= -log_prob(net)).all()
    assert (found["bound"] >= found["estimate"]).all()


def gradients(net: DARN, n: int = 20000) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of the loss, many draws together, and of the exact description length."""
    x = all_states(4)[3:6]
    params = dict(net.named_parameters())
    loss = net.loss(x.repeat(n, 1), torch.Generator().manual_seed(2)).mean()
    found = torch.autograd.grad(loss, list(params.values()))
    exact = torch.autograd.grad(exact_length(net, x).mean(), list(params.values()))
    return dict(zip(params, found, strict=True)), dict(zip(params, exact, strict=True))


def test_gradients_of_the_model_are_unbiased() -> None:
    found, exact = gradients(random_net())
    for name in found:
        if "encoder" not in name and "posterior" not in name:
            torch.testing.assert_close(found[name], exact[name], rtol=0, atol=0.02)


def test_gradients_of_the_encoder_are_nearly_unbiased() -> None:
    found, exact = gradients(random_net())
    for name in ("weights.encoder", "weights.posterior", "biases.posterior"):
        assert (found[name] - exact[name]).norm() < 0.1 * exact[name].norm() + 0.02


def test_gradients_of_the_encoder_are_unbiased_where_the_loss_is_linear_in_h() -> None:
    net = random_net()
    with torch.no_grad():
        net.weights["prior"].zero_()
        net.weights["decoder"].zero_()
    found, exact = gradients(net)
    for name in ("weights.encoder", "weights.posterior", "biases.posterior"):
        torch.testing.assert_close(found[name], exact[name], rtol=0, atol=0.01)


def test_no_pixel_sees_itself_or_its_future() -> None:
    net = random_net()
    with torch.no_grad():
        net.weights["decoder"].zero_()
    x = all_states(4)
    slopes = torch.autograd.functional.jacobian(
        lambda v: net._linear(v, "pixels", False, None).sum(0), x
    ).sum(1)
    assert (slopes.triu() == 0).all()
    assert (slopes.tril(-1) != 0).sum() == 6


def test_divergence_of_the_noise() -> None:
    net = random_net(noise=True)
    expected = torch.zeros((), dtype=torch.float64)
    for name, log_sd in net.log_sds.items():
        mask = net._mask(name)
        used = slice(None) if mask is None else mask.bool()
        mean, sd = net.weights[name][used], log_sd.exp()[used]
        prior = torch.distributions.Normal(0.0, (mean**2 + sd**2).mean().sqrt())
        expected = (
            expected + torch.distributions.kl_divergence(torch.distributions.Normal(mean, sd), prior).sum()
        )
    torch.testing.assert_close(net.divergence(), expected)


@torch.no_grad()
def test_noise_of_the_inputs_is_that_of_the_weights() -> None:
    net = random_net(noise=True)
    net.log_sds["encoder"].fill_(-1.0)
    x = all_states(4)[5:6].repeat(40000, 1)  # two ones
    drawn = net._linear(x, "encoder", True, torch.Generator().manual_seed(3))
    quiet = net._linear(x[:1], "encoder", False, None)
    torch.testing.assert_close(drawn.mean(0), quiet[0], rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.var(0), torch.full((3,), 2 * math.exp(-2.0)).double(), rtol=0.05, atol=0)


def test_noisy_training_changes_only_the_loss() -> None:
    net, x = random_net(noise=True), all_states(4)
    found = net.scores(x, torch.Generator().manual_seed(1), samples=1000)
    plain = random_net().scores(x, torch.Generator().manual_seed(1), samples=1000)
    torch.testing.assert_close(found, plain)
    net.n_rows = 100
    assert torch.isfinite(net.loss(x, torch.Generator().manual_seed(1))).all()


def test_samples_follow_the_density() -> None:
    net = random_net()
    draws_agree(net.sample(4000, torch.Generator().manual_seed(4)), log_prob(net).exp())
