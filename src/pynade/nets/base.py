"""Base classes of nets, which compute the parameters (eta) of every variable in two ways that must agree.

*Parallel*: eta of all D variables at once. *Sequential* (the stepper, which `Walk` runs): one variable per
step, for G groups of N rows. The rows of a group have the same ordering: one group if all rows share it, else
one group per row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Generator, Tensor, nn

from pynade.arguments import Part, check_positive
from pynade.kernels import reference
from pynade.ordering import Ordering
from pynade.precision import computing_in

State = dict[str, Tensor]
Activation = Callable[[Tensor], Tensor]
Random = Generator | None  # source of random numbers; None: no noise, or torch's global generator

MOST_UNITS = 1 << 24  # of a layer; larger numbers are treated as errors
GPU_ROWS = 640_000  # rows of one pass of the stepper on a GPU: a few GB of activations for H = 500
CPU_ROWS = 4_000  # on a CPU, so that activations stay in the caches
CPU_MEMORY = 1 << 26  # bytes of activations on a CPU, for nets with `row_floats`

ACTIVATIONS = reference.ACTIVATIONS | {"silu": nn.functional.silu}


class Net(Part, ABC):
    """Abstract net over D variables. Most also take a `generator`, the source of their initial weights.

    Args:
        n_variables: D.
        n_params: P, parameters (outputs) per variable.
        n_features: F, inputs per variable.
        dropout: share of hidden activations dropped in training; None for a net without dropout.

    Attributes:
        input_weights: names of the parameters that multiply the inputs (for `decay_on="input"`).
        takes_noise: whether `parallel` has an argument `noise`, the generator of its dropout.
        takes_orderings: whether `parallel` also takes an ordering for every row, (B, D).
        row_floats: approximate number of floats per row in a step; None: at most a few thousand.
    """

    input_weights: tuple[str, ...] = ()
    takes_noise: bool = False
    takes_orderings: bool = False
    row_floats: int | None = None
    dropout: float

    def __init__(
        self, n_variables: int, n_params: int, n_features: int, dropout: float | None = None
    ) -> None:
        super().__init__()
        check_positive(n_variables=n_variables, n_params=n_params, n_features=n_features)
        if dropout is not None:
            self.dropout = float(dropout)
            if not 0 <= dropout < 1:
                raise ValueError(f"dropout must be in [0, 1), not {dropout}")
        self.n_variables, self.n_params, self.n_features = n_variables, n_params, n_features
        self.bias = nn.Parameter(torch.zeros(n_variables, n_params))

    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P) from features (B, D, F) under one ordering of all rows; by default by the stepper."""
        return stepwise(self, features, ordering)

    @abstractmethod
    def start(self, groups: int, rows: int) -> State:
        """The initial state of (G, N) rows without any observed variable."""

    @abstractmethod
    def predict(self, state: State, i: Tensor) -> Tensor:
        """Eta (G, N, P) of variable i[g] for the rows of group g, given their observed variables."""

    @abstractmethod
    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """The state after variable i[g] of the rows of group g is observed, with these features (G, N, F)."""

    def select(self, state: State, group: Tensor, rows: Tensor) -> State:
        """The state of the rows with indexes (G, N) in each group (G,)."""
        return {name: tensor[group[:, None], rows] for name, tensor in state.items()}

    def forward(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P), under one ordering of all rows or an ordering for each row, (B, D)."""
        if ordering.is_batch and not self.takes_orderings:
            return stepwise(self, features, ordering)
        return self.parallel(features, ordering.rows(len(features)) if ordering.is_batch else ordering)

    def rows_at_once(self, device: torch.device) -> int:
        """The number of rows in a batch of the stepper, for speed and by the memory of the device.

        It depends on the GPU model, not on its free memory, so that an evaluation can be resumed elsewhere.
        """
        on_gpu = device.type == "cuda"
        most = GPU_ROWS if on_gpu else CPU_ROWS
        if self.row_floats is None:
            return most
        memory = torch.cuda.get_device_properties(device).total_memory // 8 if on_gpu else CPU_MEMORY
        return max(1, min(most, memory // (4 * self.row_floats)))

    def set_output_bias(self, eta: Tensor) -> None:
        """Set the output bias to eta (D, P), usually `family.eta_from_marginal(train)`."""
        with torch.no_grad():
            self.bias.copy_(eta)


class AnyOrderNet(Net):
    """Abstract net whose outputs are conditioned on any set of observed variables.

    By default a step of the stepper is one pass of the net.
    """

    @abstractmethod
    def conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (B, D, P) of every variable given the observed ones, in one pass.

        Args:
            features: (B, D, F); those of unobserved variables are ignored, even NaN.
            observed: bool (B, D). Outputs of observed variables have no meaning.
            noise: source of training noise such as dropout; None evaluates without noise.
        """

    def start(self, groups: int, rows: int) -> State:
        """The state without observed variables."""
        features = self.bias.new_zeros(groups, rows, self.n_variables, self.n_features)
        return {"features": features, "observed": torch.zeros_like(features[..., 0], dtype=torch.bool)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The outputs of one variable per group, from a pass of the whole net."""
        features, observed = state["features"], state["observed"]
        eta = self.conditionals(features.flatten(0, 1), observed.flatten(0, 1))
        return select_variables(eta.unflatten(0, observed.shape[:2]), i)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Store the features of variable i."""
        group, observed = torch.arange(len(i), device=i.device), torch.ones_like(i[:, None], dtype=torch.bool)
        new = {name: tensor.clone() for name, tensor in state.items()}
        new["features"][group, :, i], new["observed"][group, :, i] = features, observed  # (no host constant)
        return new


class Walk:
    """The stepper of a net along orders (G, D), for N rows in each of G groups.

    Iteration yields the variables i (G,) of each step; in each the caller may `predict`, and must `observe`.

    Args:
        net: the net.
        order: (G, D), the order of each group, or its first columns to stop early.
        rows: N.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`); None uses torch's settings.

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
        with computing_in(self.precision, self.order.device):
            return self.net.predict(self.state, self.i)

    def observe(self, features: Tensor) -> None:
        """Update the state with the features (G, N, F) of this step's variables."""
        with computing_in(self.precision, self.order.device):
            self.state = self.net.observe(self.state, self.i, features)

    def select(self, which: Tensor) -> None:
        """Replace the rows of each group by its rows with indexes `which` (G, N), for resampling."""
        self.state = self.net.select(self.state, self.group, which)

    def cells(self, x: Tensor) -> Tensor:
        """The values (G, …) of this step's variables in x (G, …, D)."""
        return x[self.group, ..., self.i]

    def put(self, x: Tensor, values: Tensor) -> None:
        """Write values (G, …) of this step's variables into x (G, …, D)."""
        x[self.group, ..., self.i] = values


def stepwise(net: Net, features: Tensor, ordering: Ordering) -> Tensor:
    """Eta (B, D, P) of a batch, computed by the stepper along one ordering or one for each row."""
    features, order = grouped(features, ordering)
    walk, etas = Walk(net, order, features.shape[1]), []
    for i in walk:
        etas.append(walk.predict())
        walk.observe(select_variables(features, i))
    eta = torch.stack(etas, 2)  # (G, N, D, P), by step
    rank = order.argsort(dim=1)[:, None, :, None].expand_as(eta)
    return eta.gather(2, rank).flatten(0, 1)


def grouped(rows: Tensor, ordering: Ordering) -> tuple[Tensor, Tensor]:
    """Rows (B, …) as groups (G, N, …) and their orders (G, D): one group, or a group for each row."""
    if not ordering.is_batch:
        return rows.unsqueeze(0), ordering.order.to(rows.device).unsqueeze(0)
    return rows.unsqueeze(1), ordering.rows(len(rows)).order.to(rows.device)


def select_variables(x: Tensor, i: Tensor) -> Tensor:
    """The values of variable i[g] of each group in x (G, N, D, …): (G, N, …)."""
    return x[torch.arange(len(i), device=i.device), :, i]


def activation_named(name: str, known: dict[str, Activation] = ACTIVATIONS) -> Activation:
    """The activation function of this name; a ValueError lists the known names."""
    if name not in known:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(known)}")
    return known[name]


def layer_sizes(hidden: int | Sequence[int]) -> tuple[int, ...]:
    """Units of each layer as integers, from one number or several; a ValueError for anything else."""
    sizes: tuple[Any, ...] = tuple(hidden) if isinstance(hidden, Iterable) else (hidden,)
    for size in sizes:
        number = isinstance(size, Real)
        if not number or not -MOST_UNITS <= size <= MOST_UNITS or size != int(size):
            raise ValueError(f"hidden must be whole numbers up to {MOST_UNITS:,}, not {size!r:.60}")
    return tuple(map(int, sizes))


def glorot(*shape: int, fans: int | None = None, generator: Random = None) -> nn.Parameter:
    """Weights drawn uniformly from ±sqrt(6 / fans); fans (inputs + outputs) by default from the shape."""
    bound = math.sqrt(6 / (fans or sum(shape[:2]) * math.prod(shape[2:])))
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))
