"""The recurrence where P is large: the reference's numbers, by loops and by matrix products."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from pynade.kernels import recurrence
from pynade.kernels.reference import suits_dense

from .cases import Case, compare

WIDE = {
    "a ragged block of rows": Case(batch=70, n_variables=9, hidden=37, n_params=30, binary=False),
    "a ragged last block": Case(
        batch=97, n_variables=3, hidden=5, n_params=24, binary=False, activation="tanh"
    ),
    "several parts that fit the cache": Case(batch=700, n_variables=40, hidden=60, n_params=24, binary=False),
    "more units": Case(batch=20, n_variables=6, hidden=140, n_params=27, activation="relu", exact=True),
    "few more parameters than four": Case(batch=21, n_variables=12, hidden=9, n_params=7, binary=False),
    "one variable": Case(batch=64, n_variables=1, hidden=16, n_params=24, binary=False),
}
each_case = pytest.mark.parametrize("case", WIDE.values(), ids=WIDE.keys())


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@each_case
@pytest.mark.usefixtures("threads")
def test_eta_and_gradients_are_the_references(case):
    compare(case, "numba", torch.float64, 1e-12)
    compare(case, "numba", torch.float32, 1e-5, need_x=False)


def test_members_are_computed_as_if_alone():
    cases = [Case(batch=66, n_variables=7, hidden=12, n_params=24, binary=False, seed=s) for s in range(3)]
    members = [case.tensors() for case in cases]
    x, *weights = (torch.stack([m[k] for m in members]) for k in range(5))

    def loss(*tensors):
        return recurrence(*tensors, members[0][5], "sigmoid", kernel="numba").sin().sum()

    gradients = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))
    together = torch.func.vmap(gradients)(x, *weights)
    alone = [torch.stack(part) for part in zip(*(gradients(*m[:5]) for m in members), strict=True)]
    torch.testing.assert_close(list(together), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("threads")
def test_the_same_call_gives_the_same_bits():
    x, *weights, order, grad = WIDE["a ragged block of rows"].tensors(torch.float32)
    found = []
    for _ in range(3):
        leaves = [w.clone().requires_grad_() for w in weights]
        eta = recurrence(x, *leaves, order, "sigmoid", kernel="numba")
        found.append([eta.detach(), *torch.autograd.grad(eta, leaves, grad)])
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))


def test_a_forked_child_does_not_wait_for_threads_it_does_not_have():
    x, *weights, order, _ = WIDE["a ragged block of rows"].tensors(torch.float32)
    wanted = recurrence(x, *weights, order, "sigmoid", kernel="numba")
    child = os.fork()
    if child == 0:
        same = torch.allclose(recurrence(x, *weights, order, "sigmoid", kernel="numba"), wanted, atol=1e-4)
        os._exit(0 if same else 1)
    for _ in range(6000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def test_small_activations_with_many_parameters_are_products_altogether():
    x, output = torch.zeros(100, 10, 1), torch.zeros(10, 60, 50)
    assert suits_dense(x, output)
    assert not suits_dense(x, output[:, :6])
    assert not suits_dense(torch.zeros(1000, 10, 1), output)
    assert not suits_dense(x.to("meta"), output)
