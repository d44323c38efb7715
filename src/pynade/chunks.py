"""Finished chunks of a long evaluation, kept on disk so that it can be resumed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pynade.atomic import write_atomically, write_json
from pynade.ordering import Ordering
from pynade.processes import rank_and_size, wait
from pynade.store import describe


class Chunk(NamedTuple):
    """Rows first … last - 1 under orderings from … to - 1."""

    first: int
    last: int
    from_: int
    to: int

    @property
    def rows(self) -> slice:
        """Where its rows are."""
        return slice(self.first, self.last)

    @property
    def orderings(self) -> slice:
        """Where its orderings are."""
        return slice(self.from_, self.to)

    @property
    def size(self) -> int:
        """Row × ordering pairs."""
        return (self.last - self.first) * (self.to - self.from_)


class Chunks:
    """Finished chunks on disk, under a fingerprint of everything they depend on."""

    def __init__(
        self, folder: Path | str, model: Any, rows: Tensor, orderings: Ordering, precision: str
    ) -> None:
        facts = [describe(model), list(rows.shape), str(rows.dtype), precision]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        digest.update(rows.cpu().numpy().tobytes())
        digest.update(orderings.order.cpu().numpy().tobytes())
        self.folder = Path(folder)
        mark = self.folder / "fingerprint.json"
        wanted = {"sha256": digest.hexdigest()}
        for turn in (True, False):  # the first process, then those on machines with disks of their own
            if (rank_and_size()[0] == 0) == turn:
                self._put_in_order(mark, wanted)
            wait()  # nobody looks before the folder is in order

    def _put_in_order(self, mark: Path, wanted: dict[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not mark.exists() or json.loads(mark.read_text(encoding="utf-8")) != wanted:
            for old in self.folder.glob("*.npy"):
                old.unlink(missing_ok=True)
            write_json(mark, wanted)

    def _path(self, chunk: Chunk) -> Path:
        return self.folder / f"{'_'.join(map(str, chunk))}.npy"

    def has(self, chunk: Chunk) -> bool:
        """Whether it is finished."""
        return self._path(chunk).exists()

    def get(self, chunk: Chunk) -> np.ndarray:
        """The scores of a finished one, (orderings, rows)."""
        scores: np.ndarray = np.load(self._path(chunk))
        return scores

    def put(self, chunk: Chunk, scores: np.ndarray) -> None:
        """Keep the scores of one."""

        def write(path: Path) -> None:
            with open(path, "wb") as f:
                np.save(f, scores)

        write_atomically(self._path(chunk), write)
