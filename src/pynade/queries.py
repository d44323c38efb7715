"""Questions about some variables given others.

Every function says for which object its number is exact. An `Orderless` model is asked under orderings made
for the question: what is given comes first, what is asked next, the rest last (and is never visited). With
`orderings=K` the object is the ensemble of K such orderings, drawn by the generator; with a (K, D) batch of
orderings it is these, each with its variables moved into the three parts and otherwise kept in order. A
conditional of an ensemble weighs each ordering by its probability of what is given.

`Autoregressive` and `Ensemble` have orderings of their own and can only answer where these put the given
variables first; otherwise the question is refused, but for `impute`, which then estimates. A `Marginalisable`
density (a mixture, a tree, a Gaussian) answers every question exactly, and takes no orderings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pynade.families import Family
from pynade.models import Autoregressive, Ensemble, Marginalisable, Orderless
from pynade.nets import AnyOrderNet, Net
from pynade.ordering import Ordering
from pynade.particles import PARTICLES, check_particles, walk

FEW = 10  # a row whose walkers are worth fewer independent ones is warned of

Walked = Orderless | Autoregressive | Ensemble  # answers by walking a stepper
Model = Walked | Marginalisable
Variables = Sequence[int] | Tensor


def conditional_log_prob(
    model: Model,
    x: Tensor,
    target: Variables,
    given: Variables,
    *,
    orderings: int | Ordering = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log p(x_target | x_given) of each row, in nats: (B, D) -> (B,).

    Exact for the ensemble of `orderings` orderings "given, target, rest" of an orderless model, or for the
    density itself where its orderings begin with the given and then the target variables.

    Args:
        model: the model.
        x: rows (B, D); only target and given columns are read.
        target: indexes of the variables asked for.
        given: indexes of the variables known; may be empty.
        orderings: K or a (K, D) batch, for an orderless model.
        generator: draws the order within the parts; None keeps the natural one (and needs K = 1).

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> rows = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
        >>> round(conditional_log_prob(deep, rows, target=[1], given=[0]).exp().sum().item(), 6)
        1.0
    """
    D = model.n_variables
    is_given, is_target = variable_flags(given, D, "given"), variable_flags(target, D, "target")
    if (is_given & is_target).any():
        both = int((is_given & is_target).nonzero()[0, 0])
        raise ValueError(f"variable {both} is both asked for and given")
    if not is_target.any():
        raise ValueError("there is no target variable to ask for")
    _check_cells(model, x, is_given | is_target)
    batch = len(x)
    if isinstance(model, Marginalisable):
        _no_orderings(orderings)
        given_, both_ = (_observed(flags, x) for flags in (is_given, is_given | is_target))
        return model.marginal_log_prob(x, both_) - model.marginal_log_prob(x, given_)
    parts = torch.where(is_given, 0, torch.where(is_target, 1, 2)).expand(batch, D)
    order = _orders(model, parts, orderings, generator)  # (K, B, D)
    n_given, n_target = int(is_given.sum()), int(is_target.sum())
    steps = _prefix_log_probs(model, x, order, n_given + n_target)  # (K, B, steps)
    known = steps[..., :n_given].sum(-1)
    return torch.logsumexp(steps.sum(-1), 0) - torch.logsumexp(known, 0)


