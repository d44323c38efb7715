"""The table of standard deviations over orderings, with made-up records and without."""

import json

import pytest

from pynade_paper.commands.reproduce import _line
from pynade.runs import pages, record_figures, report, workplan
from pynade.runs import reproduce as module
from pynade.runs import tables as tables_module
from pynade_paper.pages import conclusions, results_page
from pynade_paper.record_figures import drawings
from pynade_paper.report import html_page, summary
from pynade_paper.reproduce import Cell, cells, reproduce
from pynade_paper.tables import TABLES, Row, Table, column, highlights, markdown, measured, table
from pynade_paper.workplan import plan_page

SHOWN = table("orderings")
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
    binary = next(row for row in table("binary").rows if row.model == "NADE")
    same = ("hidden", "activation")
    assert [ROW.sweep["fixed"][name] for name in same] == [binary.sweep["fixed"][name] for name in same]
    assert ROW.sweep["grid"] == {"learning_rate": [0.05, 0.005, 0.0005], "gamma": [0.0, 0.001, 1e-06]}
    assert (ROW.sweep["fixed"]["optimizer"], ROW.sweep["repeats"]) == ("sgd", 10)
    assert SHOWN.deviations
    assert not any(table(name).deviations for name in TABLES if name != "orderings")
    assert [cell.name for cell in cells(["orderings"], data="dna")] == ["orderings/dna/nade"]


def test_without_records_the_papers_numbers_and_the_plan_stand_there(tmp_path):
    text = markdown(tmp_path, SHOWN, "r")
    assert cell_of(text, "mushrooms") == "– not measured: not run yet (0.045)"
    assert cell_of(text, "nips_0_12") == "– not measured: not run yet (0.15)"
    plan = plan_page(tmp_path)
    assert "| orderings | – | – | – | – | 24 min (3 cells) | 0 |" in plan
    assert "1e-06], with 10 seeds |" in plan


def test_the_plan_says_how_many_shared_the_gpu_and_what_the_cpu_does_meanwhile(tmp_path):
    for minute, data in enumerate(("mushrooms", "dna")):  # of five minutes each, one minute apart
        write(tmp_path, data, 0.05, 0.01)
        file = tmp_path / ROW.record.format(data=data)
        record = json.loads(file.read_text()) | {"trained": f"2020-01-01T00:0{minute}:00+00:00"}
        file.write_text(json.dumps(record))
    assert "| orderings | 10 min (2 cells) | 6 min (at most 2 at once) | – | – |" in plan_page(tmp_path)
    assert "All but RNADE on BSDS300 kept one GPU busy for 6 min, and cells not" in plan_page(tmp_path)
    assert "Beside the GPU" not in plan_page(tmp_path)
    file.write_text(json.dumps(record | {"device": "cpu (Y)"}))
    assert "5 min (at most 1 at once) | 5 min (1 cell) | 5 min |" in plan_page(tmp_path)
    assert "cells of the CPU in the last line would take 5 min (" in plan_page(tmp_path)


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
    assert "| NADE | 5 min GPU | 5 min GPU | 5 min GPU |" in plan_page(tmp_path)


def test_time_that_cells_shared_counts_once():
    day = "2026-01-01T10:00:{}+00:00"
    fitted = {"trained": day.format("00"), "wall_seconds": {"fit": 20.0, "score": 5.0}}
    fitted["scored"] = {"at": day.format("40")}
    swept = {"trained": day.format("10"), "wall_seconds": {"grid": 8.0, "final": 12.0}}
    assert [end - start for start, end in workplan.spans(fitted)] == [20.0, 5.0]
    assert workplan.covered([*workplan.spans(fitted), *workplan.spans(swept)]) == 35.0
    assert workplan.spans({}) == ()
    resumed = swept | {
        "sessions": [[day.format("00"), day.format("10")], [day.format("50"), day.format("53")]]
    }
    assert workplan.covered([*workplan.spans(resumed)]) == 20.0  # a session was killed: 7 s without an end
    whole = resumed | {"wall_seconds": {"grid": 13.0}}
    assert workplan.covered([*workplan.spans(whole)]) == 13.0


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


def test_such_a_cell_is_made_and_tried(tmp_path, monkeypatch):
    sweep = {
        "model": "fvsbn",
        "fixed": {"epochs": 3, "batch_size": 100},
        "grid": {"learning_rate": [0.01, 0.05]},
        "retrain": False,
        "repeats": 3,
    }
    row = Row("Net", "toy/{data}/net.json", {"digits": 0.05}, entry=("repeats", "std"), sweep=sweep)
    for where in (module, tables_module, pages, record_figures, report, workplan):
        monkeypatch.setattr(where, "TABLES", ("toy",))
        monkeypatch.setattr(
            where, "table", lambda name: Table("Toy", "Tests.", ["digits"], [row], "none", [])
        )
    cell = Cell("toy", row, "digits")
    quick = reproduce(cell, tmp_path / "r", tmp_path / "w", quick=True, device="cpu")
    assert quick["repeats"]["seeds"] == [0, 1]
    record = reproduce(cell, tmp_path / "r", tmp_path / "w", device="cpu", seed=4)
    assert record["repeats"]["seeds"] == [4, 5, 6]
    ours = measured(tmp_path / "r", row, "digits")
    assert ours.present
    assert ours.mean == record["repeats"]["std"] > 0
    number = f"{ours.mean:.3f} ± {ours.stderr:.3f}"
    assert _line(cell, record, 3.0, False) == (cell.name, f"{number} (deviation over seeds)", "0.05", "3")
    assert _line(cell, quick, 3.0, True)[1].endswith("(deviation over seeds, quick)")
    assert f"[{number}](r/toy/digits/net.json)" in results_page(tmp_path / "r", "r")
