"""TableNet: variables with levels and variables with numbers in one net, in both views."""

import itertools

import pytest
import torch

from pynade.families import PerColumn
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.nets import TableNet, stepwise
from pynade.ordering import Ordering
from pynade.store import load_density, save_density
from tests.contracts.cases import generator, shaken

LEVELS = [3, 0, 2, 0, 1, 5, 0]


def net(levels=LEVELS, n_params=6, n_features=3, hidden=(8, 8), **more):
    return shaken(TableNet(levels, n_params, n_features=n_features, hidden=hidden, **more), 1)


def features(rows, n_features=3, seed=2):
    """Indexes of levels, and numbers."""
    g = generator(seed)
    numbers = torch.randn(rows, len(LEVELS), n_features, generator=g, dtype=torch.float64)
    for i, n in enumerate(LEVELS):
        if n:
            numbers[:, i, 0] = torch.randint(n, (rows,), generator=g).double()
    return numbers


def test_both_views_agree_for_columns_of_both_kinds():
    model, x = net(), features(9)
    for ordering in (Ordering.natural(7), Ordering.random(7, generator=generator(3))):
        torch.testing.assert_close(model(x, ordering), stepwise(model, x, ordering), rtol=0, atol=1e-12)


def test_a_batch_steps_through_columns_of_both_kinds_at_once():
    model, x = net(), features(9)
    orderings = Ordering.random(7, k=9, generator=generator(4))
    assert len({LEVELS[int(i)] > 0 for i in orderings.order[:, 0]}) == 2
    together = stepwise(model, x, orderings)
    torch.testing.assert_close(model(x, orderings), together, rtol=0, atol=1e-12)
    for b in range(9):
        alone = stepwise(model, x[b : b + 1], orderings[b])
        torch.testing.assert_close(together[b : b + 1], alone, rtol=0, atol=1e-12)


def test_nothing_unobserved_is_seen():
    model, x = net(), features(4)
    for observed in itertools.islice(itertools.product([False, True], repeat=7), 0, 128, 9):
        known = torch.tensor(observed)
        other = features(4, seed=5)
        other[:, known] = x[:, known]
        other[:, ~known] = torch.where(torch.tensor(LEVELS)[~known, None] > 0, other[:, ~known], torch.nan)
        first, second = (model.conditionals(f, known.expand(4, 7)) for f in (x, other))
        assert torch.equal(first, second)


def test_every_observed_level_and_number_is_seen():
    model, x = net(), features(4)
    known = torch.ones(4, 7, dtype=torch.bool)
    for i, n in enumerate(LEVELS):
        other = x.clone()
        other[:, i, 0] = (x[:, i, 0] + 1) % n if n else x[:, i, 0] + 1
        moved = (model.conditionals(other, known) != model.conditionals(x, known)).any()
        assert bool(moved) == (n != 1)  # a column of one level says nothing
        hidden = known.clone()
        hidden[:, i] = False
        assert (model.conditionals(x, hidden) != model.conditionals(x, known)).any()


def test_outputs_beyond_a_column_are_its_bias():
    model = net(outputs=[3, 6, 2, 6, 1, 5, 6])
    eta = model.conditionals(features(4), torch.zeros(4, 7, dtype=torch.bool))
    for i, n in enumerate(model.outputs):
        assert torch.equal(eta[:, i, n:], model.bias[0, i, n:].expand(4, -1))
        assert (eta[:, i, :n] != model.bias[0, i, :n]).any()


def test_config_saved_and_loaded(tmp_path):
    import numpy as np

    codes = np.abs(np.random.default_rng(0).normal(size=(50, 7)))
    for i, n in enumerate(LEVELS):
        codes[:, i] = codes[:, i].round() % n if n else codes[:, i]
    codes[:, 3] = codes[:, 3].round()
    family = PerColumn.fitted(codes, LEVELS, [i == 3 for i in range(7)], [(0, None)] * 7, n_components=2)
    model = Orderless(
        net(n_params=family.n_params, n_features=family.n_features, dropout=0.1), family
    ).double()
    x = torch.as_tensor(codes)
    again = type(model.net)(**model.net.config())
    assert {n: p.shape for n, p in again.named_parameters()} == {
        n: p.shape for n, p in model.net.named_parameters()
    }
    for density in (
        model,
        model.under(Ordering.natural(7)),
        model.ensemble(Ordering.random(7, 2, generator(1))),
    ):
        save_density(density, tmp_path / "m.safetensors")
        loaded, _ = load_density(tmp_path / "m.safetensors")
        assert type(loaded) is type(density)
        if isinstance(density, Autoregressive | Ensemble):
            assert torch.equal(loaded.log_prob(x), density.log_prob(x))


def test_layers_of_different_widths_are_refused():
    with pytest.raises(ValueError, match=r"hidden layers of one width, not \(3, 4\)"):
        TableNet([0, 2], 3, hidden=(3, 4))
    with pytest.raises(ValueError, match="hidden layers of one width"):
        TableNet([0, 2], 3, hidden=())
