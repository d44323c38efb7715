"""Transformers with one token per variable: for any order, or causal (all conditionals in one pass)."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.nets.base import AnyOrderNet, Net, Random, State, glorot
from pynade.nets.layers import Linear, add_norm, apply_dropout, attend
from pynade.ordering import Ordering


class Block(nn.Module):
    """h + attention(norm(h)), then h + net(norm(h)), over tokens (B, T, width).

    The output of the net is added by the `add_norm` that follows. Norms have no weights and matrices have no
    biases, whose gradients would take a fifth of the time. `scale` multiplies the initial weights of the
    residual branches.
    """

    def __init__(self, net: TokenNet, scale: float, generator: Random) -> None:
        super().__init__()
        self.heads, self.dropout = net.heads, net.dropout
        width, hidden = net.width, net.mlp_ratio * net.width
        self.queries_keys_values = Linear(width, 3 * width, generator, bias=False)
        self.attended = Linear(width, width, generator, scale, bias=False)
        self.hidden = Linear(width, hidden, generator, bias=False)
        self.out = Linear(hidden, width, generator, scale, bias=False)

    def forward(
        self, h: Tensor, more: Tensor | None, noise: Random, causal: bool = False, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens h + more after attention, the output of the net, and the updated `past` (`attend`)."""
        h, normal = add_norm(h, more)
        values, past = attend(self.queries_keys_values(normal), self.heads, causal, past)
        h, normal = add_norm(h, apply_dropout(self.attended(values), self.dropout, noise))
        more = self.out(functional.gelu(self.hidden(normal)))
        return h, apply_dropout(more, self.dropout, noise), past


class TokenNet(Net):
    """Abstract transformer; the token of a variable is the sum of its value's embedding and learnt vectors.

    The output layer is shared by all variables and starts at zero: the initial eta is the output bias.

    Args:
        n_variables, n_params, n_features, generator: as for `Net`.
        width: numbers per token.
        depth: blocks of attention and a two-layer net.
        heads: attention heads; they divide the width.
        mlp_ratio: hidden units of the two-layer nets, as a multiple of `width`.
        dropout: share of the output of each residual branch that is dropped in training.

    Attributes:
        vectors: names of the learnt vectors and their numbers: 0 is one per variable, None a single vector.
        cached: vectors per token and block in the state of the stepper.
    """

    input_weights = ("value",)
    vectors: ClassVar[dict[str, int | None]] = {}
    cached = 0
    value: nn.Parameter

    def __init__(
        self,
        n_variables: int,
        n_params: int = 1,
        *,
        n_features: int = 1,
        width: int = 256,
        depth: int = 6,
        heads: int = 8,
        mlp_ratio: int = 4,
        dropout: float = 0.0,
        generator: Random = None,
    ) -> None:
        super().__init__(n_variables, n_params, n_features, dropout)
        check_positive(width=width, depth=depth, heads=heads, mlp_ratio=mlp_ratio)
        if width % heads:
            raise ValueError(f"heads must divide the width {width}, not {heads}")
        self.width, self.depth, self.heads, self.mlp_ratio = width, depth, heads, mlp_ratio
        one_pass = (mlp_ratio + 6) * width + 2 * n_params
        self.row_floats = n_variables * max(self.cached * depth * width, one_pass)
        for name, count in {"value": n_features, **self.vectors}.items():
            shape = (width,) if count is None else (count or n_variables, width)
            self.register_parameter(name, glorot(*shape, fans=n_features + width, generator=generator))
        scale = 1 / (2 * depth) ** 0.5
        self.layers = nn.ModuleList(Block(self, scale, generator) for _ in range(depth))
        self.output = nn.Parameter(torch.zeros(n_params, width))

    def _run_blocks(
        self, h: Tensor, noise: Random, causal: bool = False, cache: Any = ()
    ) -> tuple[Tensor, list]:
        """Eta (B, T, P) of tokens h (B, T, width), without biases, and the updated `past` of each block."""
        more, pasts = None, []
        for layer, past in zip_longest(self.layers, cache):
            h, more, past = layer(h, more, noise, causal, past)
            pasts.append(past)
        normal = add_norm(h, more, exact=True)[1]
        with torch.autocast(h.device.type, enabled=False):  # in the dtype of the weights
            return functional.linear(normal.to(self.output.dtype), self.output), pasts


