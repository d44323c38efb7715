"""Tables made again, cell by cell, and the report on them."""

import itertools
import json
import time
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from pynade import plots
from pynade.runs.run import estimator_named
from pynade.runs.summary import read_metrics
from pynade_paper import reproduce as module
from pynade_paper.cells import (
    Cell,
    cells,
    expected_minutes,
    parse_minutes,
    tables_named,
    within_budget,
)
from pynade_paper.pages import conclusions, markdown, summary
from pynade_paper.records import measured
from pynade_paper.report import html_page, write_report
from pynade_paper.reproduce import Options, OutOfTime, attempt, reproduce, reproduce_all
from pynade_paper.tables import Row, Table, read_tables

TREE = Row(
    "Tree", "toy/{data}/tree.json", {"digits": -20.0}, fit={"model": "chow-liu", "parameters": {}}, minutes=2
)
SMALL = {"epochs": 3, "batch_size": 100}
FVSBN = {"model": "fvsbn", "fixed": SMALL, "grid": {"learning_rate": [0.01, 0.05]}, "retrain": False}
NET = Row("Net", "toy/{data}/net.json", {"digits": -30.0}, sweep=FVSBN, minutes=3)
DEEP = Row(
    "Deep",
    "toy/{data}/deep.json",
    {"digits": -25.0},
    entry=("ensembles", "2"),
    fit={"model": "deepnade", "parameters": {"hidden": [8], "epochs": 1}},
    orderings=2,
    minutes=4,
)
IMAGES = Row(
    "Images",
    "toy/{data}/images.json",
    entry=("ensembles", "2"),
    fit={
        "model": "convnade",
        "parameters": {"blueprint": "4@3x3(valid)->1@3x3(full)", "epochs": 3, "ema": 0.9, "score_train": 50},
    },
    orderings=3,
    draws=4,
    every=60,
    quick={"every": 30, "parameters": {"batch_size": 50}},
)
LATER = Row("Later", "toy/{data}/later.json", {"digits": -10.0})
TOY = Table(
    "Toy", "For tests.", ["digits", "gone"], [TREE, NET, DEEP, LATER], "overlap", [99], {"gone": "lost"}
)


TABLES = {"toy": TOY}
CPU = Options("cpu")
PAPER = read_tables()


@pytest.mark.parametrize("shown", PAPER.values(), ids=PAPER)
def test_every_protocol_names_a_model_and_parameters_that_exist(shown):
    columns = shown.columns
    for row in shown.rows:
        for data in columns:
            if row.fit:
                fit = row.fit_on(data)
                estimator_named(fit["model"], fit["parameters"])
            if row.sweep:
                sweep = row.sweep_on(data)
                estimator_named(sweep["model"], sweep["fixed"] | {k: v[0] for k, v in sweep["grid"].items()})
        assert set(row.paper) <= set(columns)
        for own in (row.fit or row.sweep or {}).get("own", []):
            assert set(own["on"]) <= set(columns)


def test_cells_are_found_by_table_model_and_data_set():
    assert list(tables_named("table-2")) == ["binary"]
    assert list(tables_named("table-4")) == list(tables_named("mnist")) == ["mnist"]
    assert tables_named("all") == PAPER
    assert list(PAPER) == ["binary", "orderings", "mnist", "uci", "patches", "speech"]
    names = [cell.name for cell in cells(tables_named("binary"), model="NADE")]
    assert "binary/dna/nade" in names
    assert not any("rcv1" in name for name in names)  # not available
    with pytest.raises(ValueError, match="known: binary"):
        tables_named("table-1")
    with pytest.raises(ValueError, match="no cell"):
        cells(tables_named("uci"), model="nothing")


