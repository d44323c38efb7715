"""Every classical learner in the training loop: early stopping, callbacks, checkpoints, divergence."""

import math
import sys

import pytest
import torch

from pynade.classical import (
    RBM,
    FactorTask,
    GaussianMixture,
    contrastive_divergence,
    em_bernoulli,
    em_factors,
    em_gaussian,
    em_trees,
    minibatch_em,
)
from pynade.classical.contrastive_divergence import _Contrastive
from pynade.classical.em import EM
from pynade.training import checkpoint as checkpoints
from pynade.training.checkpoint import Checkpoint
from pynade.training.loop import Diverged
from tests.classical.test_binary import clustered
from tests.classical.test_real import rows, with_gaps

EPOCHS = 24


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def bernoulli(validated, **loop):
    x, valid = clustered(60, 9, 1, 0.1), clustered(160, 9, 1)[60:]
    options = {"epochs": EPOCHS, "empty_below": 4.0, "smoothing": 1e-3, "tol": 0, "generator": generator(2)}
    model, history = em_bernoulli(x, 9, valid if validated else None, **options | loop)
    return [model], [history]


def trees(validated, **loop):
    x, valid = clustered(60, 6, 1), clustered(160, 6, 1)[60:]
    options = {"epochs": EPOCHS, "alpha": 0.01, "empty_below": 10.0, "tol": 0, "generator": generator(2)}
    model, history = em_trees(x, 4, valid if validated else None, **options | loop)
    return [model], [history]


def lost(x, K):
    """A mixture to start from, of which one component is far from all rows."""
    means = x.nanmean(0) + torch.arange(K)[:, None] * 0.3
    means[-1] += 1e6
    return GaussianMixture.from_moments(
        torch.ones(K), means, torch.eye(x.shape[1]).double().repeat(K, 1, 1) * 50
    )


def gaussians(validated, **loop):
    x, valid = with_gaps(rows(60, 3)), rows(160, 3)[60:]
    options = {
        "epochs": EPOCHS,
        "covariance_floor": 1e-3,
        "tol": 0,
        "init": lost(x, 4),
        "generator": generator(2),
    }
    model, history = em_gaussian(x, 4, valid if validated else None, **options | loop)
    return [model], [history]


def minibatches(validated, **loop):
    x, valid = rows(200, 3), rows(400, 3)[200:]
    options = {
        "epochs": EPOCHS,
        "batch_size": 50,
        "step_size": 0.9,
        "init": lost(x, 4),
        "generator": generator(2),
    }
    model, history = minibatch_em(x, 4, valid if validated else None, **options | loop)
    return [model], [history]


def factors(validated, **loop):
    x, valid = with_gaps(rows(80, 4)), rows(160, 4)[80:]
    sizes = [(1, 1), (2, 2), (5, 1), (2, 1)]
    tasks = [FactorTask(x, k, q, valid if validated else None, generator=generator(k)) for k, q in sizes]
    fitted = em_factors(tasks, **{"epochs": EPOCHS, "tol": 1e-2} | loop)
    return [model for model, _ in fitted], [history for _, history in fitted]


def machines(validated, **loop):
    x, valid = clustered(90, 6, 1), clustered(160, 6, 1)[90:]
    rbms = [RBM(6, 3, generator=generator(s)) for s in range(2)]
    options = {
        "learning_rates": [0.5, 0.1],
        "k": 2,
        "persistent": True,
        "batch_size": 20,
        "evaluate_every": 5,
    }
    options |= {"epochs": EPOCHS, "generator": generator(2)}
    trained = contrastive_divergence(rbms, x, valid if validated else None, **options | loop)
    return rbms, [each.history for each in trained]


LEARNERS = [bernoulli, trees, gaussians, minibatches, factors, machines]
every_learner = pytest.mark.parametrize("learn", LEARNERS, ids=lambda learn: learn.__name__)
PATIENT = [learn for learn in LEARNERS if learn is not machines]  # contrastive divergence runs to its end


def lines(history):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in history.epochs]


def assert_same(one, other):
    """Models and histories of two trainings, to the last bit."""
    for a, b in zip(one[0], other[0], strict=True):
        for name, tensor in a.state_dict().items():
            assert torch.equal(tensor, b.state_dict()[name]), name
    for a, b in zip(one[1], other[1], strict=True):
        assert lines(a) == lines(b)
        assert (a.best_epoch, a.best_valid, a.stopped) == (b.best_epoch, b.best_valid, b.stopped)
        assert a.messages == b.messages