def marginal_log_prob(
    model: Model,
    x: Tensor,
    observed: Tensor,
    *,
    orderings: int | Ordering = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log p of the observed cells of each row, the others marginalised: (B, D) -> (B,).

    Exact for the ensemble of `orderings` orderings "observed, rest" made for each row of an orderless
    model, or for the density itself where its orderings begin with the observed variables.

    Args:
        model: the model.
        x: rows (B, D); cells that are not observed may hold anything, NaN too.
        observed: bool (B, D) or (D,), True = observed.
        orderings: K or a (K, D) batch, for an orderless model.
        generator: draws the order within the parts; None keeps the natural one (and needs K = 1).
    """
    observed = _observed(observed, x)
    _check_cells(model, x, observed)
    if isinstance(model, Marginalisable):
        _no_orderings(orderings)
        return model.marginal_log_prob(x, observed)
    order = _orders(model, (~observed).long(), orderings, generator)
    counts = observed.sum(-1)
    longest = int(counts.max())
    steps = _prefix_log_probs(model, x, order, longest)
    inside = torch.arange(longest, device=x.device) < counts[:, None]
    total = torch.where(inside, steps, 0).sum(-1)
    return torch.logsumexp(total, 0) - math.log(len(order))


@torch.no_grad()
def sample_given(
    model: Model,
    x: Tensor,
    observed: Tensor,
    n: int = 1,
    *,
    orderings: int | Ordering = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """n completions of each row: (B, D) -> (n, B, D), equal to x where observed.

    Exact draws from p(rest | observed) of the object of `marginal_log_prob`: with several orderings each
    draw follows one of them, chosen with probability proportional to its p(observed).
    """
    if n < 1:
        raise ValueError(f"the number of draws must be at least 1, not {n}")
    observed = _observed(observed, x)
    _check_cells(model, x, observed)
    if isinstance(model, Marginalisable):
        _no_orderings(orderings)
        return model.sample_given(x, observed, n, generator)
    order = _orders(model, (~observed).long(), orderings, generator)  # (K, B, D)
    k, batch, D = order.shape
    if k == 1:
        chosen = order.expand(n, batch, D)
    else:
        counts = observed.sum(-1)
        longest = int(counts.max())
        steps = _prefix_log_probs(model, x, order, longest)
        inside = torch.arange(longest, device=x.device) < counts[:, None]
        weights = torch.where(inside, steps, 0).sum(-1).softmax(0).T  # (B, K)
        which = torch.multinomial(weights, n, replacement=True, generator=generator).T  # (n, B)
        chosen = order.gather(0, which[:, :, None].expand(n, batch, D))
    known = observed.expand(n, batch, D).flatten(0, 1)
    rows = model.family.fill(x.expand(n, batch, D).flatten(0, 1), known).to(model.dtype)
    return _complete(model.net, model.family, rows, known, chosen.flatten(0, 1), generator).view(n, batch, D)


def impute(
    model: Model,
    x: Tensor,
    n: int | None = None,
    *,
    orderings: int | Ordering = 1,
    generator: torch.Generator | None = None,
    particles: int = PARTICLES,
) -> Tensor:
    """Rows with their missing cells (NaN) filled.

    Exact for an orderless model (draws: for the object of `sample_given`), for a `Marginalisable` one, and
    for draws where a density's own orderings begin with the observed cells. Everything else that a density
    with orderings of its own says here is an estimate, by `particles` weighted walkers (see
    `pynade.particles`); a warning tells where few of them count.

    Args:
        model: the model.
        x: rows (B, D) with NaN where a value is missing.
        n: None fills each missing cell with the best guess (mode, or mean of a real variable) of
            p(x_i | observed cells), each cell for itself, (B, D). A number gives that many joint draws
            from p(missing | observed), (n, B, D): multiple imputation.
        orderings: K or a (K, D) batch, for joint draws from an orderless model (see `sample_given`).
        generator: for the draws.
        particles: walkers of each row, for a density with orderings of its own. The n draws are taken from
            them, so let there be more of them than n.

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import NADENet
        >>> nade = Autoregressive(NADENet(3, hidden=4), Bernoulli(), Ordering([2, 0, 1]))
        >>> rows = torch.tensor([[1.0, 0.0, torch.nan]])
        >>> impute(nade, rows, n=5, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([5, 1, 3])
    """
    observed = ~torch.isnan(x)
    if isinstance(model, Autoregressive | Ensemble):
        if isinstance(orderings, Ordering):
            raise ValueError(_OWN)
        _check_cells(model, x, observed)
        filled, effective = _fill_along(model, x, observed, n, generator, particles)
        few = effective < FEW
        if few.any():
            warnings.warn(
                f"the gaps of {int(few.sum())} of {len(x)} rows are filled by an estimate worth fewer "
                f"than {FEW} independent particles (the least {effective.min():.1f}); more particles help, "
                "and an orderless model (DeepNADE) needs none",
                UserWarning,
                stacklevel=2,
            )
        return filled
    if n is not None:
        return sample_given(model, x, observed, n, orderings=orderings, generator=generator)
    if isinstance(model, Marginalisable):
        _check_cells(model, x, observed)
        return model.best_guess(x, observed)
    _check_cells(model, x, observed)
    with torch.no_grad():
        eta = model.conditionals(x, observed)
        return torch.where(observed, x.to(model.dtype), model.family.best_guess(eta))


@dataclass(frozen=True)
class Conditional:
    """The distribution of one variable given others: a one-dimensional law with everything one asks of it."""

    family: Family
    eta: Tensor  # (1, P)
    i: Tensor  # (1,)

    def mean(self) -> float:
        """Expected value."""
        return float(self.family.mean(self.eta, self.i))

    def log_prob(self, value: float) -> float:
        """Log-probability (of a discrete variable) or log-density, in nats."""
        x = self.eta.new_tensor([value])
        self.family.check(x[:, None])
        return float(self.family.log_prob(x, self.eta, self.i))

    def pmf(self, value: float) -> float:
        """Probability or density at a value (also called `pdf`)."""
        return math.exp(self.log_prob(value))

    pdf = pmf

    def cdf(self, value: float) -> float:
        """P(X <= value)."""
        return float(self.family.cdf(self.eta.new_tensor([value]), self.eta, self.i))

    def quantile(self, q: float) -> float:
        """Smallest value whose cdf is at least q."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is asked for at q between 0 and 1, not {q}")
        return float(self.family.quantile(self.eta.new_tensor([q]), self.eta, self.i))

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws."""
        return self.family.sample(self.eta.expand(n, -1), self.i.expand(n), generator)


@torch.no_grad()
def conditional(model: Model, i: int, given: dict[int, float]) -> Conditional:
    """p(x_i | given) as a one-dimensional distribution.

    Exact for every ordering that puts the given variables first and i next: all of them agree, since an
    any-order net depends on what is given and not on its order. A fixed-order density answers only if
    its ordering does so, and several orderings of a net that knows paths not at all: ask
    `conditional_log_prob`.

    Args:
        model: the model.
        i: the variable asked for.
        given: values of the known variables, by index.
    """
    if isinstance(model, Ensemble) and len(model.order) > 1 and not isinstance(model.net, AnyOrderNet):
        raise ValueError(
            "the members of this ensemble differ in p(given), so its conditional is a mixture of their laws; "
            "ask conditional_log_prob, which weighs them"
        )
    D = model.n_variables
    is_given = variable_flags(list(given), D, "given")
    variable_flags([i], D, "asked")
    if i in given:
        raise ValueError(f"variable {i} is both asked for and given")
    x = torch.zeros(1, D, dtype=model.dtype, device=model.device)
    for variable, value in given.items():
        x[0, variable] = value
    _check_cells(model, x, is_given)
    at = torch.tensor([i], device=model.device)
    if isinstance(model, Marginalisable):
        family, eta = model.law(i, x, _observed(is_given, x))
        return Conditional(family, eta, at)
    parts = torch.where(is_given, 0, 2).expand(1, D).clone()
    parts[0, i] = 1
    order = _orders(model, parts, 1, None)
    state = model.net.start(1, 1)
    for v in order[0, 0, : len(given)]:
        state = model.net.observe(state, v[None], model.family.encode(x[:, v, None], v[None, None]))
    return Conditional(model.family, model.net.predict(state, at)[0], at)


def variable_flags(variables: Variables, D: int, word: str) -> Tensor:
    """Bool (D,) from indexes; each must exist and stand once."""
    indexes = [int(v) for v in variables]
    for v in indexes:
        if not 0 <= v < D:
            raise ValueError(f"{word} variable {v} does not exist: the model has variables 0 … {D - 1}")
    if len(set(indexes)) != len(indexes):
        raise ValueError(f"a {word} variable is named twice: {indexes}")
    flags = torch.zeros(D, dtype=torch.bool)
    flags[indexes] = True
    return flags


def _no_orderings(orderings: int | Ordering) -> None:
    if orderings != 1:
        raise ValueError("this model's answers are exact without orderings; give none")


def _observed(observed: Tensor, x: Tensor) -> Tensor:
    if observed.dtype != torch.bool:
        raise TypeError(f"observed is bool, True = given, not {observed.dtype}")
    return observed.to(x.device).expand(x.shape)


def _check_cells(model: Model, x: Tensor, used: Tensor) -> None:
    """Rows must have the right width, and the cells that are read must be in the domain."""
    if x.ndim != 2 or x.shape[1] != model.n_variables:
        raise ValueError(f"expected rows of {model.n_variables} columns, got shape {tuple(x.shape)}")
    used = used.to(x.device).expand(x.shape)
    if (torch.isnan(x) & used).any():
        row, column = (torch.isnan(x) & used).nonzero()[0].tolist()
        raise ValueError(f"row {row}, column {column} is given or asked for, but missing")
    if isinstance(model, Marginalisable):
        model.check_cells(x, used)
    else:
        model.family.check(model.family.fill(x, used))


def _orders(model: Walked, parts: Tensor, k: int | Ordering, generator: torch.Generator | None) -> Tensor:
    """Orders (K, B, D) in which, for each row, part 0 comes first, then part 1, then the rest."""
    parts = parts.to(model.device)
    if isinstance(model, Orderless) and isinstance(k, Ordering):
        base = k.order.to(parts.device).view(-1, 1, parts.shape[1]).expand(-1, len(parts), -1)
        along = parts.expand(len(base), -1, -1).gather(-1, base)
        return base.gather(-1, along.argsort(dim=-1, stable=True))
    if isinstance(k, Ordering):
        raise ValueError(_OWN)
    if k < 1:
        raise ValueError(f"the number of orderings must be at least 1, not {k}")
    if isinstance(model, Orderless):
        if k > 1 and generator is None:
            raise ValueError("several orderings are drawn at random: give a generator")
        shape = (k, *parts.shape)
        if generator is None:
            within = torch.arange(parts.shape[1], device=parts.device).expand(shape) / parts.shape[1]
        else:
            within = torch.rand(shape, generator=generator, device=generator.device).to(parts.device)
        return (parts + within).argsort(-1)
    if not _fits(model, parts).all():
        raise ValueError(
            "this model's ordering does not put the given variables first, so the question is not tractable; "
            "an orderless model (DeepNADE) can answer it, and gaps can be filled by an estimate (impute)"
        )
    return model.order.view(-1, 1, model.n_variables).expand(-1, len(parts), -1)


_OWN = "this model has orderings of its own; only an orderless model can be given others"


def _fits(model: Autoregressive | Ensemble, parts: Tensor) -> Tensor:
    """Whether all of the model's own orderings visit the parts of a row (B, D) in turn: bool (B,)."""
    along = parts[:, model.order.view(-1, model.n_variables)]  # (B, K, D)
    return (along.diff(dim=-1) >= 0).flatten(1).all(-1)


def _fill_along(
    model: Autoregressive | Ensemble,
    x: Tensor,
    observed: Tensor,
    n: int | None,
    generator: torch.Generator | None,
    particles: int,
) -> tuple[Tensor, Tensor]:
    """`impute` along the model's own orderings, and each row's effective number of walkers (exact: inf)."""
    if n is not None and n < 1:
        raise ValueError(f"the number of draws must be at least 1, not {n}")
    check_particles(particles)
    filled = x.to(torch.promote_types(x.dtype, model.dtype)).expand(n or 1, *x.shape).clone()
    effective = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)
    gaps = ~observed.all(-1)
    exact = gaps & _fits(model, (~observed).long()) & (n is not None)
    room, k = model.net.rows_at_once(model.device), model.order.numel() // model.n_variables

    def put(rows: Tensor, made: Tensor) -> None:
        filled[:, rows] = torch.where(observed[rows], filled[:, rows], made.to(filled.dtype))

    for rows in _chunks(exact, room // (k * (n or 1))):
        put(rows, sample_given(model, x[rows], observed[rows], n or 1, generator=generator))
    for rows in _chunks(gaps & ~exact, room // max(k, particles)):
        walkers = walk(model, x[rows], observed[rows], particles, generator)
        put(rows, walkers.best_guess(model.family) if n is None else walkers.draw(n, generator))
        effective[rows] = walkers.effective
    return (filled[0] if n is None else filled), effective


def _chunks(flags: Tensor, size: int) -> tuple[Tensor, ...]:
    """Indexes where flags (B,) are True, in pieces of at most `size` (at least one at a time)."""
    rows = flags.nonzero().squeeze(-1)
    return rows.split(max(1, size)) if len(rows) else ()


def _prefix_log_probs(model: Walked, x: Tensor, order: Tensor, length: int) -> Tensor:
    """log p(x_{o_d} | x_{o_<d}) along the first `length` steps of orders (K, B, D): (K, B, length)."""
    net, family = model.net, model.family
    k, batch, _ = order.shape
    clean = family.fill(x, ~torch.isnan(x)).to(model.dtype)
    rows = clean.expand(k, -1, -1).flatten(0, 1)  # every (ordering, row) pair is a group of one
    steps = order.flatten(0, 1)[:, :length]
    state = net.start(k * batch, 1)
    out = []
    for i in steps.unbind(1):
        x_i = rows.gather(1, i[:, None])  # (KB, 1)
        out.append(family.log_prob(x_i, net.predict(state, i), i[:, None]).double())
        state = net.observe(state, i, family.encode(x_i, i[:, None]))
    if not out:
        return torch.zeros(k, batch, 0, dtype=torch.float64, device=x.device)
    return torch.cat(out, 1).view(k, batch, length)


def _complete(
    net: Net, family: Family, x: Tensor, known: Tensor, order: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Walk each row along its order, keeping known cells and drawing the others."""
    x = x.clone()
    fewest = int(known.sum(-1).min())
    state = net.start(len(x), 1)
    for d, i in enumerate(order.unbind(1)):
        x_i = x.gather(1, i[:, None])
        if d >= fewest:  # before that every row is still at a known cell
            drawn = family.sample(net.predict(state, i), i[:, None], generator)
            x_i = torch.where(known.gather(1, i[:, None]), x_i, drawn)
            x.scatter_(1, i[:, None], x_i)
        state = net.observe(state, i, family.encode(x_i, i[:, None]))
    return x
