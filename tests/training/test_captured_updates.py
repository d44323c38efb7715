"""Nothing in an update needs the host: what a CUDA graph could not capture, found without a GPU.

A graph holds kernels of one device. A Python number written into a tensor, a tensor made of a list, a value
read by the host, or a shape that depends on values ends in an error while the graph is captured. So every
update runs here under a dispatch mode that refuses such operations: on the CPU, where they show by name, and
on the meta device, where a tensor of any other device shows.
"""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pynade import families
from pynade.kernels import backends
from pynade.models import Autoregressive, Ensemble, Orderless
from pynade.nets import MADENet, MaskedMLP, NADENet
from pynade.ordering import Ordering
from pynade.training.options import Gradient
from pynade.training.population import Population
from pynade.training.step import Optimizer, Step
from tests.contracts.cases import ANY_ORDER, NETS

D, ROWS, BATCH = 6, 12, 5
REFUSED = {
    "lift_fresh": "makes a tensor of Python numbers",
    "_local_scalar_dense": "reads a value",
    "is_nonzero": "reads a value",
    "equal": "reads a value",
    "nonzero": "has a shape that depends on values",
    "masked_select": "has a shape that depends on values",
    "bincount": "has a shape that depends on values",
    "_unique2": "has a shape that depends on values",
}


