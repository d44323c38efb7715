"""The experiment of benchmarks/from_rbm.py: it runs, and the documents quote its record."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/from_rbm.py"


def test_it_runs_at_a_tiny_size(tmp_path, capsys):
    sizes = {"--hidden": 4, "--seeds": 2, "--epochs": 2, "--rbm-epochs": 1}
    where = {"--data": "digits", "--device": "cpu", "--out": tmp_path / "r.json"}
    words = [str(word) for pair in (sizes | where).items() for word in pair]
    runpy.run_path(str(SCRIPT))["main"](words)
    record = json.loads((tmp_path / "r.json").read_text())
    assert capsys.readouterr().out.strip().endswith(record["conclusion"])
    tests = record["test"]
    assert tests["difference"]["mean"] == pytest.approx(tests["RBM"]["mean"] - tests["random"]["mean"])
    for line in record["lines"]:
        reached = [line[start]["epochs_to_common_score"] for start in ("RBM", "random")]
        assert all(epochs <= line["RBM"]["epochs"] == 2 for epochs in reached)
        best = [line[start]["valid"] for start in ("RBM", "random")]
        slower = best.index(min(best))  # whose best score is the common one
        assert reached[slower] == line[("RBM", "random")[slower]]["best_epoch"]


def test_the_documents_quote_the_result():
    record = json.loads((ROOT / "paper/results/benchmarks/from-rbm.json").read_text(encoding="utf-8"))
    assert record["settings"]["seeds"] == len(record["lines"]) >= 5
    text = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert record["conclusion"] in " ".join(text.split())
