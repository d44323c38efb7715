"""Models of images on a GPU: bf16, captured updates, scores, samples."""

import copy

import numpy as np
import pytest
import torch

import pynade
from pynade.evaluation import many_at_once_gap, score_orderings
from pynade.families import Bernoulli, DiscretisedLogistic, MixtureOfGaussians
from pynade.likelihood import orderless_estimate
from pynade.models import Autoregressive, Ensemble, Orderless, sample_many
from pynade.nets import CausalTransformer, MaskedConv, NADENet, UNet
from pynade.nets.any_order import AnyOrderNet
from pynade.ordering import Ordering
from pynade.precision import computing_in
from pynade.training import Gradient, fit
from pynade.training.optimizer import Optimizer
from pynade.training.step import Step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIDE = 12
D = SIDE * SIDE


def unet(family=None, dropout=0.1):
    family = family or Bernoulli()
    g = torch.Generator().manual_seed(0)
    net = UNet((SIDE, SIDE), family.n_params, width=16, groups=4, heads=2, dropout=dropout, generator=g)
    for p in net.parameters():  # nothing stays silent
        p.data += 0.05 * torch.randn(p.shape, generator=g)
    return Orderless(net, family).cuda()


def images(n, seed=1):
    g = torch.Generator("cuda").manual_seed(seed)
    return (torch.rand(n, D, device="cuda", generator=g) < 0.3).to(torch.uint8)


