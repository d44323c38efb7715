"""Gaps filled along fixed orderings on a GPU: in float32, against exact enumeration in float64."""

import numpy as np
import pytest
import torch

import pynade
from pynade.particles import walk
from tests.contracts.cases import DENSITIES, all_states

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

D = 6


@pytest.mark.parametrize("name", ["nade-sigmoid", "made-3", "ensemble-made", "causal-transformer"])
def test_walkers_agree_with_enumeration(name):
    model, states = DENSITIES[name](D), all_states(D)
    observed = torch.tensor([False, True, False, True, False, True])
    fits = ((states == states[21]) | ~observed).all(-1)
    joint = model.log_prob(states[fits]).detach()
    x = torch.where(observed, states[21], torch.nan)[None].cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    walkers = walk(model.float().cuda(), x, ~x.isnan(), 50_000, generator)
    assert walkers.log_prob.item() == pytest.approx(joint.logsumexp(0).item(), abs=0.05)
    weights, found = walkers.log_weights.exp()[0].cpu(), walkers.x[0].cpu()
    shares = ((found[:, None] == states[fits]).all(-1) * weights[:, None]).sum(0)
    torch.testing.assert_close(shares, joint.softmax(0), atol=0.02, rtol=0)


def test_estimators_fill_gaps():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1)) * [1, -1, 1] + 0.2 * rng.normal(size=(400, 3)) + 1e5
    model = pynade.RNADE(hidden=16, family="gaussian", epochs=40, learning_rate=0.01, random_state=0).fit(X)
    gaps = np.array([[1.0, np.nan, np.nan], [np.nan, -1.0, np.nan]]) + 1e5
    filled = model.impute(gaps, random_state=0)
    assert np.abs(filled - 1e5 - [[1, -1, 1], [1, -1, 1]]).max() < 0.4
    assert model.impute(gaps, 5, random_state=0).shape == (5, 2, 3)
