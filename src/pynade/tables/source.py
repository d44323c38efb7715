"""Rows that are drawn on the fly: what a source of rows can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:  # torch takes a second to import, and a list of names should not wait for it
    import torch


class RowSource(Protocol):
    """Something that draws training rows for as long as they are wanted.

    A source lives on one device and draws there, without waiting for it: `draw` can be captured in a CUDA
    graph. The patches and windows of the paper are sources.
    """

    @property
    def n_variables(self) -> int:
        """Number of columns of a row."""

    def draw(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Return ``n`` rows, independent and uniform over all there are, as (n, n_variables) float32."""

    def to(self, device: torch.device | str) -> Self:
        """Return the source on another device; the generator must be on the same."""
