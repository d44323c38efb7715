"""Several variables at a time: a normalised density of its own, its samples, and what it loses."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from pynade.families import Bernoulli, MixtureOfGaussians
from pynade.models import Orderless, ancestral, draw_blocks
from pynade.nets import MaskedMLP
from pynade.ordering import Ordering
from pynade_benchmarks.per_step import block_log_prob, block_sampling_gap
from tests.contracts.cases import all_states, generator, net


def all_orderings(D):
    return Ordering(list(itertools.permutations(range(D))))


@given(D=st.integers(1, 5), k=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_blocks_make_a_density_and_blocks_of_one_the_exact_one(D, k, seed):
    model = Orderless(net("mlp-norm", D, seed), Bernoulli())
    ordering = Ordering.random(D, generator=generator(seed))
    states = all_states(D)
    p = block_log_prob(model, states, ordering, k)
    assert p.exp().sum().item() == pytest.approx(1, abs=1e-10)
    exact = model.under(ordering).log_prob(states)
    torch.testing.assert_close(block_log_prob(model, states, ordering, 1), exact)
    if k >= D:  # all at once: the columns are independent
        eta = model.conditionals(states[:1], torch.zeros(1, D, dtype=torch.bool))
        torch.testing.assert_close(p, model.family.log_prob(states, eta.expand(len(states), -1, -1)).sum(-1))


@pytest.mark.parametrize("k", [1, 2])
def test_samples_follow_the_mixture_of_all_orderings(k):
    model, n = Orderless(net("mlp-norm", 3, 1), Bernoulli()), 20_000
    each = [block_log_prob(model, all_states(3), o, k) for o in all_orderings(3)]
    expected = n * torch.stack(each).exp().mean(0).detach().numpy()
    x = draw_blocks(model, n, k, generator(104))[0]
    seen = np.bincount((x @ torch.tensor([4.0, 2.0, 1.0]).double()).long().numpy(), minlength=8)
    assert chisquare(seen, expected).pvalue > 1e-3
    assert torch.equal(x, draw_blocks(model, n, k, generator(104))[0])


def test_expectations_are_those_the_values_were_drawn_with():
    model = Orderless(net("conv", 9, 2), Bernoulli())
    x, means = draw_blocks(model, 4000, 3, generator(1), means=True)
    assert means.shape == x.shape
    assert ((means > 0) & (means < 1)).all()
    z = ((x - means) / (means * (1 - means)).sqrt()).mean(0) * math.sqrt(4000)
    assert z.abs().max() < 4.5
    assert draw_blocks(model, 2, 3, generator(1))[1] is None


@pytest.mark.parametrize("name", ["conv", "unet", "transformer"])
def test_an_ordering_for_each_row_is_one_pass_of_all_rows_per_step(name):
    D, B = 6, 5
    any_order = net(name, D)
    passes = []
    whole, of_one = any_order.conditionals, any_order.predict
    any_order.predict = lambda state, i: (passes.append(state["observed"][..., 0].numel()), of_one(state, i))[
        1
    ]
    ancestral(any_order, Bernoulli(), Ordering.random(D, k=B, generator=generator(1)), B, generator())
    assert passes == [B] * D
    passes.clear()
    any_order.conditionals = lambda features, observed, noise=None: (
        passes.append(len(features)),
        whole(features, observed, noise),
    )[1]
    draw_blocks(Orderless(any_order, Bernoulli()), B, 4, generator())
    assert passes == [B] * 2


def test_real_variables_and_rows_beyond_what_fits(monkeypatch):
    family = MixtureOfGaussians(2)
    model = Orderless(MaskedMLP(4, 6, hidden=8), family).double()
    monkeypatch.setattr(type(model.net), "rows_at_once", lambda self, device: 7)
    x = draw_blocks(model, 20, 3, generator())[0]
    assert x.shape == (20, 4)
    assert torch.isfinite(x).all()
    gaps = block_sampling_gap(model, x, (1, 2, 4), generator(1))
    monkeypatch.undo()
    again = block_sampling_gap(model, x, (1, 2, 4), generator(1))
    assert gaps[1].mean == 0
    assert gaps[4].mean == pytest.approx(again[4].mean, abs=1e-12)


def test_what_is_lost_grows_with_the_number_at_once():
    """Four equal coins: with k at once, the first block costs k log 2 and every later one is certain."""
    model = Orderless(MaskedMLP(4, hidden=1, activation="relu"), Bernoulli()).double()
    for p in model.parameters():
        p.data.zero_()
    # the hidden unit is positive if a one has been seen; without any observed cell the logit is zero
    net_ = model.net
    net_.weight.data[:, 0] = 2000.0
    net_.weight.data[:, 1] = -1000.0
    net_.hidden_bias[0].data.fill_(1000.0)  # nothing seen: 1000; zeros seen: 0; ones seen: 2000 or more
    net_.output.data.fill_(1.0)
    net_.bias.data.fill_(-1000.0)
    x = torch.tensor([[1.0] * 4, [0.0] * 4]).repeat(10, 1).double()
    gaps = block_sampling_gap(model, x, (1, 2, 4), generator(1))
    assert gaps[1].mean == 0
    assert gaps[2].mean == pytest.approx(-math.log(2), abs=1e-6)
    assert gaps[4].mean == pytest.approx(-3 * math.log(2), abs=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: draw_blocks(m, 3, 0), "at least 1 variable"),
        (lambda m: draw_blocks(m, 0, 1), "number of rows must be at least 1"),
        (lambda m: block_log_prob(m, torch.full((1, 3), 2.0), Ordering.natural(3), 1), "exactly 0 or 1"),
    ],
)
def test_bad_requests(call, words):
    with pytest.raises(ValueError, match=words):
        call(Orderless(MaskedMLP(3, hidden=2), Bernoulli()))
