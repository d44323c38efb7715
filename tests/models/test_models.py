import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pynade.families import Bernoulli, Categorical, MixtureOfGaussians
from pynade.models import Autoregressive, Ensemble, Independent, Mixture
from pynade.nets import FVSBNNet, MADENet, MaskedMLP, NADENet
from pynade.ordering import Ordering


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Autoregressive(NADENet(3), Bernoulli(), Ordering.natural(4)), "ordering has 4 variables"),
        (lambda: Autoregressive(NADENet(3, n_params=2), Bernoulli(), Ordering.natural(3)), "n_params=1"),
        (lambda: Autoregressive(NADENet(3), Bernoulli(), Ordering.random(3, k=2)), "Ensemble"),
        (lambda: Ensemble(NADENet(3), Bernoulli(), Ordering.natural(3)), "Autoregressive"),
        (
            lambda: Ensemble(NADENet(3), Bernoulli(), Ordering.random(3, 2), fresh=True),
            "one ordering at a time",
        ),
        (lambda: Mixture([]), "at least one component"),
        (lambda: Mixture([Independent(Bernoulli(), 2), Independent(Bernoulli(), 3)]), r"\[2, 3\]"),
        (lambda: Mixture([Independent(Bernoulli(), 2)], weights=[-1.0]), "positive finite weight"),
        (lambda: Mixture([Independent(Bernoulli(), 2)], weights=[math.inf]), "positive finite weight"),
        (lambda: Mixture([Independent(Bernoulli(), 2)], weights=[1 + 2j]), "positive finite weight"),
        (lambda: Mixture([Independent(Bernoulli(), 2)], weights=[10**400]), "positive finite weight"),
        (lambda: NADENet(3, hidden=0), "hidden must be at least 1"),
        (lambda: NADENet(3, hidden=math.inf), "hidden must be whole numbers up to 16,777,216, not inf"),
        (lambda: NADENet(3, hidden=(4, 4)), r"hidden must be whole numbers up to .*, not \(4, 4\)"),
        (lambda: MADENet(3, hidden=(4, math.nan)), "hidden must be whole numbers up to .*, not nan"),
        (lambda: MADENet(3, hidden=10**30), "hidden must be whole numbers up to .*, not 1000"),
        (lambda: MaskedMLP(3, hidden=2.5), "hidden must be whole numbers up to .*, not 2.5"),
        (lambda: MaskedMLP(3, hidden="12"), "hidden must be whole numbers up to .*, not '1'"),
        (lambda: NADENet(0), "n_variables must be at least 1"),
        (lambda: NADENet(3, activation="softmax"), "known: sigmoid"),
        (lambda: MADENet(3, hidden=(4, 0)), "at least one unit"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_conditional_means_are_the_probabilities_of_each_value():
    model = Autoregressive(NADENet(4, hidden=3), Bernoulli(), Ordering([2, 0, 3, 1]))
    x = torch.tensor([[0, 1, 1, 0]])
    p = model.conditional_means(x)
    log_p = torch.where(x.bool(), p, 1 - p).log().sum()
    assert log_p.item() == pytest.approx(model.log_prob(x).item(), rel=1e-5)


def test_mixture_weights_are_normalised_and_kept_in_double():
    model = Mixture([Independent(Bernoulli(), 2), Independent(Bernoulli(), 2)], weights=[1, 3])
    torch.testing.assert_close(model.log_weights.exp(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert model.dtype == torch.float32


def test_nade_sampling_work_is_linear_in_d():
    """One predict and one observe per variable, whatever D: O(HD) per sample, not O(HD²)."""
    calls = []

    class Counting(NADENet):
        def predict(self, state, i):
            calls.append(state["a"].shape)
            return super().predict(state, i)

    model = Autoregressive(Counting(50, hidden=6), Bernoulli(), Ordering.natural(50))
    model.sample(9, torch.Generator().manual_seed(0))
    assert calls == [(1, 9, 6)] * 50


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


ENSEMBLES = {
    "nade": (NADENet, Bernoulli()),
    "fvsbn": (FVSBNNet, Bernoulli()),
    "made": (MADENet, Bernoulli()),
    "made-categorical": (MADENet, Categorical(3)),
    "made-mog": (MADENet, MixtureOfGaussians(2)),
    "mlp": (MaskedMLP, Bernoulli()),
}


def ensemble(name, K=5, D=6):
    kind, family = ENSEMBLES[name]
    net = kind(D, n_params=family.n_params, n_features=family.n_features).double()
    for n, p in enumerate(net.parameters()):
        p.data.normal_(0, 0.5, generator=generator(n))
    x = torch.randint(2, (9, D), generator=generator()).double()
    return Ensemble(net, family, Ordering.random(D, K, generator())), x


@pytest.mark.parametrize("name", ENSEMBLES)
def test_orderings_computed_together_are_those_computed_one_by_one(name):
    model, x = ensemble(name)
    each = torch.stack([model.member(k).log_prob(x) for k in range(5)], -1)
    together = range(1, 6) if name != "mlp" else [1]  # a net that walks is not asked for more
    assert model.orderings_at_once(len(x)) == together[-1]
    for at_once in together:
        torch.testing.assert_close(model.member_log_probs(x, at_once), each, rtol=1e-12, atol=1e-12)
    log_p = torch.logsumexp(each, -1) - torch.tensor(5.0).double().log()
    torch.testing.assert_close(model.log_prob(x), log_p, rtol=1e-12, atol=1e-12)
    got = torch.autograd.grad(model.log_prob(x).sum(), list(model.parameters()))
    want = torch.autograd.grad(log_p.sum(), list(model.parameters()))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_orderings_computed_together_are_fewer_where_they_are_larger():
    small, large = (
        Ensemble(MADENet(D, hidden=H), Bernoulli(), Ordering.random(D, 300)) for D, H in ((8, 20), (784, 500))
    )
    counts = [
        small.orderings_at_once(rows, members) for rows, members in ((1, 1), (100, 1), (500, 1), (100, 9))
    ]
    assert counts[0] == 300
    assert 300 > counts[1] > counts[2] > counts[3] > 1
    assert small.orderings_at_once(10**6) == large.orderings_at_once(1) == 1


class HostAsks(TorchDispatchMode):
    """Counts how often the host asks for a value, or a shape that depends on one: on a GPU it would wait."""

    asked = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.asked += func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [n for n in ENSEMBLES if n != "mlp"])
def test_the_host_never_learns_which_ordering_an_update_has_drawn(name):
    model, x = ensemble(name)
    if name == "nade":
        model.net.kernel = "reference"  # the fused one of the CPU is a program of the host
    with HostAsks() as host:
        loss = model.loss(x, generator(3))
        torch.autograd.grad(loss.sum(), list(model.parameters()))
    assert host.asked == 0
    with host:
        x[x > int(torch.ones(1))]
    assert host.asked > 0  # it would have been noticed
    k = int(torch.randint(5, (1,), generator=generator(3)))
    torch.testing.assert_close(loss, -model.member(k).log_prob(x), rtol=1e-12, atol=1e-12)


def test_every_ordering_has_its_share_of_the_updates():
    model, x = ensemble("made", K=3)
    g = generator()
    losses = torch.stack([model.loss(x, g) for _ in range(300)])
    each = -torch.stack([model.member(k).log_prob(x) for k in range(3)])
    same = torch.isclose(losses[:, None], each, rtol=1e-12).all(-1)
    assert (same.sum(1) == 1).all()
    assert same.sum(0).min() > 70  # 100 expected, with a standard deviation of 8


@pytest.mark.parametrize("size", [5e-324, 1e38, 1.7e308])
def test_weights_of_a_mixture_of_any_size_are_shares(size):
    model = Mixture([Independent(Bernoulli(), 2)] * 2, weights=[size, size])
    torch.testing.assert_close(model.log_weights.exp(), torch.full((2,), 0.5, dtype=torch.float64))
