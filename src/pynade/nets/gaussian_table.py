"""Any-order nets of mixed tables: a mixture of Gaussians with levels, and the average of several nets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.nets.base import CPU_MEMORY, AnyOrderNet, State
from pynade.nets.table import TableNet, average_distributions

LEAST = 1e-8  # variance, and scale, of a variable that is given by others
OFFSET, SCALE = 0.55852, 0.46373  # two logistics at ± OFFSET: a standard normal to 0.002 nats


class GaussianTableNet(AnyOrderNet):
    """The conditionals of a mixture of C components, in each of which numbers are jointly Gaussian.

    Within a component the variables with levels are independent of all others. Given any observed variables,
    a variable of numbers is a mixture of C Gaussians, each given as two logistics side by side, a variable
    with levels a weighted mean of C distributions. `pynade.classical.table_em.em_table` fits it.

    Args:
        levels: of each variable its number of levels; 0 for numbers, whose first feature it models.
        n_components: C.
        n_features: F.
        sigma_floor: smallest scale of the family.

    Example:
        >>> net = GaussianTableNet([0, 0, 3], n_components=2)
        >>> net.conditionals(torch.zeros(5, 3, 1), torch.zeros(5, 3, dtype=torch.bool)).shape
        torch.Size([5, 3, 12])
    """

    counts: Tensor
    number: Tensor
    spot: Tensor
    log_pi: Tensor
    mean: Tensor
    covariance: Tensor
    log_theta: Tensor

    def __init__(
        self, levels: Sequence[int], n_components: int, n_features: int = 1, sigma_floor: float = 0.001
    ) -> None:
        self.levels = [int(n) for n in levels]
        number = [i for i, n in enumerate(self.levels) if not n]
        check_positive(n_components=n_components)
        super().__init__(len(levels), max(6 * n_components if number else 1, *self.levels), n_features)
        self.n_components, self.sigma_floor = n_components, sigma_floor
        self.mixed_components = 2 * n_components if number else 0
        self.bias.requires_grad_(False)
        C, n, most = n_components, len(number), max(1, *self.levels)
        spot = [number.index(i) if i in number else 0 for i in range(len(levels))]
        self.row_floats: int = C * max(1, n) * (n + 2)
        for name, value in (
            ("counts", torch.tensor(self.levels)),
            ("number", torch.tensor(number, dtype=torch.long)),
            ("spot", torch.tensor(spot)),  # place of a variable among the numbers
            ("log_pi", torch.full((C,), -math.log(C))),
            ("mean", torch.zeros(C, n)),
            ("covariance", torch.eye(n).repeat(C, 1, 1)),
            ("log_theta", torch.full((C, len(levels), most), -math.log(most))),  # of levels
        ):
            self.register_buffer(name, value)

    def conditionals(self, features: Tensor, observed: Tensor, noise: Generator | None = None) -> Tensor:
        """Eta (B, D, P) given the observed variables, in one pass."""
        at_once = max(1, CPU_MEMORY // (16 * self.row_floats))
        parts = zip(features[..., 0].split(at_once), observed.split(at_once), strict=True)
        return torch.cat([self._eta(*self._given(x, known)) for x, known in parts])

    def _given(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (B, C), means and variances (B, C, n) of components given the observed values of rows.

        In float64: variables that nearly determine each other make covariances nearly singular.
        """
        x, log_w = x.double().masked_fill(~observed, 0), self.log_pi.double()
        level = torch.nonzero(self.counts).flatten()
        if len(level):
            index = x[:, level].long().T.unsqueeze(1).expand(-1, self.n_components, -1)  # (L, C, B)
            of_levels = self.log_theta[:, level].transpose(0, 1).gather(2, index).double()
            log_w = log_w + (of_levels * observed[:, level].T.unsqueeze(1)).sum(0).T
        known, covariance, mean = observed[:, None, self.number], self.covariance.double(), self.mean.double()
        error = (x[:, None, self.number] - mean) * known  # (B, C, n)
        columns = covariance * known.unsqueeze(-1)  # of observed variables with all others
        block = torch.where(known.unsqueeze(-2), columns, 0) + torch.diag_embed((~known).double())
        root = torch.linalg.cholesky(block)
        solved = torch.linalg.solve_triangular(
            root, torch.cat([columns, error.unsqueeze(-1)], -1), upper=False
        )
        slopes, scaled = solved[..., :-1], solved[..., -1]
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_w = log_w - 0.5 * (scaled.square().sum(-1) + log_det + math.log(2 * math.pi) * known.sum(-1))
        variance = covariance.diagonal(dim1=-2, dim2=-1) - slopes.square().sum(-2)
        return log_w, mean + (slopes * scaled.unsqueeze(-1)).sum(-2), variance

    def _eta(self, log_w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Eta (B, D, P) of all variables, from the moments of the components."""
        log_w = log_w.log_softmax(-1)
        eta = mean.new_zeros(len(log_w), self.n_variables, self.n_params)
        theta = self.log_theta.double().exp().flatten(1)  # (C, D L)
        p = (log_w.exp() @ theta).unflatten(1, self.log_theta.shape[1:])
        eta[..., : p.shape[-1]] = torch.where(p > 0, p.log(), self.log_theta[0])  # (0: of no variable)
        if len(self.number):
            mixture = self._mixture(log_w.unsqueeze(1), mean.mT, variance.mT)
            eta[:, self.number] = functional.pad(mixture, (0, self.n_params - mixture.shape[-1]))
        return eta.to(self.mean.dtype)

    def _mixture(self, log_w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Parameters (…, 6 C) of a variable of numbers: two logistics for each Gaussian."""
        sd = variance.clamp(min=LEAST).sqrt().expand_as(mean)
        raw = torch.log((SCALE * sd - self.sigma_floor).clamp(min=LEAST))
        log_w = (log_w - math.log(2)).expand_as(mean)
        return torch.cat([log_w, log_w, mean - OFFSET * sd, mean + OFFSET * sd, raw, raw], -1)

    def start(self, groups: int, rows: int) -> State:
        """Weights and means of rows; covariances of the groups, which share one as long as they are equal."""
        return {
            "log_w": self.log_pi.expand(groups, rows, -1),
            "mean": self.mean.expand(groups, rows, -1, -1),
            "covariance": self.covariance.unsqueeze(0),
            "which": torch.zeros(groups, dtype=torch.long, device=self.mean.device),
        }

    def select(self, state: State, group: Tensor, rows: Tensor) -> State:
        """The rows of a group share its covariance, so only the others are selected."""
        return state | {name: state[name][group[:, None], rows] for name in ("log_w", "mean")}

    def predict(self, state: State, i: Tensor) -> Tensor:
        """Eta (G, N, P) of variable i[g]."""
        log_w = state["log_w"].log_softmax(-1)
        theta = self.log_theta[:, i].transpose(0, 1).unsqueeze(1)  # (G, 1, C, L)
        levels = torch.logsumexp(log_w.unsqueeze(-1) + theta, -2)
        levels = functional.pad(levels, (0, self.n_params - levels.shape[-1]))
        if not len(self.number):
            return levels
        group, j = torch.arange(len(i), device=i.device), self.spot[i]
        mean = state["mean"][group, ..., j]
        variance = state["covariance"][state["which"], :, j, j].unsqueeze(1)
        numbers = self._mixture(log_w, mean, variance)
        numbers = functional.pad(numbers, (0, self.n_params - numbers.shape[-1]))
        return torch.where((self.counts[i] > 0)[:, None, None], levels, numbers)

    def observe(self, state: State, i: Tensor, features: Tensor) -> State:
        """Condition on variable i."""
        x, log_w, mean, level = features[..., 0], state["log_w"], state["mean"], (self.counts[i] > 0)[:, None]
        index = torch.where(level, x, 0).long().unsqueeze(1).expand(-1, self.n_components, -1)
        change = self.log_theta[:, i].transpose(0, 1).gather(2, index).mT  # (G, N, C)
        if not len(self.number):
            return state | {"log_w": log_w + change}
        none = self.n_variables  # stands for no variable of numbers
        key = state["which"] * (none + 1) + torch.where(level[:, 0], none, i)
        key, which = torch.unique(key, return_inverse=True)
        before, variable = state["covariance"][key // (none + 1)], key % (none + 1)
        j = self.spot[variable.clamp(max=none - 1)]
        one = torch.arange(len(key), device=key.device)
        column, variance = before[one, :, :, j], before[one, :, j, j].clamp(min=LEAST)  # (U, C, n), (U, C)
        slope = torch.where((variable < none)[:, None, None], column / variance.unsqueeze(-1), 0)
        group = torch.arange(len(i), device=i.device)
        error = x.unsqueeze(-1) - mean[group, ..., self.spot[i]]  # (G, N, C)
        spread = variance[which].unsqueeze(1)
        log_density = -0.5 * (error**2 / spread + torch.log(2 * math.pi * spread))
        change = torch.where(level.unsqueeze(-1), change, log_density)
        return {
            "log_w": log_w + change,
            "mean": mean + error.unsqueeze(-1) * slope[which].unsqueeze(1),
            "covariance": before - slope.unsqueeze(-1) * column.unsqueeze(-2),
            "which": which,
        }


class TableBlend(AnyOrderNet):
    """The average of the conditionals of several nets of one table, by fixed weights.

    Args:
        parts: the nets.
        weights: of each, which sum to 1.

    Example:
        >>> parts = [TableNet([0, 3], 6, hidden=8), GaussianTableNet([0, 3], 1)]
        >>> net = TableBlend(parts, [0.75, 0.25])
        >>> net.conditionals(torch.zeros(5, 2, 1), torch.zeros(5, 2, dtype=torch.bool)).shape
        torch.Size([5, 2, 12])
    """

    counts: Tensor

    def __init__(self, parts: Sequence[TableNet | GaussianTableNet], weights: Sequence[float]) -> None:
        first = parts[0]
        sizes = [part.mixed_components for part in parts]
        super().__init__(first.n_variables, max(3 * sum(sizes), *first.levels), first.n_features)
        self.bias.requires_grad_(False)
        self.parts, self.weights = nn.ModuleList(parts), [float(w) for w in weights]
        self.sizes, self.most = sizes, max(first.levels)
        floats = [part.row_floats for part in parts if part.row_floats is not None]
        self.row_floats = max(floats, default=None)
        self.register_buffer("counts", torch.tensor(first.levels))

    def conditionals(self, features: Tensor, observed: Tensor, noise: Generator | None = None) -> Tensor:
        """Eta (B, D, P) of the average."""
        return self._merged([part.conditionals(features, observed) for part in self._nets()], self.counts)

    def _nets(self) -> list[AnyOrderNet]:
        return list(self.parts)  # type: ignore[arg-type]

    def _merged(self, etas: list[Tensor], counts: Tensor) -> Tensor:
        logs = [math.log(w) for w in self.weights]
        return average_distributions(etas, logs, self.sizes, counts, self.most, self.n_params)

    def start(self, groups: int, rows: int) -> Any:
        """The states of all parts."""
        return [part.start(groups, rows) for part in self._nets()]

    def select(self, state: Any, group: Tensor, rows: Tensor) -> Any:
        """Every part selects its own."""
        return [part.select(own, group, rows) for part, own in zip(self._nets(), state, strict=True)]

    def predict(self, state: Any, i: Tensor) -> Tensor:
        """Eta (G, N, P) of the average."""
        etas = [part.predict(own, i) for part, own in zip(self._nets(), state, strict=True)]
        return self._merged(etas, self.counts[i].unsqueeze(1))

    def observe(self, state: Any, i: Tensor, features: Tensor) -> Any:
        """Every part observes it."""
        return [part.observe(own, i, features) for part, own in zip(self._nets(), state, strict=True)]
