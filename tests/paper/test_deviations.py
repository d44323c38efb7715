"""The table of standard deviations over orderings, with made-up records and without."""

import json

import pytest

from pynade_paper.cells import Cell, cells, tables_named
from pynade_paper.commands.reproduce import _line
from pynade_paper.pages import conclusions, highlights, markdown, results_page, summary
from pynade_paper.record_figures import drawings
from pynade_paper.records import column, measured
from pynade_paper.report import html_page
from pynade_paper.reproduce import Options, reproduce
from pynade_paper.tables import Row, Table, read_tables

SHOWN = read_tables()["orderings"]
ROW = SHOWN.rows[0]


def write(results, data, std, stderr, **spec):
    """A record as a sweep with repeats leaves it."""
    file = results / ROW.record.format(data=data)
    file.parent.mkdir(parents=True, exist_ok=True)
    sweep = ROW.sweep | spec
    record = {
        "test": {"mean": -9.8, "stderr": 0.02, "exact": True},
        "repeats": {"mean": -9.9, "std": std, "stderr_of_std": stderr},
        "spec": {name: value for name, value in sweep.items() if value is not None},
        "wall_seconds": {"grid": 100.0, "final": 200.0},
        "device": "cuda (X)",
    }
    file.write_text(json.dumps(record), encoding="utf-8")


def cell_of(text, data):
    """What a Markdown table says of a data set."""
    head, _, *lines = (line for line in text.splitlines() if line.startswith("|"))
    columns = [word.strip() for word in head.strip("|").split("|")]
    return lines[0].strip("|").split("|")[columns.index(data)].strip()


def test_the_protocol_is_the_papers_repeated():
    binary = next(row for row in read_tables()["binary"].rows if row.model == "NADE")
    same = ("hidden", "activation")
    assert [ROW.sweep["fixed"][name] for name in same] == [binary.sweep["fixed"][name] for name in same]
    assert ROW.sweep["grid"] == {"learning_rate": [0.05, 0.005, 0.0005], "gamma": [0.0, 0.001, 1e-06]}
    assert (ROW.sweep["fixed"]["optimizer"], ROW.sweep["repeats"]) == ("sgd", 10)
    assert SHOWN.deviations
    assert [name for name, table in read_tables().items() if table.deviations] == ["orderings"]
    found = cells(tables_named("orderings"), data="dna")
    assert [cell.name for cell in found] == ["orderings/dna/nade"]
    assert str(found[0]).endswith("1e-06], with 10 seeds")


def test_without_records_the_papers_numbers_are_shown(tmp_path):
    text = markdown(tmp_path, SHOWN, "r")
    assert cell_of(text, "mushrooms") == "– not measured: not run yet (0.045)"
    assert cell_of(text, "nips_0_12") == "– not measured: not run yet (0.15)"


def test_a_deviation_is_shown_beside_the_papers_and_is_neither_better_nor_worse(tmp_path):
    before, said, top = summary(tmp_path), conclusions(tmp_path), highlights(tmp_path)
    write(tmp_path, "mushrooms", 0.0512, 0.0121)
    write(tmp_path, "dna", 0.0812, 0.0101)
    write(tmp_path, "nips_0_12", 0.0812, 0.0201)
    text = markdown(tmp_path, SHOWN, "r")
    assert cell_of(text, "mushrooms") == "[0.051 ± 0.012](r/orderings/mushrooms/nade.json) (0.045) same"
    assert cell_of(text, "dna") == "[0.081 ± 0.010](r/orderings/dna/nade.json) (0.05) larger"
    assert cell_of(text, "nips_0_12") == "[0.081 ± 0.020](r/orderings/nips_0_12/nade.json) (0.15) smaller"
    assert not set("▲▼†*") & set(text)
    assert (summary(tmp_path), conclusions(tmp_path), highlights(tmp_path)) == (before, said, top)
    assert column(tmp_path, SHOWN, "dna") == {}
    assert list(drawings(tmp_path)) == []  # no figure of nats has them
    page, html = results_page(tmp_path, "r"), html_page(tmp_path, "r")
    assert text in page
    assert "otherwise smaller or larger" in page
    assert '<td class="same"><a href="r/orderings/dna/nade.json">0.081 ± 0.010</a> (0.05) larger</td>' in html


@pytest.mark.parametrize(("repeats", "present"), [(10, True), (5, False), (None, False)])
def test_another_number_of_repeats_is_another_protocol(tmp_path, repeats, present):
    write(tmp_path, "dna", 0.05, 0.01, repeats=repeats)
    ours = measured(tmp_path, ROW, "dna")
    assert ours.present is present
    assert (ours.mean, ours.stderr) == (0.05, 0.01)
    assert ("†" in markdown(tmp_path, SHOWN, "r")) is not present


def test_a_record_without_repeats_is_no_number(tmp_path):
    file = tmp_path / ROW.record.format(data="dna")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"test": {"mean": -80.0, "stderr": 0.1, "exact": True}}), encoding="utf-8")
    assert measured(tmp_path, ROW, "dna") is None


def test_such_a_cell_is_made_and_tried(tmp_path):
    sweep = {
        "model": "fvsbn",
        "fixed": {"epochs": 3, "batch_size": 100},
        "grid": {"learning_rate": [0.01, 0.05]},
        "retrain": False,
        "repeats": 3,
    }
    row = Row("Net", "toy/{data}/net.json", {"digits": 0.05}, entry=("repeats", "std"), sweep=sweep)
    toy = Table("Toy", "Tests.", ["digits"], [row], "none", [])
    cell = Cell(toy, row, "digits")
    quick = reproduce(cell, tmp_path / "r", tmp_path / "w", Options("cpu", quick=True))
    assert quick["repeats"]["seeds"] == [0, 1]
    record = reproduce(cell, tmp_path / "r", tmp_path / "w", Options("cpu", seed=4))
    assert record["repeats"]["seeds"] == [4, 5, 6]
    ours = measured(tmp_path / "r", row, "digits")
    assert ours.present
    assert ours.mean == record["repeats"]["std"] > 0
    number = f"{ours.mean:.3f} ± {ours.stderr:.3f}"
    assert _line(cell, record, 3.0, False) == (cell.name, f"{number} (deviation over seeds)", "0.05", "3")
    assert _line(cell, quick, 3.0, True)[1].endswith("(deviation over seeds, quick)")
    assert f"[{number}](r/toy/digits/net.json)" in results_page(tmp_path / "r", "r", {"toy": toy})
