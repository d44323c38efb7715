"""The training loop itself, with a learner whose log-likelihoods are given in advance."""

import itertools
import json
import math

import pytest
import torch

from pynade.likelihood import Estimate
from pynade.training import Diverged, History, Learner, Stopping, run
from pynade.training.checkpoint import Checkpoint
from pynade.training.history import current_line
from pynade.training.loop import for_part

NAN = math.nan


class Given(Learner):
    """Members with one parameter each: the number of epochs they have advanced.

    Args:
        train: training log-likelihoods of every member, epoch by epoch.
        valid: validation scores, or None; an epoch with None is not validated.
        **rules: `Stopping` of all members, or one value for each.
    """

    model = "the model"
    updates = 3
    advice = "Try something else."

    def __init__(self, train, valid=None, **rules):
        self.train, self.valid, self.validated = train, valid, valid is not None
        several = {
            name: value if isinstance(value, list) else [value] * len(train) for name, value in rules.items()
        }
        self.stopping = [
            Stopping(**{name: own[m] for name, own in several.items()}) for m in range(len(train))
        ]
        self.active = list(range(len(train)))
        self.params = torch.zeros(len(train), dtype=torch.long)
        self.best = self.params.clone()
        self.epoch, self.accepted, self.dropped, self.finished = 0, [], [], False

    def advance(self, report):
        self.epoch += 1
        self.params[self.active] += 1
        for update in range(3 * self.epoch - 2, 3 * self.epoch + 1):
            report(update, 0.1, lambda update=update: -float(update))
        return [self.train[m][self.epoch - 1] for m in self.active]

    def score(self, epoch):
        if self.valid is None or all(self.valid[m][epoch - 1] is None for m in self.active):
            return None
        return [Estimate(self.valid[m][epoch - 1], NAN, 5) for m in self.active]

    def accept(self, better):
        self.accepted.append(list(better))
        self.best[list(better)] = self.params[list(better)]

    def drop(self, members):
        self.dropped.append(list(members))
        self.active = [m for m in self.active if m not in members]

    def line(self, position):
        return {"member": self.active[position]}

    def finish(self):
        self.finished = True

    def state(self):
        return {"all": {"params": self.params, "best": self.best}}, {"at": self.epoch, "active": self.active}

    def restore(self, state):
        tensors, facts = state
        self.params, self.best = (tensors["all"][name].clone() for name in ("params", "best"))
        self.epoch, self.active = facts["at"], facts["active"]


def rising(n, start=-10.0):
    return [start + k for k in range(n)]


def without_times(history):
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in history.epochs]
    return vars(history) | {"epochs": lines, "seconds": None}


def test_all_epochs_are_done_and_the_history_has_a_line_for_each():
    learner = Given([rising(3)])
    (history,) = run(learner, 3)
    assert without_times(history)["epochs"] == [
        {"epoch": n, "train": -11.0 + n, "valid": None, "member": 0, "best": True} for n in (1, 2, 3)
    ]
    assert all(line["seconds"] >= 0 for line in history.epochs)
    assert history.seconds == pytest.approx(history.epochs[-1]["seconds"], abs=1e-3)
    assert (history.stopped, history.best_epoch, history.best_valid) == ("all epochs done", 3, None)
    assert history.train_log_likelihood == -8.0
    assert learner.finished
    assert learner.best.tolist() == [3]


def test_the_best_epoch_on_validation_is_kept():
    learner = Given([rising(4)], [[-3.0, -1.0, -2.0, -1.0]])
    (history,) = run(learner, 4)
    assert (history.best_epoch, history.best_valid) == (2, -1.0)  # the first of equals
    assert [line["valid"] for line in history.epochs] == [-3.0, -1.0, -2.0, -1.0]
    assert [line["best"] for line in history.epochs] == [True, True, False, False]
    assert learner.best.tolist() == [2]
    assert learner.accepted[:4] == [[0], [0], [], []]  # all four epochs were sound
    assert history.train_log_likelihood == -9.0


def test_patience_counts_validations_without_a_better_score():
    worse = [-1.0, None, -2.0, None, None, -3.0, -0.5]
    (history,) = run(Given([rising(7)], [worse], patience=2), 7)
    assert len(history.epochs) == 6
    assert history.stopped == "no better validation score for 2 epochs"
    assert history.best_epoch == 1
    (history,) = run(Given([rising(7)], [worse], patience=3), 7)
    assert (history.stopped, history.best_epoch) == ("all epochs done", 7)


def test_patience_needs_validation_rows():
    (history,) = run(Given([rising(5)], patience=1), 5)
    assert history.stopped == "all epochs done"


