"""The Triton kernels on a GPU, against the float64 reference on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pynade.kernels import recurrence, sample
from pynade.ordering import random_observed
from tests.kernels.cases import EDGES, Case, compare, evaluate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LARGE = [
    Case(batch=100, n_variables=784, hidden=500, density=0.13),
    Case(batch=1000, n_variables=100, hidden=500, binary=False),
    Case(batch=25, n_variables=63, hidden=512, n_params=30, binary=False),
    Case(batch=3, n_variables=3000, hidden=40, activation="tanh"),
]


@given(
    case=st.builds(
        Case,
        batch=st.integers(1, 300),
        n_variables=st.integers(1, 90),
        hidden=st.integers(1, 200),
        n_params=st.integers(1, 6),
        activation=st.sampled_from(["sigmoid", "tanh"]),
        binary=st.booleans(),
        seed=st.integers(0, 2**30),
        density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    ),
    need_x=st.booleans(),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_shapes(case: Case, need_x: bool) -> None:
    poison()
    compare(case, "triton", torch.float32, 1e-5, need_x=need_x, device="cuda")


@pytest.mark.parametrize("case", [*EDGES, *LARGE], ids=str)
def test_edges(case: Case) -> None:
    poison()
    compare(case, "triton", torch.float32, 3e-5, device="cuda")
    compare(case, "triton", torch.float64, 1e-11, device="cuda")


@pytest.mark.parametrize("case", [*EDGES, LARGE[2]], ids=str)
def test_padded_products(case: Case) -> None:
    compare(case, "dense", torch.float32, 3e-5, device="cuda")
    compare(case, "dense", torch.float64, 1e-11, device="cuda")


def poison() -> None:
    """Fill the memory that outputs will be given next with NaN: what a kernel leaves unwritten shows."""
    blocks = [torch.full((size,), float("nan"), device="cuda") for size in (2**8, 2**14, 2**18, 2**22, 2**24)]
    torch.cuda.synchronize()
    del blocks


def test_same_call_same_bits() -> None:
    tensors = Case(130, 90, 300, 2, binary=False).tensors(torch.float32)
    first, second = (evaluate(tensors, "sigmoid", "triton", device="cuda") for _ in range(2))
    for name, want in first.items():
        assert torch.equal(second[name], want), name


def test_auto_is_triton() -> None:
    *tensors, order, _ = (t.cuda() for t in Case().tensors(torch.float32))
    auto, fused = (recurrence(*tensors, order, "sigmoid", kernel=k) for k in ("auto", "triton"))
    assert torch.equal(auto, fused)


def test_forward_and_backward_in_a_cuda_graph() -> None:
    *leaves, order, grad = (t.cuda() for t in Case(64, 100, 70).tensors(torch.float32))
    weights = [w.requires_grad_() for w in leaves[1:]]

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(recurrence(leaves[0], *weights, order, "sigmoid"), weights, grad)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    leaves[0].copy_(1 - leaves[0])
    graph.replay()
    torch.testing.assert_close(captured, step(), rtol=0, atol=0)


def test_vmap_of_grad_is_the_loop_over_members() -> None:
    members = [[t.cuda() for t in Case(30, 20, 50, seed=seed).tensors(torch.float32)] for seed in range(4)]
    x, *weights = (torch.stack([m[k] for m in members]) for k in range(5))

    def loss(*t: torch.Tensor) -> torch.Tensor:
        return recurrence(*t, members[0][5], "sigmoid").square().sum()

    gradient = torch.func.grad(loss, argnums=(1, 2, 3, 4))
    together = torch.func.vmap(gradient)(x, *weights)
    for k in range(4):
        alone = gradient(x[k], *(w[k] for w in weights))
        torch.testing.assert_close([g[k] for g in together], list(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hidden", [1, 100, 500])
def test_samplers(hidden: int) -> None:
    """Float64, so that no draw lies within rounding of its threshold."""
    g = torch.Generator().manual_seed(0)
    uniforms, noise = torch.rand(1000, 40, generator=g).double(), torch.randn(1000, 40, generator=g).double()
    _, *weights, order, _ = Case(1, 40, hidden).tensors()
    parts = (*weights, order)
    wanted = sample(parts, uniforms, None, "sigmoid", kernel="reference")
    assert torch.equal(sample([t.cuda() for t in parts], uniforms.cuda(), None, "sigmoid").cpu(), wanted)
    _, *weights, order, _ = Case(1, 40, hidden, 30).tensors()
    parts = (*(0.3 * hidden**-0.5 * w for w in weights), order)  # values stay finite
    wanted = sample(parts, uniforms, noise, "relu", kernel="reference")
    assert torch.isfinite(wanted).all()
    drawn = sample([t.cuda() for t in parts], uniforms.cuda(), noise.cuda(), "relu").cpu()
    torch.testing.assert_close(drawn, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("cells", [4, 3])
def test_prefixes_have_the_right_distribution(cells: int, stratified: bool, long: bool) -> None:
    """Numbers observed uniform or long, sets of a size equally likely, missing cells never observed."""
    D, B = 4, 50_000
    exists = (torch.arange(D) < cells).expand(B, D).cuda()
    g = torch.Generator("cuda").manual_seed(6)
    options = {"exists": None if cells == D else exists, "stratified": stratified, "device": "cuda"}
    drawn = random_observed(B, D, g, long=long, **options)
    found, seen = drawn.unique(dim=0, return_counts=True)
    assert len(found) == 2**cells - 1
    assert not drawn[:, cells:].any()
    for row, n in zip(found, seen.tolist(), strict=True):
        count = int(row.sum())
        share = 1 / cells
        if long:
            share = math.sqrt(1 - count / cells) - math.sqrt(1 - (count + 1) / cells)
        p = share / math.comb(cells, count)
        assert abs(n - B * p) < 5 * math.sqrt(B * p)


@pytest.mark.parametrize(("batch", "n_variables"), [(1, 1), (1000, 784), (333, 500), (7, 9000)])
def test_stratified_prefixes_take_every_stratum(batch: int, n_variables: int) -> None:
    g = torch.Generator("cuda").manual_seed(1)
    length = random_observed(batch, n_variables, g, device="cuda").sum(1).double().sort().values.cpu()
    strata = torch.arange(batch).double() * n_variables / batch
    assert ((length > strata - 1) & (length < strata + n_variables / batch)).all()


def test_each_variable_is_as_often_observed_and_each_row_has_any_length() -> None:
    g = torch.Generator("cuda").manual_seed(2)
    drawn = torch.stack([random_observed(100, 784, g, device="cuda") for _ in range(400)]).double()
    assert (drawn.mean((0, 1)) - 783 / 1568).abs().max() < 5 * math.sqrt(1 / 3 / 40_000)
    assert (drawn.mean((0, 2)) - 783 / 1568).abs().max() < 5 * math.sqrt(1 / 12 / 400)


def test_a_cuda_graph_draws_prefixes_afresh() -> None:
    g = torch.Generator("cuda").manual_seed(3)
    random_observed(8, 20, g, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        drawn = random_observed(8, 20, g, device="cuda")
    replays = []
    for _ in range(3):
        graph.replay()
        replays.append(drawn.clone())
    assert not torch.equal(replays[0], replays[1])
    assert not torch.equal(replays[1], replays[2])
