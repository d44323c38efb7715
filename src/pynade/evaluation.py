"""Exact log-likelihood under many orderings: K orderings × N rows, in chunks that survive a kill.

One walk of the stepper scores G orderings × N rows at once: each ordering is a group, so a step reads one
row of the weights per ordering and does O(H) work before the second layer, for all rows together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pynade.atomic import write_atomically, write_json
from pynade.families import Family
from pynade.likelihood import Estimate
from pynade.models import Ensemble, Orderless
from pynade.nets import Net
from pynade.ordering import Ordering
from pynade.store import describe

GPU_ROWS = 640_000  # orderings × rows walked together on a GPU: a few GB of activations for H = 500
CPU_ROWS = 4_000  # on a CPU: activations that stay near the caches


@dataclass(frozen=True)
class OrderingScores:
    """log p(x_n | ordering k) for every row and ordering, and what follows from it.

    Attributes:
        log_probs: (N, K), exact.
    """

    log_probs: np.ndarray

    def mean(self) -> Estimate:
        """The typical single ordering: each row's log-probabilities averaged over orderings."""
        return Estimate.from_rows(self.log_probs.mean(1))

    def ensemble(self, k: int | None = None) -> Estimate:
        """The ensemble of the first k orderings (all by default): log of the mean probability."""
        return Estimate.from_rows(self.ensemble_rows(k))

    def ensemble_rows(self, k: int | None = None) -> np.ndarray:
        """Log-probability of each row under the ensemble of the first k orderings."""
        part = self.log_probs[:, :k]
        return np.logaddexp.reduce(part, axis=1) - np.log(part.shape[1])

    def curve(self) -> list[Estimate]:
        """The ensembles of 1, 2, …, K orderings."""
        total = np.logaddexp.accumulate(self.log_probs, axis=1)
        sizes = np.arange(1, total.shape[1] + 1)
        return [Estimate.from_rows(rows) for rows in (total - np.log(sizes)).T]

    def ordering_means(self) -> np.ndarray:
        """Mean log-likelihood of each ordering alone, (K,): its spread is the robustness to the ordering."""
        return self.log_probs.mean(0)


def score_orderings(
    model: Orderless | Ensemble,
    x: Tensor | np.ndarray,
    orderings: Ordering | None = None,
    *,
    folder: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    rows_at_once: int | None = None,
) -> OrderingScores:
    """Exact log p of every row under every ordering.

    Args:
        model: an orderless model with `orderings`, or an ensemble with its own.
        x: rows (N, D), complete.
        orderings: a (K, D) batch.
        folder: keep finished chunks here; a second call with the same model, rows and orderings takes
            them from there. The folder must not be used for anything else.
        progress: called as progress(done, total) in units of row × ordering.
        rows_at_once: how many (row, ordering) pairs to walk together.

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.nets import MaskedMLP
        >>> deep = Orderless(MaskedMLP(3, hidden=(4,)), Bernoulli())
        >>> scores = score_orderings(deep, torch.eye(3), Ordering.random(3, k=5))
        >>> scores.log_probs.shape, len(scores.curve())
        ((3, 5), 5)
    """
    if orderings is None:
        if not isinstance(model, Ensemble):
            raise ValueError("an orderless model is scored under orderings: give a (K, D) batch of them")
        orderings = model.orderings
    if not orderings.is_batch:
        orderings = Ordering.trusted(orderings.order.unsqueeze(0))
    rows = torch.as_tensor(x)
    members = (model if isinstance(model, Ensemble) else model.ensemble(orderings)).to(model.device)
    members.check(rows)
    n_rows, k = len(rows), len(orderings)
    if n_rows == 0:
        raise ValueError("there are no rows to score")
    limit = rows_at_once or (GPU_ROWS if model.device.type == "cuda" else CPU_ROWS)
    row_step = min(n_rows, limit)
    group_step = max(1, limit // row_step)
    store = _Chunks(folder, model, rows, orderings) if folder is not None else None

    out = np.empty((n_rows, k))
    done = 0
    order = orderings.order.to(model.device)
    for r in range(0, n_rows, row_step):
        part = rows[r : r + row_step].to(model.device, model.dtype)
        for g in range(0, k, group_step):
            name = f"{r}_{r + len(part)}_{g}_{min(k, g + group_step)}"
            scores = store.get(name) if store else None
            if scores is None:
                scores = walk(members.net, members.family, part, order[g : g + group_step]).cpu().numpy()
                if store:
                    store.put(name, scores)
            out[r : r + row_step, g : g + group_step] = scores.T
            done += scores.size
            if progress is not None:
                progress(done, n_rows * k)
    return OrderingScores(out)


@torch.no_grad()
def walk(net: Net, family: Family, x: Tensor, order: Tensor) -> Tensor:
    """Score rows x (N, D) along G orderings (G, D) in one walk: float64 (G, N)."""
    columns = x.T.contiguous()  # (D, N): the rows' values of one variable lie together
    total = x.new_zeros(len(order), len(x), dtype=torch.float64)
    state = net.start(len(order), len(x))
    for i in order.unbind(1):
        x_i = columns[i]  # (G, N)
        total += family.log_prob(x_i, net.predict(state, i), i[:, None])
        state = net.observe(state, i, family.encode(x_i, i[:, None]))
    return total


class _Chunks:
    """Finished chunks on disk, under a fingerprint of everything they depend on."""

    def __init__(self, folder: Path | str, model: Any, rows: Tensor, orderings: Ordering) -> None:
        digest = hashlib.sha256(json.dumps([describe(model), list(rows.shape), str(rows.dtype)]).encode())
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        digest.update(rows.cpu().numpy().tobytes())
        digest.update(orderings.order.cpu().numpy().tobytes())
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = self.folder / "fingerprint.json"
        wanted = {"sha256": digest.hexdigest()}
        if not mark.exists() or json.loads(mark.read_text(encoding="utf-8")) != wanted:
            for old in self.folder.glob("*.npy"):
                old.unlink()
            write_json(mark, wanted)

    def get(self, name: str) -> np.ndarray | None:
        path = self.folder / f"{name}.npy"
        return np.load(path) if path.exists() else None

    def put(self, name: str, scores: np.ndarray) -> None:
        def write(path: Path) -> None:
            with open(path, "wb") as f:
                np.save(f, scores)

        write_atomically(self.folder / f"{name}.npy", write)
