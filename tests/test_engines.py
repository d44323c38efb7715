"""Jobs by every engine: the same results, whatever happens to workers; Ray as two workers on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import polars
import psutil
import pytest
from typer.testing import CliRunner

import pynade
from pynade.cli.main import app
from pynade.engines import run_jobs
from pynade.runs import stream as jobs
from pynade.runs.answers import BatchAnswers
from pynade.runs.sweep import Sweep
from pynade_paper.cells import cells
from pynade_paper.reproduce import Options, reproduce_all
from tests.cli.test_tables import people
from tests.paper.test_reproduce import TABLES
from tests.runs.test_stream import read, written
from tests.runs.test_sweep import FIXED, GRID, Toy, fold

N = 90
OWN_WARNINGS = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data")
SAME = ("test", "chosen", "validation_grid")  # of the record of a sweep


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
    pytest.importorskip("ray.data", reason="Ray Data is not installed (extra ray)")
    with warnings.catch_warnings(action="ignore"):  # of Ray's own
        ray.init(
            "local", num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False
        )
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model and its file."""
    made = pynade.TabularNADE(hidden=8, epochs=2, drop=("id",), n_orderings=2, random_state=0).fit(people(N))
    made.save(file := tmp_path_factory.mktemp("model") / "m.safetensors")
    return pynade.load(file), file