@pytest.mark.parametrize(("tol", "epochs"), [(0.5, 4), (0.05, 5), (0.001, 6), (None, 6)])
def test_tol_is_compared_with_the_change_of_the_objective(tol, epochs):
    (history,) = run(Given([[-9.0, -5.0, -4.0, -4.25, -4.24, -4.23]], tol=tol), 6)
    assert len(history.epochs) == epochs
    assert history.stopped == ("converged" if epochs < 6 else "all epochs done")


def test_an_epoch_without_an_objective_does_not_converge():
    (history,) = run(Given([[None, -4.0, None, -4.0, -4.0, -3.0]], tol=0.1), 6)
    assert len(history.epochs) == 5
    assert [line["train"] for line in history.epochs] == [None, -4.0, None, -4.0, -4.0]


def test_training_stops_at_a_given_training_likelihood():
    (history,) = run(Given([rising(9)], stop_at_train=-6.0), 9)
    assert len(history.epochs) == 5
    assert history.stopped == "training likelihood reached the given value"
    assert history.best_epoch == 5

    class Scored(Given):
        def train_score(self, train):
            return [value - 2 for value in train]

    (history,) = run(Scored([rising(9)], stop_at_train=-6.0), 9)
    assert len(history.epochs) == 7  # by the score after the epoch, not by the running mean
    assert history.train_log_likelihood == -4.0


def test_the_unit_of_an_epoch_is_in_the_messages():
    class Iterated(Given):
        unit = "iteration"

    assert run(Iterated([rising(2)]), 2)[0].stopped == "all iterations done"
    (history,) = run(Iterated([rising(3)], [[-1.0, -2.0, -3.0]], patience=1), 3)
    assert history.stopped == "no better validation score for 1 iterations"
    with pytest.raises(Diverged, match="in iteration 1;"):
        run(Iterated([[NAN]]), 1)


def test_callbacks_get_the_progress_within_and_after_epochs(monkeypatch):
    monkeypatch.setattr("pynade.training.loop.REPORT_SECONDS", -1.0)
    seen = []
    learner = Given([rising(2), rising(2, -5.0)], [[-2.0, -3.0], [-4.0, -1.0]])
    histories = run(learner, 2, callbacks=[seen.append])
    assert [(p.epoch, p.update, p.epoch_done) for p in seen] == [
        *((1, n, False) for n in (1, 2, 3)),
        (1, 3, True),
        *((2, n, False) for n in (4, 5, 6)),
        (2, 6, True),
    ]
    assert {(p.model, p.epochs, p.updates, p.learning_rate) for p in seen} == {("the model", 2, 6, 0.1)}
    assert [p.train for p in seen if not p.epoch_done] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    after = [p for p in seen if p.epoch_done]
    assert [(p.valid.mean, p.train) for p in after] == [(-2.0, -10.0), (-1.0, -4.0)]  # of the leading one
    assert [p.best_valid for p in after] == [-2.0, -1.0]
    assert all(p.histories is after[0].histories for p in after)
    assert list(after[0].histories) == histories
    times = [p.seconds for p in seen]
    assert times == sorted(times)


def test_reports_within_epochs_are_rare(monkeypatch):
    monkeypatch.setattr("pynade.training.loop.REPORT_SECONDS", math.inf)
    seen = []
    run(Given([rising(4)]), 4, callbacks=[seen.append])
    assert [p.epoch_done for p in seen] == [True] * 4


@pytest.mark.parametrize("within", [True, False])
def test_a_callback_stops_all_members_after_the_epoch(monkeypatch, within):
    monkeypatch.setattr("pynade.training.loop.REPORT_SECONDS", -1.0)
    calls = []

    def stop(p):
        calls.append(p.epoch)
        return p.epoch == 2 and p.epoch_done != within

    histories = run(Given([rising(5), rising(5)]), 5, callbacks=[stop, lambda p: None])
    assert [len(h.epochs) for h in histories] == [2, 2]
    assert {h.stopped for h in histories} == {"a callback stopped it"}
    assert calls == [1] * 4 + [2] * 4  # the epoch was finished


def test_callbacks_of_trainings_that_follow_each_other_count_over_all():
    seen = []
    for part in range(2):
        run(Given([rising(2)], [[-2.0 - part, -1.0 - part]]), 2, callbacks=for_part([seen.append], part, 2))
    assert [(p.update, p.updates) for p in seen] == [(3, 12), (6, 12), (9, 12), (12, 12)]
    assert for_part([lambda p: True], 0, 1)[0](seen[0]) is True


