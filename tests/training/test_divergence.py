"""One model that diverges goes back to its last good state once, with a tenth of the learning rate."""

import json

import numpy as np
import pytest
import torch

import pynade
from pynade.families import FixedVarianceGaussian
from pynade.models import Autoregressive
from pynade.nets import FVSBNNet
from pynade.ordering import Ordering
from pynade.training import Diverged, Gradient, Member, fit, fit_population
from pynade.training.checkpoint import load_checkpoint, save_checkpoint

#: Least squares: gradient descent is stable at a rate of 0.1, not at 1.
OPTIONS = {"optimizer": "sgd", "learning_rate": 1.0, "batch_size": 2, "epochs": 8, "patience": None}


class Bounded(FVSBNNet):
    """Overflows at once where weights are large, as if numbers had a small range."""

    def parallel(self, features, ordering):
        eta = super().parallel(features, ordering)
        return eta * torch.where(self.weight.abs().max() > 2, torch.nan, 1.0)


def rows(n=300, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, 1)) + 0.3 * rng.normal(size=(n, 4))).astype(np.float32)


def model(net=FVSBNNet):
    family = FixedVarianceGaussian(4)
    family.log_sigma.requires_grad_(False)
    return Autoregressive(net(4), family, Ordering.natural(4))


def weights(m):
    return {n: t.clone() for n, t in m.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def without_times(history):
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in history.epochs]
    return vars(history) | {"epochs": lines, "seconds": None}


def test_a_rate_that_diverges_at_once_is_divided_by_ten_and_learns():
    slow, fast, seen = model(), model(), []
    expected = fit(slow, rows(), rows(50, 1), Gradient(**OPTIONS | {"learning_rate": 0.1}), seed=2)
    history = fit(fast, rows(), rows(50, 1), Gradient(**OPTIONS), seed=2, callbacks=[seen.append])
    assert history.messages == [
        "training diverged in epoch 1 and went on from the initial weights with the learning rate 0.1 "
        "instead of 1"
    ]
    assert same(weights(fast), weights(slow))  # as if it had begun with a tenth
    assert without_times(history) == without_times(expected) | {"messages": history.messages}
    assert {line["learning_rate"] for line in history.epochs} == {0.1}
    assert seen[-1].learning_rate == 0.1
    assert [p.epoch for p in seen if p.epoch_done] == [*range(1, 9)]
    assert history.epochs[-1]["valid"] > -4.6  # -5.9 at the start


class Killed(Exception):
    pass


def killed_in(epoch, folder, options, net=FVSBNNet, **named):
    """A folder with a checkpoint of the epoch before."""

    def kill(p):
        if p.epoch == epoch:
            raise Killed

    with pytest.raises(Killed):
        fit(model(net), rows(), options=options, folder=folder, callbacks=[kill], **named)


def test_later_it_goes_back_to_the_state_after_the_last_good_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)
    options, m = Gradient(**OPTIONS, warm_up=900, ema=0.9), model(Bounded)
    history = fit(m, rows(), options=options)
    assert history.messages == [
        "training diverged in epoch 3 and went on from the weights of epoch 2 with the learning rate 0.1 "
        "instead of 1"
    ]
    assert [line["epoch"] for line in history.epochs] == [*range(1, 9)]
    assert [line["updates"] for line in history.epochs] == [*range(150, 1350, 150)]
    rates = [line["learning_rate"] for line in history.epochs]
    assert rates == pytest.approx([1 / 6, 2 / 6, 0.05, 4 / 60, 5 / 60, 0.1, 0.1, 0.1])  # of a warm-up
    assert history.stopped == "all epochs done"
    assert history.epochs[-1]["train"] > -4.5
    killed_in(3, tmp_path, options, Bounded)
    tensors, facts = load_checkpoint(tmp_path / "checkpoint.safetensors")
    save_checkpoint(tmp_path / "checkpoint.safetensors", tensors, facts | {"divisor": 10})
    slower = model(Bounded)
    again = fit(slower, rows(), options=options, folder=tmp_path, resume=True)
    assert again.messages == []
    assert same(weights(slower), weights(m))


def test_the_second_time_it_stops_with_advice_and_the_last_good_weights(tmp_path):
    m = model()
    before = weights(m)
    words = (
        r"training diverged in epoch 1; the initial weights were kept in .*last_good.safetensors; the "
        r"learning rate had been divided by 10 before\. Try a smaller learning rate or gradient clipping\."
    )
    with pytest.raises(Diverged, match=words):
        fit(m, rows(), options=Gradient(**OPTIONS | {"learning_rate": 20.0}), folder=tmp_path)
    assert same(weights(m), before)
    assert same(weights(pynade.load(tmp_path / "last_good.safetensors")), before)


@pytest.mark.parametrize("epoch", range(2, 9))
def test_resumed_before_or_after_the_change_it_ends_with_the_identical_result(tmp_path, monkeypatch, epoch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)
    options, named = (
        Gradient(**OPTIONS, warm_up=900, ema=0.9, momentum=0.1),
        {"valid": rows(50, 1), "seed": 3},
    )
    whole, again = model(Bounded), model(Bounded)
    expected = fit(whole, rows(), options=options, **named)
    assert "went on from the weights of epoch 2" in expected.messages[0]
    killed_in(epoch, tmp_path, options, Bounded, **named)
    history = fit(again, rows(), options=options, folder=tmp_path, resume=True, **named)
    assert same(weights(again), weights(whole))
    assert without_times(history) == without_times(expected)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == history.epochs


def test_a_second_divergence_after_a_resume_is_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", -1.0)
    killed_in(3, tmp_path, Gradient(**OPTIONS))
    options = Gradient(**OPTIONS | {"learning_rate": 20.0})
    with pytest.raises(Diverged, match=r"in epoch 3; the weights of epoch 2 .* divided by 10 before"):
        fit(model(), rows(), options=options, folder=tmp_path, resume=True)


def test_a_member_of_a_population_that_diverges_stops():
    members = [Member(model(), rows(), None, Gradient(**OPTIONS | {"learning_rate": r})) for r in (0.1, 1.0)]
    good, bad = fit_population(members)
    assert (good.stopped, bad.stopped) == ("all epochs done", "diverged")
    assert (good.messages, bad.messages) == ([], [])
