"""A causal transformer: all conditionals along an ordering in one pass."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from pynade.nets.base import State
from pynade.nets.layers import embedded, read_out
from pynade.nets.norm import add_norm
from pynade.nets.transformer import Block, TokenNet
from pynade.ordering import Ordering


class CausalTransformer(TokenNet):
    """Autoregressive transformer: token d holds the value of step d-1 and predicts the variable of step d.

        token_d = value(x_{o_{d-1}}) + seen[o_{d-1}] + asked[o_d],   token_d attends to token_0 … token_d

    Token 0 has no value and starts from a learnt `beginning` instead. Since every token names the variable it
    predicts, one net can be used along any ordering, another for every row if need be; it is good at those it
    was trained on. (Its prediction of x_i depends on the order of the variables before it; that of a
    `Transformer` depends on the set alone, which takes a pass for every variable.)

    The stepper keeps the keys and values of all earlier tokens and does O(d) work at step d. `observe` must
    work without `predict`, so each of them runs the token through the blocks: the stepper costs two passes of
    every token, not one.

    Args:
        n_variables: D.
        n_params: P, parameters per variable.
        n_features: F, inputs per variable.
        width: numbers per token.
        depth: blocks of attention and a two-layer net.
        heads: attention heads; they divide the width.
        mlp_ratio: hidden units of the two-layer nets, as a multiple of `width`.
        dropout: share dropped in training of what each half of a block adds.
        generator: source of the initial weights.

    Example:
        >>> from pynade.ordering import Ordering
        >>> net = CausalTransformer(63, n_params=60)
        >>> net(torch.zeros(2, 63, 1), Ordering.natural(63)).shape
        torch.Size([2, 63, 60])
        >>> sum(p.numel() for p in net.parameters())
        4770500
    """

    takes_noise = True
    takes_orderings = True
    cached = 4  # keys and values, old and new
    vectors: ClassVar = {"seen": 0, "asked": 0, "beginning": None}
    seen: nn.Parameter
    asked: nn.Parameter
    beginning: nn.Parameter

    def parallel(self, features: Tensor, ordering: Ordering, noise: Generator | None = None) -> Tensor:
        """Eta (B, D, P): tokens in the given order(s), one causal pass, outputs put back in place."""
        order = ordering.order.to(features.device)
        # data and parameters are put in order, not activations, whose gradients would have to be put back
        last = embedded(_picked(features, order[..., :-1]), self.value)
        last = last + _named(self.seen, order[..., :-1])
        beginning = self.beginning.expand(len(features), 1, -1)
        h = torch.cat((beginning, last), dim=1) + _named(self.asked, order)
        return _picked(self._read(h, noise, causal=True), ordering.rank.to(h.device)) + self.bias

    def start(self, groups: int, rows: int) -> State:
        """No earlier token and no value."""
        cache = self.bias.new_zeros(groups, rows, self.depth, self.heads, 0, self.width // self.heads)
        return {"last": self.beginning.expand(groups, rows, -1), "keys": cache, "values": cache}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """The token that predicts variable i, run through all blocks."""
        h, _ = self._push(state, i)
        return read_out(add_norm(h, exact=True)[1], self.output) + self.bias[i].unsqueeze(1)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Keep the keys and values of the token that predicts i, and the value of i."""
        _, grown = self._push(state, i)
        keys, values = (torch.stack(part, dim=1) for part in zip(*grown, strict=True))
        shape = features.shape[:2]
        return {
            "last": embedded(features, self.value) + self.seen[i].unsqueeze(1),
            "keys": keys.unflatten(0, shape),
            "values": values.unflatten(0, shape),
        }

    def _push(self, state: State, i: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The token that predicts i after all blocks (G, N, width), and every block's keys and values."""
        h = state["last"] + self.asked[i].unsqueeze(1)
        shape, h = h.shape[:2], h.flatten(0, 1).unsqueeze(1)
        past = zip(*(state[name].flatten(0, 1).unbind(1) for name in ("keys", "values")), strict=True)
        grown = []
        for layer, (keys, values) in zip(self.layers, past, strict=True):
            assert isinstance(layer, Block)
            h, keys, values = layer.step(h, keys, values)
            grown.append((keys, values))
        return h.squeeze(1).unflatten(0, shape), grown


def _picked(x: Tensor, i: Tensor) -> Tensor:
    """x[b, i[b, d]] of x (B, D, F), for i (B, d), or (d,) that all rows share."""
    if i.ndim == 1:
        return x.index_select(1, i)
    return x.gather(1, i.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _named(table: Tensor, i: Tensor) -> Tensor:
    """table[i]; for orderings of rows a product, whose gradient needs no sorting of a million indexes."""
    if i.ndim == 1:
        return table[i]
    return (i.unsqueeze(-1) == torch.arange(len(table), device=i.device)).to(table.dtype) @ table