def test_a_record_is_made_once_and_the_report_shows_it(tmp_path):
    results, work = tmp_path / "paper/results", tmp_path / "work"
    made = {c.row.model: c for c in cells(TABLES)}
    tree = reproduce(made["Tree"], results, work, CPU)
    net = reproduce(made["Net"], results, work, CPU)
    deep = reproduce(made["Deep"], results, work, CPU)
    assert json.loads((results / "toy/digits/tree.json").read_text()) == tree
    assert len(net["validation_grid"]) == 2
    assert deep["ensembles"]["2"]["n"] == 300
    assert not any(p.is_file() for p in work.rglob("*"))  # nothing left behind
    assert net["wall_seconds"].keys() == {"grid", "final"}
    stamp = (results / "toy/digits/tree.json").stat().st_mtime_ns
    assert reproduce(made["Tree"], results, work) == tree
    assert (results / "toy/digits/tree.json").stat().st_mtime_ns == stamp
    for cell, before in ((made["Tree"], tree), (made["Net"], net), (made["Deep"], deep)):
        same = reproduce(cell, results, work, Options("cpu", again=True))
        assert same["test"] == before["test"]  # same seed, same number
        assert same.get("ensembles") == before.get("ensembles")
        assert same["trained"] >= before["trained"]
    other = reproduce(made["Net"], tmp_path / "other", work, Options("cpu", seed=1))
    assert other["test"] != net["test"]

    readme = tmp_path / "README.md"
    readme.write_text("# Toy\n")
    written = write_report(results, tmp_path / "r.md", tmp_path / "r.html", readme, tables=TABLES)
    assert {p.name for p in written} == {"time-toy.png", "r.md", "r.html", "README.md"}
    assert readme.read_text() == "# Toy\n"  # no marks, no table
    again = write_report(results, tmp_path / "r.md", tmp_path / "r.html", tables=TABLES)
    assert not [p for p in again if p.suffix == ".png"]
    text = (tmp_path / "r.md").read_text()
    assert f"{tree['test']['mean']:.2f} ± {tree['test']['stderr']:.2f}" in text
    assert "– not measured: no protocol yet (-10.00)" in text
    assert f"{tree['test']['mean'] + 20:+.2f}) " in text  # the difference
    assert "(paper/results/figures/time-toy.png)" in text
    assert summary(results, TABLES)["not measured"] == 1 + 4
    assert "not measured: lost" in text
    assert ("▲" if tree["test"]["mean"] > -20 else "▼") in text
    assert f"{net['test']['mean']:.2f}" in html_page(results, tables=TABLES)


def test_quick_does_not_touch_the_results(tmp_path):
    results, work = tmp_path / "paper/results", tmp_path / "work"
    for cell in cells(TABLES)[:3]:
        record = reproduce(cell, results, work, Options("cpu", quick=True))
        assert record["quick"] is True
        assert "not comparable" in record["note"]
        assert "test" not in record
        if "grid" in record["spec"]:
            assert record["spec"]["fixed"]["epochs"] == module.QUICK["epochs"]
    assert not results.exists()


@pytest.mark.parametrize("shown", PAPER.values(), ids=PAPER)
def test_the_trial_of_every_protocol_is_one_its_estimator_takes(shown):
    for row, data in itertools.product(shown.rows, shown.columns):
        if row.fit or row.sweep:
            spec = row.fit_on(data) if row.fit else row.sweep_on(data)
            given = spec.get("parameters", spec.get("fixed"))
            few = module._few(spec["model"], given) | row.quick.get("parameters", {})
            orders = estimator_named(spec["model"], given | few).get_params().get("n_orderings", 1)
            if "n_orderings" in given:
                assert orders == 2
            elif given.get("fixed_order") or spec["model"] in ("causal-transformer", "made", "nade"):
                assert orders == 1


def test_our_best_is_chosen_by_its_validation_score(tmp_path):
    for row, test, valid in ((TREE, -9.0, -8.0), (NET, -11.0, -7.0)):
        file = tmp_path / row.record.format(data="digits")
        file.parent.mkdir(parents=True, exist_ok=True)
        score = {"stderr": 0.1, "exact": True}
        record = {"test": score | {"mean": test}, "valid": score | {"mean": valid}, "spec": {}}
        file.write_text(json.dumps(record), encoding="utf-8")
    (line,) = [line for line in conclusions(tmp_path, TABLES) if "our best" in line]
    assert "is above the paper's best in 0 of 1" in line  # the paper's is -10, and the tree would be above it


