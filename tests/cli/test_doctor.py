"""`pynade doctor`: a healthy machine, and each thing that may be wrong with one."""

import os
import socket
import subprocess
import sys

import pytest

from pynade.atomic import read_lock, sole_writer
from pynade.cli import doctor
from pynade.kernels import backends, cpu
from pynade.tables.registry import entries
from tests.paper.data import test_uci

HERE = socket.gethostname()


@pytest.fixture
def lines(run, monkeypatch, tmp_path):
    """Exit code of `pynade doctor`, over an empty data directory, and its lines by their first word."""
    monkeypatch.setenv("PYNADE_DATA", str(tmp_path / "data"))

    def call(*words):
        code, out, err = run("doctor", *words)
        assert err == ""
        found = {"ok": [], "note": [], "problem": []}
        for line in out.splitlines():
            state, _, text = line.partition(" ")
            found[state].append(text.strip())
        return code, found

    return call


def test_a_healthy_machine_has_no_problem(lines, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    code, found = lines()
    assert (code, found["problem"]) == (0, [])
    ok = "\n".join(found["ok"])
    for words in ("pynade 0.", "Python 3.", *(f"{name} " for name in doctor.LIBRARIES), "threads: torch "):
        assert words in ok
    assert "numba's cache can be written: " in ok
    for dtype in ("float32", "float64"):
        assert f"CPU: kernels of numba in {dtype} agree with the reference within " in ok
    assert "no locks in runs" in ok
    assert "OMP_NUM_THREADS=3 limits threads" in found["note"]
    assert any(line.startswith("no data sets in ") for line in found["note"])


def killed(folder, owner=None):
    """A process that holds the lock of a folder is killed; the words by which its owner is named."""
    folder.mkdir(parents=True)
    code = "import os, sys, pathlib; from pynade.atomic import sole_writer\n"
    code += "with sole_writer(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    done = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    done.wait()
    if owner is not None:
        (folder / ".owner").write_text(owner)
    return f"process {done.pid} on {HERE}"


def test_stale_locks_are_told_from_those_in_use(lines, tmp_path):
    who = killed(tmp_path / "runs/a/b")
    (tmp_path / "runs/a/b/spec.json").write_text("{}")
    killed(tmp_path / "runs/far", "process 12 on elsewhere")
    (tmp_path / "runs/held").mkdir()
    with sole_writer(tmp_path / "runs/held"):
        code, found = lines()
        assert code == 0
        stale = (
            f"runs/a/b has a stale lock of {who}, which has ended: the next command takes it over; to go on: "
        )
        assert stale + "pynade fit --resume runs/a/b" in found["note"]
        assert f"runs/held is in use by process {os.getpid()} on {HERE}" in found["note"]
        far = "runs/far has a stale lock of process 12 on elsewhere, which does not hold it on this host"
        assert f"{far}: the next command takes it over" in found["note"]
    assert read_lock(tmp_path / "runs/a/b") == (who, False)  # nothing was removed
    with sole_writer(tmp_path / "runs/a/b"):  # it is taken over
        pass
    assert "no locks in runs/a" in lines("runs/a")[1]["ok"]


def test_a_cache_that_cannot_be_written(lines, monkeypatch, tmp_path):
    def fail(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", fail)
    code, found = lines()
    assert code == 1
    (problem,) = found["problem"]
    assert problem.startswith("numba cannot write its cache (Permission denied: ")
    assert problem.endswith("set NUMBA_CACHE_DIR to a folder that can be written")


def test_no_place_for_a_cache_at_all(tmp_path):
    """Without a source file beside which it may write, and without a home, kernels have no cache."""
    (tmp_path / "file").write_text("")
    code = "import numba.core.caching as c; c.CacheImpl._locator_classes[:] = [c.UserProvidedCacheLocator]\n"
    code += "from pynade.cli import doctor; print(*doctor.cache())"
    settings = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "file")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True
    )
    assert "'problem', 'numba cannot write its cache (no folder can be written): set NUMBA" in done.stdout


@pytest.mark.parametrize("size", [0.01, float("nan")])
@pytest.mark.parametrize("part", ["forward", "backward", "sample"])
def test_a_kernel_that_disagrees(lines, monkeypatch, part, size):
    right = getattr(cpu, part)

    def wrong(*arguments):
        found = right(*arguments)
        return found + size if part == "sample" else (found[0] + size, *found[1:])

    monkeypatch.setattr(cpu, part, wrong)
    code, found = lines()
    assert code == 1
    assert len(found["problem"]) == 2  # float32 and float64
    where = {"forward": "", "backward": "in gradients by x", "sample": "in samples"}[part]
    assert all("numba" in p and where in p and "report it" in p for p in found["problem"])


def test_a_check_that_fails_does_not_end_the_others(lines, monkeypatch):
    def broken(*_):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(backends, "_choose_checked", broken)
    code, found = lines()
    assert code == 1
    (problem,) = found["problem"]
    assert problem == "kernels: RuntimeError: no compiler; install pynade and what it needs again"
    assert "no locks in runs" in found["ok"]


def test_gpu_kernels_are_compared_where_there_is_a_gpu(lines, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no GPU" in lines()[1]["note"]
    right, asked = doctor._example, []

    def example(kernel, device, dtype):
        asked.append((kernel, device))
        return right("numba" if kernel == "triton" else kernel, "cpu", dtype)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "H200")
    monkeypatch.setattr(doctor, "_example", example)
    code, found = lines()
    assert code == 0
    assert ("triton", "cuda") in asked
    assert any(line.startswith("GPU (H200): kernels of triton in float32 agree") for line in found["ok"])


def test_data_files_are_verified(lines, tmp_path):
    import numpy as np

    assert "red_wine" in entries()
    rows = np.random.default_rng(0).normal(3.0, 2.0, (57, 11))  # a file of its form, with other rows
    test_uci.red_file(tmp_path / "data" / "uci" / "red_wine_folds.hdf5", rows)
    code, found = lines()
    assert code == 1
    (problem,) = found["problem"]
    assert "is not data set 'red_wine': its SHA-256 is " in problem
    assert problem.endswith("remove the file, then pynade data get red_wine")
