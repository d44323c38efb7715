"""Classical models on the command line: every model through every command."""

import functools
import json

import numpy as np
import pytest

import pynade
from pynade.classical import em_bernoulli
from pynade.estimators.registry import estimator_named
from pynade.runs.run import as_command
from tests.cli import test_commands

table = test_commands.table  # a fixture

MODELS = {
    "mob": ["--n-components", "2", "--n-components", "3", "--smoothing", "0.2", "--epochs", "5"],
    "chow-liu": [],
    "rbm": ["--hidden", "3", "--epochs", "4", "--cd-steps", "2", "--persistent", "--evaluate-every", "2"],
    "made": ["--hidden", "6", "--epochs", "2"],
    "made-e": ["--hidden", "6", "--epochs", "2", "--n-orderings", "3"],
    "gaussian": ["--shrinkage", "0.1", "--covariance-floor", "0.001"],
    "mog": ["--n-components", "1", "--n-components", "2", "--epochs", "5", "--no-standardise"],
    "mfa": ["--n-components", "2", "--n-factors", "1", "--n-factors", "2", "--tol", "0.01"],
}
REAL = ("gaussian", "mog", "mfa")
every = pytest.mark.parametrize("model", MODELS)
answering = pytest.mark.parametrize("model", [m for m in MODELS if not m.startswith("made")])


@pytest.fixture
def measures(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 1))
    X = np.hstack([50 + 10 * x, x**2, rng.normal(size=(80, 1)) - x]) + 0.2 * rng.normal(size=(80, 3))
    lines = ["mass,size,shift", *(",".join(f"{v:.6f}" for v in row) for row in X)]
    (tmp_path / "real.csv").write_text("\n".join(lines) + "\n")
    return X


def file(model):
    return "real.csv" if model in REAL else "table.csv"


@every
def test_fit_score_sample_info_and_the_recorded_command(run, table, measures, tmp_path, model):
    code, out, err = run("fit", file(model), "--model", model, *MODELS[model], "--out", "r")
    assert code == 0, err
    assert "r: " in out
    assert ("validation" in out) == (model != "gaussian")  # which holds nothing out
    result = json.loads((tmp_path / "r/result.json").read_text())
    lines = (tmp_path / "r/metrics.jsonl").read_text().splitlines()
    assert len(lines) == result["epochs"] >= result["best_epoch"]
    assert "NaN" not in "".join(lines)
    code, out, err = run("score", "r", file(model), "--record", "record.json", "--rows", "rows.npy")
    assert code == 0, err
    rows = np.load(tmp_path / "rows.npy")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["all"]["exact"] is True
    assert record["all"]["mean"] == pytest.approx(rows.mean())
    X = measures if model in REAL else table
    again = pynade.load(tmp_path / "r")
    np.testing.assert_allclose(again.score_samples(np.round(X, 6)), rows, atol=1e-9)

    words = record["commands"][0].split()
    words[words.index("RUN")] = "again"
    assert run(*words[1:])[0] == 0
    same = pynade.load(tmp_path / "again")
    assert same.get_params() == again.get_params()
    assert (same.score_samples(X) == again.score_samples(X)).all()

    assert run("sample", "r", "-n", "7", "--out", "s.csv", "--plot", "s.png")[0] == 0
    assert np.loadtxt(tmp_path / "s.csv", skiprows=1, delimiter=",").shape == (7, X.shape[1])
    code, out, _ = run("info", "r")
    assert code == 0
    assert model in out


@answering
def test_impute_and_given(run, table, measures, tmp_path, model):
    assert run("fit", file(model), "--model", model, *MODELS[model], "--out", "r")[0] == 0
    header = (tmp_path / file(model)).read_text().splitlines()[0]
    gaps = "1,,0,1\n,1,1,\n" if model not in REAL else "52,,0\n,1.5,-1\n"
    (tmp_path / "gaps.csv").write_text(f"{header}\n{gaps}")
    assert run("impute", "r", "gaps.csv", "--out", "filled.csv")[0] == 0
    filled = np.loadtxt(tmp_path / "filled.csv", skiprows=1, delimiter=",")
    given = np.genfromtxt(tmp_path / "gaps.csv", skip_header=1, delimiter=",")
    expected = pynade.load(tmp_path / "r").impute(given)
    np.testing.assert_allclose(filled, expected)
    assert run("impute", "r", "gaps.csv", "--draws", "3", "--out", "draws.npy")[0] == 0
    assert np.load(tmp_path / "draws.npy").shape == (3, *given.shape)
    code, out, _ = run("sample", "r", "-n", "4", "--given", f"{header.split(',')[1]}=1")
    assert code == 0
    assert all(float(line.split()[1]) == 1 for line in out.splitlines())
    assert run("score", "r", "gaps.csv")[0] == 0


def test_what_validation_chose_is_printed(run, table, tmp_path):
    code, out, _ = run("fit", "table.csv", "--model", "mob", *MODELS["mob"], "--out", "r")
    chosen = json.loads((tmp_path / "r/result.json").read_text())["chosen"]
    assert code == 0
    assert f"chosen n_components {chosen['n_components']}" in " ".join(out.split())
    assert "epochs, best" in " ".join(out.split())
    assert run("score", "r", "table.csv", "--record", "record.json")[0] == 0
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["chosen"] == chosen
    assert [line["n_components"] for line in record["validation_grid"]] == [2, 3]


