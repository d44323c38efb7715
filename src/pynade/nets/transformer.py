"""Transformers with one token per variable: of any order, or causal, with all conditionals in one pass."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.nets.base import AnyOrderNet, Net, Random, State, glorot
from pynade.nets.layers import Linear, add_norm, attend, dropped
from pynade.ordering import Ordering


class Block(nn.Module):
    """h + attention(norm(h)), then h + net(norm(h)), over tokens (B, T, width).

    What the net adds is added by the next `add_norm`. Norms have no weights and matrices no biases, whose
    gradients would take a fifth of the time. `scale`: of the initial weights of what is added to h.
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
        """Tokens h + more after attention, what the net adds to them, and `past` grown by them (`attend`)."""
        h, normal = add_norm(h, more)
        seen, past = attend(self.queries_keys_values(normal), self.heads, causal, past)
        h, normal = add_norm(h, dropped(self.attended(seen), self.dropout, noise))
        more = self.out(functional.gelu(self.hidden(normal)))
        return h, dropped(more, self.dropout, noise), past


class TokenNet(Net):
    """Abstract transformer with one token per variable, made of a value's embedding and learnt vectors.

    The output layer is shared by all variables and starts at zero: before training eta is the output bias.

    Args:
        n_variables, n_params, n_features, generator: as for `Net`.
        width: numbers per token.
        depth: blocks of attention and a two-layer net.
        heads: attention heads; they divide the width.
        mlp_ratio: hidden units of the two-layer nets, as a multiple of `width`.
        dropout: share of what each half of a block adds that is dropped in training.

    Attributes:
        vectors: names of the learnt vectors and how many of each: 0 is one for each variable, None just one.
        cached: vectors of each token and block that the stepper keeps.
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

    def _read(self, h: Tensor, noise: Random, causal: bool = False, cache: Any = ()) -> tuple[Tensor, list]:
        """Eta of tokens h (B, T, width), but for the biases: (B, T, P); each block's `past` grown by them."""
        more, pasts = None, []
        for layer, past in zip_longest(self.layers, cache):
            h, more, past = layer(h, more, noise, causal, past)
            pasts.append(past)
        normal = add_norm(h, more, exact=True)[1]
        with torch.autocast(h.device.type, enabled=False):  # in the type of the weights
            return functional.linear(normal.to(self.output.dtype), self.output), pasts


class Transformer(TokenNet, AnyOrderNet):
    """Any-order transformer: every token sees every token (Vaswani et al., 2017; norms come first).

    A variable's token is the sum of three vectors: its features through a linear map, *if observed*; one for
    the variable; one for whether it is observed. Its arguments are those of `TokenNet`.

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
        h = _embedded(features.masked_fill(~known, 0), self.value)
        h = h + self.position + torch.where(known, self.flag[1], self.flag[0])
        return self._read(h, noise)[0] + self.bias


class CausalTransformer(TokenNet):
    """Autoregressive transformer: token d holds the value of step d-1 and predicts the variable of step d.

        token_d = value(x_{o_{d-1}}) + seen[o_{d-1}] + asked[o_d],   token_d attends to token_0 … token_d

    Token 0 has no value and starts from a learnt `beginning` instead. One net can be used along any ordering,
    another for every row if need be; it is good at those it was trained on. The stepper keeps the keys and
    values of all earlier tokens and does O(d) work at step d, in `predict` and again in `observe`. Its
    arguments are those of `TokenNet`.

    Example:
        >>> net = CausalTransformer(63, n_params=60)
        >>> net(torch.zeros(2, 63, 1), Ordering.natural(63)).shape
        torch.Size([2, 63, 60])
        >>> sum(p.numel() for p in net.parameters())
        4770500
    """

    takes_noise, takes_orderings = True, True
    cached = 4  # keys and values, old and new
    vectors: ClassVar = {"seen": 0, "asked": 0, "beginning": None}
    seen: nn.Parameter
    asked: nn.Parameter
    beginning: nn.Parameter

    def parallel(self, features: Tensor, ordering: Ordering, noise: Random = None) -> Tensor:
        """Eta (B, D, P): tokens in the given order(s), one causal pass, outputs put back in place."""
        order = ordering.order.to(features.device)
        # data and parameters are put in order, not activations, whose gradients would have to be put back
        last = _embedded(_picked(features, order[..., :-1]), self.value)
        last = last + _named(self.seen, order[..., :-1])
        beginning = self.beginning.expand(len(features), 1, -1)
        h = torch.cat((beginning, last), dim=1) + _named(self.asked, order)
        return _picked(self._read(h, noise, causal=True)[0], ordering.rank.to(h.device)) + self.bias

    def start(self, groups: int, rows: int) -> State:
        """No earlier token and no value."""
        cache = self.bias.new_zeros(groups, rows, self.depth, 2, self.heads, 0, self.width // self.heads)
        return {"last": self.beginning.expand(groups, rows, -1), "cache": cache}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The token that predicts variable i, run through all blocks."""
        return self._push(state, i)[0].view(*state["last"].shape[:2], -1) + self.bias[i].unsqueeze(1)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Keep the keys and values of the token that predicts i, and the value of i."""
        cache = torch.stack(self._push(state, i)[1], dim=1).unflatten(0, features.shape[:2])
        return {"last": _embedded(features, self.value) + self.seen[i].unsqueeze(1), "cache": cache}

    def _push(self, state: State, i: Tensor) -> tuple[Tensor, list[Tensor]]:
        """`_read` of the token (G N, 1, width) that predicts i."""
        h = (state["last"] + self.asked[i].unsqueeze(1)).flatten(0, 1).unsqueeze(1)
        return self._read(h, None, cache=state["cache"].flatten(0, 1).unbind(1))


def _picked(x: Tensor, i: Tensor) -> Tensor:
    """x[b, i[b, d]] of x (B, D, F), for i (B, d), or (d,) that all rows share."""
    return x.index_select(1, i) if i.ndim == 1 else x.gather(1, i[..., None].expand(-1, -1, x.shape[-1]))


def _named(table: Tensor, i: Tensor) -> Tensor:
    """table[i]; for orderings of rows a product, whose gradient needs no sorting of a million indexes."""
    if i.ndim == 1:
        return table[i]
    return (i.unsqueeze(-1) == torch.arange(len(table), device=i.device)).to(table.dtype) @ table


def _embedded(features: Tensor, weight: Tensor) -> Tensor:
    """Features (…, F) times weight (F, width), never in bfloat16: values need more than eight bits."""
    if features.shape[-1] == 1:
        return features * weight  # exact, where a product of matrices may round to TF32
    with torch.autocast(features.device.type, enabled=False):
        return features @ weight