def test_an_interrupted_cell_is_resumed(tmp_path):
    cell = Cell(TOY, NET, "digits")
    whole = reproduce(cell, tmp_path / "a", tmp_path / "wa", CPU)

    class Killed(Exception):
        pass

    def kill(p):
        raise Killed

    with pytest.raises(Killed):
        reproduce(cell, tmp_path / "b", tmp_path / "wb", CPU, progress=kill)
    again = reproduce(cell, tmp_path / "b", tmp_path / "wb", CPU)
    assert again["test"] == whole["test"]

    with pytest.raises(Killed):  # made again and interrupted: it is resumed without `again`
        reproduce(cell, tmp_path / "b", tmp_path / "wb", Options("cpu", again=True), progress=kill)
    assert module.in_progress(cell, tmp_path / "wb")
    stamp = (tmp_path / "b/toy/digits/net.json").stat().st_mtime_ns
    assert reproduce(cell, tmp_path / "b", tmp_path / "wb", CPU)["test"] == whole["test"]
    assert (tmp_path / "b/toy/digits/net.json").stat().st_mtime_ns > stamp
    assert not module.in_progress(cell, tmp_path / "wb")
    with pytest.raises(ValueError, match="tpu"):
        reproduce(cell, tmp_path / "b", tmp_path / "wb", Options("tpu", again=True))
    assert not module.in_progress(cell, tmp_path / "wb")  # nothing was begun


def test_an_interrupted_run_goes_on_but_not_with_other_settings(tmp_path):
    cell = Cell(TOY, DEEP, "digits")
    whole = reproduce(cell, tmp_path / "a", tmp_path / "wa", CPU)

    def kill(now):
        raise KeyboardInterrupt

    for seed in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            reproduce(
                cell,
                tmp_path / f"b{seed}",
                tmp_path / f"w{seed}",
                Options("cpu", seed=seed),
                callbacks=[kill],
            )
    again = reproduce(cell, tmp_path / "b0", tmp_path / "w0", CPU)
    assert again["test"] == whole["test"]
    with pytest.raises(ValueError, match="started with another random_state; --again"):
        reproduce(cell, tmp_path / "b1", tmp_path / "w1", CPU)
    assert (
        reproduce(cell, tmp_path / "b1", tmp_path / "w1", Options("cpu", again=True))["test"] == whole["test"]
    )


def test_the_error_of_a_cell_is_its_outcome_and_late_cells_are_not_started(tmp_path):
    broken = Cell(
        TOY,
        Row("X", "toy/{data}/x.json", fit={"model": "mob", "parameters": {"n_components": -1}}),
        "digits",
    )
    error, _ = attempt(broken, tmp_path / "r", tmp_path / "w", CPU)
    assert isinstance(error, ValueError)
    late, seconds = attempt(
        Cell(TOY, TREE, "digits"), tmp_path / "r", tmp_path / "w", Options(deadline=time.time() + 60)
    )
    assert isinstance(late, OutOfTime)  # two minutes are planned
    assert seconds == 0
    assert not list(tmp_path.rglob("*.json"))


class Stop(Exception):
    pass


