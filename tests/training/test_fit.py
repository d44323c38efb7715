import json
import math

import numpy as np
import pytest
import torch

import pynade
from pynade.families import Bernoulli
from pynade.likelihood import log_likelihood
from pynade.models import Autoregressive, Ensemble, Independent, Orderless
from pynade.nets import FVSBNNet, MADENet, MaskedMLP, NADENet
from pynade.ordering import Ordering
from pynade.training import Diverged, Gradient, fit, pretrain
from pynade.training.checkpoint import load_checkpoint, save_checkpoint


def rows(n=300, D=6, seed=0):
    """A chain of noisy copies: each column repeats the one before with probability 0.9."""
    rng = np.random.default_rng(seed)
    x = np.empty((n, D), dtype=np.uint8)
    x[:, 0] = rng.random(n) < 0.5
    for d in range(1, D):
        x[:, d] = np.where(rng.random(n) < 0.9, x[:, d - 1], 1 - x[:, d - 1])
    return x


def model(D=6, seed=0, kind="nade"):
    g = torch.Generator().manual_seed(seed)
    if kind == "made-e":
        return Ensemble(
            MADENet(D, hidden=(16,), generator=g), Bernoulli(), Ordering.random(D, k=3, generator=g)
        )
    return Autoregressive(NADENet(D, hidden=8, generator=g), Bernoulli(), Ordering.natural(D))


