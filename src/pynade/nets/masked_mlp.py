"""The net of DeepNADE: a feed-forward net of the observed values and their mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.nets.base import AnyOrderNet, Random, State, activation_named, glorot, layer_sizes
from pynade.nets.layers import apply_dropout


class MaskedMLP(AnyOrderNet):
    """Any-order net of any depth (section "Orderless and Deep NADE").

        h⁰ = concat(x ⊙ observed, observed),   hˡ = act(Wˡ hˡ⁻¹ + bˡ),   eta_i = V_i hᴸ + b_i

    Args:
        n_variables, n_params, n_features, dropout, generator: as for `Net`.
        hidden: units of each layer; an int for one layer.
        activation: "relu", "tanh", "sigmoid" or "silu".
        input_observed: the mask is an input too; False is "no input masks" in the paper's tables.
        residual: add a layer's input to its output where the widths agree.
        layer_norm: normalise the pre-activations of every layer.

    Example:
        >>> net = MaskedMLP(4, hidden=(8, 8))
        >>> observed = torch.tensor([[True, False, True, False]])
        >>> net.conditionals(torch.ones(1, 4, 1), observed).shape
        torch.Size([1, 4, 1])
    """

    input_weights = ("weight",)

    def __init__(
        self,
        n_variables: int,
        n_params: int = 1,
        hidden: int | Sequence[int] = (500, 500),
        *,
        n_features: int = 1,
        activation: str = "relu",
        input_observed: bool = True,
        residual: bool = False,
        layer_norm: bool = False,
        dropout: float = 0.0,
        generator: Random = None,
    ) -> None:
        super().__init__(n_variables, n_params, n_features, dropout)
        self.hidden = layer_sizes(hidden)
        if not self.hidden or any(h < 1 for h in self.hidden):
            raise ValueError(f"a MaskedMLP needs hidden layers of at least one unit each, not {self.hidden}")
        self.activation, self._act = activation, activation_named(activation)
        self.input_observed, self.residual, self.layer_norm = input_observed, residual, layer_norm

        inputs, first, last = n_features + int(input_observed), self.hidden[0], self.hidden[-1]
        fans = n_variables * inputs + first
        self.weight = glorot(n_variables, inputs, first, fans=fans, generator=generator)
        self.weights = nn.ParameterList(glorot(*pair, generator=generator) for pair in pairwise(self.hidden))
        self.hidden_bias = nn.ParameterList(torch.zeros(h) for h in self.hidden)
        self.gains = nn.ParameterList(torch.ones(h) for h in self.hidden if layer_norm)
        fans = n_variables * n_params + last
        self.output = glorot(n_variables, n_params, last, fans=fans, generator=generator)

    def conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        known = observed.unsqueeze(-1)
        inputs = features.masked_fill(~known, 0)
        if self.input_observed:
            inputs = torch.cat((inputs, known.to(features.dtype)), dim=-1)
        h = torch.addmm(self.hidden_bias[0], inputs.flatten(1), self.weight.flatten(0, 1))
        h = self._run_hidden(h, noise)
        return torch.addmm(self.bias.flatten(), h, self.output.flatten(0, 1).mT).view(-1, *self.bias.shape)

    def start(self, groups: int, rows: int) -> State:
        """The first layer's pre-activation without observed variables: its bias."""
        return {"a": self.hidden_bias[0].expand(groups, rows, -1)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The remaining layers, and of the outputs only those of variable i."""
        return self._run_hidden(state["a"], None) @ self.output[i].mT + self.bias[i].unsqueeze(1)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Add the contribution of variable i and its flag to the first pre-activation: O(H)."""
        if self.input_observed:
            features = functional.pad(features, (0, 1), value=1.0)
        return {"a": torch.baddbmm(state["a"], features, self.weight[i])}

    def deeper(self, hidden: int, generator: Random = None) -> MaskedMLP:
        """A copy of this net with one more hidden layer; the new layer and the output layer are random."""
        new = MaskedMLP(**self.config() | {"hidden": [*self.hidden, hidden]}, generator=generator)
        copied = {n: p for n, p in self.state_dict().items() if n not in ("output", "bias")}
        new.load_state_dict(new.state_dict() | copied)
        return new.to(self.bias)

    def _run_hidden(self, a: Tensor, noise: Random) -> Tensor:
        """The last hidden layer, from the first layer's pre-activation (…, H)."""
        h = a
        for n in range(len(self.hidden)):
            if n:
                a = torch.addmm(self.hidden_bias[n], h.flatten(0, -2), self.weights[n - 1])
                a = a.unflatten(0, h.shape[:-1])
            if self.layer_norm:
                a = functional.layer_norm(a, a.shape[-1:], weight=self.gains[n])
            new = apply_dropout(self._act(a), self.dropout, noise)
            h = h + new if n and self.residual and new.shape == h.shape else new
        return h
