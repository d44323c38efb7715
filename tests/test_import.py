"""`import pynade` is quick and pulls in nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = ("sklearn", "numba", "matplotlib", "pooch", "typer", "rich", "scipy", "pandas", "polars", "triton")


def test_import_is_lazy():
    code = f"import sys, pynade; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_import_adds_under_half_a_second_to_torch():
    """Of the torch door too: the whole ground floor, not only the empty lobby."""
    code = (
        "import time, torch; t = time.perf_counter();"
        "import pynade, pynade.ordering, pynade.families, pynade.nets, pynade.models, pynade.training;"
        "print(time.perf_counter() - t)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    assert min(float(r.stdout) for r in runs) < 0.5


def test_exports_resolve():
    import pynade

    for name in pynade.__all__:
        assert getattr(pynade, name) is not None
        assert name in dir(pynade)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pynade.nonsense
