"""Restricted Boltzmann machines: sums over all states, sampling, learning, and the NADE they suggest."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.classical import RBM, contrastive_divergence, nade_from_rbm
from pynade.classical import rbm as sums
from pynade.classical.rbm import TINY, HiddenStates, VisibleStates
from pynade.ordering import Ordering
from pynade.training.loop import Diverged
from tests.reference import binary
from tests.reference.loops import mean_field_pass


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def machine(visible, hidden, seed=0, scale=1.0):
    g = generator(seed)
    rbm = RBM(visible, hidden).double()
    for p in rbm.parameters():
        p.data = scale * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return rbm


def arrays(rbm):
    return [p.detach().numpy().copy() for p in (rbm.W, rbm.b, rbm.c)]


@pytest.mark.parametrize(("visible", "hidden"), [(1, 1), (5, 3), (3, 5), (6, 6)])
def test_log_partition_and_free_energy_equal_the_sum_over_both_layers(visible, hidden):
    rbm = machine(visible, hidden)
    assert rbm.log_partition() == pytest.approx(binary.rbm_log_partition(*arrays(rbm)), abs=1e-12)
    W, b, c = arrays(rbm)
    x = torch.randint(2, (4, visible), generator=generator(1)).double()
    for row, free in zip(x.numpy(), rbm.free_energy(x).tolist(), strict=True):
        hiddens = map(np.array, itertools.product((0, 1), repeat=hidden))
        terms = [h @ W @ row + b @ row + c @ h for h in hiddens]
        assert -free == pytest.approx(np.logaddexp.reduce(terms), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    hidden=st.integers(0, 12),
    visible=st.integers(0, 40),
    scale=st.sampled_from([0.01, 1.0, 10.0, 300.0]),
    seed=st.integers(0, 10**6),
)
def test_tables_equal_the_plain_sum_at_every_scale(hidden, visible, scale, seed):
    """Small weights go by products, in groups that cannot overflow; large ones by logarithms."""
    g = generator(seed)
    W = scale * torch.randn(hidden, visible, generator=g, dtype=torch.float64)
    b = scale * torch.randn(visible, generator=g, dtype=torch.float64)
    a = sums.bits(torch.arange(2**hidden), hidden) @ W + b
    wanted = torch.logaddexp(a, torch.zeros_like(a)).sum(-1)
    torch.testing.assert_close(sums.softplus_table(W, b), wanted, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("hidden", [0, 1, 9, 10, 13])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_the_sum_over_a_table_is_the_plain_one(hidden, scale):
    g = generator(5)
    W, b = scale * torch.randn(hidden, 6, generator=g).double(), torch.randn(6, generator=g).double()
    c = scale * torch.randn(hidden, generator=g, dtype=torch.float64)
    linear = sums.bits(torch.arange(2**hidden), hidden) @ c
    wanted = (sums.softplus_table(W, b) + linear).logsumexp(0)
    assert HiddenStates(W, b).log_sum(c[None]).item() == pytest.approx(wanted.item(), rel=1e-13)


def test_both_ways_agree_and_threads_do_not_matter():
    g = generator(3)
    W, b = torch.randn(13, 50, generator=g).double(), torch.randn(50, generator=g).double()
    low, high = sums.linear_table(W[3:].T), sums.linear_table(W[:3].T) + b[:, None]
    fast, plain = sums._by_products(high, low), sums._by_logs(high, low)
    torch.testing.assert_close(fast, plain, rtol=1e-13, atol=0)
    torch.set_num_threads(2)
    try:
        assert torch.equal(sums._by_products(high, low), fast)
    finally:
        torch.set_num_threads(1)


def test_the_largest_values_do_not_overflow():
    W, b = torch.full((20, 400), 8.0), torch.full((400,), -20.0)
    count = torch.arange(21, dtype=torch.float64)  # by the number of hidden units that are on
    each = 400 * torch.logaddexp(8 * count - 20, torch.zeros_like(count))
    ways = torch.tensor([math.comb(20, int(n)) for n in count]).double().log()
    rbm = RBM(400, 20).double()
    rbm.W.data, rbm.b.data = W.double(), b.double()
    assert rbm.log_partition() == pytest.approx((each + ways).logsumexp(0).item(), rel=1e-13)


def test_too_large_a_machine_names_the_alternative():
    rbm = RBM(30, 26)
    with pytest.raises(ValueError, match="has 26 units and may have 25; log_partition_ais"):
        rbm.normalised()


def test_ais_is_an_estimate_and_says_so():
    rbm = machine(12, 8, seed=2, scale=0.7)
    for base in (None, torch.zeros(12)):
        estimate = rbm.log_partition_ais(400, 300, generator(1), base=base)
        assert estimate.exact is False
        assert 0 < estimate.stderr < 0.1
        assert abs(estimate.log_z - rbm.log_partition()) < 5 * estimate.stderr
        assert "estimate, 400 chains" in str(estimate)
    with pytest.raises(ValueError, match="at least 2 chains"):
        rbm.log_partition_ais(1, 10)
    with pytest.raises(ValueError, match="one finite logit"):
        rbm.log_partition_ais(base=torch.zeros(3))


def test_ais_is_exact_where_there_is_nothing_to_anneal():
    rbm = machine(9, 4, seed=3)
    rbm.W.data.zero_()
    rbm.c.data.zero_()
    estimate = rbm.log_partition_ais(10, 5, generator())
    assert estimate.log_z == pytest.approx(rbm.log_partition(), abs=1e-12)
    assert estimate.stderr == pytest.approx(0, abs=1e-12)


def test_gibbs_sampling_comes_to_the_models_means():
    rbm = machine(5, 3, seed=4, scale=0.7)
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=5)), dtype=torch.float64)
    wanted = (rbm.normalised().log_prob(states).exp()[:, None] * states).sum(0)
    draws = rbm.gibbs(20_000, 30, generator(1))
    torch.testing.assert_close(draws.mean(0), wanted, rtol=0, atol=0.02)
    same = torch.ones(3, 5)
    assert torch.equal(rbm.gibbs(3, 0, start=same), same.double())
    with pytest.raises(ValueError, match="3 rows to start from were given for 4 chains"):
        rbm.gibbs(4, 1, start=same)


@pytest.mark.parametrize("scale", [0.3, 30.0])
def test_sums_over_hidden_and_over_visible_states_agree(scale):
    """Twelve hidden units have an outer and an inner part; large biases need the slow way of summing."""
    rbm, g = machine(7, 12, seed=7, scale=0.5), generator(8)
    biases = scale * torch.randn(6, 12, generator=g, dtype=torch.float64)
    biases[0] = -1000.0  # against the weights: products of exponentials underflow
    with torch.no_grad():
        hidden, visible = (kind(rbm.W.abs() * scale, rbm.b) for kind in (HiddenStates, VisibleStates))
        assert ((hidden.scaled[:, 0] < TINY).any()) == (scale > 1)
        torch.testing.assert_close(hidden.log_sum(biases), visible.log_sum(biases), rtol=1e-12, atol=1e-10)
        which = torch.tensor([0, 3, 6])
        logits = hidden.logits(biases, which)
        torch.testing.assert_close(logits, visible.logits(biases, which), rtol=1e-8, atol=1e-8)
        for states in (hidden, visible):
            draws = states.draw(biases, 4000, g)
            assert draws.shape == (4000, 6, 7)
            means = draws[..., which].mean(0)
            torch.testing.assert_close(means, torch.sigmoid(logits), rtol=0, atol=5 * 0.5 / math.sqrt(4000))


def test_a_normalised_rbm_is_a_frozen_copy():
    rbm = machine(4, 3)
    density = rbm.normalised()
    before = density.log_prob(torch.zeros(1, 4))
    rbm.W.data.add_(1.0)
    assert torch.equal(density.log_prob(torch.zeros(1, 4)), before)
    assert not any(p.requires_grad for p in density.parameters())
    assert rbm.W.requires_grad


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [3, 0, 5, 1, 4, 2]])
def test_the_nade_of_an_rbm_is_one_mean_field_pass(order):
    rbm = machine(6, 4, seed=5)
    model = nade_from_rbm(rbm, Ordering(order))
    x = torch.randint(2, (8, 6), generator=generator(2)).double()
    wanted = np.stack([mean_field_pass(row, order, *arrays(rbm)) for row in x.numpy()])
    np.testing.assert_allclose(model.conditional_means(x).detach().numpy(), wanted, atol=1e-13)


# --- learning


@pytest.mark.parametrize(("k", "persistent"), [(1, False), (3, False), (2, True)])
def test_an_update_equals_the_dumb_loop(k, persistent):
    rbm, x = machine(4, 3, seed=6), torch.randint(2, (5, 4), generator=generator(3)).double()
    W, b, c = arrays(rbm)
    options = {"k": k, "persistent": persistent, "epochs": 1, "batch_size": 5, "generator": generator(9)}
    contrastive_divergence([rbm], x, learning_rates=[0.3], **options)
    g = generator(9)
    chains = x[torch.randint(5, (5,), generator=g)].numpy() if persistent else None
    rows = x[torch.randperm(5, generator=g)].numpy()
    shapes = ((5, 3), (5, 4))
    uniforms = [[torch.rand(s, generator=g, dtype=torch.float64).numpy() for s in shapes] for _ in range(k)]
    wanted = binary.contrastive_step(rows, W, b, c, 0.3, k, uniforms, chains)
    for got, want in zip(arrays(rbm), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-13)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_member_of_a_population_trains_as_if_alone(persistent):
    x = (torch.rand(50, 6, generator=generator(4)) < 0.3).double()
    rates = [0.5, 0.05, 0.005]
    options = {"k": 2, "persistent": persistent, "epochs": 4, "batch_size": 20, "evaluate_every": 3}
    together = [machine(6, 3, seed=s) for s in range(3)]
    trained = contrastive_divergence(together, x, x, learning_rates=rates, generator=generator(5), **options)
    for m, (rate, (history, log_z, stderr)) in enumerate(zip(rates, trained, strict=True)):
        assert [line["valid"] is not None for line in history.epochs] == [False, False, True, True]
        alone = machine(6, 3, seed=m)
        (own,) = contrastive_divergence(
            [alone], x, x, learning_rates=[rate], generator=generator(5), **options
        )
        assert own.history.best_epoch == history.best_epoch
        for one, other in zip(alone.parameters(), together[m].parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        assert (log_z, stderr) == (together[m].log_partition(), 0.0)


def test_an_epoch_may_be_so_many_updates_and_as_many_as_a_pass_needs_are_a_pass():
    x = (torch.rand(60, 6, generator=generator(4)) < 0.3).double()
    options = {"learning_rates": [0.1], "batch_size": 20, "epochs": 2}
    passes, updates, more = (machine(6, 3, seed=1) for _ in range(3))
    contrastive_divergence([passes], x, generator=generator(5), **options)
    contrastive_divergence([updates], x, generator=generator(5), updates_per_epoch=3, **options)
    contrastive_divergence([more], x, generator=generator(5), updates_per_epoch=4, **options)
    assert torch.equal(passes.W, updates.W)
    assert not torch.equal(passes.W, more.W)


@pytest.mark.parametrize("persistent", [False, True])
def test_learning_finds_what_there_is(persistent):
    x = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]).repeat(100, 1)
    rbm, seen = RBM(4, 4, generator=generator(0)), []
    ((history, log_z, stderr),) = contrastive_divergence(
        [rbm],
        x,
        x,
        learning_rates=[0.1],
        k=3,
        persistent=persistent,
        epochs=60,
        batch_size=10,
        generator=generator(1),
        callbacks=[seen.append],
    )
    assert history.best_valid > -1.2  # the entropy is 0.69; independent coins have 2.77
    assert history.best_valid == max(line["valid"] for line in history.epochs if line["valid"] is not None)
    exact = rbm.double().normalised().log_prob(x).mean().item()
    assert exact == pytest.approx(history.best_valid, abs=1e-5)
    assert (log_z, stderr) == (pytest.approx(rbm.log_partition(), abs=1e-5), 0.0)
    done = [now for now in seen if now.epoch_done]
    assert [now.epoch for now in done] == list(range(1, 61))
    assert [now.valid is not None for now in done[8:11]] == [False, True, False]
    for line in history.epochs:
        assert (line["train"] is None) == (line["valid"] is None)
        assert line["train"] == line["valid"]  # the same rows


def test_without_validation_the_last_parameters_are_scored():
    x = (torch.rand(60, 6, generator=generator(4)) < 0.3).double()
    rbm = machine(6, 3, seed=1)
    options = {"learning_rates": [0.1], "epochs": 3, "generator": generator(5)}
    ((history, log_z, stderr),) = contrastive_divergence([rbm], x, **options)
    assert (history.best_epoch, history.best_valid, stderr) == (3, None, 0.0)
    assert [line["train"] is None for line in history.epochs] == [True, True, False]
    score = rbm.normalised().log_prob(x).mean().item()
    assert history.train_log_likelihood == pytest.approx(score, abs=1e-12)
    assert log_z == rbm.log_partition()


def test_large_machines_are_scored_once_with_an_estimate():
    x = torch.randint(2, (20, 30), generator=generator(0))
    options = {"learning_rates": [0.1], "epochs": 5, "evaluate_every": 1, "ais_chains": 20, "ais_steps": 40}
    rbm = RBM(30, 28)
    ((history, log_z, stderr),) = contrastive_divergence([rbm], x, x, generator=generator(1), **options)
    assert [line["valid"] is not None for line in history.epochs] == [False] * 4 + [True]
    assert history.epochs[-1]["train"] == history.best_valid
    estimate = rbm.log_partition_ais(20, 40, generator(1), base=_base_rates(x))
    assert (log_z, stderr) == (estimate.log_z, estimate.stderr)
    ((stopped, log_z, stderr),) = contrastive_divergence(
        [rbm], x, x, generator=generator(1), callbacks=[lambda now: now.epoch == 2], **options
    )
    assert (stopped.stopped, stopped.best_epoch) == ("a callback stopped it", 2)
    assert stopped.best_valid is None
    assert stderr > 0
    energies = -rbm.free_energy(x).mean().item()
    assert stopped.train_log_likelihood == pytest.approx(energies - log_z, abs=1e-9)


def _base_rates(x):
    return torch.logit((x.sum(0) + 1).double() / (len(x) + 2))


def test_one_machine_may_diverge_while_others_go_on():
    x = (torch.rand(60, 6, generator=generator(4)) < 0.3).double()
    rbms = [machine(6, 3, seed=1), RBM(6, 3, scale=math.inf).double()]
    options = {"learning_rates": [0.1, 0.1], "epochs": 3, "evaluate_every": 1}
    trained = contrastive_divergence(rbms, x, x, generator=generator(5), **options)
    assert [t.history.stopped for t in trained] == ["all epochs done", "diverged"]
    alone = machine(6, 3, seed=1)
    options["learning_rates"] = [0.1]
    contrastive_divergence([alone], x, x, generator=generator(5), **options)
    torch.testing.assert_close(alone.W, rbms[0].W, rtol=0, atol=1e-12)


def test_impossible_options_are_refused():
    x = torch.zeros(4, 3)
    for options, words in [
        ({"k": 0}, "k must be at least 1"),
        ({"updates_per_epoch": 0}, "updates_per_epoch must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"learning_rates": [0.0]}, "positive learning rates"),
        ({"schedule": "magic"}, "constant, linear, not 'magic'"),
    ]:
        with pytest.raises(ValueError, match=words):
            contrastive_divergence([RBM(3, 2)], x, **{"learning_rates": [0.1]} | options)
    with pytest.raises(ValueError, match="3 columns, the model has 5"):
        contrastive_divergence([RBM(5, 2)], x, learning_rates=[0.1])
    with pytest.raises(ValueError, match="same shape"):
        contrastive_divergence([RBM(3, 2), RBM(3, 4)], x, learning_rates=[0.1, 0.1])
    with pytest.raises(ValueError, match="n_hidden must be at least 1"):
        RBM(3, 0)
    with pytest.raises(Diverged, match="epoch 1; the initial ones were kept"):
        contrastive_divergence([RBM(3, 2, scale=math.inf)], torch.eye(3), learning_rates=[0.1])
