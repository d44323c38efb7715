"""Fits to tables in files: read whole where they are small, else in parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars
import pytest

import pynade
from pynade.runs.run import resume_run, start_run
from pynade.tables import large, stream
from tests.cli.conftest import run as run
from tests.cli.test_tables import people

N = 120
TINY = {"hidden": 8, "members": 1, "epochs": 2, "drop": ("id",), "random_state": 0}


def tabular(**more):
    return pynade.TabularNADE(**TINY | {"training": {"updates_per_epoch": 3}} | more)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    for k, part in enumerate((people(N)[:50], people(N)[50:51], people(N)[51:])):
        part.write_parquet(place / f"{k}.parquet")
    return place


def groups(n, seed):
    """Three groups and a number of each: knowing one column tells about a nat of the other."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    return polars.DataFrame({"group": np.array([*"abc"])[group], "x": rng.normal(4.0 * group)})


def test_small_tables_in_files_are_read_whole(folder, tmp_path):
    expected = tabular().fit(people(N)).score_samples(people(N))
    people(N).write_csv(tmp_path / "people.csv")
    for place in (folder, str(folder), f"{folder}/*.parquet", tmp_path / "people.csv"):
        found = tabular().fit(place)
        np.testing.assert_array_equal(found.score_samples(people(N)), expected)
    assert found.schema_.frame == "polars"


def test_rows_read_in_parts_give_a_model_as_good_and_the_same_one_again(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "ROWS", 100)
    monkeypatch.setattr(large, "SAMPLED", 300)
    table, fresh, place = groups(1500, 0), groups(1000, 1), tmp_path / "t"
    place.mkdir()
    for k in range(3):
        table[500 * k : 500 * (k + 1)].write_parquet(place / f"{k}.parquet")
    options = {
        "drop": (),
        "hidden": 16,
        "epochs": 20,
        "training": {"updates_per_epoch": 10},
        "mixture": False,
    }
    whole, parts, again = (tabular(**options, stream_above=above).fit(place) for above in (1.0, 0.0, 0.0))
    assert parts.n_rows_ == 1500
    assert [c.levels for c in parts.schema_.columns] == [c.levels for c in whole.schema_.columns]
    scores = [model.score_samples(fresh) for model in (whole, parts)]
    # both are within a tenth of a nat of each other; without the dependence a row loses about one
    assert scores[1].mean() == pytest.approx(scores[0].mean(), abs=0.1)
    assert parts.gain(fresh).mean() > 0.5
    np.testing.assert_array_equal(again.score_samples(fresh), scores[1])
    other = tabular(**options | {"random_state": 1}, stream_above=0.0).fit(place).score_samples(fresh)
    assert np.abs(other - scores[1]).max() > 1e-6


def test_validation_rows_are_held_out_or_given_and_every_draw_is_of_an_epoch(folder, monkeypatch):
    drawn, draw = [], large.CodeRows.draw

    def noted(self, n, generator):
        drawn.append((self.n, n))
        return draw(self, n, generator)

    monkeypatch.setattr(large.CodeRows, "draw", noted)
    for more, n, valid in (({}, 108, True), ({"validation_fraction": 0.0}, 120, False)):
        model = tabular(stream_above=0, batch_size=16, **more).fit(folder)
        assert (model.history_.epochs[0]["valid"] is not None) == valid
        assert {*drawn} == {(n, 3 * 16)}
        drawn.clear()
    model = tabular(stream_above=0, batch_size=16).fit(folder, X_valid=people(N)[:20])
    assert {*drawn} == {(120, 3 * 16)}
    assert model.history_.epochs[0]["valid"] is not None
    drawn.clear()
    whole = pynade.TabularNADE(**TINY, stream_above=0, batch_size=32).fit(folder)  # 2,738 updates
    assert {*drawn} == {(108, 45 * 32)}
    assert whole.options().updates_per_epoch == 45
    assert not whole.fit(people(N)).options().updates_per_epoch


def test_every_answer_is_there_after_a_save(folder, tmp_path):
    model = tabular(stream_above=0).fit(folder)
    model.save(tmp_path / "model.safetensors")
    again = pynade.load(tmp_path / "model.safetensors")
    assert again.schema_ == model.schema_
    assert (again.n_rows_, again.n_features_in_, list(again.feature_names_in_)) == (N, 9, people(1).columns)
    np.testing.assert_array_equal(again.score_samples(people(N)), model.score_samples(people(N)))
    assert again.impute(people(N)).columns == people(N).columns


