"""What a net is: a producer of raw parameters eta, with two views that must agree.

*Parallel*: `net(features, ordering)` gives eta of all D variables at once, each a function of the
variables before it only. *Sequential* (the stepper): `start`, then `predict` and `observe` in turn;
sampling, conditioning and imputing are loops over it. Tests hold the two views equal for every net.

The stepper works on G groups of N rows, and the rows of a group are at the same variable: i has shape
(G,). One ordering for all rows is one group, so that weights are read once for the whole batch; an
ordering for each row is as many groups of one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pynade.ordering import Ordering

State = dict[str, Tensor]

GPU_ROWS = 640_000  # rows walked together on a GPU: a few GB of activations for H = 500
CPU_ROWS = 4_000  # on a CPU: activations that stay near the caches
CPU_MEMORY = 1 << 26  # bytes of activations at once on a CPU, for nets with large ones

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
}


class Net(nn.Module, ABC):
    """Abstract net over D variables.

    Attributes:
        n_variables: D.
        n_params: P, raw outputs per variable.
        n_features: F, inputs per variable.
        input_weights: names of the parameters that multiply the inputs (for weight decay on these alone).
        takes_noise: `parallel` has an argument `noise`, the generator of its dropout.
        takes_orderings: `parallel` also takes an ordering for every row, (B, D).
        row_floats: about how many numbers one row needs while the stepper takes a step; None if they are a
            few thousand at most.
    """

    input_weights: tuple[str, ...] = ()
    takes_noise: bool = False
    takes_orderings: bool = False
    row_floats: int | None = None

    def __init__(self, n_variables: int, n_params: int, n_features: int) -> None:
        super().__init__()
        for name, value in (
            ("n_variables", n_variables),
            ("n_params", n_params),
            ("n_features", n_features),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.n_variables, self.n_params, self.n_features = n_variables, n_params, n_features
        self.bias = nn.Parameter(torch.zeros(n_variables, n_params))

    @abstractmethod
    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P) from features (B, D, F) under one ordering shared by all rows."""

    @abstractmethod
    def start(self, groups: int, rows: int) -> State:
        """State of (G, N) rows of which nothing is observed yet."""

    @abstractmethod
    def predict(self, state: State, i: Tensor) -> Tensor:
        """Eta (G, N, P) of variable i[g] for the rows of group g, given what each has observed."""

    @abstractmethod
    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """State after each row of group g has also seen its features (G, N, F) of variable i[g]."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Constructor arguments, as JSON; what a saved model needs to build this again."""

    def forward(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P); rows may share one ordering or have one each, (B, D)."""
        if ordering.is_batch and not self.takes_orderings:
            return stepwise(self, features, ordering)
        return self.parallel(features, ordering.rows(len(features)) if ordering.is_batch else ordering)

    def rows_at_once(self, device: torch.device) -> int:
        """How many rows a walk of the stepper takes together: what fills the device, and what it can hold.

        A net that says how many numbers a row needs (`row_floats`) is given an eighth of a GPU's memory;
        it is the same number on every machine with that GPU, so that an evaluation can go on elsewhere.
        """
        on_gpu = device.type == "cuda"
        if self.row_floats is None:
            return GPU_ROWS if on_gpu else CPU_ROWS
        memory = torch.cuda.get_device_properties(device).total_memory // 8 if on_gpu else CPU_MEMORY
        return max(1, min(GPU_ROWS if on_gpu else CPU_ROWS, memory // (4 * self.row_floats)))

    def set_output_bias(self, eta: Tensor) -> None:
        """Start from the constant prediction eta (D, P), usually `family.eta_from_marginal(train)`."""
        with torch.no_grad():
            self.bias.copy_(eta)


def stepwise(net: Net, features: Tensor, ordering: Ordering) -> Tensor:
    """Eta (B, D, P) by walking the stepper along the ordering(s): the sequential view of a whole batch."""
    features, order = grouped(features, ordering)
    groups, rows = features.shape[:2]
    group = torch.arange(groups, device=features.device)
    state, etas = net.start(groups, rows), []
    for i in order.unbind(1):
        etas.append(net.predict(state, i))
        state = net.observe(state, i, features[group, :, i])
    eta = torch.stack(etas, 2)  # (G, N, D, P), by step
    rank = order.argsort(dim=1)[:, None, :, None].expand_as(eta)
    return eta.gather(2, rank).flatten(0, 1)


def grouped(rows: Tensor, ordering: Ordering) -> tuple[Tensor, Tensor]:
    """Rows (B, …) as (G, N, …) with the order (G, D) of each group: all in one, or each on its own."""
    order = ordering.order.to(rows.device)
    if not ordering.is_batch:
        return rows.unsqueeze(0), order.unsqueeze(0)
    return rows.unsqueeze(1), ordering.rows(len(rows)).order.to(rows.device)


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name, or a ValueError that lists the known ones."""
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(ACTIVATIONS)}") from None


def layer_sizes(hidden: int | Sequence[int]) -> tuple[int, ...]:
    """Units of each layer, from one number or several (NumPy's integers too)."""
    return tuple(int(h) for h in hidden) if isinstance(hidden, Iterable) else (int(hidden),)


def glorot(*shape: int, fan_in: int, fan_out: int, generator: torch.Generator | None = None) -> nn.Parameter:
    """A parameter drawn uniformly from ±sqrt(6 / (fan_in + fan_out))."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))
