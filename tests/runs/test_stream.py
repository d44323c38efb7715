"""Questions about tables in files: the same answers as in memory, whatever happens on the way."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pynade
from pynade.runs import stream as jobs
from pynade.runs.answers import add_moments, answer, draw, moments, part_seed
from pynade.tables.files import read_frame, write_table
from pynade.tables.stream import list_parts, read_part
from tests.cli.test_tables import people

N = 90


@pytest.fixture(scope="module")
def model():
    return pynade.TabularNADE(hidden=8, epochs=2, drop=("id",), n_orderings=2, random_state=0).fit(people(N))


@pytest.fixture(scope="module")
def bits():
    rng = np.random.default_rng(0)
    rows = polars.DataFrame((rng.random((N, 4)) < 0.4).astype(float), schema=list("abcd"))
    gaps = polars.Series(rng.random(N) < 0.2)
    return rows.with_columns(polars.when(~gaps).then(polars.col("b")).alias("b"))


@pytest.fixture(scope="module")
def arrays(bits):
    return {
        "deep": pynade.DeepNADE(hidden=8, epochs=2, random_state=0).fit(bits),
        "nade": pynade.NADE(hidden=8, epochs=2, random_state=0).fit(bits.drop_nulls()),
        "mixture": pynade.BernoulliMixture(n_components=2, random_state=0).fit(bits),
    }


def written(frame, folder, kind, cuts=(30, 31)):
    """The rows in files of a folder."""
    folder.mkdir()
    for k, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(frame)], strict=True)):
        getattr(frame[a:b], f"write_{kind}")(folder / f"{k}.{kind}")
    return folder


def read(path):
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return polars.concat([read_frame(file) for file in files])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("rows", [7, 1000])
def test_answers_of_a_mixed_table_are_those_in_memory(model, tmp_path, kind, rows):
    data = written(people(N), tmp_path / "data", kind)
    table = read(data)
    made = pynade.stream.score(model, data, tmp_path / f"s.{kind}", rows=rows)
    scores = model.score_samples(table)
    np.testing.assert_allclose(read(tmp_path / f"s.{kind}")["log_prob"], scores, rtol=1e-12)
    assert made.rows == made.scores.n == N
    for found, expected in ((made.scores, scores), (made.gain, model.gain(table))):
        np.testing.assert_allclose(
            [found.mean, found.stderr], [expected.mean(), expected.std(ddof=1) / N**0.5]
        )
    pynade.stream.score(model, data, tmp_path / f"d.{kind}", rows=rows, density=True, orderings=1)
    np.testing.assert_allclose(read(tmp_path / f"d.{kind}")["log_prob"], model.score_samples(table, 1, True))

    made = pynade.stream.impute(model, data, tmp_path / f"i.{kind}", rows=rows)
    filled = model.impute(table)
    assert made.gaps == sum(table.null_count().row(0)) - table["id"].null_count()
    found = read(tmp_path / f"i.{kind}")
    assert found.schema == filled.schema
    for name in table.columns:
        if filled[name].dtype.is_float():
            np.testing.assert_allclose(found[name], filled[name], rtol=1e-4)
        else:
            assert found[name].to_list() == filled[name].to_list()
    pynade.stream.impute(model, data, tmp_path / f"n.{kind}", draws=2, random_state=3, rows=rows)
    draws = read(tmp_path / f"n.{kind}")
    for k in (0, 1):
        assert draws.filter(draw=k)["hours per week"].equals(table["hours per week"])

    for target in ("age", "city", "born", "member"):
        pynade.stream.predict(model, data, tmp_path / f"p.{kind}", target, rows=rows)
        expected = polars.DataFrame({target: model.predict(table, target)}, strict=False)
        write_table(tmp_path / f"e.{kind}", None, expected)
        assert read(tmp_path / f"p.{kind}").equals(read(tmp_path / f"e.{kind}"))
    pynade.stream.predict(model, data, tmp_path / "pp.parquet", "city", proba=True, rows=rows)
    np.testing.assert_allclose(read(tmp_path / "pp.parquet"), model.predict_proba(table, "city"), rtol=1e-4)

    pynade.stream.surprise(model, data, tmp_path / f"o.{kind}", rows=rows)
    cells = model.surprise(table)
    np.testing.assert_allclose(read(tmp_path / f"o.{kind}"), cells, rtol=1e-4, atol=1e-4)
    few = written(table[:12], tmp_path / "few", kind, cuts=(5,))
    for place, top in ((data, 5), (few, 1000)):
        made = pynade.stream.surprise(model, place, tmp_path / f"top.{kind}", top=top, rows=rows).cells
        expected = model.surprise(table if top == 5 else table[:12], top)
        assert made.select("row", "column", "value").equals(expected.select("row", "column", "value"))
        assert read(tmp_path / f"top.{kind}")["row"].to_list() == expected["row"].to_list()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["deep", "nade", "mixture"])
def test_answers_of_models_of_arrays_are_those_in_memory(arrays, bits, tmp_path, name):
    estimator = arrays[name]
    table = bits.drop_nulls() if name == "nade" else bits
    for kind in ("csv", "parquet"):
        data = written(table, tmp_path / kind, kind)
        made = pynade.stream.score(estimator, data, tmp_path / f"s.{kind}", rows=7)
        expected = estimator.score_samples(table)
        np.testing.assert_allclose(read(tmp_path / f"s.{kind}")["log_prob"], expected)
        np.testing.assert_allclose(made.scores.mean, expected.mean())
        if name != "nade":
            made = pynade.stream.impute(estimator, data, tmp_path / f"i.{kind}", rows=7)
            np.testing.assert_allclose(read(tmp_path / f"i.{kind}"), estimator.impute(table), atol=1e-6)
            assert made.gaps == table["b"].null_count()


def test_samples_are_those_of_the_seeds_of_their_parts(model, arrays, tmp_path):
    for k, estimator in enumerate((model, arrays["deep"])):
        pynade.stream.sample(estimator, 50, tmp_path / f"{k}.parquet", random_state=4, rows=20)
        found = read(tmp_path / f"{k}.parquet")
        first, last = (draw(estimator, n, part_seed(4, p))[0] for n, p in ((20, 0), (10, 2)))
        assert part_seed(4, 0) == 4
        assert len(found) == 50
        assert [*map(str, found[:20].rows())] == [*map(str, polars.DataFrame(first).rows())]
        assert [*map(str, found[40:].rows())] == [*map(str, polars.DataFrame(last).rows())]


def test_a_folder_gets_a_file_for_each_part(model, tmp_path):
    data = written(people(N), tmp_path / "data", "csv")
    pynade.stream.impute(model, data, tmp_path / "whole.csv", rows=20)
    made = pynade.stream.impute(model, data, tmp_path / "parts", rows=20)
    assert made.parts == len([*(tmp_path / "parts").iterdir()]) == 6
    assert read(tmp_path / "parts").equals(read(tmp_path / "whole.csv"))
    with pytest.raises(ValueError, match="it is a folder"):
        pynade.stream.impute(model, data, tmp_path / "parts")
    one = tmp_path / "one"
    pynade.stream.score(model, people(N), one)
    assert [path.name for path in one.iterdir()] == ["part-000000.parquet"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), min_size=1, max_size=6))
def test_moments_of_parts_add_up(parts):
    total = moments(np.array(parts[0]))
    for part in parts[1:]:
        total = add_moments(total, moments(np.array(part)))
    every = np.concatenate(parts)
    assert total[0] == len(every)
    np.testing.assert_allclose(total[1], every.mean(), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(total[2], every.var() * len(every), rtol=1e-6, atol=1e-3)


KILLED = """
    import os, signal, sys
    import pynade
    from pynade.runs import stream
    _, model, data, out, moment, question, top = sys.argv
    replace, count = os.replace, 0
    def killing(*paths):  # before or after one of the steps in which files appear
        global count
        count += 1
        if count == int(moment):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*paths)
        if count == -int(moment):
            os.kill(os.getpid(), signal.SIGKILL)
    os.replace = killing
    stream.ask(pynade.load(model), question, data, out, rows=20, **({"top": int(top)} if int(top) else {}))
