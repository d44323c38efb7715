"""Contrastive divergence for RBMs, a population of them at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor

from pynade.classical.em_binary import binary_rows
from pynade.classical.rbm import RBM
from pynade.classical.rbm_sum import MOST_UNITS
from pynade.kernels import backends
from pynade.training.checkpoint import Keeper, State
from pynade.training.fit import Diverged, minibatches
from pynade.training.options import decline
from pynade.training.step import captured

SCHEDULES = ("constant", "linear")


@dataclass
class ContrastiveProgress:
    """What a callback is told at the end of every epoch."""

    epoch: int  # 1, 2, …
    epochs: int
    valid: list[float] | None  # of each member, where this epoch was evaluated
    seconds: float


@dataclass
class ContrastiveHistory:
    """What happened to each of M members.

    Attributes:
        evaluated: epochs after which the members were scored.
        valid: mean validation log-likelihood, one list of M numbers for each of these epochs.
        best_epoch: whose parameters each member kept; the last where nothing was scored.
        best_valid: its score; None where nothing was scored.
        stopped: why it ended.
        seconds: wall time.
    """

    evaluated: list[int] = field(default_factory=list)
    valid: list[list[float]] = field(default_factory=list)
    best_epoch: list[int] = field(default_factory=list)
    best_valid: list[float | None] = field(default_factory=list)
    stopped: str = ""
    seconds: float = 0.0


Callback = Callable[[ContrastiveProgress], "bool | None"]


@torch.no_grad()
def exact_log_likelihood(rbm: RBM, x: Tensor) -> float:
    """Mean log p of rows x, exact: only for RBMs whose smaller layer has at most 25 units."""
    each = [rbm._free_energy(part.to(rbm.dtype)) for part in x.split(4096)]
    return -float(torch.cat(each).mean()) - rbm.log_partition()


def contrastive(
    rbm: RBM,
    x_train: Tensor | np.ndarray,
    x_valid: Tensor | np.ndarray | None = None,
    *,
    learning_rate: float = 0.005,
    k: int = 1,
    persistent: bool = False,
    epochs: int = 100,
    batch_size: int = 100,
    updates_per_epoch: int | None = None,
    schedule: str = "constant",
    evaluate_at: Collection[int] | None = None,
    evaluate: Callable[[RBM, Tensor], float] | None = None,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
) -> ContrastiveHistory:
    """Train one RBM in place: the population of one; see `contrastive_population`.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]]).repeat(50, 1)
        >>> g = torch.Generator().manual_seed(0)
        >>> rbm = RBM(4, 3, generator=g)
        >>> history = contrastive(rbm, x, x, learning_rate=0.2, k=3, batch_size=10, generator=g)
        >>> history.best_valid[0] > -1.5  # four fair coins have 2.77, the entropy is 0.69
        True
    """
    return contrastive_population(
        [rbm],
        x_train,
        x_valid,
        learning_rates=[learning_rate],
        k=k,
        persistent=persistent,
        epochs=epochs,
        batch_size=batch_size,
        updates_per_epoch=updates_per_epoch,
        schedule=schedule,
        evaluate_at=evaluate_at,
        evaluate=evaluate,
        generator=generator,
        callback=callback,
    )


@torch.no_grad()
def contrastive_population(
    rbms: Sequence[RBM],
    x_train: Tensor | np.ndarray,
    x_valid: Tensor | np.ndarray | None = None,
    *,
    learning_rates: Sequence[float],
    k: int = 1,
    persistent: bool = False,
    epochs: int = 100,
    batch_size: int = 100,
    updates_per_epoch: int | None = None,
    schedule: str = "constant",
    evaluate_at: Collection[int] | None = None,
    evaluate: Callable[[RBM, Tensor], float] | None = None,
    generator: torch.Generator | None = None,
    callback: Callback | None = None,
    keeper: Keeper | None = None,
) -> ContrastiveHistory:
    """Train M RBMs of one shape in place, all on the same batches and the same random numbers.

    An update follows ⟨h xᵀ⟩ of the batch minus ⟨h xᵀ⟩ after k rounds of Gibbs sampling that start from the
    batch (CD-k) or go on from the last update (persistent CD). Sharing random numbers makes a member's
    training the same as its training alone, and a comparison of learning rates less noisy. The paper's grid
    of 3 learning rates × {100, 500, 1000} passes is three members with evaluate_at=(100, 500, 1000).

    Args:
        rbms: the members, with the same number of units, on one device.
        x_train: rows (N, D), values exactly 0 or 1.
        x_valid: rows on which each member's best epoch is chosen.
        learning_rates: one for each member.
        k: rounds of Gibbs sampling.
        persistent: keep the chains from one update to the next.
        epochs: passes over the training rows.
        batch_size: rows of an update, and chains.
        updates_per_epoch: make an epoch so many updates instead of a pass, whatever the number of rows.
        schedule: of the learning rates: "constant", or "linear" down to zero, which quiets the noise that
            large rates leave in the parameters.
        evaluate_at: epochs after which to score the validation rows; only the last when not given.
        evaluate: gives a member's score; the exact mean log-likelihood when not given. An RBM too large for
            that is not scored unless there is one, and keeps its last parameters.
        generator: source of the batches and of all draws, on the members' device.
        callback: told of each epoch; one that returns True ends training.
        keeper: keeps the state, and gives it back where interrupted training goes on (with a generator).

    Raises:
        Diverged: parameters stopped being finite.
    """
    D, H = _shape(rbms, learning_rates)
    if min(k, epochs, batch_size) < 1:
        raise ValueError(f"k, epochs and batch_size must be at least 1, not {k}, {epochs} and {batch_size}")
    if updates_per_epoch is not None and updates_per_epoch < 1:
        raise ValueError(f"updates_per_epoch must be at least 1, not {updates_per_epoch}")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    at = {epochs} if evaluate_at is None else set(evaluate_at)
    if not at <= set(range(1, epochs + 1)):
        raise ValueError(f"evaluate_at names epochs from 1 to {epochs}, not {sorted(at)}")
    if evaluate is None and min(D, H) <= MOST_UNITS:
        evaluate = exact_log_likelihood
    device, dtype = rbms[0].device, rbms[0].dtype
    train = binary_rows(x_train, "training", D)[0].to(device)
    valid = None if x_valid is None else binary_rows(x_valid, "validation", D)[0].to(device)
    rate = torch.tensor(list(learning_rates), dtype=dtype, device=device)[:, None, None]
    W, b, c = (torch.stack([getattr(rbm, name) for rbm in rbms]) for name in "Wbc")
    members = _Members(W, b.unsqueeze(1), c.unsqueeze(1), generator)
    chains = None
    if persistent:
        first = torch.randint(len(train), (batch_size,), generator=generator, device=device)
        chains = train[first].to(dtype).expand(len(rbms), -1, -1)

    step = _Step(members, chains, k, batch_size)
    M, began = len(rbms), time.perf_counter()
    per_epoch = updates_per_epoch or -(-len(train) // batch_size)
    epoch = done = t = 0
    total = epochs * per_epoch
    history = ContrastiveHistory(best_epoch=[0] * M, best_valid=[None] * M)

    def state() -> State:
        best = {f"{name}{m}": getattr(rbm, name) for m, rbm in enumerate(rbms) for name in "Wbc"}
        more = {} if step.chains is None else {"chains": step.chains}
        if generator is not None:
            more["generator"] = generator.get_state()
        now = {"W": members.W, "b": members.b, "c": members.c}
        return {"now": now, "best": best, "more": more}, {"epoch": epoch, "history": asdict(history)}

    if keeper is not None and keeper.found is not None:
        tensors, facts = keeper.found
        for name, tensor in tensors["now"].items():
            getattr(members, name).copy_(tensor)
        for m, rbm in enumerate(rbms):
            for name in "Wbc":
                getattr(rbm, name).copy_(tensors["best"][f"{name}{m}"])
        if step.chains is not None:
            step.chains.copy_(tensors["more"]["chains"])
        if generator is not None and "generator" in tensors.get("more", {}):
            generator.set_state(tensors["more"]["generator"])
        history = ContrastiveHistory(**facts["history"])
        epoch = done = facts["epoch"]
        t, began = done * per_epoch, began - history.seconds
    for epoch in range(done + 1, epochs + 1) if not history.stopped else ():
        one_pass = updates_per_epoch is None
        for batch in minibatches(len(train), batch_size, per_epoch, one_pass, generator, device):
            step(train[batch].to(dtype), rate * decline(schedule, 0.0, t, total))
            t += 1
        finite = torch.isfinite(members.W).flatten(1).all(1).tolist()
        if not all(finite):
            m = finite.index(False)
            raise Diverged(f"member {m} (learning rate {learning_rates[m]:g}) diverged in epoch {epoch}")
        scores = None
        if valid is not None and evaluate is not None and epoch in at:
            history.evaluated.append(epoch)
            scores = [evaluate(members.put(rbm, m), valid) for m, rbm in enumerate(_blank(rbms))]
            history.valid.append(scores)
            for m, score in enumerate(scores):
                before = history.best_valid[m]
                if before is None or score > before:
                    history.best_valid[m], history.best_epoch[m] = score, epoch
                    members.put(rbms[m], m)
        history.seconds = time.perf_counter() - began
        if callback is not None and callback(ContrastiveProgress(epoch, epochs, scores, history.seconds)):
            history.stopped = "callback"
            break
        if keeper is not None:
            keeper.keep(state)
    history.stopped = history.stopped or "epochs"
    for m, rbm in enumerate(rbms):
        if history.best_valid[m] is None:
            history.best_epoch[m] = epoch
            members.put(rbm, m)
    if keeper is not None:
        keeper.keep(state, ended=True)
    return history


@dataclass
class _Members:
    """Stacked parameters W (M, H, D), b (M, 1, D), c (M, 1, H)."""

    W: Tensor
    b: Tensor
    c: Tensor
    generator: torch.Generator | None

    def update(self, x: Tensor, chains: Tensor | None, k: int, rate: Tensor) -> Tensor:
        """One step in place on rows x (B, D) from chains (M, C, D), by default the rows; the moved chains."""
        rows = x.expand(len(self.W), -1, -1)
        up = self._hidden(rows)
        v, p = self._moved(rows, up, k) if chains is None else self._moved(chains, None, k)
        n, m = rows.shape[1], v.shape[1]
        self.W += rate * (up.mT @ rows / n - p.mT @ v / m)
        self.b += rate * (rows.mean(1, keepdim=True) - v.mean(1, keepdim=True))
        self.c += rate * (up.mean(1, keepdim=True) - p.mean(1, keepdim=True))
        return v

    def _moved(self, v: Tensor, p: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        """Chains v (M, C, D) after k rounds, and p(h | v) there, from p where it is known.

        One kernel on a GPU, for machines with few hidden units.
        """
        if v.is_cuda and backends.available("triton"):
            from pynade.kernels.gibbs import gibbs, suits

            if suits(self.W):
                seed = torch.randint(1 << 31, (1,), generator=self.generator, device=v.device)
                return gibbs(v, self.W, self.b, self.c, k, seed)
        p = self._hidden(v) if p is None else p
        for _ in range(k):
            v = self._draw(torch.sigmoid(torch.baddbmm(self.b, self._draw(p), self.W)))
            p = self._hidden(v)
        return v, p

    def put(self, rbm: RBM, m: int) -> RBM:
        """Copy member m's parameters into an RBM."""
        rbm.W.copy_(self.W[m])
        rbm.b.copy_(self.b[m, 0])
        rbm.c.copy_(self.c[m, 0])
        return rbm

    def _hidden(self, v: Tensor) -> Tensor:
        return torch.sigmoid(torch.baddbmm(self.c, v, self.W.mT))

    def _draw(self, p: Tensor) -> Tensor:
        """Ones with probabilities p (M, B, units), the same uniform numbers for all members."""
        uniform = torch.rand(p.shape[1:], generator=self.generator, dtype=p.dtype, device=p.device)
        return (uniform < p).to(p.dtype)


