"""The samplers: same randomness, same rows, whichever kernel draws them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pynade.kernels import Uniforms, recurrence, sample

from .cases import Case

sizes = {
    "batch": st.integers(1, 70),
    "n_variables": st.integers(1, 30),
    "hidden": st.sampled_from([1, 7, 64, 100, 300]),
    "activation": st.sampled_from(["sigmoid", "relu", "tanh"]),
    "seed": st.integers(0, 2**30),
}


def randomness(case: Case, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(case.seed + 1)
    shape = (case.batch, case.n_variables)
    return torch.rand(shape, generator=g, dtype=dtype), torch.randn(shape, generator=g, dtype=dtype)


@given(case=st.builds(Case, **sizes), dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_bernoulli_draws_are_those_of_the_reference(case: Case, dtype: torch.dtype) -> None:
    _, *weights, order, _ = case.tensors(dtype)
    uniforms, _ = randomness(case, dtype)
    wanted = sample((*weights, order), uniforms, None, case.activation, kernel="reference")
    assert torch.equal(sample((*weights, order), uniforms, None, case.activation, kernel="numba"), wanted)


@given(case=st.builds(Case, n_params=st.sampled_from([3, 6, 15, 60]), **sizes))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_mixture_draws_are_those_of_the_reference(case: Case) -> None:
    _, *weights, order, _ = case.tensors()
    weights = [0.2 * w for w in weights]
    arguments = ((*weights, order), *randomness(case, torch.float64), case.activation)
    wanted = sample(*arguments, kernel="reference")
    torch.testing.assert_close(sample(*arguments, kernel="numba"), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", ["reference", "numba"])
def test_bernoulli_draws_follow_their_own_probabilities(kernel: str) -> None:
    """uniforms[:, d] < sigmoid(eta) where eta is what `recurrence` says of the drawn rows."""
    case = Case(200, 12, 9)
    _, *weights, order, _ = case.tensors()
    uniforms, _ = randomness(case, torch.float64)
    x = sample((*weights, order), uniforms, None, "sigmoid", kernel=kernel)
    eta = recurrence(x.unsqueeze(2), *weights, order, "sigmoid", kernel="reference")[..., 0]
    assert torch.equal(x[:, order], (uniforms < torch.sigmoid(eta[:, order])).double())


@pytest.mark.parametrize("kernel", ["reference", "numba"])
def test_mixture_moments(kernel: str) -> None:
    """One variable, known mixture: 0.25 N(-1, 0.5²) + 0.75 N(2, 1)."""
    n = 200_000
    g = torch.Generator().manual_seed(0)
    bias = torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[-1.0, 2.0]]), torch.tensor([[0.5, 1.0]]).log()
    weights = torch.zeros(1, 1, 4), torch.zeros(4), torch.zeros(1, 6, 4), torch.cat(bias, 1)
    uniforms, noise = torch.rand(n, 1, generator=g), torch.randn(n, 1, generator=g)
    x = sample((*weights, torch.tensor([0])), uniforms, noise, "relu", kernel=kernel)
    mean, square = 0.25 * -1 + 0.75 * 2, 0.25 * (1 + 0.25) + 0.75 * (4 + 1)
    assert abs(x.mean().item() - mean) < 5 * (square / n) ** 0.5
    assert abs(x.var().item() - (square - mean**2)) < 0.05


def test_no_rows() -> None:
    _, *weights, order, _ = Case().tensors()
    drawn = sample((*weights, order), torch.empty(0, 5).double(), None, "sigmoid", kernel="numba")
    assert drawn.shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_are_uniform_and_follow_their_seed(dtype: torch.dtype) -> None:
    def draw(seed: int) -> torch.Tensor:
        return Uniforms(300, 500, seed).tensor(dtype, torch.device("cpu"))

    u, again, other = draw(0), draw(0), draw(1)
    assert torch.equal(u, again)
    assert not torch.equal(u, other)
    assert u.min() > 0
    assert u.max() < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3
    for a, b in ((u, other), (u[:, 1:], u[:, :-1]), (u[1:], u[:-1])):  # seeds, columns and rows
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 4 / np.sqrt(a.numel())


def test_uniform_numbers_do_not_depend_on_the_number_of_threads() -> None:
    def draw() -> torch.Tensor:
        return Uniforms(500, 700, 3).tensor(torch.float32, torch.device("cpu"))

    before, wanted = torch.get_num_threads(), draw()
    torch.set_num_threads(1)
    try:
        assert torch.equal(draw(), wanted)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_draws_on_the_spot_are_those_of_the_same_numbers_given(dtype: torch.dtype, activation: str) -> None:
    _, *weights, order, _ = Case(1, 23, 40, seed=5).tensors(dtype)
    for rows in (1, 37, 300):
        numbers = Uniforms(rows, 23, seed=rows)
        given = numbers.tensor(dtype, torch.device("cpu"))
        wanted = sample((*weights, order), given, None, activation, kernel="reference")
        for kernel in ("numba", "reference"):
            assert torch.equal(sample((*weights, order), numbers, None, activation, kernel=kernel), wanted)


def test_draws_from_a_generator_repeat() -> None:
    first, second = (Uniforms.draw(3, 4, torch.Generator().manual_seed(1)) for _ in range(2))
    assert first == second
    assert first != Uniforms.draw(3, 4, torch.Generator().manual_seed(2))


def test_no_uniform_number_is_one() -> None:
    """These seeds begin with the largest there is."""
    for seed, dtype in ((1252319804544721972, torch.float32), (496489529909367957, torch.float64)):
        u = Uniforms(1, 1, seed).tensor(dtype, torch.device("cpu"))
        assert 1 - 2 * torch.finfo(dtype).eps < u < 1


@pytest.mark.parametrize("kernel", ["reference", "numba"])
def test_what_cannot_be_is_never_drawn(kernel: str) -> None:
    weights = [torch.zeros(shape) for shape in ((2, 1, 3), (3,), (2, 1, 3))]
    bias, order = torch.tensor([[-torch.inf], [torch.inf]]), torch.arange(2)
    uniforms = torch.tensor([[0.0, 0.0], [1e-38, 0.5], [0.9, 1 - 1e-7]])
    drawn = sample((*weights, bias, order), uniforms, None, "sigmoid", kernel=kernel)
    assert torch.equal(drawn, torch.tensor([[0.0, 1.0]] * 3))