def test_what_takes_no_files_says_so(folder):
    with pytest.raises(
        TypeError, match=r"NADE is fitted to an array or a data frame, not to a file such as "
    ):
        pynade.NADE().fit(folder)
    model = tabular().fit(folder)
    with pytest.raises(TypeError, match=r"not 'x.csv'; pynade.stream takes files$"):
        model.score_samples("x.csv")
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="stream_above must be at least 0"):
            tabular(stream_above=wrong).fit(folder)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        tabular().fit("none.csv")


@pytest.mark.parametrize("above", ["1", "0"])
def test_the_command_line_takes_folders_and_patterns(run, folder, above):
    options = [
        "--epochs",
        2,
        "--hidden",
        8,
        "--members",
        1,
        "--updates-per-epoch",
        3,
        "--stream-above",
        above,
    ]
    for data, where in (("data", "runs/data-tabularnade"), ("data/*.parquet", "runs/data-tabularnade")):
        code, out, err = run("fit", data, *options, "--overwrite")
        assert code == 0, err
        assert "column 'id' is left out: 120 different texts" in out
        spec, origin = (
            json.loads((Path(where) / f"{name}.json").read_text()) for name in ("spec", "provenance")
        )
        assert spec["data"] == str(folder / data.removeprefix("data").removeprefix("/")).rstrip("/")
        assert origin["data"]["sizes"] == {"train": N}
        assert origin["data"]["checksum"] == spec["data_checksum"]
        assert origin["data"]["files"] == 3
        result = json.loads((Path(where) / "result.json").read_text())
        assert result["valid"]["n"] == result["gain"]["n"] == 12
    assert spec["data_checksum"][:12] in run("info", where)[1]
    code, out, err = run("report", where, "--out", "report.html")
    assert code == 0, err
    digests = origin["data"].get("digests", {})
    assert list(digests) == ([] if float(above) else sorted(map(str, folder.glob("*.parquet"))))
    assert "data digests" not in Path("report.html").read_text()
    assert run("score", where, "data")[0] == 0


def test_a_run_does_not_go_on_with_other_files(folder, tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    given = TINY | {"stream_above": 0.0, "drop": ["id"], "updates_per_epoch": 3}
    with pytest.raises(KeyboardInterrupt):
        start_run(tmp_path / "run", "tabularnade", given, str(folder), callbacks=[stop])
    kept, refused = (folder / "0.parquet").read_bytes(), r"are not those the run in .* began with: "
    people(N)[:49].write_parquet(folder / "0.parquet")
    with pytest.raises(ValueError, match=rf"{refused}{folder / '0.parquet'} has changed"):
        resume_run(tmp_path / "run")
    (folder / "0.parquet").unlink()
    with pytest.raises(ValueError, match=rf"{refused}{folder / '0.parquet'} has disappeared"):
        resume_run(tmp_path / "run")
    (folder / "0.parquet").write_bytes(kept)
    (folder / "9.parquet").write_bytes(kept)
    with pytest.raises(ValueError, match=rf"{refused}{folder / '9.parquet'} is new"):
        resume_run(tmp_path / "run")


def test_a_file_that_changes_after_the_schema_is_known_is_named_and_no_run_is_left(folder, tmp_path):
    def change(estimator):
        people(N)[:49].write_parquet(folder / "0.parquet")

    given = TINY | {"stream_above": 0.0, "drop": ["id"]}
    with pytest.raises(ValueError, match=rf"^{folder / '0.parquet'} has changed since its rows were counted"):
        start_run(tmp_path / "run", "tabularnade", given, str(folder), checked=change)
    assert not (tmp_path / "run").exists()


def test_progress_tells_the_rows_of_both_passes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "ROWS", 40)
    seen = []
    given = TINY | {"stream_above": 0.0, "drop": ["id"], "updates_per_epoch": 3}
    start_run(tmp_path / "run", "tabularnade", given, str(folder), progress=lambda *now: seen.append(now))
    rows = [0, 40, 50, 51, 91, 120]
    expected = [(n, 120, what) for what in ("counting", "encoding") for n in rows]
    assert [now for now in seen if now[2] != "reading"] == expected
