"""Errors by image or speaker, and paired differences, from the records alone."""

import json
from dataclasses import replace

import numpy as np
import pytest

from pynade.likelihood import Estimate
from pynade_paper.pages import grouped_differences, markdown
from pynade_paper.records import between, measured
from pynade_paper.tables import Row, Table, read_tables

TREE = Row("MoG", "toy/{data}/mog.json", {"photos": -9.0}, fit={"model": "mog", "parameters": {}})
NET = Row("Net", "toy/{data}/net.json", {}, fit={"model": "rnade", "parameters": {}})
OLD = Row("Old", "toy/{data}/old.json", {}, fit={"model": "rnade", "parameters": {}})
TOY = Table("Toy", "For tests.", ["photos"], [TREE, NET, OLD], "overlap", [99], grouped_by="image")


@pytest.fixture
def records(tmp_path):
    """Rows of five images: the second model is half a nat better on each, and a little more on some."""
    rng = np.random.default_rng(0)
    images = rng.normal(-10, 3, 5)
    for row, means in ((TREE, images), (NET, images + 0.5 + 0.02 * np.arange(5)), (OLD, images - 1)):
        file = tmp_path / row.record.format(data="photos")
        file.parent.mkdir(parents=True, exist_ok=True)
        number = Estimate(float(means.mean()), 0.01, 500).to_json()
        record = {"test": number, "spec": row.fit | {"data": "photos"}}
        if row is not OLD:
            facts = {"by": "image", "stderr": Estimate.from_rows(means).stderr}
            record["groups"] = facts | {"rows": [100] * 5, "means": means.tolist()}
        file.write_text(json.dumps(record), encoding="utf-8")
    return tmp_path


def test_cells_have_both_errors_or_say_that_one_is_missing(records):
    tree, net, old = markdown(records, TOY, "r").splitlines()[2:]
    error = measured(records, TREE, "photos").groups.stderr
    assert f"± 0.01 (by image: ± {error:.2f})](r/toy/photos/mog.json)" in tree
    assert "(by image: ± " in net
    assert "± 0.01 (by image: not measured)](r/toy/photos/old.json)" in old
    assert "by image" not in markdown(records, replace(TOY, grouped_by=""), "r")


def test_a_paired_difference_is_known_better_than_the_levels(records):
    tree, net, old = (measured(records, row, "photos") for row in TOY.rows)
    gap, error = between(net, tree)
    assert gap == pytest.approx(0.54)
    assert error == pytest.approx(0.02 * np.arange(5).std(ddof=1) / 5**0.5)
    assert error < tree.groups.stderr / 20
    assert between(old, tree)[1] == pytest.approx(0.01 * 2**0.5)  # of independent rows: there is nothing else
    text = grouped_differences(records, TOY)
    assert text.splitlines()[-1] == f"| Net | photos | MoG | +0.54 ± {error:.2f} |"
    assert "Old" not in text


def test_data_whose_test_rows_have_groups_say_so_in_their_table():
    named = {name: shown.grouped_by for name, shown in read_tables().items() if shown.grouped_by}
    assert named == {"patches": "image", "speech": "speaker"}
