"""Small models and rows on a GPU that several tests share."""

import torch

from pynade.families import Bernoulli, DiscretisedLogistic, MixtureOfGaussians
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.nets import CausalTransformer, MADENet, MaskedMLP, NADENet, UNet
from pynade.ordering import Ordering

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


def transformer(kind):
    """A causal transformer of real numbers under one ordering, or ("permuted") a fresh one for each row."""
    columns = (
        80 if kind == "permuted" else 20
    )  # with so many, gradients of embeddings are computed by sorting
    net = CausalTransformer(columns, 6, width=16, depth=2, heads=2, dropout=0.1)
    for p in net.parameters():
        p.data = 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    family = MixtureOfGaussians(2)
    if kind == "permuted":
        return Ensemble(net, family, Ordering.random(columns, 2), fresh=True).cuda()
    return Autoregressive(net, family, Ordering.natural(columns)).cuda()


def trained(kind):
    """A model with training rows."""
    g = torch.Generator("cuda").manual_seed(3)
    if kind in ("unet", "grey"):
        grey = DiscretisedLogistic(2, levels=16)
        return (unet(), images(200)) if kind == "unet" else (unet(grey), (images(200) * 17) % 16)
    if kind.startswith("real-"):
        m = transformer(kind.removeprefix("real-"))
        return m, torch.randn(200, m.n_variables, device="cuda", generator=g)
    return model(kind), (torch.rand(500, 30, device="cuda", generator=g) < 0.3).to(torch.uint8)
