"""`pynade data`: the real-valued sets beside the binary ones."""

from __future__ import annotations

import numpy as np
import pytest

from pynade.tables.registry import entries
from tests.paper.data import test_uci


@pytest.fixture
def red(tmp_path, monkeypatch):
    """A small file of red wine, registered without a check of its content: commands take no registry."""
    monkeypatch.setitem(entries(), "red_wine", test_uci.KNOWN["red_wine"])
    rows = np.random.default_rng(0).normal(3.0, 2.0, (57, 11))
    test_uci.red_file(tmp_path / "uci" / "red_wine_folds.hdf5", rows)
    return rows


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """`pynade data …` over an empty data directory; the lines of its output are joined."""
    monkeypatch.setenv("PYNADE_DATA", str(tmp_path))

    def call(*words):
        code, out, err = run("data", *words)
        return code, " ".join(out.split()), " ".join(err.split())

    return call


def test_the_list_says_what_kind_each_set_is(run, red):
    code, out, _ = run("list")
    assert code == 0
    assert all(name in out for name in entries())
    assert "adult binary 123 5,000 1,414 26,147 no" in out
    assert "red_wine real 11 1,272 168 159 yes" in out
    assert "bsds300 real 63 200,000 10,000 1,000,000 no" in out
    assert "librispeech real 231 78,796 10,326 20,848 no" in out


def test_sets_with_folds_are_got_and_described_offline(run, red):
    code, out, _ = run("get", "red_wine", "red_wine/3")
    assert code == 0
    assert "red_wine: 11 variables; train 46, valid 5, test 6" in out
    assert "red_wine/3: 11 variables; train 45, valid 6, test 6" in out
    code, out, _ = run("info", "red_wine/9")
    assert code == 0
    assert "columns real" in out
    assert "red_wine/1, red_wine/2, " in out
    assert "train 47 rows" in out
    assert "in the training cells" in out
    assert "ones" not in out
    assert run("get", "red_wine/11")[0] != 0


def test_sets_that_are_not_here_say_how_to_get_them(run):
    code, out, _ = run("info", "bsds300")
    assert code == 0
    assert "no: fetch it with `pynade data get bsds300`" in out
    assert "no: no address is known for certain" in run("info", "red_wine")[1]
    code, _, err = run("get", "red_wine")
    assert code != 0
    assert "red_wine_folds.hdf5: no address is known for certain" in err
