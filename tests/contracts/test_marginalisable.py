"""What a density with exact marginals promises, against enumeration of all states in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from pynade import queries

from .cases import MARGINALISABLE, all_states, generator

D = 5
every = pytest.mark.parametrize("build", MARGINALISABLE.values(), ids=MARGINALISABLE.keys())
bits = st.lists(st.booleans(), min_size=D, max_size=D)


def enumerated(model, row, observed):
    """log Σ p over the states that agree with the row where it is observed."""
    states = all_states(D)
    agrees = (states == row)[:, observed].all(-1)
    return model.log_prob(states)[agrees].logsumexp(0)


def random_rows(n, seed):
    """Rows, a pattern for each, and rubbish in the cells that are not observed."""
    g = generator(seed)
    x = torch.randint(2, (n, D), generator=g).double()
    observed = torch.rand(n, D, generator=g) < torch.rand(n, 1, generator=g)
    observed[0], observed[1] = False, True
    rubbish = torch.where(torch.rand(n, D, generator=g) < 0.5, math.nan, 7.0)
    return torch.where(observed, x, rubbish.double()), observed


@every
def test_marginals_are_sums_over_states(build):
    model = build(D)
    x, observed = random_rows(40, 1)
    wanted = torch.stack([enumerated(model, *row) for row in zip(x, observed, strict=True)])
    got = model.marginal_log_prob(x, observed)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    assert got[0].item() == pytest.approx(0, abs=1e-10)  # nothing observed
    torch.testing.assert_close(got[1], model.log_prob(x[1:2])[0], rtol=0, atol=1e-10)  # everything
    torch.testing.assert_close(queries.marginal_log_prob(model, x, observed), got, rtol=0, atol=0)


@every
@settings(max_examples=15, deadline=None)
@given(values=bits, role=st.lists(st.sampled_from("atr"), min_size=D, max_size=D).filter(lambda r: "t" in r))
def test_chain_rule(build, values, role):
    """log p(a, b) = log p(a) + log p(b | a), and the conditional is that of the enumerated states."""
    model, x = build(D), torch.tensor([values], dtype=torch.float64)
    a, b = ([i for i in range(D) if role[i] == letter] for letter in "at")
    is_a, both = (torch.tensor([r in letters for r in role]) for letters in ("a", "at"))
    conditional = queries.conditional_log_prob(model, x, b, a)
    joint, given_a = (queries.marginal_log_prob(model, x, flags) for flags in (both, is_a))
    torch.testing.assert_close(given_a + conditional, joint, rtol=0, atol=1e-10)
    wanted = enumerated(model, x[0], both) - enumerated(model, x[0], is_a)
    torch.testing.assert_close(conditional[0], wanted, rtol=0, atol=1e-10)


@every
def test_laws_and_best_guesses_are_those_of_the_enumerated_conditionals(build):
    model = build(D)
    x, observed = random_rows(25, 2)
    logits = torch.zeros_like(x)
    for r, i in (~observed).nonzero().tolist():
        also = observed[r].clone()
        also[i] = True
        row = x[r].clone()
        log_p = [enumerated(model, row.index_fill(0, torch.tensor([i]), v), also) for v in (0.0, 1.0)]
        logits[r, i] = log_p[1] - log_p[0]
    for i in range(D):
        rows = ~observed[:, i]
        family, eta = model.distribution(i, x[rows], observed[rows])
        assert type(family).__name__ == "Bernoulli"
        torch.testing.assert_close(eta, logits[rows, i : i + 1], rtol=0, atol=1e-9)
    guess = model.best_guess(x, observed)
    torch.testing.assert_close(guess, torch.where(observed, x, (logits > 0).double()), rtol=0, atol=0)
    missing = torch.where(observed, x, math.nan)
    torch.testing.assert_close(queries.impute(model, missing), guess, rtol=0, atol=0)
    chosen = {int(i): x[3, i].item() for i in observed[3].nonzero()}
    i = int((~observed[3]).nonzero()[0, 0])
    law = queries.conditional(model, i, chosen)
    assert law.mean() == pytest.approx(torch.sigmoid(logits[3, i]).item(), abs=1e-10)


@every
@pytest.mark.parametrize("given", [[], [1, 3], [0, 1, 2, 4]])
def test_completions_have_the_conditional_frequencies(build, given):
    model, n = build(D), 8_000
    observed = torch.zeros(2, D, dtype=torch.bool)
    observed[:, given] = True
    x = torch.where(observed, torch.tensor([[0.0, 1, 1, 0, 1], [1, 0, 0, 1, 0]]).double(), math.nan)
    draws = model.sample_given(x, observed, n, generator(3))
    assert draws.shape == (n, 2, D)
    assert torch.equal(draws[:, observed], x[observed].expand(n, -1))
    assert torch.equal(draws, model.sample_given(x, observed, n, generator(3)))
    states = all_states(D)
    codes = (draws @ (2.0 ** torch.arange(D - 1, -1, -1, dtype=torch.float64))).long()
    for r in range(2):
        agrees = (states == x[r])[:, observed[r]].all(-1)
        p = model.log_prob(states).exp()[agrees].detach()
        counts = torch.bincount(codes[:, r], minlength=2**D)[agrees].double()
        assert counts.sum() == n
        wanted = n * p / p.sum()
        keep = wanted > 5
        counts = [*counts[keep].tolist(), counts[~keep].sum().item()]
        wanted = [*wanted[keep].tolist(), wanted[~keep].sum().item()]
        if wanted[-1] < 5:
            counts = [*counts[:-2], counts[-2] + counts[-1]]
            wanted = [*wanted[:-2], wanted[-2] + wanted[-1]]
        if len(counts) > 1:
            assert chisquare(counts, wanted).pvalue > 1e-4


@every
def test_answers_about_a_row_do_not_depend_on_its_companions(build):
    model = build(D)
    x, observed = random_rows(12, 4)
    together = model.marginal_log_prob(x, observed)
    alone = torch.cat([model.marginal_log_prob(x[r : r + 1], observed[r : r + 1]) for r in range(12)])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-12)


@every
def test_values_that_are_read_must_be_binary(build):
    model, x = build(D), torch.full((1, D), 0.5, dtype=torch.float64)
    observed = torch.tensor([[False] * (D - 1) + [True]])
    with pytest.raises(ValueError, match=r"row 0, column 4 is 0\.5"):
        queries.marginal_log_prob(model, x, observed)
    assert torch.isfinite(queries.marginal_log_prob(model, x, ~observed & False)).all()
