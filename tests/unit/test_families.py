import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.families import Bernoulli

logits = st.lists(st.floats(-80, 80), min_size=1, max_size=20).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)


@settings(deadline=None)  # the first call imports torch.distributions
@given(logits)
def test_bernoulli_against_torch_distributions(eta):
    family, reference = Bernoulli(), torch.distributions.Bernoulli(logits=eta)
    for value in (0.0, 1.0):
        x = torch.full_like(eta, value)
        torch.testing.assert_close(
            family.log_prob(x, eta[:, None]), reference.log_prob(x), rtol=1e-9, atol=1e-12
        )
    torch.testing.assert_close(family.mean(eta[:, None]), reference.mean)


@given(logits)
def test_bernoulli_normalised_cdf_and_quantile(eta):
    family, eta = Bernoulli(), eta[:, None]
    zero, one = torch.zeros(len(eta), dtype=eta.dtype), torch.ones(len(eta), dtype=eta.dtype)
    total = family.log_prob(zero, eta).exp() + family.log_prob(one, eta).exp()
    torch.testing.assert_close(total, one, rtol=0, atol=1e-15)
    torch.testing.assert_close(family.cdf(zero, eta), family.log_prob(zero, eta).exp())
    assert torch.equal(family.cdf(one, eta), one)
    assert torch.equal(family.cdf(-one, eta), zero)
    for q in (0.01, 0.5, 0.99):
        quantile = family.quantile(q * one, eta)
        assert (family.cdf(quantile, eta) >= q).all()
        assert ((quantile == 0) | (family.cdf(quantile - 1, eta) < q)).all()


def test_bernoulli_keeps_every_digit_of_large_logits():
    family, eta = Bernoulli(), torch.tensor([[30.0]])  # float32
    assert family.log_prob(torch.ones(1), eta).item() == pytest.approx(-9.357622968840175e-14, rel=1e-6)


def test_bernoulli_marginal_eta():
    x = torch.tensor([[1, 0, 1], [1, 0, 0]])
    p = torch.sigmoid(Bernoulli().eta_from_marginal(x))[:, 0]
    torch.testing.assert_close(p, torch.tensor([0.75, 0.25, 0.5], dtype=torch.float64))


def test_bernoulli_sampling_follows_the_generator():
    family, eta = Bernoulli(), torch.zeros(10_000, 1)
    draws = family.sample(eta, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draws, family.sample(eta, generator=torch.Generator().manual_seed(1)))
    assert abs(draws.mean().item() - 0.5) < 0.02
