"""Windows of consecutive frames of one recording, drawn at random places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from pynade_paper.data.places import CHUNK, Places

#: Frames in a window, as in the paper's section on speech acoustics.
LENGTH = 11


@dataclass(frozen=True, eq=False)
class Windows(Places):
    """A source of windows over recordings: ``length`` consecutive frames of one recording, in time.

    Example:
        >>> source = Windows.of([np.zeros((30, 21)), np.ones((11, 21))])
        >>> source.n_variables, source.n_places
        (231, 21)
        >>> source.draw(5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 231])
    """

    frames: Tensor  # of all recordings, one recording after the other, (F, features) float32
    shifts: Tensor  # what is added to a place in each recording to give the number of its first frame
    length: int = LENGTH  # frames in a window

    @classmethod
    def of(cls, recordings: Sequence[np.ndarray], length: int = LENGTH) -> Self:
        """Return a source of windows over the frames of each recording, (frames, features).

        A recording that is shorter than a window gives none; ValueError if all are.
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
        rest = torch.from_numpy(frames), torch.from_numpy(shifts), length
        return cls(torch.from_numpy(ends), int(ends[-1]), *rest)

    @property
    def n_variables(self) -> int:
        """Number of columns of a row."""
        return self.length * self.frames.shape[1]

    def rows(self, places: Tensor, generator: Generator) -> Tensor:
        """Return the windows at places, without noise."""
        return self.at(places)

    def at(self, places: Tensor) -> Tensor:
        """Return the windows at places, which are in time, recording after recording.

        Example:
            >>> source = Windows.of([np.array([[1], [2], [3]]), np.array([[7], [8]])], length=2)
            >>> source.at(torch.arange(3)).tolist()
            [[1.0, 2.0], [2.0, 3.0], [7.0, 8.0]]
        """
        recording = self.origin(places)
        first = places + self.shifts[recording]
        return self.frames[first[:, None] + torch.arange(self.length, device=places.device)].flatten(1)

    def every(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all windows of all recordings, in order, and the number of the recording of each."""
        places = torch.arange(self.n_places, device=self.frames.device)
        rows = np.concatenate([self.at(some).cpu().numpy() for some in places.split(CHUNK)])
        return rows, self.origin(places).cpu().numpy()