def test_members_stop_each_by_its_own_rule():
    learner = Given(
        [rising(6)] * 4,
        [[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]] * 3 + [[-6.0, -5.0, -4.0, -3.0, -2.0, -1.0]],
        patience=[2, 4, None, 1],
        stop_at_train=[None, None, -7.0, None],
    )
    histories = run(learner, 6)
    assert [len(h.epochs) for h in histories] == [3, 5, 4, 6]
    assert [h.best_epoch for h in histories] == [1, 1, 1, 6]
    assert [h.stopped for h in histories] == [
        "no better validation score for 2 epochs",
        "no better validation score for 4 epochs",
        "training likelihood reached the given value",
        "all epochs done",
    ]
    assert learner.dropped == [[0], [2], [1]]
    assert learner.params.tolist() == [3, 5, 4, 6]
    assert learner.best.tolist() == [1, 1, 1, 6]
    assert [line["member"] for line in histories[3].epochs] == [3] * 6


def test_a_learner_may_go_on_with_stopped_members():
    class Keeping(Given):
        def drop(self, members):
            """A population leaves stopped members in its stack for a while."""

    histories = run(Keeping([rising(5)] * 2, [[-1.0, -2.0, 0.0, 0.0, 0.0], rising(5)], patience=1), 5)
    assert [len(h.epochs) for h in histories] == [2, 5]
    assert (histories[0].best_epoch, histories[0].best_valid) == (1, -1.0)


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("where", ["train", "infinite", "valid"])
def test_a_member_that_diverges_leaves_the_others_alone(raises, where):
    broken = {"train": [-9.0, NAN], "infinite": [-9.0, -math.inf], "valid": [-9.0, -8.0]}[where]
    scores = [-3.0, NAN if where == "valid" else -2.0]
    learner = Given([rising(4), [*broken, 0.0, 0.0]], [[-3.0, -2.0, -1.0, -4.0], [*scores, 0.0, 0.0]])
    learner.raises = raises
    good, bad = run(learner, 4)
    assert (good.stopped, good.best_epoch, len(good.epochs)) == ("all epochs done", 3, 4)
    assert (bad.stopped, bad.best_epoch, len(bad.epochs)) == ("diverged", 1, 1)  # no line of a bad epoch
    assert learner.best.tolist() == [3, 1]
    assert "NaN" not in json.dumps([good.epochs, bad.epochs])


def test_where_all_diverge_at_once_an_error_is_raised():
    learner = Given([[NAN, 0.0]] * 2)
    with pytest.raises(Diverged) as error:
        run(learner, 2)
    assert str(error.value) == (
        "training diverged in epoch 1; the last good parameters were kept. Try something else."
    )
    assert learner.accepted == []


def test_the_only_member_raises_in_any_epoch():
    with pytest.raises(Diverged, match="in epoch 3;"):
        run(Given([[-3.0, -2.0, NAN]], [[-3.0, -2.0, 0.0]]), 5)


def test_a_learner_that_recovers_goes_on_with_the_same_epoch_and_says_so(tmp_path):
    class Recovering(Given):
        def recover(self, epoch):
            self.train[0][epoch - 1], self.epoch = 0.0, epoch - 1
            self.params -= 1
            return f"changed in epoch {epoch}"

    learner, metrics, seen = Recovering([[-3.0, NAN, -1.0]]), tmp_path / "metrics.jsonl", []
    (history,) = run(learner, 3, metrics=metrics, callbacks=[lambda p: seen.append(p.epoch)])
    assert history.messages == ["changed in epoch 2"]
    assert seen == [line["epoch"] for line in history.epochs] == [1, 2, 3]
    assert [line["train"] for line in history.epochs] == [-3.0, 0.0, -1.0]
    assert [json.loads(line) for line in metrics.read_text().splitlines()] == history.epochs
    assert learner.best.tolist() == [3]


def test_the_last_of_several_that_diverges_keeps_its_best_parameters():
    learner = Given([[-3.0, NAN], [-3.0, NAN]], [[-3.0, 0.0], [-2.0, 0.0]])
    histories = run(learner, 5)
    assert [h.stopped for h in histories] == ["diverged", "diverged"]
    assert [h.best_valid for h in histories] == [-3.0, -2.0]
    assert learner.finished


def test_a_population_whose_members_all_diverge_does_not_raise():
    learner = Given([[NAN], [NAN]])
    learner.raises = False
    histories = run(learner, 3)
    assert [(h.stopped, h.epochs, h.best_epoch) for h in histories] == [("diverged", [], 0)] * 2


