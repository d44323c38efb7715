"""Binary densities with exact marginals, and mixtures of Bernoullis (the paper's MoB) with their EM."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.arguments import check_positive
from pynade.classical.em import EM, Array, EMOptions, Parameters, Random, run_em, stopping
from pynade.families import Bernoulli, Family
from pynade.likelihood import Estimate
from pynade.models.density import Marginalisable, check_columns
from pynade.training.history import History

CHUNK_ROWS = 4096  # rows whose messages or responsibilities are held at once
CHUNK = 2**24  # values of a (rows, K) or (rows, D) block: 64 MiB in float32

Cells = tuple[Tensor, Tensor | None]  # binary rows, and which of their cells are observed; None is all


class BinaryMarginalisable(Marginalisable):
    """Abstract density of D binary variables that computes p(observed) and every p(x_i = 1 | observed).

    A subclass gives `_marginal`, `_logits_given` and `_draw_given`; everything else follows.
    """

    def __init__(self, n_variables: int) -> None:
        super().__init__()
        check_positive(n_variables=n_variables)
        self.n_variables = n_variables
        self.family = Bernoulli()

    @abstractmethod
    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells, (B,), float64; x is clean: zero where it is not observed."""

    @abstractmethod
    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        """Logits (B, D) of p(x_i = 1 | observed cells), float64; x is clean.

        Where i is observed they may be anything; with `only`, also where i is another variable.
        """

    @abstractmethod
    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """Rows (n, B, D) of which the unobserved cells are drawn; x is clean."""

    def marginal_log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log p of the observed cells of each row, the others summed out: (B,), float64."""
        return self._by_parts(self._marginal, x, observed)

    @torch.no_grad()
    def best_guess(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows with each unobserved cell at its likelier value given the observed ones: (B, D)."""
        guess = self._by_parts(self._logits_given, x, observed) > 0
        return torch.where(observed, x.to(self.dtype), guess.to(self.dtype))

    @torch.no_grad()
    def distribution(self, i: int, x: Tensor, observed: Tensor) -> tuple[Family, Tensor]:
        """p(x_i | observed cells): Bernoulli, and its logits (B, 1)."""
        return self.family, self._by_parts(
            lambda x, o: self._logits_given(x, o, i)[:, i : i + 1], x, observed
        )

    @torch.no_grad()
    def sample_given(self, x: Tensor, observed: Tensor, n: int = 1, generator: Random = None) -> Tensor:
        """n exact joint draws of the unobserved cells of each row: (n, B, D)."""
        return self._draw_given(self._clean(x, observed), observed, n, generator)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """n exact draws (n, D): completions of a row without observed cells."""
        nothing = torch.zeros(1, self.n_variables, dtype=self.dtype, device=self.device)
        if n == 0:
            return nothing[:0]
        return self.sample_given(nothing, torch.zeros_like(nothing, dtype=torch.bool), n, generator)[:, 0]

    def check_cells(self, x: Tensor, observed: Tensor) -> None:
        """Observed cells must be exactly 0 or 1."""
        check_columns(x, self.n_variables)
        self.family.check(torch.where(observed, x, 0))

    def _by_parts(self, function: Callable[..., Tensor], x: Tensor, observed: Tensor) -> Tensor:
        """What `function` gives for clean rows and observed cells, some rows at a time."""
        parts = (t.split(CHUNK_ROWS) for t in (self._clean(x, observed), observed))
        return torch.cat([function(*part) for part in zip(*parts, strict=True)])

    def _clean(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.where(observed, x, 0).to(self.dtype)


class BinaryMixture(BinaryMarginalisable):
    """Abstract mixture of K binary densities; its weights are the softmax of `log_weights` (K,)."""

    n_components: int
    log_weights: Tensor

    @abstractmethod
    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log p_k(observed cells), (B, K), float64; x is clean, `observed` None means all."""

    def _log_prob(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x), -1)

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        return torch.logsumexp(self.component_log_probs(x, observed), -1)


def bernoulli_draws(logits: Tensor, generator: Random) -> Tensor:
    """1 with probability sigm(logits), as float64 of the same shape."""
    p = torch.sigmoid(logits.double())
    uniform = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device)
    return (uniform < p).to(p.dtype)


def choose(log_weights: Tensor, n: int, generator: Random) -> Tensor:
    """n indexes for each row of (unnormalised) log-weights (B, K), by inverting their sum: (n, B)."""
    edges = torch.softmax(log_weights.double(), -1).cumsum(-1)
    uniform = torch.rand(len(edges), n, generator=generator, dtype=edges.dtype, device=edges.device)
    index = torch.searchsorted(edges, uniform * edges[:, -1:], right=True)
    return index.clamp_(max=edges.shape[-1] - 1).T.contiguous()


def binary_rows(
    x: Array, valid: Array | None = None, n_variables: int | None = None, missing: bool = False
) -> tuple[Cells, Cells | None]:
    """Training rows, and validation rows on the same device, as uint8; `missing`: whether NaN is allowed."""
    train = _cells(x, "training", n_variables, missing)
    if valid is None:
        return train, None
    valid = torch.as_tensor(valid, device=train[0].device)
    return train, _cells(valid, "validation", train[0].shape[1], missing)


def _cells(x: Array, word: str, n_variables: int | None, missing: bool) -> Cells:
    rows = torch.as_tensor(x)
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(f"{word} rows have shape (N, D) with at least one row, not {tuple(rows.shape)}")
    if n_variables is not None and rows.shape[1] != n_variables:
        raise ValueError(f"{word} rows have {rows.shape[1]} columns, the model has {n_variables} variables")
    observed = ~torch.isnan(rows)
    complete = bool(observed.all())
    if not (complete or missing):
        raise ValueError(f"{word} rows have missing values (NaN), which this method cannot use")
    values = rows if complete else torch.where(observed, rows, 0)
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError(f"{word} rows must hold values that are exactly 0 or 1")
    return values.to(torch.uint8), None if complete else observed


class BernoulliMixture(BinaryMixture):
    """p(x) = Σ_k w_k Π_d θ_kd^x_d (1 − θ_kd)^(1−x_d).

    Weights are the softmax of `log_weights` (K,), θ the sigmoid of `logits` (K, D), so every value of the
    parameters is a density. `em_bernoulli` fits one; a new one has K equal, fair components.

    Args:
        n_variables: D.
        n_components: K.

    Example:
        >>> import torch
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
        nothing = functional.logsigmoid(-self.logits)  # log p_k(x_d = 0)
        if observed is None:
            rest = nothing.sum(-1, dtype=torch.float64)
        else:
            rest = (observed.to(x.dtype) @ nothing.T).double()
        return ones + rest + torch.log_softmax(self.log_weights.double(), 0)

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        weights = torch.softmax(self.component_log_probs(x, observed), -1)
        logits = self.logits.double()
        one, zero = (_log_average(weights, functional.logsigmoid(s * logits)) for s in (1, -1))
        return one - zero

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """A component from its posterior, then the unobserved cells from it: (n, B, D)."""
        component = choose(self.component_log_probs(x, observed), n, generator)  # (n, B)
        drawn = bernoulli_draws(self.logits[component], generator)
        return torch.where(observed, x, drawn.to(x.dtype))


def _log_average(weights: Tensor, log_p: Tensor) -> Tensor:
    """log Σ_k w_bk p_kd as a matrix product, each column scaled so that tiny probabilities survive."""
    largest = log_p.max(0).values
    return (weights @ (log_p - largest).exp()).log() + largest


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

    Never decreases Σ_n log p(x_n) + s Σ_k (log w_k + Σ_d (log θ_kd + log(1 − θ_kd))), s being `smoothing`
    (`objective` in the history, per row). Missing cells (NaN) are integrated out exactly in both steps.

    Args:
        x: training rows (N, D), values exactly 0 or 1.
        n_components: K.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        smoothing: pseudo-counts s > 0 of each outcome; tiny values (1e-20) come near maximum likelihood.
        empty_below: a component that explains fewer rows than this is placed again (once), at a row that
            the mixture explains worst; `history.messages` says so.
        dtype: of the parameters and products; sums are in float64.
        options: see `EMOptions`; by default epochs=201, patience=10, tol=1e-6.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0, 0, 0], [1, 1, 1]]).repeat(50, 1)
        >>> model, history = em_bernoulli(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -0.75)  # the entropy is log 2 = 0.693
        True
    """
    if not smoothing > 0:
        raise ValueError(f"smoothing must be above 0 (a tiny value is as good as none), not {smoothing}")
    train, held = binary_rows(x, valid, missing=True)
    model = BernoulliMixture(train[0].shape[1], n_components).to(train[0].device, dtype)
    options = EMOptions(epochs=201, patience=10, tol=1e-6) | options
    learner = _BernoulliEM(model, train, held, smoothing, empty_below, options)
    learner.start(options.get("generator"))
    return model, run_em(learner, options)[0]


class BinaryEM(EM):
    """Abstract EM of one mixture of binary densities, which is changed in place.

    It never decreases Σ_n log p(x_n) + s times a log-prior, s being `strength`, except where it places again
    a component that is empty (explains fewer rows than `empty_below`), once for each.
    """

    rows_at_once: int

    def __init__(
        self,
        model: BinaryMixture,
        train: Cells,
        valid: Cells | None,
        strength: float,
        empty_below: float,
        options: EMOptions,
    ) -> None:
        views = {name: t[None] for name, t in model.state_dict().items()}  # share the model's memory
        super().__init__(views, [stopping(options)], valid is not None)
        self.mixture, self.train, self.valid = model, train, valid
        self.strength, self.empty_below = strength, empty_below
        self.x = train[0]
        self.log_p = self.x.new_zeros(len(self.x), dtype=torch.float64)
        self.placed = torch.zeros(model.n_components, dtype=torch.bool, device=self.x.device)
        self.memory = {"placed": self.placed}
        self.placed_now = False  # whether the last M-step has placed a component again
        self.last_objective = math.nan

    @abstractmethod
    def tables(self) -> Sequence[Tensor]:
        """The logits of all components, float64."""

    @abstractmethod
    def gather(self, part: slice, x: Tensor, observed: Tensor | None, share: Tensor) -> None:
        """Take what the M-step needs of some rows, with the responsibilities (rows, K) for them."""

    def expect(self) -> list[float | None]:
        """E-step: `gather` for all rows, and their mean log-likelihood."""
        for part, x, observed in self.chunks(self.train):
            each = self.mixture.component_log_probs(x, observed)
            total = torch.logsumexp(each, -1)
            self.log_p[part] = total
            self.gather(part, x, observed, (each - total[:, None]).exp_())
        return [float(self.log_p.mean())]

    def put(self, params: Parameters) -> None:
        """Copy the parameters into the model."""
        self.mixture.load_state_dict({name: t[0] for name, t in params.items()})
        self.expect()

    def finish(self) -> None:
        """Give the model its best parameters."""
        self.mixture.load_state_dict({name: t[0] for name, t in self.best.items()})

    def score(self, epoch: int) -> list[Estimate] | None:
        """Mean log-likelihood of the validation rows."""
        if self.valid is None:
            return None
        each = [self.mixture.component_log_probs(x, o).logsumexp(-1) for _, x, o in self.chunks(self.valid)]
        return [Estimate(float(torch.cat(each).mean()), math.nan, len(self.valid[0]))]

    def objective(self, train: list[float | None]) -> list[float | None]:
        """Log-likelihood plus s times the log-prior Σ_k log w_k + Σ (log θ + log(1 − θ)), per row."""
        assert train[0] is not None
        log_prior = torch.log_softmax(self.mixture.log_weights.double(), 0).sum()
        for table in self.tables():
            log_prior = log_prior + (functional.logsigmoid(table) + functional.logsigmoid(-table)).sum()
        self.last_objective = train[0] + self.strength * float(log_prior) / len(self.x)
        return [self.last_objective]

    def converged(self, change: float, tol: float) -> bool:
        """Whether the objective rises by less; not where a component was placed again."""
        return change < tol and not self.placed_now

    def line(self, position: int) -> dict[str, float]:
        """The objective."""
        return {"objective": self.last_objective}

    def chunks(self, cells: Cells) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Which rows, and these rows in the model's dtype, some at a time."""
        x, observed = cells
        for start in range(0, len(x), self.rows_at_once):
            part = slice(start, start + self.rows_at_once)
            yield part, x[part].to(self.mixture.dtype), None if observed is None else observed[part]

    def empty(self, counts: Tensor, each: int) -> tuple[Tensor, Tensor]:
        """Components to place again, and the `each` worst rows for each; counts (K,): rows each explains."""
        which = ((counts < self.empty_below) & ~self.placed).nonzero().squeeze(-1)[: len(self.x) // each]
        self.placed[which] = True
        self.placed_now = bool(len(which))
        worst = self.log_p.topk(len(which) * each, largest=False).indices
        if self.placed_now:
            names, rows = (", ".join(map(str, t.tolist())) for t in (which, worst))
            source = f"rows {rows}" if each == 1 else f"{each} rows each"
            self.notes[0].append(
                f"iteration {self.steps + 1}: components {names} were empty and start anew from {source}"
            )
        return which, worst


class _BernoulliEM(BinaryEM):
    mixture: BernoulliMixture

    def start(self, generator: Random) -> None:
        """Components half-way between the marginals and rows chosen at random, equal weights."""
        ones, observed = self.x.sum(0, dtype=torch.float64), self.train[1]
        seen = len(self.x) if observed is None else observed.sum(0, dtype=torch.float64)
        counts = torch.stack([seen - ones, ones]) + self.strength
        self.marginal = counts / (seen + 2 * self.strength)  # of 0 and of 1: 1 - p would lose a tiny p
        K, N = self.mixture.n_components, len(self.x)
        where = torch.device("cpu") if generator is None else generator.device
        draws = [torch.randperm(N, generator=generator, device=where) for _ in range(-(-K // N))]
        self.mixture.logits.copy_(self._at_rows(torch.cat(draws)[:K].to(self.x.device)))
        self.rows_at_once = max(1, CHUNK // max(K, self.mixture.n_variables))

    def tables(self) -> Sequence[Tensor]:
        return [self.mixture.logits.double()]

    def expect(self) -> list[float | None]:
        self.rows = self.ones = self.seen = self.log_p.new_zeros(())
        return super().expect()

    def gather(self, part: slice, x: Tensor, observed: Tensor | None, share: Tensor) -> None:
        share = share.to(x.dtype)
        rows = share.sum(0, dtype=torch.float64)
        self.rows, self.ones = self.rows + rows, self.ones + (share.T @ x).double()
        seen = rows[:, None] if observed is None else (share.T @ observed.to(x.dtype)).double()
        self.seen = self.seen + seen

    def maximise(self) -> None:
        weights, zeros = self.rows + self.strength, self.seen - self.ones
        ones, zeros = (t.clamp(min=0) + self.strength for t in (self.ones, zeros))  # of float32
        self.mixture.logits.copy_(ones.log() - zeros.log())
        empty, worst = self.empty(self.rows, 1)
        if len(empty):
            self.mixture.logits[empty] = self._at_rows(worst)
            weights[empty] = 1.0
        self.mixture.log_weights.copy_((weights / weights.sum()).log())

    def _at_rows(self, rows: Tensor) -> Tensor:
        """Logits of components half-way between the marginals and these rows."""
        x, marginal = self.x[rows], self.marginal[:, None]
        means = torch.stack([marginal[0] + (1 - x), marginal[1] + x])
        if self.train[1] is not None:
            means = torch.where(self.train[1][rows], means, marginal)
        return (means[1].log() - means[0].log()).to(self.mixture.dtype)
