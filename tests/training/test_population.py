"""A population's members end as they would have ended alone."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from pynade.families import Bernoulli
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.nets import CausalTransformer, FVSBNNet, MADENet, MaskedMLP, NADENet, UNet
from pynade.ordering import Ordering
from pynade.training import Gradient, Member, fit, fit_population
from pynade.training.population import Population, ScoredRows

D = 6


def rows(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.rand(n, 1, generator=g) < 0.5
    return (torch.rand(n, D, generator=g) < torch.where(hidden, 0.8, 0.3)).to(torch.uint8)


def without_times(history):
    """A history as it is kept in files, but for wall times."""
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in history.epochs]
    return vars(history) | {"epochs": lines, "seconds": None}


def generator(seed):
    return torch.Generator().manual_seed(seed)


MODELS = {
    "nade": lambda s: Autoregressive(
        NADENet(D, hidden=5, generator=generator(s)), Bernoulli(), Ordering.random(D, generator=generator(s))
    ).double(),
    "fvsbn": lambda s: Autoregressive(
        FVSBNNet(D), Bernoulli(), Ordering.random(D, generator=generator(s))
    ).double(),
    "made": lambda s: Autoregressive(
        MADENet(D, hidden=(7,), generator=generator(s)),
        Bernoulli(),
        Ordering.random(D, generator=generator(s)),
    ).double(),
    "deepnade": lambda s: Orderless(
        MaskedMLP(D, hidden=(6, 5), generator=generator(s)), Bernoulli()
    ).double(),
    "nade-e": lambda s: Ensemble(
        NADENet(D, hidden=5, generator=generator(s)), Bernoulli(), Ordering.random(D, 3, generator(s))
    ).double(),
    "made-e": lambda s: Ensemble(
        MADENet(D, hidden=(7, 4), direct=True, generator=generator(s)),
        Bernoulli(),
        Ordering.random(D, 4, generator(s)),
    ).double(),
    "permuted": lambda s: Ensemble(
        CausalTransformer(D, width=4, depth=1, heads=2, generator=generator(s)),
        Bernoulli(),
        Ordering.random(D, 2, generator(s)),
        fresh=True,
    ).double(),
}

OPTIONS = {
    "sgd": Gradient(optimizer="sgd", schedule="linear", momentum=0.5, momentum_after=1, decay_on="input"),
    "adam": Gradient(optimizer="adam", schedule="inverse", clip=0.5, updates_per_epoch=3),
    "adamw": Gradient(optimizer="adamw", schedule="cosine", ema=0.9),
}


def settings(options, batch_size=16, epochs=6):
    """Four members' settings: every number that may differ does."""
    options = replace(options, batch_size=batch_size, epochs=epochs, patience=None)
    momentum = [0.5, 0.0, 0.9, 0.1] if options.optimizer == "sgd" else [0.0] * 4
    numbers = zip([0.05, 0.2, 0.1, 0.02], [0.0, 0.01, 0.1, 0.0], [0.0, 0.1, 0.01, 0.0], momentum, strict=True)
    return [
        replace(options, learning_rate=rate, weight_decay=decay, gamma=gamma, momentum=m)
        for rate, decay, gamma, m in numbers
    ]


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_member_ends_as_if_it_had_been_alone(build, options):
    if options.decay_on == "input" and not getattr(build(0).net, "input_weights", ()):
        options = replace(options, decay_on="all")
    folds = [(rows(50, 1), rows(20, 2)), (rows(50, 3), rows(17, 4))]
    members = [Member(build(k), *folds[k % 2], own, seed=k // 2) for k, own in enumerate(settings(options))]
    alone = [copy.deepcopy(m.model) for m in members]
    histories = fit_population(members)
    for k, (member, model) in enumerate(zip(members, alone, strict=True)):
        history = fit(model, member.train, member.valid, member.options, seed=member.seed)
        assert histories[k].best_epoch == history.best_epoch
        assert histories[k].stopped == history.stopped
        for mine, its in zip(histories[k].epochs, history.epochs, strict=True):
            assert mine["train"] == pytest.approx(its["train"], rel=1e-10)
            assert mine["valid"] == pytest.approx(its["valid"], rel=1e-10)
        for name, p in model.named_parameters():
            torch.testing.assert_close(dict(member.model.named_parameters())[name], p, rtol=1e-8, atol=1e-10)


def test_members_stop_each_at_its_own_time_and_the_stack_shrinks():
    train, valid = rows(60), rows(30, 1)
    options = Gradient(batch_size=20, epochs=40, learning_rate=0.3, patience=3)
    several = [
        options,
        replace(options, patience=8),
        replace(options, learning_rate=0.001),
        replace(options, stop_at_train=-4.0),
    ]
    members = [Member(MODELS["nade"](k), train, valid, h) for k, h in enumerate(several)]
    alone = [copy.deepcopy(m.model) for m in members]
    running = []

    def count(now):
        if now.epoch_done:
            running.append(sum(not history.stopped for history in now.histories))

    histories = fit_population(members, callbacks=[count])
    lengths = []
    for k, (member, model) in enumerate(zip(members, alone, strict=True)):
        history = fit(model, train, valid, member.options)
        assert histories[k].stopped == history.stopped
        assert len(histories[k].epochs) == len(history.epochs)
        assert histories[k].best_valid == pytest.approx(history.best_valid, rel=1e-9)
        lengths.append(len(history.epochs))
    assert len(set(lengths)) > 2  # they did stop at different times
    assert running == [sum(length > epoch for length in lengths) for epoch in range(max(lengths))]


def members_that_drop(rates):
    """Nets of one seed that drop these shares of their activations."""
    train, valid = rows(60), rows(30, 1)
    options = Gradient(batch_size=20, epochs=5, learning_rate=0.05)
    nets = [MaskedMLP(D, hidden=(16, 9), dropout=rate, generator=generator(0)) for rate in rates]
    return [Member(Orderless(net, Bernoulli()).double(), train, valid, options) for net in nets]


def test_members_may_drop_different_shares():
    members = members_that_drop([0.0, 0.5, 0.5, 0.0])
    histories = fit_population(members)
    ends = [-history.epochs[-1]["train"] for history in histories]
    assert ends[0] == pytest.approx(ends[3], rel=1e-12)  # the same net on the same rows, without noise
    assert ends[1] != ends[2]  # noise of their own
    assert min(ends[1], ends[2]) > ends[0]
    assert [m.model.net.dropout for m in members] == [0.0, 0.5, 0.5, 0.0]


def test_members_drop_the_given_shares():
    members = members_that_drop([0.1, 0.6])
    for net in (m.model.net for m in members):  # nine units of value 1, of which every output is the mean
        net.weights[0].data.zero_()
        net.hidden_bias[1].data.fill_(1.0)
        net.output.data.fill_(1 / 9)
    population = Population([m.model for m in members])
    x = torch.zeros(2, 4000, D, dtype=torch.float64)
    loss = population.row_loss(x, torch.zeros(2, 4000, D, dtype=torch.bool), generator(1))
    eta = (loss / D).expm1().log()  # the loss of a zero is log(1 + exp(eta))
    assert eta.mean(1).tolist() == pytest.approx([1.0, 1.0], abs=0.03)
    # a unit is 0 or 1 / (1 - rate)
    assert eta.var(1).tolist() == pytest.approx([0.1 / 0.9 / 9, 0.6 / 0.4 / 9], rel=0.1)


def test_one_that_diverges_leaves_the_others_alone():
    train, valid = rows(60), rows(30, 1)
    options = Gradient(optimizer="sgd", batch_size=20, epochs=4, learning_rate=0.1)
    wild = replace(options, weight_decay=1e40)
    members = [Member(MODELS["nade"](0), train, valid, h) for h in (options, wild)]
    alone = copy.deepcopy(members[0].model)
    histories = fit_population(members)
    fit(alone, train, valid, options)
    assert histories[1].stopped == "diverged"
    assert all(bool(torch.isfinite(p).all()) for p in members[1].model.parameters())
    torch.testing.assert_close(members[0].model.net.weight, alone.net.weight, rtol=1e-9, atol=1e-12)


def test_an_interrupted_population_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", 0.0)

    def members():
        options = Gradient(batch_size=20, epochs=9, learning_rate=0.1, patience=None, ema=0.9)
        several = [options, replace(options, stop_at_train=-10.0), replace(options, stop_at_train=-10.0)]
        return [Member(MODELS["deepnade"](k), train, valid, h, seed=k) for k, h in enumerate(several)]

    class Killed(Exception):
        pass

    def kill(now):
        if now.epoch == 5:
            raise Killed

    train, valid = rows(60), rows(30, 1)
    whole, pieces = members(), members()
    expected = fit_population(whole)
    with pytest.raises(Killed):
        fit_population(pieces, folder=tmp_path, callbacks=[kill])
    fresh = members()
    got = fit_population(fresh, folder=tmp_path, resume=True)
    for mine, its in zip(got, expected, strict=True):
        assert without_times(mine) == without_times(its)
    assert torch.equal(fresh[0].model.net.weight, whole[0].model.net.weight)
    assert list(tmp_path.iterdir()) == []


def test_without_validation_rows_the_last_weights_are_kept():
    options = Gradient(batch_size=30, epochs=3)
    member = Member(MODELS["nade"](0), rows(60), None, options)
    alone = copy.deepcopy(member.model)
    histories = fit_population([member])
    fit(alone, member.train, None, options)
    assert histories[0].best_epoch == 3
    torch.testing.assert_close(member.model.net.weight, alone.net.weight, rtol=1e-9, atol=1e-12)


def test_sets_of_different_sizes_have_epochs_of_one_length():
    options = Gradient(batch_size=30, epochs=2, learning_rate=0.05)
    members = [Member(MODELS["nade"](0), rows(n), None, options) for n in (70, 40)]
    alone = [copy.deepcopy(m.model) for m in members]
    fit_population(members)
    for member, model in zip(members, alone, strict=True):  # three updates each, as the larger needs
        fit(model, member.train, None, replace(options, updates_per_epoch=3))
        torch.testing.assert_close(member.model.net.weight, model.net.weight, rtol=1e-9, atol=1e-12)


def test_weights_that_are_not_finite_are_not_kept():
    options = Gradient(optimizer="sgd", batch_size=60, epochs=1, learning_rate=1e38)
    model = MODELS["nade"](0).float()
    before = model.net.weight.clone()
    options = replace(options, weight_decay=1e38)
    histories = fit_population([Member(model, rows(60), None, options)])
    assert [history.stopped for history in histories] == ["diverged"]
    assert torch.equal(model.net.weight, before)


def test_ensembles_are_scored_under_all_their_orderings_together_or_one_by_one(monkeypatch):
    train, valid = rows(60), rows(30, 1)
    options = Gradient(batch_size=20, epochs=2)
    ends = []
    for limit in (1, 1 << 17):
        monkeypatch.setattr("pynade.models.autoregressive.CPU_NUMBERS", limit)
        members = [Member(MODELS["made-e"](k), train, valid, options) for k in range(3)]
        assert members[0].model.orderings_at_once(30, 3) == (1 if limit == 1 else 4)
        histories = fit_population(members)
        exact = [member.model.log_prob(valid).mean().item() for member in members]
        np.testing.assert_allclose([history.best_valid for history in histories], exact, rtol=1e-10)
        ends.append(exact)
    np.testing.assert_allclose(*ends, rtol=1e-10)
    assert len(set(exact)) == 3


def test_what_cannot_be_one_population_is_refused():
    train = rows(60)
    options = Gradient(batch_size=30, epochs=3)
    three = Member(MODELS["nade-e"](0), train, None, options)
    two = Member(Ensemble(three.model.net, Bernoulli(), three.model.orderings[:2]), train, None, options)
    one = Member(MODELS["nade"](0), train, None, options)
    for others, words in (
        ([], "at least one member"),
        ([one, Member(MODELS["fvsbn"](0), train, None, options)], "one architecture"),
        (
            [one, Member(MODELS["nade"](1), train, None, replace(options, batch_size=10))],
            "may differ only in",
        ),
        ([one, Member(MODELS["nade"](1), train, train, options)], "all members"),
        ([three, two], "one architecture"),
    ):
        with pytest.raises(ValueError, match=words):
            fit_population(others)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # maps made larger one member at a time
def test_image_nets_end_in_a_population_as_alone():
    x, options = rows(30).double(), Gradient(epochs=2, batch_size=10)
    small = {"width": 8, "groups": 2, "multipliers": (1, 2), "blocks": 1, "heads": 2, "dropout": 0.0}
    nets = [UNet((2, 3), **small, generator=generator(s)) for s in range(2)]
    together = [Orderless(net, Bernoulli()).double() for net in nets]
    alone = copy.deepcopy(together)
    fit_population([Member(model, x, x[:10], options, s) for s, model in enumerate(together)])
    for s, model in enumerate(alone):
        fit(model, x, x[:10], replace(options), seed=s)
        for a, b in zip(model.parameters(), together[s].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["causal", "permuted", "orderless"])
def test_what_a_net_drops_alone_it_drops_in_a_population(kind):
    def model(dropout):
        if kind == "orderless":
            return Orderless(MaskedMLP(D, hidden=(8,), dropout=dropout, generator=generator(1)), Bernoulli())
        net = CausalTransformer(D, width=8, depth=1, heads=2, dropout=dropout, generator=generator(1))
        if kind == "permuted":
            return Ensemble(net, Bernoulli(), Ordering.random(D, 2, generator(1)), fresh=True)
        return Autoregressive(net, Bernoulli(), Ordering.natural(D))

    x = rows(20).expand(2, -1, -1).float()
    losses = {}
    for dropout in (0.0, 0.5):
        population = Population([model(dropout), model(dropout)])
        for p in population.trained.values():
            p.data += 0.3 * torch.randn(p.shape, generator=generator(2))
        losses[dropout] = [population.loss(x, [generator(3)]).detach() for _ in range(2)]
    torch.testing.assert_close(losses[0.0][0], losses[0.0][1])
    assert not torch.allclose(losses[0.0][0], losses[0.5][0])


def test_members_whose_rows_are_large_are_scored_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(CausalTransformer, "rows_at_once", lambda net, device: 8)
    sizes, loss = [], Population.row_loss

    def noted(self, x, *drawn):
        sizes.append(x.shape[0] * x.shape[1])
        return loss(self, x, *drawn)

    monkeypatch.setattr(Population, "row_loss", noted)
    x = rows(30)
    models = [MODELS["permuted"](s) for s in range(2)]
    scores = ScoredRows(models[0], [x, x]).score(Population(models), range(2))
    assert max(sizes) == 8
    np.testing.assert_allclose(scores, [m.log_prob(x).mean().item() for m in models], rtol=0, atol=1e-12)
