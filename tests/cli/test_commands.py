"""Every command as a user types it, and every mistake the issue tracker has thought of."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.markup import render
from typer.main import get_command

import pynade
from pynade.cli.main import app

FIT = ["--hidden", "6", "--epochs", "2"]


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = (rng.random((60, 4)) < [0.2, 0.5, 0.7, 0.9]).astype(int)
    lines = ["rain,sun,wind,snow", *(",".join(map(str, row)) for row in X)]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    return X


def test_the_whole_way_on_the_embedded_digits(run, tmp_path):
    code, out, err = run("fit", "digits", *FIT, "--out", "r")
    assert code == 0, err
    assert "r: 2 epochs, best 2, validation -" in out
    folder = tmp_path / "r"
    assert {p.name for p in folder.iterdir()} == {
        "spec.json",
        "provenance.json",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
    }
    spec = json.loads((folder / "spec.json").read_text())
    assert spec["model"] == "nade"
    assert spec["parameters"]["hidden"] == 6
    assert spec["parameters"]["learning_rate"] == 0.003  # defaults are written out
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["code"].startswith(pynade.__version__)
    assert origin["libraries"]["torch"]
    assert origin["seed"] == 0
    assert origin["data"]["checksum"] == spec["data_checksum"]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2

    code, out, _ = run(
        "score", "r", "digits", "--split", "test", "--record", "record.json", "--rows", "rows.csv"
    )
    assert code == 0
    record = json.loads((tmp_path / "record.json").read_text())
    rows = np.loadtxt(tmp_path / "rows.csv", skiprows=1)
    assert record["test"]["n"] == len(rows) == 300
    assert record["test"]["mean"] == pytest.approx(rows.mean())
    assert record["test"]["exact"] is True
    assert f"{rows.mean():.3f} ± " in out
    assert record["data_checksum"] == spec["data_checksum"]

    code, out, _ = run("sample", "r", "-n", "9", "--plot", "s.png", "--out", "s.csv")
    assert code == 0
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert np.loadtxt(tmp_path / "s.csv", skiprows=1, delimiter=",").shape == (9, 64)
    code, out, err = run("sample", "r", "-n", "3", "--seed", "5")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err == "Next: pynade sample r -n 3 --out samples.csv\n"  # the output is rows only
    assert out == run("sample", "r", "-n", "3", "--seed", "5")[1]

    code, out, _ = run("info", "r")
    assert code == 0
    assert "nade" in out
    assert "digits" in out
    assert pynade.load(folder).score_samples(np.zeros((1, 64))).shape == (1,)


@pytest.mark.parametrize(
    "options",
    [
        [
            "--model",
            "made",
            "--hidden",
            "6",
            "--hidden",
            "5",
            "--orderings",
            "2",
            "--direct",
            "--activation",
            "tanh",
        ],
        [
            "--model",
            "fvsbn",
            "--optimizer",
            "sgd",
            "--momentum",
            "0.9",
            "--momentum-after",
            "1",
            "--clip",
            "1",
        ],
        [
            "--hidden",
            "3",
            "--schedule",
            "inverse",
            "--gamma",
            "0.1",
            "--updates-per-epoch",
            "3",
            "--ordering",
            "natural",
        ],
        ["--hidden", "3", "--weight-decay", "0.1", "--decay-on", "input", "--stop-at-train", "-2.0"],
    ],
)
def test_a_csv_with_names_and_many_options(run, table, tmp_path, options):
    code, _, err = run("fit", "table.csv", *options, "--epochs", "2", "--out", "r")
    assert code == 0, err
    assert run("score", "r", "table.csv")[0] == 0
    assert run("sample", "r", "--out", "new.csv")[0] == 0
    assert (tmp_path / "new.csv").read_text().splitlines()[0] == "rain,sun,wind,snow"
    assert run("sample", "r", "--plot", "new.png")[0] == 0


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
def test_other_file_kinds(run, table, tmp_path, kind):
    path = tmp_path / f"table.{kind}"
    if kind == "npy":
        np.save(path, table)
    elif kind == "npz":
        np.savez(path, train=table[:40], valid=table[40:50], test=table[50:])
    else:
        import polars

        polars.DataFrame(table, schema=["a", "b", "c", "d"], orient="row").write_parquet(path)
    assert run("fit", path.name, *FIT, "--out", "r")[0] == 0
    code, out, _ = run("score", "r", path.name)
    assert code == 0
    assert ("test" if kind == "npz" else "all") in out
    assert run("data", "info", path.name)[0] == 0


def test_resume_continues_to_the_identical_result(run, tmp_path):
    """A run killed from outside, then continued by the command a user would type."""
    words = ["fit", "digits", "--hidden", "40", "--epochs", "25", "--batch-size", "50"]
    assert run(*words, "--out", "whole")[0] == 0
    script = (
        "import os, pynade.training.checkpoint as c, pynade.runs.run as r\n"
        "c.CHECKPOINT_SECONDS, n = 0.0, []\n"
        "def die(p):\n"
        "    n.append(p.epoch_done)\n"
        "    if sum(n) == 11: os._exit(9)\n"
        "from pathlib import Path\n"
        "asked = dict(hidden=40, epochs=25, batch_size=50)\n"
        "r.start_run(Path('killed'), 'nade', asked, 'digits', callbacks=[die])\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert killed.returncode == 9
    assert "unfinished" in run("info", "killed")[1]
    code, _, err = run("fit", "--resume", "killed")
    assert code == 0, err
    assert (tmp_path / "killed/model.safetensors").exists()
    whole, again = (pynade.load(tmp_path / n) for n in ("whole", "killed"))
    x = np.eye(64)
    assert (whole.score_samples(x) == again.score_samples(x)).all()
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("whole", "killed")]
    assert results[0]["valid"] == results[1]["valid"]
    assert run("fit", "--resume", "killed")[0] == 0  # a finished run is left as it is


@pytest.fixture
def trained(run, table):
    assert run("fit", "table.csv", "--model", "nade", *FIT, "--out", "good")[0] == 0


BAD_TABLES = {
    "twos.csv": "a,b\n0,2\n1,1\n" * 1 + "0,0\n" * 30,
    "gaps.csv": "a,b\n0,\n" + "1,0\n" * 30,
    "inf.csv": "a,b\n0,inf\n" + "1,0\n" * 30,
    "empty.csv": "",
    "header.csv": "a,b\n",
    "one.csv": "a\n" + "0\n1\n" * 20,
    "words.csv": "a,b\n0,yes\n" + "1,0\n" * 30,
    "ragged.csv": "a,b\n0,1,1\n" + "1,0\n" * 30,
}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["fit", "twos.csv", "--model", "nade", "--out", "r"],
            "expected zeros and ones, but row 0, column 1 is 2",
        ),
        (["fit", "gaps.csv", "--model", "nade", "--out", "r"], "NaN"),
        (["fit", "inf.csv", "--out", "r"], "inf"),
        (["fit", "empty.csv", "--out", "r"], "empty"),
        (["fit", "header.csv", "--out", "r"], "no rows"),
        (["fit", "one.csv", "--model", "nade", "--out", "r"], "1 feature"),
        (["fit", "words.csv", "--model", "nade", "--out", "r"], "yes"),
        (["fit", "ragged.csv", "--out", "r"], "ragged.csv"),
        (["fit", "mushroms", "--out", "r"], "did you mean 'mushrooms'?"),
        (["fit", "nowhere.csv", "--out", "r"], "no file 'nowhere.csv'"),
        (["fit", "table.csv", "--model", "nad", "--out", "r"], "did you mean 'nade'?"),
        (
            ["fit", "table.csv", "--model", "fvsbn", "--hidden", "3", "--out", "r"],
            "model 'fvsbn' has no option --hidden",
        ),
        (
            ["fit", "table.csv", "--model", "nade", "--hidden", "3", "--hidden", "3", "--out", "r"],
            "one value for --hidden, not 2",
        ),
        (["fit", "table.csv", "--learning-rate", "-1", "--out", "r"], "learning_rate must be positive"),
        (["fit", "table.csv", "--device", "cuda:99x", "--out", "r"], "device"),
        (["fit", "table.csv", "--out", "good"], "already exists; give --overwrite"),
        (["fit", "table.csv", "--out", "notarun", "--overwrite"], "not a run folder"),
        (["fit", "table.csv", "--out", "table.csv/r"], "table.csv/r"),
        (["fit"], "pynade fit DATA"),
        (["fit", "table.csv", "--hidden", "many", "--out", "r"], "--hidden takes a number, not 'many'"),
        (["fit", "table.csv", "--resume", "good"], "--resume RUN takes everything"),
        (["fit", "--resume", "nowhere"], "no run folder"),
        (["score", "good", "digits"], "64 features, but NADE is expecting 4"),
        (["score", "good", "table.csv", "--split", "tset"], "tset"),
        (["score", "good", "table.csv", "--split", "test"], "no 'test' part"),
        (["score", "nowhere", "table.csv"], "no model file at nowhere"),
        (["score", "damaged.safetensors", "table.csv"], "damaged"),
        (["score", "good", "table.csv", "--rows", "x.docx"], "ending must be .csv or .npy"),
        (["score", "good", "table.csv", "--record", "no/where.json"], "does not exist"),
        (["sample", "good", "-n", "0"], "at least 1"),
        (["sample", "good", "--plot", "picture.xyz"], "picture.xyz"),
        (["sample", "good", "--plot", "s.png", "--shape", "3x3"], "9 pixels"),
        (["sample", "good", "--plot", "s.png", "--shape", "wide"], "HxW"),
        (["info", "nowhere"], "no model file"),
        (["score", "good", "table.csv", "--orderings", "4"], "orderless models have (DeepNADE"),
        (["sample", "good", "--given", "0=1"], "an orderless model (DeepNADE, DeepRNADE) can answer it"),
        (
            ["impute", "good", "table.csv", "--particles", "0", "--out", "x.csv"],
            "particles must be at least 1",
        ),
        (["inpaint", "good", "--plot", "x.png"], "have no image shape"),
        (["data", "get", "mushroms"], "did you mean 'mushrooms'?"),
        (["data", "info", "mushroms"], "did you mean 'mushrooms'?"),
    ],
    ids=lambda v: "-".join(v[:4]).replace("/", "_") if isinstance(v, list) else "",
)
def test_a_mistake_gets_one_sentence_and_leaves_nothing_behind(run, trained, tmp_path, words, says):
    for name, text in BAD_TABLES.items():
        (tmp_path / name).write_text(text)
    whole = (tmp_path / "good/model.safetensors").read_bytes()
    (tmp_path / "damaged.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "notarun").mkdir()
    (tmp_path / "notarun/thesis.txt").write_text("mine")
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    code, out, err = run(*words)
    assert code != 0
    assert out == ""
    assert says in err
    assert err.startswith("Error: ")
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_orderless_models_fill_complete_and_answer(run, table, tmp_path):
    options = ["--model", "eonade", "--hidden", "6", "--hidden", "5", "--orderings", "2", "--dropout", "0.1"]
    more = ["--no-input-observed", "--residual", "--layer-norm", "--pretrain-epochs", "1", "--ema", "0.9"]
    code, _, err = run("fit", "table.csv", *options, *more, "--epochs", "2", "--out", "r")
    assert code == 0, err
    assert run("score", "r", "table.csv")[0] == 0
    code, out, _ = run("score", "r", "table.csv", "--orderings", "6", "--record", "record.json")
    assert code == 0
    assert "ensemble of 6: -" in out
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["all"]["orderings"] == 6
    assert set(record["ensembles"]) == {"1", "2", "4", "6"}
    assert record["mean_over_orderings"]["mean"] <= record["all"]["mean"]
    assert {p.name for p in (tmp_path / "r").iterdir()} >= {"model.safetensors", "spec.json"}
    assert not list((tmp_path / "r").glob("chunks*"))  # kept only until all are there

    words = record["commands"][0].split()
    words[words.index("RUN")] = "again"
    assert run(*words[1:])[0] == 0  # the recorded command makes the same run
    x = table[:5]
    assert (
        pynade.load(tmp_path / "again").score_samples(x) == pynade.load(tmp_path / "r").score_samples(x)
    ).all()

    (tmp_path / "gaps.csv").write_text("rain,sun,wind,snow\n1,,0,1\n,1,1,\n")
    assert run("impute", "r", "gaps.csv", "--out", "filled.csv")[1].startswith("3 gaps in 2 rows filled")
    filled = (tmp_path / "filled.csv").read_text().splitlines()
    assert filled[0] == "rain,sun,wind,snow"
    assert filled[1][0] == "1"
    assert run("impute", "r", "gaps.csv", "--draws", "3", "--out", "draws.csv")[0] == 0
    assert len((tmp_path / "draws.csv").read_text().splitlines()) == 7
    assert run("impute", "r", "gaps.csv", "--draws", "3", "--out", "draws.npy")[0] == 0
    assert np.load(tmp_path / "draws.npy").shape == (3, 2, 4)
    code, out, _ = run("sample", "r", "-n", "5", "--given", "0=1,snow=0")
    assert code == 0
    assert all(line.split()[0] == "1" and line.split()[3] == "0" for line in out.splitlines())


@pytest.mark.parametrize("model", ["nade", "made"])
def test_models_with_a_fixed_ordering_fill_gaps_by_an_estimate(run, table, tmp_path, model):
    assert run("fit", "table.csv", "--model", model, *FIT, "--out", "r")[0] == 0
    (tmp_path / "gaps.csv").write_text("rain,sun,wind,snow\n1,,0,1\n,1,1,\n0,0,1,1\n")
    code, out, err = run("impute", "r", "gaps.csv", "--out", "filled.csv")
    assert (code, err) == (0, "")
    assert out.startswith("3 gaps in 3 rows filled (an estimate with 256 particles per row)")
    lines = (tmp_path / "filled.csv").read_text().splitlines()
    assert lines[0] == "rain,sun,wind,snow"
    assert lines[1][0] + lines[1][3:] == "1,0,1"
    assert lines[2][2:5] == "1,1"
    assert lines[3] == "0,0,1,1"
    assert set("".join(lines[1:])) <= set("01,")
    more = ["--draws", "3", "--particles", "500", "--seed", "4"]
    code, out, err = run("impute", "r", "gaps.csv", *more, "--out", "draws.npy")
    assert "500 particles" in out, err
    gaps = np.array([[1, np.nan, 0, 1], [np.nan, 1, 1, np.nan], [0, 0, 1, 1]])
    expected = pynade.load(tmp_path / "r").impute(gaps, 3, random_state=4, particles=500)
    assert (np.load(tmp_path / "draws.npy") == expected).all()
    code, out, err = run("impute", "r", "gaps.csv", "--particles", "4", "--out", "few.csv")
    assert code == 0
    assert err.startswith(
        "Warning: the gaps of 2 of 3 rows are filled by an estimate with an effective sample size"
    )
    assert len(err.strip().splitlines()) == 1
    assert "0 gaps in 60 rows filled ->" in run("impute", "r", "table.csv", "--out", "same.csv")[1]
    assert (tmp_path / "same.csv").read_text() == (tmp_path / "table.csv").read_text()
    assert "by an estimate" in run("impute", "--help")[1]


def test_particles_are_only_for_a_fixed_ordering(run, table, tmp_path):
    assert run("fit", "table.csv", "--model", "deepnade", *FIT, "--out", "r")[0] == 0
    code, _, err = run("impute", "r", "table.csv", "--particles", "9", "--out", "x.csv")
    assert code != 0
    assert "fills gaps without particles" in err


def test_columns_are_matched_by_name(run, table, tmp_path):
    assert run("fit", "table.csv", "--model", "deepnade", *FIT, "--out", "r")[0] == 0
    lines = ["sun,rain,snow,wind", *(f"{r[1]},{r[0]},{r[3]},{r[2]}" for r in table.tolist())]
    (tmp_path / "swapped.csv").write_text("\n".join(lines) + "\n")
    plain, swapped = run("score", "r", "table.csv")[1], run("score", "r", "swapped.csv")[1]
    assert plain.split("all:")[1].splitlines()[0] == swapped.split("all:")[1].splitlines()[0]
    assert run("impute", "r", "swapped.csv", "--out", "f.csv")[0] == 0
    assert (tmp_path / "f.csv").read_text() == (tmp_path / "table.csv").read_text()
    (tmp_path / "other.csv").write_text("sun,rain,snow,hail\n" + "0,1,0,1\n" * 3)
    code, _, err = run("score", "r", "other.csv")
    assert code == 1
    assert "there is no column 'wind'" in err


def test_odd_column_names_survive(run, tmp_path):
    rows = "".join(f"{a},{b},{c}\n" for a, b, c in np.random.default_rng(0).integers(0, 2, (40, 3)))
    (tmp_path / "odd.csv").write_text('"rain, heavy",wind speed,2020\n' + rows)
    assert run("fit", "odd.csv", "--model", "deepnade", *FIT, "--out", "r")[0] == 0
    assert run("sample", "r", "-n", "4", "--out", "s.csv")[0] == 0
    assert run("score", "r", "s.csv")[0] == 0
    code, out, _ = run("sample", "r", "-n", "4", "--given", "2020=1,wind speed=0")
    assert code == 0
    assert all(line.split()[1:] == ["0", "1"] for line in out.splitlines())
    assert "named twice" in run("sample", "r", "--given", "wind speed=1,1=0")[2]
    assert pynade.load(tmp_path / "r").sample(2, given={"wind speed": 1})[:, 1].tolist() == [1, 1]


def test_rows_in_messages_are_rows_of_the_file(run, tmp_path):
    lines = ["0,1,0"] * 137 + ["0,1,7"] + ["1,1,0"] * 100
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    assert "row 137, column 2 is 7" in run("fit", "bad.csv", "--model", "nade", "--out", "r")[2]


def test_very_few_rows(run, tmp_path):
    (tmp_path / "two.csv").write_text("0,1,0\n1,1,0\n")
    assert run("fit", "two.csv", "--model", "nade", *FIT, "--out", "r")[0] == 0
    for name in ("result.json", "metrics.jsonl"):
        assert "NaN" not in (tmp_path / "r" / name).read_text()


def test_bad_requests_leave_no_run_folder(run, table, tmp_path):
    for words in (["--model", "eonade", "--orderings", "0"], ["--seed", "99999999999"]):
        code, out, _ = run("fit", "table.csv", *words, "--out", "r")
        assert (code, out) == (1, "")
        assert not (tmp_path / "r").exists()


def test_divergence_in_pretraining_keeps_weights_too(run, table, tmp_path):
    words = ["--model", "deepnade", "--hidden", "4", "--hidden", "4", "--pretrain-epochs", "2"]
    code, _, err = run(
        "fit", "table.csv", *words, "--optimizer", "sgd", "--learning-rate", "1e39", "--out", "r"
    )
    assert code == 1
    assert "pretraining" in err
    assert pynade.load(tmp_path / "r/last_good.safetensors") is not None


def test_destinations_are_checked_before_the_work_and_chunks_kept_until_it_is_written(run, tmp_path):
    assert run("fit", "digits", "--model", "deepnade", "--hidden", "4", "--epochs", "1", "--out", "r")[0] == 0
    for words in (["--record", "no/x.json"], ["--rows", "x.txt"]):
        assert run("score", "r", "digits", "--orderings", "2", *words)[0] == 1
        assert not list((tmp_path / "r").glob("chunks*"))
    assert run("score", "r/model.safetensors", "digits", "--record", "x.json")[0] == 1


def test_resume_takes_no_other_settings(run, trained):
    assert "own settings" in run("fit", "--resume", "good", "--epochs", "500")[2]


def test_inpaint(run, tmp_path):
    assert run("fit", "digits", "--model", "deepnade", "--hidden", "8", "--epochs", "1", "--out", "r")[0] == 0
    code, out, err = run(
        "inpaint", "r", "--rows", "0,5", "--hole", "3x4", "--draws", "2", "--plot", "holes.png"
    )
    assert code == 0, err
    assert "row 5: log p without the hole -" in out
    assert (tmp_path / "holes.png").read_bytes().startswith(b"\x89PNG")
    for bad, says in (
        (["--hole", "9x9"], "a hole of 9x9 does not fit into images of 8x8"),
        (["--hole", "8x8"], "leaves nothing"),
        (["--hole", "wide"], "the hole like 10x10"),
        (["--rows", "300"], "row 300 does not exist"),
        (["--draws", "0"], "at least 1"),
        (["--data", "mushroms"], "did you mean 'mushrooms'?"),
    ):
        code, out, err = run("inpaint", "r", "--plot", "x.png", "--hole", "3x3", *bad)
        assert (code, out) == (1, "")
        assert says in err
        assert not (tmp_path / "x.png").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs a file system that can refuse")
def test_an_unwritable_output_folder(run, table, tmp_path):
    code, _, err = run("fit", "table.csv", *FIT, "--out", "/proc/r")  # refuses even the superuser
    assert code == 1
    assert "output folder" in err


def test_overwrite_replaces_a_run(run, trained, tmp_path):
    (tmp_path / "good/notes.txt").write_text("mine")
    assert (
        run("fit", "table.csv", "--model", "fvsbn", "--epochs", "1", "--out", "good", "--overwrite")[0] == 0
    )
    assert json.loads((tmp_path / "good/spec.json").read_text())["model"] == "fvsbn"
    assert (tmp_path / "good/notes.txt").read_text() == "mine"


def test_divergence_is_one_sentence_and_recorded(run, table, tmp_path):
    code, _, err = run(
        "fit", "table.csv", *FIT, "--optimizer", "sgd", "--learning-rate", "1e39", "--out", "r"
    )
    assert code == 1
    assert "training diverged in epoch 1; the initial weights were kept in r/last_good.safetensors" in err
    assert "divided by 10 before. Try a smaller learning rate" in err
    assert json.loads((tmp_path / "r/result.json").read_text())["status"] == "diverged"
    assert pynade.load(tmp_path / "r/last_good.safetensors") is not None


def test_a_rate_that_is_divided_by_ten_is_shown_and_recorded(run, table, tmp_path):
    words = ["--optimizer", "sgd", "--batch-size", "1", "--learning-rate", "100", "--weight-decay", "0.1"]
    code, out, err = run("fit", "table.csv", "--model", "nade", *FIT, *words, "--out", "r")
    message = "training diverged in epoch 1 and went on from the initial weights with the learning rate 10 "
    assert code == 0
    assert message + "instead of 100\n" in err
    assert message in " ".join(out.split())
    assert json.loads((tmp_path / "r/result.json").read_text())["messages"] == [message + "instead of 100"]


@pytest.mark.parametrize(
    "command",
    [
        *("fit", "score", "sample", "impute", "predict", "surprise", "query", "inpaint", "info", "demo"),
        *("doctor", "data list", "data get", "data info"),
    ],
)
def test_every_command_has_help_with_an_example(run, command):
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert f"pynade {command}" in out.split("Example")[1]


def commands(command, name=""):
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {word}".strip())


def test_help_is_shown_as_it_is_written():
    """In the markup of help [words] are a style, and vanish: they are written \\[words]."""
    texts = {
        f"{name} {own.name}": own.help or ""
        for name, command in commands(get_command(app))
        for own in (command, *command.params)
        if hasattr(own, "help")
    }
    assert "pynade[ray]" in render(texts["score engine"]).plain
    shown = {name: render(text).plain.rstrip() for name, text in texts.items()}
    plain = {name: text.replace("\\[", "[").replace("\b", "").rstrip() for name, text in texts.items()}
    assert shown == plain


def test_data_list_and_info(run):
    code, out, _ = run("data", "list")
    assert code == 0
    for name in (
        "adult",
        "connect4",
        "dna",
        "mushrooms",
        "nips_0_12",
        "ocr_letters",
        "rcv1",
        "web",
        "binarized_mnist",
    ):
        assert name in out
    code, out, _ = run("data", "info", "digits")
    assert code == 0
    assert "checksum" in out


def test_bench_measures_and_draws(run, tmp_path):
    code, out, err = run(
        "bench", "--quick", "--repeats", "3", "--device", "cpu", "--out", "b.json", "--plot", "b.png"
    )
    assert code == 0, err
    assert "train step" in out
    result = json.loads((tmp_path / "b.json").read_text())
    for entry in result["shapes"]:
        for row in entry["tasks"].values():
            assert row["ratios"]["loop"] == pytest.approx(row["loop"]["median"] / row["ours"]["median"])
    assert set(result["growth"]) == {"D", "H", "B", "ones"}
    assert result["ceiling"]["sigmoids_per_second"] > 1e6
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_bench_measures_the_baselines(run, tmp_path):
    code, out, err = run(
        "bench", "baselines", "--quick", "--repeats", "3", "--device", "cpu", "--out", "b.json"
    )
    assert code == 0, err
    assert "scikit-learn" in out
    result = json.loads((tmp_path / "b.json").read_text())
    assert {"device", "threads", "code", "libraries", "at"} <= set(result)
    assert [entry["problem"].split(":")[0] for entry in result["problems"]] == ["MoG", "RBM", "Chow-Liu"]
    for entry in result["problems"]:
        assert entry["difference"] < 1e-9  # all contenders find the same
        ours = entry["contenders"]["ours"]["median"]
        for name, ratio in entry["ratios"].items():
            assert ratio == pytest.approx(entry["contenders"][name]["median"] / ours)


def test_slow_contenders_are_not_timed_again(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pynade_benchmarks.baselines.ENOUGH", 1e-9)
    asked = ["bench", "baselines", "--quick", "--repeats", "3", "--device", "cpu", "--out", "b.json"]
    assert run(*asked)[0] == 0
    for entry in json.loads((tmp_path / "b.json").read_text())["problems"]:
        for name, timed in entry["contenders"].items():
            assert timed["repeats"] == (3 if name == "ours" else 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trees"], "nade or baselines, not 'trees'"),
        (["baselines", "--plot", "b.png"], "baselines have no such picture"),
        (["baselines", "--repeats", "2"], "at least 3 repeats, not 2"),
    ],
)
def test_bench_refuses_in_one_sentence(run, words, says):
    code, _, err = run("bench", *words)
    assert code == 1
    assert says in err


def test_version_and_module():
    out = subprocess.run(
        [sys.executable, "-m", "pynade.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == f"pynade {pynade.__version__}"


def test_a_record_never_replaces_a_file_of_a_run(run, table, tmp_path):
    assert run("fit", "table.csv", "--model", "nade", *FIT, "--out", "r")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()}
    for name in ("spec.json", "result.json", "provenance.json"):
        code, _, err = run("score", "r", "table.csv", "--record", f"r/{name}")
        assert code == 1
        assert f"cannot write r/{name}: it belongs to a run" in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()} == before
    for _ in range(2):  # a record may replace a record
        assert run("score", "r", "table.csv", "--record", "r/record.json")[0] == 0


def test_a_failed_overwrite_for_a_bad_option_keeps_the_run(run, table):
    words = ["fit", "table.csv", "--hidden", "4", "--epochs", "2", "--members", "1", "--no-mixture"]
    assert run(*words, "--out", "r")[0] == 0
    for option in (["--time-limit", "nan"], ["--batch-size", "0"]):
        code, _, err = run(*words, "--out", "r", "--overwrite", *option)
        assert (code, err.count("Error: ")) == (1, 1)
        assert run("info", "r")[0] == 0


def test_a_file_whose_name_begins_like_a_home(run, table, tmp_path):
    (tmp_path / "table.csv").rename(tmp_path / "~.csv")
    assert run("fit", "~.csv", "--model", "nade", *FIT, "--out", "r")[0] == 0
    assert run("score", "r", "~nobody-has-this-name.csv")[0] == 1


def test_what_needs_too_much_memory_is_one_sentence(run, table):
    assert run("fit", "table.csv", "--model", "nade", *FIT, "--out", "r")[0] == 0
    for n in (10**15, 10**24):
        code, _, err = run("sample", "r", "-n", n)
        assert code == 1
        assert err.startswith("Error: a number is too large for the memory or the types of this machine")
        assert err.count("\n") == 1


def test_letters_that_the_terminal_does_not_have_are_escaped(tmp_path, table):
    names = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["fit", "table.csv", "--model", "nade", *FIT, "--out", "r"]
    done = subprocess.run(
        [sys.executable, "-m", "pynade.cli.main", *words],
        cwd=tmp_path,
        env=os.environ | names,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\xb1" in done.stdout
