"""On a GPU a captured update is the eager update, and training and scoring run on the model's device."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pynade.digest import read_json
from pynade.evaluation import score_orderings
from pynade.families import Bernoulli
from pynade.models import Autoregressive, Ensemble
from pynade.nets import MADENet, NADENet
from pynade.ordering import Ordering
from pynade.training import Gradient, Member, fit, fit_population
from pynade.training.step import Optimizer, Step
from tests.training.several import torchrun

from .cases import images, model, trained, unet

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def after(kind, options, capture, updates, rate):
    """The sum of losses, the parameters and their average after some updates.

    Dropout, prefixes and shuffling come from one generator, which the graph draws from too.
    """
    m, x = trained(kind)
    params = dict(m.named_parameters())
    g = torch.Generator("cuda").manual_seed(2)
    optimizer = Optimizer(options.optimizer, params, options.weight_decay, params)
    step = Step(m, x, options, [g], optimizer, capture=capture)
    for _ in range(updates):
        step(torch.randperm(len(x), generator=g, device="cuda")[: options.batch_size], rate, options.momentum)
    assert (step.graph is not None) == capture
    assert all(p.dtype == torch.float32 for p in params.values())
    return float(step.loss_sum), params, step.average


@pytest.mark.parametrize("kind", ["deep", "made", "made-e", "nade-e", "permuted"])
@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_captured_step_equals_eager_step(kind, rule):
    options = Gradient(optimizer=rule, momentum=0.9, weight_decay=0.01, clip=5.0, ema=0.9, batch_size=100)
    (loss, params, means), (loss2, params2, means2) = (
        after(kind, options, c, 25, 0.01) for c in (False, True)
    )
    assert loss2 == pytest.approx(loss, rel=1e-5)
    for name in params:
        torch.testing.assert_close(params2[name], params[name], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(means2[name], means[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["unet", "grey", "real-causal", "real-permuted"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_captured_step_in_fewer_bits_equals_eager_step(kind, precision):
    options = Gradient(optimizer="adamw", clip=1.0, ema=0.9, batch_size=50, precision=precision)
    (loss, *ends), (loss2, *ends2) = (after(kind, options, c, 8, 1e-3) for c in (False, True))
    assert loss2 == pytest.approx(loss, rel=1e-3 if precision == "float32" else 1e-2)
    flat = (torch.cat([p.detach().flatten() for p in end[0].values()]) for end in (ends, ends2))
    assert torch.sub(*flat).abs().mean() < 2e-4


@pytest.mark.parametrize("kind", ["deep", "made", "nade-e", "permuted", "unet", "real-causal"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_minibatch_in_pieces_gives_the_same_updates(kind, precision):
    """With the same dropout, also in fused kernels; without Adam, which enlarges small differences."""
    options = Gradient(optimizer="sgd", clip=1.0, ema=0.9, batch_size=50, precision=precision)
    cut = replace(options, accumulate=3)
    (loss, *ends), (loss2, *ends2) = (after(kind, o, False, 8, 1e-2) for o in (options, cut))
    assert loss2 == pytest.approx(loss, rel=1e-3 if precision == "float32" else 1e-2)
    flat = (torch.cat([p.detach().flatten() for p in end[0].values()]) for end in (ends, ends2))
    assert torch.sub(*flat).abs().mean() < 2e-4


def test_two_processes_train_as_one(tmp_path, monkeypatch):
    """Each with a GPU of its own (NCCL), or on one GPU (gloo)."""
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", images(400)[:, :30].cpu().numpy())
    for processes in (1, 2):
        words = ["fit", "rows.npy", "--model", "deepnade", "--hidden", 40, "--dropout", 0.1, "--epochs", 5]
        done = torchrun(processes, *words, "--device", "cuda", "--out", processes, module="pynade")
        assert done.returncode == 0, done.stderr
    one, two = (read_json(tmp_path / str(n) / "result.json")["valid"]["mean"] for n in (1, 2))
    assert two == pytest.approx(one, rel=1e-3)


def test_bf16_trains_as_float32_does():
    x = images(400)
    x[:, ::2] = x[:, 1::2]  # neighbours are equal: something to learn
    scores = {}
    for precision in ("float32", "bf16"):
        m = unet(dropout=0.0)
        options = Gradient(
            epochs=10, batch_size=50, learning_rate=2e-3, warm_up=10, clip=1.0, precision=precision
        )
        history = fit(m, x, x[:100], options, seed=1)
        scores[precision] = history.epochs[-1]["valid"]
        assert scores[precision] > history.epochs[0]["valid"] + 1
    assert scores["bf16"] == pytest.approx(scores["float32"], rel=0.05)


def test_a_fixed_order_recurrence_stays_float32():
    x = images(100)[:, :30]
    m = Autoregressive(NADENet(30, hidden=20), Bernoulli(), Ordering.natural(30)).cuda()
    history = fit(m, x, x, Gradient(epochs=2, batch_size=50, precision="bf16"), seed=1)
    assert np.isfinite(history.best_valid)


def test_a_population_whose_last_minibatch_is_short_is_the_same_as_on_the_cpu():
    x = (torch.rand(57, 30, generator=torch.Generator().manual_seed(1)) < 0.3).to(torch.uint8)
    ends = []
    for device in ("cpu", "cuda"):
        members = [
            Member(model("made").to(device), x, x, Gradient(epochs=1, batch_size=57, learning_rate=rate))
            for rate in (0.01, 0.02)
        ]
        ends.append([history.best_valid for history in fit_population(members)])
        short = [replace(m, options=replace(m.options, epochs=3, batch_size=20)) for m in members]
        assert np.isfinite([history.best_valid for history in fit_population(short)]).all()
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-3)


@pytest.mark.parametrize("kind", ["made-e", "nade-e"])
def test_ensembles_end_as_members_of_a_population_as_they_would_have_ended_alone(kind):
    x = (torch.rand(300, 30, generator=torch.Generator().manual_seed(1)) < 0.3).to(torch.uint8)
    options = Gradient(epochs=4, batch_size=50)
    members = [
        Member(model(kind), x, x[:90], replace(options, learning_rate=rate), seed)
        for rate, seed in ((0.003, 0), (0.01, 0), (0.003, 1))
    ]
    histories = fit_population(members)
    for k, member in enumerate(members):
        alone = fit(model(kind), x, x[:90], member.options, seed=member.seed)
        got = [line["valid"] for line in histories[k].epochs]
        np.testing.assert_allclose(got, [line["valid"] for line in alone.epochs], rtol=2e-3)


def test_all_orderings_of_an_ensemble_are_scored_together_as_one_by_one():
    m = model("made-e")
    x = (torch.rand(64, 30, device="cuda") < 0.5).float()
    assert m.orderings_at_once(64) == 7
    with torch.no_grad():
        torch.testing.assert_close(m.member_log_probs(x), m.member_log_probs(x, 1), rtol=0, atol=1e-3)


def test_orderings_are_scored_alike_in_any_chunks():
    m = model("deep")
    x = (torch.rand(64, 30, device="cuda") < 0.5).float()
    orderings = Ordering.random(30, k=5, generator=torch.Generator().manual_seed(3))
    whole = score_orderings(m, x, orderings).log_probs
    parts = score_orderings(m, x, orderings, rows_at_once=64).log_probs
    np.testing.assert_allclose(whole, parts, rtol=0, atol=1e-3)


def test_training_on_the_gpu_repeats_itself():
    x = np.eye(30, dtype=np.uint8).repeat(10, axis=0)
    weights = []
    for _ in range(2):
        m = model("deep")
        fit(m, x, options=Gradient(epochs=3, batch_size=50), seed=4)
        weights.append(torch.cat([p.detach().flatten() for p in m.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("members", [1, 3])
def test_the_fused_update_is_that_of_the_lists(rule, members):
    g = torch.Generator().manual_seed(0)
    start, *slopes = torch.randn(6, members, 70, 211, generator=g)
    decay = torch.linspace(0.1, 0.3, members)
    ends = []
    for device in ("cpu", "cuda"):
        own = Optimizer(rule, {"w": start.to(device, copy=True)}, decay.to(device), ["w"])
        average = {"w": start.to(device, copy=True)}
        for t, slope in enumerate(slopes, start=1):
            rate, momentum = (torch.linspace(0.1, 0.3, members, device=device) for _ in range(2))
            grads = {"w": slope.to(device)}
            numbers = [rate, momentum, *Optimizer.corrections(t), 0.2]
            fused = own._update_on_gpu(grads, numbers, average)
            assert fused == (device == "cuda")
            if not fused:
                own.apply(grads, numbers, average)
        ends.append([t.cpu() for t in (*own.params.values(), *own.state.values(), *average.values())])
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def test_ensembles_of_members_that_drop_different_shares_are_validated_on_a_gpu():
    x = (torch.rand(300, 30, generator=torch.Generator().manual_seed(1)) < 0.3).to(torch.uint8)
    g = torch.Generator().manual_seed(0)
    order = Ordering.random(30, 40, g)
    nets = [MADENet(30, hidden=40, direct=True, dropout=rate, generator=g) for rate in (0.0, 0.4)]
    models = [Ensemble(net, Bernoulli(), order).cuda() for net in nets]
    options = Gradient(epochs=3, batch_size=50)
    histories = fit_population([Member(m, x, x, options) for m in models])
    with torch.no_grad():
        own = [m.cpu().log_prob(x).mean().item() for m in models]
    np.testing.assert_allclose([history.best_valid for history in histories], own, rtol=1e-3)