def test_an_ensemble_of_images_goes_on_from_every_stage_and_says_how_it_is_composed(tmp_path, monkeypatch):
    cell = Cell(TOY, IMAGES, "digits")
    whole = reproduce(cell, tmp_path / "a", tmp_path / "wa", Options("cpu", keep=True))
    assert (whole["test"]["exact"], whole["test"]["orderings"], whole["test"]["n"]) == (False, 3, 300)
    assert whole["test"]["mc_stderr"] > 0
    parts = whole["composition"]
    assert (parts["subset"], parts["draws"]) == ("test[::60]", 4)
    assert parts["exact_ensemble_on_subset"]["exact"] is True
    assert parts["exact_ensemble_on_subset"]["n"] == 5
    total = parts["estimate_on_all_rows"]["mean"] + parts["correction"]["mean"]
    assert whole["test"]["mean"] == pytest.approx(total)
    assert set(whole["ensembles"]) == {"1", "2", "3"}
    assert whole["ensembles"]["3"]["mean"] == whole["test"]["mean"]
    assert whole["mean_over_orderings"] == parts["estimate_on_all_rows"]
    assert "--estimate 4 --every 60" in whole["commands"][1]
    assert len(whole["curve"]["train_scored_nll"]) == len(whole["curve"]["valid_nll"]) == 3
    run = tmp_path / "wa/full/toy/digits/images"
    assert (run / "model.safetensors").is_file()  # kept
    assert plots.training(read_metrics(run)).lines

    def kill(p):
        if p.epoch_done and p.epoch == 2:
            raise Stop

    def refuse(*_, **__):
        raise Stop

    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", 0.0)
    places = (tmp_path / "b", tmp_path / "wb")
    with pytest.raises(Stop):
        reproduce(cell, *places, CPU, callbacks=[kill])
    with monkeypatch.context() as patch:
        patch.setattr("pynade.evaluation.estimate_rows", refuse)
        with pytest.raises(Stop):
            reproduce(cell, *places, CPU)
    assert any((tmp_path / "wb").rglob("chunks-*/*.safetensors"))  # the exact part is done
    with monkeypatch.context() as patch:
        patch.setattr("pynade.models.Rows.log_probs", refuse)  # and is not done again
        again = reproduce(cell, *places, CPU)
    for name in ("test", "ensembles", "composition", "mean_over_orderings", "valid"):
        assert again[name] == whole[name]
    assert not any(p.is_file() for p in places[1].rglob("*"))
    quick = reproduce(cell, tmp_path / "c", tmp_path / "wc", Options("cpu", quick=True))
    assert quick["composition"]["subset"] == "valid[::30]"
    assert quick["spec"]["parameters"]["batch_size"] == 50


def test_a_budget_takes_the_widest_gaps_first_and_says_what_is_left(tmp_path):
    todo = cells(TABLES)
    taken, left = within_budget(todo, tmp_path, minutes=5.5)
    assert [c.row.model for c in taken] == ["Tree", "Net"]  # all unmeasured: the quickest first
    assert {c.row.model for c in left} == {"Deep", "Later"}
    ours = Cell(
        TOY, replace(TREE, model="Ours", record="toy/{data}/ours.json", paper={}, minutes=0.1), "digits"
    )
    taken, _ = within_budget([ours, *todo], tmp_path, minutes=None)
    assert [c.row.model for c in taken] == ["Tree", "Net", "Deep", "Ours"]  # what the paper has comes first
    for row, mean in ((TREE, -20.5), (NET, -39.0), (DEEP, -25.1)):
        file = tmp_path / row.record.format(data="digits")
        file.parent.mkdir(parents=True, exist_ok=True)
        value = {"mean": mean, "stderr": 0.1, "exact": True}
        file.write_text(json.dumps({"test": value, "ensembles": {"2": value}}))
    taken, _ = within_budget(todo, tmp_path, minutes=None)
    assert [c.row.model for c in taken] == ["Net", "Tree", "Deep"]
    taken, _ = within_budget(
        todo, tmp_path, minutes=4.5, workers=2
    )  # nine minutes of work, none longer than 4.5
    assert [c.row.model for c in taken] == ["Net", "Tree", "Deep"]