def test_what_was_never_validated_keeps_the_last_parameters():
    learner = Given([rising(3)], [[None, None, None]], patience=1)
    (history,) = run(learner, 3)
    assert (history.best_epoch, history.best_valid, history.stopped) == (3, None, "all epochs done")
    assert learner.best.tolist() == [3]


class Killed(Exception):
    pass


def several():
    """Members that stop in epoch 4 by patience, diverge in epoch 3, and converge in epoch 5."""
    train = [rising(6), [-9.0, -8.0, NAN, 0.0, 0.0, 0.0], [-3.0, -2.5, -2.4, -2.35, -2.34, -2.3]]
    valid = [[-5.0, -4.0, -6.0, -7.0, -8.0, -9.0], rising(6), [-1.0, -2.0, -1.5, -0.5, -3.0, -4.0]]
    return Given(train, valid, patience=[2, 5, None], tol=[None, None, 0.02])


@pytest.mark.parametrize("every", [-1.0, math.inf], ids=["each epoch", "the last epoch"])
@pytest.mark.parametrize("epoch", range(1, 6))
@pytest.mark.parametrize("within", [True, False])
def test_a_training_that_was_killed_goes_on_to_the_identical_result(
    tmp_path, monkeypatch, epoch, within, every
):
    monkeypatch.setattr("pynade.training.loop.REPORT_SECONDS", -1.0)
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", every)
    whole, path = several(), tmp_path / "checkpoint.safetensors"
    expected = [without_times(history) for history in run(whole, 6)]
    assert [len(history["epochs"]) for history in expected] == [4, 2, 5]

    def kill(p):
        if p.epoch == epoch and p.epoch_done != within:
            raise Killed

    with pytest.raises(Killed):
        run(several(), 6, checkpoint=Checkpoint(path), callbacks=[kill])
    assert path.is_file() == (every < 0 and epoch > 1)
    again, metrics = several(), tmp_path / "metrics.jsonl"
    histories = run(again, 6, checkpoint=Checkpoint(path, resume=True), metrics=metrics)
    assert [without_times(history) for history in histories] == expected
    assert again.best.tolist() == whole.best.tolist()
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert lines == histories[0].epochs
    done = several()
    again = run(done, 6, checkpoint=Checkpoint(path, resume=True))  # it has ended: nothing is trained
    assert [vars(history) for history in again] == [vars(history) for history in histories]
    assert done.best.tolist() == whole.best.tolist()
    assert done.accepted == []


def test_wall_time_is_counted_over_all_sessions(tmp_path, monkeypatch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)
    clock = itertools.count()
    monkeypatch.setattr("pynade.training.loop.time.monotonic", lambda: float(next(clock)))
    path = tmp_path / "checkpoint.safetensors"

    def kill(p):
        if p.epoch == 3:
            raise Killed

    with pytest.raises(Killed):
        run(Given([rising(5)]), 5, checkpoint=Checkpoint(path), callbacks=[kill])
    before = Checkpoint(path, resume=True).previous[1]["histories"][0]["seconds"]
    (history,) = run(Given([rising(5)]), 5, checkpoint=Checkpoint(path, resume=True))
    seconds = [line["seconds"] for line in history.epochs]
    assert seconds == sorted(seconds)
    assert history.seconds == seconds[-1] > before == seconds[1]


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    run(Given([rising(2)]), 2, checkpoint=Checkpoint(path, identity={"model": "a", "seed": 1}))
    with pytest.raises(ValueError, match="a training with another seed; remove it to begin anew"):
        Checkpoint(path, resume=True, identity={"model": "a", "seed": 2})
    with pytest.raises(ValueError, match="a training with another model;"):
        Checkpoint(path, resume=True, identity={"model": "b", "seed": 2})
    assert path.is_file()
    assert Checkpoint(path, identity={"model": "b"}).previous is None  # not resumed: begins anew
    assert not path.is_file()


def test_histories_of_version_0_1_have_their_signs_changed():
    old = {
        "epochs": [{"epoch": 1, "train_nll": 2.0, "valid_nll": None, "train_scored_nll": 1.5, "best": True}],
        "best_epoch": 1,
        "best_valid": -1.0,
        "seconds": 1.0,
        "stopped": "all epochs done",
    }
    history = History.from_json(old)
    assert history.epochs == [{"epoch": 1, "train": -2.0, "valid": None, "train_scored": -1.5, "best": True}]
    assert history.train_log_likelihood == -2.0
    assert current_line(history.epochs[0]) == history.epochs[0]
