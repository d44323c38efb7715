"""The Triton kernels under Triton's interpreter; run as a script with TRITON_INTERPRET=1."""

from __future__ import annotations

import itertools
import math

import torch
from torch.nn import functional

from pynade.kernels import recurrence, sample
from pynade.kernels.attention import Attention
from pynade.kernels.gpu_random import gibbs, prefix
from pynade.kernels.norm import AddNorm, NormSiLU, seed_from_row
from pynade.kernels.update import update
from pynade.nets.layers import attend
from pynade.training.step import BETA1, BETA2, EPSILON, Optimizer

from .cases import EDGES, Case, compare

MORE = [
    Case(batch=40, n_variables=9, hidden=35),  # two warps of rows, two blocks of units
    Case(
        batch=2, n_variables=37, hidden=5, n_params=2, binary=False, activation="tanh"
    ),  # a ragged last segment
]


def check() -> None:
    for case in (*EDGES, *MORE):
        if case.n_params > 10:
            case = Case(2, 3, 5, case.n_params, binary=False)
        compare(case, "triton", torch.float64, 1e-12)
        compare(case, "triton", torch.float32, 1e-5, need_x=False)
    members = [Case(3, 9, 5, 2, seed=seed).tensors() for seed in range(2)]
    x, *weights = (torch.stack([m[k] for m in members]) for k in range(5))

    def grads(kernel: str) -> tuple[torch.Tensor, ...]:
        def loss(*t: torch.Tensor) -> torch.Tensor:
            return recurrence(*t, members[0][5], "tanh", kernel=kernel).square().sum()

        return torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3, 4)))(x, *weights)

    torch.testing.assert_close(grads("triton"), grads("reference"), rtol=1e-12, atol=1e-12)
    g = torch.Generator().manual_seed(0)
    uniforms, noise = torch.rand(7, 5, generator=g).double(), torch.randn(7, 5, generator=g).double()
    _, *weights, order, _ = Case(hidden=6).tensors()
    both = ("triton", "reference")
    drawn = [sample((*weights, order), uniforms, None, "sigmoid", kernel=k) for k in both]
    assert torch.equal(*drawn)
    _, *weights, order, _ = Case(hidden=6, n_params=9).tensors()
    drawn = [sample((*weights, order), uniforms, noise, "relu", kernel=k) for k in both]
    torch.testing.assert_close(*drawn, rtol=1e-9, atol=1e-9)


def plain(x, affine, groups, silu):  # type: ignore[no-untyped-def]
    scale, shift = affine.unflatten(-1, (2, -1, 1, 1)).unbind(-4)
    z = functional.group_norm(x, groups) * (1 + scale) + shift
    return functional.silu(z) if silu else z


def check_norm() -> None:
    """Values and gradients as torch's; what is dropped is the same backwards, and the right share of it."""
    g = torch.Generator().manual_seed(0)
    shapes = [(2, 8, 3, 3), (3, 24, 5, 4), (2, 16, 1, 1), (1, 64, 28, 28)]  # groups of 2, 6, 4 and 16 maps
    cases = [*((shape, True, True) for shape in shapes), (shapes[1], False, True), (shapes[1], True, False)]
    for shape, silu, per_row in cases:
        x, w = torch.randn(2, *shape, generator=g) + 0.5
        wide = torch.randn(shape[0], 2 * shape[1] + 3, generator=g)  # rows that do not lie side by side
        affine = wide[:, : 2 * shape[1]] if per_row else wide[0, : 2 * shape[1]]
        both = []
        for call in (plain, lambda x, a, n, silu: NormSiLU.apply(x, a, None, n, 1e-5, silu, 0.0)):
            given = [x.clone().requires_grad_(), affine.detach().requires_grad_()]
            y = call(*given, 4, silu)
            both.append((y.detach(), *torch.autograd.grad((y * w).sum(), given)))
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)
    far = torch.randn(2, 24, 5, 4, generator=g) + 1000 * torch.randn(2, 24, 1, 1, generator=g).sign()
    wanted = plain(far.double(), torch.zeros(48).double(), 8, False).float()
    torch.testing.assert_close(
        NormSiLU.apply(far, torch.zeros(48), None, 8, 1e-5, False, 0.0), wanted, rtol=1e-4, atol=1e-4
    )
    far = 1000 + torch.randn(2, 24, 5, 4, generator=g)
    wanted = plain(far.double(), torch.zeros(48).double(), 8, False).float()
    torch.testing.assert_close(
        NormSiLU.apply(far, torch.zeros(48), None, 8, 1e-5, False, 0.0), wanted, rtol=1e-3, atol=1e-3
    )
    x, none = torch.randn(4, 16, 10, 10, generator=g), torch.zeros(32)
    x.requires_grad_()
    seeds = [torch.tensor([7]), torch.tensor([7]), torch.tensor([8])]
    first, second, other = (NormSiLU.apply(x, none, seed, 4, 1e-5, True, 0.3) for seed in seeds)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    own = seed_from_row(seeds[0], 2, x[0].numel())  # of a piece of the minibatch
    assert torch.equal(NormSiLU.apply(x[2:], none, own, 4, 1e-5, True, 0.3), first[2:])
    kept = first != 0
    assert abs(kept.double().mean() - 0.7) < 0.02
    noise = [(y != 0).double().flatten() for y in (first, other)]
    pairs = [(noise[0], noise[1]), (noise[0][:-1], noise[0][1:]), (noise[0][:-16], noise[0][16:])]
    for one_, another in pairs:  # other seeds, neighbouring maps, neighbouring pixels
        assert abs(torch.corrcoef(torch.stack((one_, another)))[0, 1]) < 0.05
    expected = plain(x, none, 4, True) * kept / 0.7
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (first, expected)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    half = NormSiLU.apply(x.detach().bfloat16(), none, None, 4, 1e-5, True, 0.0)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain(x.detach(), none, 4, True), rtol=0.03, atol=0.03)


