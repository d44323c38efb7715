"""What every density promises, checked in float64 on small D."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from pynade.models import Ensemble
from pynade.ordering import Ordering
from pynade.store import load_density, save_density

from .cases import DENSITIES, all_states, generator

every_density = pytest.mark.parametrize("build", DENSITIES.values(), ids=DENSITIES.keys())


@every_density
@pytest.mark.parametrize("D", [1, 2, 9])
def test_probabilities_of_all_states_sum_to_one(build, D):
    assert abs(build(D).log_prob(all_states(D)).exp().sum().item() - 1) < 1e-10


@every_density
def test_loss_is_minus_log_p_on_average(build):
    """Also catches a loss that takes probabilities for logits."""
    model, x = build(5), all_states(5)
    if isinstance(model, Ensemble) and model.fresh:  # every row has an ordering of its own, any of them
        model, x = build(3), all_states(3)
        each = -model.under(Ordering(list(itertools.permutations(range(3))))).member_log_probs(x)
        draws = torch.stack([model.loss(x, generator(s)) for s in range(300)])
        gaps = (draws.unsqueeze(-1) - each).abs()  # (draws, rows, orderings)
        assert (gaps.amin(-1) < 1e-12).all()
        counts = torch.bincount(gaps.argmin(-1).flatten(), minlength=6)
        assert chisquare(counts.numpy()).pvalue > 1e-4
        return
    draws = torch.stack(
        [model.loss(x, generator(s)) for s in range(300 if isinstance(model, Ensemble) else 1)]
    )
    if isinstance(model, Ensemble):  # one member at a time: the mean over members, never above the ensemble
        members = -model.member_log_probs(x)
        gaps = (draws.unsqueeze(1) - members.T).abs().amax(-1)  # (draws, members)
        assert (gaps.amin(1) < 1e-12).all()
        assert set(gaps.argmin(1).tolist()) == {0, 1, 2}
        assert (members.mean(-1) >= -model.log_prob(x) - 1e-12).all()
    else:
        torch.testing.assert_close(draws[0], -model.log_prob(x), rtol=0, atol=0)


@every_density
def test_sampled_frequencies_match_enumerated_probabilities(build):
    model, D, n = build(4), 4, 40_000
    states = all_states(D)
    samples = model.sample(n, generator(7))
    assert samples.shape == (n, D)
    assert samples.dtype == torch.float64
    codes = (samples @ (2.0 ** torch.arange(D - 1, -1, -1, dtype=torch.float64))).long()
    counts = torch.bincount(codes, minlength=2**D).numpy()
    expected = n * model.log_prob(states).exp().detach().numpy()
    keep = expected > 5
    observed = np.append(counts[keep], counts[~keep].sum())
    wanted = np.append(expected[keep], expected[~keep].sum())
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


@every_density
def test_same_seed_same_samples_and_other_seed_other_samples(build):
    model = build(6)
    first = model.sample(50, generator(1))
    assert torch.equal(first, model.sample(50, generator(1)))
    assert not torch.equal(first, model.sample(50, generator(2)))


@every_density
def test_a_row_scores_the_same_in_any_company(build):
    model, x = build(7), all_states(7)
    together = model.log_prob(x)
    shuffle = torch.randperm(len(x), generator=generator(3))
    torch.testing.assert_close(model.log_prob(x[shuffle]), together[shuffle], rtol=0, atol=1e-12)
    alone = torch.cat([model.log_prob(x[k : k + 1]) for k in range(0, len(x), 9)])
    torch.testing.assert_close(alone, together[::9], rtol=0, atol=1e-12)


@every_density
def test_same_call_twice_gives_the_same_value_in_train_and_eval_mode(build):
    model, x = build(6), all_states(6)
    first = model.train().log_prob(x)
    assert torch.equal(first, model.log_prob(x))
    assert torch.equal(first, model.eval().log_prob(x))


@every_density
def test_save_and_load_gives_the_same_density(build, tmp_path):
    model, x = build(6), all_states(6)
    save_density(model, tmp_path / "m.safetensors", extra={"note": "kept"})
    again, header = load_density(tmp_path / "m.safetensors")
    assert header["note"] == "kept"
    assert type(again) is type(model)
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert torch.equal(again.sample(5, generator()), model.sample(5, generator()))


@every_density
def test_float32_agrees_with_float64(build):
    model, x = build(8), all_states(8)
    single = copy.deepcopy(model).float()
    assert single.log_prob(x).dtype == torch.float64  # summed in double whatever the parameters are
    torch.testing.assert_close(single.log_prob(x), model.log_prob(x), rtol=1e-5, atol=1e-4)


@every_density
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 4), "5 columns"),
        (torch.zeros(5), "5 columns"),
        (torch.full((2, 5), 0.5), "exactly 0 or 1"),
        (torch.full((2, 5), math.nan), "exactly 0 or 1"),
        (torch.tensor([[0, 1, 0, 1, math.inf]]), "row 0, column 4"),
    ],
)
def test_bad_rows_are_refused_in_one_sentence(build, x, words):
    with pytest.raises(ValueError, match=words):
        build(5).log_prob(x)


@pytest.mark.parametrize("name", ["ensemble-nade", "ensemble-made", "ensemble-mlp"])
def test_ensemble_is_the_mean_of_probabilities(name):
    """And never the probability of mean logits; so it is at least the mean of the members' logs."""
    model, x = DENSITIES[name](6), all_states(6)
    members = torch.stack([model.member(k).log_prob(x) for k in range(3)])
    torch.testing.assert_close(model.log_prob(x).exp(), members.exp().mean(0), rtol=1e-12, atol=0)
    assert (model.log_prob(x) >= members.mean(0) - 1e-12).all()
    assert (model.log_prob(x) > members.mean(0) + 1e-3).any()


@pytest.mark.parametrize("name", [n for n in DENSITIES if n.startswith(("nade", "made", "fvsbn", "mlp"))])
def test_chain_rule_along_the_ordering(name):
    """log p(a, b) = log p(a) + log p(b | a): a prefix's marginal is the product of its own conditionals."""
    D, prefix = 6, 3
    model, x = DENSITIES[name](D), all_states(D)
    first = model.ordering.order[:prefix]
    conditionals = model.family.log_prob(x, model.eta(x))
    from_conditionals = conditionals[:, first].sum(-1)
    p = model.log_prob(x).exp()
    for row in range(0, len(x), 7):
        same = (x[:, first] == x[row, first]).all(-1)
        assert abs(p[same].sum().log().item() - from_conditionals[row].item()) < 1e-10


def test_no_hidden_clamp():
    """A sure model may say e^-200; nothing is floored on the way."""
    model = DENSITIES["independent"](2)
    model.eta.data.fill_(-100.0)
    assert model.log_prob(torch.ones(1, 2)).item() == pytest.approx(-200.0, abs=1e-10)
    assert model.log_prob(torch.zeros(1, 2)).item() == pytest.approx(-2 * math.exp(-100.0), rel=1e-10)
