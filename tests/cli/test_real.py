"""Real-valued tables on the command line: fit, ask, sweep, draw, and the mistakes one makes with them."""

import json

import numpy as np
import pytest

SMALL = ["--hidden", "6", "--epochs", "2", "--components", "2"]
SWEEP = ["--set", "hidden=5", "--set", "epochs=2", "--set", "n_components=2", "--set", "device=cpu"]


@pytest.fixture
def table(tmp_path):
    """A table with a constant column, in units of its own."""
    rng = np.random.default_rng(0)
    height = 1000 + 300 * rng.normal(size=80)
    pressure = 1013 - height / 9 + rng.normal(size=80)
    lines = ["height,site,pressure"]
    lines += [f"{h:.3f},7,{p:.3f}" for h, p in zip(height, pressure, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    return np.column_stack([height, pressure])


def test_the_whole_way_with_a_constant_column_left_out(run, table, tmp_path):
    code, _, err = run("fit", "t.csv", "--model", "rnade", *SMALL, "--out", "r")
    assert code == 1
    assert "column 'site' is constant (7)" in err
    assert "--drop-constant" in err
    assert not (tmp_path / "r").exists()
    code, _, err = run("fit", "t.csv", "--model", "deep-rnade", *SMALL, "--drop-constant", "--out", "r")
    assert code == 0, err
    assert json.loads((tmp_path / "r/spec.json").read_text())["drop_constant"] is True
    code, _, err = run("score", "r", "t.csv", "--rows", "s.csv")  # the file still has the constant column
    assert code == 0, err
    assert np.isfinite(np.loadtxt(tmp_path / "s.csv", skiprows=1)).all()
    code, _, err = run("sample", "r", "-n", "200", "--out", "n.csv")
    assert code == 0, err
    drawn = np.loadtxt(tmp_path / "n.csv", skiprows=1, delimiter=",")
    assert drawn.shape == (200, 2)
    assert 500 < np.median(drawn[:, 0]) < 1500  # metres, not standard deviations
    (tmp_path / "gaps.csv").write_text("height,site,pressure\n1000.0,7,\n,7,900.0\n")
    code, _, err = run("impute", "r", "gaps.csv", "--out", "full.csv")
    assert code == 0, err
    filled = np.loadtxt(tmp_path / "full.csv", skiprows=1, delimiter=",")
    assert filled[0, 0] == 1000.0
    assert filled[1, 1] == 900.0
    assert np.isfinite(filled).all()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a,b", "1.5,high", "2.5,3"], "b"),
        (["a,b", "1.5,inf", "2.5,3", "3.5,4"], "inf"),
        (["a,b", "1.5,0", "2.5,1", "3.5,0", "4.5,1"], "two distinct values"),
    ],
)
def test_bad_columns_get_one_sentence(run, tmp_path, lines, words):
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    code, out, err = run("fit", "bad.csv", "--model", "rnade", *SMALL, "--sigma-floor", "0", "--out", "r")
    assert code == 1
    assert out == ""
    assert err.startswith("Error: ")
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_a_sweep_over_folds_of_ones_own_table(run, table, tmp_path):
    np.save(tmp_path / "t.npy", table)
    words = ["sweep", "t.npy", "--folds", "4", *SWEEP, "--grid", "learning_rate=0.01,0.03", "--out", "s"]
    code, out, err = run(*words, "--record", "r.json")
    assert code == 0, err
    assert "s.e. over folds" in out
    record = json.loads((tmp_path / "r.json").read_text())
    assert len(record["chosen"]) == len(record["test"]["folds"]) == 4
    assert record["test"]["n"] == 80
    again = run(*words)
    assert again[0] == 0
    code, _, err = run("sweep", "t.npy", "--folds", "50", *SWEEP, "--grid", "learning_rate=0.1", "--out", "x")
    assert code == 1
    assert "too few for 50 folds" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--grid", "learning_rate"], "NAME=VALUE"),
        (["--grid", "learning_rat=0.1"], "learning_rate"),
        (["--set", "hidden=5,6"], "--grid takes several"),
        (["--grid", "learning_rate=0.1"], "--folds"),
        (["--folds", "4", "--repeats", "2"], "not for 4 folds"),
    ],
)
def test_mistakes_in_a_sweep_get_one_sentence(run, table, tmp_path, words, says):
    np.save(tmp_path / "t.npy", table)
    code, _, err = run("sweep", "t.npy", *words, "--out", "s")
    assert code == 1
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_a_sweep_says_how_far_seeds_differ(run, tmp_path):
    words = ["--model", "fvsbn", "--set", "epochs=2", "--set", "device=cpu", "--no-retrain", "--repeats", "2"]
    code, out, err = run("sweep", "digits", *words, "--seed", "5", "--out", "s")
    assert code == 0, err
    record = json.loads((tmp_path / "s/result.json").read_text())
    assert record["repeats"]["seeds"] == [5, 6]
    assert f"standard deviation {record['repeats']['std']:.3f} ±" in " ".join(out.split())


def test_a_figure_of_two_models(run, table, tmp_path):
    np.save(tmp_path / "t.npy", table)
    for name in ("a", "b"):
        assert run("fit", "t.npy", "--model", "rnade", *SMALL, "--out", name)[0] == 0
    code, _, err = run("figure", "scatter", "a", "b", "--data", "t.npy", "--columns", "0,1", "--out", "f.png")
    assert code == 0, err
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert run("figure", "scatter", "a", "--data", "t.npy", "--columns", "0", "--out", "f.png")[0] == 1


def test_reproduce_and_report_print_what_they_do(run, tmp_path, monkeypatch):
    code, out, err = run("reproduce", "table-6", "--model", "gaussian", "--list", "--results", "results")
    assert code == 0, err
    assert out.count("sweep gaussian") == 3
    code, out, err = run("reproduce", "binary", "--model", "MoB", "--list", "--budget", "2m")
    assert "left out (the budget is 2 min)" in " ".join(out.split())
    assert run("reproduce", "table-1")[0] == 1
    code, out, _ = run("reproduce", "orderings", "--dataset", "dna", "--list")
    assert "with 10 seeds" in " ".join(out.split())
    (tmp_path / "paper/results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    code, out, err = run("results")
    assert code == 0, err
    assert "not measured" in " ".join(out.split())
    assert "<table>" in (tmp_path / "docs/results.html").read_text()
    assert run("results", "--results", "nowhere")[0] == 1
    marks = "<!-- highlights: written by pynade results -->\n<!-- end of highlights -->\n"
    (tmp_path / "paper/README.md").write_text(marks)
    (tmp_path / "others").mkdir()
    assert run("results", "--results", "others")[0] == 0
    assert (tmp_path / "paper/README.md").read_text() == marks  # which leads to results/, not to others
    assert run("results")[0] == 0
    assert "| model | data |" in (tmp_path / "paper/README.md").read_text()
    assert "there is no file" in run("results", "--readme", "none.md")[2]
    (tmp_path / "file").touch()
    assert "is a file" in run("reproduce", "uci", "--results", "file")[2]
