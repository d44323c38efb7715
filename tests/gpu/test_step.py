"""On a GPU the captured update is the eager update, and training and scoring run where the model is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import pynade
from pynade.evaluation import score_orderings
from pynade.families import Bernoulli
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.nets import CausalTransformer, MADENet, MaskedMLP, NADENet
from pynade.ordering import Ordering
from pynade.training import Gradient, Member, fit, fit_population
from pynade.training.optimizer import Optimizer
from pynade.training.step import Step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def model(kind):
    g = torch.Generator().manual_seed(0)
    if kind == "deep":
        return Orderless(MaskedMLP(30, hidden=(40, 40), dropout=0.1, generator=g), Bernoulli()).cuda()
    if kind == "made-e":
        net = MADENet(30, hidden=40, direct=True, input_observed=True, generator=g)
        return Ensemble(net, Bernoulli(), Ordering.random(30, 7, g)).cuda()
    if kind == "nade-e":
        return Ensemble(NADENet(30, hidden=40, generator=g), Bernoulli(), Ordering.random(30, 7, g)).cuda()
    if kind == "permuted":
        net = CausalTransformer(30, width=16, depth=2, heads=2, dropout=0.1, generator=g)
        return Ensemble(net, Bernoulli(), Ordering.random(30, 3, g), fresh=True).cuda()
    return Autoregressive(MADENet(30, hidden=(40,), generator=g), Bernoulli(), Ordering.natural(30)).cuda()


@pytest.mark.parametrize("kind", ["deep", "made", "made-e", "nade-e", "permuted"])
@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_captured_step_equals_eager_step(kind, rule):
    x = (torch.rand(500, 30, device="cuda", generator=torch.Generator("cuda").manual_seed(1)) < 0.3).to(
        torch.uint8
    )
    how = Gradient(
        optimizer=rule, learning_rate=0.01, momentum=0.9, weight_decay=0.01, clip=5.0, ema=0.9, batch_size=100
    )
    ends = []
    for capture in (False, True):
        m = model(kind)
        params = dict(m.named_parameters())
        g = torch.Generator("cuda").manual_seed(2)
        step = Step(m, x, how, g, Optimizer(rule, params, dict.fromkeys(params, 0.01)), capture=capture)
        for _ in range(25):
            step(torch.randperm(500, generator=g, device="cuda")[:100], 0.01, 0.9)
        assert (step.graph is not None) == capture
        ends.append(({n: p.detach().clone() for n, p in params.items()}, step.average, float(step.loss_sum)))
    (eager, eager_mean, eager_loss), (graph, graph_mean, graph_loss) = ends
    assert graph_loss == pytest.approx(eager_loss, rel=1e-5)
    for name in eager:
        torch.testing.assert_close(graph[name], eager[name], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(graph_mean[name], eager_mean[name], rtol=1e-3, atol=1e-4)


def test_a_population_whose_last_minibatch_is_short_is_the_same_as_on_the_cpu():
    x = (torch.rand(57, 30, generator=torch.Generator().manual_seed(1)) < 0.3).to(torch.uint8)
    ends = []
    for device in ("cpu", "cuda"):
        members = [
            Member(model("made").to(device), x, x, Gradient(epochs=1, batch_size=57, learning_rate=rate))
            for rate in (0.01, 0.02)
        ]
        ends.append(fit_population(members).valid)
        short = [replace(m, how=replace(m.how, epochs=3, batch_size=20)) for m in members]
        assert np.isfinite(fit_population(short).valid).all()
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-3)


@pytest.mark.parametrize("kind", ["made-e", "nade-e"])
def test_ensembles_end_as_members_of_a_population_as_they_would_have_ended_alone(kind):
    x = (torch.rand(300, 30, generator=torch.Generator().manual_seed(1)) < 0.3).to(torch.uint8)
    how = Gradient(epochs=4, batch_size=50)
    members = [
        Member(model(kind), x, x[:90], replace(how, learning_rate=rate), seed)
        for rate, seed in ((0.003, 0), (0.01, 0), (0.003, 1))
    ]
    histories = fit_population(members)
    for k, member in enumerate(members):
        alone = fit(model(kind), x, x[:90], member.how, seed=member.seed)
        got = [line["valid_nll"] for line in histories.of(k).epochs]
        np.testing.assert_allclose(got, [line["valid_nll"] for line in alone.epochs], rtol=2e-3)


def test_all_orderings_of_an_ensemble_are_scored_together_as_one_by_one():
    m = model("made-e")
    x = (torch.rand(64, 30, device="cuda") < 0.5).float()
    assert m.orderings_at_once(64) == 7
    with torch.no_grad():
        torch.testing.assert_close(m.member_log_probs(x), m.member_log_probs(x, 1), rtol=0, atol=1e-3)


def test_fit_and_score_on_the_gpu_agree_with_the_cpu():
    rng = np.random.default_rng(0)
    X = (rng.random((400, 30)) < 0.3).astype(np.uint8)
    deep = pynade.DeepNADE(hidden=(32, 32), epochs=3, device="cuda", random_state=0).fit(X)
    there = deep.score_samples(X, orderings=4)
    here = deep.set_params(device="cpu").score_samples(X, orderings=4)
    np.testing.assert_allclose(there, here, rtol=0, atol=2e-2)  # TF32 against float64
    assert abs(there.mean() - here.mean()) < 2e-3
    nade = pynade.NADE(hidden=16, epochs=2, device="cuda", random_state=0).fit(X)
    assert np.isfinite(nade.score(X))
    assert nade.sample(5).shape == (5, 30)


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
        fit(m, x, how=Gradient(epochs=3, batch_size=50), seed=4)
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
        own = Optimizer(rule, {"w": start.to(device, copy=True)}, {"w": decay.to(device)})
        average = {"w": start.to(device, copy=True)}
        for t, slope in enumerate(slopes, start=1):
            rate, momentum = (torch.linspace(0.1, 0.3, members, device=device) for _ in range(2))
            grads = {"w": slope.to(device)}
            assert own._fuses(grads, average) == (device == "cuda")
            own.apply(grads, rate, momentum, *Optimizer.corrections(t), average, 0.2)
        ends.append([t.cpu() for t in (*own.params.values(), *own.state.values(), *average.values())])
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def test_ensembles_of_members_that_drop_different_shares_are_validated_on_a_gpu():
    x = (torch.rand(300, 30, generator=torch.Generator().manual_seed(1)) < 0.3).to(torch.uint8)
    g = torch.Generator().manual_seed(0)
    order = Ordering.random(30, 40, g)
    nets = [MADENet(30, hidden=40, direct=True, dropout=rate, generator=g) for rate in (0.0, 0.4)]
    models = [Ensemble(net, Bernoulli(), order).cuda() for net in nets]
    how = Gradient(epochs=3, batch_size=50)
    valid = fit_population([Member(m, x, x, how) for m in models]).valid
    with torch.no_grad():
        own = [m.cpu().log_prob(x).mean().item() for m in models]
    np.testing.assert_allclose(valid.max(0), own, rtol=1e-3)
