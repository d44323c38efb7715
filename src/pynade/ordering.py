"""Orderings of the variables (the *o* of eq. 1), and random prefixes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from pynade.arguments import check_positive
from pynade.kernels.backends import available

WORTH_COMPILING = 10_000  # cells of a batch of prefixes, from which a compiled loop is faster than sorting


class Ordering:
    """One permutation of D variables, or a batch of them (for the members of an ensemble, or for rows).

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
        invalid = (tensor.sort(dim=-1).values != expected).any(-1)
        if invalid.any():
            location = "" if tensor.ndim == 1 else f" (row {int(invalid.nonzero()[0, 0])})"
            raise ValueError(f"an ordering must be a permutation of 0 … {tensor.shape[-1] - 1}{location}")
        self._order = tensor.clone()

    @classmethod
    def trusted(cls, order: Tensor) -> Ordering:
        """An ordering from a tensor that is known to hold permutations, without check or copy."""
        self = object.__new__(cls)
        self._order = order
        return self

    @classmethod
    def natural(cls, n_variables: int) -> Ordering:
        """The ordering 0, 1, …, D-1."""
        return cls(torch.arange(n_variables))

    @classmethod
    def raster(cls, height: int, width: int, channels: int = 1) -> Ordering:
        """Row by row through the pixels of an image (channels, height, width), all channels of each in turn.

        Example:
            >>> Ordering.raster(1, 2, channels=2).order.tolist()
            [0, 2, 1, 3]
        """
        pixels = torch.arange(channels * height * width).view(channels, height * width)
        return cls(pixels.T.reshape(-1))

    @classmethod
    def random(cls, n_variables: int, k: int | None = None, generator: Generator | None = None) -> Ordering:
        """A uniformly random ordering, or `k` independent ones as a (k, D) batch."""
        check_positive(**{"the number of orderings": 1 if k is None else k})
        draws = torch.stack([torch.randperm(n_variables, generator=generator) for _ in range(k or 1)])
        return cls(draws[0] if k is None else draws)

    @property
    def order(self) -> Tensor:
        """Variable at each step, (D,) or (K, D); read-only."""
        return self._order

    @property
    def rank(self) -> Tensor:
        """Step of each variable, (D,) or (K, D)."""
        steps = torch.arange(self._order.shape[-1], device=self._order.device).expand_as(self._order)
        return steps.scatter(-1, self._order, steps)  # (faster than sorting)

    @property
    def before(self) -> Tensor:
        """Bool (…, D, D): entry [i, j] is True where variable j comes before variable i."""
        rank = self.rank
        return rank.unsqueeze(-2) < rank.unsqueeze(-1)

    @property
    def n_variables(self) -> int:
        """The number of variables, D."""
        return self._order.shape[-1]

    @property
    def is_batch(self) -> bool:
        """Whether this is a batch of orderings (K, D)."""
        return self._order.ndim == 2

    def rows(self, batch: int) -> Ordering:
        """One ordering per row: a single ordering is repeated, a batch must have `batch` rows."""
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
    """Prefixes of random orderings, as masks of their variables: bool (batch, D).

    Each row's number n of observed variables is uniform over 0 … D-1, and given n every set is equally
    likely: the prefix o_<d of the orderless objective, with d-1 = n.

    Args:
        batch: number of rows.
        n_variables: D.
        generator: source of randomness.
        exists: bool (batch, D), which cells are not missing; D then is their number in a row.
        stratified: stratify the prefix lengths of a batch, which reduces the variance of averages.
        long: draw long prefixes more often, n with probability √(1 - n/D) - √(1 - (n+1)/D);
            `long_prefix_weights` correct for it.
        device: of the result.

    Example:
        >>> observed = random_observed(5, 5, torch.Generator().manual_seed(0))
        >>> sorted(observed.sum(1).tolist())
        [0, 1, 2, 3, 4]
    """
    target = torch.device("cpu" if device is None else device)
    if target.type == "cuda" and available("triton"):
        from pynade.kernels.gpu_random import prefix, suits_prefix

        if suits_prefix(batch, n_variables):
            return prefix(batch, n_variables, _seed(generator, target), exists, stratified, long)
    position = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
    if stratified:
        strata = torch.rand(batch, generator=generator, device=device).argsort()
        position = (strata + position) / batch
    if long:
        position = (1 - (1 - position).square()).clamp(max=1 - 2**-40)  # (still below 1)
    count = (position * (n_variables if exists is None else exists.sum(1))).long()
    if target.type == "cpu" and batch * n_variables >= WORTH_COMPILING and available("numba"):
        from pynade.kernels.cpu import random_subsets

        return random_subsets(count, n_variables, int(_seed(generator, target)), exists)
    keys = torch.rand(batch, n_variables, generator=generator, device=device)
    if exists is not None:
        keys = torch.where(exists, keys, 2.0)  # missing cells come last
    first = torch.arange(n_variables, device=device) < count[:, None]
    return torch.zeros_like(first).scatter_(1, keys.argsort(1), first)


def long_prefix_weights(n_observed: Tensor, n_variables: Tensor | int) -> Tensor:
    """Importance weights, float64, of prefixes of these lengths drawn with `long`, for uniform lengths.

    Example:
        >>> (long_prefix_weights(torch.tensor([0, 3]), 4)).tolist()
        [1.86..., 0.5]
    """
    remaining = n_variables - n_observed.double()
    return (remaining.sqrt() + (remaining - 1).sqrt()) / torch.as_tensor(n_variables).double().sqrt()


def _seed(generator: Generator | None, device: torch.device) -> Tensor:
    """A random seed (1,) for a kernel."""
    return torch.randint(1 << 31, (1,), generator=generator, device=device)
