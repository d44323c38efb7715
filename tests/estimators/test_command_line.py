"""Python and the command line: the same held-out rows, the same weights, and columns matched by name."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

import pynade
from pynade.tables.dataset import validation_rows
from tests.estimators.cases import ESTIMATORS, binary, make, real


def words(model):
    """The parameters of a model as options of `pynade fit`."""
    usual = type(model)().flat_parameters()
    options = []
    for name, value in model.flat_parameters().items():
        if value == usual[name] or name in ("random_state", "device"):
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            options += [option]
        elif name == "image_shape":
            options += [option, "x".join(map(str, value))]
        else:
            options += [word for each in np.atleast_1d(np.array(value, object)) for word in (option, each)]
    return options


def write(path, frame):
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", ["nade", "made-e", "eonade", "rnade", "bernoullimixture", "mfa", "convnade"])
@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_seed_gives_the_same_weights_to_the_last_bit(name, seed, run, tmp_path):
    kind = ESTIMATORS[name][1]
    X = real() if kind == "real" else binary(D=4 if kind == "image" else 5)
    frame = pd.DataFrame(X, columns=list("abcde")[: X.shape[1]])
    model = make(name, random_state=seed)
    options = words(model)
    csv = write(tmp_path / "rows.csv", frame)
    code, _, err = run("fit", csv, "--model", name, *options, "--random-state", seed, "--out", "run")
    assert (code, err.count("Error")) == (0, 0), err
    theirs, ours = pynade.load(tmp_path / "run"), model.fit(frame)
    spec = json.loads((tmp_path / "run" / "spec.json").read_text(encoding="utf-8"))
    assert spec["parameters"] == json.loads(json.dumps(ours.flat_parameters()))
    assert (theirs.seed_, theirs.history_.best_valid) == (ours.seed_, ours.history_.best_valid)
    one, two = theirs.model_.state_dict(), ours.model_.state_dict()
    assert one.keys() == two.keys()
    for key in one:
        assert one[key].dtype == two[key].dtype
        assert np.array_equal(one[key].numpy(), two[key].numpy()), key
    assert (theirs.score_samples(frame) == ours.score_samples(frame)).all()
    untimed = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in each.history_.epochs]
        for each in (theirs, ours)
    ]
    assert untimed[0] == untimed[1]


def test_the_rows_held_out_are_those_of_the_command_line(run, tmp_path):
    X = binary()
    csv = write(tmp_path / "rows.csv", pd.DataFrame(X, columns=list("abcde")))
    run("fit", csv, "--model", "fvsbn", "--epochs", "1", "--random-state", "3", "--out", "run")
    model = pynade.FVSBN(epochs=1, random_state=3).fit(X)
    train, held = validation_rows(len(X), 0.1, 3)
    assert sorted([*train, *held]) == list(range(len(X)))
    by_hand = pynade.FVSBN(epochs=1, random_state=3).fit(X[train], X_valid=X[held])
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["valid"]["n"] == len(held) == 16
    assert result["valid"]["mean"] == pytest.approx(model.score(X[held]), abs=1e-12)
    assert (by_hand.score_samples(X) == model.score_samples(X)).all()
    assert (pynade.load(tmp_path / "run").score_samples(X) == model.score_samples(X)).all()


@pytest.mark.parametrize("read", [pd.read_csv, pl.read_csv], ids=["pandas", "polars"])
@pytest.mark.parametrize("name", ["nade", "deepnade", "bernoullimixture", "rnade", "gaussian"])
def test_a_model_of_the_command_line_knows_its_columns(name, read, run, tmp_path):
    X = real() if ESTIMATORS[name][1] == "real" else binary(D=3)
    names = ["rain", "wind", "snow"]
    csv = write(tmp_path / "rows.csv", pd.DataFrame(X, columns=names))
    epochs = [] if name == "gaussian" else ["--epochs", "1"]
    hidden = ["--hidden", "4"] if "nade" in name else []
    code, _, err = run("fit", csv, "--model", name, *epochs, *hidden, "--out", "run")
    assert code == 0, err
    model, frame = pynade.load(tmp_path / "run"), read(csv)
    assert list(model.feature_names_in_) == names
    scores = model.score_samples(frame)
    assert (model.score_samples(frame[["snow", "rain", "wind"]]) == scores).all()
    other = frame.rename(columns={"rain": "hail"}) if read is pd.read_csv else frame.rename({"rain": "hail"})
    more = frame.assign(hail=0) if read is pd.read_csv else frame.with_columns(pl.lit(0).alias("hail"))
    for wrong, message in (
        (frame[["snow", "wind"]], "there is no column 'rain'$"),
        (more, "'hail' is not one of its columns"),
        (other, "there is no column 'rain', and 'hail' is not one of its columns"),
    ):
        with pytest.raises(ValueError, match=f"the model was trained on other columns: {message}"):
            model.score_samples(wrong)
    if name in ("deepnade", "bernoullimixture", "gaussian"):
        assert model.conditional("snow", {"rain": X[0, 0]}).mean() == pytest.approx(
            model.conditional(2, {0: X[0, 0]}).mean(), abs=0
        )


def test_columns_that_were_left_out_are_not_needed(run, tmp_path):
    X = pd.DataFrame(binary(D=3), columns=["rain", "wind", "snow"]).assign(fog=1)
    csv = write(tmp_path / "rows.csv", X[["rain", "fog", "wind", "snow"]])
    run("fit", csv, "--model", "fvsbn", "--epochs", "1", "--drop-constant", "--out", "run")
    model = pynade.load(tmp_path / "run")
    assert list(model.feature_names_in_) == ["rain", "wind", "snow"]
    assert np.isfinite(model.score(X[["wind", "rain", "snow"]]))
