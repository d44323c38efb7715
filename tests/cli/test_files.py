"""Files of runs: one writer, interruptions, damage, and chunks of scores that belong to one question only."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import pynade
from pynade.atomic import LOCK, InUse, sole_writer
from pynade.digest import read_json
from pynade.models import Rows
from pynade.runs.run import resume_run, start_run
from pynade.runs.score import forget_chunks, score_run
from pynade.training.gradient import _Gradient

NET = {"hidden": 3, "epochs": 6, "batch_size": 20, "device": "cpu"}


class Killed(Exception):
    pass


def kill_after(n):
    def kill(now):
        if now.epoch_done and now.epoch == n:
            raise Killed

    return kill


@pytest.fixture(autouse=True)
def interrupts():
    """Python's own handler of Ctrl-C; a shell starts background processes with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """A run that was killed after its third epoch."""
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)
    with pytest.raises(Killed):
        start_run(tmp_path / "r", "nade", NET, "digits", callbacks=[kill_after(3)])
    return tmp_path / "r"


def start(*words, cwd):
    return subprocess.Popen(
        [sys.executable, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


# damage


def test_a_damaged_file_ends_the_command_with_4(run, tmp_path):
    assert run("fit", "digits", "--hidden", "2", "--epochs", "1", "--out", "whole")[0] == 0
    for name, words in {
        "spec.json": ["info", "r"],
        "result.json": ["fit", "--resume", "r"],
        "model.safetensors": ["score", "r", "digits"],
        "provenance.json": ["score", "r", "digits", "--record", "x.json"],
    }.items():
        shutil.copytree(tmp_path / "whole", tmp_path / "r", dirs_exist_ok=True)
        path = tmp_path / "r" / name
        content = bytearray(path.read_bytes())
        place = -3 if name.startswith("model") else re.search(rb": (\d)", content).start(1)
        content[place] ^= 1  # another weight, or another digit
        path.write_bytes(content)
        code, out, err = run(*words)
        assert (code, out) == (4, ""), (name, err)
        assert f"r/{name} is damaged" in err
        assert len(err.strip().splitlines()) == 1


def test_a_damaged_checkpoint_is_not_resumed(run, unfinished):
    path = unfinished / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    code, _, err = run("fit", "--resume", "r")
    assert code == 4
    assert "r/checkpoint.safetensors is damaged" in err
    assert path.read_bytes() == content


def test_exit_codes_are_documented(run):
    code, out, _ = run("--help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    assert code == 0
    assert "0 done; 1 refused, one sentence says why; 2 unknown command or option; 3 interrupted" in text
    assert "4 a file is damaged that pynade wrote" in text
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    assert (
        "Exit codes: 0 done; 1 refused, one sentence says why; 2 unknown command or option; 3 inter" in readme
    )
    assert run("fit", "nowhere.csv")[0] == 1
    assert run("fit", "digits", "--model", "nope")[0] == 1
    for words in (["paint"], ["score"], ["score", "--wrong"], ["fit"], ["fit", "digits", "--wrong", "3"]):
        assert run(*words)[0] == 2
    assert run("fit", "digits", "--epochs", "many")[0] == run("sample", "r", "-n", "many")[0] == 2


def test_info_says_whether_a_file_is_verified(run, tmp_path):
    pynade.NADE(hidden=2, epochs=1).fit(np.eye(6)).save(tmp_path / "new.safetensors")
    assert "not verified" not in run("info", "new.safetensors")[1]
    old = Path(__file__).parents[1] / "data/saved_0_1/nade.safetensors"
    assert "not verified: it has no digest" in " ".join(run("info", old)[1].split())


# one writer


def test_a_folder_has_one_writer_and_its_end_frees_it(tmp_path):
    refused = pytest.raises(InUse, match=f"in use by process {os.getpid()} on ")
    with sole_writer(tmp_path), refused, sole_writer(tmp_path, wait=0):
        pytest.fail("two writers")
    assert list(tmp_path.iterdir()) == []
    script = (
        f"from pynade.atomic import *; w = sole_writer(Path({str(tmp_path)!r})); w.__enter__(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(LOCK)  # of a process that is gone
    with sole_writer(tmp_path, wait=0):
        assert (tmp_path / LOCK[1]).read_text().startswith(f"process {os.getpid()} on ")
    assert list(tmp_path.iterdir()) == []


RESUME = """
import sys, threading
from pathlib import Path
import pynade.atomic
from pynade.cli.main import main
from pynade.training import loop
original = loop._run
def held(*arguments):  # the writer waits until the test has seen the others refused
    print("writing", flush=True)
    sys.stdin.readline()
    return original(*arguments)
loop._run = held
sys.argv = ["pynade", "fit", "--resume", "r"]
main()
"""


def test_of_three_resumes_at_once_one_writes_and_two_are_refused(unfinished, tmp_path):
    whole = start_run(tmp_path / "whole", "nade", NET, "digits")
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    three = [subprocess.Popen([sys.executable, "-c", RESUME], cwd=tmp_path, **pipe) for _ in range(3)]
    first = [process.stdout.readline() for process in three]  # "writing", or the end of a refused process
    assert sorted(first) == ["", "", "writing\n"]
    (writer,) = (process for process, line in zip(three, first, strict=True) if line)
    for process in three:
        _, err = process.communicate("go\n")
        if process is writer:
            assert process.returncode == 0, err
        else:
            assert process.returncode == 1
            assert re.match(rf"Error: r is in use by process {writer.pid} on \S+: wait for it", err)
            assert len(err.strip().splitlines()) == 1
    assert read_json(unfinished / "result.json") | {"seconds": 0} == whole | {"seconds": 0}
    assert {p.name for p in unfinished.iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}


def test_start_and_sweep_are_refused_while_another_process_writes(run, unfinished, tmp_path):
    words = ["sweep", "digits", "--model", "nade", "--set", "epochs=1", "--grid", "hidden=2"]
    (tmp_path / "s").mkdir()
    before = (unfinished / "checkpoint.safetensors").read_bytes()
    with sole_writer(unfinished), sole_writer(tmp_path / "s"):
        for asked in (["fit", "digits", "--overwrite", "--out", "r"], ["fit", "digits", "--out", "s"]):
            code, _, err = run(*asked)
            assert code == 1
            assert "in use by process" in err
    assert (unfinished / "checkpoint.safetensors").read_bytes() == before
    assert run(*words, "--out", "s")[0] == 0
    with sole_writer(tmp_path / "s"):
        code, _, err = run(*words, "--out", "s")
        assert code == 1
        assert "in use by process" in err


def test_a_process_that_was_quicker_keeps_its_run(tmp_path, monkeypatch):
    @contextmanager
    def after_another(folder):
        (folder / "spec.json").write_text("of another process")
        yield

    monkeypatch.setattr("pynade.runs.run.sole_writer", after_another)
    with pytest.raises(ValueError, match="r already exists"):
        start_run(tmp_path / "r", "nade", NET, "digits")
    assert [(p.name, p.read_text()) for p in (tmp_path / "r").iterdir()] == [
        ("spec.json", "of another process")
    ]


@pytest.mark.parametrize("spec", ['{"openapi": "3.1"}', "[1]", "", '{"model": "nade", "grid": {}}'])
def test_overwrite_touches_only_runs(run, tmp_path, spec):
    (tmp_path / "other").mkdir()
    for name in ("spec.json", "result.json", "model.safetensors"):
        (tmp_path / "other" / name).write_text(spec)
    code, _, err = run("fit", "digits", "--epochs", "1", "--out", "other", "--overwrite")
    assert code == 1
    assert "other is not a run folder, so --overwrite will not touch it" in err
    assert {p.name: p.read_text() for p in (tmp_path / "other").iterdir()} == dict.fromkeys(
        ("spec.json", "result.json", "model.safetensors"), spec
    )


# what a killed process leaves


def test_parts_of_files_are_cleared_and_other_files_left(unfinished, monkeypatch):
    ours = [".checkpoint.safetensors.123.part", ".result.json.9.part", ".model.safetensors.77.part"]
    theirs = [".scores.csv.123.part", "notes.part"]
    for name in ours + theirs:
        (unfinished / name).write_text("half")
    with monkeypatch.context() as patch:
        patch.setattr("pynade.runs.run._train", lambda *_, **__: {})
        resume_run(unfinished)
    assert {p.name for p in unfinished.iterdir() if p.name.endswith("part")} == set(theirs)
    (unfinished / ours[0]).write_text("half")
    start_run(unfinished, "nade", NET | {"epochs": 1}, "digits", overwrite=True)
    assert {p.name for p in unfinished.iterdir() if p.name.endswith("part")} == set(theirs)


def test_a_process_killed_before_its_spec_was_there_does_not_take_the_folder(run, tmp_path):
    fit = ["fit", "digits", "--hidden", "2", "--epochs", "1", "--out", "r"]
    sweep = ["sweep", "digits", "--model", "nade", "--set", "epochs=1", "--grid", "hidden=2", "--out", "s"]
    for words in (fit, sweep):
        folder = tmp_path / words[-1]
        folder.mkdir()
        for name in (*LOCK, ".spec.json.123.part"):
            (folder / name).write_text("half")
        code, _, err = run(*words)
        assert code == 0, err
        assert not list(folder.glob(".*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.notes.json.123.part").write_text("half")
    for words in (fit, sweep):
        assert run(*words[:-1], "other")[0] == 1


def test_a_run_killed_before_its_provenance_was_there_gets_it(unfinished):
    before = read_json(unfinished / "provenance.json")
    (unfinished / "provenance.json").unlink()
    resume_run(unfinished)
    assert read_json(unfinished / "provenance.json") | {"started": 0} == before | {"started": 0}


@pytest.mark.parametrize("text", ["", "[", "{}", "3", "[" * 100_000])
def test_damaged_sessions_of_a_sweep_are_named(run, tmp_path, text):
    words = ["sweep", "digits", "--model", "nade", "--set", "epochs=1", "--grid", "hidden=2", "--out", "s"]
    assert run(*words)[0] == 0
    (tmp_path / "s/sessions.json").write_text(text)
    code, _, err = run(*words)
    assert code == 4
    assert "s/sessions.json is damaged (remove it to go on): " in err


def test_a_finished_run_is_resumed_without_writing(unfinished, monkeypatch):
    resume_run(unfinished)
    left = unfinished / "checkpoint.safetensors"  # of a process that was killed before it removed it
    left.write_text("")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr("pynade.runs.run.sole_writer", refuse)
    assert resume_run(unfinished)["status"] == "finished"


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_all_files_of_a_run_have_the_mode_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        start_run(tmp_path / "r", "nade", NET | {"epochs": 1}, "digits")
    finally:
        os.umask(before)
    assert {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "r").iterdir()} == dict.fromkeys(
        ("spec.json", "provenance.json", "result.json", "metrics.jsonl", "model.safetensors"), 0o666 & ~mask
    )


def test_a_trained_model_is_not_removed_because_its_score_fails(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("no score")

    with monkeypatch.context() as patch:
        patch.setattr(pynade.NADE, "summary", fail)
        with pytest.raises(ValueError, match="no score"):
            start_run(tmp_path / "r", "nade", NET, "digits")
    assert pynade.load(tmp_path / "r").n_features_in_ == 64
    assert resume_run(tmp_path / "r")["epochs"] == 6


# interruption

INTERRUPTED = """
import os, signal, sys
from pynade.cli.main import main
from pynade.training import gradient
number, epoch = signal.Signals[sys.argv[1]], int(sys.argv[2])
original, calls = gradient._Gradient.advance, []
def advance(self, report):
    calls.append(1)
    if len(calls) == epoch:
        os.kill(os.getpid(), number)
    return original(self, report)
gradient._Gradient.advance = advance
sys.argv = ["pynade", *sys.argv[3:]]
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_saves_a_checkpoint_and_says_how_to_go_on(run, tmp_path, number):
    words = ["fit", "digits", "--model", "nade", "--hidden", "3", "--epochs", "6", "--out"]
    process = start("-c", INTERRUPTED, number, "4", *words, "r", cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 3, err
    assert "Stopped; to go on:\nNext: pynade fit --resume r" in err
    assert len((tmp_path / "r/metrics.jsonl").read_text().splitlines()) == 4  # the epoch was ended
    assert {p.name for p in (tmp_path / "r").iterdir()} == {
        *("spec.json", "provenance.json", "metrics.jsonl", "checkpoint.safetensors")
    }
    epochs = []
    resume_run(tmp_path / "r", callbacks=[lambda now: epochs.append(now.epoch) and None])
    assert epochs[0] == 5
    assert run(*words, "whole")[0] == 0
    whole, again = (pynade.load(tmp_path / name) for name in ("whole", "r"))
    x = np.eye(64)
    np.testing.assert_array_equal(whole.score_samples(x), again.score_samples(x))


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_signal_does_not_wait_where_only_a_part_of_an_epoch_is_lost(tmp_path):
    words = ["fit", "digits", "--model", "nade", "--hidden", "3", "--epochs", "6", "--out", "r"]
    process = start("-c", INTERRUPTED, "SIGTERM", "1", *words, cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 3, err
    assert (tmp_path / "r/metrics.jsonl").read_text() == ""
    assert resume_run(tmp_path / "r")["epochs"] == 6


LOST = """
import signal, sys, time
from pynade.cli import main as cli

class Cleaned:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)  # an exception here reaches nobody

def app():
    Cleaned()
    time.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)
cli.app = app
cli.main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_signal_that_python_drops_is_not_lost(tmp_path):
    process = start("-c", LOST, cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 3, err


def test_a_signal_that_python_wraps_is_one(run, monkeypatch):
    def app():  # as Python 3.11 does when it comes while a class with cached properties is made
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("pynade.cli.main.app", app)
    assert run("info", "r")[0] == 3


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_signal_at_the_very_end_of_training_is_not_lost(unfinished, monkeypatch):
    finish = _Gradient.finish

    def interrupted(learner):
        finish(learner)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(_Gradient, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resume_run(unfinished)
    assert not (unfinished / "result.json").exists()
    assert resume_run(unfinished, callbacks=[pytest.fail])["epochs"] == 6  # nothing is left to train


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_second_signal_is_not_waited_for_and_handlers_come_back(unfinished):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def twice(now):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it waited")

    with pytest.raises(KeyboardInterrupt):
        resume_run(unfinished, callbacks=[twice])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    done = []  # elsewhere than in the main thread there are no handlers
    thread = threading.Thread(target=lambda: done.append(resume_run(unfinished)))
    thread.start()
    thread.join()
    assert done[0]["status"] == "finished"


def test_other_commands_that_are_interrupted_end_with_3(run, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pynade.runs.sweep.Sweep.run", interrupt)
    code, _, err = run("sweep", "digits", "--model", "nade", "--grid", "hidden=2", "--out", "s")
    assert code == 3
    which = "score, impute, predict, surprise, sample, sweep and reproduce"
    assert f"{which} go on when the same command is given again" in err
    monkeypatch.setattr("pynade.cli.main.app", lambda: interrupt(None))  # before a command has begun
    assert run("info", "s")[0] == 3


# scores under many orderings


@pytest.fixture
def deep(run, tmp_path):
    """A run of an orderless model, and two files of the same name."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows = (rng.random((40, 5)) < (0.2 if name == "a" else 0.7)).astype(int)
        lines = [",".join(map(str, row)) for row in rows]
        (tmp_path / name / "big.csv").write_text("\n".join(["v,w,x,y,z", *lines]))
    words = ["fit", "a/big.csv", "--model", "deepnade", "--hidden", "4", "--epochs", "1", "--out", "r"]
    assert run(*words)[0] == 0
    return tmp_path / "r"


def scores(run, name, k=6):
    code, _, err = run("score", "r", f"{name}/big.csv", "--orderings", k, "--rows", f"{name}.npy")
    assert code == 0, err
    return np.load(f"{name}.npy")


def interrupted(monkeypatch, deep, data):
    """Score under six orderings, killed when the fourth is done."""
    original, calls = Rows.log_probs, []

    def dying(*arguments):
        if len(calls) == 4:
            raise Killed
        calls.append(1)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "log_probs", dying)
        with pytest.raises(Killed):
            score_run(deep, data, orderings=6)


def test_chunks_of_another_file_of_the_same_name_are_neither_used_nor_removed(run, deep, monkeypatch):
    monkeypatch.setattr("pynade.nets.base.Net.rows_at_once", lambda *_: 40)
    a, b = scores(run, "a"), scores(run, "b")
    assert not np.allclose(a, b)
    interrupted(monkeypatch, deep, "a/big.csv")
    kept = {p: p.read_bytes() for p in deep.glob("chunks-*/*")}
    assert len(kept) == 4
    np.testing.assert_array_equal(scores(run, "b"), b)
    scores(run, "a", 3)
    assert {p: p.read_bytes() for p in deep.glob("chunks-*/*")} == kept
    np.testing.assert_array_equal(scores(run, "a"), a)
    assert not list(deep.glob("chunks*"))


def test_a_second_process_scores_for_itself_and_leaves_the_chunks_of_the_first(run, deep, monkeypatch):
    monkeypatch.setattr("pynade.nets.base.Net.rows_at_once", lambda *_: 40)
    expected, seen = scores(run, "a"), []
    inner = {}

    def second(done, total):  # while the first is in the middle of its work
        seen.append(sorted(deep.glob("chunks-*/*")))
        if len(seen) == 3:
            result = score_run(deep, "a/big.csv", orderings=6)
            assert result.chunks is None
            forget_chunks(result)
            inner["scores"] = result.log_probs
            assert sorted(deep.glob("chunks-*/*")) == seen[-1]

    first = score_run(deep, "a/big.csv", orderings=6, progress=second)
    np.testing.assert_array_equal(first.log_probs, expected)
    np.testing.assert_array_equal(inner["scores"], expected)
    with sole_writer(first.chunks):  # a third process has begun with them: it will remove them
        forget_chunks(first)
        assert len(list(first.chunks.glob("*.safetensors"))) == 6
    forget_chunks(first)
    assert not list(deep.glob("chunks*"))


def test_a_damaged_chunk_is_computed_again(run, deep, monkeypatch):
    monkeypatch.setattr("pynade.nets.base.Net.rows_at_once", lambda *_: 40)
    expected = scores(run, "a")
    for change in (lambda c: c[:-40] + bytes([c[-40] ^ 64]) + c[-39:], lambda c: c[:50], lambda c: b""):
        interrupted(monkeypatch, deep, "a/big.csv")
        file = sorted(deep.glob("chunks-*/*.safetensors"))[0]
        file.write_bytes(change(file.read_bytes()))
        np.testing.assert_array_equal(scores(run, "a"), expected)


def test_a_run_that_cannot_be_written_to_is_scored(run, deep, monkeypatch):
    expected, mkdir = scores(run, "a"), Path.mkdir

    def refuse(path, *arguments, **options):
        if path.name.startswith("chunks"):
            raise OSError(errno.EROFS, "Read-only file system")
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    np.testing.assert_array_equal(scores(run, "a"), expected)


@pytest.mark.parametrize("option", ["--rows", "--record"])
def test_a_bad_output_path_is_refused_before_the_work(run, deep, tmp_path, monkeypatch, option):
    def work(*_):
        pytest.fail("scored")

    ending = "json" if option == "--record" else "csv"
    (tmp_path / f"folder.{ending}").mkdir()
    monkeypatch.setattr(Rows, "log_probs", work)
    monkeypatch.setattr(os, "access", lambda path, *_: Path(path) != Path("closed"))
    (tmp_path / "closed").mkdir()
    for path, says in {f"folder.{ending}": "it is a folder", f"closed/x.{ending}": "no permission"}.items():
        code, _, err = run("score", "r", "a/big.csv", "--orderings", "2", option, path)
        assert code == 1
        assert says in err
    assert json.loads((deep / "spec.json").read_text())["model"] == "deepnade"


def test_a_lock_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with (
        pytest.raises(OSError, match=r"cannot write .*\.owner: No space left on device"),
        sole_writer(tmp_path),
    ):
        pytest.fail("it went on")
