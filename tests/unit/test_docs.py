"""Documents say what the records say."""

import json
import re
from pathlib import Path

import pytest

from pynade.experiments.tables import highlights, results_page

ROOT = Path(__file__).parents[2]


def test_documents_show_what_the_records_say():
    assert highlights(ROOT / "results") in (ROOT / "README.md").read_text(encoding="utf-8")
    assert results_page(ROOT / "results") == (ROOT / "docs/results.md").read_text(encoding="utf-8")


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
    wanted = {"test", "valid", "spec", "commands", "seed", "data_checksum", "code", "libraries", "device"}
    assert wanted <= set(record)
    assert {"mean", "stderr", "mc_stderr", "n", "exact", "orderings"} <= set(record["test"])
    assert {"fit", "score"} <= set(record["wall_seconds"])
