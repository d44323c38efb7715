"""DBN: its bound, its estimate and its training against enumeration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pynade_paper.comparators.dbn import DBN, free_energy
from tests.paper.comparators.states import all_states, draws_agree


@pytest.fixture
def net() -> DBN:
    """Both RBMs with random weights."""
    g = torch.Generator().manual_seed(0)
    net = DBN(
        2, 2, units=3, top_units=5, gibbs=1, chains=64, ais_chains=400, ais_steps=400, generator=g
    ).double()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    net.turned.fill_(1)
    return net


@torch.no_grad()
def log_prob(net: DBN) -> Tensor:
    """log p of all images, by the sum over the first hidden layer."""
    h, x = all_states(3), all_states(4)
    log_h = -free_energy(net.top, h) - net.top.log_partition()
    logits = h @ net.bottom.W + net.bottom.b
    return torch.logsumexp(log_h - functional.softplus((1 - 2 * x[:, None]) * logits).sum(-1), 1)


def test_probabilities_sum_to_one(net: DBN) -> None:
    assert log_prob(net).exp().sum().item() == pytest.approx(1.0, abs=1e-12)


def test_estimate_is_right_and_below_the_bound(net: DBN) -> None:
    net.begin(1, all_states(4))
    net.ready(torch.Generator().manual_seed(1), final=True)
    assert net.partition is not None
    assert net.log_z["backward"] == pytest.approx(net.log_z["forward"], abs=0.05)
    assert abs(net.partition.log_z - net.top.log_partition()) < 5 * net.partition.stderr + 0.01
    shift = net.partition.log_z - net.top.log_partition()
    found = net.scores(all_states(4), torch.Generator().manual_seed(2), samples=50000)
    truth = -log_prob(net)
    torch.testing.assert_close(found["estimate"] - shift, truth, rtol=0, atol=0.06)
    assert (found["bound"] - shift > truth - 1e-9).all()


def test_it_starts_as_the_bottom_machine(net: DBN) -> None:
    net.turned.fill_(0)
    with torch.no_grad():
        net.top.W.zero_()
        net.top.c.zero_()
    net.begin(1, all_states(4))
    x = all_states(4)
    alone = -free_energy(net.bottom, x) - net.bottom.log_partition()
    torch.testing.assert_close(log_prob(net), alone)
    net.ready(torch.Generator().manual_seed(1), final=True)
    found = net.scores(x, torch.Generator().manual_seed(2), samples=3)
    torch.testing.assert_close(found["bound"], found["estimate"])  # the posterior is exact: equal weights


@pytest.mark.parametrize("stage", [0, 1])
def test_gradient_with_long_chains_is_that_of_the_likelihood(net: DBN, stage: int) -> None:
    net.begin(stage, all_states(4))
    net.n_chains = 20000
    net.begin(stage, all_states(4))
    net.gibbs = 30
    x = all_states(4)[3:5]
    rbm = net.top if stage else net.bottom
    params = list(rbm.parameters())
    rows = x.repeat(5000, 1)
    found = torch.autograd.grad(net.loss(rows, torch.Generator().manual_seed(3)).mean(), params)
    states = all_states(3 if stage else 4)
    if stage:  # the top machine sees draws of the first hidden layer
        up = x @ net.bottom.W.T + net.bottom.c
        weight = -functional.softplus((1 - 2 * states) * up[:, None]).sum(-1)
        weight = weight.exp().mean(0).detach()
    else:
        weight = (states[:, None] == x).all(-1).double().mean(1)
    energy = free_energy(rbm, states)
    exact = torch.autograd.grad((weight * energy).sum() + torch.logsumexp(-energy, 0), params)
    torch.testing.assert_close(found, exact, rtol=0, atol=0.03)


def test_samples_follow_the_density(net: DBN, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pynade_paper.comparators.dbn.GIBBS_STEPS", 30)
    draws_agree(net.sample(4000, torch.Generator().manual_seed(4)), log_prob(net).exp())