"""


@pytest.mark.parametrize(
    ("question", "kind", "top"), [("score", ".parquet", 0), ("impute", "", 0), ("surprise", ".csv", 9)]
)
def test_a_killed_call_goes_on_to_the_same_output(model, tmp_path, monkeypatch, question, kind, top):
    data, out, steps = written(people(N), tmp_path / "data", "csv"), tmp_path / f"out{kind}", []
    model.save(tmp_path / "m.safetensors")
    loaded, replace = pynade.load(tmp_path / "m.safetensors"), os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append(1), replace(*paths)))

    def whole():
        """The result of a call, the number of its steps, and what it writes, which is then removed."""
        steps.clear()
        made = jobs.ask(loaded, question, data, out, rows=20, **({"top": top} if top else {}))
        content = [file.read_bytes() for file in (sorted(out.iterdir()) if out.is_dir() else [out])]
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        return str(made), len(steps), content

    says, count, undisturbed = whole()
    for moment in (-4, count):
        words = [tmp_path / "m.safetensors", data, out, moment, question, top]
        command = [sys.executable, "-c", textwrap.dedent(KILLED), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists()
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".parts")]
        again, fewer, content = whole()
        assert (again, content) == (says, undisturbed)
        assert fewer < count  # parts are not computed again
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def stopped_after(rows):
    """A `progress` that interrupts a call when so many rows are done."""

    def interrupt(done, total, what=""):
        if done >= rows and not what:
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.parametrize("damaged", ["parts", "facts"])
@pytest.mark.parametrize("fault", ["flipped", "truncated", "missing"])
@pytest.mark.parametrize(("kind", "top"), [(".csv", None), (".csv", 9)])
def test_a_damaged_part_is_computed_again(model, tmp_path, damaged, fault, kind, top):
    data, out, ask = written(people(N), tmp_path / "data", "csv"), tmp_path / f"out{kind}", jobs.ask
    asked = {"question": "surprise", "top": top} if top else {"question": "score"}
    whole = ask(model, data=data, out=out, rows=20, **asked)
    expected = out.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        ask(model, data=data, out=out, rows=20, progress=stopped_after(60), **asked)
    file = sorted(next(tmp_path.glob(".out.*.parts")).joinpath(damaged).iterdir())[1]
    content = file.read_bytes()
    if fault == "missing":
        file.unlink()
    elif fault == "flipped":
        digit = max(content.rfind(b"%d" % k) for k in range(10))
        file.write_bytes(content[:digit] + bytes([content[digit] ^ 1]) + content[digit + 1 :])
    else:
        file.write_bytes(content[: len(content) // 2] if fault == "truncated" else b"")
    assert str(ask(model, data=data, out=out, rows=20, **asked)) == str(whole)
    assert out.read_bytes() == expected


@contextmanager
def files_of_at_most(size):
    """In this block no file grows beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_full_disk_is_one_sentence_and_loses_nothing(arrays, bits, tmp_path, kind):
    table = polars.concat([bits] * 50)
    data, out = written(table, tmp_path / "data", "parquet", cuts=(50, 51)), tmp_path / f"o.{kind}"
    for size in (0, 1000, *([20_000] if kind == "csv" else [])):  # no file, no first part, not the whole
        with files_of_at_most(size), pytest.raises(OSError, match=r"cannot write .*o") as error:
            pynade.stream.score(arrays["deep"], data, out)
        assert len(str(error.value).splitlines()) == 1
        assert not out.exists()
    pynade.stream.score(arrays["deep"], data, out)
    assert len(read(out)) == len(table)
    with files_of_at_most(1000), pytest.raises(OSError, match=rf"cannot write .*{kind}"):
        write_table(
            tmp_path / f"t.{kind}", None, polars.DataFrame({"a": np.random.default_rng(0).random(3000)})
        )


