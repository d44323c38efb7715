"""EM as a learner of the training loop: what all mixtures share, and what binary mixtures share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pynade.classical.binary import BinaryMixture
from pynade.likelihood import Estimate
from pynade.training.checkpoint import Checkpoint, State
from pynade.training.history import History
from pynade.training.loop import Callback, Learner, Report, Stopping, run

Parameters = dict[str, Tensor]  # every tensor has a leading axis of members
Cells = tuple[Tensor, Tensor | None]  # binary rows, and which of their cells are observed; None is all


class EM(Learner):
    """Abstract EM of one or more members: an epoch is an M-step (not in the first epoch) and an E-step.

    Args:
        params: parameters of all members.
        stopping: one for each member.
        validated: whether there are validation rows.
        generators: those that M-steps draw from.

    Attributes:
        params: parameters of the active members.
        best: the best parameters of every member.
        steps: M-steps done; -1 before the first E-step.
        memory: further tensors that the next step depends on.
        notes: for each member, which components were empty and placed again.
    """

    unit = "iteration"
    advice = "Values that differ by many orders of magnitude may be the reason."

    def __init__(
        self,
        params: Parameters,
        stopping: Sequence[Stopping],
        validated: bool,
        generators: Sequence[torch.Generator | None] = (),
    ) -> None:
        self.params, self.stopping, self.validated = params, stopping, validated
        self.best = {name: t.clone() for name, t in params.items()}
        self.active = list(range(len(stopping)))
        self.generators = [g for g in generators if g is not None]
        self.steps = -1
        self.memory: Parameters = {}
        self.notes: list[list[str]] = [[] for _ in stopping]

    @abstractmethod
    def expect(self) -> list[float | None]:
        """E-step; the mean training log-likelihood of each active member."""

    @abstractmethod
    def maximise(self) -> None:
        """M-step of what the last E-step has gathered."""

    def advance(self, report: Report) -> list[float | None]:
        """One iteration."""
        if self.steps >= 0:
            self.maximise()
        self.steps += 1
        return self.expect()

    def accept(self, better: Sequence[int]) -> None:
        """Copy the parameters of these members."""
        at = [self.active.index(m) for m in better]
        for name, best in self.best.items() if better else ():
            best[list(better)] = self.params[name][at]

    def drop(self, members: Sequence[int]) -> None:
        """Take these members out of the batch."""
        stay = [k for k, m in enumerate(self.active) if m not in members]
        self.params = {name: t[stay] for name, t in self.params.items()}
        self.active = [self.active[k] for k in stay]

    def state(self) -> State:
        """Parameters, random numbers and notes; what an E-step gathers is computed again."""
        random = {str(k): g.get_state() for k, g in enumerate(self.generators)}
        tensors = {"params": self.params, "best": self.best, "memory": self.memory, "generators": random}
        return tensors, {"active": self.active, "steps": self.steps, "notes": self.notes}

    def restore(self, state: State) -> None:
        """Go on after the E-step of the state."""
        tensors, facts = state
        for name, best in self.best.items():
            best.copy_(tensors["best"][name])
        for name, t in self.memory.items():
            t.copy_(tensors["memory"][name])
        for k, generator in enumerate(self.generators):
            generator.set_state(tensors["generators"][str(k)].cpu())
        self.active, self.steps, self.notes = facts["active"], facts["steps"], facts["notes"]
        if self.active:
            self.put({name: t.to(self.best[name].device) for name, t in tensors["params"].items()})

    def put(self, params: Parameters) -> None:
        """Take these parameters, and gather what the next M-step needs."""
        self.params = params
        self.expect()

    def revert(self, epoch: int, folder: object) -> str:
        """There is no model yet that could be left in a good state."""
        return "no model was fitted"

    def messages_of(self, member: int) -> list[str]:
        """The notes of a member, each once, with how often it happened."""
        counts = Counter(self.notes[member]).items()
        return [text + (f", {times} times" if times > 1 else "") for text, times in counts]

    def messages(self) -> list[str]:
        """The notes of the only member."""
        return self.messages_of(0)


def run_em(
    learner: Learner, epochs: int, callbacks: Sequence[Callback], checkpoint: Checkpoint | None
) -> list[History]:
    """Run EM after a check of its numbers: `epochs` is one more than the most M-steps."""
    for name, value in [("epochs", epochs), *(("patience", rule.patience) for rule in learner.stopping)]:
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    return run(learner, epochs, callbacks=callbacks, checkpoint=checkpoint)


class BinaryEM(EM):
    """Abstract EM of one mixture of binary densities, which is changed in place.

    It never decreases Σ_n log p(x_n) + s · `log_prior`, except where it places an empty component again,
    once for each.

    Args:
        model: the mixture.
        train: training rows.
        valid: validation rows, or None.
        strength: s > 0, of the prior.
        empty_below: a component that explains fewer rows is empty.
        stopping: when to stop.
    """

    def __init__(
        self,
        model: BinaryMixture,
        train: Cells,
        valid: Cells | None,
        strength: float,
        empty_below: float,
        stopping: Stopping,
    ) -> None:
        views = {name: t[None] for name, t in model.state_dict().items()}  # share the model's memory
        super().__init__(views, [stopping], valid is not None)
        self.mixture, self.train, self.valid = model, train, valid
        self.strength, self.empty_below = strength, empty_below
        self.x = train[0]
        self.log_p = self.x.new_zeros(len(self.x), dtype=torch.float64)
        self.placed = torch.zeros(model.n_components, dtype=torch.bool, device=self.x.device)
        self.memory = {"placed": self.placed}
        self.placed_now = False  # whether the last M-step has placed a component again
        self.last_objective = math.nan

    @property
    @abstractmethod
    def rows_at_once(self) -> int:
        """How many rows to compute at a time."""

    @abstractmethod
    def log_prior(self) -> float:
        """Logarithm of the prior density of the parameters, but for s and a constant."""

    def put(self, params: Parameters) -> None:
        """Copy the parameters into the model."""
        for name, t in params.items():
            self.params[name].copy_(t)
        self.expect()

    def score(self, epoch: int) -> list[Estimate] | None:
        """Mean log-likelihood of the validation rows."""
        if self.valid is None:
            return None
        each = [self.mixture.component_log_probs(*part).logsumexp(-1) for part in self.chunks(self.valid)]
        return [Estimate(float(torch.cat(each).mean()), math.nan, len(self.valid[0]))]

    def objective(self, train: list[float | None]) -> list[float | None]:
        """Log-likelihood plus log-prior, per row."""
        assert train[0] is not None
        self.last_objective = train[0] + self.strength * self.log_prior() / len(self.x)
        return [self.last_objective]

    def converged(self, change: float, tol: float) -> bool:
        """Whether the objective rises by less; not where a component was placed again."""
        return change < tol and not self.placed_now

    def line(self, position: int) -> dict[str, float]:
        """The objective."""
        return {"objective": self.last_objective}

    def finish(self) -> None:
        """Give the model its best parameters."""
        for name, t in self.best.items():
            self.params[name].copy_(t)

    def chunks(self, cells: Cells) -> Iterator[Cells]:
        """Rows in the model's dtype, some at a time."""
        x, observed = cells
        for start in range(0, len(x), self.rows_at_once):
            part = slice(start, start + self.rows_at_once)
            yield x[part].to(self.mixture.dtype), None if observed is None else observed[part]

    def empty(self, counts: Tensor, most: int) -> Tensor:
        """Components to place again, at most so many; `counts` (K,) are the rows that each explains."""
        which = ((counts < self.empty_below) & ~self.placed).nonzero().squeeze(-1)[:most]
        self.placed[which] = True
        self.placed_now = bool(len(which))
        return which

    def note(self, empty: Tensor, source: str) -> None:
        """Remember that components were placed again."""
        names = ", ".join(map(str, empty.tolist()))
        self.notes[0].append(
            f"iteration {self.steps + 1}: components {names} were empty and start anew from {source}"
        )


def log_odds_prior(log_weights: Tensor, logits: Sequence[Tensor]) -> float:
    """Σ_k log w_k + Σ (log θ + log(1 − θ)) over all logits of θ, in float64."""
    total = torch.log_softmax(log_weights.double(), 0).sum()
    for table in logits:
        table = table.double()
        total = total + (functional.logsigmoid(table) + functional.logsigmoid(-table)).sum()
    return float(total)
