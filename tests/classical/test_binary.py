"""Learning of the binary baselines: EM, Chow–Liu trees, contrastive divergence."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.classical import (
    BernoulliMixture,
    ChowLiuTree,
    TreeMixture,
    chow_liu,
    chow_liu_chosen,
    em_bernoulli,
    em_trees,
)
from pynade.classical.chow_liu import mutual_information, pair_counts, smoothed_tree, spanning_tree
from pynade.store import load_density, save_density
from tests.reference import binary


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def column(history, name):
    """One entry of every line of a history."""
    return [line[name] for line in history.epochs]


def clustered(n, d, seed, missing=0.0):
    """Rows around three prototypes, some cells missing."""
    rng = np.random.default_rng(seed)
    prototypes = rng.random((3, d)) < 0.5
    x = (prototypes[rng.integers(3, size=n)] ^ (rng.random((n, d)) < 0.15)).astype(float)
    x[rng.random((n, d)) < missing] = np.nan
    return x


# --- mixtures of Bernoullis


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 5),
    missing=st.sampled_from([0.0, 0.3]),
    smoothing=st.sampled_from([1e-20, 0.01, 1.0]),
)
def test_em_never_decreases_its_objective(seed, k, missing, smoothing):
    x = clustered(60, 8, seed, missing)
    x[:, 6], x[:, 7] = 0, 1  # what never varies
    model, history = em_bernoulli(
        x,
        k,
        epochs=26,
        tol=0,
        smoothing=smoothing,
        empty_below=0,
        generator=generator(seed),
        dtype=torch.float64,
    )
    objective = column(history, "objective")
    assert (np.diff(objective) > -1e-12 * np.abs(objective[1:]) - 1e-13).all()
    assert objective[-1] > objective[0] or k == 1
    assert len(history.epochs) == 26 or history.stopped == "converged"
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_em_equals_the_dumb_loop(missing):
    x, k, smoothing = clustered(40, 5, 3, missing), 3, 0.02
    states = []
    for updates in range(4):
        model, history = em_bernoulli(
            x,
            k,
            epochs=updates + 1,
            tol=0,
            smoothing=smoothing,
            generator=generator(1),
            dtype=torch.float64,
        )
        states.append((model.log_weights.softmax(0), torch.sigmoid(model.logits), column(history, "train")))
    for before, after in itertools.pairwise(states):
        log_p, weights, theta = binary.bernoulli_mixture_em_step(
            x, before[0].detach().numpy(), before[1].detach().numpy(), smoothing
        )
        assert before[2][-1] == pytest.approx(log_p / len(x), abs=1e-12)
        np.testing.assert_allclose(after[0].detach().numpy(), weights, atol=1e-12)
        np.testing.assert_allclose(after[1].detach().numpy(), theta, atol=1e-12)


def test_float32_in_chunks_is_float64_nearly(monkeypatch):
    monkeypatch.setattr(sys.modules["pynade.classical.binary"], "CHUNK", 7 * 30)  # chunks of seven rows
    x = clustered(200, 30, 5, 0.1)
    runs = [
        column(em_bernoulli(x, 4, epochs=9, tol=0, generator=generator(2), dtype=d)[1], "train")
        for d in (torch.float32, torch.float64)
    ]
    np.testing.assert_allclose(*runs, atol=2e-4)


def test_empty_components_start_anew_and_say_so():
    x = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]]).repeat(30, 1)
    model, history = em_bernoulli(
        x, 6, epochs=61, tol=0, smoothing=1e-20, empty_below=11, generator=generator(0)
    )
    assert any("were empty and start anew" in message for message in history.messages)
    named = sum(message.count(",") // 2 + 1 for message in history.messages)
    assert named <= 6  # each of them once
    assert torch.isfinite(model.log_prob(x)).all()
    assert history.epochs[-1]["train"] == pytest.approx(-math.log(2), abs=1e-4)


def test_a_component_placed_again_is_no_convergence():
    """The objective may fall, or rise by less than `tol`, in the iteration that places a component again."""
    x = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]]).repeat(30, 1)
    options = {"empty_below": 11, "smoothing": 1e-3, "tol": 10.0}
    _, history = em_bernoulli(x, 6, generator=generator(0), **options)
    first = int(history.messages[0].split()[1].rstrip(":"))
    assert first == 1
    assert (history.stopped, len(history.epochs)) == ("converged", first + 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: em_bernoulli(np.full((3, 2), 0.5), 2), "training rows must hold values .* 0 or 1"),
        (lambda: em_bernoulli(np.zeros((0, 2)), 2), r"at least one row, not \(0, 2\)"),
        (lambda: em_bernoulli(np.eye(3), 0), "n_components must be at least 1"),
        (lambda: em_bernoulli(np.eye(3), 2, smoothing=0), "smoothing must be above 0"),
        (lambda: em_bernoulli(np.eye(3), 2, patience=0), "patience must be at least 1, not 0"),
        (lambda: em_trees(np.eye(3), 2, epochs=0), "epochs must be at least 1, not 0"),
        (lambda: em_bernoulli(np.eye(3), 2, np.eye(4)), "validation rows have 4 columns, the model has 3"),
        (lambda: chow_liu_chosen(np.eye(3), np.eye(4)), "validation rows have 4 columns"),
        (lambda: chow_liu(np.array([[np.nan, 1.0]])), "missing values"),
        (lambda: chow_liu(np.eye(3), alpha=0), "alpha must be above 0"),
        (lambda: chow_liu(np.eye(3), root=3), "from 0 to 2, not 3"),
        (lambda: chow_liu_chosen(np.eye(3), np.eye(3), alphas=[]), "no alpha"),
        (lambda: em_trees(np.eye(3), 2, alpha=-1), "alpha must be above 0"),
        (lambda: BernoulliMixture(3, 0), "n_components"),
        (lambda: ChowLiuTree(3, [1, 2, 0]), "circle"),
        (lambda: ChowLiuTree(3, [-1, 0]), "as many parents"),
        (lambda: ChowLiuTree(2, [-1, 2]), "from -1"),
        (lambda: ChowLiuTree(2, torch.tensor([-1.0, 0.0])), "integers"),
        (lambda: TreeMixture([]), "at least one component"),
        (lambda: TreeMixture([ChowLiuTree(2), ChowLiuTree(3)]), r"\[2, 3\]"),
        (lambda: TreeMixture([ChowLiuTree(2)], [0.0]), "positive finite weight"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# --- trees


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([1e-20, 0.1, 1.0]))
def test_tree_learning_equals_the_dumb_loops(seed, alpha):
    x = clustered(30, 5, seed)
    x[:, 4] = 1  # a constant column stays in the tree
    tree = chow_liu(x, alpha, dtype=torch.float64)
    information = mutual_information(pair_counts(torch.as_tensor(x))).numpy()
    for i, j in itertools.combinations(range(5), 2):
        assert information[i, j] == pytest.approx(binary.mutual_information(x, i, j), abs=1e-12)
    assert (tree.parent < 0).sum() == 1
    best = max(  # no other tree has more: all 5^3 of them, as parents seen from variable 0
        sum(information[d, p] for d, p in enumerate(parents, start=1))
        for parents in itertools.product(range(5), repeat=4)
        if _is_tree(parents)
    )
    assert sum(information[e] for e in tree.edges()) == pytest.approx(best, abs=1e-12)
    theta = torch.sigmoid(tree.logits.detach()).numpy()
    for d, parent in enumerate(tree.parent.tolist()):
        for z in (0, 1):
            wanted = binary.lidstone(x, d, None if parent < 0 else parent, z, alpha)
            assert theta[d, z] == pytest.approx(wanted, abs=1e-14)
    if alpha > 1e-3:
        for row in x[:5]:
            wanted = binary.tree_log_prob(row, tree.parent.tolist(), tree.logits.detach().numpy())
            assert tree.log_prob(torch.as_tensor(row)[None]).item() == pytest.approx(wanted, abs=1e-10)


def _is_tree(parents):
    for d in range(1, 5):
        seen = set()
        while d != 0:
            if d in seen:
                return False
            seen.add(d)
            d = parents[d - 1]
    return True


def test_hardly_any_smoothing_is_finite_everywhere():
    """What never happened has probability 1e-20 or so, and every question still has a number."""
    x = torch.tensor([[0, 0, 0, 1], [1, 1, 0, 1]]).repeat(10, 1)
    for dtype in (torch.float32, torch.float64):
        tree = chow_liu(x, 1e-20, dtype=dtype)
        states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64)
        log_p = tree.log_prob(states)
        assert torch.isfinite(log_p).all()
        assert log_p.min() < -90
        observed = torch.tensor([False, True, True, False]).expand(16, -1)
        assert torch.isfinite(tree.marginal_log_prob(states, observed)).all()
        _, eta = tree.distribution(0, states, observed)
        assert torch.isfinite(eta).all()
        assert not torch.isnan(tree.best_guess(states, observed)).any()
        draws = tree.sample_given(states, observed, 3, generator())
        assert torch.equal(draws[..., 1:3].double(), states[:, 1:3].expand(3, -1, -1))


def test_smoothing_is_chosen_on_the_validation_rows():
    x, v = clustered(25, 6, 1), clustered(400, 6, 1)[25:]
    tree, scores = chow_liu_chosen(x, v, [1e-20, 0.5, 50.0], dtype=torch.float64)
    for alpha, score in scores.items():
        other = chow_liu(x, alpha, dtype=torch.float64)
        assert other.log_prob(torch.as_tensor(v)).mean().item() == pytest.approx(score, abs=1e-12)
    best = max(scores, key=scores.__getitem__)
    assert torch.equal(tree.logits, chow_liu(x, best, dtype=torch.float64).logits)


def test_a_saved_tree_with_a_circle_is_refused(tmp_path):
    tree, path = ChowLiuTree(3, [-1, 0, 1]), tmp_path / "m.safetensors"
    tree.parent[0] = 2
    save_density(tree, path)
    with pytest.raises(ValueError, match="circle"):
        load_density(path)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 3), alpha=st.sampled_from([1e-3, 0.5]))
def test_em_of_trees_never_decreases_its_objective(seed, k, alpha):
    x = clustered(80, 6, seed)
    model, history = em_trees(
        x,
        k,
        epochs=13,
        tol=0,
        alpha=alpha,
        empty_below=0.0,
        generator=generator(seed),
        dtype=torch.float64,
    )
    last = history.epochs[-1]
    assert (np.diff(column(history, "objective")) > -1e-11).all()
    rows = torch.as_tensor(x)
    assert last["train"] == pytest.approx(model.log_prob(rows).mean().item(), abs=1e-12)
    imaginary = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)), dtype=torch.float64)
    prior = model.log_weights.log_softmax(0).sum() * alpha
    for tree in model.trees:  # 4α rows spread over all states
        prior = prior + 4 * alpha * tree.log_prob(imaginary).mean()
    assert last["objective"] == pytest.approx(last["train"] + prior.item() / 80, abs=1e-10)


def test_empty_trees_start_anew_and_say_so():
    x = clustered(60, 6, 1)
    model, history = em_trees(x, 4, epochs=21, tol=0, empty_below=14, generator=generator(0))
    assert any("were empty and start anew from 15 rows each" in message for message in history.messages)
    assert sum(message.count(",") + 1 for message in history.messages) <= 4  # each of them once
    assert torch.isfinite(model.log_prob(torch.as_tensor(x))).all()
    quiet = em_trees(x, 4, epochs=21, tol=0, empty_below=0.0, generator=generator(0))[1]
    assert not quiet.messages
    first = int(history.messages[0].split()[1].rstrip(":"))
    train, other = column(history, "train"), column(quiet, "train")
    assert train[:first] == other[:first]
    assert train[first] != other[first]


def test_trees_of_constant_columns_are_finite_in_float32():
    x = clustered(300, 6, 4)
    x[:, 0], x[:, 5] = 1, 0
    model, history = em_trees(x, 3, epochs=6, alpha=1e-20, generator=generator(1))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert np.isfinite(column(history, "objective")).all()


def test_one_tree_is_the_tree_of_the_smoothed_counts():
    x = clustered(50, 6, 2)
    model, _ = em_trees(x, 1, epochs=3, alpha=0.3, dtype=torch.float64)
    counts = pair_counts(torch.as_tensor(x))
    parent = spanning_tree(mutual_information(counts, 0.3))
    wanted = smoothed_tree(counts, parent, 0.3, 0.6, torch.float64)
    torch.testing.assert_close(model.trees[0].logits, wanted.logits, rtol=0, atol=1e-10)
    assert torch.equal(model.trees[0].parent, wanted.parent)


def test_trees_find_clusters_with_different_structures():
    """In one cluster 1 copies 0, in the other it opposes it: one tree must say "independent"."""
    g = generator(5)
    x = torch.randint(2, (400, 4), generator=g)
    x[:, 3] = x[:, 2]
    x[:, 1] = x[:, 0] ^ x[:, 2]
    one = chow_liu(x, 0.01).log_prob(x).mean()
    many, history = em_trees(x, 2, x, alpha=0.01, generator=g)
    assert one < -2.0
    assert many.log_prob(x).mean() > -1.45  # the entropy is log 4
    assert history.best_valid == max(column(history, "valid"))
