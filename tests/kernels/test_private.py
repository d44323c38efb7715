"""Interfaces that are not public: named in one file, and the same numbers without each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pynade
from pynade.families import MixtureOfGaussians
from pynade.kernels import private, recurrence, threads
from pynade.training.step import Optimizer, clip

from .cases import Case, evaluate

NAMES = ("GOMP_parallel", "_nrt", "_are_functorch_transforms_active", "_current_level", "_foreach_")
SOURCE = Path(pynade.__file__).parent


def test_each_is_named_in_one_file_and_in_its_table() -> None:
    for path in SOURCE.rglob("*.py"):
        if path == Path(private.__file__):
            continue
        found = re.search("|".join(NAMES) + r"|torch\._|numba\.core", path.read_text(encoding="utf-8"))
        assert found is None, f"{path} uses {found and found[0]}, which belongs into kernels/private.py"
    for name in NAMES:
        assert name in (private.__doc__ or "")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_without_gomp_parallel(monkeypatch: pytest.MonkeyPatch, three_threads: None) -> None:
    tensors = Case(90, 20, 100, 2).tensors(torch.float32)
    wanted = evaluate(tensors, "tanh", "numba")
    used = []
    pool = threads._pool
    monkeypatch.setattr(private, "openmp", lambda: None)
    monkeypatch.setattr(threads, "_pool", lambda *of: used.append(of) or pool(*of))
    found = evaluate(tensors, "tanh", "numba")
    assert used
    assert all(torch.equal(found[name], want) for name, want in wanted.items())


def test_gomp_parallel_is_not_used_where_torch_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert private.openmp.__wrapped__() is None


def test_without_nrt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a process of its own, with a cache of its own: options are read when kernels are imported."""
    monkeypatch.setattr("numba.core.options.DefaultOptions._nrt", None)
    monkeypatch.delattr("numba.core.options.DefaultOptions._nrt")
    assert private.reference_counts(False) == {}
    code = (
        "import sys, torch; from pynade.kernels import private; private.reference_counts = lambda _: {}\n"
        "from tests.kernels.test_private import numbers; torch.save(numbers(), sys.argv[1])"
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], env=env, check=True)
    for found, want in zip(torch.load(tmp_path / "out"), numbers(), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-14, atol=1e-14)


def numbers() -> list[torch.Tensor]:
    """What compiled loops compute."""
    *tensors, order, _ = Case(9, 20, 10, 2).tensors()
    x, eta = tensors[0][..., 0], torch.linspace(-1, 1, 9 * 20 * 6, dtype=torch.float64).view(9, 20, 6)
    with torch.no_grad():
        return [recurrence(*tensors, order, "tanh", "numba"), MixtureOfGaussians(2).log_prob(x, eta)]


@pytest.mark.parametrize(
    ("library", "without"),
    [("torch", SimpleNamespace(_C=SimpleNamespace())), ("forward_ad", SimpleNamespace())],
    ids=["_are_functorch_transforms_active", "_current_level"],
)
def test_without_knowing_of_active_transforms(
    monkeypatch: pytest.MonkeyPatch, library: str, without: SimpleNamespace
) -> None:
    case = Case(9, 20, 10, 2)
    wanted, plain = evaluate(case.tensors(), "tanh", "numba"), numbers()
    assert not private.transforms_active()
    monkeypatch.setattr(private, library, without)
    assert private.transforms_active()
    found = evaluate(case.tensors(), "tanh", "numba")
    assert all(torch.equal(found[name], want) for name, want in wanted.items())
    torch.testing.assert_close(numbers(), plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_without_foreach(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    def trained() -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(0)
        params = {n: torch.randn(shape, generator=g) for n, shape in (("a", (3, 4)), ("b", (5,)))}
        average = {n: p.clone() for n, p in params.items()}
        optimizer = Optimizer(rule, params, 0.1, ["a"])
        for t in range(1, 4):
            grads = {n: torch.randn(p.shape, generator=g) for n, p in params.items()}
            clip(grads, 1.0)
            optimizer.apply(grads, (0.1, 0.9, *Optimizer.corrections(t), 0.2), average)
        return [*params.values(), *optimizer.state.values(), *average.values()]

    wanted = trained()
    for name in [name for name in dir(torch) if name.startswith("_foreach_")]:
        monkeypatch.delattr(torch, name)
    assert all(map(torch.equal, trained(), wanted))
