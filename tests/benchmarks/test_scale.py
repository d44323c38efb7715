"""benchmarks/scale.py and plan.py: the same data again, equal answers, a formula that fits the record."""

import json
import runpy
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).parents[2]
SCALE, PLAN = (runpy.run_path(str(ROOT / f"benchmarks/{name}.py")) for name in ("scale", "plan"))
RECORD = json.loads((ROOT / "paper/results/benchmarks/scale.json").read_text(encoding="utf-8"))
LINES = {(line["ask"], line["rows"]): line for line in RECORD["lines"]}


def test_the_data_follow_from_the_seed_and_the_number_of_a_file(tmp_path):
    made = SCALE["table"](3, 500)
    assert made.equals(SCALE["table"](3, 500))
    assert not made.equals(SCALE["table"](4, 500))
    assert made.width == PLAN["COLUMNS"] == RECORD["model"]["columns"]
    facts = SCALE["make_table"](tmp_path / "data", 700)
    assert facts["bytes"] == sum(file.stat().st_size for file in (tmp_path / "data").iterdir())
    assert pl.read_parquet(tmp_path / "data/*.parquet").height == 700


def test_streamed_and_whole_answers_are_equal(tmp_path):
    SCALE["make_table"](tmp_path / "data", 400)
    model, found = tmp_path / "model.safetensors", {}
    SCALE["make_model"](model, rows=300, epochs=1, mixture=False)
    for whole in (False, True):
        out = tmp_path / f"{whole}"
        out.mkdir()
        found[whole] = SCALE["measured"]("score", tmp_path / "data", model, out, whole)
    assert found[True]["mean"] == pytest.approx(found[False]["mean"], rel=1e-12)


@pytest.mark.parametrize("asked", LINES, ids=str)
def test_the_formula_fits_what_was_measured(asked):
    """Within a third, the points of 10^7 rows too, from which it has nothing."""
    ask, rows = asked
    line = LINES[asked]["stream"]
    predicted = PLAN["processor_seconds"](RECORD, ask, rows)
    assert predicted == pytest.approx(min(line["processor_seconds"]), rel=1 / 3)
    memory = PLAN["plan"](RECORD, ask, rows, workers=1)["memory, GiB"]
    assert memory == pytest.approx(max(line["mib"]) / 1024, rel=1 / 3)


def test_the_record_keeps_its_limits():
    most = max(rows for ask, rows in LINES if ask == "score")
    assert SCALE["exponent"](RECORD, "score", "processor_seconds", most) <= 1.05
    assert max(LINES["score", most]["stream"]["mib"]) <= 2 * 1024
    assert LINES["score", 10**6]["rate_beside_whole_by_processor_seconds"] >= 0.8
    assert all(max(line["stream"]["mib"]) <= 3 * 1024 for (ask, _), line in LINES.items() if ask == "fit")


def test_the_slower_of_computing_and_reading_decides():
    few, many, fast = (PLAN["plan"](RECORD, "score", 1e9, read=read) for read in (1, 500, 1e9))
    assert few["first at its limit"] == "reading and writing"
    assert many["first at its limit"] == fast["first at its limit"] == "cores"
    assert few["minutes"] > many["minutes"] == fast["minutes"]
    assert PLAN["plan"](RECORD, "score", 1e9, workers=32)["minutes"] == pytest.approx(
        fast["minutes"] / 2, rel=0.01
    )


def test_the_page_has_the_measurements_and_the_plans():
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    assert SCALE["lines_of"](RECORD) in page
    assert PLAN["table"](RECORD) in page
    growth = SCALE["exponent"](
        RECORD, "score", "processor_seconds", max(n for ask, n in LINES if ask == "score")
    )
    assert f"grow with the power {growth:.2f} of the rows" in page


def test_the_page_of_tables_has_the_record_of_planted_errors():
    record = json.loads((ROOT / "paper/results/benchmarks/planted-errors.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/tables.md").read_text(encoding="utf-8")
    for name, found in record["tables"].items():
        test, drawn = (found[rows]["log_odds"] for rows in ("test rows", "rows drawn from the model"))
        cells = [test["all"], test["moved"], test["shifted"], drawn["all"]]
        part = page.partition("## How many planted errors can be found")[2]
        shown = next(line for line in part.splitlines() if line.startswith(f"| {name} |"))
        assert [float(cell) for cell in shown.split("|")[2:-1]] == pytest.approx(cells, abs=6e-4)


@pytest.mark.parametrize("words", [["--workers", "0"], ["--read", "0"], ["--rate", "-1"], ["--rows", "nan"]])
def test_a_plan_is_for_numbers_above_zero(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["plan.py", "--rows", "1e9", *words])
    with pytest.raises(SystemExit):
        PLAN["main"]()
    assert f"argument {words[0]}: expected a number above 0, not {words[1]}" in capsys.readouterr().err
