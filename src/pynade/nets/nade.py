"""NADE: one shared hidden layer, updated in O(H) as each variable is seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pynade.arguments import check_positive
from pynade.kernels import recurrence
from pynade.nets.base import Net, Random, State, activation_named, glorot
from pynade.ordering import Ordering


class NADENet(Net):
    """Weights W, V and biases c, b shared by all D conditionals, for use along any ordering (eqs. 2–5).

        h_d = act(W[:, o_<d] x_{o_<d} + c),   eta_{o_d} = V[o_d] h_d + b_{o_d}

    Args:
        n_variables: D.
        n_params: P, parameters per variable (1 for Bernoulli, 3K for a mixture of K Gaussians).
        hidden: H.
        n_features: F, inputs per variable.
        activation: "sigmoid" (the paper's choice for binary data), "relu" or "tanh".
        kernel: which implementation computes the recurrence, "auto", "reference", "numba" or "triton"
            (see `pynade.kernels`); not part of a saved model.
        generator: source of the initial weights.

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
        check_positive(hidden=hidden)
        if activation not in ("sigmoid", "relu", "tanh"):  # those of the fused kernels
            raise ValueError(f"unknown activation {activation!r}; known: sigmoid, relu, tanh")
        self.hidden, self.kernel, self.activation = int(hidden), kernel, activation
        self._act = activation_named(activation)
        fans = n_variables * n_features + hidden
        self.weight = glorot(n_variables, n_features, hidden, fans=fans, generator=generator)
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.output = glorot(n_variables, n_params, hidden, fans=fans, generator=generator)

    def parallel(self, features: Tensor, ordering: Ordering) -> Tensor:
        """Eta (B, D, P), O(HD) per row; never in half precision, which the fused kernels do not have."""
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
