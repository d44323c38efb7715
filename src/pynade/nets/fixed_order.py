"""Nets that compute all conditionals along an ordering in one pass: FVSBN (linear), NADE and MADE."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pynade.arguments import check_positive
from pynade.kernels import recurrence, reference
from pynade.nets.base import Net, Random, State, activation_named, glorot, layer_sizes, select_variables
from pynade.nets.layers import apply_dropout
from pynade.ordering import Ordering


class FVSBNNet(Net):
    """Fully visible sigmoid belief network: eta_i = b_i + Σ_{j before i} W[i, j] x_j.

    With Bernoulli conditionals this is one logistic regression per variable. W starts at zero and has D × D
    blocks, of which an ordering uses those with j before i.

    Args:
        n_variables, n_params, n_features: as for `Net`.

    Example:
        >>> FVSBNNet(3)(torch.zeros(2, 3, 1), Ordering.natural(3)).shape
        torch.Size([2, 3, 1])
    """

    input_weights = ("weight",)

    def __init__(self, n_variables: int, n_params: int = 1, *, n_features: int = 1) -> None:
        super().__init__(n_variables, n_params, n_features)
        self.weight = nn.Parameter(torch.zeros(n_variables, n_params, n_variables, n_features))

    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P): one matrix product with masked weights."""
        return _masked_direct(features, self.weight, ordering.before.to(features.device)) + self.bias

    def start(self, groups: int, rows: int) -> State:
        """Eta without observed variables: the bias."""
        return {"eta": self.bias.expand(groups, rows, -1, -1)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """Eta of variable i from the observed variables."""
        return select_variables(state["eta"], i)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Add the contribution of variable i to all eta, O(D)."""
        return {"eta": state["eta"] + torch.einsum("gnf,dpgf->gndp", features, self.weight[:, :, i])}


class NADENet(Net):
    """Weights W, V and biases c, b shared by all D conditionals, for use along any ordering (eqs. 2–5).

        h_d = act(W[:, o_<d] x_{o_<d} + c),   eta_{o_d} = V[o_d] h_d + b_{o_d}

    Args:
        n_variables, n_params, n_features, generator: as for `Net`.
        hidden: H.
        activation: "sigmoid" (the paper's choice for binary data), "relu" or "tanh".
        kernel: the implementation of the recurrence: "auto", "reference", "numba" or "triton" (see
            `pynade.kernels`); not saved.

    Example:
        >>> net = NADENet(4, n_params=1, hidden=8)
        >>> net(torch.zeros(2, 4, 1), Ordering.natural(4)).shape
        torch.Size([2, 4, 1])
    """

    input_weights = ("weight",)

    def __init__(
        self,
        n_variables: int,
        n_params: int = 1,
        hidden: int = 500,
        *,
        n_features: int = 1,
        activation: str = "sigmoid",
        kernel: str = "auto",
        generator: Random = None,
    ) -> None:
        super().__init__(n_variables, n_params, n_features)
        (hidden,) = layer_sizes((hidden,))
        check_positive(hidden=hidden)
        self.hidden, self.kernel, self.activation = hidden, kernel, activation
        self._act = activation_named(activation, reference.ACTIVATIONS)  # those with fused kernels
        fans = n_variables * n_features + hidden
        self.weight = glorot(n_variables, n_features, hidden, fans=fans, generator=generator)
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.output = glorot(n_variables, n_params, hidden, fans=fans, generator=generator)

    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P), O(HD) per row; never in half precision, which the fused kernels do not support."""
        order = ordering.order.to(features.device)
        parts = (self.weight, self.hidden_bias, self.output, self.bias, order, self.activation, self.kernel)
        if not torch.is_autocast_enabled(features.device.type):  # (entering the context takes time)
            return recurrence(features, *parts)
        with torch.autocast(features.device.type, enabled=False):
            return recurrence(features, *parts)

    def start(self, groups: int, rows: int) -> State:
        """a_1 = c (eq. 4)."""
        return {"a": self.hidden_bias.expand(groups, rows, -1)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """V[i] act(a) + b_i (eq. 2), O(H)."""
        return self._act(state["a"]) @ self.output[i].mT + self.bias[i].unsqueeze(1)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """a + W[:, i] x_i (eq. 5), O(H)."""
        return {"a": state["a"] + features @ self.weight[i]}


class MADENet(Net):
    """Masked autoencoder for distribution estimation (Germain et al., 2015).

    Every hidden unit is assigned to a variable (`homes`) and depends on the variables up to and including it
    in the ordering; an output depends on the units of earlier variables. The masks are therefore a function
    of the ordering alone. The D steps of the stepper cost as much as *one* parallel pass: the value of a unit
    is final when its variable has been observed, and is then propagated to the next layer once.

    Args:
        n_variables, n_params, n_features, dropout: as for `Net`.
        hidden: units per layer; an int for one layer; () is a linear model (with `direct`, an FVSBN).
        activation: "relu", "sigmoid" or "tanh".
        direct: add direct input-to-output connections.
        input_observed: distinguish an observed zero from an unobserved variable, for a net of many orderings:
            units of the first layer and direct connections add Σ_j V[j] over their unmasked inputs j, with
            further weights V that start at zero.
        generator: source of the assignment of units to variables and of the initial weights.

    Example:
        >>> net = MADENet(4, hidden=(8, 8), direct=True)
        >>> net(torch.zeros(2, 4, 1), Ordering([3, 1, 0, 2])).shape
        torch.Size([2, 4, 1])
    """

    takes_noise = True

    def __init__(
        self,
        n_variables: int,
        n_params: int = 1,
        hidden: int | Sequence[int] = (500,),
        *,
        n_features: int = 1,
        activation: str = "relu",
        direct: bool = False,
        input_observed: bool = False,
        dropout: float = 0.0,
        generator: Random = None,
    ) -> None:
        super().__init__(n_variables, n_params, n_features, dropout)
        self.hidden = layer_sizes(hidden)
        if any(h < 1 for h in self.hidden):
            raise ValueError(f"every hidden layer needs at least one unit, not {self.hidden}")
        self.activation, self._act = activation, activation_named(activation)
        self.direct, self.input_observed = direct, input_observed
        homes = [torch.empty(0, dtype=torch.long)]
        for h in self.hidden:  # at random, with numbers of units per variable that differ by at most one
            rounds = range(-(-h // n_variables))
            homes.append(torch.cat([torch.randperm(n_variables, generator=generator) for _ in rounds])[:h])
        self.homes = nn.Buffer(torch.cat(homes))
        sizes = (n_variables * n_features, *self.hidden)
        self.hidden_bias = nn.ParameterList(torch.zeros(h) for h in self.hidden)
        self.weights = nn.ParameterList(glorot(*pair, generator=generator) for pair in pairwise(sizes))
        if self.hidden:
            self.output = glorot(sizes[-1], n_variables * n_params, generator=generator)
        if direct or not self.hidden:
            self.direct_weight = nn.Parameter(torch.zeros(n_variables, n_params, n_variables, n_features))
        if input_observed and self.hidden:
            self.observed_weight = nn.Parameter(torch.zeros(n_variables, self.hidden[0]))
        if input_observed and hasattr(self, "direct_weight"):
            self.direct_observed = nn.Parameter(torch.zeros(n_variables, n_params, n_variables))
        inputs = ("weights.0", "direct_weight", "observed_weight", "direct_observed")
        self.input_weights = tuple(n for n, _ in self.named_parameters() if n in inputs)

    def parallel(self, features: Tensor, ordering: Ordering, noise: Random = None) -> Tensor:
        """Eta (B, D, P): one masked matrix product per layer."""
        rank = ordering.rank.to(features.device)
        eta: Tensor = self.bias
        if self.hidden:
            h: Tensor = features.flatten(1)
            input_rank = rank.repeat_interleave(self.n_features)  # the step at which each input is observed
            layers = zip(self.weights, self.hidden_bias, self.homes.split(self.hidden), strict=True)
            for n, (weight, c, home) in enumerate(layers):
                unit_rank = rank[home]  # the step at which each unit is final
                if n == 0 and self.input_observed:
                    c = c + (self.observed_weight * (rank[:, None] <= unit_rank[None, :])).sum(0)
                h = self._act(torch.addmm(c, h, weight * (input_rank[:, None] <= unit_rank[None, :])))
                h = apply_dropout(h, self.dropout, noise)
                input_rank = unit_rank
            output_rank = rank.repeat_interleave(self.n_params)
            out = h @ (self.output * (input_rank[:, None] < output_rank[None, :]))
            eta = eta + out.view(-1, self.n_variables, self.n_params)
        if hasattr(self, "direct_weight"):
            before = ordering.before.to(features.device)
            eta = eta + _masked_direct(features, self.direct_weight, before)
            if self.input_observed:
                eta = eta + (self.direct_observed * before[:, None, :]).sum(-1)
        return eta.expand(len(features), -1, -1)

    def start(self, groups: int, rows: int) -> State:
        """Pre-activations and eta without observed variables: their biases."""
        state = {f"a{n}": c.expand(groups, rows, -1) for n, c in enumerate(self.hidden_bias)}
        return state | {"eta": self.bias.expand(groups, rows, -1, -1)}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """Eta of variable i from the observed variables."""
        return select_variables(state["eta"], i)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Propagate x_i and the units of variable i, without masks: units of earlier variables are final."""
        new = dict(state)
        value, units = features, i[:, None] * self.n_features + torch.arange(self.n_features, device=i.device)
        for n, (weight, home) in enumerate(zip(self.weights, self.homes.split(self.hidden), strict=True)):
            new[f"a{n}"] = new[f"a{n}"] + value @ weight[units]
            if n == 0 and self.input_observed:
                new["a0"] = new["a0"] + self.observed_weight[i][:, None]
            units, exists = _select_units(home, self.n_variables, i)  # (G, m)
            hidden = self._act(new[f"a{n}"])
            value = hidden.gather(2, units[:, None].expand(-1, hidden.shape[1], -1)) * exists[:, None]
        if self.hidden:
            out = value @ self.output[units]
            new["eta"] = new["eta"] + out.unflatten(-1, (self.n_variables, self.n_params))
        if hasattr(self, "direct_weight"):
            new["eta"] = new["eta"] + torch.einsum("gnf,dpgf->gndp", features, self.direct_weight[:, :, i])
            if self.input_observed:
                new["eta"] = new["eta"] + self.direct_observed[:, :, i].permute(2, 0, 1)[:, None]
        return new


def _masked_direct(features: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """Σ_j before[i, j] W[i, :, j] x_j for all i: features (B, D, F), weight (D, P, D, F) -> (B, D, P)."""
    return torch.tensordot(features, weight * before[:, None, :, None], dims=([1, 2], [2, 3]))


def _select_units(home: Tensor, n_variables: int, i: Tensor) -> tuple[Tensor, Tensor]:
    """Indexes (G, m) of the units of variable i[g], padded to the largest number m, and their mask."""
    count = torch.bincount(home, minlength=n_variables)
    by_home = home.argsort(stable=True)
    first = count.cumsum(0) - count
    slot = torch.arange(int(count.max()), device=home.device)
    exists = slot < count[i][:, None]
    return by_home[(first[i][:, None] + slot).clamp(max=len(home) - 1)], exists
