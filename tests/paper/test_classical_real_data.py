"""The paper's Chow–Liu column and a partition function of the paper's size, on the real data sets."""

import os

import pytest
import torch

from pynade.classical import RBM, chow_liu_chosen
from pynade.likelihood import log_likelihood
from pynade.tables.registry import entry, load

PAPER = {  # test log-likelihood and the smoothing that validation chooses
    "adult": (-18.51, 0.1),
    "connect4": (-20.57, 1e-20),
    "dna": (-87.717, 1e-20),
    "mushrooms": (-20.99, 1e-20),
    "nips_0_12": (-281.008, 1.0),
    "ocr_letters": (-48.87, 1.0),
    "web": (-33.920, 0.1),
    "binarized_mnist": (-134.987, 0.1),
}


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("PYNADE_DATA"), reason="PYNADE_DATA names no folder of real data")
@pytest.mark.parametrize("name", PAPER)
def test_chow_liu_gives_the_papers_numbers(name):
    if not entry(name).here():
        pytest.skip(f"no prepared file of {name}")
    data = load(name)
    tree, scores = chow_liu_chosen(data.train, data.valid)
    wanted, alpha = PAPER[name]
    assert max(scores, key=scores.__getitem__) == alpha
    assert log_likelihood(tree, data.test, 5000).mean == pytest.approx(wanted, abs=0.01)


@pytest.mark.slow
def test_23_hidden_units_are_summed_exactly():
    """With equal weights a state counts only by how many units are on, so the sum has 24 terms."""
    rbm = RBM(500, 23).double()
    rbm.W.data.fill_(0.3)
    rbm.b.data.fill_(-1.0)
    n = torch.arange(24, dtype=torch.float64)
    ways = torch.lgamma(torch.tensor(24.0).double()) - torch.lgamma(n + 1) - torch.lgamma(24 - n)
    wanted = (ways + 500 * torch.logaddexp(0.3 * n - 1, torch.zeros_like(n))).logsumexp(0).item()
    assert rbm.log_partition() == pytest.approx(wanted, rel=1e-12)
