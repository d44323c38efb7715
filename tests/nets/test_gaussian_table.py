"""Averages of nets of a table, and the net of a mixture of Gaussians with levels."""

import itertools
import math

import numpy as np
import pytest
import torch

from pynade.classical import table_em
from pynade.classical.table_em import SIZES, TableEM, em_table
from pynade.families import PerColumn
from pynade.models import Orderless
from pynade.nets import GaussianTableNet, TableBlend, TableNet, stepwise
from pynade.ordering import Ordering
from pynade.store import load_density, save_density
from tests.contracts.cases import generator, shaken

LEVELS = [3, 0, 2, 0, 0]


def rows(n=300, gaps=0.0, seed=0):
    """Numbers and levels that depend on each other."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4))
    group = rng.integers(0, 2, n)
    x = np.column_stack(
        [
            np.where(rng.random(n) < 0.8, group, 2),
            z[:, 0] + 2 * group,
            (z[:, 1] > 0).astype(float),
            z[:, 0] + 0.5 * z[:, 2],
            0.8 * z[:, 0] - 0.3 * z[:, 2] + 0.2 * z[:, 3] - group,
        ]
    )
    x[rng.random(x.shape) < gaps] = np.nan
    return x


def gaussian(n_components=3, seed=1):
    return em_table(rows(), LEVELS, n_components, seed=seed).double()


def table_net(members=3):
    made = TableNet(LEVELS, 6, [3, 6, 2, 6, 6], hidden=(8, 8), members=members)
    return shaken(made, 2)


def blend():
    return TableBlend([table_net(), gaussian()], [0.7, 0.3]).double()


NETS = {"members": table_net, "gaussian": gaussian, "blend": blend}


@pytest.fixture(params=NETS)
def net(request):
    return NETS[request.param]()


def log_likelihoods(learner, x):
    return torch.tensor([learner.log_likelihood(row[None]) for row in x], dtype=torch.float64)


def features(n=7):
    return torch.as_tensor(rows(n, seed=5)).unsqueeze(-1)


def test_both_views_agree(net):
    x = features()
    for ordering in (Ordering.natural(5), *Ordering.random(5, 3, generator(1))):
        eta, rank = stepwise(net, x, ordering), ordering.order.argsort()
        for i in range(5):
            observed = (rank < rank[i]).expand(len(x), -1)
            at_once = net.conditionals(x, observed)[:, i]
            used = torch.isfinite(at_once)
            torch.testing.assert_close(eta[:, i][used], at_once[used], rtol=1e-9, atol=1e-9)


def test_rows_with_orderings_of_their_own(net):
    x, orderings = features(), Ordering.random(5, 7, generator(2))
    together = stepwise(net, x, orderings)
    for b in range(7):
        alone = stepwise(net, x[b : b + 1], orderings[b])[0]
        used = torch.isfinite(alone)
        torch.testing.assert_close(together[b][used], alone[used], rtol=1e-9, atol=1e-9)


def test_what_is_not_observed_is_not_seen(net):
    x = features()
    for known in itertools.islice(itertools.product([False, True], repeat=5), 0, 32, 5):
        observed = torch.tensor(known).expand(len(x), -1)
        other = torch.where(observed.unsqueeze(-1), x, torch.nan)
        assert torch.equal(net.conditionals(x, observed), net.conditionals(other, observed))


def family(n_components):
    codes = rows()
    return PerColumn.fitted(codes, LEVELS, n_components=n_components)


def test_an_average_has_the_mean_probability():
    parts, weights = [table_net(), gaussian()], [0.7, 0.3]
    whole = TableBlend(parts, weights).double()
    x, observed = features(), torch.tensor([True, False, False, True, False]).expand(7, -1)
    y = torch.as_tensor(rows(7, seed=6))
    average_distributions = family(sum(whole.sizes)).log_prob(y, whole.conditionals(x, observed))
    each = [family(n.mixed_components).log_prob(y, n.conditionals(x, observed)) for n in parts]
    # every mixture has one fixed component, whose share is the same in the average
    mean = torch.logsumexp(
        torch.stack(each) + torch.tensor(weights, dtype=torch.float64).log().view(2, 1, 1), 0
    )
    torch.testing.assert_close(average_distributions, mean, rtol=1e-9, atol=1e-9)


def test_members_are_averaged_and_trained_each_for_itself():
    net = shaken(TableNet(LEVELS, 6, [3, 6, 2, 6, 6], hidden=(8, 8), members=3, n_features=7), 2)
    model = Orderless(net, family(6).with_components(net.mixed_components)).double()
    x, observed = torch.as_tensor(rows(9)), torch.tensor([True, False, True, False, False]).expand(9, -1)
    encoded = model.family.encode(x)
    etas = net.member_conditionals(encoded, observed)
    alone = torch.stack([family(2).log_prob(x, eta) for eta in etas])
    together = model.family.log_prob(x, net.conditionals(encoded, observed))
    torch.testing.assert_close(together, torch.logsumexp(alone, 0) - math.log(3), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.family.member_log_prob(x.expand(3, -1, -1), etas, 2), alone)


def test_a_member_learns_as_it_would_alone():
    """The gradient of a member's weights is a third of what it is in a net of that member only."""
    several = TableNet(LEVELS, 6, [3, 6, 2, 6, 6], hidden=(8, 8), n_features=7, members=3)
    several = shaken(several, 4, 0.3)
    alone = TableNet(LEVELS, 6, [3, 6, 2, 6, 6], hidden=(8, 8), n_features=7).double()
    alone.load_state_dict({n: t[1:2] if t.ndim and len(t) == 3 and n not in alone_buffers(alone) else t
                           for n, t in several.state_dict().items()})  # fmt: skip
    x, observed = torch.as_tensor(rows(20)), torch.rand(20, 5, generator=generator(3)) < 0.5
    observed[:, 0] = False
    for net, size in ((several, 6), (alone, 2)):
        model = Orderless(net, family(size)).double()
        model.loss_given(x, observed, generator(0)).mean().backward()
    torch.testing.assert_close(several.weight.grad[1:2], alone.weight.grad / 3)