def check_add_norm() -> None:
    """The sum, its normal form and all gradients as torch's; a sum that is only normalised; no sum."""
    g = torch.Generator().manual_seed(0)
    for width in (5, 16):
        h, more, one, two = torch.randn(4, 3, 7, width, generator=g) + 0.3
        both = []
        for fused in (False, True):
            given = [t.clone().requires_grad_() for t in (h, more)]

            def both_of(a, b=None, fused=fused):  # type: ignore[no-untyped-def]
                if fused:
                    return AddNorm.apply(a, b, torch.float32, 1e-5)
                total = a if b is None else a + b
                y = functional.layer_norm(total, total.shape[-1:])
                return y if b is None else (total, y)

            total, y = both_of(*given)
            outs = (total, y, both_of(total, given[1])[1], both_of(given[0]))
            loss = sum((out * weight).sum() for out, weight in zip(outs, (one, two, one, two), strict=True))
            both.append([t.detach() for t in (*outs, *torch.autograd.grad(loss, given))])
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)
    half = AddNorm.apply(h, more.bfloat16(), torch.bfloat16, 1e-5)
    assert [t.dtype for t in half] == [torch.float32, torch.bfloat16]


def check_attention() -> None:
    """Values and gradients as torch's, for numbers of tokens that fill a tile and that do not."""
    g = torch.Generator().manual_seed(0)
    for rows, tokens, heads, d, causal in ((2, 16, 2, 16, True), (3, 21, 1, 32, True), (2, 5, 3, 16, False)):
        qkv = torch.randn(rows, tokens, 3 * heads * d, generator=g, requires_grad=True)
        weight = torch.randn(rows, tokens, heads * d, generator=g)
        both = []
        for call in (lambda x: attend(x, heads, causal)[0], lambda x: Attention.apply(x, heads, causal)):  # noqa: B023
            out = call(qkv)
            both.append((out.detach(), *torch.autograd.grad((out * weight).sum(), qkv)))
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)


def check_update() -> None:
    """Every rule as it is over lists, with and without decay and an average, of members and of one."""
    g = torch.Generator().manual_seed(0)
    for rule, members, decays, averages in itertools.product(
        ("sgd", "adam", "adamw"), (1, 3), (False, True), (False, True)
    ):
        shape = (members, 7, 211)  # more than a block, and a ragged last one
        both = []
        start, *slopes = torch.randn(4, *shape, generator=g)
        decay = torch.linspace(0.1, 0.3, members) if decays else None
        rate = torch.linspace(0.01, 0.05, members)
        momentum = torch.linspace(0.5, 0.9, members)
        for fused in (False, True):
            params = {"w": start.clone()}
            own = Optimizer(rule, params, decay, ["w"] if decays else [])
            average = {"w": start.clone()} if averages else {}
            for t, slope in enumerate(slopes, start=1):
                numbers = (rate, momentum, *Optimizer.corrections(t), 0.2)
                if fused:
                    wide = torch.stack([torch.as_tensor(n).expand(members) for n in numbers])
                    args = (slope, own._slots("w"), average.get("w"), decay, wide, (BETA1, BETA2, EPSILON))
                    update(rule, params["w"], *args)
                else:
                    own.apply({"w": slope}, numbers, average)
            both.append([*params.values(), *own.state.values(), *average.values()])
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-6)