class _Step:
    """Updates of the members; on a GPU full batches are replayed from a CUDA graph.

    An update is some ten small kernels for each round of Gibbs sampling, and most of its time would go into
    launching them.
    """

    def __init__(self, members: _Members, chains: Tensor | None, k: int, batch_size: int) -> None:
        self.members, self.k, self.batch_size = members, k, batch_size
        self.chains = None if chains is None else chains.clone()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, rate: Tensor) -> None:
        """One update on rows x (B, D)."""
        if not x.is_cuda or len(x) < self.batch_size:
            self._update(x, rate)
            return
        if self.graph is None:
            self._x, self._rate = x.clone(), rate.clone()
            members = self.members
            changed = [members.W, members.b, members.c, *([] if self.chains is None else [self.chains])]
            drawn_from = [] if members.generator is None else [members.generator]  # torch knows its own
            self.graph = captured(lambda: self._update(self._x, self._rate), changed, drawn_from)
        self._x.copy_(x)
        self._rate.copy_(rate)
        self.graph.replay()

    def _update(self, x: Tensor, rate: Tensor) -> None:
        moved = self.members.update(x, self.chains, self.k, rate)
        if self.chains is not None:
            self.chains.copy_(moved)


def _blank(rbms: Sequence[RBM]) -> list[RBM]:
    """Members to score without touching the best ones."""
    return [RBM(rbm.n_visible, rbm.n_hidden, scale=0.0).to(rbm.W) for rbm in rbms]


def _shape(rbms: Sequence[RBM], learning_rates: Sequence[float]) -> tuple[int, int]:
    shapes = {(rbm.n_visible, rbm.n_hidden) for rbm in rbms}
    if len(shapes) != 1:
        raise ValueError(f"a population is one or more RBMs of the same shape, not {sorted(shapes)}")
    if len(learning_rates) != len(rbms) or not all(r > 0 and math.isfinite(r) for r in learning_rates):
        raise ValueError(f"{len(rbms)} RBMs need as many positive learning rates, not {list(learning_rates)}")
    return shapes.pop()