def alone_buffers(net):
    return {name for name, _ in net.named_buffers()}


def test_the_config_builds_a_net_of_the_same_shape(net):
    again = type(net)(**net.config())
    assert {n: p.shape for n, p in again.state_dict().items()} == {
        n: p.shape for n, p in net.state_dict().items()
    }


def test_one_component_without_gaps_has_the_rows_moments():
    x = rows(4000)[:, [1, 3, 4]]
    net = em_table(x, [0, 0, 0], 1)
    np.testing.assert_allclose(net.mean[0], x.mean(0), atol=0.01)
    np.testing.assert_allclose(net.covariance[0], np.cov(x.T), atol=0.02)


def test_conditionals_are_those_of_the_gaussian():
    net, x = gaussian(1), features()
    observed = torch.tensor([False, True, False, False, True]).expand(7, -1)
    eta = net.conditionals(x, observed)[:, 3]
    mean, cov = net.mean[0], net.covariance[0]
    seen = [0, 2]  # among the numbers 1, 3, 4
    weights = torch.linalg.solve(cov[seen][:, seen], cov[seen][:, 1])
    expected = mean[1] + (x[:, [1, 4], 0] - mean[seen]) @ weights
    variance = cov[1, 1] - cov[1, seen] @ weights
    found = PerColumn(LEVELS, 2).double()
    pi, mu, sigma = found.axis.parameters_of(found._axis_eta(eta))
    pi, mu, sigma = pi[:, :2] / pi[:, :2].sum(1, keepdim=True), mu[:, :2], sigma[:, :2]
    torch.testing.assert_close((pi * mu).sum(1), expected)
    second = (pi * (mu**2 + sigma**2 * math.pi**2 / 3)).sum(1) - expected**2
    torch.testing.assert_close(second, variance.expand(7), rtol=0.05, atol=0)


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_em_never_lowers_its_objective_and_finds_structure(gaps):
    x = rows(500, gaps)
    learner = TableEM(x, LEVELS, 3, 1.0, 0)
    history = learner.run()[0]
    scores = [line["train"] for line in history.epochs]
    assert scores[-1] > scores[0] + 0.1
    assert min(np.diff(scores)) > -0.05  # the prior may cost a little likelihood
    other = TableEM(x, LEVELS, 1, 1.0, 0)
    other.run()
    fresh = rows(500, gaps, seed=9)
    assert learner.log_likelihood(fresh) / 500 > other.log_likelihood(fresh) / 500 + 0.1


