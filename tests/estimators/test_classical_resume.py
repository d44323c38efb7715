"""Interrupted learning of a classical model goes on to the identical result."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
from sklearn.base import clone

from pynade import store
from pynade.digest import read_json
from pynade.estimators import MFA, RBM, BernoulliMixture, ChowLiu, GaussianMixture
from pynade.runs.run import resume_run, start_run
from pynade.training.checkpoint import load_checkpoint, numbered_checkpoints, save_checkpoint

RNG = np.random.default_rng(0)
BINARY = (RNG.random((120, 6)) < RNG.random((120, 1))).astype(float)
REAL = np.vstack([RNG.normal(-2, 1, (90, 3)), RNG.normal(2, 1, (90, 3))])
GAPS = np.where(RNG.random(BINARY.shape) < 0.1, np.nan, BINARY)

MINIBATCH = {"minibatch": True, "batch_size": 50}
CASES = {
    "mob": (BernoulliMixture(n_components=(2, 3), epochs=6, patience=None, tol=0), BINARY),
    "mob-gaps": (BernoulliMixture(n_components=4, epochs=9, patience=2), GAPS),
    "mob-empty": (BernoulliMixture(n_components=40, epochs=8, patience=None, smoothing=1e-9), BINARY),
    "trees": (ChowLiu(alpha=(0.1, 1.0), n_components=2, epochs=4, patience=None), BINARY),
    "mog-full": (GaussianMixture(n_components=(2, 3), epochs=6, patience=None, tol=0), REAL),
    "mfa": (MFA(n_components=(1, 2), n_factors=(1, 2), epochs=8, patience=None), REAL),
    "mog": (GaussianMixture(n_components=(2, 3), epochs=12, training=MINIBATCH), REAL),
    "mog-zero": (
        GaussianMixture(n_components=2, epochs=25, training=MINIBATCH | {"zero_means": True}),
        REAL,
    ),
    "rbm": (
        RBM(hidden=3, learning_rate=(0.1, 0.02), epochs=6, n_init=2, training={"evaluate_every": 2}),
        BINARY,
    ),
    "rbm-persistent": (
        RBM(
            hidden=3,
            epochs=5,
            persistent=True,
            batch_size=40,
            training={"evaluate_every": 1, "schedule": "linear"},
        ),
        BINARY,
    ),
}


class Interrupt:
    """Counts its calls, and interrupts at the n-th."""

    def __init__(self, n: int | None = None) -> None:
        self.n, self.calls = n, 0

    def __call__(self, now: object) -> None:
        self.calls += 1
        if self.calls == self.n:
            raise KeyboardInterrupt


def untimed(lines):
    """Lines of a history without the seconds they took."""
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)


@pytest.mark.parametrize("case", CASES)
def test_goes_on_to_the_identical_result(case, tmp_path):
    estimator, X = CASES[case]
    estimator.set_params(random_state=3, validation_fraction=0.3)
    whole, half = tmp_path / "whole", tmp_path / "half"
    whole.mkdir()
    half.mkdir()
    steps = Interrupt()
    plain = type(estimator)(**estimator.get_params()).fit(X)  # checkpoints change nothing
    full = type(estimator)(**estimator.get_params()).fit(X, folder=whole, callbacks=[steps])
    assert full.score(X) == plain.score(X)
    at, sessions = 3, 0
    while True:  # interrupted every third step
        counter, again = Interrupt(at), type(estimator)(**estimator.get_params())
        try:
            again.fit(X, folder=half, resume=sessions > 0, callbacks=[counter])
            break
        except KeyboardInterrupt:
            sessions += 1
    assert sessions >= 1
    assert counter.calls < steps.calls  # it did go on
    assert np.array_equal(again.score_samples(X), full.score_samples(X))
    assert again.choices_ == full.choices_
    assert untimed(again.history_.epochs) == untimed(full.history_.epochs)
    assert (again.history_.stopped, again.history_.messages) == (
        full.history_.stopped,
        full.history_.messages,
    )
    kept = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (half, whole)]
    assert untimed(map(json.loads, kept[0])) == untimed(map(json.loads, kept[1]))


def test_a_finished_learning_is_read_back(tmp_path):
    estimator, X = CASES["mob"]
    full = estimator.set_params(random_state=0).fit(X, folder=tmp_path)
    silent = Interrupt(1)
    again = type(estimator)(**estimator.get_params()).fit(X, folder=tmp_path, resume=True, callbacks=[silent])
    assert silent.calls == 0
    assert again.score(X) == full.score(X)
    assert again.history_.seconds >= full.history_.seconds * 0.5  # the earlier session counts
    fresh = Interrupt()
    type(estimator)(**estimator.get_params()).fit(X, folder=tmp_path, callbacks=[fresh])
    assert fresh.calls > 0


def test_a_run_of_a_classical_model_goes_on(tmp_path):
    np.save(tmp_path / "rows.npy", BINARY)
    rows, parameters = (
        str(tmp_path / "rows.npy"),
        {"n_components": [2, 3], "patience": None, "tol": 0.0},
    )
    steps = Interrupt()
    expected = start_run(tmp_path / "whole", "mob", parameters, rows, callbacks=[steps])
    with pytest.raises(KeyboardInterrupt):
        start_run(tmp_path / "half", "mob", parameters, rows, callbacks=[Interrupt(steps.calls - 4)])
    assert len(list((tmp_path / "half").glob("checkpoint-*.safetensors"))) == 2
    few = Interrupt()
    result = resume_run(tmp_path / "half", callbacks=[few])
    assert few.calls <= 6
    assert result | {"seconds": 0} == expected | {"seconds": 0}
    names = sorted(path.name for path in (tmp_path / "half").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert not any("checkpoint" in name for name in names)
    assert read_json(tmp_path / "half" / "result.json") == result


def mixture(**more) -> BernoulliMixture:
    return BernoulliMixture(
        **{"n_components": (2, 3), "epochs": 5, "patience": None, "tol": 0, "random_state": 0} | more
    )


def interrupted(estimator, X, folder, at) -> None:
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X, folder=folder, callbacks=[Interrupt(at)])


def test_nothing_of_an_earlier_learning_is_taken(tmp_path):
    other = 1 - BINARY
    mixture().fit(other, folder=tmp_path)
    interrupted(mixture(), BINARY, tmp_path, 2)
    assert [path.name for path in numbered_checkpoints(tmp_path)] == ["checkpoint-0.safetensors"]
    again = mixture().fit(BINARY, folder=tmp_path, resume=True)
    assert again.choices_ == mixture().fit(BINARY).choices_


@pytest.mark.parametrize(
    ("changed", "rows", "word"),
    [
        ({}, 1 - BINARY, "data"),
        ({"n_components": (4, 5)}, BINARY, "n_components, setting"),
        ({"smoothing": 0.3}, BINARY, "smoothing"),
        ({"random_state": 1}, BINARY, "seed, data"),  # other rows are held out
    ],
)
def test_another_learning_is_refused(changed, rows, word, tmp_path):
    mixture().fit(BINARY, folder=tmp_path)
    with pytest.raises(
        ValueError, match=f"checkpoint-0.safetensors belongs to a training with another {word};"
    ):
        mixture(**changed).fit(rows, folder=tmp_path, resume=True)
    model = GaussianMixture(epochs=2, random_state=0, training={"minibatch": True})
    with pytest.raises(ValueError, match="another model;"):
        model.fit(BINARY, folder=tmp_path, resume=True)
    mixture(device="cpu").fit(BINARY, folder=tmp_path, resume=True)  # where it is learned does not matter


def test_damaged_checkpoints_are_refused_and_a_missing_folder_is_found_at_once(tmp_path):
    (tmp_path / "checkpoint-0.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="is damaged or no checkpoint of pynade \\(remove it to begin anew"):
        mixture().fit(BINARY, folder=tmp_path, resume=True)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        mixture().fit(BINARY, folder=tmp_path / "nowhere")


def test_a_checkpoint_that_cannot_be_written_is_an_error_of_the_system(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "write_with_digest", full)
    with pytest.raises(OSError, match=r"^cannot write .*checkpoint-0.safetensors: No space"):
        mixture().fit(BINARY, folder=tmp_path)


@pytest.mark.parametrize("case", ["mob", "mog", "rbm"])
def test_a_seed_that_was_not_given_is_kept(case, tmp_path):
    estimator, X = CASES[case]
    estimator = clone(estimator).set_params(random_state=None)
    full = clone(estimator).fit(X, folder=tmp_path)
    again = clone(estimator).fit(X, folder=tmp_path, resume=True)
    assert again.seed_ == full.seed_
    assert np.array_equal(again.score_samples(X), full.score_samples(X))


def test_other_files_of_the_folder_are_left_alone(tmp_path):
    np.save(tmp_path / "rows.npy", BINARY)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        start_run(folder, "mob", {}, str(tmp_path / "rows.npy"), callbacks=[Interrupt(3)])
    copy = folder / "checkpoint-backup.safetensors"
    copy.write_bytes((folder / "checkpoint-0.safetensors").read_bytes())
    resume_run(folder)
    assert copy.is_file()
    (folder / "checkpoint-0.safetensors").write_bytes(b"left by a run that was killed at the very end")
    assert resume_run(folder)["status"] == "finished"
    assert numbered_checkpoints(folder) == []


def test_callbacks_get_the_best_of_all_sessions(tmp_path):
    seen: list[list[float | None]] = [[], []]
    one = mixture(n_components=(3, 1))
    clone(one).fit(BINARY, callbacks=[lambda now: seen[0].append(now.best_valid)])
    interrupted(clone(one), BINARY, tmp_path, 9)
    clone(one).fit(
        BINARY, folder=tmp_path, resume=True, callbacks=[lambda now: seen[1].append(now.best_valid)]
    )
    assert 0 < len(seen[1]) < len(seen[0])
    assert seen[1] == seen[0][-len(seen[1]) :]


def test_seconds_are_those_of_this_learning(tmp_path, monkeypatch):
    mixture().fit(BINARY, folder=tmp_path)
    tensors, facts = load_checkpoint(tmp_path / "checkpoint-1.safetensors")
    facts["histories"][0]["seconds"] = 1000.0
    save_checkpoint(tmp_path / "checkpoint-1.safetensors", tensors, facts)
    assert 1000 < mixture().fit(BINARY, folder=tmp_path, resume=True).history_.seconds < 1100
    assert mixture().fit(BINARY, folder=tmp_path).history_.seconds < 900
