"""`pynade figure` on records and runs, and what `pynade reproduce` says of budgets and failures."""

import json

import numpy as np

PNG = b"\x89PNG"
TOY = """
title = "Toy"
about = "For tests."
number = [99]
bold_by = "overlap"
columns = ["digits"]
[[row]]
model = "Tree"
record = "toy/{data}/tree.json"
paper = { digits = -20.0 }
minutes = 2
fit = { model = "chow-liu", parameters = {} }
[[row]]
model = "Broken"
record = "toy/{data}/broken.json"
minutes = 1
fit = { model = "mob", parameters = { n_components = -1 } }
[[row]]
model = "Long"
record = "toy/{data}/long.json"
minutes = 500
fit = { model = "mob", parameters = {} }
[[row]]
model = "Later"
record = "toy/{data}/later.json"
paper = { digits = -10.0 }
"""


def write(path, seconds, mean, ensembles=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    value = {"mean": mean, "stderr": 0.1, "mc_stderr": 0.0, "n": 9, "exact": True}
    content = {
        "test": value,
        "mean_over_orderings": value,
        "device": "cpu (x)",
        "wall_seconds": {"fit": seconds},
    }
    path.write_text(json.dumps(content | {"ensembles": {str(k): value for k in ensembles}}))


def test_records_become_pictures(run, tmp_path):
    folder = tmp_path / "paper/results/mnist/binarized_mnist"
    write(folder / "deepnade-1hl.json", 10.0, -90.0, ensembles=(1, 2, 4))
    write(folder / "chow-liu.json", 1.0, -130.0)
    for words in (("orderings", "mnist"), ("time", "table-3")):
        code, _, err = run("figure", *words, "--out", f"{words[0]}.png")
        assert code == 0, err
        assert (tmp_path / f"{words[0]}.png").read_bytes().startswith(PNG)
    for words, message in (
        (("orderings", "binary"), "give --dataset"),
        (("orderings", "binary", "--dataset", "dna"), "no record of dna"),
        (("time", "speech"), "no two records"),
        (("time", "all"), "one table"),
    ):
        code, _, err = run("figure", *words, "--out", "x.png")
        assert code == 1
        assert message in " ".join(err.split())


def test_the_cost_of_evaluation_is_measured_and_drawn(run, tmp_path):
    np.save(tmp_path / "t.npy", (np.random.default_rng(0).random((120, 4)) < 0.5).astype(np.uint8))
    small = ("--hidden", "4", "--epochs", "1", "--device", "cpu")
    assert run("fit", "t.npy", "--model", "deepnade", *small, "--out", "deep")[0] == 0
    assert run("fit", "t.npy", "--model", "nade", *small, "--out", "nade")[0] == 0
    asked = ("--split", "all", "--rows", "60", "--draws", "2,4", "--orderings", "2")
    code, _, err = run("figure", "cost", "deep", "t.npy", *asked, "--out", "c.png", "--record", "c.json")
    assert code == 0, err
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["rows"] == 60
    assert "--draws 2,4" in record["commands"][1]
    for words, message in (
        (("deep", "t.npy"), "--out for a picture"),
        (("nade", "t.npy", "--out", "x.png", "--split", "all"), "no orderless model"),
        (("deep", "t.npy", "--out", "x.png", "--draws", "a"), "numbers separated by commas"),
    ):
        code, _, err = run("figure", "cost", *words)
        assert code == 1
        assert message in " ".join(err.split())


def test_a_cell_that_fails_does_not_stop_the_others_and_cells_left_out_are_named(run, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/toy.toml").write_text(TOY)
    toy = ("reproduce", "toy", "--protocols", "tables")
    code, out, err = run(*toy, "--device", "cpu", "--budget", "60m")
    assert code == 1
    assert (tmp_path / "paper/results/toy/digits/tree.json").is_file()
    assert "1 of 2 cells failed: toy/digits/broken" in " ".join(err.split())
    said = " ".join(out.split())
    assert "2 of 4 cells, about 3 min" in said
    assert "left out (the budget is 60 min): toy/digits/long" in said
    assert "left out (no protocol yet): toy/digits/later" in said
    log = [json.loads(line) for line in (tmp_path / "runs/reproduce/log.jsonl").read_text().splitlines()]
    outcomes = {line["cell"]: line["outcome"] for line in log[:-1]}
    assert outcomes["toy/digits/tree"] == "done"
    assert outcomes["toy/digits/broken"].startswith("ValueError: ")
    assert log[-1]["outcome"] == "end"
    assert "commands: 1, cells done: 1" in " ".join(err.split())
    code, out, _ = run(*toy, "--model", "Tree", "--quick", "--device", "cpu")
    assert code == 0
    assert "do not compare" in " ".join(out.split())
    assert "-20.00" not in out  # the paper's number would invite comparison
    code, out, _ = run(*toy, "--model", "Tree")
    assert "nothing to do" in out


def test_several_variables_per_step_are_measured_and_drawn(run, tmp_path):
    np.save("t.npy", np.random.default_rng(0).integers(0, 2, (60, 5)))
    assert (
        run("fit", "t.npy", "--model", "deepnade", "--hidden", "4", "--epochs", "2", "--out", "deep")[0] == 0
    )
    asked = ("--per-step", "1,2,5", "--rows", "6", "--samples", "3", "--split", "all")
    code, out, err = run(
        "figure", "per-step", "deep", "t.npy", *asked, "--out", "s.png", "--record", "s.json"
    )
    assert code == 0, err
    assert "nats lost" in out
    record = json.loads((tmp_path / "s.json").read_text())
    assert [line["passes"] for line in record["lines"]] == [5, 3, 1]
    assert record["lines"][0]["mean"] == 0.0
    assert record["lines"][2]["mean"] != 0.0
    assert (tmp_path / "s.png").stat().st_size > 1000
    np.save("r.npy", np.random.default_rng(0).normal(size=(60, 5)))
    small = ("--epochs", "1", "--width", "8", "--depth", "1", "--heads", "2")
    assert run("fit", "r.npy", "--model", "causal-transformer", *small, "--out", "causal")[0] == 0
    np.savetxt("g.csv", np.full((30, 5), np.nan), delimiter=",", header="a,b,c,d,e", comments="")
    for words, said in (
        (("causal", "r.npy", "--split", "all"), "no orderless model"),
        (("deep", "g.csv", "--split", "all"), "rows without gaps"),
        (("deep", "t.npy", "--per-step", "1,x"), "variables per step are numbers"),
        (("deep", "t.npy", "--per-step", "0", "--split", "all"), "at least 1 per step"),
    ):
        code, _, err = run("figure", "per-step", *words)
        assert code == 1
        assert said in " ".join(err.split())