def test_empty_components_are_printed(run, table, tmp_path, monkeypatch):
    eager = functools.partial(em_bernoulli, empty_below=1e6)  # so that every component counts as empty
    monkeypatch.setattr("pynade.classical.em_bernoulli", eager)
    code, out, _ = run("fit", "table.csv", "--model", "mob", "--n-components", "3", "--out", "r")
    assert code == 0
    assert "iteration 1: components 0, 1, 2 were empty and start anew" in out
    assert len(json.loads((tmp_path / "r/result.json").read_text())["messages"]) == 1


def test_a_tree_is_drawn(run, table, tmp_path):
    assert run("fit", "table.csv", "--model", "chow-liu", "--out", "r")[0] == 0
    code, out, _ = run("info", "r", "--plot", "tree.png")
    assert code == 0
    assert "-> tree.png" in out
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")
    words = ["--n-components", "2", "--alpha", "0.1", "--epochs", "2"]
    assert run("fit", "table.csv", "--model", "chow-liu", *words, "--out", "m")[0] == 0
    assert run("info", "m", "--plot", "heaviest.svg")[0] == 0
    assert run("fit", "table.csv", "--model", "mob", *MODELS["mob"], "--out", "b")[0] == 0
    code, out, err = run("info", "b", "--plot", "x.png")
    assert (code, out) == (1, "")
    assert "only a ChowLiu (--model chow-liu) has a tree" in err


def test_a_large_rbm_is_scored_by_estimates(run, tmp_path):
    words = ["--hidden", "30", "--epochs", "1", "--ais-chains", "10", "--ais-steps", "20"]
    assert run("fit", "digits", "--model", "rbm", *words, "--out", "r")[0] == 0
    assert json.loads((tmp_path / "r/result.json").read_text())["valid"]["exact"] is False
    code, out, err = run("score", "r", "digits", "--record", "record.json")
    assert (code, err) == (0, "")
    assert "exact" not in out
    test = json.loads((tmp_path / "record.json").read_text())["test"]
    assert test["exact"] is False
    assert test["mc_stderr"] > 0
    assert run("sample", "r", "-n", "2", "--out", "s.csv")[0] == 0
    assert "may have 25" in run("sample", "r", "--given", "0=1")[2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["real.csv", "--model", "mob"],
            "models of real numbers are rnade, deeprnade, transformernade, gaussian, gaussianmixture and mfa",
        ),
        (["table.csv", "--model", "mog"], "models of these are nade, made, fvsbn"),
        (["table.csv", "--model", "rnade"], "every column of table holds only zeros and ones"),
        (["table.csv", "--model", "mob", "--hidden", "3"], "model 'mob' has no option --hidden"),
        (["table.csv", "--model", "rbm", "--hidden", "3", "--hidden", "4"], "one value for --hidden, not 2"),
        (["table.csv", "--model", "mob", "--n-components", "0"], "n_components must be at least 1"),
        (
            ["real.csv", "--model", "rnade", "--n-components", "2", "--n-components", "3"],
            "RNADE takes one value for --n-components, not 2",
        ),
        (
            ["table.csv", "--learning-rate", "1", "--learning-rate", "2"],
            "NADE takes one value for --learning-rate, not 2",
        ),
        (
            ["real.csv", "--model", "gaussian", "--shrinkage", "much"],
            "shrinkage is None, 'ledoit-wolf' or a number from 0 to 1, not 'much'",
        ),
        (["gaps.csv", "--model", "chow-liu"], "fitted to complete rows, but row 0, column 1 is NaN"),
        (["constant.csv", "--model", "mfa"], "column 'b' is constant"),
        (["twice.csv", "--model", "gaussian"], "singular"),
        (["twice.csv", "--model", "mog", "--n-components", "2", "--covariance-floor", "0"], "singular"),
        (["table.csv", "--model", "chowlui"], "did you mean 'chowliu'?"),
    ],
    ids=lambda v: "-".join(v[:3]) if isinstance(v, list) else "",
)
def test_a_mistake_gets_one_sentence_and_leaves_no_run(run, table, measures, tmp_path, words, says):
    (tmp_path / "gaps.csv").write_text("a,b\n0,\n" + "1,0\n" * 30)
    lines = [f"{a:.4f},7,{c:.4f}" for a, _, c in measures]
    (tmp_path / "constant.csv").write_text("\n".join(["a,b,c", *lines]) + "\n")
    lines = [f"{a:.4f},{a:.4f},{c:.4f}" for a, _, c in measures]
    (tmp_path / "twice.csv").write_text("\n".join(["a,b,c", *lines]) + "\n")
    code, out, err = run("fit", *words, "--out", "r")
    usage = "has no option" in says or "one value" in says
    assert (code, out) == (2 if usage else 1, "")
    assert says in err
    assert err.startswith("Error: ")
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_missing_values_are_fitted(run, measures, tmp_path):
    X = np.where(np.random.default_rng(1).random(measures.shape) < 0.1, np.nan, measures)
    np.save(tmp_path / "holes.npy", X[~np.isnan(X).all(1)])
    for model in REAL:
        options = ["--n-components", "2"] if model != "gaussian" else []
        assert run("fit", "holes.npy", "--model", model, *options, "--out", model)[0] == 0
        assert run("score", model, "real.csv")[0] == 0


def test_made_e_is_made_with_many_orderings():
    assert estimator_named("made-e", {}).get_params() == pynade.MADE(n_orderings=32).get_params()
    spec = {"model": "made-e", "data": "x", "parameters": estimator_named("made-e", {}).get_params()}
    assert as_command(spec, "RUN") == "pynade fit x --model made-e --out RUN"
