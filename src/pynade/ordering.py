"""Orderings of the variables: which one comes first, which one next (the *o* of eq. 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from pynade.arguments import check_positive
from pynade.kernels.backends import available

WORTH_COMPILING = 10_000  # cells of a batch of prefixes; fewer are sorted before a compiled loop is loaded


class Ordering:
    """One permutation of D variables, or a batch of them (K members of an ensemble, one for each row).

    It is an immutable value: `order[d]` is the variable at step d, `rank[i]` the step of variable i, from 0.

    Args:
        order: integers of shape (D,) or (K, D); every row must be a permutation of 0 … D-1.

    Example:
        >>> o = Ordering([2, 0, 1])
        >>> o.rank.tolist()
        [1, 2, 0]
        >>> o.before.int().tolist()  # row i marks the variables that come before i
        [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    """

    __slots__ = ("_order",)

    def __init__(self, order: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> None:
        tensor = torch.as_tensor(order)
        if tensor.ndim not in (1, 2) or tensor.numel() == 0:
            raise ValueError(f"an ordering has shape (D,) or (K, D) and D >= 1, not {tuple(tensor.shape)}")
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise TypeError(f"an ordering holds integers, not {tensor.dtype}")
        tensor = tensor.long()
        expected = torch.arange(tensor.shape[-1], device=tensor.device).expand_as(tensor)
        wrong = (tensor.sort(dim=-1).values != expected).any(-1)
        if wrong.any():
            where = "" if tensor.ndim == 1 else f" (row {int(wrong.nonzero()[0, 0])})"
            raise ValueError(f"an ordering must be a permutation of 0 … {tensor.shape[-1] - 1}{where}")
        self._order = tensor.clone()

    @classmethod
    def trusted(cls, order: Tensor) -> Ordering:
        """Wrap a tensor that is already known to hold permutations (no check, no copy)."""
        self = object.__new__(cls)
        self._order = order
        return self

    @classmethod
    def natural(cls, n_variables: int) -> Ordering:
        """0, 1, …, D-1."""
        return cls(torch.arange(n_variables))

    @classmethod
    def raster(cls, height: int, width: int, channels: int = 1) -> Ordering:
        """Row by row through an image stored as (channels, height, width); all channels of a pixel together.

        Example:
            >>> Ordering.raster(1, 2, channels=2).order.tolist()
            [0, 2, 1, 3]
        """
        pixels = torch.arange(channels * height * width).view(channels, height * width)
        return cls(pixels.T.reshape(-1))

    @classmethod
    def random(cls, n_variables: int, k: int | None = None, generator: Generator | None = None) -> Ordering:
        """A uniformly drawn ordering, or `k` independent ones as a (k, D) batch."""
        check_positive(**{"the number of orderings": 1 if k is None else k})
        draws = torch.stack([torch.randperm(n_variables, generator=generator) for _ in range(k or 1)])
        return cls(draws[0] if k is None else draws)

    @property
    def order(self) -> Tensor:
        """Variable at each step, (D,) or (K, D); to be read, never written to."""
        return self._order

    @property
    def rank(self) -> Tensor:
        """Step of each variable, (D,) or (K, D)."""
        steps = torch.arange(self._order.shape[-1], device=self._order.device).expand_as(self._order)
        return steps.scatter(-1, self._order, steps)  # far cheaper than sorting

    @property
    def before(self) -> Tensor:
        """Bool (…, D, D): entry [i, j] is True where variable j comes before variable i."""
        rank = self.rank
        return rank.unsqueeze(-2) < rank.unsqueeze(-1)

    @property
    def n_variables(self) -> int:
        """D."""
        return self._order.shape[-1]

    @property
    def is_batch(self) -> bool:
        """True when this holds several orderings, shape (K, D)."""
        return self._order.ndim == 2

    def rows(self, batch: int) -> Ordering:
        """One ordering per row: a single ordering is repeated, a batch must already have `batch` rows."""
        if not self.is_batch:
            return Ordering.trusted(self._order.expand(batch, -1))
        if len(self) != batch:
            raise ValueError(f"{len(self)} orderings were given for {batch} rows")
        return self

    def to(self, device: torch.device | str) -> Ordering:
        """The same ordering on another device."""
        return Ordering.trusted(self._order.to(device))

    def __len__(self) -> int:
        if not self.is_batch:
            raise TypeError("a single ordering has no length; its number of variables is n_variables")
        return self._order.shape[0]

    def __getitem__(self, k: int | slice | Tensor) -> Ordering:
        if not self.is_batch:
            raise TypeError("a single ordering cannot be indexed; its steps are in .order")
        return Ordering.trusted(self._order[k])

    def __iter__(self) -> Iterator[Ordering]:
        return (self[k] for k in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ordering):
            return NotImplemented
        return torch.equal(self._order, other._order)

    def __hash__(self) -> int:
        return hash(tuple(self._order.flatten().tolist()))

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self._order.shape))
        head = ", ".join(map(str, self._order.flatten()[:6].tolist()))
        dots = ", …" if self._order.numel() > 6 else ""
        return f"Ordering({shape}: {head}{dots})"


def random_observed(
    batch: int,
    n_variables: int,
    generator: Generator | None = None,
    *,
    exists: Tensor | None = None,
    stratified: bool = True,
    long: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """Which variables come first in a random ordering cut at a random place: bool (batch, D).

    Each row's number n of observed variables is uniform over 0 … D-1, and given the number every set is
    equally likely: the prefix o_<d of the orderless objective, with d-1 = n.

    Args:
        batch: number of rows.
        n_variables: D.
        generator: source of randomness.
        exists: bool (batch, D), the cells that are not missing; D then is the number of them in a row.
        stratified: spread the prefix lengths of a batch evenly: averages stay unbiased, with less variance.
        long: draw n with probability √(1 - n/D) - √(1 - (n+1)/D) instead, longer ones more often;
            `long_prefix_weights` of n make up for it.
        device: where to draw.

    Example:
        >>> observed = random_observed(5, 5, torch.Generator().manual_seed(0))
        >>> sorted(observed.sum(1).tolist())
        [0, 1, 2, 3, 4]
    """
    where = torch.device("cpu" if device is None else device)
    if where.type == "cuda" and available("triton"):
        from pynade.kernels.gpu_random import prefix, suits_prefix

        if suits_prefix(batch, n_variables):
            return prefix(batch, n_variables, _seed(generator, where), exists, stratified, long)
    place = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
    if stratified:
        strata = torch.rand(batch, generator=generator, device=device).argsort()
        place = (strata + place) / batch
    if long:
        place = (1 - (1 - place).square()).clamp(max=1 - 2**-40)  # below 1, as it was
    count = (place * (n_variables if exists is None else exists.sum(1))).long()
    if where.type == "cpu" and batch * n_variables >= WORTH_COMPILING and available("numba"):
        from pynade.kernels.cpu import random_subsets

        return random_subsets(count, n_variables, int(_seed(generator, where)), exists)
    keys = torch.rand(batch, n_variables, generator=generator, device=device)
    if exists is not None:
        keys = torch.where(exists, keys, 2.0)  # missing cells come last
    early = torch.arange(n_variables, device=device) < count[:, None]
    return torch.zeros_like(early).scatter_(1, keys.argsort(1), early)


def long_prefix_weights(n_observed: Tensor, n_variables: Tensor | int) -> Tensor:
    """How much likelier a prefix of so many variables is with uniform lengths than with `long` ones, float64.

    Example:
        >>> (long_prefix_weights(torch.tensor([0, 3]), 4)).tolist()
        [1.86..., 0.5]
    """
    left = n_variables - n_observed.double()
    return (left.sqrt() + (left - 1).sqrt()) / torch.as_tensor(n_variables).double().sqrt()


def _seed(generator: Generator | None, device: torch.device) -> Tensor:
    """The seed (1,) of a kernel's own numbers."""
    return torch.randint(1 << 31, (1,), generator=generator, device=device)
