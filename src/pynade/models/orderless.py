"""One net for all orderings, trained on random prefixes; samples of one or several variables at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pynade.families import Family
from pynade.models.autoregressive import Autoregressive, Ensemble, check_parts, sum_variables
from pynade.models.density import Model, check_columns, refuse_nan
from pynade.nets.base import AnyOrderNet, Random
from pynade.nets.table import TableNet
from pynade.ordering import Ordering, long_prefix_weights, random_observed
from pynade.precision import computing_in
from pynade.processes import minibatch

ROWS_PER_PASS = 500  # of several members on a CPU, so that activations stay in the cache


class Orderless(Model):
    """An any-order net with a family: D! densities that share their parameters.

    It is not a density itself: its conditionals may differ between orderings. Use `under` or `ensemble`.

    Args:
        net: any-order net.
        family: the distributions that eta stands for.
        stratified: stratify the prefix lengths of each training batch (lower variance, still unbiased).
        long_prefixes: draw long prefixes more often in training, with importance weights, because their
            terms have the largest factors in the objective.

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

        Exact for orderings that begin with the observed variables, followed by i. Unobserved values may be
        NaN.
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
        """Random prefixes for an update on rows x (B, D): masks (B, D) of observed variables."""
        x, part = minibatch(x)
        exists = ~torch.isnan(x) if x.is_floating_point() else None
        options: Any = {"stratified": self.stratified, "long": self.long_prefixes, "device": x.device}
        return random_observed(len(x), self.n_variables, generator, exists=exists, **options)[part]

    def loss_given(self, x: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """The loss for prefixes from `draw`: minus `estimate`, with importance weights if `long_prefixes`."""
        loss = -self.estimate(x, observed, noise)
        if not self.long_prefixes:
            return loss
        total = (~torch.isnan(x)).sum(-1) if x.is_floating_point() else self.n_variables
        return loss * long_prefix_weights(observed.sum(-1), total)

    def estimate(self, x: Tensor, observed: Tensor, noise: Random = None) -> Tensor:
        """Estimate of log p by a prefix: `D / (D - n) Σ_{i not observed} log p(x_i | observed)`.

        Its expectation over uniform prefixes is the mean of log p over all orderings. n is the number of
        observed variables. Missing cells (NaN) are excluded: D and the sum count existing cells only.
        """
        total: int | Tensor = self.n_variables
        ignored = observed
        if x.is_floating_point():  # integers have no NaN, so nothing is missing
            missing = torch.isnan(x)
            x, ignored = self.family.fill(x, ~missing), observed | missing
            total = self.n_variables - missing.sum(-1)
        inner, y, log_slope = self.family.unwrap(x, self.dtype)
        if isinstance(self.net, TableNet) and self.net.members > 1:
            log_p = self._member_log_prob(self.net, inner, y, observed, noise)
        else:
            log_p = inner.log_prob(y, self.net.conditionals(inner.encode(y), observed, noise).to(y.dtype))
        slope = None if log_slope is None else log_slope.masked_fill(ignored, 0)
        sums = sum_variables(log_p.masked_fill(ignored, 0), slope)
        return sums * (total / (total - observed.sum(-1)).double())

    @staticmethod
    def _member_log_prob(net: TableNet, family: Any, y: Tensor, observed: Tensor, noise: Random) -> Tensor:
        """Log-probabilities (B, D): their mean over members in training (with noise), else of the average."""
        parts, size = [], ROWS_PER_PASS if noise is None and y.device.type == "cpu" else max(1, len(y))
        for rows, known in zip(y.split(size), observed.split(size), strict=True):
            etas = net.member_conditionals(family.encode(rows), known, noise)
            log_p = family.member_log_prob(rows, etas, net.n_components)
            parts.append(log_p.logsumexp(0) - math.log(net.members) if noise is None else log_p.mean(0))
        return torch.cat(parts)

    def check(self, x: Tensor) -> None:
        """Columns must match; values must be in the domain or NaN; every row must have a value."""
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
    """n rows (n, D), drawn `per_step` variables at a time, and optionally the mean of each conditional.

    With `per_step=1` the draws are exact. With k, the variables of a step are drawn independently given the
    earlier ones, an approximation in D / k passes instead of D (`pynade figure per-step` measures its error).

    Args:
        model: the orderless model.
        n: number of rows.
        per_step: k, variables drawn at a time; the last step draws the rest.
        generator: source of orderings and values, on the model's device.
        precision: "float32", "tf32" or "bf16" (see `pynade.precision`).
        means: also return the means (n, D) of the distributions from which the values were drawn.
        orderings: a batch of orderings, one of which is drawn for each row: rows of their ensemble. None
            draws a new random ordering for each row: rows of the uniform mixture of all D! orderings.

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
    size, has_nan = net.rows_at_once(device), torch.zeros((), dtype=torch.bool, device=device)
    for x, mean in zip(rows.split(size), expected.split(size), strict=True):  # views
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
            has_nan |= torch.isnan(eta).any()
            x.scatter_(1, i, family.sample(eta, i, generator))
            if means:
                mean.scatter_(1, i, family.mean(eta, i))
    refuse_nan(has_nan)
    return rows, expected if means else None
