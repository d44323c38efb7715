"""Sampling from an orderless model, a few variables at a time, every row along an ordering of its own.

One variable per step is exact. Several at once are drawn independently given those observed so far, which
ignores their dependence on each other: an approximation that costs D / k forward passes instead of D.
What it loses is measured by `pynade.evaluation.block_sampling_gap`.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from pynade.models.orderless import Orderless
from pynade.ordering import Ordering
from pynade.precision import computing_in


def block_sample(
    model: Orderless,
    n: int,
    per_step: int = 1,
    generator: Generator | None = None,
    *,
    precision: str = "float32",
) -> Tensor:
    """n rows (n, D), each along a random ordering of its own, `per_step` variables at a time.

    With `per_step=1` these are exact draws from the uniform mixture of all D! orderings; with more they are
    an approximation (see this module).

    Args:
        model: the orderless model.
        n: how many rows.
        per_step: k, variables drawn at once; the last step takes what is left.
        generator: source of orderings and values, on the model's device.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(6, hidden=(4,)), Bernoulli())
        >>> block_sample(deep, 5, per_step=4, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([5, 6])
    """
    return draw_blocks(model, n, per_step, generator, precision=precision)[0]


@torch.no_grad()
def draw_blocks(
    model: Orderless,
    n: int,
    per_step: int = 1,
    generator: Generator | None = None,
    *,
    precision: str = "float32",
    means: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As `block_sample`, and on demand the expectation that each value was drawn with, also (n, D)."""
    _check(per_step)
    if n < 1:
        raise ValueError(f"the number of rows must be at least 1, not {n}")
    at_once = model.net.rows_at_once(model.device)
    sizes = [min(at_once, n - start) for start in range(0, n, at_once)]
    parts = [_draw(model, size, per_step, generator, precision, means) for size in sizes]
    expected = [mean for _, mean in parts if mean is not None]
    return torch.cat([x for x, _ in parts]), torch.cat(expected) if means else None


@torch.no_grad()
def block_log_prob(
    model: Orderless, x: Tensor, ordering: Ordering, per_step: int, *, precision: str = "float32"
) -> Tensor:
    """log p of each row, `per_step` variables at a time taken as independent: (B, D) -> (B,), in float64.

    This is a normalised density, the one that `block_sample` draws from along these orderings; with
    `per_step=1` it is the exact one.

    Args:
        model: the orderless model.
        x: complete rows.
        ordering: one for all rows, or one for each.
        per_step: k.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep, o = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli()), Ordering([2, 0, 1])
        >>> x = torch.eye(3)
        >>> torch.allclose(block_log_prob(deep, x, o, 1), deep.under(o).log_prob(x))
        True
    """
    _check(per_step)
    x = x.to(model.device)
    model.check(x)
    x = x.to(model.dtype)
    features, order = model.family.encode(x), ordering.rows(len(x)).order.to(model.device)
    rank, total = order.argsort(1), x.new_zeros(len(x), dtype=torch.float64)
    for start in range(0, model.n_variables, per_step):
        i = order[:, start : start + per_step]
        eta = _conditionals(model, features, rank < start, i, precision)
        total += model.family.log_prob(x.gather(1, i), eta, i).sum(-1, dtype=torch.float64)
    return total


def _draw(
    model: Orderless, n: int, per_step: int, generator: Generator | None, precision: str, means: bool
) -> tuple[Tensor, Tensor | None]:
    shape, device = (n, model.n_variables), model.device
    order = torch.rand(shape, generator=generator, device=device).argsort(1)
    rank = order.argsort(1)
    nothing = torch.zeros(shape, dtype=torch.bool, device=device)
    x = model.family.fill(torch.zeros(shape, dtype=model.dtype, device=device), nothing)
    expected = torch.zeros_like(x) if means else None
    for start in range(0, model.n_variables, per_step):
        i = order[:, start : start + per_step]
        eta = _conditionals(model, model.family.encode(x), rank < start, i, precision)
        x.scatter_(1, i, model.family.sample(eta, i, generator))
        if expected is not None:
            expected.scatter_(1, i, model.family.mean(eta, i))
    return x, expected


def _conditionals(model: Orderless, features: Tensor, observed: Tensor, i: Tensor, precision: str) -> Tensor:
    """Eta (B, k, P) of the variables i (B, k) of each row."""
    with computing_in(precision, model.device):
        eta = model.net.conditionals(features, observed)
    return eta.to(model.dtype).gather(1, i[..., None].expand(-1, -1, eta.shape[-1]))


def _check(per_step: int) -> None:
    if per_step < 1:
        raise ValueError(f"at least 1 variable is drawn at a time, not {per_step}")
