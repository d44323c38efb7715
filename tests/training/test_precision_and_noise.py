"""Warm-up, precision, the dropout of fixed-order nets, and rows that are drawn fresh at every epoch."""

import pytest
import torch

from pynade.families import Bernoulli, Categorical, MixtureOfGaussians
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.nets import CausalTransformer, MADENet, MaskedConv, MaskedMLP
from pynade.ordering import Ordering
from pynade.precision import computing_in, fast_matmul
from pynade.training import Gradient, fit
from pynade.training.step import match_layout
from pynade_paper.data.patches import Patches
from tests.contracts.cases import ANY_ORDER, NETS, generator


def test_the_rate_rises_and_then_follows_the_schedule():
    options = Gradient(learning_rate=0.2, schedule="cosine", warm_up=10)
    rates = [options.rate(t, 100) for t in range(100)]
    plain = [Gradient(learning_rate=0.2, schedule="cosine").rate(t, 100) for t in range(100)]
    for t in range(10):
        assert rates[t] == pytest.approx(plain[t] * (t + 1) / 10)
    assert rates[10:] == plain[10:]
    assert rates[-1] < 0.001
    assert max(rates) == rates[9] or max(rates) == rates[10]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"warm_up": -1}, "warm_up must be at least 0"), ({"precision": "fp8"}, "unknown precision 'fp8'")],
)
def test_bad_settings(options, words):
    with pytest.raises(ValueError, match=words):
        Gradient(**options)


def test_bf16_has_no_effect_on_a_cpu():
    x = (torch.rand(60, 9, generator=generator()) < 0.4).float()
    ends = []
    for precision in ("float32", "bf16"):
        g = generator(1)
        model = Orderless(MaskedConv((3, 3), blueprint="4@3x3(same)->1@3x3(same)", generator=g), Bernoulli())
        history = fit(model, x, x, Gradient(epochs=2, batch_size=20, precision=precision), seed=3)
        ends.append((history.epochs[-1]["valid"], torch.cat([p.flatten() for p in model.parameters()])))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])
    with (
        pytest.raises(ValueError, match="unknown precision 'half'"),
        computing_in("half", torch.device("cpu")),
    ):
        pass


def test_float32_is_meant_of_convolutions_too_but_training_may_round():
    here, gpu = torch.backends.cudnn, torch.device("cuda")
    before = here.allow_tf32
    with computing_in("float32", gpu):
        assert not here.allow_tf32
    with computing_in("tf32", gpu):
        assert here.allow_tf32
    with fast_matmul(), computing_in("float32", gpu):
        assert here.allow_tf32
    assert here.allow_tf32 == before


def test_blocks_of_several_threads_end_in_any_order_and_leave_nothing_behind():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    first, second = fast_matmul(), fast_matmul()  # as of two threads: the first to begin is the first to end
    for block in (first, second):
        block.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "high"
    second.__exit__(None, None, None)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


@pytest.mark.parametrize("name", NETS)
def test_families_never_see_bfloat16(name):
    """Under torch's autocast a model's log-probabilities are those of its rounded net, not rounded ones."""
    family = Categorical(3)
    net = NETS[name](9, n_params=3, n_features=3)
    for p in net.parameters():
        p.data = 0.3 * torch.randn(p.shape, generator=generator(2))
    x = torch.randint(3, (6, 9), generator=generator()).float()
    models = [Autoregressive(net, family, Ordering.natural(9)), Ensemble(net, family, Ordering.random(9, 2))]
    exact = [m.log_prob(x) for m in models]
    seen = []
    plain = family.log_prob
    family.log_prob = lambda x, eta, i=None: (seen.append(eta.dtype), plain(x, eta, i))[1]
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        short = [m.log_prob(x) for m in models]
        losses = [m.loss(x, generator()) for m in models]
        if name in ANY_ORDER:
            observed = torch.rand(6, 9, generator=generator(4)) < 0.5
            losses.append(Orderless(net, family).loss_given(x, observed & ~observed.all(1, keepdim=True)))
    assert set(seen) == {torch.float32}
    assert all(loss.dtype == torch.float64 for loss in losses)
    for a, b in zip(exact, short, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.15)