def test_tables_in_memory_never_share_parts(model):
    keys = {jobs._key(model, "score", [people(N)], {}) for _ in range(2)}
    assert len(keys) == 2


def test_an_output_is_no_file_of_the_table_that_is_read(model, tmp_path):
    data = written(people(N), tmp_path / "data", "csv")
    file, before = data / "0.csv", (data / "0.csv").read_bytes()
    (tmp_path / "link.csv").symlink_to(file)
    for place, out in (
        (file, file),
        (data / "*.csv", file),
        (data, data / "filled.csv"),
        (data, data / "filled"),
        (file, tmp_path / "link.csv"),
    ):
        with pytest.raises(ValueError, match="it would be a file of the table that is read"):
            pynade.stream.score(model, str(place), out, rows=20)
    assert file.read_bytes() == before
    assert len([*data.iterdir()]) == 3


@pytest.mark.parametrize("rows", [0, -3, 1.5, "2"])
def test_sizes_of_parts_are_checked(model, tmp_path, rows):
    data = written(people(N), tmp_path / "data", "csv")
    for place in (data, written(people(N), tmp_path / "other", "parquet")):
        with pytest.raises(ValueError, match="a whole number from 1 on, not"):
            pynade.stream.score(model, place, rows=rows)
    with pytest.raises(ValueError, match="a whole number from 1 on, not"):
        pynade.stream.sample(model, 10, tmp_path / "s.csv", rows=rows)
    with pytest.raises(ValueError, match="number of rows must be at least 1, not -1"):
        pynade.stream.sample(model, -1, tmp_path / "s.csv")


