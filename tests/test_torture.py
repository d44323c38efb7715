"""The attack of `make torture`, at a very small scale: it runs, and its table has every fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.__main__ import table

ROOT = Path(__file__).parents[1]


def test_the_page_shows_the_table_of_its_record():
    facts = json.loads((ROOT / "docs/robustness.json").read_text(encoding="utf-8"))
    assert table(facts) in (ROOT / "docs/robustness.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, /proc and mounts")
def test_the_attack_runs_and_everything_survives(tmp_path):
    words = ["-m", "tests.torture", "--scale", "0.0005", "--seed", "1", "--out", str(tmp_path / "table.json")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "table.json").read_text())
    assert facts["seed"] == 1
    assert len(facts["results"]) == 13
    for result in facts["results"]:
        assert result["survived"] == result["trials"] > 0
        assert f"| {result['fault']} |" in done.stdout