def causal(dropout):
    net = CausalTransformer(5, 6, width=8, depth=2, heads=2, dropout=dropout, generator=generator())
    net.output.data.normal_(generator=generator(1))
    return Autoregressive(net, MixtureOfGaussians(2), Ordering.natural(5))


def made(dropout):
    net = MADENet(5, 6, hidden=(8, 8), dropout=dropout, generator=generator())
    return Autoregressive(net, MixtureOfGaussians(2), Ordering.natural(5))


@pytest.mark.parametrize("causal", [causal, made])
def test_dropout_acts_where_a_generator_is_passed_and_nowhere_else(causal):
    model, x = causal(0.5), torch.randn(7, 5, generator=generator(2))
    torch.testing.assert_close(model.loss(x), -model.log_prob(x))
    noisy = [model.loss(x, generator(seed)) for seed in (3, 3, 4)]
    assert torch.equal(noisy[0], noisy[1])
    assert not torch.allclose(noisy[0], noisy[2])
    assert not torch.allclose(noisy[0], model.loss(x))
    torch.testing.assert_close(causal(0.0).loss(x, generator(3)), causal(0.0).loss(x))
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\)"):
        causal(1.0)


@pytest.mark.parametrize("causal", [causal, made])
def test_dropout_keeps_what_comes_later_out(causal):
    """With the same noise, the loss of a prefix does not change when a later value does."""
    model, x = causal(0.5), torch.randn(7, 5, generator=generator(2))
    other = x.clone()
    other[:, 3:] = 9.0
    etas = [model.eta(rows, generator(5)) for rows in (x, other)]
    torch.testing.assert_close(etas[0][:, :4], etas[1][:, :4])
    assert not torch.allclose(etas[0][:, 4], etas[1][:, 4])


class Counted:
    """A source that remembers what it drew."""

    def __init__(self, source):
        self.source, self.drawn = source, []

    n_variables = property(lambda self: self.source.n_variables)

    def draw(self, n, generator):
        rows = self.source.draw(n, generator)
        self.drawn.append(rows.clone())
        return rows

    def to(self, device):
        return self


class Killed(Exception):
    pass


def test_a_source_draws_fresh_rows_for_every_epoch_and_goes_on_with_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("pynade.training.checkpoint.CHECKPOINT_SECONDS", 0.0)
    pictures = [torch.randint(256, (20, 20), dtype=torch.uint8, generator=generator()).numpy()]
    options = Gradient(epochs=4, updates_per_epoch=3, batch_size=10, learning_rate=1e-3)

    def train(folder=None, resume=False, callbacks=()):
        source = Counted(Patches.of(pictures, 4))
        net = MaskedMLP(source.n_variables, 6, hidden=5, generator=generator(1))
        model = Orderless(net, MixtureOfGaussians(2))
        fit(model, source, options=options, seed=2, folder=folder, resume=resume, callbacks=callbacks)
        return source.drawn, torch.cat([p.flatten() for p in model.parameters()])

    def kill(now):
        if now.epoch_done and now.epoch == 3:
            raise Killed

    drawn, weights = train()
    assert len(drawn) == 5  # a first draw that is checked, then one for every epoch
    assert all(rows.shape == (30, 15) for rows in drawn)
    assert all(not torch.equal(drawn[a], drawn[b]) for a in range(5) for b in range(a))
    with pytest.raises(Killed):
        train(tmp_path, callbacks=[kill])
    again, after = train(tmp_path, resume=True)
    assert torch.equal(after, weights)
    assert torch.equal(again[-1], drawn[-1])


def test_gradients_lie_in_memory_as_their_parameters_do():
    param = torch.randn(4, 3, 2, 2, generator=generator())
    grad = param.clone().contiguous(memory_format=torch.channels_last)
    assert grad.stride() != param.stride()
    assert match_layout(grad, param).stride() == param.stride()
    assert torch.equal(match_layout(grad, param), param)
    assert match_layout(param, param) is param