def test_parts_of_another_call_are_not_taken(model, tmp_path):
    data, out = written(people(N), tmp_path / "data", "parquet"), tmp_path / "out.csv"
    keys = set()
    for options in ({}, {"density": True}, {"rows": 30}):
        rows = options.pop("rows", 20)
        keys.add(jobs._key(model, "score", list_parts(data, rows), options))
    people(N)[:-1].write_parquet(data / "2.parquet")
    keys.add(jobs._key(model, "score", list_parts(data, 20), {}))
    assert len(keys) == 4
    old = tmp_path / ".out.csv.0123456789abcdef.parts"
    (old / "parts").mkdir(parents=True)
    (old / "parts" / "part-000000.csv").write_text("log_prob\n0\n")
    pynade.stream.score(model, data, out, rows=20)
    assert not old.exists()
    assert out.read_text().splitlines()[1] != "0"


@pytest.mark.parametrize("fault", ["grows", "disappears", "corrupt", "columns"])
def test_a_fault_of_a_file_is_one_sentence_and_leaves_nothing(model, tmp_path, monkeypatch, fault):
    data, out = written(people(N), tmp_path / "data", "parquet"), tmp_path / "out.parquet"
    last = data / "2.parquet"
    if fault == "columns":
        people(N).drop("age").write_parquet(last)
    if fault == "corrupt":
        raw = last.read_bytes()
        at = raw.index(b"\x28\xb5\x2f\xfd")
        last.write_bytes(raw[: at + 6] + bytes(8) + raw[at + 14 :])

    def happens(done, total, what=""):
        if done == 20 and fault == "grows":
            people(N).write_parquet(last)
        if done == 20 and fault == "disappears":
            last.unlink()

    with pytest.raises((ValueError, FileNotFoundError), match=r"2\.parquet") as error:
        pynade.stream.score(model, data, out, rows=20, progress=happens)
    assert len(str(error.value).splitlines()) == 1
    assert not out.exists()
    kept = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert bool(kept) == (fault == "disappears")  # it may come back


def test_a_file_that_changes_after_it_was_read_is_noticed(model, tmp_path):
    data, out = written(people(N), tmp_path / "data", "csv"), tmp_path / "out.csv"

    def happens(done, total, what=""):
        if done == N and not what:
            with (data / "0.csv").open("a") as file:
                file.write("\n")

    with pytest.raises(ValueError, match=r"0\.csv has changed since its rows were counted"):
        pynade.stream.score(model, data, out, rows=20, progress=happens)
    assert not out.exists()


