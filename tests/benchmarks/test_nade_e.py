"""The experiment of benchmarks/nade_e.py runs, and says how."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/nade_e.py"


def test_it_runs_at_a_tiny_size(tmp_path, capsys):
    words = ["--data", "digits", "--updates", "20", "--rates", "0.01", "--hidden", "5", "--out"]
    script = runpy.run_path(str(SCRIPT))
    script["main"].__globals__["ORDERINGS"] = 2
    script["main"]([*words, str(tmp_path / "r.json"), "--changes", "as in the row"])
    script["main"]([*words, str(tmp_path / "r.json")])
    record = json.loads((tmp_path / "r.json").read_text())
    assert [line["change"] for line in record["lines"]] == list(script["CHANGES"])
    assert capsys.readouterr().out.count("valid") == len(record["lines"])
    assert {"command", "settings", "seed", "code", "libraries", "device", "data"} <= set(record)
    for line in record["lines"]:
        assert len(line["curve"]) == line["epochs"]
        assert line["valid"]["exact"]
        assert 0 <= line["idle_units"] <= 1
