"""Binary densities with exact marginals; mixtures of Bernoullis (the paper's MoB) and their EM."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.classical.em import EM, Array, EMOptions, Random
from pynade.families import Bernoulli, Family
from pynade.likelihood import Estimate
from pynade.models.density import Marginalisable, check_columns
from pynade.training.history import History

CHUNK_ROWS = 4096  # rows whose messages or responsibilities are computed together
CHUNK = 2**24  # values of a (rows, K) or (rows, D) block: 64 MiB in float32

Cells = tuple[Tensor, Tensor | None]  # binary rows, and which of their cells are observed; None means all


class BinaryMarginalisable(Marginalisable):
    """Abstract density of D binary variables that computes p(observed) and every p(x_i = 1 | observed)."""

    def __init__(self, n_variables: int) -> None:
        super().__init__()
        check_positive(n_variables=n_variables)
        self.n_variables = n_variables
        self.family = Bernoulli()

    @abstractmethod
    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells, (B,), float64; unobserved cells of x are zero."""

    @abstractmethod
    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        """Logits (B, D) of p(x_i = 1 | observed cells), float64; `only` restricts them to one variable."""

    @abstractmethod
    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """n joint draws of the unobserved cells of each row, (n, B, D); unobserved cells of x are zero."""

    def marginal_log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells of each row, (B,), float64."""
        return self._apply_in_chunks(self._marginal, x, observed)

    @torch.no_grad()
    def best_guess(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows with the more probable value of each unobserved cell given the observed ones: (B, D)."""
        guess = self._apply_in_chunks(self._logits_given, x, observed) > 0
        return torch.where(observed, x.to(self.dtype), guess.to(self.dtype))

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): the Bernoulli family and its logits (B, 1)."""
        logits = self._apply_in_chunks(lambda x, o: self._logits_given(x, o, i)[:, i], x, observed)
        return self.family, logits[:, None]

    @torch.no_grad()
    def sample_given(self, x: Tensor, observed: Tensor, n: int = 1, generator: Random = None) -> Tensor:
        """n exact joint draws of the unobserved cells of each row: (n, B, D)."""
        return self._draw_given(self._zero_missing(x, observed), observed, n, generator)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n exact draws (n, D)."""
        empty_row = torch.zeros(1, self.n_variables, dtype=self.dtype, device=self.device)
        return self.sample_given(empty_row, torch.zeros_like(empty_row, dtype=torch.bool), n, generator)[:, 0]

    def check_cells(self, x: Tensor, observed: Tensor) -> None:
        """Observed cells must be exactly 0 or 1."""
        check_columns(x, self.n_variables)
        self.family.check(torch.where(observed, x, 0))

    def _apply_in_chunks(self, function: Callable[..., Tensor], x: Tensor, observed: Tensor) -> Tensor:
        """The results of `function` for rows and their observed cells, computed in chunks of rows."""
        chunks = (t.split(CHUNK_ROWS) for t in (self._zero_missing(x, observed), observed))
        return torch.cat([function(*chunk) for chunk in zip(*chunks, strict=True)])

    def _zero_missing(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.where(observed, x, 0).to(self.dtype)


class BinaryMixture(BinaryMarginalisable):
    """Abstract mixture of K binary densities; its weights are the softmax of `log_weights` (K,)."""

    n_components: int
    log_weights: Tensor
    logits: Tensor  # of all components

    @abstractmethod
    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log p_k(observed cells), (B, K), float64; `observed` None means all."""

    def _log_prob(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x, observed), -1)

    _marginal = _log_prob


def draw_bernoulli(logits: Tensor, generator: Random) -> Tensor:
    """Draws of Bernoulli variables with these logits, float64."""
    return Bernoulli().sample(logits.double().unsqueeze(-1), generator=generator)


def draw_indexes(log_weights: Tensor, n: int, generator: Random) -> Tensor:
    """n indexes for each row of (unnormalised) log-weights (B, K), by inverting the CDF: (n, B)."""
    edges = torch.softmax(log_weights.double(), -1).cumsum(-1)
    uniform = torch.rand(len(edges), n, generator=generator, dtype=edges.dtype, device=edges.device)
    index = torch.searchsorted(edges, uniform * edges[:, -1:], right=True)
    return index.clamp_(max=edges.shape[-1] - 1).T.contiguous()


def check_binary_rows(
    x: Array, valid: Array | None = None, n_variables: int | None = None, missing: bool = False
) -> tuple[Cells, Cells | None]:
    """Training rows, and validation rows on the same device, as uint8; `missing` allows NaN."""
    results: list[Cells] = []
    for name, data in (("training", torch.as_tensor(x)), ("validation", valid)):
        if data is None:
            return results[0], None
        rows = torch.as_tensor(data, device=results[0][0].device if results else None)
        if rows.ndim != 2 or not rows.numel():
            raise ValueError(f"{name} rows have shape (N, D) with at least one row, not {tuple(rows.shape)}")
        if n_variables not in (None, rows.shape[1]):
            count = rows.shape[1]
            raise ValueError(f"{name} rows have {count} columns, the model has {n_variables} variables")
        n_variables, observed = rows.shape[1], ~torch.isnan(rows)
        complete = bool(observed.all())
        if not (complete or missing):
            raise ValueError(f"{name} rows have missing values (NaN), which this method cannot use")
        values = rows if complete else torch.where(observed, rows, 0)
        if not bool(((values == 0) | (values == 1)).all()):
            raise ValueError(f"{name} rows must hold values that are exactly 0 or 1")
        results.append((values.to(torch.uint8), None if complete else observed))
    return results[0], results[1]


class BernoulliMixture(BinaryMixture):
    """p(x) = Σ_k w_k Π_d θ_kd^x_d (1 − θ_kd)^(1−x_d).

    Weights are the softmax of `log_weights` (K,), θ the sigmoid of `logits` (K, D). `em_bernoulli` fits one;
    a new one has K equal, fair components.

    Args:
        n_variables: D.
        n_components: K.

    Example:
        >>> model = BernoulliMixture(2, 3)
        >>> round(model.log_prob(torch.tensor([[0.0, 1.0]])).exp().item(), 6)
        0.25
    """

    def __init__(self, n_variables: int, n_components: int) -> None:
        super().__init__(n_variables)
        check_positive(n_components=n_components)
        self.n_components = n_components
        self.log_weights = nn.Parameter(torch.zeros(n_components))
        self.logits = nn.Parameter(torch.zeros(n_components, n_variables))

    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log p_k(observed cells), (B, K), float64; one matrix product, two with missing cells."""
        ones = (x @ self.logits.T).double()
        base = functional.logsigmoid(-self.logits)  # log p_k(x_d = 0)
        zeros = base.sum(-1, dtype=torch.float64) if observed is None else observed.to(x.dtype) @ base.T
        return ones + zeros.double() + torch.log_softmax(self.log_weights.double(), 0)

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        weights = torch.softmax(self.component_log_probs(x, observed), -1)
        log_average = []
        for log_p in (functional.logsigmoid(s * self.logits.double()) for s in (1, -1)):
            largest = log_p.max(0).values  # columns are scaled to avoid underflow
            log_average.append((weights @ (log_p - largest).exp()).log() + largest)
        return log_average[0] - log_average[1]

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """A component from its posterior, then the unobserved cells from it: (n, B, D)."""
        component = draw_indexes(self.component_log_probs(x, observed), n, generator)  # (n, B)
        drawn = draw_bernoulli(self.logits[component], generator)
        return torch.where(observed, x, drawn.to(x.dtype))


@torch.no_grad()
def em_bernoulli(
    x: Array,
    n_components: int,
    valid: Array | None = None,
    *,
    smoothing: float = 0.1,
    empty_below: float = 1e-3,
    dtype: torch.dtype = torch.float32,
    **options: Unpack[EMOptions],
) -> tuple[BernoulliMixture, History]:
    """Fit a `BernoulliMixture` by EM, on the device of the rows; validation rows stop it early.

    No iteration decreases Σ_n log p(x_n) + s Σ_k (log w_k + Σ_d (log θ_kd + log(1 − θ_kd))), where s is
    `smoothing` (`objective` in the history, per row). Missing cells (NaN) are integrated out exactly.

    Args:
        x: training rows (N, D), values exactly 0 or 1.
        n_components: K.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        smoothing: pseudo-counts s > 0 of each outcome; tiny values (1e-20) approximate maximum likelihood.
        empty_below: a component responsible for fewer rows starts anew (once) from the row with the lowest
            likelihood; `history.messages` reports it.
        dtype: of the parameters and products; sums are in float64.
        options: see `EMOptions`; by default epochs=201, patience=10, tol=1e-6.

    Example:
        >>> x = torch.tensor([[0, 0, 0], [1, 1, 1]]).repeat(50, 1)
        >>> model, history = em_bernoulli(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -0.75)  # the entropy is log 2 = 0.693
        True
    """
    if not smoothing > 0:
        raise ValueError(f"smoothing must be above 0 (a tiny value is as good as none), not {smoothing}")
    train, valid_cells = check_binary_rows(x, valid, missing=True)
    model = BernoulliMixture(train[0].shape[1], n_components).to(train[0].device, dtype)
    options = EMOptions(epochs=201, patience=10, tol=1e-6) | options
    learner = _BernoulliEM(model, train, valid_cells, smoothing, empty_below, options)
    learner.start(options.get("generator"))
    return model, learner.run()[0]


@dataclass(eq=False)
class BinaryEM(EM):
    """Abstract EM of one mixture of binary densities, changed in place; `strength` is the prior's."""

    mixture: BinaryMixture
    train: Cells
    valid: Cells | None
    strength: float
    empty_below: float
    options: EMOptions

    def __post_init__(self) -> None:
        super().__init__([self.mixture.state_dict()], self.options)  # (it shares memory with the model)
        self.validated, self.x = self.valid is not None, self.train[0]
        self.log_p = self.x.new_zeros(len(self.x), dtype=torch.float64)
        self.memory["placed"] = torch.zeros_like(self.mixture.log_weights, dtype=torch.bool)
        self.replaced = False  # whether a component started anew in the last M-step

    def responsibilities(self) -> Iterator[tuple[slice, Tensor, Tensor | None, Tensor]]:
        """`chunks` of the training rows with p(k | row), (rows, K); stores log p of each row."""
        for part, x, observed in self.chunks(self.train):
            log_joint = self.mixture.component_log_probs(x, observed)
            self.log_p[part] = total = torch.logsumexp(log_joint, -1)
            yield part, x, observed, (log_joint - total[:, None]).exp_()

    def finish(self) -> None:
        """Load the best parameters into the model."""
        self.mixture.load_state_dict(self.best[0])

    def score(self, epoch: int) -> list[Estimate] | None:
        """Mean log-likelihood of the validation rows."""
        if self.valid is None:
            return None
        log_p = [self.mixture._log_prob(x, observed) for _, x, observed in self.chunks(self.valid)]
        return [Estimate(float(torch.cat(log_p).mean()), math.nan, len(self.valid[0]))]

    def line(self, position: int) -> dict[str, float]:
        """Log-likelihood plus s times the log-prior Σ_k log w_k + Σ (log θ + log(1 − θ)), per row."""
        logits = self.mixture.logits.double()
        log_prior = (functional.logsigmoid(logits) + functional.logsigmoid(-logits)).sum()
        log_prior = log_prior + torch.log_softmax(self.mixture.log_weights.double(), 0).sum()
        return {"objective": float(self.log_p.mean()) + self.strength * float(log_prior) / len(self.x)}

    def converged(self, change: float, tol: float) -> bool:
        """Whether the objective rises by less; False if a component has just started anew."""
        return change < tol and not self.replaced

    def chunks(self, cells: Cells) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Slices of the rows, with these rows in the model's dtype and their observed cells."""
        x, observed = cells
        size = max(1, CHUNK // max(self.mixture.n_components, x.shape[1]))
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            yield part, x[part].to(self.mixture.dtype), None if observed is None else observed[part]

    def empty_components(self, counts: Tensor, rows_each: int) -> tuple[Tensor, Tensor]:
        """Components with too small counts (K,), and the `rows_each` least probable rows for each of them."""
        empty = (counts < self.empty_below) & ~self.memory["placed"]
        components = empty.nonzero().squeeze(-1)[: len(self.x) // rows_each]
        self.memory["placed"][components] = True
        self.replaced = bool(len(components))
        worst = self.log_p.topk(len(components) * rows_each, largest=False).indices
        if self.replaced:
            names, rows = (", ".join(map(str, t.tolist())) for t in (components, worst))
            text = f"iteration {self.steps + 1}: components {names} were empty and start anew from "
            self.notes[0].append(text + (f"rows {rows}" if rows_each == 1 else f"{rows_each} rows each"))
        return components, worst


class _BernoulliEM(BinaryEM):
    mixture: BernoulliMixture

    def start(self, generator: Random) -> None:
        """Means half-way between the marginals and random rows, equal weights."""
        ones, observed = self.x.sum(0, dtype=torch.float64), self.train[1]
        n_observed = len(self.x) if observed is None else observed.sum(0, dtype=torch.float64)
        counts = torch.stack([n_observed - ones, ones]) + self.strength
        self.marginal = counts / (n_observed + 2 * self.strength)  # p(0) and p(1)
        K, N = self.mixture.n_components, len(self.x)
        device = torch.device("cpu") if generator is None else generator.device
        draws = [torch.randperm(N, generator=generator, device=device) for _ in range(-(-K // N))]
        self.mixture.logits.copy_(self._logits_at_rows(torch.cat(draws)[:K].to(self.x.device)))

    def expect(self) -> list[float | None]:
        self.n_rows = self.n_ones = self.n_observed = self.log_p.new_zeros(())
        for _, x, observed, responsibilities in self.responsibilities():
            weights = responsibilities.to(x.dtype)
            n_rows = weights.sum(0, dtype=torch.float64)
            self.n_rows, self.n_ones = self.n_rows + n_rows, self.n_ones + (weights.T @ x).double()
            n_observed = n_rows[:, None] if observed is None else (weights.T @ observed.to(x.dtype)).double()
            self.n_observed = self.n_observed + n_observed
        return [float(self.log_p.mean())]

    def maximise(self) -> None:
        weights, zeros = self.n_rows + self.strength, self.n_observed - self.n_ones
        ones, zeros = (t.clamp(min=0) + self.strength for t in (self.n_ones, zeros))  # (rounding errors)
        self.mixture.logits.copy_(ones.log() - zeros.log())
        empty, worst = self.empty_components(self.n_rows, 1)
        if len(empty):
            self.mixture.logits[empty] = self._logits_at_rows(worst)
            weights[empty] = 1.0
        self.mixture.log_weights.copy_((weights / weights.sum()).log())

    def _logits_at_rows(self, rows: Tensor) -> Tensor:
        """Logits of means half-way between the marginals and these rows."""
        x, marginals = self.x[rows], self.marginal[:, None]
        means = torch.stack([marginals[0] + (1 - x), marginals[1] + x])
        if self.train[1] is not None:
            means = torch.where(self.train[1][rows], means, marginals)
        return (means[1].log() - means[0].log()).to(self.mixture.dtype)
