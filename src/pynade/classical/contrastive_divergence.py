"""Contrastive divergence for restricted Boltzmann machines, several machines at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pynade.arguments import check_positive
from pynade.classical.binary import CHUNK_ROWS, check_binary_rows
from pynade.classical.em import Array, Members, Random
from pynade.classical.rbm import MOST_UNITS, RBM
from pynade.families import Bernoulli
from pynade.kernels import backends
from pynade.likelihood import Estimate
from pynade.training.checkpoint import Checkpoint
from pynade.training.gradient import minibatches
from pynade.training.history import History
from pynade.training.loop import Callback, Report, Stopping, run
from pynade.training.options import schedule_factor
from pynade.training.step import capture_graph

SCHEDULES = ("constant", "linear")


class TrainedRBM(NamedTuple):
    """The results of training one machine."""

    history: History  # with the training log-likelihood of the epochs in which the machine was scored
    log_z: float  # logarithm of the partition function of the final parameters
    log_z_stderr: float  # its standard error; 0 if it is exact


@torch.no_grad()
def contrastive_divergence(
    rbms: Sequence[RBM],
    x: Array,
    valid: Array | None = None,
    *,
    learning_rates: Sequence[float],
    k: int = 1,
    persistent: bool = False,
    epochs: int = 100,
    batch_size: int = 100,
    updates_per_epoch: int | None = None,
    schedule: str = "constant",
    evaluate_every: int = 10,
    ais_chains: int = 100,
    ais_steps: int = 1000,
    generator: Random = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
) -> list[TrainedRBM]:
    """Train M independent RBMs of one shape in place, on the same batches and random numbers.

    The gradient is ⟨h xᵀ⟩ of the batch minus ⟨h xᵀ⟩ after k rounds of Gibbs sampling that start from the
    batch (CD-k) or from the states of the last update (persistent CD). With validation rows every machine
    ends with its best parameters. Scores are exact if the smaller layer has at most 25 units; larger machines
    are scored only after the last epoch, by annealed importance sampling (AIS).

    Args:
        rbms: the machines, with the same number of units, on one device.
        x: training rows (N, D), values exactly 0 or 1.
        valid: validation rows.
        learning_rates: one for each machine.
        k: rounds of Gibbs sampling.
        persistent: keep the chains from one update to the next.
        epochs: passes over the training rows.
        batch_size: rows of an update, and chains.
        updates_per_epoch: the number of updates of an epoch; None: a pass over the rows.
        schedule: of the learning rates: "constant", or "linear" down to zero.
        evaluate_every: epochs between scores; the last epoch is always scored.
        ais_chains: chains of AIS.
        ais_steps: intermediate distributions of AIS.
        generator: source of the batches and of all draws, on the machines' device. AIS uses a copy with the
            initial state.
        callbacks: called with a `Progress`; one that returns True ends training after the epoch.
        checkpoint: stores the state, from which interrupted training continues (it needs a generator).

    Raises:
        Diverged: no machine has finite parameters; all have been reset to their last finite ones.

    Example:
        >>> x = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]]).repeat(50, 1)
        >>> g = torch.Generator().manual_seed(0)
        >>> options = {"learning_rates": [0.2], "k": 3, "batch_size": 10, "generator": g}
        >>> (trained,) = contrastive_divergence([RBM(4, 3, generator=g)], x, x, **options)
        >>> trained.history.best_valid > -1.5  # four fair coins have 2.77, the entropy is 0.69
        True
    """
    sizes = {"k": k, "epochs": epochs, "batch_size": batch_size, "evaluate_every": evaluate_every}
    check_positive(**sizes, updates_per_epoch=1 if updates_per_epoch is None else updates_per_epoch)
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    shapes = {(rbm.n_visible, rbm.n_hidden) for rbm in rbms}
    if len(shapes) != 1:
        raise ValueError(f"the RBMs must be one or more of the same shape, not {sorted(shapes)}")
    if len(learning_rates) != len(rbms) or not all(r > 0 and math.isfinite(r) for r in learning_rates):
        raise ValueError(f"{len(rbms)} RBMs need as many positive learning rates, not {list(learning_rates)}")
    (train, _), valid_cells = check_binary_rows(x, valid, rbms[0].n_visible)
    ais = ais_chains, ais_steps
    settings = (k, persistent, ais, epochs, batch_size, updates_per_epoch, schedule, evaluate_every)
    learner = _Contrastive(rbms, train, valid_cells and valid_cells[0], learning_rates, generator, *settings)
    trained = []
    for m, history in enumerate(run(learner, epochs, callbacks=callbacks, checkpoint=checkpoint)):
        scores = learner.best_scores[m]
        if scores is None:  # without validation rows, ended before the first score, or resumed
            scores = learner.evaluate(rbms[m], None)
            if history.epochs:
                history.epochs[history.best_epoch - 1]["train"] = scores["train"]
        trained.append(TrainedRBM(history, scores["log_z"], scores["stderr"]))
    return trained


@dataclass(eq=False)
class _Contrastive(Members):
    """Learns W (M, H, D), b (M, 1, D), c (M, 1, H); `memory`: the last finite ones, and chains (M, C, D)."""

    rbms: Sequence[RBM]
    x: Tensor
    valid: Tensor | None
    rates: Sequence[float]
    generator: Random
    k: int
    persistent: bool
    ais: tuple[int, int]
    epochs: int
    batch_size: int
    updates_per_epoch: int | None
    schedule: str
    evaluate_every: int

    advice = "Try a smaller learning rate."

    def __post_init__(self) -> None:
        rbms, generator, device = self.rbms, self.generator, self.rbms[0].device
        self.base = Bernoulli().eta_from_marginal(self.x).squeeze(-1)  # logits from which AIS starts
        self.initial_generator = generator and generator.clone_state()
        self.exact = min(rbms[0].W.shape) <= MOST_UNITS
        self.x, self.valid = self.x.to(device), None if self.valid is None else self.valid.to(device)
        self.updates = self.updates_per_epoch or -(-len(self.x) // self.batch_size)
        stacked = {name: torch.stack([torch.atleast_2d(getattr(r, name)) for r in rbms]) for name in "Wbc"}
        self.W, self.b, self.c = stacked.values()
        views = [{"W": self.W[m], "b": self.b[m, 0], "c": self.c[m, 0]} for m in range(len(rbms))]
        super().__init__(views, Stopping(), [generator])
        self.validated = self.valid is not None
        self.memory = {name: t.clone() for name, t in stacked.items()}
        self.scores: dict[int, dict[str, float]] = {}  # members scored in this epoch
        self.best_scores: list[dict[str, float] | None] = [None] * len(rbms)  # scores of the best parameters
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.persistent:
            batch = torch.randint(len(self.x), (self.batch_size,), generator=generator, device=device)
            self.memory["chains"] = self.x[batch].to(self.W.dtype).expand(len(rbms), -1, -1).clone()

    def advance(self, report: Report) -> list[float | None]:
        x, W = self.x, self.W
        rates = torch.tensor(list(self.rates), dtype=W.dtype, device=W.device)[:, None, None]
        single, one_pass = len(self.rates) == 1, self.updates_per_epoch is None
        batches = minibatches(len(x), self.batch_size, self.updates, one_pass, self.generator, x.device)
        self.steps += 1
        for t, batch in enumerate(batches, start=self.steps * self.updates):
            factor = schedule_factor(self.schedule, 0.0, t, self.epochs * self.updates)
            self.step(x[batch].to(W.dtype), rates * factor, replay=len(batch) == self.batch_size)
            report(t + 1, self.rates[0] * factor if single else math.nan, lambda: math.nan)
        is_finite = torch.isfinite(W).flatten(1).all(1).tolist()
        self.finite = [m for m in self.active if is_finite[m]]
        self.scores, epoch = {}, self.steps + 1
        scheduled = self.exact and epoch % self.evaluate_every == 0
        if self.valid is not None and (scheduled or epoch == self.epochs):
            for m in self.finite:
                self.rbms[m].load_state_dict(self.params[m])
                self.scores[m] = self.evaluate(self.rbms[m], self.valid)
        return [self.scores.get(m, {}).get("train") if m in self.finite else math.nan for m in self.active]

    def evaluate(self, machine: RBM, valid: Tensor | None) -> dict[str, float]:
        """log Z, its standard error, mean log-likelihoods of training and validation rows (if any)."""
        if self.exact:
            scores = {"log_z": machine.log_partition(), "stderr": 0.0}
        else:
            generator = self.initial_generator and self.initial_generator.clone_state()
            estimate = machine.log_partition_ais(*self.ais, generator, base=self.base)
            scores = {"log_z": estimate.log_z, "stderr": estimate.stderr}
        for name, rows in (("train", self.x), ("valid", valid)):
            if rows is not None:
                energies = [machine._free_energy(part.to(machine.W)) for part in rows.split(CHUNK_ROWS)]
                scores[name] = -float(torch.cat(energies).mean()) - scores["log_z"]
        return scores

    def score(self, epoch: int) -> list[Estimate] | None:
        if self.valid is None or not self.scores:
            return None
        values = [self.scores.get(m, {}).get("valid", math.nan) for m in self.active]
        return [Estimate(value, math.nan, len(self.valid)) for value in values]

    def accept(self, better: Sequence[int]) -> None:
        super().accept(better)
        for m in better:
            self.best_scores[m] = self.scores.get(m)
        for name in "Wbc":
            self.memory[name][self.finite] = getattr(self, name)[self.finite]

    def finish(self) -> None:
        for rbm, best in zip(self.rbms, self.best, strict=True):
            rbm.load_state_dict(best)

    def revert(self, epoch: int) -> str:
        for m, parameters in enumerate(self.best):
            self.best[m] = {name: self.memory[name][m].view_as(t) for name, t in parameters.items()}
        self.finish()
        return f"the parameters of epoch {epoch - 1} were kept" if epoch > 1 else "the initial ones were kept"

    def step(self, x: Tensor, rate: Tensor, replay: bool) -> None:
        """One update on rows x (B, D); on a GPU, for full batches, a replay of a CUDA graph."""
        if not (x.is_cuda and replay):
            self.update(x, rate)
            return
        if self.graph is None:
            self._x, self._rate = x.clone(), rate.clone()
            changed = [self.W, self.b, self.c, *([self.memory["chains"]] if self.persistent else [])]
            self.graph = capture_graph(lambda: self.update(self._x, self._rate), changed, self.generators)
        self._x.copy_(x)
        self._rate.copy_(rate)
        self.graph.replay()

    def update(self, x: Tensor, rate: Tensor) -> None:
        """Update the parameters with rows x (B, D); sampling starts from the chains or these rows."""
        rows = x.expand(len(self.W), -1, -1)
        p_hidden = self._hidden_probabilities(rows)
        chains = self.memory.get("chains")
        start, p_start = (rows, p_hidden) if chains is None else (chains, None)
        v, p = self._sample_chains(start, p_start, self.k)
        n, m = rows.shape[1], v.shape[1]
        self.W += rate * (p_hidden.mT @ rows / n - p.mT @ v / m)
        self.b += rate * (rows.mean(1, keepdim=True) - v.mean(1, keepdim=True))
        self.c += rate * (p_hidden.mean(1, keepdim=True) - p.mean(1, keepdim=True))
        if chains is not None:
            chains.copy_(v)

    def _sample_chains(self, v: Tensor, p: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        """Chains v (M, C, D) and p(h | v) after k rounds; the argument p is p(h | v) before them, or None."""
        if v.is_cuda and backends.available("triton"):  # a fused kernel for few hidden units
            from pynade.kernels.gpu_random import gibbs, suits_gibbs

            if suits_gibbs(self.W):
                seed = torch.randint(1 << 31, (1,), generator=self.generator, device=v.device)
                return gibbs(v, self.W, self.b, self.c, k, seed)
        p = self._hidden_probabilities(v) if p is None else p
        for _ in range(k):
            v = self._draw(torch.sigmoid(torch.baddbmm(self.b, self._draw(p), self.W)))
            p = self._hidden_probabilities(v)
        return v, p

    def _hidden_probabilities(self, v: Tensor) -> Tensor:
        return torch.sigmoid(torch.baddbmm(self.c, v, self.W.mT))

    def _draw(self, p: Tensor) -> Tensor:
        """Draws of binary units with probabilities p (M, B, units); members share the uniform numbers."""
        uniform = torch.rand(p.shape[1:], generator=self.generator, dtype=p.dtype, device=p.device)
        return (uniform < p).to(p.dtype)