def weights(m):
    return {n: t.clone() for n, t in m.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_learning_reaches_the_true_entropy():
    entropy = np.log(2) + 5 * -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    m = Autoregressive(FVSBNNet(6), Bernoulli(), Ordering.natural(6))
    fit(m, rows(4000), options=Gradient(epochs=40, learning_rate=0.05, schedule="linear", patience=None))
    estimate = log_likelihood(m, rows(20_000, seed=1))
    assert abs(-estimate.mean - entropy) < 0.02


def test_joint_training_of_orderings_improves_every_member():
    m = model(kind="made-e")
    before = m.member_log_probs(torch.as_tensor(rows()).float()).mean(0)
    fit(m, rows(), options=Gradient(epochs=40, learning_rate=0.01))
    after = m.member_log_probs(torch.as_tensor(rows()).float()).mean(0)
    assert (after > before + 1.0).all()


def test_best_weights_on_validation_are_restored():
    m, valid = model(), rows(40, seed=1)
    seen = []

    def watch(p):
        if p.epoch_done:
            seen.append((p.valid.mean, weights(m)))

    history = fit(
        m, rows(30), valid, Gradient(epochs=60, learning_rate=0.1, patience=None), callbacks=[watch]
    )
    best = int(np.argmax([s for s, _ in seen]))
    assert history.best_epoch == best + 1 < len(seen)  # it did overfit after the best epoch
    assert same(weights(m), seen[best][1])
    assert history.best_valid == seen[best][0]
    assert log_likelihood(m, valid).mean == pytest.approx(history.best_valid, abs=1e-6)


def test_patience_looks_ahead_exactly_that_far():
    history = fit(model(), rows(30), rows(40, seed=1), Gradient(epochs=500, learning_rate=0.1, patience=4))
    assert len(history.epochs) == history.best_epoch + 4
    assert history.stopped == "no better validation score for 4 epochs"


def test_without_validation_all_epochs_are_run():
    history = fit(model(), rows(), options=Gradient(epochs=3))
    assert history.stopped == "all epochs done"
    assert [e["epoch"] for e in history.epochs] == [1, 2, 3]
    assert history.best_epoch == 3
    assert history.train_log_likelihood == history.epochs[2]["train"]


def test_stops_when_the_training_likelihood_passes_a_value():
    history = fit(model(), rows(), options=Gradient(epochs=500, learning_rate=0.05, stop_at_train=-3.0))
    assert history.train_log_likelihood > -3.0
    assert all(e["train"] <= -3.0 for e in history.epochs[:-1])
    assert history.stopped == "training likelihood reached the given value"


def test_an_epoch_is_a_pass_or_a_number_of_minibatches():
    a_pass = fit(model(), rows(250), options=Gradient(epochs=2, batch_size=100))
    assert [e["updates"] for e in a_pass.epochs] == [3, 6]
    ten = fit(model(), rows(250), options=Gradient(epochs=2, batch_size=100, updates_per_epoch=10))
    assert [e["updates"] for e in ten.epochs] == [10, 20]


def test_a_pass_uses_every_row_once():
    seen = []

    class Watching(Independent):
        def loss(self, x, generator=None):
            seen.append(x)
            return super().loss(x, generator)

    x = rows(57)
    fit(Watching(Bernoulli(), 6), x, options=Gradient(epochs=1, batch_size=10))
    assert [len(b) for b in seen] == [10] * 5 + [7]
    got = np.sort(torch.cat(seen).numpy() @ 2 ** np.arange(6))
    assert (got == np.sort(x @ 2 ** np.arange(6))).all()


def test_momentum_may_start_later():
    def trained(**kw):
        m = model()
        fit(m, rows(), options=Gradient(optimizer="sgd", learning_rate=0.05, batch_size=50, **kw))
        return weights(m)

    plain = trained(epochs=2)
    assert same(trained(epochs=2, momentum=0.9, momentum_after=2), plain)
    assert not same(trained(epochs=2, momentum=0.9, momentum_after=1), plain)


def test_weight_decay_on_the_input_matrix_only():
    m, g = (
        model(),
        Gradient(optimizer="adamw", learning_rate=0.1, weight_decay=9.0, epochs=30, decay_on="input"),
    )
    fit(m, rows(), options=g)
    assert m.net.weight.abs().mean() < 0.1 * m.net.output.abs().mean()
    with pytest.raises(ValueError, match="no input matrix"):
        fit(Independent(Bernoulli(), 6), rows(), options=g)


def test_the_learning_rate_follows_the_schedule():
    history = fit(
        model(),
        rows(100),
        options=Gradient(schedule="inverse", gamma=1.0, learning_rate=1e-3, epochs=3, batch_size=100),
    )
    assert [e["learning_rate"] for e in history.epochs] == pytest.approx([1e-3, 1e-3 / 2, 1e-3 / 3])


@pytest.mark.parametrize("kind", ["nade", "made-e"])
def test_same_seed_same_result(kind):
    results = []
    for seed in (1, 1, 2):
        m = model(kind=kind)
        fit(m, rows(), options=Gradient(epochs=3), seed=seed)
        results.append(weights(m))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


def test_callbacks_see_progress_and_may_stop():
    events = []

    def watch(p):
        events.append(p)
        return p.epoch == 3 and p.epoch_done

    history = fit(model(), rows(), rows(50, seed=1), Gradient(epochs=50), callbacks=[watch])
    assert history.stopped == "a callback stopped it"
    ends = [p for p in events if p.epoch_done]
    assert [p.epoch for p in ends] == [1, 2, 3]
    assert ends[-1].updates == 150
    assert ends[-1].valid.n == 50
    told = fit(model(), rows(), options=Gradient(epochs=50), callbacks=[lambda p: p.epoch_done and "enough"])
    assert (told.stopped, len(told.epochs)) == ("enough", 1)


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", ["nade", "made-e"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("form", ["current", "older"])
def test_resume_gives_the_identical_result(tmp_path, monkeypatch, kind, optimizer, form):
    """Killed in the middle of an epoch, some epochs after its last checkpoint."""
    options = Gradient(
        epochs=12, optimizer=optimizer, learning_rate=0.02, momentum=0.5, schedule="linear", patience=5
    )
    valid = rows(60, seed=1)
    whole = model(kind=kind)
    (tmp_path / "whole").mkdir()
    expected = fit(whole, rows(), valid, options, seed=3, folder=tmp_path / "whole")

    folder = tmp_path / "pieces"
    folder.mkdir()
    for stop_at, checkpoints in ((4, 0.0), (3, 1e9), (2, 0.0)):  # epochs; the second piece saves nothing
        monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", checkpoints)
        calls = []

        class Killed(type(whole)):
            def loss(self, x, generator=None, calls=calls, stop_at=stop_at):
                calls.append(1)
                if len(calls) > 3 * stop_at + 1:
                    raise Stop
                return super().loss(x, generator)

        piece = model(kind=kind, seed=77)  # the checkpoint must bring everything, not the construction
        if stop_at == 4:
            piece = model(kind=kind)
        piece.__class__ = Killed
        with pytest.raises(Stop):
            fit(piece, rows(), valid, options, seed=3, folder=folder, resume=stop_at < 4)
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", 0.0)
    if form == "older":  # the groups of tensors that checkpoints of one model had
        path = folder / "checkpoint.safetensors"
        tensors, facts = load_checkpoint(path)
        tensors["model"], tensors["generator"] = tensors.pop("trained"), {"state": tensors["generators"]["0"]}
        del tensors["generators"], facts["active"]
        save_checkpoint(path, tensors | {"best": tensors["model"] | tensors["best"]}, facts)
    last = model(kind=kind, seed=77)
    history = fit(last, rows(), valid, options, seed=3, folder=folder, resume=True)

    assert same(weights(last), weights(whole))
    strip = lambda h: [{k: v for k, v in e.items() if k != "seconds"} for e in h]  # noqa: E731
    assert strip(history.epochs) == strip(expected.epochs)
    assert (history.best_epoch, history.best_valid, history.stopped) == (
        expected.best_epoch,
        expected.best_valid,
        expected.stopped,
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert strip(lines) == strip(expected.epochs)


def test_resume_without_a_checkpoint_or_with_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        fit(model(), rows(), folder=tmp_path, resume=True)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"x" * 50)
    with pytest.raises(ValueError, match="damaged or no checkpoint"):
        fit(model(), rows(), folder=tmp_path, resume=True)


def test_divergence_is_a_clear_error_and_keeps_the_last_good_weights(tmp_path):
    m = model()
    kept = []

    def spoil(p):
        if p.epoch_done:
            kept.append(weights(m))
        if p.epoch == 2 and p.epoch_done:
            m.net.spoiled = True

    class Spoiled(NADENet):
        def parallel(self, features, ordering):
            eta = super().parallel(features, ordering)
            return eta * float("nan") if getattr(self, "spoiled", False) else eta

    m.net.__class__ = Spoiled
    with pytest.raises(
        Diverged, match=r"epoch 3; the weights of epoch 2 were kept in .*smaller learning rate"
    ):
        fit(m, rows(), rows(20, seed=1), Gradient(epochs=9), folder=tmp_path, callbacks=[spoil])
    assert same(weights(m), kept[1])
    m.net.__class__ = NADENet


def test_a_real_divergence_leaves_a_loadable_model(tmp_path):
    m = model()
    with pytest.raises(Diverged):
        fit(m, rows(), options=Gradient(optimizer="sgd", learning_rate=1e39, epochs=50), folder=tmp_path)
    assert all(torch.isfinite(p).all() for p in m.parameters())
    again = pynade.load(tmp_path / "last_good.safetensors")
    assert same(weights(again), weights(m))


@pytest.mark.parametrize("kept", [True, False])
def test_divergence_in_pretraining_says_where(tmp_path, kept):
    x = rows()
    deep = Orderless(MaskedMLP(x.shape[1], hidden=(4, 4)), Bernoulli())
    options, folder = Gradient(optimizer="sgd", learning_rate=1e39), tmp_path if kept else None
    words = r"in pretraining \(2 layers\) training diverged in epoch 1; the initial weights were kept"
    with pytest.raises(Diverged, match=words + (r" in .*last_good" if kept else r"\. Try")):
        pretrain(deep, x, options, epochs=3, folder=folder)
    assert (tmp_path / "last_good.safetensors").is_file() == kept


def test_checkpoints_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    from pynade.atomic import write_atomically

    target = tmp_path / "file"
    target.write_text("old")

    def fail(path):
        path.write_text("half")
        raise Stop

    with pytest.raises(Stop):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("x", [np.zeros((0, 6)), np.full((3, 6), 2), np.zeros((3, 5))])
def test_bad_rows_are_refused_before_training(x):
    with pytest.raises(ValueError, match=r"no rows|exactly 0 or 1|6 columns"):
        fit(model(), x)


class Endless:
    """Rows without end; remembers how many were drawn."""

    n_variables = 4

    def __init__(self):
        self.drawn = []

    def draw(self, n, generator):
        self.drawn.append(n)
        return (torch.rand(n, 4, generator=generator) < torch.tensor([0.9, 0.2, 0.5, 0.5])).float()

    def to(self, device):
        return self


def test_rows_may_be_drawn_on_the_fly():
    source = Endless()
    model = Autoregressive(FVSBNNet(4), Bernoulli(), Ordering.natural(4))
    options = Gradient(epochs=30, updates_per_epoch=5, batch_size=40, learning_rate=0.1, schedule="linear")
    fit(model, source, options=options)
    assert source.drawn[1:] == [200] * 30  # five fresh minibatches for every epoch
    test = source.draw(4000, torch.Generator().manual_seed(9))
    entropy = sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.9, 0.2, 0.5, 0.5))
    assert -model.log_prob(test).mean().item() == pytest.approx(entropy, abs=0.06)
    with pytest.raises(ValueError, match="updates_per_epoch"):
        fit(model, source, options=Gradient(epochs=1))


def test_the_training_likelihood_that_stops_is_scored_after_the_epoch():
    x = torch.eye(4).repeat(25, 1)
    model = Autoregressive(FVSBNNet(4), Bernoulli(), Ordering.natural(4))
    history = fit(model, x, options=Gradient(epochs=500, learning_rate=0.05, stop_at_train=-1.6))
    assert history.stopped == "training likelihood reached the given value"
    assert model.log_prob(x).mean() > -1.6
    again = Autoregressive(FVSBNNet(4), Bernoulli(), Ordering.natural(4))
    fit(again, x, options=Gradient(epochs=len(history.epochs) - 1, learning_rate=0.05))
    assert again.log_prob(x).mean() <= -1.6  # and not before
