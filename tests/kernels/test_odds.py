"""Binary data without gradients go another way on the CPU: the state is e^-a, a step a multiplication."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

from pynade.kernels import cpu, recurrence, sample
from pynade.kernels.cpu_scalar import PRECISE, power
from pynade.kernels.cpu_vector import ODDS

from .cases import Case


@numba.njit
def _powers(x, y):
    for k in range(len(x)):
        y[k] = power(x[k], PRECISE)


def test_exponential_is_right_to_float32_and_one_at_zero() -> None:
    x = np.concatenate((np.linspace(-80, 80, 1_000_001), np.linspace(-1, 1, 1_000_001))).astype(np.float32)
    y = np.empty_like(x)
    _powers(x, y)
    error = y / np.exp(x.astype(np.float64)) - 1
    near = np.abs(x) <= 1
    assert np.abs(error[near]).max() <= 2e-7
    assert np.abs(error / np.maximum(1, np.abs(x))).max() <= 2e-7
    assert abs(error[near].mean()) <= 2e-9  # many of them are multiplied
    assert (y[x == 0] == 1).all()


def float64_eta(x: Tensor, *rest: Tensor) -> Tensor:
    """The reference, in float64."""
    weights, order = rest[:-1], rest[-1]
    return recurrence(x.double(), *(w.double() for w in weights), order, "sigmoid", kernel="reference")


def spied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes that the compiled loop is called with."""
    codes: list[int] = []
    original = cpu._walk

    def spy(*args: object) -> None:
        codes.append(args[13])  # type: ignore[arg-type]
        original(*args)

    monkeypatch.setattr(cpu, "_walk", spy)
    return codes


def test_it_is_taken_for_binary_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = spied(monkeypatch)
    x, *weights, order, _ = Case(9, 20, 30).tensors(torch.float32)
    recurrence(x, *weights, order, "sigmoid", kernel="numba")
    assert set(codes) == {ODDS}
    codes.clear()
    recurrence(x + 0.5, *weights, order, "sigmoid", kernel="numba")
    recurrence(x, *(w.clone().requires_grad_() for w in weights), order, "sigmoid", kernel="numba")
    recurrence(x, *weights, order, "relu", kernel="numba")
    recurrence(x.double(), *(w.double() for w in weights), order, "sigmoid", kernel="numba")
    assert ODDS not in codes


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 40),
    n_variables=st.integers(1, 60),
    hidden=st.integers(1, 70) | st.integers(500, 530),
    n_params=st.integers(1, 5),
    density=st.floats(0, 1),
    scale=st.sampled_from([0.1, 1.0, 10.0, 60.0, 300.0]),
    seed=st.integers(0, 99),
)
def test_equals_the_reference_whatever_the_size_of_the_weights(
    batch: int, n_variables: int, hidden: int, n_params: int, density: float, scale: float, seed: int
) -> None:
    """Large weights lead a unit out of the range of e^-a, and back."""
    case = Case(batch, n_variables, hidden, n_params, density=density, seed=seed)
    x, weight, *rest, order, _ = case.tensors(torch.float32)
    weight = weight * scale
    found = recurrence(x, weight, *rest, order, "sigmoid", kernel="numba")
    wanted = float64_eta(x, weight, *rest, order)
    # what rounding of the pre-activations alone may do to an output
    slack = 4e-7 * scale * (1 + n_variables) * rest[1].abs().sum(-1).max()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=float(slack) + 1e-5)


def test_a_unit_that_goes_far_and_comes_back() -> None:
    """First + 120, then - 121 in steps: e^-120 is no number of float32."""
    steps = torch.tensor([30.0] * 4 + [-30.0] * 4 + [-1.0])
    weight, order = steps[:, None, None].repeat(1, 1, 3), torch.arange(9)
    x, c = torch.ones(5, 9, 1), torch.zeros(3)
    v, b = torch.ones(9, 1, 3), torch.zeros(9, 1)
    x[1:3] = 0
    for sign in (1, -1):
        found = recurrence(x, sign * weight, c, v, b, order, "sigmoid", kernel="numba")
        torch.testing.assert_close(found.double(), float64_eta(x, sign * weight, c, v, b, order))
        uniforms = torch.full((5, 9), 1e-12)  # ones throughout
        drawn = sample((sign * weight, c, v, b + 40, order), uniforms, None, "sigmoid", kernel="numba")
        assert drawn.all()


@pytest.mark.parametrize("where", ["weight", "hidden_bias"])
@pytest.mark.parametrize("value", [100.0, -100.0, float("nan"), float("inf")])
def test_parameters_without_a_usable_exponential(where: str, value: float) -> None:
    x, *weights, order, _ = Case(20, 10, 6, seed=3).tensors(torch.float32)
    weights[("weight", "hidden_bias").index(where)].view(-1)[4] = value
    found = recurrence(x, *weights, order, "sigmoid", kernel="numba")
    wanted = recurrence(x, *weights, order, "sigmoid", kernel="reference")
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_rows_that_are_not_binary_among_others_that_are() -> None:
    x, *weights, order, _ = Case(50, 30, 40).tensors(torch.float32)
    alone = recurrence(x, *weights, order, "sigmoid", kernel="numba")
    mixed = x.clone()
    mixed[::3, 7] = 0.3
    found = recurrence(mixed, *weights, order, "sigmoid", kernel="numba")
    torch.testing.assert_close(found.double(), float64_eta(mixed, *weights, order), rtol=1e-5, atol=1e-5)
    for r in (1, 2, 49):
        assert torch.equal(found[r], alone[r])


def test_a_population_in_training_walks_forward_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = spied(monkeypatch)
    x, *weights, order, _ = Case(6, 12, 9).tensors(torch.float32)
    leaves = [torch.stack([w, w]).requires_grad_() for w in weights]

    def eta(*parts: Tensor) -> Tensor:
        return recurrence(x, *parts, order, "sigmoid", kernel="numba")

    torch.func.vmap(eta)(*leaves).sum().backward()
    assert len(codes) == 2  # members
    assert ODDS not in codes
    codes.clear()
    with torch.no_grad():
        torch.func.vmap(eta)(*leaves)
    assert codes == [ODDS, ODDS]


def test_gradients_of_a_pass_that_kept_no_tape() -> None:
    """Where gradients turn out to be wanted after all, the tape is made then."""
    from pynade.kernels.autograd import Fused
    from pynade.kernels.backends import Recurrence

    x, *weights, order, grad = Case(6, 12, 9).tensors(torch.float32)
    found = []
    for with_tape in (True, False):
        leaves = [w.clone().requires_grad_() for w in weights]
        w, *others = leaves
        tensors = (t[None] for t in (x.squeeze(2), w.squeeze(1), *others, order))
        eta = Fused.apply(Recurrence(cpu, "sigmoid"), with_tape, *tensors)[0]
        eta.backward(grad[None])
        found.append([leaf.grad for leaf in leaves])
    for kept, made in zip(*found, strict=True):
        assert torch.equal(kept, made)


def test_forward_mode_is_refused_not_forgotten() -> None:
    x, weight, *rest, order, _ = Case(3, 5, 4).tensors(torch.float32)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp"):
        recurrence(x, forward_ad.make_dual(weight, weight), *rest, order, "sigmoid", kernel="numba")


def test_rows_computed_again_leave_the_input_untouched() -> None:
    x, *weights, order, _ = Case(9, 12, 7).tensors(torch.float32)
    x[::2, 3] = 0.3
    version = x._version
    recurrence(x, *weights, order, "sigmoid", kernel="numba")
    assert x._version == version
