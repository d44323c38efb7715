"""Pixel RNN: an exact density in raster order, and its kernels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from pynade_paper.comparators.diagonal_lstm import diagonal_lstm, reference
from pynade_paper.comparators.pixel_rnn import PixelRNN
from tests.paper.comparators.states import all_states, draws_agree

INTERPRETED = """
from tests.paper.comparators.test_pixel_rnn import compare_kernels
compare_kernels("cpu", 1e-5)
"""


@pytest.fixture
def net() -> PixelRNN:
    return PixelRNN(2, 3, layers=2, units=2, generator=torch.Generator().manual_seed(0)).double()


def test_probabilities_sum_to_one(net: PixelRNN) -> None:
    assert net.log_prob(all_states(6)).exp().sum().item() == pytest.approx(1.0, abs=1e-12)


def test_no_pixel_sees_itself_or_its_future() -> None:
    net = PixelRNN(4, 5, layers=2, units=2, generator=torch.Generator().manual_seed(1)).double()
    x = torch.rand(3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).round()
    slopes = torch.autograd.functional.jacobian(lambda v: net.logits(v).sum(0), x).sum(1)  # (out, in)
    assert (slopes.triu() == 0).all()


def test_every_pixel_sees_its_past_but_for_the_edge() -> None:
    net = PixelRNN(4, 5, layers=3, units=8, generator=torch.Generator().manual_seed(1)).double()
    x = torch.rand(3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).round()
    slopes = torch.autograd.functional.jacobian(lambda v: net.logits(v).sum(0), x).abs().sum(1)
    unseen = (slopes == 0).tril(-1).nonzero().tolist()
    assert unseen == [
        [5, 4],
        [10, 9],
        [15, 14],
    ]  # the last pixel of the row above, from beyond the first filter


def test_samples_follow_the_density(net: PixelRNN) -> None:
    x = net.sample(4000, torch.Generator().manual_seed(3))
    assert x.shape == (4000, 6)
    draws_agree(x, net.log_prob(all_states(6)).exp())


def test_loss_is_minus_log_prob(net: PixelRNN) -> None:
    x = all_states(6)
    torch.testing.assert_close(net.loss(x), -net.log_prob(x))
    torch.testing.assert_close(net.scores(x)["nll"], -net.log_prob(x))


def test_a_row_does_not_depend_on_its_companions(net: PixelRNN) -> None:
    x = all_states(6)
    torch.testing.assert_close(net.log_prob(x)[5:6], net.log_prob(x[5:6]), rtol=0, atol=1e-12)


def compare_kernels(device: str, tolerance: float) -> None:
    """The kernels' states and derivatives against those of torch operations."""
    g = torch.Generator().manual_seed(0)
    gates = torch.randn(2, 5, 4, 2, 64, generator=g).to(device).requires_grad_()
    state = (torch.randn(2, 2, 16, 64, generator=g) * 0.2).to(device).requires_grad_()
    weights = torch.randn(2, 5, 4, 2, 16, generator=g).to(device)
    found = [f(gates, state) for f in (reference, lambda a, b: diagonal_lstm(a, b, kernel=True))]
    slopes = [torch.autograd.grad((h * weights).sum(), (gates, state)) for h in found]
    torch.testing.assert_close(found[0], found[1], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, check=True)


@pytest.mark.gpu
def test_kernels_on_the_gpu() -> None:
    compare_kernels("cuda", 1e-4)
