"""The any-order net of mixed tables: a residual net on indicators of levels and on numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from pynade.nets.base import AnyOrderNet, State, glorot, layer_sizes
from pynade.nets.layers import check_dropout, dropped


class TableNet(AnyOrderNet):
    """Any-order net whose variables have inputs and outputs of different sizes.

        h⁰ = W (inputs of the observed variables) + b
        hˡ = hˡ⁻¹ + act(Wˡ norm(hˡ⁻¹) + bˡ),   eta_i = V_i norm(hᴸ) + b_i

    The first feature of a variable with levels is the index of its level, which the net sees as indicators;
    a variable of numbers has its features and a flag that it is observed. Weights exist only for inputs and
    outputs that do, so one variable with many levels does not make the others slower.

    Args:
        levels: of each variable its number of levels; 0 for numbers.
        n_params: P, outputs per variable (the largest number).
        outputs: outputs that each variable uses; None takes its levels, or P of numbers.
        hidden: units of each layer.
        n_features: F, features per variable of numbers.
        dropout: share of hidden activations dropped in training.
        generator: source of the initial weights.

    Example:
        >>> net = TableNet([3, 0], n_params=6, hidden=(8, 8))
        >>> net.conditionals(torch.zeros(5, 2, 1), torch.zeros(5, 2, dtype=torch.bool)).shape
        torch.Size([5, 2, 6])
    """

    input_weights = ("weight",)
    first: Tensor
    level: Tensor
    number: Tensor
    number_inputs: Tensor
    has_levels: Tensor
    place: Tensor

    def __init__(
        self,
        levels: Sequence[int],
        n_params: int,
        outputs: Sequence[int] | None = None,
        hidden: int | Sequence[int] = (256, 256, 256),
        *,
        n_features: int = 1,
        dropout: float = 0.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(len(levels), n_params, n_features)
        self.levels = [int(n) for n in levels]
        self.outputs = [n or n_params for n in self.levels] if outputs is None else [int(n) for n in outputs]
        self.hidden, self.dropout = layer_sizes(hidden), check_dropout(dropout)
        if not self.hidden or min(self.hidden) < 1 or len(set(self.hidden)) > 1:
            raise ValueError(f"a TableNet needs hidden layers of one width, not {self.hidden}")
        width = self.hidden[0]
        ends = list(accumulate(n or n_features + 1 for n in self.levels))
        self.n_inputs, n_outputs = ends[-1], sum(self.outputs)
        starts = [0, *ends[:-1]]  # first input of each variable
        number = [i for i, n in enumerate(self.levels) if not n]
        inputs = [starts[i] + f for i in number for f in range(n_features + 1)]
        self.register_buffer("first", torch.tensor(starts))
        self.register_buffer(
            "level", torch.tensor([i for i, n in enumerate(self.levels) if n], dtype=torch.long)
        )
        self.register_buffer("number", torch.tensor(number, dtype=torch.long))
        self.register_buffer("number_inputs", torch.tensor(inputs, dtype=torch.long))
        self.register_buffer("has_levels", torch.tensor(self.levels) > 0)
        self.register_buffer("place", torch.tensor(self._places()))
        self.weight = glorot(self.n_inputs, width, fans=2 * width, generator=generator)
        self.hidden_bias = nn.Parameter(torch.zeros(width))
        self.weights = nn.ParameterList(glorot(width, width, generator=generator) for _ in self.hidden)
        self.biases = nn.ParameterList(torch.zeros(width) for _ in self.hidden)
        self.gains = nn.ParameterList(torch.ones(width) for _ in range(len(self.hidden) + 1))
        self.output = glorot(n_outputs, width, fans=10 * width, generator=generator)

    def _places(self) -> list[list[int]]:
        """Row of `output` for every parameter of every variable; those that it does not use have the last."""
        start, places = 0, []
        for n in self.outputs:
            places.append([*range(start, start + n), *[sum(self.outputs)] * (self.n_params - n)])
            start += n
        return places

    def conditionals(self, features: Tensor, observed: Tensor, noise: Generator | None = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        h = self._above(self._inputs(features, observed) @ self.weight + self.hidden_bias, noise)
        flat = functional.pad(h @ self.output.mT, (0, 1))
        return flat[:, self.place] + self.bias

    def _inputs(self, features: Tensor, observed: Tensor) -> Tensor:
        """Indicators, numbers and flags (B, T), zero where a variable is not observed."""
        inputs = features.new_zeros(len(features), self.n_inputs)
        if len(self.level):
            known = observed[:, self.level]
            index = torch.where(known, features[:, self.level, 0], 0).long() + self.first[self.level]
            inputs.scatter_(1, index, known.to(inputs.dtype))
        if len(self.number):
            known = observed[:, self.number].unsqueeze(-1)
            numbers = features[:, self.number].masked_fill(~known, 0)
            numbers = torch.cat([numbers, known.to(numbers.dtype)], -1)
            inputs[:, self.number_inputs] = numbers.flatten(1)
        return inputs

    def start(self, groups: int, rows: int) -> State:
        """The first layer with nothing observed: its bias."""
        return {"a": self.hidden_bias.expand(groups, rows, -1)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """Layers above the first, then the outputs of variable i alone."""
        rows = functional.pad(self.output, (0, 0, 0, 1))[self.place[i]]  # (G, P, H)
        return self._above(state["a"], None) @ rows.mT + self.bias[i].unsqueeze(1)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Add the rows of variable i's inputs to the first layer: O(H)."""
        level, first = self.has_levels[i][:, None], self.first[i][:, None]
        index = first + torch.where(level, features[..., 0], 0).long()
        by_level = self.weight[index]
        numbers = functional.pad(features, (0, 1), value=1.0)
        places = (first + torch.arange(self.n_features + 1, device=i.device)).clamp(max=self.n_inputs - 1)
        return {"a": state["a"] + torch.where(level.unsqueeze(-1), by_level, numbers @ self.weight[places])}

    def _above(self, h: Tensor, noise: Generator | None) -> Tensor:
        """From the first layer (…, H) to the normalised last one."""
        for weight, bias, gain in zip(self.weights, self.biases, self.gains, strict=False):
            a = functional.layer_norm(h, h.shape[-1:], weight=gain)
            a = torch.addmm(bias, a.flatten(0, -2), weight).unflatten(0, h.shape[:-1])
            h = h + dropped(functional.silu(a), self.dropout, noise)
        return functional.layer_norm(h, h.shape[-1:], weight=self.gains[-1])