def test_a_measured_time_replaces_the_guess_on_the_same_kind_of_device(tmp_path):
    cell = Cell(TOY, TREE, "digits")
    file = tmp_path / "toy/digits/tree.json"
    file.parent.mkdir(parents=True)
    content = {"test": {"mean": -1.0, "stderr": 0.1, "exact": True}, "device": "cpu (x)"}
    content["spec"] = {"model": "chow-liu", "data": "digits", "parameters": {}}
    file.write_text(json.dumps(content | {"wall_seconds": {"fit": 20.0, "score": 10.0}}))
    assert expected_minutes(cell, tmp_path, "cpu") == 0.5
    assert expected_minutes(cell, tmp_path, "cuda") == TREE.minutes
    assert expected_minutes(cell, tmp_path) == (TREE.minutes if torch.cuda.is_available() else 0.5)
    assert expected_minutes(Cell(TOY, NET, "digits"), tmp_path, quick=True) < NET.minutes
    assert len(within_budget(cells(TABLES), tmp_path, minutes=1.6, quick=True)[0]) == 3  # trials are short
    file.write_text("{")
    with pytest.raises(ValueError, match=r"tree\.json is not a record"):
        expected_minutes(cell, tmp_path, "cpu")


def test_budgets_are_written_as_people_write_them():
    assert [parse_minutes(t) for t in ("60m", "2h", "1h30m", "0.5h")] == [60, 120, 90, 30]
    with pytest.raises(ValueError, match="60m"):
        parse_minutes("soon")
    with pytest.raises(ValueError, match="0 minutes"):
        parse_minutes("0m")


def test_a_fold_that_makes_most_of_the_error_is_shown(tmp_path):
    file = tmp_path / "toy/digits/tree.json"
    file.parent.mkdir(parents=True)
    for folds, shown in (([-10.0, -11.0, -10.5, -90.0], True), ([-10.0, -11.0, -10.5, -12.0], False)):
        value = {"mean": float(np.mean(folds)), "stderr": 1.0, "exact": True, "folds": folds}
        file.write_text(json.dumps({"test": value}))
        assert (", one fold -90.00" in markdown(tmp_path, TOY, "r")) == shown
        assert (") unstable |" in markdown(tmp_path, TOY, "r")) == shown
    value |= {"mean": -30.4, "stderr": 19.9, "folds": [-10.0, -11.0, -10.5, -90.0]}
    file.write_text(json.dumps({"test": value}))
    (line,) = [line for line in conclusions(tmp_path, TABLES) if "1 numbers that" in line]
    assert (
        "0 the same within two standard errors, 0 worse, 1 unstable, since one fold makes the error (Tree"
        in line
    )


def test_seeds_of_a_grid_are_counted_from_the_seed(tmp_path):
    grid = {"random_state": [0, 1]}
    row = replace(NET, sweep=FVSBN | {"grid": grid}, record="toy/{data}/seeds.json")
    cell = Cell(TOY, row, "digits")
    first, second = (
        reproduce(cell, tmp_path / f"r{seed}", tmp_path / "w", Options("cpu", seed=seed)) for seed in (0, 5)
    )
    assert [line["random_state"] for line in second["validation_grid"]] == [5, 6]
    assert first["validation_grid"][0]["valid"] != second["validation_grid"][0]["valid"]
    for seed in (0, 5):
        assert measured(tmp_path / f"r{seed}", row, "digits").present


def test_a_trial_with_another_seed_is_another_trial(tmp_path):
    net = cells(TABLES, model="Net")[0]
    where = (tmp_path / "r", tmp_path / "w")
    first, again, other = (reproduce(net, *where, Options("cpu", quick=True, seed=s)) for s in (0, 0, 3))
    assert first["valid"] == again["valid"]
    assert other["seed"] == 3
    assert other["valid"] != first["valid"]
    assert first["valid"]["n"] <= 200