def workers_of_ray(name):
    """Processes of the workers that this process started."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if any(f"ray::{name}" in word for word in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def block(first, kind="text"):
    """The code on the page about clusters that begins so."""
    page = (Path(__file__).parents[1] / "docs/howto/clusters.md").read_text(encoding="utf-8")
    (code,) = (c for c in re.findall(rf"^```{kind}\n(.*?)^```$", page, re.S | re.M) if c.startswith(first))
    return code


def square(x):
    return os.getpid(), x * x


def fails(x):
    raise ValueError(f"no {x}") if x else KeyError(x)


def dies(x):
    os.kill(os.getpid(), signal.SIGKILL)


def test_jobs_are_done_once_each():
    for workers in (None, 1, 2):
        made = dict(run_jobs(square, [(x,) for x in range(7)], workers=workers))
        assert {n: found for n, (_, found) in made.items()} == {x: x * x for x in range(7)}
        assert ({pid for pid, _ in made.values()} == {os.getpid()}) == (workers != 2)
    with pytest.raises(ValueError, match="no 3"):
        list(run_jobs(fails, [(3,)]))


@pytest.mark.slow
def test_errors_of_other_processes(ray):
    for engine in ("local", "ray"):
        with pytest.raises(ValueError, match="no 3") as error:
            list(run_jobs(fails, [(3,)], engine, 2))
        assert type(error.value) is ValueError
    with pytest.raises(ConnectionError, match="worker process has ended"):
        list(run_jobs(dies, [(1,)], workers=2))
    with pytest.raises(ConnectionError, match="given up"):
        list(run_jobs(dies, [(1,)], "ray"))


def test_engines_that_are_not_there_are_named(model, tmp_path, monkeypatch):
    people(N).write_csv(tmp_path / "t.csv")
    ask = partial(pynade.stream.score, model[0], tmp_path / "t.csv", tmp_path / "s.csv")
    with pytest.raises(ValueError, match="engine must be local or ray, not 'spark'"):
        ask(engine="spark")
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        ask(workers=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'pynade\[ray\]'"):
        ask(engine="ray")
    words = ["score", str(model[1]), "penguins", "--engine", "local", "--workers", "2"]
    with pytest.raises(ValueError, match="exact scores of tables in files"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "s.csv").exists()


@pytest.mark.slow
def test_parts_by_processes_are_those_of_one(model, tmp_path):
    data = written(people(N), tmp_path / "data", "csv")
    (data / "2.csv").unlink()
    for workers in (1, 2):
        made = pynade.stream.surprise(
            model[0], data, tmp_path / f"{workers}.csv", top=5, rows=8, workers=workers
        )
        assert made.rows == 31
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


def test_workers_of_ray_are_killed_and_nothing_is_lost_or_doubled(ray, model, tmp_path):
    data, killed, later = written(people(N), tmp_path / "data", "csv"), set(), set()
    ask = partial(jobs.ask, model[0], "impute", data, rows=9, draws=2)

    def kill(done, total, what=""):
        if done and not what:
            later.update(workers_of_ray("_Actor"))
            for pid in later if not killed else ():
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)

    one, other = ask(tmp_path / "local.csv"), ask(tmp_path / "ray.csv", engine="ray", progress=kill)
    assert killed
    assert later - killed  # they were started again
    assert one == other
    assert (tmp_path / "local.csv").read_bytes() == (tmp_path / "ray.csv").read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_one_engine_began_another_ends(ray, model, tmp_path):
    data, done = written(people(N), tmp_path / "data", "parquet"), []

    def stop(rows, total, what=""):
        done.append(rows)
        if rows >= 40 and not what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pynade.stream.score(model[0], data, tmp_path / "parts", rows=20, engine="ray", progress=stop)
    before = len(done)
    made = pynade.stream.score(
        model[0], data, tmp_path / "parts", rows=20, progress=lambda *call: done.append(call[0])
    )
    assert done[before] >= 40  # parts that Ray wrote are not computed again
    alone = pynade.stream.score(model[0], data, tmp_path / "alone", rows=20)
    assert str(made) == str(alone)
    assert read(tmp_path / "parts").equals(read(tmp_path / "alone"))


@pytest.mark.slow
def test_the_command_and_its_errors(ray, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(people(N), tmp_path / "data", "parquet")
    for engine in ("local", "ray"):
        words = ["score", str(model[1]), "data/*.parquet", "--rows", f"{engine}.csv", "--engine", engine]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "local.csv").read_bytes() == (tmp_path / "ray.csv").read_bytes()
    raw = (tmp_path / "data/2.parquet").read_bytes()
    at = raw.index(b"\x28\xb5\x2f\xfd")
    (tmp_path / "data/2.parquet").write_bytes(raw[: at + 6] + bytes(8) + raw[at + 14 :])
    with pytest.raises(ValueError, match=r"data/2\.parquet could not be read") as error:
        pynade.stream.score(model[0], "data", "no.csv", engine="ray")
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "no.csv").exists()


@OWN_WARNINGS
def test_a_data_set_of_ray(ray, model, tmp_path):
    table = people(N)
    data = ray.data.from_arrow([table[at : at + 30].to_arrow() for at in range(0, N, 30)])
    made = pynade.stream.answer_dataset(model[0], "score", data, rows=7)
    got = polars.concat([polars.from_arrow(block) for block in ray.get(made.to_arrow_refs())])
    assert got.columns == [*table.columns, "log_prob"]
    expected = dict(zip(table["id"], model[0].score_samples(table), strict=True))
    assert sorted(got["id"]) == sorted(table["id"])
    np.testing.assert_allclose(got["log_prob"], [expected[i] for i in got["id"]])
    with pytest.raises(ValueError, match="must be one of score, impute, predict, surprise, not 'sample'"):
        pynade.stream.answer_dataset(model[0], "sample", data)


@pytest.mark.slow
@OWN_WARNINGS
def test_the_recipe_of_the_page(ray, tmp_path):
    written(people(N), tmp_path / "people", "parquet")
    model = pynade.TabularNADE(hidden=8, epochs=2, drop=("id",), random_state=0).fit(people(N))
    model.save(tmp_path / "model.safetensors")
    names = {}
    exec(block("import ray").replace("/shared/", f"{tmp_path}/"), names)
    assert names["scored"].columns() == [*people(N).columns, "log_prob"]
    filled = read(tmp_path / "filled")
    assert sorted(filled["id"]) == sorted(people(N)["id"])
    assert filled["age"].null_count() == 0


@pytest.mark.slow
def test_the_recipe_for_spark(tmp_path, monkeypatch):
    spark = pytest.importorskip("pyspark", reason="Spark is not installed (pip install pyspark)")
    if not (Path(spark.__file__).parent / "jars").is_dir() or shutil.which("java") is None:
        pytest.skip("Spark needs Java, and the package pyspark, not only its client")
    monkeypatch.chdir(tmp_path)
    table = pynade.datasets.penguins()
    (tmp_path / "people").mkdir()
    for k, part in enumerate((table[:200], table[200:])):
        part.to_parquet(tmp_path / f"people/{k}.parquet")
    model = pynade.TabularNADE(hidden=8, epochs=2, random_state=0).fit(table)
    model.save("model.safetensors")
    code = (
        f"{block('import pynade', 'python')}\n{block('def scored_frames', 'python')}\n{block('from pyspark')}"
    )
    (tmp_path / "recipe.py").write_text(code.replace("TabularNADE(", "TabularNADE(hidden=8, epochs=2, "))
    where = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([sys.executable, "recipe.py"], capture_output=True, text=True, env=where)
    assert done.returncode == 0, done.stderr
    found = polars.read_parquet("scores/*.parquet")["log_prob"]
    np.testing.assert_allclose(np.sort(found), np.sort(model.score_samples(table)))


@OWN_WARNINGS
def test_a_data_set_of_ray_whose_worker_is_killed(ray, tmp_path):
    class Fragile:
        """Kills its process in the middle of its work, the first time."""

        def score_samples(self, rows, orderings):
            if len(rows) < 5 and not (tmp_path / "dead").exists():
                (tmp_path / "dead").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return rows.sum(1)

    tables = [polars.DataFrame({"a": range(at, at + 23), "b": [1] * 23}).to_arrow() for at in (0, 23, 46)]
    made = pynade.stream.answer_dataset(Fragile(), "score", ray.data.from_arrow(tables), rows=10)
    rows = sorted((row["a"], row["log_prob"]) for row in made.take_all())
    assert (tmp_path / "dead").exists()
    assert rows == [(a, a + 1) for a in range(69)]


def test_draws_for_a_batch_depend_on_its_rows_alone(model):
    work = BatchAnswers(model[0], "impute", 40, {"draws": 1, "random_state": 3})
    table = people(N)
    first, last = (polars.from_arrow(next(work(part.to_arrow()))) for part in (table[:40], table[40:80]))
    again = [polars.from_arrow(batch) for batch in work(table[:80].to_arrow())]
    assert first.equals(again[0])
    assert last.equals(again[1])
    other = BatchAnswers(model[0], "impute", 40, {"draws": 1, "random_state": 4})
    assert not first.equals(polars.from_arrow(next(other(table[:40].to_arrow()))))


@pytest.mark.parametrize("name", ["rnade", pytest.param("gaussian", marks=pytest.mark.slow)])
def test_a_sweep_on_ray_is_the_local_one(ray, tmp_path, name):
    fixed, grid = (FIXED, GRID) if name == "rnade" else ({}, {})
    known, told = {"toy": Toy(fold(1), fold(2))}, []
    sweep = partial(Sweep, model=name, data="toy", fixed=fixed, grid=grid, known=known)
    local = sweep(tmp_path / "local").run()
    away = sweep(tmp_path / "ray", engine="ray", report=told.append).run()
    assert json.dumps([local[k] for k in SAME]) == json.dumps([away[k] for k in SAME])
    for k in (1, 2):
        models = [pynade.load(tmp_path / engine / f"fold-{k}.safetensors") for engine in ("local", "ray")]
        rows = fold(k).test
        np.testing.assert_array_equal(*(m.score_samples(rows) for m in models))
    assert {now.phase for now in told} == {"grid", "final"}
    assert not [path for path in (tmp_path / "ray").iterdir() if path.is_dir()]


@pytest.mark.slow
def test_cells_of_the_paper_on_ray_are_the_local_ones(ray, tmp_path):
    todo = [cell for cell in cells(TABLES) if cell.row.model in ("Tree", "Net")]
    records = {}
    for engine in ("local", "ray"):
        places, options = (
            (tmp_path / engine / "results", tmp_path / engine / "work"),
            Options("cpu", quick=True),
        )
        made = list(reproduce_all(todo, None, *places, options, engine))
        records[engine] = {cell.row.model: outcome["valid"] for cell, (outcome, _) in made}
    assert len(records["ray"]) == 2
    assert records["local"] == records["ray"]


DRIVER = """
    import os, signal, sys
    import pynade
    def kill(done, total, what=""):
        if done and not what:
            os.kill(os.getpid(), signal.SIGKILL)
    model, data, out = sys.argv[1:]
    pynade.stream.score(pynade.load(model), data, out, rows=20, engine="ray", progress=kill)
"""


@pytest.mark.slow
def test_a_killed_driver_goes_on_to_the_same_output(ray, model, tmp_path):
    data, out = written(people(N), tmp_path / "data", "csv"), tmp_path / "out.csv"
    words = [str(word) for word in (model[1], data, out)]
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()
    assert [path for path in tmp_path.iterdir() if path.name.endswith(".parts")]
    jobs.ask(model[0], "score", data, out, rows=20, engine="ray")
    jobs.ask(model[0], "score", data, tmp_path / "alone.csv", rows=20)
    assert out.read_bytes() == (tmp_path / "alone.csv").read_bytes()
