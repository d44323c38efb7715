import pytest
import torch

from pynade.training.options import Gradient
from pynade.training.step import Optimizer, clip

RULES = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.03),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.1, weight_decay=0.03),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.03),
}


def step(optimizer, grads, rate, momentum=0.0):
    """One update from the gradients of the loss."""
    optimizer.t += 1
    optimizer.apply(grads, (rate, momentum, *optimizer.corrections(optimizer.t), 0.0))


def loss(params):
    return ((params["a"] @ params["b"]) ** 2).sum() + params["a"].sin().sum()


def start(dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 4, generator=g, dtype=dtype, requires_grad=True),
        "b": torch.randn(4, 2, generator=g, dtype=dtype, requires_grad=True),
    }


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_equals_torch_optim(rule):
    ours, theirs = start(), start()
    mine = Optimizer(rule, ours, 0.03, ours)
    reference = RULES[rule](list(theirs.values()))
    for t in range(20):
        rate = 0.1 / (1 + t)
        grads = dict(zip(ours, torch.autograd.grad(loss(ours), list(ours.values())), strict=True))
        step(mine, grads, rate, momentum=0.9)
        reference.zero_grad()
        loss(theirs).backward()
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-12)


def test_one_pass_on_the_cpu_equals_torch_optim(monkeypatch):
    ours, theirs = start(torch.float32), start(torch.float32)
    average = {n: p.detach().clone() for n, p in ours.items()}
    expected = {n: p.detach().clone() for n, p in ours.items()}
    mine, reference = Optimizer("adamw", ours, 0.03, ["a"]), RULES["adamw"]([{"params": [theirs["a"]]}])
    reference.add_param_group({"params": [theirs["b"]], "weight_decay": 0.0})
    monkeypatch.setattr("pynade.training.step.foreach", None)  # not by lists of tensors
    for t in range(1, 21):
        grads = dict(zip(ours, torch.autograd.grad(loss(ours), list(ours.values())), strict=True))
        mine.apply(grads, (0.1, 0.0, *mine.corrections(t), 0.2), average)
        reference.zero_grad()
        loss(theirs).backward()
        reference.step()
        expected = {n: m + 0.2 * (theirs[n].detach() - m) for n, m in expected.items()}
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(average[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_a_population_is_its_members_trained_alone(rule):
    """Stacked parameters, one rate, momentum and decay per member: the seam that populations need."""
    rates = torch.tensor([0.1, 0.03, 0.003], dtype=torch.float64)
    momenta = torch.tensor([0.9, 0.0, 0.5], dtype=torch.float64)
    decays = torch.tensor([0.0, 0.1, 1.0], dtype=torch.float64)
    members = [start(seed=s) for s in range(3)]
    stacked = {n: torch.stack([m[n].detach() for m in members]).requires_grad_() for n in ("a", "b")}
    together = Optimizer(rule, stacked, decays, stacked)
    each = [Optimizer(rule, m, d.item(), m) for m, d in zip(members, decays, strict=True)]
    for _ in range(10):
        total = ((stacked["a"] @ stacked["b"]) ** 2).sum() + stacked["a"].sin().sum()
        grads = torch.autograd.grad(total, list(stacked.values()))
        step(together, dict(zip(stacked, grads, strict=True)), rates, momenta)
        for member, optimizer, rate, momentum in zip(members, each, rates, momenta, strict=True):
            grads = torch.autograd.grad(loss(member), list(member.values()))
            step(optimizer, dict(zip(member, grads, strict=True)), rate.item(), momentum.item())
    for name in stacked:
        alone = torch.stack([m[name] for m in members])
        torch.testing.assert_close(stacked[name], alone, rtol=0, atol=1e-12)


def test_decay_on_some_names_only():
    params = {n: p.detach() for n, p in start().items()}
    before = {n: p.clone() for n, p in params.items()}
    optimizer = Optimizer("sgd", params, 0.5, ["a"])
    step(optimizer, {n: torch.zeros_like(p) for n, p in params.items()}, 0.1)
    torch.testing.assert_close(params["a"], before["a"] * (1 - 0.05))
    assert torch.equal(params["b"], before["b"])


@pytest.mark.parametrize("largest", [0.5, 1e6])
def test_clip_equals_torch(largest):
    grads = {n: p.detach().clone() for n, p in start().items()}
    holders = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads.values()]
    for holder, g in zip(holders, grads.values(), strict=True):
        holder.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(holders, largest)
    clip(grads, largest)
    for holder, g in zip(holders, grads.values(), strict=True):
        torch.testing.assert_close(g, holder.grad)


def test_schedules():
    def rates(**kw):
        how = Gradient(learning_rate=0.8, **kw)
        return [how.rate(t, 4) for t in range(4)]

    assert rates() == [0.8] * 4
    assert rates(schedule="linear") == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert rates(schedule="inverse", gamma=1.0) == pytest.approx([0.8, 0.4, 0.8 / 3, 0.2])
    assert rates(schedule="cosine") == pytest.approx([0.8, 0.682842712, 0.4, 0.117157288])
    assert Gradient(schedule="linear").rate(10, 10) == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"optimizer": "newton"}, "unknown optimizer 'newton'; known: sgd, adam, adamw"),
        ({"schedule": "spiral"}, "unknown schedule"),
        ({"decay_on": "output"}, "unknown decay_on"),
        ({"learning_rate": 0}, "learning_rate must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, words):
    with pytest.raises(ValueError, match=words):
        Gradient(**setting)