def test_what_an_earlier_protocol_made_is_found_and_made_anew(tmp_path):
    results, work = tmp_path / "paper/results", tmp_path / "work"
    net = cells(TABLES, model="Net")[0]
    reproduce(net, results, work, CPU)
    longer = Cell(TOY, replace(NET, sweep=FVSBN | {"fixed": SMALL | {"epochs": 4}}), "digits")
    assert not measured(results, longer.row, "digits").present
    assert reproduce(longer, results, work, CPU)["spec"]["fixed"]["epochs"] == 3  # it is there
    made = reproduce(longer, results, work, Options("cpu", outdated=True))
    assert made["spec"]["fixed"]["epochs"] == 4
    assert measured(results, longer.row, "digits").present
    other = replace(longer.row, sweep=longer.row.sweep | {"model": "nade"})
    assert not measured(results, other, "digits").present
    deep = cells(TABLES, model="Deep")[0]
    reproduce(deep, results, work, CPU)
    assert measured(results, deep.row, "digits").present
    elsewhere = replace(deep.row, fit=deep.row.fit | {"model": "eonade"})
    assert not measured(results, elsewhere, "digits").present
    assert not measured(results, replace(deep.row, orderings=4), "digits").present


def test_what_was_begun_otherwise_is_not_mixed(tmp_path):
    net = cells(TABLES, model="Net")[0]
    where = (tmp_path / "r", tmp_path / "w")
    reproduce(net, *where, Options("cpu", keep=True))
    with pytest.raises(ValueError, match=r"toy/digits/net was started with other .* --again starts it again"):
        reproduce(net, tmp_path / "other", tmp_path / "w", Options("cpu", seed=1))
    assert reproduce(net, *where, Options("cpu", seed=1, outdated=True))["seed"] == 1  # of no use any more
    deep = cells(TABLES, model="Deep")[0]
    reproduce(deep, *where, Options("cpu", keep=True))
    longer = replace(
        deep, row=replace(deep.row, fit=deep.row.fit | {"parameters": {"hidden": [8], "epochs": 2}})
    )
    with pytest.raises(ValueError, match="toy/digits/deep was started with another epochs"):
        reproduce(longer, tmp_path / "other", tmp_path / "w", CPU)
    assert reproduce(longer, *where, Options("cpu", outdated=True))["epochs"] == 2


def test_a_trial_shows_what_was_scored_and_is_always_made(tmp_path):
    deep = cells(TABLES, model="Deep")[0]
    where = (tmp_path / "r", tmp_path / "w")
    first = reproduce(deep, *where, Options("cpu", quick=True))
    assert first["valid"]["orderings"] == 2  # of the score, not of the training's own validation
    wider = replace(
        deep, row=replace(deep.row, fit=deep.row.fit | {"parameters": {"hidden": [9], "epochs": 1}})
    )
    assert reproduce(wider, *where, Options("cpu", quick=True))["spec"]["parameters"]["hidden"] == [9]


def test_only_its_own_workers_are_stopped(tmp_path):
    mine = get_context("spawn").Process(target=time.sleep, args=(60,))
    mine.start()
    try:
        todo = [cell for cell in cells(tables_named("uci")) if cell.row.model == "Gaussian"]
        made = reproduce_all(todo, 2, tmp_path / "r", tmp_path / "w", Options("cpu", data_dir=tmp_path))
        next(made)  # there are no data: an error is an outcome too
        made.close()
        assert mine.is_alive()
    finally:
        mine.terminate()


def test_rows_without_a_model_are_shown_and_not_run(tmp_path):
    rows = [TREE, replace(LATER, why="not implemented yet", bold=["digits"])]
    tables = {"toy": replace(TOY, rows=rows)}
    assert [cell.row.model for cell in cells(tables)] == ["Tree"]
    text = markdown(tmp_path, tables["toy"], "r")
    assert "– not measured: not implemented yet (**-10.00**)" in text
    with pytest.raises(ValueError, match="gone is not measured: lost"):
        cells(tables, data="gone")
    with pytest.raises(ValueError, match="no cell of toy has model 'x'; models: tree; data sets: digits"):
        cells(tables, model="x")