def test_rows_that_an_earlier_command_answered_do_not_count_in_the_rate(model, tmp_path):
    data, out, calls = written(people(N), tmp_path / "data", "csv"), tmp_path / "out.csv", []
    before = []

    def interrupted(done, total, what=""):
        if done >= 40 and not what:
            before.append(done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pynade.stream.score(model, data, out, rows=20, progress=interrupted)
    pynade.stream.score(model, data, out, rows=20, progress=lambda *call: calls.append(call))
    rows = [done for done, total, *what in calls if not what]
    assert rows[0] == before[0] < N
    assert rows[-1] == N
    assert rows == sorted(set(rows))


def test_two_processes_do_not_write_one_output(model, tmp_path):
    data, out = written(people(N), tmp_path / "data", "csv"), tmp_path / "out.csv"

    def second(done, total, what=""):
        if done == 20 and not what:
            other = (
                "import sys, pynade; pynade.stream.score(pynade.load(sys.argv[1]), *sys.argv[2:4], rows=20)"
            )
            words = [sys.executable, "-c", other, str(tmp_path / "m.safetensors"), str(data), str(out)]
            done = subprocess.run(words, capture_output=True, text=True)
            assert re.search(rf"in use by process {os.getpid()} ", done.stderr)

    model.save(tmp_path / "m.safetensors")
    pynade.stream.score(pynade.load(tmp_path / "m.safetensors"), data, out, rows=20, progress=second)
    assert len(read(out)) == N


def test_a_folder_that_the_process_before_removed_is_made_again(tmp_path, monkeypatch):
    place, real, calls = tmp_path / "p", jobs.sole_writer, []

    def removed_first(folder):
        calls.append(folder)
        if len(calls) == 1:
            folder.rmdir()
            raise FileNotFoundError(folder)
        return real(folder)

    monkeypatch.setattr(jobs, "sole_writer", removed_first)
    with jobs._locked(place):
        assert (place / ".lock").is_file()
    assert len(calls) == 2
    assert not place.exists()


def test_a_folder_that_the_next_process_has_taken_is_left(tmp_path):
    place = tmp_path / "p"
    with jobs._locked(place):
        jobs._clear(place)
        assert (place / ".lock").is_file()  # until the very end
        (place / "next").write_text("of the next process")
    assert [file.name for file in place.iterdir()] == ["next"]


def test_an_answer_depends_on_its_arguments_only(model, tmp_path):
    data = written(people(N), tmp_path / "data", "csv")
    parts = list_parts(data, 20, model.missing)
    for question, options in (("score", {}), ("impute", {"draws": 2}), ("predict", {"target": "city"})):
        one, other = (
            [answer(model, question, read_part(part), parts.index(part), **options) for part in order]
            for order in (parts, parts[::-1])
        )
        for (made, facts), (again, same) in zip(one, other[::-1], strict=True):
            assert made.equals(again)
            assert facts == same
    first, second = (answer(model, "impute", read_part(parts[1]), k, draws=1)[0] for k in (1, 2))
    assert not first.equals(second)


def test_what_cannot_be_written_is_refused_before_anything_is_computed(model, tmp_path):
    people(N).write_csv(tmp_path / "t.csv")
    for out, says in (
        ("x.txt", "ending must be"),
        ("no/x.csv", "does not exist"),
        ("x.npy", "as .csv or .parquet"),
    ):
        with pytest.raises(ValueError, match=says):
            pynade.stream.score(model, tmp_path / "t.csv", tmp_path / out, rows=20)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_an_array_file_takes_one_part(tmp_path):
    X = np.random.default_rng(0).integers(0, 2, (30, 3))
    model = pynade.NADE(hidden=4, epochs=1, random_state=0).fit(X)
    polars.DataFrame(X, ["a", "b", "c"]).write_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"cannot write .*s\.npy: 30 rows in 2 parts are written as \.csv"):
        pynade.stream.score(model, tmp_path / "t.csv", tmp_path / "s.npy", rows=20)
    pynade.stream.score(model, tmp_path / "t.csv", tmp_path / "s.npy", rows=30)
    assert np.load(tmp_path / "s.npy").shape == (30,)