@pytest.mark.parametrize("kind", ["unet", "grey", "causal", "permuted"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_captured_step_equals_eager_step(kind, precision):
    """Dropout, prefixes and shuffling come from one generator, which the graph draws from too."""
    x = images(200)
    if kind == "grey":
        x = (x * 17) % 16
    how = Gradient(optimizer="adamw", clip=1.0, ema=0.9, batch_size=50, precision=precision)
    ends = []
    for capture in (False, True):
        if kind in ("causal", "permuted"):
            columns = 20 if kind == "causal" else 80  # so many that embeddings take their sorting way back
            net = CausalTransformer(columns, 6, width=16, depth=2, heads=2, dropout=0.1)
            for p in net.parameters():
                p.data = 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
            m = Autoregressive(net, MixtureOfGaussians(2), Ordering.natural(columns)).cuda()
            if kind == "permuted":
                m = Ensemble(net, m.family, Ordering.random(columns, 2), fresh=True).cuda()
            rows = torch.randn(200, columns, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
        else:
            m, rows = unet(DiscretisedLogistic(2, levels=16) if kind == "grey" else None), x
        params = dict(m.named_parameters())
        g = torch.Generator("cuda").manual_seed(2)
        step = Step(m, rows, how, g, Optimizer("adamw", params, {}), capture=capture)
        for _ in range(8):
            step(torch.randperm(200, generator=g, device="cuda")[:50], 1e-3, 0.0)
        assert (step.graph is not None) == capture
        assert all(p.dtype == torch.float32 for p in params.values())
        ends.append((float(step.loss_sum), torch.cat([p.detach().flatten() for p in params.values()])))
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-3 if precision == "float32" else 1e-2)
    assert (ends[0][1] - ends[1][1]).abs().mean() < 2e-4


def test_bf16_trains_as_float32_does():
    x = images(400)
    x[:, ::2] = x[:, 1::2]  # neighbours are equal: something to learn
    scores = {}
    for precision in ("float32", "bf16"):
        m = unet(dropout=0.0)
        how = Gradient(
            epochs=10, batch_size=50, learning_rate=2e-3, warm_up=10, clip=1.0, precision=precision
        )
        history = fit(m, x, x[:100], how, seed=1)
        scores[precision] = history.epochs[-1]["valid_nll"]
        assert scores[precision] < history.epochs[0]["valid_nll"] - 1
    assert scores["bf16"] == pytest.approx(scores["float32"], rel=0.05)


def test_scores_in_fewer_bits_are_close_and_log_probabilities_are_not_rounded():
    m, x = unet(), images(20)
    orderings = Ordering.random(D, k=2, generator=torch.Generator().manual_seed(3))
    exact = score_orderings(m.double(), x, orderings).log_probs
    m.float()
    for precision, close in (("float32", 0.05), ("tf32", 0.05), ("bf16", 1.0)):
        scores = score_orderings(m, x, orderings, precision=precision).log_probs
        assert np.abs(scores - exact).max() < close
        assert abs(scores.mean() - exact.mean()) < close / 3
    parts = score_orderings(m, x, orderings, rows_at_once=7, precision="bf16").log_probs
    np.testing.assert_allclose(parts, scores, rtol=0, atol=0.3)
    a, b = (orderless_estimate(m, x, draws=8, precision=p) for p in ("float32", "bf16"))
    assert a.mean == pytest.approx(b.mean, abs=0.3)


def test_as_many_rows_as_fit_do_fit():
    for net in (UNet((28, 28)), MaskedConv((28, 28))):
        net = net.cuda()
        n = net.rows_at_once(torch.device("cuda"))
        assert n > 500
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            observed = torch.rand(n, 784, device="cuda") < 0.5
            net.conditionals(torch.ones(n, 784, 1, device="cuda"), observed)
        total = torch.cuda.get_device_properties(0).total_memory
        assert torch.cuda.max_memory_allocated() < 0.5 * total


def test_samples_along_orderings_of_their_own():
    m = unet()
    g = torch.Generator("cuda").manual_seed(1)
    x = sample_many(m, 30, 16, g, precision="bf16")
    assert x.shape == (30, D)
    assert x.device.type == "cuda"
    assert ((x == 0) | (x == 1)).all()
    gaps = many_at_once_gap(m, x, (1, 16), torch.Generator().manual_seed(2))
    assert gaps[1].mean == 0
    assert np.isfinite(gaps[16].mean)


def test_a_fixed_order_recurrence_stays_float32():
    x = images(100)[:, :30]
    m = Autoregressive(NADENet(30, hidden=20), Bernoulli(), Ordering.natural(30)).cuda()
    history = fit(m, x, x, Gradient(epochs=2, batch_size=50, precision="bf16"), seed=1)
    assert np.isfinite(history.best_valid)


def test_estimators_on_the_gpu():
    X = images(300).cpu().numpy()
    small = {"width": 16, "groups": 4, "heads": 2, "blocks": 1, "epochs": 3, "random_state": 0}
    model = pynade.ImageNADE(**small, device="cuda").fit(X)
    there = model.score_samples(X[:10])
    here = model.set_params(device="cpu").score_samples(X[:10])
    np.testing.assert_allclose(there, here, rtol=0, atol=0.5)
    assert model.set_params(device="cuda").sample(4, per_step=8).shape == (4, D)
    assert model.impute(np.where(np.arange(D) < 20, np.nan, X[:2].astype(float)), 2).shape == (2, 2, D)


def test_standardised_rows_of_the_host_are_scored_on_the_gpu():
    X = np.random.default_rng(0).normal(3, 2, (60, 5))
    small = {"width": 16, "heads": 2, "depth": 1, "epochs": 2, "random_state": 0}
    model = pynade.TransformerNADE(**small, device="cuda").fit(X)
    there = model.score_samples(X[:10], orderings=3)
    gaps = many_at_once_gap(model.model_, torch.as_tensor(X[:10]), (1, 2))
    assert gaps[1].mean == 0
    assert np.isfinite(gaps[2].mean)
    here = model.set_params(device="cpu").score_samples(X[:10], orderings=3)
    np.testing.assert_allclose(there, here, rtol=0, atol=0.01)


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-4), ("tf32", 0.05), ("bf16", 0.1)])
def test_windows_of_the_papers_net_on_a_gpu(precision: str, near: float) -> None:
    """Each group at a pixel of its own, corners and the middle, against the whole net in float64."""
    g = torch.Generator().manual_seed(0)
    net = MaskedConv((28, 28), generator=g)
    features = (torch.rand(3, 40, 784, 1, generator=g) < 0.3).float()
    observed = torch.rand(3, 40, 784, generator=g) < 0.5
    i = torch.tensor([0, 406, 783])
    with torch.no_grad():
        exact = AnyOrderNet.predict(
            copy.deepcopy(net).double(), {"features": features.double(), "observed": observed}, i
        )
        net.cuda()
        state = {"features": features.cuda(), "observed": observed.cuda()}
        with computing_in(precision, torch.device("cuda")):
            found = net.predict(state, i.cuda())
    worst = (found.cpu().double() - exact).abs().max() / exact.std()
    assert worst < near
