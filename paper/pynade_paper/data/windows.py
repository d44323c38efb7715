"""Windows of consecutive frames of one recording, drawn at random places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from pynade_paper.data.places import CHUNK, uniform_places

#: Frames in a window, as in the paper's section on speech acoustics.
LENGTH = 11


@dataclass(frozen=True, eq=False)
class Windows:
    """A source of windows over recordings, see `pynade.tables.dataset.RowSource`.

    A row is ``length`` consecutive frames of one recording, frame after frame in time; its place is uniform
    over all places of all recordings. Everything happens on the device of ``frames``, with shapes that depend
    on ``n`` alone.

    Attributes:
        frames: The frames of all recordings, one recording after the other, (F, features) float32.
        ends: Number of places in each recording and those before it.
        shifts: What is added to a place in each recording to give the number of its first frame.
        n_places: Number of places altogether.
        length: Frames in a window.

    Example:
        >>> source = Windows.of([np.zeros((30, 21)), np.ones((11, 21))])
        >>> source.n_variables, source.n_places
        (231, 21)
        >>> source.draw(5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 231])
    """

    frames: torch.Tensor
    ends: torch.Tensor
    shifts: torch.Tensor
    n_places: int
    length: int = LENGTH

    @classmethod
    def of(cls, recordings: Sequence[np.ndarray], length: int = LENGTH) -> Self:
        """Return a source of windows over the recordings.

        Args:
            recordings: Frames of each recording, (frames, features). One that is shorter than a window gives
                none.
            length: Frames in a window.

        Raises:
            ValueError: No recording is as long as a window.
        """
        lengths = np.array([len(frames) for frames in recordings], dtype=np.int64)
        counts = np.maximum(lengths - length + 1, 0)
        if counts.sum() == 0:
            raise ValueError(
                f"expected at least one recording of {length} frames or more, but the longest of"
                f" {len(recordings)} has {int(lengths.max(initial=0))}"
            )
        ends = np.cumsum(counts)
        shifts = (np.cumsum(lengths) - lengths) - (ends - counts)
        frames = np.concatenate(list(recordings)).astype(np.float32)
        tensors = (torch.from_numpy(array) for array in (frames, ends, shifts))
        return cls(*tensors, int(ends[-1]), length)  # type: ignore[call-arg, arg-type]

    @property
    def n_variables(self) -> int:
        """Number of columns of a row."""
        return self.length * self.frames.shape[1]

    def to(self, device: torch.device | str) -> Self:
        """Return the source on another device."""
        frames, ends, shifts = (tensor.to(device) for tensor in (self.frames, self.ends, self.shifts))
        return replace(self, frames=frames, ends=ends, shifts=shifts)

    def draw(self, n: int, generator: torch.Generator) -> torch.Tensor:
        """Return ``n`` windows as rows, (n, length × features) float32.

        Args:
            n: Number of rows.
            generator: The only source of randomness; on the device of the source.
        """
        return self.at(uniform_places(n, self.n_places, generator, self.frames.device))

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """Return the windows at places, whole numbers below ``n_places``: in time, recording after recording.

        Example:
            >>> source = Windows.of([np.array([[1], [2], [3]]), np.array([[7], [8]])], length=2)
            >>> source.at(torch.arange(3)).tolist()
            [[1.0, 2.0], [2.0, 3.0], [7.0, 8.0]]
        """
        recording = torch.searchsorted(self.ends, places, right=True)
        first = places + self.shifts[recording]
        return self.frames[first[:, None] + torch.arange(self.length, device=places.device)].flatten(1)

    def every(self) -> np.ndarray:
        """Return all windows of all recordings, in order.

        Example:
            >>> Windows.of([np.zeros((12, 21))]).every().shape
            (2, 231)
        """
        places = torch.arange(self.n_places, device=self.frames.device)
        return np.concatenate([self.at(some).cpu().numpy() for some in places.split(CHUNK)])
