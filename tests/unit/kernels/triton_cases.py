"""The Triton kernels under Triton's interpreter; run as a script with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch

from pynade.kernels import recurrence, sample_bernoulli, sample_mixture

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
    drawn = [
        sample_bernoulli(*weights, order, uniforms, "sigmoid", kernel=k) for k in ("triton", "reference")
    ]
    assert torch.equal(*drawn)
    _, *weights, order, _ = Case(hidden=6, n_params=9).tensors()
    drawn = [
        sample_mixture(*weights, order, uniforms, noise, "relu", kernel=k) for k in ("triton", "reference")
    ]
    torch.testing.assert_close(*drawn, rtol=1e-9, atol=1e-9)


if __name__ == "__main__":
    check()
