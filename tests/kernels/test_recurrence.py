"""The numba and the dense kernel against the reference: values, gradients, populations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.kernels import recurrence

from .cases import EDGES, Case, compare, evaluate

cases = st.builds(
    Case,
    batch=st.integers(1, 40),
    n_variables=st.integers(1, 30),
    hidden=st.integers(1, 140),
    n_params=st.integers(1, 6),
    activation=st.sampled_from(["sigmoid", "tanh"]),
    binary=st.booleans(),
    seed=st.integers(0, 2**30),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
LARGE = [
    Case(batch=150, n_variables=40, hidden=600, n_params=2),  # more rows than a block, more units than a lane
    Case(batch=3, n_variables=1100, hidden=20, density=0.05),  # more steps than a segment of the tape
    Case(batch=20, n_variables=530, hidden=70, binary=False, activation="tanh"),
]


@given(case=cases, need_x=st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_agrees_in_float64(case: Case, need_x: bool) -> None:
    compare(case, "numba", torch.float64, 1e-12, need_x=need_x)


@given(case=cases, need_x=st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_dense_agrees(case: Case, need_x: bool) -> None:
    compare(case, "dense", torch.float64, 1e-12, need_x=need_x)
    compare(case, "dense", torch.float32, 1e-5, need_x=need_x)


@given(case=cases, need_x=st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_agrees_in_float32(case: Case, need_x: bool) -> None:
    compare(case, "numba", torch.float32, 3e-6, need_x=need_x)


@given(seed=st.integers(0, 2**30), density=st.sampled_from([0.1, 0.5, 1.0]), hidden=st.integers(1, 80))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_relu_knows_zero_exactly(seed: int, density: float, hidden: int) -> None:
    """Sums without rounding: a pre-activation of exactly zero has slope zero on the way back as well."""
    case = Case(9, 30, hidden, 2, "relu", exact=True, seed=seed, density=density)
    tensors = case.tensors(torch.float32)
    tensors[2].zero_()
    for need_x in (True, False):
        wanted = evaluate(tensors, "relu", "reference", need_x=need_x)
        found = evaluate(tensors, "relu", "numba", need_x=need_x)
        for name, want in wanted.items():
            torch.testing.assert_close(found[name], want, rtol=1e-5, atol=1e-5)


def test_relu_returns_to_the_bias_despite_rounding() -> None:
    """c = 0 and rows that begin with zeros: the walk back must arrive at 0, not at 1e-8."""
    tensors = Case(8, 60, 50, activation="relu", density=0.3).tensors(torch.float32)
    tensors[2].zero_()
    tensors[0][:, tensors[5][:20]] = 0
    wanted = evaluate([t.double() if t.is_floating_point() else t for t in tensors], "relu", "reference")
    found = evaluate(tensors, "relu", "numba", need_x=False)
    for name in ("weight", "hidden_bias", "output"):
        torch.testing.assert_close(found[name].double(), wanted[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [*EDGES, *LARGE], ids=str)
@pytest.mark.parametrize("need_x", [True, False])
def test_edges(case: Case, need_x: bool) -> None:
    compare(case, "numba", torch.float64, 1e-12, need_x=need_x)
    compare(case, "numba", torch.float32, 1e-5, need_x=need_x)


@pytest.mark.parametrize("kernel", ["reference", "numba", "dense"])
@pytest.mark.parametrize("activation", ["sigmoid", "relu", "tanh"])
def test_gradcheck(kernel: str, activation: str) -> None:
    *leaves, order, _ = Case(2, 5, 3, 2, binary=False).tensors()
    for leaf in leaves:
        leaf.requires_grad_()
    assert torch.autograd.gradcheck(lambda *t: recurrence(*t, order, activation, kernel=kernel), leaves)


def test_second_derivatives_say_where_to_get_them() -> None:
    *leaves, order, _ = Case().tensors()
    weight = leaves[1].requires_grad_()
    (grad,) = torch.autograd.grad(
        recurrence(*leaves, order, "tanh").square().sum(), weight, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="reference"):
        grad.sum().backward()


@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_drift_over_three_thousand_steps(activation: str) -> None:
    """Walking back by subtraction: as close to the float64 gradients as a few roundings."""
    compare(
        Case(6, 3000, 40, activation=activation, density=0.13), "numba", torch.float32, 5e-6, need_x=False
    )


def test_drift_with_real_inputs() -> None:
    compare(Case(6, 3000, 40, binary=False), "numba", torch.float32, 2e-5, need_x=False)


def test_vmap_of_grad_is_the_loop_over_members() -> None:
    members = [Case(4, 6, 70, 2, seed=seed).tensors() for seed in range(3)]
    x, *weights = (torch.stack([m[k] for m in members]) for k in range(5))
    order = members[0][5]

    def loss(x, *weights):
        return recurrence(x, *weights, order, "tanh", kernel="numba").square().sum()

    grads = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3, 4)))(x, *weights)
    shared = torch.func.vmap(torch.func.grad(loss, argnums=(1, 2, 3, 4)), in_dims=(None, 0, 0, 0, 0))(
        x[0], *weights
    )
    for k in range(3):
        alone = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))(x[k], *(w[k] for w in weights))
        torch.testing.assert_close([g[k] for g in grads], list(alone), rtol=1e-12, atol=1e-12)
        alone = torch.func.grad(loss, argnums=(1, 2, 3, 4))(x[0], *(w[k] for w in weights))
        torch.testing.assert_close([g[k] for g in shared], list(alone), rtol=1e-12, atol=1e-12)


def test_nested_vmap_and_an_order_each() -> None:
    x, *weights = Case(4, 6, 10, 2).tensors()[:5]
    orders = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(s)) for s in range(6)])

    def eta(order, scale):
        return recurrence(scale * x, *weights, order, "sigmoid", kernel="numba")

    scales = torch.tensor([1.0, 2.0], dtype=torch.float64)
    both = torch.func.vmap(torch.func.vmap(eta, in_dims=(0, None)), in_dims=(None, 0))(orders, scales)
    for k, scale in enumerate(scales):
        for m, order in enumerate(orders):
            torch.testing.assert_close(both[k, m], eta(order, scale), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", ["reference", "numba", "dense"])
def test_population_is_the_loop_over_members(kernel: str) -> None:
    members = [Case(4, 6, 5, 2, seed=seed).tensors() for seed in range(3)]
    stacked = [torch.stack([m[k] for m in members]) for k in range(7)]
    leaves = [t.requires_grad_() for t in stacked[:5]]
    each = torch.func.vmap(lambda *t: recurrence(*t, "sigmoid", kernel=kernel))
    eta = each(*leaves, stacked[5])
    eta.backward(stacked[6])
    for k, member in enumerate(members):
        wanted = evaluate(member, "sigmoid", "reference")
        torch.testing.assert_close(eta[k].detach(), wanted["eta"], rtol=1e-12, atol=1e-12)
        for leaf, name in zip(leaves, ("x", "weight", "hidden_bias", "output", "bias"), strict=True):
            torch.testing.assert_close(leaf.grad[k], wanted[name], rtol=1e-12, atol=1e-12)
    shared = torch.func.vmap(lambda *t: recurrence(*t, members[0][5], "sigmoid", kernel=kernel))
    same = shared(*stacked[:5])
    torch.testing.assert_close(same[0], eta[0], rtol=1e-12, atol=1e-12)
