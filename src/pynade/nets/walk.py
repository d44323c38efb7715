"""One pass of a net's stepper: scores, samples, completions, conditionals and particles are made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pynade.ordering import Ordering
from pynade.precision import computing_in

if TYPE_CHECKING:
    from pynade.nets.base import Net


class Walk:
    """The stepper along orders (G, D), for N rows in each of G groups; one variable of a group at a time.

    Iterating gives the variables i (G,) of each step. The loop's body may ask for their parameters
    (`predict`), and must tell their values (`observe`).

    Args:
        net: the net.
        order: (G, D), the order of each group; fewer columns stop early.
        rows: N.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`); None leaves torch's settings alone.

    Example:
        >>> from pynade.nets import FVSBNNet
        >>> walk = Walk(FVSBNNet(2), torch.tensor([[1, 0]]), rows=3)
        >>> for i in walk:
        ...     print(i.tolist(), tuple(walk.predict().shape))
        ...     walk.observe(torch.ones(1, 3, 1))
        [1] (1, 3, 1)
        [0] (1, 3, 1)
    """

    i: Tensor  # this step's variables (G,)

    def __init__(self, net: Net, order: Tensor, rows: int, precision: str | None = None) -> None:
        self.net, self.order, self.precision = net, order, precision
        self.state = net.start(len(order), rows)
        self.group = torch.arange(len(order), device=order.device)

    def __iter__(self) -> Iterator[Tensor]:
        for i in self.order.unbind(1):
            self.i = i
            yield i

    def predict(self) -> Tensor:
        """Parameters (eta) of this step's variables, (G, N, P)."""
        with arithmetic(self.precision, self.order.device):
            return self.net.predict(self.state, self.i)

    def observe(self, features: Tensor) -> None:
        """Give the net the features (G, N, F) of this step's variables."""
        with arithmetic(self.precision, self.order.device):
            self.state = self.net.observe(self.state, self.i, features)

    def select(self, which: Tensor) -> None:
        """Replace the rows of each group by the rows `which` (G, N) of it, as resampling does."""
        self.state = {name: tensor[self.group[:, None], which] for name, tensor in self.state.items()}

    def cells(self, x: Tensor) -> Tensor:
        """The values (G, …) of this step's variables in x (G, …, D)."""
        return x[self.group, ..., self.i]

    def put(self, x: Tensor, values: Tensor) -> None:
        """Write values (G, …) of this step's variables into x (G, …, D)."""
        x[self.group, ..., self.i] = values


def arithmetic(precision: str | None, device: torch.device) -> AbstractContextManager[None]:
    """The context in which a net computes with this precision; None leaves torch's settings alone."""
    return nullcontext() if precision is None else computing_in(precision, device)


def stepwise(net: Net, features: Tensor, ordering: Ordering) -> Tensor:
    """Eta (B, D, P) by the stepper along the ordering(s): the sequential view of a whole batch."""
    features, order = grouped(features, ordering)
    walk, etas = Walk(net, order, features.shape[1]), []
    for i in walk:
        etas.append(walk.predict())
        walk.observe(features[walk.group, :, i])
    eta = torch.stack(etas, 2)  # (G, N, D, P), by step
    rank = order.argsort(dim=1)[:, None, :, None].expand_as(eta)
    return eta.gather(2, rank).flatten(0, 1)


def grouped(rows: Tensor, ordering: Ordering) -> tuple[Tensor, Tensor]:
    """Rows (B, …) as (G, N, …) with the order (G, D) of each group: all in one, or each on its own."""
    order = ordering.order.to(rows.device)
    if not ordering.is_batch:
        return rows.unsqueeze(0), order.unsqueeze(0)
    return rows.unsqueeze(1), ordering.rows(len(rows)).order.to(rows.device)
