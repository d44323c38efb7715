"""The distribution of one variable: numbers give floats, arrays give arrays."""

import numpy as np
import pandas as pd
import pytest
import torch

from pynade import queries
from pynade.families import Bernoulli, Gaussian, MixtureOfGaussians, standardised
from pynade.models import Independent, Mixture, Orderless
from pynade.nets import MaskedMLP
from pynade.queries import Conditional
from tests.contracts.cases import generator, shaken


def gaussian():
    return Conditional(Gaussian(), torch.tensor([[1.0, 0.5]], dtype=torch.float64), torch.tensor([0]))


def mapped():
    family = standardised(MixtureOfGaussians(2), torch.randn(50, 3, generator=generator()).double() * 7 + 20)
    model = Orderless(shaken(MaskedMLP(3, 6, hidden=4), scale=0.3), family)
    return queries.conditional(model, 1, {0: 22.0})


@pytest.mark.parametrize("make", [gaussian, mapped])
@pytest.mark.parametrize("name", ["quantile", "cdf", "log_prob", "pmf", "pdf"])
def test_arrays_are_taken_value_by_value(make, name):
    function = getattr(make(), name)
    values = [0.05, 0.5, 0.95] if name == "quantile" else [-1.0, 0.0, 21.5]
    each = [function(v) for v in values]
    assert all(type(v) is float for v in each)
    for given in (
        values,
        tuple(values),
        np.array(values),
        torch.tensor(values, dtype=torch.float64),
        pd.Series(values),
    ):
        got = function(given)
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, each, rtol=1e-12)
    square = function(np.array([values, values]))
    assert square.shape == (2, 3)
    assert function([]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda c: c.quantile([0.5, 1.5]), ValueError, r"a quantile needs q between 0 and 1, not 1\.5"),
        (lambda c: c.quantile(float("nan")), ValueError, "a quantile needs q between 0 and 1, not nan"),
        (lambda c: c.quantile("half"), TypeError, "a probability must be a number .* not 'half'"),
        (lambda c: c.cdf({"a": 1}), TypeError, "a value must be a number"),
        (lambda c: c.log_prob([[1, 2], [3]]), TypeError, "a value must be a number"),
        (lambda c: c.log_prob([0.0, np.inf]), ValueError, "needs finite numbers"),
    ],
)
def test_errors_are_one_sentence(call, kind, words):
    with pytest.raises(kind, match=words):
        call(gaussian())


def test_a_discrete_variable():
    coin = Conditional(Bernoulli(), torch.tensor([[0.0]]), torch.tensor([0]))
    assert coin.pmf([0, 1]).tolist() == pytest.approx([0.5, 0.5])
    assert coin.quantile([0.2, 0.7]).tolist() == [0, 1]
    with pytest.raises(ValueError, match="exactly 0 or 1"):
        coin.pmf([0, 0.5])


def test_models_that_cannot_answer_name_those_that_can():
    flat = Independent(Bernoulli(), 2)
    x = torch.zeros(1, 2)
    for model in (flat, Mixture([flat, flat])):
        with pytest.raises(TypeError, match=r"cannot be queried .* an orderless model \(DeepNADE\)"):
            queries.marginal_log_prob(model, x, x == 0)
        with pytest.raises(TypeError, match="cannot be queried"):
            queries.conditional(model, 0, {1: 0.0})
