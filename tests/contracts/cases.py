"""Every net and every density in one list: a new model joins here and is held to all contracts."""

import itertools

import torch

from pynade.classical import RBM, BernoulliMixture, ChowLiuTree, TreeMixture
from pynade.families import Bernoulli
from pynade.models import Autoregressive, Ensemble, Independent, Mixture
from pynade.nets import (
    CausalTransformer,
    FVSBNNet,
    Hybrid,
    MADENet,
    MaskedConv,
    MaskedMLP,
    NADENet,
    TableNet,
    Transformer,
    UNet,
)
from pynade.ordering import Ordering


def image_shape(D):
    """The squarest image of D pixels: 9 is 3 × 3, a prime is one row."""
    height = next(h for h in range(int(D**0.5), 0, -1) if D % h == 0)
    return height, D // height


def _conv(D, **kw):
    """A blueprint with every type of convolution, for images of any size."""
    return MaskedConv(
        image_shape(D), blueprint="4@2x2(full)->3@3x3(same)->1@2x2(valid)", activation="silu", **kw
    )


def _unet(D, **kw):
    small = {"width": 4, "groups": 2, "heads": 2, "multipliers": (1, 2), "blocks": 1, "attention": ()}
    return UNet(image_shape(D), **small | kw)


NETS = {
    "nade-sigmoid": lambda D, **kw: NADENet(D, hidden=7, activation="sigmoid", **kw),
    "nade-relu": lambda D, **kw: NADENet(D, hidden=7, activation="relu", **kw),
    "nade-one-unit": lambda D, **kw: NADENet(D, hidden=1, activation="tanh", **kw),
    "fvsbn": lambda D, **kw: FVSBNNet(D, **kw),
    "made-0": lambda D, **kw: MADENet(D, hidden=(), **kw),
    "made-1": lambda D, **kw: MADENet(D, hidden=(11,), **kw),
    "made-3": lambda D, **kw: MADENet(D, hidden=(13, 4, 9), activation="tanh", **kw),
    "made-direct": lambda D, **kw: MADENet(D, hidden=(6,), direct=True, **kw),
    "made-observed": lambda D, **kw: MADENet(D, hidden=(6, 5), direct=True, input_observed=True, **kw),
    "mlp-1": lambda D, **kw: MaskedMLP(D, hidden=9, activation="tanh", **kw),
    "mlp-3": lambda D, **kw: MaskedMLP(
        D, hidden=(8, 8, 5), activation="silu", residual=True, dropout=0.3, **kw
    ),
    "mlp-norm": lambda D, **kw: MaskedMLP(D, hidden=(8, 8), layer_norm=True, residual=True, **kw),
    "mlp-no-flags": lambda D, **kw: MaskedMLP(
        D, hidden=(8, 6), activation="sigmoid", input_observed=False, **kw
    ),
    "table": lambda D, **kw: TableNet([0] * D, **{"n_params": 1, "hidden": (9, 9), "dropout": 0.2} | kw),
    "conv": _conv,
    "conv-relu": lambda D, **kw: MaskedConv(
        image_shape(D), blueprint="5@1x1(valid)->up@2x2->6@3x3(same)->pool@2x2->1@1x1(full)", **kw
    ),
    "conv-no-flags": lambda D, **kw: MaskedConv(
        (1, D), blueprint="5@1x3(same)->1@1x2(full)->1@1x2(valid)", input_observed=False, dropout=0.2, **kw
    ),
    "hybrid": lambda D, **kw: Hybrid(_conv(D, **kw), MaskedMLP(D, hidden=(6, 5), activation="tanh", **kw)),
    "unet": _unet,
    "unet-plain": lambda D, **kw: _unet(
        D,
        multipliers=(1,),
        attention=(0,),
        input_observed=False,
        signed=False,
        coordinates=False,
        count_embedding=False,
        **kw,
    ),
    "transformer": lambda D, **kw: Transformer(D, width=8, depth=2, heads=2, mlp_ratio=2, **kw),
    "causal-transformer": lambda D, **kw: CausalTransformer(D, width=8, depth=2, heads=2, mlp_ratio=2, **kw),
}
ANY_ORDER = [n for n in NETS if n.startswith(("mlp", "table", "conv", "hybrid", "unet", "transformer"))]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def shaken(module, seed=0, scale=1.0):
    """All parameters drawn anew, large enough that every dependence shows, in float64."""
    g = generator(seed)
    for p in module.parameters():
        drawn = scale * torch.randn(p.shape, generator=g, dtype=torch.float64)
        p.data = torch.empty_like(p.data, dtype=torch.float64).copy_(drawn)  # laid out in memory as it was
    return module.double()


def net(name, D, seed=0, **kw):
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # some nets draw their connections, so that a test repeats
        made = NETS[name](D, **kw)
    return shaken(made, seed)


def _under(name):
    def build(D):
        return Autoregressive(net(name, D), Bernoulli(), Ordering.random(D, generator=generator(1)))

    return build


def _ensemble(name, **kw):
    return lambda D: Ensemble(
        net(name, D), Bernoulli(), Ordering.random(D, k=3, generator=generator(2)), **kw
    )


def _mixture(D):
    parts = [_under("nade-sigmoid")(D), shaken(Independent(Bernoulli(), D), 5), _ensemble("made-1")(D)]
    return Mixture(parts, weights=[0.5, 0.2, 0.3])


def _tree(D, seed=0):
    """Parents drawn at random, then relabelled, so that a parent may come after its child."""
    g = generator(seed)
    label = torch.randperm(D, generator=g)
    parent = torch.full((D,), -1)
    for d in range(1, D):
        parent[label[d]] = label[torch.randint(d, (1,), generator=g)]
    return shaken(ChowLiuTree(D, parent), seed)


def _forest(D):
    """Two trees, or a single variable."""
    parent = [-1, *([-1] * (D > 1)), *range(D - 2)]
    return shaken(ChowLiuTree(D, parent), 3)


def _rbm(hidden):
    return lambda D: shaken(RBM(D, hidden), 4).normalised()


MARGINALISABLE = {  # densities that answer every question exactly
    "bernoulli-mixture": lambda D: shaken(BernoulliMixture(D, 3)),
    "chow-liu-tree": _tree,
    "chow-liu-forest": _forest,
    "tree-mixture": lambda D: TreeMixture([_tree(D, 1), _forest(D), _tree(D, 2)], [0.5, 0.3, 0.2]),
    "rbm": _rbm(3),
    "rbm-wide": _rbm(12),
}

DENSITIES = {name: _under(name) for name in NETS} | {
    "ensemble-nade": _ensemble("nade-sigmoid"),
    "ensemble-made": _ensemble("made-direct"),
    "ensemble-mlp": _ensemble("mlp-norm"),
    "permuted-transformer": _ensemble("causal-transformer", fresh=True),
    "independent": lambda D: shaken(Independent(Bernoulli(), D)),
    "mixture": _mixture,
    **MARGINALISABLE,
}


def all_states(D):
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=D)), dtype=torch.float64)
