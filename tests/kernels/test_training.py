"""Training through the fused kernel follows the curve of training through the reference."""

import os

import numpy as np
import pytest
import torch

from pynade.families import Bernoulli
from pynade.models import Autoregressive
from pynade.nets import NADENet
from pynade.ordering import Ordering
from pynade.tables.registry import load
from pynade.training import Gradient, fit


def curve(kernel: str, data: str, options: Gradient, hidden: int, seed: int = 0) -> tuple[np.ndarray, float]:
    """Validation log-likelihood after every epoch, and the standard error of the last."""
    rows, g = load(data), torch.Generator().manual_seed(seed)
    net = NADENet(rows.train.shape[1], hidden=hidden, kernel=kernel, generator=g)
    model = Autoregressive(net, Bernoulli(), Ordering.random(rows.train.shape[1], generator=g))
    history = fit(model, rows.train, rows.valid, options=options, seed=seed)
    scores = model.log_prob(torch.as_tensor(rows.valid).float()).detach().numpy()
    return np.array([e["valid"] for e in history.epochs]), scores.std() / len(scores) ** 0.5


def compare(data: str, options: Gradient, hidden: int) -> None:
    (fused, stderr), (plain, _) = (curve(kernel, data, options, hidden) for kernel in ("numba", "reference"))
    other, _ = curve("numba", data, options, hidden, seed=1)
    apart = np.abs(fused - plain)
    assert len(fused) == options.epochs
    assert plain[-1] > plain[0] + stderr  # something was learned
    assert apart[0] < 1e-3  # rounding, before it has had time to grow
    assert apart.max() < 0.1 * stderr
    assert apart.max() < 0.1 * np.abs(fused - other).max()  # another seed is much further away


def test_digits():
    compare("digits", Gradient(optimizer="sgd", learning_rate=0.05, batch_size=50, epochs=6), hidden=30)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("PYNADE_DATA"), reason="PYNADE_DATA names no folder of real data")
def test_mushrooms():
    compare("mushrooms", Gradient(optimizer="sgd", learning_rate=0.05, batch_size=10, epochs=12), hidden=500)
