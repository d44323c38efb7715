"""Which kernel runs, and what is said when none can."""

from __future__ import annotations

import builtins
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch

from pynade.kernels import backends, recurrence, sample

from .cases import Case


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "numba" or name.startswith("numba."):
            raise ImportError("No module named 'numba'")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name == "numba"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(builtins, "__import__", without)
    backends.available.cache_clear()
    yield
    backends.available.cache_clear()


def test_without_a_compiler_the_reference_and_one_warning(no_numba: None) -> None:
    *tensors, order, _ = Case().tensors()
    with pytest.warns(RuntimeWarning, match="numba cannot be imported"):
        eta = recurrence(*tensors, order, "sigmoid")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = recurrence(*tensors, order, "sigmoid")
    wanted = recurrence(*tensors, order, "sigmoid", kernel="reference")
    assert torch.equal(eta, wanted)
    assert torch.equal(again, wanted)


def test_auto_is_numba_on_the_cpu() -> None:
    floats = torch.zeros(1)
    assert backends.choose_kernel("auto", torch.device("cpu"), floats) == "numba"
    assert backends.choose_kernel("auto", torch.device("cpu"), floats.half()) == "reference"
    assert backends.choose_kernel("auto", torch.device("meta"), floats) == "reference"


def test_many_features_go_to_the_reference() -> None:
    g = torch.Generator().manual_seed(0)
    shapes = (4, 5, 3), (5, 3, 6), (6,), (5, 2, 6), (5, 2)
    tensors = [torch.randn(shape, generator=g) for shape in shapes]
    order = torch.randperm(5, generator=g)
    eta = recurrence(*tensors, order, "sigmoid")
    assert torch.equal(eta, recurrence(*tensors, order, "sigmoid", kernel="reference"))
    population = torch.func.vmap(lambda *t: recurrence(*t, order, "sigmoid"))(*(t[None] for t in tensors))
    torch.testing.assert_close(population[0], eta)
    with pytest.raises(ValueError, match="one feature per variable, not 3"):
        recurrence(*tensors, order, "sigmoid", kernel="numba")


def test_mixed_float_types_meet_in_the_wider() -> None:
    x, *weights, order, _ = Case().tensors()
    assert recurrence(x.float(), *weights, order, "sigmoid").dtype == torch.float64


def test_errors_say_what_was_given() -> None:
    *tensors, order, _ = Case().tensors()
    with pytest.raises(ValueError, match="unknown kernel 'fast'; known: auto"):
        recurrence(*tensors, order, "sigmoid", kernel="fast")
    with pytest.raises(ValueError, match="unknown activation 'gelu'; known: sigmoid"):
        recurrence(*tensors, order, "gelu")
    with pytest.raises(TypeError, match=r"not torch\.float16"):
        recurrence(*(t.half() for t in tensors), order, "sigmoid", kernel="numba")
    with pytest.raises(ValueError, match="runs on cuda tensors, not on cpu"):
        recurrence(*tensors, order, "sigmoid", kernel="triton")
    with pytest.raises(ValueError, match="3K parameters per variable, not 1"):
        sample((*tensors[1:], order), torch.rand(2, 5), torch.randn(2, 5), "sigmoid")


@pytest.mark.parametrize("kernel", ["reference", "numba"])
def test_samplers_refuse_what_does_not_fit(kernel: str) -> None:
    _, *weights, order, _ = Case().tensors()
    weights[0] = weights[0][:4]
    with pytest.raises((ValueError, IndexError)):
        sample((*weights, order), torch.rand(2, 5).double(), None, "sigmoid", kernel=kernel)


def test_shapes_that_do_not_fit_are_named() -> None:
    *tensors, order, _ = Case().tensors()
    for index, name in ((1, "weight"), (3, "output"), (4, "bias")):
        wrong = [t[:-1] if k == index else t for k, t in enumerate(tensors)]
        with pytest.raises(ValueError, match=f"{name} should have shape"):
            recurrence(*wrong, order, "sigmoid", kernel="numba")
    with pytest.raises(ValueError, match="order should have shape"):
        recurrence(*tensors, order[:-1], "sigmoid", kernel="numba")
    with pytest.raises(ValueError, match="order holds variables outside"):
        recurrence(*tensors, order + 1, "sigmoid", kernel="numba")


def test_importing_brings_in_no_compiler() -> None:
    code = "import sys, pynade.kernels; print(sorted({'numba', 'triton'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
