"""The any-order nets on a GPU: the same numbers, in bf16, and captured without a synchronisation."""

import pytest
import torch

from pynade.nets import CausalTransformer, Hybrid, MaskedConv, MaskedMLP, Transformer, UNet
from pynade.nets.norm import add_norm, norm_silu
from pynade.ordering import Ordering
from tests.contracts.cases import generator, shaken

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
