"""One network for every ordering, trained on random prefixes; samples, a few variables at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pynade.families import Family
from pynade.models.autoregressive import Autoregressive, Ensemble, check_parts, row_sums
from pynade.models.density import Model, check_columns, refuse_lost
from pynade.nets.base import AnyOrderNet, Random
from pynade.nets.table import TableNet
from pynade.ordering import Ordering, long_prefix_weights, random_observed
from pynade.precision import computing_in
from pynade.processes import minibatch

ROWS = 500  # of several members at a time, so that what is computed for them stays in a CPU's cache


class Orderless(Model):
    """An any-order net with a family: D! densities that share their parameters.

    It is no density itself, as its conditionals need not agree across orderings; `under` and `ensemble` are.

    Args:
        net: any-order net.
        family: the distributions that eta stands for.
        stratified: spread prefix lengths evenly over each training batch (lower variance, still unbiased).
        long_prefixes: draw long prefixes more often in training, with weights that keep the objective: their
            sums have few terms, each of which counts much.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(8, 8)), Bernoulli())
        >>> x = torch.tensor([[0.0, 1.0, 1.0]])
        >>> deep.under(Ordering([2, 0, 1])).log_prob(x).shape
        torch.Size([1])
        >>> deep.ensemble(Ordering.random(3, k=4)).log_prob(x).shape
        torch.Size([1])
    """

    def __init__(
        self, net: AnyOrderNet, family: Family, stratified: bool = True, long_prefixes: bool = False
    ) -> None:
        super().__init__()
        check_parts(net, family)
        self.net, self.family = net, family
        self.stratified, self.long_prefixes = stratified, long_prefixes
        self.n_variables = net.n_variables

    def under(self, ordering: Ordering) -> Autoregressive:
        """The density along one ordering; it shares this model's parameters."""
        return Autoregressive(self.net, self.family, ordering.to(self.device))

    def ensemble(self, orderings: Ordering) -> Ensemble:
        """The average of the densities along K orderings; it shares this model's parameters."""
        return Ensemble(self.net, self.family, orderings.to(self.device))

    def conditionals(self, x: Tensor, observed: Tensor) -> Tensor:
        """Eta (B, D, P) of p(x_i | observed variables) for all unobserved i, in one pass.

        Exact where the observed variables come first and i next. Unobserved values may be NaN.
        """
        check_columns(x, self.n_variables)
        if (torch.isnan(x) & observed).any():
            raise ValueError("a value that is observed cannot be missing (NaN)")
        self.family.check(self.family.fill(x, observed))
        x = x.to(self.dtype)
        return self.net.conditionals(self.family.encode(self.family.fill(x, ~torch.isnan(x))), observed)

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """Unbiased estimates of the rows' mean negative log-likelihoods over all orderings (eq. hatloss)."""
        return self.loss_given(x, self.draw(x, generator), generator)

    def draw(self, x: Tensor, generator: Random = None) -> Tensor:
        """What an update on rows x (B, D) draws: prefixes (B, D)."""
        x, own = minibatch(x)
        exists = ~torch.isnan(x) if x.is_floating_point() else None
        options: Any = {"stratified": self.stratified, "long": self.long_prefixes, "device": x.device}
        return random_observed(len(x), self.n_variables, generator, exists=exists, **options)[own]

    def loss_given(self, x: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """The loss for prefixes that `draw` gave: minus `estimate`; with `long_prefixes` weighted."""
        loss = -self.estimate(x, observed, noise)
        if not self.long_prefixes:
            return loss
        total = (~torch.isnan(x)).sum(-1) if x.is_floating_point() else self.n_variables
        return loss * long_prefix_weights(observed.sum(-1), total)

    def estimate(self, x: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """What a prefix says of log p: `D / (D - n) Σ_{i not observed} log p(x_i | observed)`.

        Its mean over uniform prefixes is that over all orderings. n is the number of observed variables.
        Missing cells (NaN) are never conditioned on: D is the number
        of those that exist, as in the sum.
        """
        total: int | Tensor = self.n_variables
        ignored = observed
        if x.is_floating_point():  # integers have no NaN, so nothing is missing
            missing = torch.isnan(x)
            x, ignored = self.family.fill(x, ~missing), observed | missing
            total = self.n_variables - missing.sum(-1)
        inner, y, log_slope = self.family.unwrap(x, self.dtype)
        if isinstance(self.net, TableNet) and self.net.members > 1:
            each = self._of_members(self.net, inner, y, observed, noise)
        else:
            each = inner.log_prob(y, self.net.conditionals(inner.encode(y), observed, noise).to(y.dtype))
        slope = None if log_slope is None else log_slope.masked_fill(ignored, 0)
        log_p = row_sums(each.masked_fill(ignored, 0), slope)
        return log_p * (total / (total - observed.sum(-1)).double())

    @staticmethod
    def _of_members(net: TableNet, family: Any, y: Tensor, observed: Tensor, noise: Random) -> Tensor:
        """Log-probabilities (B, D): the members' mean in training (with noise), else those of the average."""
        parts, at_once = [], ROWS if noise is None and y.device.type == "cpu" else max(1, len(y))
        for rows, known in zip(y.split(at_once), observed.split(at_once), strict=True):
            etas = net.of_members(family.encode(rows), known, noise)
            each = family.member_log_prob(rows, etas, net.n_components)
            parts.append(each.logsumexp(0) - math.log(net.members) if noise is None else each.mean(0))
        return torch.cat(parts)

    def check(self, x: Tensor) -> None:
        """Columns must match; values are in the family's domain or missing (NaN); no row is all missing."""
        check_columns(x, self.n_variables)
        missing = torch.isnan(x)
        self.family.check(self.family.fill(x, ~missing))
        empty = missing.all(-1)
        if empty.any():
            raise ValueError(f"row {int(empty.nonzero()[0, 0])} has no value at all: every cell is missing")


@torch.no_grad()
def draw_blocks(
    model: Orderless,
    n: int,
    per_step: int = 1,
    generator: Random = None,
    precision: str = "float32",
    means: bool = False,
    orderings: Ordering | None = None,
) -> tuple[Tensor, Tensor | None]:
    """n rows (n, D), `per_step` variables at a time, and on demand the expectation of each value when drawn.

    With `per_step=1` these are exact draws. Several at once are drawn independently given those before them:
    an approximation in D / k passes instead of D, whose loss `pynade figure per-step` measures.

    Args:
        model: the orderless model.
        n: how many rows.
        per_step: k, variables drawn at once; the last step takes what is left.
        generator: source of orderings and values, on the model's device.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).
        means: give the expectations (n, D) too.
        orderings: a batch, along one of which each row is drawn: from their ensemble. None takes a random
            one for every row: from the uniform mixture of all D! orderings.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(6, hidden=(4,)), Bernoulli())
        >>> draw_blocks(deep, 5, per_step=4, generator=torch.Generator().manual_seed(0))[0].shape
        torch.Size([5, 6])
    """
    if per_step < 1:
        raise ValueError(f"at least 1 variable is drawn at a time, not {per_step}")
    if n < 1:
        raise ValueError(f"the number of rows must be at least 1, not {n}")
    net, family, device = model.net, model.family, model.device
    rows, expected = (torch.zeros(n, model.n_variables, dtype=model.dtype, device=device) for _ in range(2))
    at_once, lost = net.rows_at_once(device), torch.zeros((), dtype=torch.bool, device=device)
    for x, mean in zip(rows.split(at_once), expected.split(at_once), strict=True):  # views
        if orderings is None:
            order = torch.rand(x.shape, generator=generator, device=device).argsort(1)
        else:
            member = torch.randint(len(orderings), (len(x),), generator=generator, device=device)
            order = orderings.order.to(device)[member]
        rank = order.argsort(1)
        x.copy_(family.fill(x, torch.zeros_like(rank, dtype=torch.bool)))
        for start in range(0, model.n_variables, per_step):
            i = order[:, start : start + per_step]
            with computing_in(precision, device):
                eta = net.conditionals(family.encode(x), rank < start)
            eta = eta.to(model.dtype).gather(1, i[..., None].expand(-1, -1, eta.shape[-1]))  # (B, k, P)
            lost |= torch.isnan(eta).any()
            x.scatter_(1, i, family.sample(eta, i, generator))
            if means:
                mean.scatter_(1, i, family.mean(eta, i))
    refuse_lost(lost)
    return rows, expected if means else None
