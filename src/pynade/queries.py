"""Queries: probabilities and draws of some variables given others; each states where it is exact.

For an `Orderless` model, K orderings are chosen for the query (given variables first, then the target), and
weighted by p(given). Other models use their own orderings; a `Marginalisable` one needs none.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pynade.arguments import check_positive
from pynade.families import Conditional as Conditional
from pynade.models import Marginalisable, Ordered, Orderless, Rows, complete
from pynade.models.density import check_columns, refuse_nan
from pynade.nets import AnyOrderNet
from pynade.ordering import Ordering
from pynade.particles import PARTICLES, Random, complete_rows

SMALL_SIZE = 10  # effective sample size of a row below which there is a warning

Sequential = Orderless | Ordered  # models that compute one variable after the other
Model = Sequential | Marginalisable
Variables = Sequence[int] | Tensor
Orders = int | Ordering


def conditional_log_prob(
    model: Model,
    x: Tensor,
    target: Variables,
    given: Variables,
    *,
    orderings: Orders = 1,
    generator: Random = None,
) -> Tensor:
    """log p(x_target | x_given) of each row, in nats: (B, D) -> (B,).

    It is exact for the ensemble of K orderings "given, target, rest" of an orderless model, or for a density
    whose orderings begin with the given and then the target variables.

    Args:
        model: the model.
        x: rows (B, D); only target and given columns are read.
        target: indexes of the target variables.
        given: indexes of the given variables; may be empty.
        orderings: of an orderless model: K, the number of random orderings, or a (K, D) batch, in which the
            given variables are moved to the front, then the target, without other changes of the order.
        generator: draws the order within the three parts; None: the natural order (with K = 1).

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> rows = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
        >>> round(conditional_log_prob(deep, rows, target=[1], given=[0]).exp().sum().item(), 6)
        1.0
    """
    is_given, is_target = _query_flags(model, given, target, "target")
    if not is_target.any():
        raise ValueError("there is no target variable")
    return _log_prob(model, x, is_given | is_target, is_given, orderings, generator)


def marginal_log_prob(
    model: Model, x: Tensor, observed: Tensor, *, orderings: Orders = 1, generator: Random = None
) -> Tensor:
    """log p of the observed cells of each row, the others marginalised: (B, D) -> (B,).

    It is exact for the ensemble of K orderings "observed, rest" of each row for an orderless model, or for a
    density whose orderings begin with the observed variables.

    Args:
        model, orderings, generator: as for `conditional_log_prob`.
        x: rows (B, D); cells that are not observed are ignored (NaN, for example).
        observed: bool (B, D) or (D,), True = observed.
    """
    return _log_prob(model, x, observed, None, orderings, generator)


def _log_prob(
    model: Model, x: Tensor, used: Tensor, given: Tensor | None, k: Orders, generator: Random
) -> Tensor:
    """log p(used | given) of each row; the used cells include the given ones; None: no given cells."""
    used = _check_query(model, x, used, k)
    known = torch.zeros_like(used) if given is None else given.to(x.device).expand(x.shape)
    if isinstance(model, Marginalisable):
        log_p = model.marginal_log_prob(x, used)
        return log_p if given is None else log_p - model.marginal_log_prob(x, known)
    parts = (~used).long() if given is None else torch.where(known, 0, torch.where(used, 1, 2))
    order = _make_orders(model, parts, k, generator)  # (K, B, D)
    log_slope, *sums = _prefix_log_probs(model, x, order, used, known)
    log_joint, log_given = (torch.logsumexp(log_p, 0) for log_p in sums)
    slope = 0 if log_slope is None else torch.where(used & ~known, log_slope, 0).sum(-1)
    return log_joint - (math.log(len(order)) if given is None else log_given) + slope


@torch.no_grad()
def sample_given(
    model: Model, x: Tensor, observed: Tensor, n: int = 1, *, orderings: Orders = 1, generator: Random = None
) -> Tensor:
    """n completions of each row: (B, D) -> (n, B, D), equal to x where observed.

    They are exact draws from p(rest | observed) of the density of `marginal_log_prob`: with several
    orderings, each draw uses one of them, with probability proportional to its p(observed).

    Args:
        model, x, observed, orderings: as for `marginal_log_prob`.
        n: number of completions of each row.
        generator: source of the orderings and of the draws.
    """
    check_positive(**{"the number of draws": n})
    observed = _check_query(model, x, observed, orderings)
    if isinstance(model, Marginalisable):
        return model.sample_given(x, observed, n, generator)
    order = _make_orders(model, (~observed).long(), orderings, generator)  # (K, B, D)
    k, batch, D = order.shape
    if k > 1:
        weights = _prefix_log_probs(model, x, order, observed)[1].softmax(0).T  # (B, K)
        which = torch.multinomial(weights, n, replacement=True, generator=generator).T  # (n, B)
        order = order.gather(0, which[:, :, None].expand(n, batch, D))
    x = x.to(torch.promote_types(x.dtype, model.dtype))
    rows, known, orders = (t.expand(n, batch, D).flatten(0, 1) for t in (x, observed, order))
    return complete(model.net, model.family, rows, known, orders, generator).view(n, batch, D)


def impute(
    model: Model,
    x: Tensor,
    n: int | None = None,
    *,
    orderings: Orders = 1,
    generator: Random = None,
    particles: int = PARTICLES,
) -> Tensor:
    """Rows with their missing cells (NaN) filled.

    The result is exact for an orderless model (draws as in `sample_given`), for a `Marginalisable` model, and
    for draws if the orderings of a density begin with the observed cells. Otherwise it is an estimate by
    weighted particles (see `pynade.particles`), with a warning if the effective sample size is small.

    Args:
        model: the model.
        x: rows (B, D); NaN where a value is missing.
        n: None fills each missing cell separately with the best guess (mode, or mean of a real variable) of
            p(x_i | observed cells), (B, D). A number is that of joint draws from p(missing | observed),
            (n, B, D): multiple imputation.
        orderings: for joint draws from an orderless model (see `sample_given`).
        generator: for the draws.
        particles: of each row, for a density with its own orderings; more than n, since draws are taken from
            them.

    Example:
        >>> from pynade.families import Bernoulli
        >>> from pynade.models import Autoregressive
        >>> from pynade.nets import NADENet
        >>> nade = Autoregressive(NADENet(3, hidden=4), Bernoulli(), Ordering([2, 0, 1]))
        >>> rows = torch.tensor([[1.0, 0.0, torch.nan]])
        >>> impute(nade, rows, n=5, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([5, 1, 3])
    """
    observed = _check_query(model, x, ~torch.isnan(x), orderings)
    if isinstance(model, Ordered):
        return _impute_by_particles(model, x, observed, n, generator, particles)
    if n is not None:
        return sample_given(model, x, observed, n, orderings=orderings, generator=generator)
    if isinstance(model, Marginalisable):
        return model.best_guess(x, observed)
    with torch.no_grad():
        eta = model.conditionals(x, observed)
        refuse_nan(torch.isnan(eta).any())
        guesses = model.family.best_guess(eta)
    return torch.where(observed, x.to(model.dtype), guesses)


@torch.no_grad()
def conditional(model: Model, i: int, given: dict[int, float]) -> Conditional:
    """p(x_i | given) as a one-dimensional distribution.

    It is exact and the same for every ordering with the given variables first and i next. A density with a
    fixed ordering needs such an ordering. Ensembles of a net that depends on the order raise an error; use
    `conditional_log_prob` for them.

    Args:
        model: the model.
        i: the target variable.
        given: values of the given variables, by index.
    """
    several = isinstance(model, Ordered) and len(model.order.view(-1, model.n_variables)) > 1
    if several and not isinstance(model.net, AnyOrderNet):
        raise ValueError(
            "the members of this ensemble differ in p(given), so its conditional is a mixture of theirs; an "
            "orderless model (DeepNADE, DeepRNADE) can answer it, and queries.conditional_log_prob weights "
            "the members"
        )
    D, at = model.n_variables, torch.tensor([i], device=model.device)
    is_given, is_asked = _query_flags(model, list(given), [i], "asked")
    x = torch.tensor([[given.get(v, 0.0) for v in range(D)]], dtype=model.dtype, device=model.device)
    observed = _check_query(model, x, is_given)
    if isinstance(model, Marginalisable):
        return Conditional(*model.distribution(i, x, observed), at)
    order = _make_orders(model, torch.where(is_given, 0, torch.where(is_asked, 1, 2)).expand(1, D), 1, None)
    features, net = Rows(model.net, model.family, model.family.fill(x, observed)).features, model.net
    if isinstance(net, AnyOrderNet):
        eta = net.conditionals(features, observed)
    else:
        eta = net.parallel(features, Ordering.trusted(order[0, 0]))
    return Conditional(model.family, eta[:, i], at)


def _query_flags(model: Model, given: Variables, asked: Variables, name: str) -> tuple[Tensor, Tensor]:
    """Masks (D,) of the given variables and of those asked for; a ValueError if they overlap."""
    D = model.n_variables
    is_given, is_asked = variable_flags(given, D, "given"), variable_flags(asked, D, name)
    if (is_given & is_asked).any():
        both = int((is_given & is_asked).nonzero()[0, 0])
        raise ValueError(f"variable {both} is both asked for and given")
    return is_given, is_asked


def variable_flags(variables: Variables, D: int, name: str) -> Tensor:
    """A mask (D,) from indexes; each must exist and occur once."""
    indexes = [int(v) for v in variables]
    for v in indexes:
        if not 0 <= v < D:
            raise ValueError(f"{name} variable {v} does not exist: the model has variables 0 … {D - 1}")
    if len(set(indexes)) != len(indexes):
        raise ValueError(f"a {name} variable is named twice: {indexes}")
    flags = torch.zeros(D, dtype=torch.bool)
    flags[indexes] = True
    return flags


def _check_query(model: Model, x: Tensor, used: Tensor, orderings: Orders = 1) -> Tensor:
    """The mask (B, D) of the cells of a query; raises an error if the query or their values are invalid."""
    if used.dtype != torch.bool:
        raise TypeError(f"observed is bool, True = given, not {used.dtype}")
    if not isinstance(model, Sequential | Marginalisable):
        raise TypeError(
            f"a {type(model).__name__} cannot be queried about some variables given others; an orderless "
            "model (DeepNADE), a Gaussian mixture or a tree can"
        )
    check_columns(x, model.n_variables)
    used = used.to(x.device).expand(x.shape)
    if (torch.isnan(x) & used).any():
        row, column = (torch.isnan(x) & used).nonzero()[0].tolist()
        raise ValueError(f"row {row}, column {column} is given or asked for, but missing")
    if isinstance(model, Marginalisable):
        model.check_cells(x, used)
        if orderings != 1:
            raise ValueError("this model is exact without orderings, so none can be given")
    else:
        model.family.check(model.family.fill(x, used))
        if isinstance(model, Ordered) and isinstance(orderings, Ordering):
            raise ValueError(
                "this model has orderings of its own; only an orderless model can be given others"
            )
    return used


def _make_orders(model: Sequential, parts: Tensor, k: Orders, generator: Random) -> Tensor:
    """Orders (K, B, D) in which the variables of part 0 of each row come first, then part 1, then 2."""
    parts = parts.to(model.device)
    if isinstance(k, Ordering):
        base = k.order.to(parts.device).view(-1, 1, parts.shape[1]).expand(-1, len(parts), -1)
        part_by_step = parts.expand(len(base), -1, -1).gather(-1, base)
        return base.gather(-1, part_by_step.argsort(dim=-1, stable=True))
    check_positive(**{"the number of orderings": k})
    if isinstance(model, Ordered):
        if not _respects_parts(model, parts).all():
            raise ValueError(
                "this model's ordering does not put the given variables first, so the query is not tractable;"
                " an orderless model (DeepNADE, DeepRNADE) can answer it, and gaps can be filled by an "
                "estimate (impute)"
            )
        return model.order.view(-1, 1, model.n_variables).expand(-1, len(parts), -1)
    if generator is None:
        if k > 1:
            raise ValueError("several orderings are drawn at random: give a generator")
        keys = torch.arange(parts.shape[1], device=parts.device).expand(k, *parts.shape) / parts.shape[1]
    else:
        keys = torch.rand((k, *parts.shape), generator=generator, device=generator.device).to(parts.device)
    return (parts + keys).argsort(-1)


def _respects_parts(model: Ordered, parts: Tensor) -> Tensor:
    """Whether all orderings of the model visit the parts 0, 1, 2 of a row (B, D) in this order: bool (B,)."""
    part_by_step = parts[:, model.order.view(-1, model.n_variables)]  # (B, K, D)
    return (part_by_step.diff(dim=-1) >= 0).flatten(1).all(-1)


def _impute_by_particles(
    model: Ordered, x: Tensor, observed: Tensor, n: int | None, generator: Random, particles: int
) -> Tensor:
    """`impute` for a model with its own orderings; warns of rows with a small effective sample size."""
    check_positive(**{"the number of draws": 1 if n is None else n, "the number of particles": particles})
    filled = x.to(torch.promote_types(x.dtype, model.dtype)).expand(n or 1, *x.shape).clone()
    sizes = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)  # of exact rows
    incomplete = ~observed.all(-1)
    exact = incomplete & _respects_parts(model, (~observed).long()) & (n is not None)
    limit, k = model.net.rows_at_once(model.device), model.order.numel() // model.n_variables
    for rows in _split_indexes(exact, limit // (k * (n or 1))):
        filled[:, rows] = sample_given(model, x[rows], observed[rows], n or 1, generator=generator).to(filled)
    for rows in _split_indexes(incomplete & ~exact, limit // max(k, particles)):
        particle_set = complete_rows(model, x[rows], observed[rows], particles, generator)
        completions = particle_set.best_guess(model.family) if n is None else particle_set.draw(n, generator)
        filled[:, rows] = torch.where(observed[rows], filled[:, rows], completions.to(filled))
        sizes[rows] = particle_set.effective_sample_size
    if n_small := int((sizes < SMALL_SIZE).sum()):
        warnings.warn(
            f"the gaps of {n_small} of {len(x)} rows are filled by an estimate with an effective sample size "
            f"below {SMALL_SIZE} (the smallest is {sizes.min():.1f}); more particles help, and an orderless "
            "model (DeepNADE, DeepRNADE) needs none",
            UserWarning,
            stacklevel=3,
        )
    return filled[0] if n is None else filled


def _split_indexes(flags: Tensor, size: int) -> tuple[Tensor, ...]:
    """Indexes of the rows where flags (B,) are True, in tensors of at most max(1, `size`)."""
    rows = flags.nonzero().squeeze(-1)
    return rows.split(max(1, size)) if len(rows) else ()


def _prefix_log_probs(model: Sequential, x: Tensor, order: Tensor, *cells: Tensor) -> list[Any]:
    """Log-slopes of rows, and log p (K, B) of each mask's cells, which come first in orders (K, B, D)."""
    rows = Rows(model.net, model.family, model.family.fill(x, ~torch.isnan(x)))
    counts = [mask.sum(-1)[:, None] for mask in cells]
    log_p = rows.prefix_log_probs(order[..., : int(counts[0].max())])  # (K, B, steps)
    step = torch.arange(log_p.shape[-1], device=log_p.device)
    return [rows.log_slope, *(torch.where(step < count, log_p, 0).sum(-1) for count in counts)]
