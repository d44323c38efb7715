"""Documents say what the records say."""

import json
import math
import re
from pathlib import Path

import pytest

from pynade.experiments.report import html_page
from pynade.experiments.tables import TABLES, Measured, best, highlights, mark, results_page, table

ROOT = Path(__file__).parents[2]


def test_documents_show_what_the_records_say():
    assert highlights(ROOT / "results") in (ROOT / "README.md").read_text(encoding="utf-8")
    assert results_page(ROOT / "results") == (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert all(line in html_page(ROOT / "results") for line in ("<h2>Binary vectors</h2>", "data:image/png"))


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (path.parent / link).exists(), link


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("results/*/*/*.json")), ids=lambda p: "/".join(p.parts[-3:])
)
def test_every_record_says_where_it_comes_from(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    if "grid" in record:
        assert all({"valid_nll", "epochs_done"} <= set(line) for line in record["grid"])
        return
    wanted = {"test", "spec", "commands", "seed", "data_checksum", "code", "libraries", "device"}
    assert wanted <= set(record)
    assert {"valid", "validation_grid"} & set(record)
    assert {"mean", "stderr", "mc_stderr", "n", "exact", "orderings"} <= set(record["test"])
    assert math.isfinite(record["test"]["mean"])
    assert all(seconds > 0 for seconds in record["wall_seconds"].values())


@pytest.mark.parametrize("name", TABLES)
def test_every_record_has_a_place_in_a_table(name):
    shown = table(name)
    known = {row.record.format(data=data) for row in shown.rows for data in shown.columns}
    there = {p.relative_to(ROOT / "results").as_posix() for p in ROOT.glob(f"results/{name}/*/*.json")}
    assert {file for file in there if "validation-grid" not in file} <= known


def test_marks_and_bold_follow_the_papers_rules():
    good, near, bad = (Measured(m, 0.1, True, "") for m in (-1.0, -1.3, -2.0))
    assert [mark(good, p) for p in (-1.5, -1.1, -0.5)] == ["▲", "=", "▼"]
    assert best({"a": good, "b": near, "c": bad}, "overlap") == {"a", "b"}
    folds = {
        "a": Measured(-1.0, 0.1, True, "", (-1.0, -1.1, -0.9, -1.0)),
        "b": Measured(-1.1, 0.1, True, "", (-0.9, -1.3, -0.9, -1.3)),
        "c": Measured(-2.0, 0.1, True, "", (-2.1, -2.0, -1.8, -2.1)),
    }
    assert best(folds, "paired") == {"a", "b"}


def test_the_tutorial_runs():
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(blocks) >= 6
    exec("\n".join(blocks), {"__name__": "tutorial"})


def test_the_baselines_are_as_fast_as_wanted():
    record = json.loads((ROOT / "results/benchmarks/baselines-cpu.json").read_text(encoding="utf-8"))
    assert record["threads"] == 2
    mixture, machine, *trees = record["problems"]
    assert "K=100, D=63, 100,000 rows" in mixture["problem"]
    assert mixture["ratios"]["scikit-learn"] >= 1
    assert "H=23" in machine["problem"]
    assert machine["ratios"]["NumPy loop"] >= 20
    for tree in trees:
        assert "D=784, 50,000 rows" in tree["problem"]
        assert tree["contenders"]["ours"]["median"] < 5
        assert tree["contenders"]["ours, whole fit"]["median"] < 5
    assert all(problem["difference"] < 1e-6 for problem in record["problems"])