def check_gibbs() -> None:
    """One round's law is that of the machine; machines share their draws; nothing but the seed matters."""
    g = torch.Generator().manual_seed(0)
    W, b, c = (
        torch.randn(2, 3, 5, generator=g),
        torch.randn(2, 1, 5, generator=g),
        torch.randn(2, 1, 3, generator=g),
    )
    W[1], b[1], c[1] = W[0], b[0], c[0]
    start = (torch.rand(1, 5, generator=g) < 0.5).float().expand(2, 400, 5)
    seed = torch.tensor([11])
    v, p = gibbs(start, W, b, c, 1, seed)
    assert torch.equal(v[0], v[1])
    assert torch.equal(v, gibbs(start.contiguous(), W, b, c, 1, seed)[0])
    assert not torch.equal(v, gibbs(start, W, b, c, 1, seed + 1)[0])
    torch.testing.assert_close(p, torch.sigmoid(v @ W.mT + c))
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    up = torch.sigmoid(start[0, 0] @ W[0].T + c[0, 0])
    weights = (states * up + (1 - states) * (1 - up)).prod(1)
    down = torch.sigmoid(states @ W[0] + b[0])
    for values in itertools.product([0.0, 1.0], repeat=5):  # the law of the visible units after one round
        x = torch.tensor(values)
        expected = float((weights * (x * down + (1 - x) * (1 - down)).prod(1)).sum())
        found = float((v[0] == x).all(1).float().mean())
        assert abs(found - expected) < 4.5 * (expected * (1 - expected) / 400) ** 0.5 + 1e-9
    wide = torch.randn(1, 3, 150, generator=g) / 5, torch.zeros(1, 1, 150), torch.zeros(1, 1, 3)
    v, p = gibbs(torch.zeros(1, 40, 150), *wide, 2, seed)  # several blocks of visible units, ragged rows
    torch.testing.assert_close(p, torch.sigmoid(v @ wide[0].mT))
    assert set(v.unique().tolist()) == {0.0, 1.0}
    assert 0.4 < float(v[..., 128:].mean()) < 0.6
    once = gibbs(start, W, b, c, 3, seed)[0][0].mean(0)
    again = start
    for s in range(3):
        again = gibbs(again, W, b, c, 1, torch.tensor([s]))[0]
    assert ((once - again[0].mean(0)).abs() < 0.1).all()


def check_prefix() -> None:
    """Lengths uniform (one a stratum), sets of a length equally likely, missing cells never observed."""
    D, B, rounds = 4, 24, 8  # the interpreter takes 30 ms a row
    for cells, stratified in ((3, True), (4, False)):
        exists = (torch.arange(D) < cells).expand(B, D) if cells < D else None
        drawn = torch.stack([prefix(B, D, torch.tensor([9 * s]), exists, stratified) for s in range(rounds)])
        if stratified:
            expected = torch.arange(cells).repeat_interleave(B // cells)
            assert all(torch.equal(part.sum(1).sort().values, expected) for part in drawn)
            assert len({tuple(part.sum(1).tolist()) for part in drawn}) == rounds  # who has which, at random
        assert not drawn[..., cells:].any()
        found, seen = drawn.flatten(0, 1).unique(dim=0, return_counts=True)
        assert len(found) == 2**cells - 1
        for row, n in zip(found, seen.tolist(), strict=True):
            p = 1 / (cells * math.comb(cells, int(row.sum())))
            assert abs(n - B * rounds * p) < 5 * math.sqrt(B * rounds * p)
    wide = prefix(7, 300, torch.tensor([1]), None, True, True)  # long ones: 1 - (1 - u)² of 300
    assert ((1 - (1 - wide.sum(1) / 300).sqrt()) * 7).long().unique().numel() == 7  # one of each stratum
    wide = prefix(7, 300, torch.tensor([1]), None, True)
    assert torch.equal(wide, prefix(7, 300, torch.tensor([1]), None, True))
    assert not torch.equal(wide, prefix(7, 300, torch.tensor([2]), None, True))
    assert torch.equal((wide.sum(1) * 7 // 300).sort().values, torch.arange(7))
    assert not prefix(3, 1, torch.tensor([5]), None, True).any()


if __name__ == "__main__":
    check()
    check_norm()
    check_add_norm()
    check_attention()
    check_update()
    check_gibbs()
    check_prefix()
