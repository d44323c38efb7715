"""What is promised of the numba kernel beyond right numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numba
import numpy as np
import pytest
import torch

from pynade.kernels import recurrence
from pynade.kernels.cpu_vector import squash
from pynade.kernels.reference import CODES
from pynade.kernels.threads import run_tasks

from .cases import Case, evaluate


@numba.njit
def _apply(x, y, code):
    for k in range(len(x)):
        y[k] = squash(x[k], x.dtype.type(1), code)


def test_float32_sigmoid_is_within_two_ten_millionths() -> None:
    x = np.concatenate((np.linspace(-110, 110, 2_000_001), np.linspace(-2, 2, 1_000_001))).astype(np.float32)
    x = np.concatenate(
        (x, np.float32([0, -0.0, 1e-40, 1e30, -1e30, np.inf, -np.inf]), np.geomspace(1e-30, 1, 999))
    )
    x = x.astype(np.float32)
    y = np.empty_like(x)
    _apply(x, y, CODES["sigmoid"])
    exact = 0.5 * (1 + np.tanh(0.5 * x.astype(np.float64)))
    assert np.abs(y - exact).max() <= 2e-7
    assert y.min() >= 0
    assert y.max() <= 1
    _apply(x, y, CODES["tanh"])
    assert np.abs(y - np.tanh(x.astype(np.float64))).max() <= 4e-7


def test_sigmoid_keeps_nan_and_is_exact_in_float64() -> None:
    for kind in (np.float32, np.float64):
        x = np.array([np.nan, 0.0, 1000.0, -1000.0], kind)
        y = np.empty_like(x)
        _apply(x, y, CODES["sigmoid"])
        np.testing.assert_allclose(y, [np.nan, 0.5, 1, 0], atol=1e-37)
    x = np.linspace(-30, 30, 1001)
    y = np.empty_like(x)
    _apply(x, y, CODES["sigmoid"])
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x)), rtol=1e-15)


@pytest.mark.parametrize("where", ["weight", "hidden_bias", "output", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_parameter_that_is_not_finite_shows(where: str, value: float) -> None:
    """Also a weight of an input that is zero in every row: training must stop on it."""
    x, *weights, order, _ = Case(4, 10, 6).tensors(torch.float32)
    x[:] = 0
    index = ("weight", "hidden_bias", "output", "bias").index(where)
    weights[index].view(-1)[3] = value
    eta = recurrence(x, *weights, order, "relu", kernel="numba")
    wanted = recurrence(x, *weights, order, "relu", kernel="reference")
    torch.testing.assert_close(eta.isfinite(), wanted.isfinite())


def test_same_call_same_bits() -> None:
    tensors = Case(70, 90, 300, 2, binary=False).tensors(torch.float32)
    first, second = (evaluate(tensors, "sigmoid", "numba") for _ in range(2))
    for name, want in first.items():
        assert torch.equal(second[name], want), name


def test_a_row_does_not_depend_on_its_batch() -> None:
    x, *weights, order, _ = Case(70, 90, 300, 2).tensors(torch.float32)
    together = recurrence(x, *weights, order, "sigmoid", kernel="numba")
    for rows in (slice(0, 1), slice(17, 50), slice(69, 70)):
        assert torch.equal(recurrence(x[rows], *weights, order, "sigmoid", kernel="numba"), together[rows])


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads(threads: int) -> None:
    tensors = Case(90, 20, 100, 2).tensors()
    wanted = evaluate(tensors, "tanh", "reference")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = evaluate(tensors, "tanh", "numba")
    finally:
        torch.set_num_threads(before)
    for name, want in wanted.items():
        torch.testing.assert_close(found[name], want, rtol=1e-12, atol=1e-12)


def test_no_rows() -> None:
    x, *weights, order, _ = Case().tensors()
    leaves = [w.requires_grad_() for w in weights]
    recurrence(x[:0], *leaves, order, "sigmoid", kernel="numba").sum().backward()
    assert all(not leaf.grad.any() for leaf in leaves)


def test_shared_tasks_run_once_and_pass_errors_on() -> None:
    done: list[int] = []
    run_tasks(done.append, 100, 4)
    assert sorted(done) == list(range(100))

    def fail(number: int) -> None:
        if number == 7:
            raise ZeroDivisionError

    for threads in (1, 4):
        with pytest.raises(ZeroDivisionError):
            run_tasks(fail, 20, threads)


def _run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=1200,  # a child that waits for threads it does not have would wait for ever
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_works_in_a_forked_child() -> None:
    _run("""
        import os, torch
        from pynade.kernels import recurrence
        shapes = (64, 9, 1), (9, 1, 200), (200,), (9, 1, 200), (9, 1)
        arguments = [torch.ones(shape) for shape in shapes]
        wanted = [recurrence(*arguments, torch.arange(9), "sigmoid", kernel="numba") for _ in range(2)]
        torch.set_num_threads(2)
        child = os.fork()
        if child == 0:
            found = recurrence(*arguments, torch.arange(9), "sigmoid", kernel="numba")
            os._exit(0 if torch.equal(found, wanted[1]) else 1)
        assert os.waitpid(child, 0)[1] == 0
    """)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_extra_memory_of_a_training_step() -> None:
    """At most 3 (BH + BD + 2DH) floats beyond inputs and parameters, gradients counted."""
    out = _run("""
        import torch
        from pynade.kernels import recurrence
        torch.set_num_threads(2)
        def inputs(b, d, h):
            shapes = (d, 1, h), (h,), (d, 1, h), (d, 1)
            x = (torch.rand(b, d, 1) < 0.13).float()
            return x, *((0.1 * torch.randn(shape)).requires_grad_() for shape in shapes), torch.randperm(d)
        def step(inputs):
            recurrence(*inputs, "sigmoid", kernel="numba").sum().backward()
        def kilobytes(what):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what))
        for _ in range(3):
            step(inputs(4, 6, 5))
        large = inputs(100, 784, 500)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = kilobytes("VmRSS")
        step(large)
        print(kilobytes("VmHWM") - before)
    """)
    assert 1024 * int(out) / 4 <= 3 * (100 * 500 + 100 * 784 + 2 * 784 * 500)


def test_a_process_that_compiles_and_one_that_loads_get_the_same_bits(tmp_path) -> None:
    """Else a run resumed by another process would not be identical."""
    script = """
import hashlib, torch
from pynade.nets import NADENet
from pynade.ordering import Ordering
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
net, ordering = NADENet(64, hidden=40, generator=g), Ordering.random(64, generator=g)
x, w = (torch.rand(50, 64, 1, generator=g) < 0.3).float(), torch.randn(50, 64, 1, generator=g)
eta = net(x, ordering)
tensors = (eta, *torch.autograd.grad((eta * w).sum(), list(net.parameters())))
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest())
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    digests = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbc"))  # the second process had something to load
    assert digests[0] == digests[1]