def test_log_likelihoods_are_marginals():
    """Summed over a level, and integrated over a number, a row's probability is that without it."""
    learner = TableEM(rows(300), LEVELS, 2, 1.0, 0)
    learner.run()
    row = rows(1, seed=3)
    without = row.copy()
    without[0, 0] = np.nan
    each = np.repeat(row, 3, 0)
    each[:, 0] = range(3)
    total = torch.logsumexp(log_likelihoods(learner, each), 0)
    torch.testing.assert_close(total, log_likelihoods(learner, without)[0])
    grid = np.linspace(-12, 12, 2001)
    many = np.repeat(row, len(grid), 0)
    many[:, 3] = grid
    without = row.copy()
    without[0, 3] = np.nan
    mass = log_likelihoods(learner, many).exp().sum() * (grid[1] - grid[0])
    torch.testing.assert_close(mass.log(), log_likelihoods(learner, without)[0], rtol=1e-6, atol=1e-6)


def test_the_number_of_components_is_chosen():
    rng = np.random.default_rng(0)
    centre = rng.choice([-3.0, 0.0, 3.0, 6.0], 400)
    x = np.column_stack([centre + 0.1 * rng.normal(size=400), centre**2 / 9 + 0.1 * rng.normal(size=400)])
    assert em_table(x, [0, 0]).n_components in SIZES[2:]
    assert em_table(rng.normal(size=(200, 2)), [0, 0]).n_components == 1


@pytest.mark.parametrize("levels", [[0, 0, 0], [2, 3, 2]])
def test_tables_of_one_kind(levels):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)) if not any(levels) else rng.integers(0, 2, (60, 3)).astype(float)
    net = em_table(x, levels).double()
    eta = net.conditionals(torch.as_tensor(x[:4]).unsqueeze(-1), torch.zeros(4, 3, dtype=torch.bool))
    assert torch.isfinite(
        PerColumn(levels, net.mixed_components or 1).log_prob(torch.as_tensor(x[:4]), eta)
    ).all()


def test_a_blend_in_a_file(tmp_path):
    net = TableBlend(
        [TableNet([0, 2], 6, [6, 2], hidden=4, n_features=7), GaussianTableNet([0, 2], 2, 7)], [0.5, 0.5]
    )
    codes = rows(50)[:, [1, 2]]
    model = Orderless(net, PerColumn.fitted(codes, [0, 2], n_components=sum(net.sizes)))
    density = model.double().under(Ordering.natural(2))
    save_density(density, tmp_path / "m.safetensors")
    loaded, _ = load_density(tmp_path / "m.safetensors")
    x = torch.as_tensor(codes)
    assert torch.equal(loaded.log_prob(x), density.log_prob(x))


@pytest.mark.parametrize(("gaps", "folds"), [(0.0, True), (0.2, False)])
def test_a_wide_table_with_many_patterns_of_gaps_is_fitted_without_folds(gaps, folds, monkeypatch):
    x = np.random.default_rng(0).normal(size=(300, 60))
    x[np.random.default_rng(1).random(x.shape) < gaps] = np.nan
    sizes, call = [], table_em._cross_validate
    monkeypatch.setattr(table_em, "WORK_OF_FIT", 200 * 60**3)
    monkeypatch.setattr(table_em, "_cross_validate", lambda x, *rest: sizes.append(len(x)) or call(x, *rest))
    net = table_em.em_table(x, [0] * 60)
    assert bool(sizes) is folds
    assert net.n_components == 1
    few = table_em._subsample(x, [0] * 60, np.random.default_rng(0))
    assert len(few) == (300 if folds else 200)  # as many rows as patterns
