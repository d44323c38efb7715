import math

import numpy as np
import pytest
import torch

from pynade.families import Bernoulli
from pynade.likelihood import Estimate, log_likelihood, row_log_probs
from pynade.models import Autoregressive, Independent
from pynade.nets import CausalTransformer
from pynade.ordering import Ordering


def test_estimate_mean_and_standard_error():
    rows = np.random.default_rng(0).normal(-5, 2, 400)
    e = Estimate.from_rows(rows)
    assert e.mean == pytest.approx(rows.mean())
    assert e.stderr == pytest.approx(rows.std(ddof=1) / 20)
    assert (e.n, e.exact, e.mc_stderr) == (400, True, 0.0)
    assert Estimate(**e.to_json()) == e


def test_estimate_with_monte_carlo_error():
    e = Estimate.from_rows([-1.0, -3.0], row_variance=[0.04, 0.12])
    assert e.mc_stderr == pytest.approx(0.2)
    assert not e.exact
    assert "estimate, Monte-Carlo s.e. 0.200" in str(e)


def test_monte_carlo_error_has_the_right_size():
    """The reported Monte-Carlo s.e. is the spread of the mean over repeated draws."""
    rng = np.random.default_rng(0)
    true, sd = rng.normal(-10, 1, 50), rng.uniform(0.5, 2, 50)
    repeats = [Estimate.from_rows(true + sd * rng.normal(size=50), row_variance=sd**2) for _ in range(2000)]
    spread = np.std([e.mean for e in repeats])
    assert repeats[0].mc_stderr == pytest.approx(spread, rel=0.05)


def test_one_row_has_no_standard_error_and_no_row_no_estimate():
    assert math.isnan(Estimate.from_rows([-1.0]).stderr)
    with pytest.raises(ValueError, match="at least one row"):
        Estimate.from_rows([])


def noted_sizes(monkeypatch, kind):
    """A list that gets the number of rows of every call of `log_prob`."""
    sizes, log_prob = [], kind.log_prob
    monkeypatch.setattr(kind, "log_prob", lambda self, x: (sizes.append(len(x)), log_prob(self, x))[1])
    return sizes


def test_rows_are_scored_in_batches(monkeypatch):
    model = Independent(Bernoulli(), 3)
    x = (np.arange(21).reshape(7, 3) % 2).astype(np.uint8)
    sizes = noted_sizes(monkeypatch, Independent)
    rows = row_log_probs(model, x, batch_size=3)
    assert sizes == [3, 3, 1]
    assert rows.dtype == torch.float64
    torch.testing.assert_close(
        rows, torch.full((7,), -3 * math.log(2), dtype=torch.float64), rtol=1e-6, atol=0
    )
    assert log_likelihood(model, x).mean == pytest.approx(-3 * math.log(2), rel=1e-6)
    assert row_log_probs(model, x[:0]).shape == (0,)
    assert sizes == [3, 3, 1, 7]  # nets of images cannot take no rows at all


def test_rows_that_need_much_memory_are_scored_a_few_at_a_time(monkeypatch):
    net = CausalTransformer(3, width=4, depth=1, heads=2)
    model = Autoregressive(net, Bernoulli(), Ordering.natural(3)).double()
    x = torch.ones(10, 3)
    whole, sizes = row_log_probs(model, x), noted_sizes(monkeypatch, Autoregressive)
    monkeypatch.setattr(CausalTransformer, "rows_at_once", lambda net, device: 4)
    parts = row_log_probs(model, x)
    assert sizes == [4, 4, 2]
    torch.testing.assert_close(parts, whole)
