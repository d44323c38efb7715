"""Inputs for the kernels, and the comparison every kernel has to pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pynade.kernels import recurrence


@dataclass(frozen=True)
class Case:
    """Sizes and kind of one set of random inputs; `exact` draws multiples of 1/8, summed without rounding."""

    batch: int = 3
    n_variables: int = 5
    hidden: int = 4
    n_params: int = 1
    activation: str = "sigmoid"
    binary: bool = True
    exact: bool = False
    seed: int = 0
    density: float = 0.4

    def tensors(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Features, W, c, V, b, order and a gradient of eta."""
        g = torch.Generator().manual_seed(self.seed)
        b, d, h, p = self.batch, self.n_variables, self.hidden, self.n_params
        shapes = ((b, d, 1), (d, 1, h), (h,), (d, p, h), (d, p), (b, d, p))
        x, *rest, grad = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes)
        if self.binary:
            x = (torch.rand(b, d, 1, generator=g) < self.density).double()
            x[0] = 0
            x[-1] = 1 if b > 1 else x[-1]
        tensors = [x, *(0.5 * t for t in rest), grad]
        if self.exact:
            tensors = [(8 * t).round() / 8 for t in tensors]
        order = torch.randperm(d, generator=g)
        tensors = [t.to(dtype) for t in tensors]
        return [*tensors[:5], order, tensors[5]]


def evaluate(
    tensors: list[Tensor], activation: str, kernel: str, *, need_x: bool = True, device: str = "cpu"
) -> dict[str, Tensor]:
    """Eta and the gradients of everything, back on the CPU."""
    x, *weights, order, grad = (t.to(device) for t in tensors)
    leaves = [x.clone().requires_grad_(need_x), *(w.clone().requires_grad_() for w in weights)]
    eta = recurrence(*leaves, order, activation, kernel=kernel)
    eta.backward(grad)
    found = {"eta": eta.detach()}
    names = ("x", "weight", "hidden_bias", "output", "bias")
    found |= {name: leaf.grad for name, leaf in zip(names, leaves, strict=True) if leaf.grad is not None}
    return {name: tensor.cpu() for name, tensor in found.items()}


def compare(
    case: Case, kernel: str, dtype: torch.dtype, tolerance: float, *, need_x: bool = True, device: str = "cpu"
) -> None:
    """The kernel in `dtype` against the reference in float64, relative to each result's largest element."""
    tensors = case.tensors(dtype)
    doubled = [t.double() if t.is_floating_point() else t for t in tensors]
    wanted = evaluate(doubled, case.activation, "reference", need_x=need_x)
    found = evaluate(tensors, case.activation, kernel, need_x=need_x, device=device)
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        got = found[name]
        assert got.dtype == dtype, name
        assert got.shape == want.shape, name
        error = (got.double() - want).abs().max().item()
        assert error <= tolerance * (1 + want.abs().max().item()), f"{name}: off by {error} for {case}"


EDGES = [
    Case(batch=1, n_variables=1, hidden=1),
    Case(batch=1, n_variables=7, hidden=1, n_params=4),
    Case(batch=5, n_variables=1, hidden=9, binary=False),
    Case(batch=4, n_variables=6, hidden=3, density=0.0),
    Case(batch=4, n_variables=6, hidden=3, density=1.0),
    Case(batch=3, n_variables=20, hidden=40, n_params=3, activation="tanh"),
    Case(batch=3, n_variables=19, hidden=33, n_params=60, binary=False),
    Case(batch=6, n_variables=24, hidden=10, activation="relu", exact=True),
    replace(Case(batch=6, n_variables=24, hidden=10, activation="relu", exact=True), density=0.9),
]