def test_only_numbers_on_the_papers_data_are_ranked_by_their_gap(tmp_path):
    results = tmp_path / "paper/results"
    made = {c.row.model: c for c in cells(TABLES)}
    for cell in (made["Tree"], made["Deep"]):
        reproduce(cell, results, tmp_path / "work", CPU)
    gaps = {name: measured(results, made[name].row, "digits").mean for name in ("Tree", "Deep")}
    widest = min(gaps, key=lambda name: gaps[name] - made[name].row.paper["digits"])
    both = [made["Tree"], made["Deep"]]
    assert within_budget(both, results, None, "cpu")[0][0].row.model == widest
    both = [replace(cell, table=replace(TOY, compare=False)) for cell in both]
    shortest = min(both, key=lambda cell: expected_minutes(cell, results, "cpu"))
    assert within_budget(both, results, None, "cpu")[0][0] == shortest


def test_a_data_set_may_have_a_protocol_of_its_own(tmp_path):
    own = {"on": ["digits"], "fixed": {"epochs": 2}, "grid": {"learning_rate": [0.02, 0.03, 0.04]}}
    elsewhere = {"on": ["others"], "fixed": {"epochs": 4}}
    cell = Cell(TOY, replace(NET, sweep=FVSBN | {"own": [own, elsewhere]}), "digits")
    record = reproduce(cell, tmp_path / "r", tmp_path / "w", CPU)
    assert [line["learning_rate"] for line in record["validation_grid"]] == [0.02, 0.03, 0.04]
    assert record["spec"]["fixed"]["epochs"] == 2 != FVSBN["fixed"]["epochs"]
    assert measured(tmp_path / "r", cell.row, "digits").present
    assert not measured(tmp_path / "r", NET, "digits").present
    assert "epochs 2," in str(cell)
    assert "epochs 4," in str(replace(cell, data="others"))


def test_what_one_data_set_tries_may_be_fixed_for_the_others():
    row = replace(NET, sweep=FVSBN | {"own": [{"on": ["digits"], "grid": {"epochs": [1, 2]}}]})
    assert "epochs" not in row.sweep_on("digits")["fixed"]
    assert row.sweep_on("digits")["grid"]["epochs"] == [1, 2]
    assert row.sweep_on("others")["fixed"] == FVSBN["fixed"]
    fixed = replace(NET, sweep=FVSBN | {"own": [{"on": ["digits"], "fixed": {"learning_rate": 0.3}}]})
    assert fixed.sweep_on("digits")["fixed"]["learning_rate"] == 0.3
    assert fixed.sweep_on("digits")["grid"] == {}
    assert fixed.sweep_on("others") == FVSBN
    with pytest.raises(ValueError, match="Net: an own protocol has no retrain"):
        replace(NET, sweep=FVSBN | {"own": [{"on": [], "retrain": True}]}).sweep_on("digits")


def test_a_fit_may_have_parameters_of_its_own_on_a_data_set(tmp_path):
    own = {"on": ["digits"], "parameters": {"alpha": 0.5}}
    cell = Cell(TOY, replace(TREE, fit=TREE.fit | {"own": [own]}), "digits")
    record = reproduce(cell, tmp_path / "r", tmp_path / "w", CPU)
    assert record["spec"]["parameters"]["alpha"] == 0.5
    assert "alpha 0.5" in str(cell)
    assert "alpha" not in str(replace(cell, data="others"))
    assert measured(tmp_path / "r", cell.row, "digits").present
    other = replace(TREE, fit=TREE.fit | {"own": [own | {"parameters": {"alpha": 0.1}}]})
    assert not measured(tmp_path / "r", other, "digits").present
    with pytest.raises(ValueError, match="Tree: an own protocol has no grid"):
        replace(TREE, fit=TREE.fit | {"own": [{"on": [], "grid": {}}]}).fit_on("digits")


def test_factors_are_tried_up_to_the_number_of_columns():
    mfa = next(row for row in PAPER["uci"].rows if row.model == "MFA")
    assert [max(mfa.sweep_on(data)["grid"]["n_factors"]) for data in PAPER["uci"].columns] == [10, 10, 14]
