"""Any-order residual nets of mixed tables, and averages of their distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.nets.base import AnyOrderNet, Random, State, glorot, layer_sizes
from pynade.nets.layers import apply_dropout


class TableNet(AnyOrderNet):
    """Any-order net whose variables have inputs and outputs of different sizes; an ensemble of members.

        h⁰ = W (inputs of the observed variables) + b
        hˡ = hˡ⁻¹ + act(Wˡ norm(hˡ⁻¹) + bˡ),   eta_i = V_i norm(hᴸ) + b_i

    The first feature of a variable with levels is the index of its level, and its inputs are one indicator
    per level; the inputs of a numeric variable are its features and a flag that it is observed. Members have
    separate weights and are trained independently (`member_conditionals`); a conditional is the average of
    the members' distributions.

    Args:
        levels: number of levels of each variable; 0 for numeric variables.
        n_params: outputs of a member per variable (the maximum over variables).
        outputs: number of outputs that each variable uses; None: its levels, or n_params if numeric.
        hidden: units of each layer.
        n_features: F, features per numeric variable.
        members: number of nets; with several, the parameters of numeric variables must be mixtures.
        dropout, generator: as for `Net`.

    Example:
        >>> net = TableNet([3, 0], n_params=6, hidden=(8, 8))
        >>> net.conditionals(torch.zeros(5, 2, 1), torch.zeros(5, 2, dtype=torch.bool)).shape
        torch.Size([5, 2, 6])
        >>> TableNet([3, 0], n_params=6, hidden=(8, 8), members=4).n_params  # eight components
        24
    """

    input_weights = ("weight",)

    def __init__(
        self,
        levels: Sequence[int],
        n_params: int,
        outputs: Sequence[int] | None = None,
        hidden: int | Sequence[int] = (256, 256, 256),
        *,
        n_features: int = 1,
        dropout: float = 0.0,
        members: int = 1,
        generator: Random = None,
    ) -> None:
        check_positive(members=members, n_params=n_params)
        self.levels = [int(n) for n in levels]
        self.outputs = [n or n_params for n in self.levels] if outputs is None else [int(n) for n in outputs]
        sizes = zip(self.outputs, self.levels, strict=True)
        self.n_components = max((size for size, n in sizes if not n), default=0) // 3  # of a member
        self.mixed_components = self.n_components * members  # of all members together
        total = max(3 * self.mixed_components, *self.levels) if members > 1 else n_params
        super().__init__(len(levels), total, n_features, dropout)
        self.members, self.member_params, self.hidden = members, n_params, layer_sizes(hidden)
        if not self.hidden or min(self.hidden) < 1 or len(set(self.hidden)) > 1:
            raise ValueError(f"a TableNet needs hidden layers of one width, not {self.hidden}")
        *first, self.n_inputs = accumulate((n or n_features + 1 for n in self.levels), initial=0)
        *columns, n_outputs = accumulate(self.outputs, initial=0)  # the first of each variable
        level, number = ([i for i, n in enumerate(self.levels) if bool(n) is has] for has in (True, False))
        inputs = [first[i] + f for i in number for f in range(n_features + 1)]
        self.first, self.level, self.number, self.number_inputs, self.counts = (
            nn.Buffer(torch.tensor(x, dtype=torch.long)) for x in (first, level, number, inputs, self.levels)
        )
        used = zip(columns, self.outputs, strict=True)  # of `output`; parameters not used have the last
        places = [[*range(start, start + n), *[n_outputs] * (n_params - n)] for start, n in used]
        self.place = nn.Buffer(torch.tensor(places))
        M, layers, width = members, len(self.hidden), self.hidden[0]
        self.bias = nn.Parameter(torch.zeros(M, len(levels), n_params))
        self.weight = glorot(M, self.n_inputs, width, fans=2 * width, generator=generator)
        self.hidden_bias = nn.Parameter(torch.zeros(M, 1, width))
        square = (glorot(M, width, width, fans=2 * width, generator=generator) for _ in range(layers))
        self.weights = nn.ParameterList(square)
        self.biases = nn.ParameterList(torch.zeros(M, 1, width) for _ in range(layers))
        self.gains = nn.ParameterList(torch.ones(M, 1, width) for _ in range(layers + 1))
        self.output = glorot(M, width, n_outputs, fans=10 * width, generator=generator)

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        return super().config() | {"n_params": self.member_params}

    def conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        return self._average_members(self.member_conditionals(features, observed, noise), self.counts)

    def member_conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (M, B, D, P) of each member."""
        h = self._run_hidden(self._inputs(features, observed) @ self.weight + self.hidden_bias, noise)
        flat = torch.bmm(h, self.output)
        if flat.shape[2] < self.place.numel():  # otherwise all variables use all parameters
            flat = functional.pad(flat, (0, 1)).index_select(2, self.place.flatten())
        eta = flat.unflatten(2, self.place.shape)
        return eta + self.bias.unsqueeze(1)

    def _average_members(self, eta: Tensor, counts: Tensor) -> Tensor:
        """Parameters (…, P) of the average of the members' distributions, from theirs (M, …, P)."""
        if self.members == 1:
            return eta[0]
        weights, components = [-math.log(self.members)] * self.members, [self.n_components] * self.members
        return average_distributions(list(eta), weights, components, counts, max(self.levels), self.n_params)

    def _inputs(self, features: Tensor, observed: Tensor) -> Tensor:
        """Indicators, numbers and flags (B, T), zero for variables that are not observed."""
        inputs = features.new_zeros(len(features), self.n_inputs)
        if len(self.level):
            known = observed[:, self.level]
            index = torch.where(known, features[:, self.level, 0], 0).long() + self.first[self.level]
            inputs.scatter_(1, index, known.to(inputs.dtype))
        if len(self.number):
            known = observed[:, self.number].unsqueeze(-1)
            numbers = features[:, self.number].masked_fill(~known, 0)
            inputs[:, self.number_inputs] = torch.cat([numbers, known.to(numbers.dtype)], -1).flatten(1)
        return inputs

    def start(self, groups: int, rows: int) -> State:
        """The first layer (G, N, M, H) without observed variables: its bias."""
        return {"a": self.hidden_bias[:, 0].expand(groups, rows, -1, -1)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The remaining layers, and of the outputs only those of variable i."""
        h = self._run_hidden(state["a"].permute(2, 0, 1, 3).flatten(1, 2), None)
        h = h.unflatten(1, state["a"].shape[:2])  # (M, G, N, H)
        eta = h.new_empty(*h.shape[1:3], self.n_params)
        for variable, groups in groups_by_variable(i):
            first = int(self.place[variable, 0])
            columns = self.output[:, :, first : first + self.outputs[variable]]
            each = torch.bmm(h[:, groups].flatten(1, 2), columns)
            padding = self.member_params - each.shape[-1]
            each = functional.pad(each, (0, padding)) + self.bias[:, variable, None]
            eta[groups] = self._average_members(each, self.counts[variable]).unflatten(0, (len(groups), -1))
        return eta

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Add the contribution of variable i to the first layer: O(H)."""
        change = torch.empty_like(state["a"])  # (G, N, M, H)
        for variable, groups in groups_by_variable(i):
            x, first = features[groups], int(self.first[variable])
            if self.levels[variable]:
                terms = self.weight[:, first + x[..., 0].long()]
            else:
                inputs = functional.pad(x, (0, 1), value=1.0).flatten(0, 1)
                terms = (inputs @ self.weight[:, first : first + inputs.shape[-1]]).unflatten(1, x.shape[:2])
            change[groups] = terms.permute(1, 2, 0, 3).to(change.dtype)  # (bfloat16 under autocast)
        return {"a": state["a"] + change}

    def _run_hidden(self, h: Tensor, noise: Random) -> Tensor:
        """The normalised last hidden layer, from the first one (M, R, H)."""
        for weight, bias, gain in zip(self.weights, self.biases, self.gains, strict=False):
            a = torch.baddbmm(bias, functional.layer_norm(h, h.shape[-1:]) * gain, weight)
            h = h + apply_dropout(functional.silu(a), self.dropout, noise, axis=1)
        return functional.layer_norm(h, h.shape[-1:]) * self.gains[-1]


def groups_by_variable(i: Tensor) -> list[tuple[int, Tensor]]:
    """The distinct variables in i (G,), each with the indexes of its groups."""
    distinct, inverse = torch.unique(i, return_inverse=True)
    if len(distinct) == 1:
        return [(int(distinct), torch.arange(len(i), device=i.device))]
    return [(v, torch.nonzero(inverse == k).flatten()) for k, v in enumerate(distinct.tolist())]


def average_distributions(
    etas: Sequence[Tensor],
    log_weights: Sequence[float],
    components: Sequence[int],
    counts: Tensor,
    most: int,
    n_params: int,
) -> Tensor:
    """Parameters (…, n_params) of the weighted average of distributions with parameters etas (…, P).

    The average of distributions of levels (numbers of levels `counts` (…), 0 for numbers, at most `most`) is
    given by log-probabilities, that of mixtures of numbers by the union of their components.

    Example:
        >>> two = [torch.tensor([0.0, 0.0]), torch.tensor([0.0, 100.0])]
        >>> average_distributions(two, [math.log(0.5)] * 2, [0, 0], torch.tensor(2), most=2, n_params=2).exp()
        tensor([0.2500, 0.7500])
    """
    parts = []  # of each distribution: log-weights of components, locations, raw scales
    for eta, weight, K in zip(etas, log_weights, components, strict=True):
        logits, *others = eta[..., : 3 * K].unflatten(-1, (3, K)).unbind(-2)
        parts.append((logits.log_softmax(-1) + weight, *others))
    numbers = torch.cat([tensor for part in zip(*parts, strict=True) for tensor in part], -1)
    numbers = functional.pad(numbers, (0, n_params - numbers.shape[-1]))
    if not most:
        return numbers
    known = torch.arange(most, device=counts.device) < counts.clamp(min=1).unsqueeze(-1)
    logs = [eta[..., :most].masked_fill(~known, -math.inf).log_softmax(-1) for eta in etas]
    each = torch.stack([log + weight for log, weight in zip(logs, log_weights, strict=True)])
    levels = functional.pad(torch.logsumexp(each, 0), (0, n_params - most))
    return torch.where(counts.unsqueeze(-1) > 0, levels, numbers)
