"""The help of `fit`, options made from parameters, older spellings, and the commands that follow."""

import json
import re
import shlex

import numpy as np
import pytest

import pynade
from pynade.cli import screen
from pynade.cli.fit import ModelOption, attribute_texts, default_folder, model_for, model_options
from pynade.cli.sweep import parse_values
from pynade.estimators.registry import ALIASES, MODELS, PARAMETERS, estimator_named
from pynade.likelihood import Estimate
from pynade.training import Progress
from tests.cli import test_commands

table = test_commands.table  # a fixture

SMALL = ["--hidden", "4", "--epochs", "2"]


def test_the_help_of_fit_fits_one_screen(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run("fit", "--help")
    assert code == 0
    assert len(out.splitlines()) <= 50
    assert all(len(line) <= 100 for line in out.splitlines())


def test_the_help_of_fit_names_the_models_for_each_kind_of_data(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = [line.strip() for line in run("fit", "--help")[1].splitlines()]
    short = {name: alias for alias, (name, preset) in ALIASES.items() if not preset}
    for data in {entry.data for entry in MODELS.values()}:
        (line,) = (line for line in lines if re.match(rf"{data}   *\w|{data}  ", line))
        named = line.removeprefix(data).replace(",", " ").split()
        assert named == [short.get(name, name) for name, entry in MODELS.items() if entry.data == data]
    (line,) = (line for line in lines if line.startswith("with presets"))
    assert set(line.removeprefix("with presets").replace(",", " ").split()) == {
        alias for alias, (_, preset) in ALIASES.items() if preset
    }


@pytest.mark.parametrize("name", [*MODELS, *ALIASES])
def test_the_help_of_a_model_shows_every_parameter_with_its_default(run, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "700")
    code, out, err = run("fit", "--model", name, "--help")
    assert code == 0, err
    shown = {m[1]: line for line in out.splitlines() if (m := re.match(r"│ --([\w-]+)", line))}
    assert all(option.text[1:] in shown[option.word[2:]] for option in model_options(name))
    for parameter, value in estimator_named(name, {"random_state": 0}).flat_parameters().items():
        line = shown["column" if parameter == "schema" else parameter.replace("_", "-")]
        words = {None: "none", True: "yes", False: "no"}
        several = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        default = words[value] if value is None or isinstance(value, bool) else several
        assert f"[{default}]" in line, parameter


def test_every_option_has_a_text():
    for name in MODELS:
        for option in model_options(name):
            assert len(option.text) > 5, (name, option.name)


def test_the_help_of_an_unknown_model_names_the_nearest(run):
    code, out, err = run("fit", "--model", "nede", "--help")
    assert (code, out) == (1, "")
    assert "did you mean 'nade'?" in err


@pytest.mark.parametrize(
    ("annotation", "words", "value"),
    [
        ("int", ["3"], 3),
        ("int | None", ["none"], None),
        ("float", ["1e-3"], 0.001),
        ("float | None", ["none"], None),
        ("int | Sequence[int]", ["3"], 3),
        ("int | Sequence[int]", ["3", "4"], [3, 4]),
        ("int | Sequence[int]", ["3,4", "5"], [3, 4, 5]),
        ("Sequence[int]", ["3"], [3]),
        ("float | Sequence[float] | None", ["0.1", "2"], [0.1, 2.0]),
        ("str", ["adam"], "adam"),
        ("str | float | None", ["0.5"], 0.5),
        ("str | float | None", ["ledoit-wolf"], "ledoit-wolf"),
    ],
)
def test_words_become_values(annotation, words, value):
    option = ModelOption("some_name", annotation, None, "", "", "Some")
    made = option.convert(words)
    assert (made, type(made)) == (value, type(value))


@pytest.mark.parametrize(
    ("annotation", "words", "says"),
    [
        ("int", ["many"], "--some-name takes a number, not 'many'"),
        ("int", ["1.5"], "--some-name takes a number, not '1.5'"),
        ("float", ["1", "2"], "Some takes one value for --some-name, not 2"),
        ("int", ["none"], "--some-name takes a number, not 'none'"),
    ],
)
def test_wrong_words_are_refused(annotation, words, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        ModelOption("some_name", annotation, None, "", "", "Some").convert(words)


OLD = {
    "nade": ["--seed", "3"],
    "made-e": ["--orderings=2"],
    "mob": ["--components", "2", "--components=3", "--iterations", "4", "--tolerance", "0.01"],
    "chow-liu": ["--components", "2", "--iterations=3"],
    "mfa": ["--components", "1", "--factors", "1", "--factors", "2", "--iterations", "3"],
    "rbm": ["--n-hidden", "3"],
}


@pytest.mark.parametrize("model", OLD)
def test_older_spellings_of_options(run, table, tmp_path, model):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "real.npy", rng.normal(size=(60, 3)))
    data = "real.npy" if model == "mfa" else "table.csv"
    new = [_present(word) for word in OLD[model]]
    assert new != OLD[model]
    short = [] if "--epochs" in new or any(w.startswith("--epochs=") for w in new) else ["--epochs", "2"]
    for words, out in ((OLD[model], "old"), (new, "new")):
        code, _, err = run("fit", data, "--model", model, *words, *short, "--out", out)
        assert code == 0, err
    old, now = (json.loads((tmp_path / name / "spec.json").read_text()) for name in ("old", "new"))
    assert old == now
    assert set(PARAMETERS.values()) & {k for k, v in now["parameters"].items() if v is not None}


def _present(word):
    for old, name in PARAMETERS.items():
        option = f"--{old.replace('_', '-')}"
        if word == option or word.startswith(f"{option}="):
            return word.replace(option, f"--{name.replace('_', '-')}", 1)
    return word


def test_every_older_name_is_tried_above():
    words = {w.partition("=")[0] for some in OLD.values() for w in some if w.startswith("--")}
    assert words >= {f"--{old.replace('_', '-')}" for old in PARAMETERS}


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_of_models_set_their_presets(alias):
    name, preset = ALIASES[alias]
    made = estimator_named(alias, {})
    assert type(made).__name__ == MODELS[name].kind
    assert {k: made.get_params()[k] for k in preset} == preset
    given = {k: v for k, v in made.flat_parameters().items() if k != "random_state"}
    assert given == {k: v for k, v in estimator_named(name, preset).flat_parameters().items() if k in given}


def test_runs_are_kept_in_a_folder_named_by_data_and_model(run, table, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "table.csv").rename(tmp_path / "some/people.csv")
    assert "runs/people-tabularnade: 2 epochs" in run("fit", "some/people.csv", *SMALL)[1]
    assert pynade.load(tmp_path / "runs/people-tabularnade").hidden == 4
    code, _, err = run("fit", "some/people.csv", *SMALL)
    assert code == 1
    assert "runs/people-tabularnade already exists; give --overwrite" in err
    assert run("fit", "digits", "--model", "fvsbn", "--epochs", "1")[0] == 0
    assert (tmp_path / "runs/digits-fvsbn/result.json").is_file()


def test_names_of_folders_and_models_that_are_not_given():
    assert default_folder("tables/people.csv", "nade").as_posix() == "runs/people-nade"
    assert default_folder("red_wine/3", "rnade").as_posix() == "runs/red_wine-3-rnade"
    given = [("auto", ["people.csv"]), ("auto", ["digits"]), ("made", ["a.csv"])]
    assert [model_for(*words) for words in given] == ["tabularnade", "nade", "made"]


def test_values_of_a_sweep():
    assert parse_values("learning-rate=0.1,1e-3") == ("learning_rate", [0.1, 0.001])
    assert parse_values("hidden=50,20+20") == ("hidden", [50, (20, 20)])


def test_texts_of_options_are_those_of_their_class():
    text = "Options.\n\nAttributes:\n    size: how large,\n        in words.\n    speed: how."
    made = type("Options", (), {"__doc__": text})
    assert attribute_texts(made) == {"size": "how large, in words.", "speed": "how."}


def following(text):
    """The commands that are printed as following, without `pynade`."""
    lines = text.splitlines()
    first = max(n for n, line in enumerate(lines) if line.startswith("Next: "))
    commands = [line[6:] for line in lines[first:]]
    assert all(line.startswith(" " * 6) for line in lines[first + 1 :])
    assert all(command.startswith("pynade ") for command in commands)
    return [shlex.split(command)[1:] for command in commands]


def test_every_command_ends_with_commands_that_work(run, table, tmp_path):
    (tmp_path / "gaps.csv").write_text("rain,sun,wind,snow\n1,,0,1\n,1,1,\n")
    wide = ["--hidden", "4", "--epochs", "1", "--model", "deepnade"]
    sweep = ["--model", "fvsbn", "--set", "epochs=2", "--set", "device=cpu", "--folds", "3", "--out", "s"]
    commands = [
        ["fit", "table.csv", *wide, "--out", "a run"],
        ["fit", "digits", *wide, "--out", "images"],
        ["score", "a run", "table.csv"],
        ["score", "a run", "table.csv", "--record", "r.json"],
        ["score", "a run/model.safetensors", "table.csv"],
        ["score", "a run", "table.csv", "--orderings", "2"],
        ["sample", "a run"],
        ["sample", "a run", "--out", "new rows.csv"],
        ["sample", "a run", "--plot", "new.png"],
        ["impute", "a run", "gaps.csv", "--out", "filled.csv"],
        ["impute", "a run", "gaps.csv", "--draws", "2", "--out", "draws.csv"],
        ["inpaint", "images", "--hole", "2x2", "--rows", "0", "--plot", "hole.png"],
        ["sweep", "table.csv", *sweep, "--grid", "learning_rate=0.1,0.01"],
        ["info", "a run"],
        ["info", "a run", "--curve", "curve.png"],
        ["data", "list"],
        ["data", "get", "digits"],
        ["data", "info", "digits"],
        ["data", "info", "table.csv"],
        ["data", "info", "bsds300"],
    ]
    tried = set()
    for words in commands:
        code, out, err = run(*words)
        assert code == 0, err
        for command in following(out + err):
            if command[:2] == ["data", "get"] or str(command) in tried:  # (would download)
                continue
            tried.add(str(command))
            if command[0] == "fit" and "--help" not in command:
                command += ["--epochs", "1", "--hidden", "4", "--out", f"made-{len(tried)}"]
            code, _, err = run(*command)
            assert code == 0, (command, err)
    assert len(tried) > 12


def test_an_unfinished_run_is_followed_by_resume(run, table, tmp_path):
    assert run("fit", "table.csv", *SMALL, "--out", "r")[0] == 0
    (tmp_path / "r/result.json").unlink()
    assert following(run("info", "r")[1]) == [["fit", "--resume", "r"]]
    assert following(run("fit", "--resume", "r")[1])[0] == ["score", "r", str(tmp_path / "table.csv")]


def test_the_other_packages_commands_end_so_too(run, tmp_path):
    (tmp_path / "paper/results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    assert following(run("reproduce", "uci", "--model", "gaussian", "--list")[1]) == [
        ["reproduce", "uci", "--model", "gaussian"]
    ]
    assert following(run("results")[1]) == [["reproduce", "all", "--list"]]
    assert following(run("figure", "paper")[1])[0][:2] == ["figure", "paper"]
    code, out, err = run("bench", "baselines", "--quick", "--repeats", "3", "--device", "cpu")
    assert code == 0, err
    assert following(out) == [["bench", "baselines", "--out", "bench.json"]]


def test_the_bar_shows_log_likelihoods(monkeypatch, capsys):
    monkeypatch.setattr(screen, "LINE_SECONDS", -1.0)
    with screen.training_bar() as show:
        show(Progress(None, 1, 9, 10, 90, 0.1, -12.5, True))
        show(Progress(None, 2, 9, 15, 90, 0.1, -11.25, False))
        show(Progress(None, 2, 9, 20, 90, 0.1, -11.0, True, Estimate(-13.125, 0.1, 50), -13.125))
        show(Progress(None, 3, 9, 30, 90, 0.1, float("nan"), True, None, -13.125))
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1/9  log-likelihood: train -12.500  valid –  best –",
        "epoch 2/9  log-likelihood: train -11.000  valid -13.125  best -13.125",
        "epoch 3/9  log-likelihood: train -11.000  valid -13.125  best -13.125",
    ]