class Transformer(TokenNet, AnyOrderNet):
    """Any-order transformer with attention between all tokens (Vaswani et al., 2017; pre-norm).

    A variable's token is the sum of three vectors: a linear map of its features, *if observed*; a vector of
    the variable; and one of two vectors for observed and unobserved. Its arguments are those of `TokenNet`.

    Example:
        >>> net = Transformer(63, n_params=60)
        >>> net.conditionals(torch.ones(2, 63, 1), torch.ones(2, 63, dtype=torch.bool)).shape
        torch.Size([2, 63, 60])
        >>> sum(p.numel() for p in net.parameters())
        4754628
    """

    vectors: ClassVar = {"position": 0, "flag": 2}  # flags: unobserved, observed
    position: nn.Parameter
    flag: nn.Parameter

    def conditionals(self, features: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        known = observed.unsqueeze(-1)
        h = _embed(features.masked_fill(~known, 0), self.value)
        h = h + self.position + torch.where(known, self.flag[1], self.flag[0])
        return self._run_blocks(h, noise)[0] + self.bias


class CausalTransformer(TokenNet):
    """Autoregressive transformer: token d holds the value of step d-1 and predicts the variable of step d.

        token_d = value(x_{o_{d-1}}) + seen[o_{d-1}] + asked[o_d],   token_d attends to token_0 … token_d

    Token 0 has a learnt vector `beginning` instead of a value. A net can be used along any ordering, or one
    ordering per row, but fits well only those it was trained on. The stepper stores the keys and values of
    all earlier tokens; step d takes O(d) time, in `predict` and again in `observe`. Its arguments are those
    of `TokenNet`.

    Example:
        >>> net = CausalTransformer(63, n_params=60)
        >>> net(torch.zeros(2, 63, 1), Ordering.natural(63)).shape
        torch.Size([2, 63, 60])
        >>> sum(p.numel() for p in net.parameters())
        4770500
    """

    takes_noise, takes_orderings = True, True
    cached = 4  # keys and values, before and after a step
    vectors: ClassVar = {"seen": 0, "asked": 0, "beginning": None}
    seen: nn.Parameter
    asked: nn.Parameter
    beginning: nn.Parameter

    def parallel(self, features: Tensor, ordering: Ordering, noise: Random = None) -> Tensor:
        """Eta (B, D, P): one causal pass over the tokens in the given order(s)."""
        order = ordering.order.to(features.device)
        # (reorders data and parameters instead of activations, whose gradients would be reordered too)
        last = _embed(_gather_variables(features, order[..., :-1]), self.value)
        last = last + _lookup(self.seen, order[..., :-1])
        beginning = self.beginning.expand(len(features), 1, -1)
        h = torch.cat((beginning, last), dim=1) + _lookup(self.asked, order)
        return (
            _gather_variables(self._run_blocks(h, noise, causal=True)[0], ordering.rank.to(h.device))
            + self.bias
        )

    def start(self, groups: int, rows: int) -> State:
        """A state without earlier tokens and without a value."""
        cache = self.bias.new_zeros(groups, rows, self.depth, 2, self.heads, 0, self.width // self.heads)
        return {"last": self.beginning.expand(groups, rows, -1), "cache": cache}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """Eta of variable i, from a pass of its token through all blocks."""
        return self._run_next_token(state, i)[0].view(*state["last"].shape[:2], -1) + self.bias[i].unsqueeze(
            1
        )

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Append the keys and values of the token of variable i, and store its value."""
        cache = torch.stack(self._run_next_token(state, i)[1], dim=1).unflatten(0, features.shape[:2])
        return {"last": _embed(features, self.value) + self.seen[i].unsqueeze(1), "cache": cache}

    def _run_next_token(self, state: State, i: Tensor) -> tuple[Tensor, list[Tensor]]:
        """`_run_blocks` of the token (G N, 1, width) that predicts variable i."""
        h = (state["last"] + self.asked[i].unsqueeze(1)).flatten(0, 1).unsqueeze(1)
        return self._run_blocks(h, None, cache=state["cache"].flatten(0, 1).unbind(1))


def _gather_variables(x: Tensor, i: Tensor) -> Tensor:
    """x[b, i[b, d]] of x (B, D, F), for i (B, d), or (d,) for all rows."""
    return x.index_select(1, i) if i.ndim == 1 else x.gather(1, i[..., None].expand(-1, -1, x.shape[-1]))


def _lookup(table: Tensor, i: Tensor) -> Tensor:
    """table[i]; for i (B, d) by a matrix product, whose gradient is faster than that of indexing."""
    if i.ndim == 1:
        return table[i]
    return (i.unsqueeze(-1) == torch.arange(len(table), device=i.device)).to(table.dtype) @ table


def _embed(features: Tensor, weight: Tensor) -> Tensor:
    """Features (…, F) times weight (F, width), never in bfloat16, which is too imprecise for values."""
    if features.shape[-1] == 1:
        return features * weight  # exact, while a matrix product may use TF32
    with torch.autocast(features.device.type, enabled=False):
        return features @ weight