@pytest.mark.parametrize("validated", [False, True])
@pytest.mark.parametrize("ended", [2, 9, EPOCHS])
@every_learner
def test_an_interrupted_training_goes_on_to_the_identical_result(
    learn, ended, validated, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)  # a checkpoint after every epoch
    whole, path = learn(validated), tmp_path / "c.safetensors"
    length = max(len(history.epochs) for history in whole[1])

    def interrupt(now):
        if now.epoch == min(ended, length):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(validated, checkpoint=Checkpoint(path), callbacks=[interrupt])
    seen = []
    resumed = learn(validated, checkpoint=Checkpoint(path, resume=True), callbacks=[seen.append])
    assert_same(resumed, whole)
    done = [now.epoch for now in seen if now.epoch_done]
    assert done == list(range(min(ended, length), length + 1))
    again = learn(validated, checkpoint=Checkpoint(path, resume=True), callbacks=[pytest.fail])
    assert_same(again, whole)


@every_learner
def test_components_are_placed_again_before_and_after_an_interruption(learn):
    """What the test above relies on: the random numbers after a checkpoint matter."""
    _, histories = learn(False)
    if learn in (bernoulli, trees, gaussians, minibatches):
        assert histories[0].messages
    else:
        assert len({len(history.epochs) for history in histories}) > 1 or learn is machines


@every_learner
def test_callbacks_get_every_epoch_and_may_end_training(learn):
    seen = []
    _, histories = learn(True, callbacks=[seen.append])
    done = [now for now in seen if now.epoch_done]
    longest = max(histories, key=lambda history: len(history.epochs))
    assert [now.epoch for now in done] == [line["epoch"] for line in longest.epochs]
    assert all(now.epochs == EPOCHS and now.updates >= now.update > 0 for now in done)
    scored = [now for now in done if now.valid is not None]
    best = max(history.best_valid for history in histories)
    assert done[-1].best_valid == best == max(now.valid.mean for now in scored)
    _, histories = learn(True, callbacks=[lambda now: now.epoch == 2])
    assert {history.stopped for history in histories} == {"a callback stopped it"}
    assert {len(history.epochs) for history in histories} == {2}


@pytest.mark.parametrize("learn", [k for k in LEARNERS if k is not minibatches], ids=lambda k: k.__name__)
def test_a_callback_that_stops_leaves_what_fewer_epochs_leave(learn):
    """Without validation the last parameters are kept (the steps of minibatch EM depend on the epochs)."""
    stopped, shorter = learn(False, callbacks=[lambda now: now.epoch == 3]), learn(False, epochs=3)
    for history in (*stopped[1], *shorter[1]):
        assert history.best_epoch == len(history.epochs) == 3
        history.stopped = ""
    assert_same(stopped, shorter)


@every_learner
def test_the_best_epoch_is_kept(learn):
    models, histories = learn(True)
    for model, history in zip(models, histories, strict=True):
        scores = {line["epoch"]: line["valid"] for line in history.epochs if line["valid"] is not None}
        assert history.best_valid == max(scores.values()) == scores[history.best_epoch]
        assert [line["epoch"] for line in history.epochs if line["best"]][-1] == history.best_epoch
        shorter = history.best_epoch if learn in (bernoulli, trees, gaussians) else None
        if shorter:
            same, _ = learn(False, callbacks=[lambda now, n=shorter: now.epoch == n])
            for name, tensor in model.state_dict().items():
                assert torch.equal(tensor, same[0].state_dict()[name])


@pytest.mark.parametrize("learn", PATIENT, ids=lambda learn: learn.__name__)
def test_patience_ends_it_early(learn, monkeypatch):
    monkeypatch.setattr(sys.modules["pynade.classical.gaussian_mixture"], "VALIDATE_EVERY", 1)
    options = {"batch_size": 12, "covariance_floor": 0.01} if learn is minibatches else {"tol": 0}
    _, histories = learn(True, patience=1, **options)
    stopped = [h for h in histories if h.stopped == "no better validation score for 1 iterations"]
    assert stopped
    for history in stopped:
        assert len(history.epochs) == history.best_epoch + 1 < EPOCHS


@every_learner
def test_divergence_is_an_error_that_names_the_epoch(learn, monkeypatch):
    for kind in (EM, _Contrastive):
        plain = kind.advance

        def advance(self, report, plain=plain):
            values = plain(self, report)
            self.calls = getattr(self, "calls", 0) + 1
            return values if self.calls < 3 else [math.nan] * len(values)

        monkeypatch.setattr(kind, "advance", advance)
    unit = "epoch" if learn is machines else "iteration"
    if learn in (factors, machines):  # several members: those that were sound before keep their best
        _, histories = learn(False)
        assert {history.stopped for history in histories} <= {"diverged", "converged"}
        assert all(len(history.epochs) <= 2 for history in histories)
    else:
        with pytest.raises(Diverged, match=f"diverged in {unit} 3"):
            learn(False)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    bernoulli(True, checkpoint=Checkpoint(path, identity={"seed": 1}))
    with pytest.raises(ValueError, match="another seed"):
        Checkpoint(path, resume=True, identity={"seed": 2})