class Capturing(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold; `device` is the only one whose tensors may appear."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        assert name not in REFUSED, f"{name} {REFUSED[name]}"
        if name in ("index", "index_put", "index_put_"):
            masks = [i for i in args[1] if i is not None and i.dtype == torch.bool]
            assert not masks, f"{name} with a mask has a shape that depends on values"
        out = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves((args, kwargs, out)):
            if isinstance(tensor, torch.Tensor):
                assert tensor.device.type == self.device, f"{name} has a tensor on {tensor.device}"
        return out


class MetaGenerator(torch.Generator):
    """A generator that says it is on the meta device, which has none."""

    device = torch.device("meta")


def generator(device):
    return MetaGenerator() if device == "meta" else torch.Generator()


def update(model, x, device, rule="adam", members=None):
    """One update, given what a captured one is given: tensors only."""
    given = model.to(device) if members is None else model
    params = model.trained if members else dict(model.named_parameters())
    numbers = torch.full((5, *(() if members is None else (members,))), 0.01, device=device)
    decay = torch.full((members,), 0.1, device=device) if members else 0.1
    optimizer = Optimizer(rule, params, decay, params)
    options = Gradient(optimizer=rule, clip=1.0, ema=0.9, batch_size=BATCH)
    step = Step(given, x.to(device), options, [generator(device)], optimizer, members=members)
    batch = torch.arange(BATCH, device=device).expand(*step.shape, BATCH)
    with Capturing(device):
        step._update(batch, numbers)
    if device == "cpu":
        assert step.loss_sum.isfinite().all()


@pytest.fixture(autouse=True)
def seeded():
    """Initial weights from a seed, so that a test repeats."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(params=["cpu", "meta"])
def device(request, monkeypatch):
    if request.param == "meta":  # which autocast does not know
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
        monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    return request.param


@pytest.fixture(params=["reference", "dense"])
def kernel(request, monkeypatch):
    """On the CPU the kernels that compiled code does not stand in for."""
    choose = backends.choose_kernel
    monkeypatch.setattr(
        backends, "choose_kernel", lambda k, *a: request.param if k == "auto" else choose(k, *a)
    )


FAMILIES = {
    "bernoulli": lambda: families.Bernoulli(),
    "categorical": lambda: families.Categorical(3),
    "categorical-number": lambda: families.Categorical(3, one_hot=False),
    "discretised": lambda: families.DiscretisedLogistic(2, levels=3, sigma_floor=0.01),
    "gaussian": lambda: families.Gaussian(),
    "fixed-variance": lambda: families.FixedVarianceGaussian(D),
    "laplace": lambda: families.Laplace(sigma_floor=0.01),
    "mog": lambda: families.MixtureOfGaussians(3),
    "mog-paper": lambda: families.MixtureOfGaussians(3, sigma_floor=0.01, scale_mean_gradient=True),
    "mol": lambda: families.MixtureOfLaplaces(3),
    "mologistic": lambda: families.MixtureOfLogistics(3),
    "sinh-arcsinh": lambda: families.SinhArcsinh(),
    "student-t": lambda: families.StudentT(),
    "standardised": lambda: families.Transformed(
        families.MixtureOfGaussians(3), families.Affine(loc=[1.0] * D, scale=2.0)
    ),
    "bounded": lambda: families.Transformed(
        families.Gaussian(),
        [
            families.Log(-1.0, n_variables=D),
            families.Logit(-9.0, 9.0, n_variables=D),
            families.Affine(n_variables=D),
        ],
    ),
}
MODELS = {
    "nade": lambda f, kw: Autoregressive(NADENet(D, hidden=7, **kw), f, Ordering.natural(D)),
    "nade-ensemble": lambda f, kw: Ensemble(NADENet(D, hidden=7, **kw), f, Ordering.random(D, 3)),
    "made": lambda f, kw: Autoregressive(
        MADENet(D, hidden=7, direct=True, dropout=0.1, **kw), f, Ordering.random(D)
    ),
    "mlp": lambda f, kw: Orderless(MaskedMLP(D, hidden=7, dropout=0.1, **kw), f),
}


def rows(family):
    x = torch.randint(3, (ROWS, D), generator=torch.Generator().manual_seed(0))
    return x.clamp(max=1) if isinstance(family, families.Bernoulli) else x.float()


def built(model, family):
    return MODELS[model](family, {"n_params": family.n_params, "n_features": family.n_features})


every_family = pytest.mark.parametrize("family", FAMILIES)
every_model = pytest.mark.parametrize("model", MODELS)


@every_family
@every_model
@pytest.mark.usefixtures("kernel")
def test_every_family_can_be_captured(model, family, device):
    law = FAMILIES[family]()
    update(built(model, law), rows(law), device)


@every_family
@every_model
@pytest.mark.usefixtures("kernel")
def test_every_family_can_be_captured_in_a_population(model, family, device):
    laws = [FAMILIES[family]() for _ in range(2)]
    members = Population([built(model, law).to(device) for law in laws])
    update(members, rows(laws[0]), device, members=2)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("kernel")
def test_every_net_can_be_captured(name, device):
    family, net = families.Bernoulli(), NETS[name](D)
    orderless = name in ANY_ORDER
    model = Orderless(net, family) if orderless else Autoregressive(net, family, Ordering.random(D))
    update(model, rows(family), device)
    if name == "causal-transformer":
        update(Ensemble(net, family, Ordering.random(D, 2), fresh=True), rows(family), device)


@pytest.mark.parametrize("name", ["mlp-1", "conv", "unet", "transformer"])
def test_an_any_order_net_under_one_ordering_can_be_captured(name, device):
    family = families.Bernoulli()
    update(Autoregressive(NETS[name](D), family, Ordering.random(D)), rows(family), device)


@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_every_rule_can_be_captured(rule, members, device):
    family = families.Gaussian()
    models = [built("made", family).to(device) for _ in range(members or 1)]
    model = Population(models) if members else models[0]
    update(model, rows(family), device, rule, members)


def _write(x):
    x[0, 0] = 1


@pytest.mark.parametrize(
    ("wrong", "device"),
    [
        (_write, "cpu"),
        (lambda x: x * torch.tensor(2.0), "meta"),
        (lambda x: x + torch.arange(3, device="cpu").to(x.device), "meta"),
        (lambda x: x[x > 0], "cpu"),
        (lambda x: bool((x > 0).any()), "cpu"),
        (lambda x: float(x.sum()), "cpu"),
        (lambda x: x.new_tensor([1.0, 2.0, 3.0]), "cpu"),
    ],
    ids=["write", "constant", "copy", "mask", "condition", "number", "list"],
)
def test_what_cannot_be_captured_is_refused(wrong, device):
    x = torch.ones(2, 3, device=device)
    with pytest.raises(AssertionError), Capturing(device):
        wrong(x)
