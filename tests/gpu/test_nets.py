"""Nets on a GPU: the same numbers, bf16, captured without a synchronisation; scores and samples of images."""

import copy

import numpy as np
import pytest
import torch

from pynade.evaluation import score_orderings
from pynade.kernels.attention import suits
from pynade.likelihood import orderless_estimate
from pynade.models import draw_blocks
from pynade.nets import AnyOrderNet, CausalTransformer, Hybrid, MaskedConv, MaskedMLP, Transformer, UNet
from pynade.nets.layers import add_norm, attend, norm_silu
from pynade.ordering import Ordering
from pynade.precision import computing_in
from pynade_benchmarks.per_step import block_sampling_gap
from tests.contracts.cases import generator, shaken

from .cases import D, images, unet

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SMALL = {"width": 16, "groups": 4, "blocks": 1, "dropout": 0.2}
BUILD = {
    "conv": lambda: MaskedConv((28, 28), dropout=0.2),
    "hybrid": lambda: Hybrid(MaskedConv((28, 28)), MaskedMLP(784, hidden=(50,), dropout=0.2)),
    "unet": lambda: UNet((28, 28), **SMALL),
    "transformer": lambda: Transformer(784, width=32, depth=2, heads=2, dropout=0.2),
}
every_net = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD.keys())


def rows(B=8):
    values = (torch.rand(B, 784, 1, generator=generator(1)) < 0.3).double()
    return values, torch.rand(B, 784, generator=generator(2)) < 0.5


@every_net
def test_the_same_eta_as_on_the_cpu(build):
    net = shaken(build(), scale=0.1)
    features, observed = rows()
    here = net.conditionals(features, observed)
    there = net.cuda().conditionals(features.cuda(), observed.cuda())
    torch.testing.assert_close(there.cpu(), here, rtol=1e-8, atol=1e-8)


@every_net
def test_about_the_same_eta_and_gradient_in_float32(build):
    """Convolutions may be TF32 there; the U-Net's norms are the fused kernel."""
    net = shaken(build(), scale=0.1).float()
    features, observed = rows()
    ends = []
    for device in ("cpu", "cuda"):
        net = net.to(device)
        eta = net.conditionals(features.float().to(device), observed.to(device))
        grads = torch.autograd.grad(eta.square().mean(), list(net.parameters()))
        ends.append([t.detach().cpu() for t in (eta, *grads)])
    for here, there in zip(*ends, strict=True):
        torch.testing.assert_close(there, here, rtol=2e-2, atol=2e-2 * float(here.abs().max()))


@pytest.mark.parametrize("maps", [8, 24, 64, 192])
@pytest.mark.parametrize("pixels", [1, 7, 28])
@pytest.mark.parametrize("own", [False, True], ids=["per row", "for all rows"])
def test_the_fused_norm_is_the_plain_one(maps, pixels, own):
    g, groups = torch.Generator("cuda").manual_seed(1), 8 if maps > 8 else 4
    h = torch.randn(5, maps, pixels, pixels, generator=g, device="cuda") + 0.3
    affine = torch.randn(*(() if own else (5,)), 2 * maps, generator=g, device="cuda")
    weight = torch.randn(h.shape, generator=g, device="cuda")
    ends = []
    for dtype in (torch.float64, torch.float32):  # float64 is plain torch
        given = [t.to(dtype).requires_grad_() for t in (h, affine)]
        y = norm_silu(*given, groups)
        grads = torch.autograd.grad((y * weight).sum(), given)
        ends.append([t.detach().double() for t in (y, *grads)])
    for plain, fused in zip(*ends, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4 * max(1.0, float(plain.abs().max())))
    half = norm_silu(h.bfloat16(), affine, groups)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), ends[0][0], rtol=0.05, atol=0.05)
    first, second = (norm_silu(h, affine, groups, dropout=0.5, noise=g) for _ in range(2))
    assert not torch.equal(first, second) or maps * pixels < 16
    if pixels == 28:
        assert abs((first == 0).double().mean().item() - 0.5) < 0.02


@pytest.mark.parametrize("width", [8, 384, 1000])
def test_the_fused_sum_and_norm_are_the_plain_ones(width):
    g = torch.Generator("cuda").manual_seed(1)
    h, more, one, two = torch.randn(4, 3, 7, width, generator=g, device="cuda") + 0.3
    ends = []
    for dtype in (torch.float64, torch.float32):
        given = [t.to(dtype).requires_grad_() for t in (h, more)]
        outs = (*add_norm(*given), add_norm(given[0])[1])
        loss = sum((out * weight).sum() for out, weight in zip(outs, (one, two, one), strict=True))
        ends.append([t.detach().double() for t in (*outs, *torch.autograd.grad(loss, given))])
    for plain, fused in zip(*ends, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    with torch.autocast("cuda", torch.bfloat16):
        assert [t.dtype for t in add_norm(h, more.bfloat16())] == [torch.float32, torch.bfloat16]
        assert add_norm(h, more, exact=True)[1].dtype == torch.float32


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("tokens", "heads", "width"), [(63, 6, 64), (49, 4, 32), (64, 1, 128), (5, 2, 16)])
def test_the_fused_attention_of_few_tokens_is_the_plain_one(tokens, heads, width, causal):
    g = torch.Generator("cuda").manual_seed(1)
    qkv = torch.randn(7, tokens, 3 * heads * width, generator=g, device="cuda").bfloat16()
    weight = torch.randn(7, tokens, heads * width, generator=g, device="cuda").bfloat16()
    assert suits(qkv, heads)
    ends = []
    for dtype in (torch.float64, torch.bfloat16):
        given = qkv.to(dtype).requires_grad_()
        out = attend(given, heads, causal)[0]
        ends.append([t.detach().double() for t in (out, *torch.autograd.grad(out, given, weight.to(dtype)))])
    for plain, fused in zip(*ends, strict=True):
        assert (fused - plain).norm() < 0.01 * plain.norm()


def test_a_causal_net_is_the_same_as_on_the_cpu():
    net = shaken(CausalTransformer(63, 4, width=32, depth=2, heads=2), scale=0.1)
    features = torch.randn(5, 63, 1, generator=generator(3), dtype=torch.float64)
    ordering = Ordering.random(63, generator=generator(4))
    here = net(features, ordering)
    there = net.cuda()(features.cuda(), ordering.to("cuda"))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@every_net
def test_gradients_in_bf16_are_captured_and_noise_is_fresh_at_every_replay(build):
    net = shaken(build(), scale=0.1).float().cuda()
    features, observed = (t.cuda() for t in rows())
    features, g = features.float(), torch.Generator("cuda").manual_seed(5)
    params = list(net.parameters())

    def gradients():
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            eta = net.conditionals(features, observed, g)
        loss = (eta - features).square().mean()
        return loss.detach(), torch.autograd.grad(loss, params)

    torch.cuda.set_sync_debug_mode("error")
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                gradients()
        torch.cuda.current_stream().wait_stream(side)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        loss, grads = gradients()
    losses = []
    for _ in range(3):
        graph.replay()
        losses.append(loss.item())
    assert len(set(losses)) == 3
    assert all(gradient.isfinite().all() for gradient in grads)


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
    x = draw_blocks(m, 30, 16, g, precision="bf16")[0]
    assert x.shape == (30, D)
    assert x.device.type == "cuda"
    assert ((x == 0) | (x == 1)).all()
    gaps = block_sampling_gap(m, x, (1, 16), torch.Generator().manual_seed(2))
    assert gaps[1].mean == 0
    assert np.isfinite(gaps[16].mean)


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
