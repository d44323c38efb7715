"""EM as a learner of the training loop: the options and the iterations that all mixtures share."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from pynade.arguments import check_positive
from pynade.training.checkpoint import Checkpoint, State
from pynade.training.history import History
from pynade.training.loop import Callback, Learner, Report, Stopping, run

Array = Tensor | np.ndarray
Random = torch.Generator | None  # where random numbers come from; None is torch's own generator
Parameters = dict[str, Tensor]  # every tensor has a leading axis of members


class EMOptions(TypedDict, total=False):
    """Options of every EM; each function that takes them names its defaults.

    Attributes:
        epochs: iterations at most, one more than M-steps.
        patience: validations without a better score before stopping; None never stops so.
        tol: stop when the mean training log-likelihood (of binary mixtures: plus a log-prior, `objective` in
            the history) changes by less, in nats per row; 0 never stops so.
        stop_at_train: stop when the mean training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `train_log_likelihood` of the validated run).
        generator: draws the starting point, and rows where a component starts anew.
        callbacks: called with a `Progress` after each iteration; one that returns True ends EM.
        checkpoint: keeps the state, and gives it back where an interrupted EM goes on.
    """

    epochs: int
    patience: int | None
    tol: float
    stop_at_train: float | None
    generator: Random
    callbacks: Sequence[Callback]
    checkpoint: Checkpoint | None


def stopping(options: EMOptions) -> Stopping:
    """When to stop, of options that are complete and known."""
    for name in options.keys() - EMOptions.__annotations__.keys():
        raise TypeError(f"EM has no option {name!r}; known: {', '.join(EMOptions.__annotations__)}")
    patience = options["patience"]
    check_positive(epochs=options["epochs"], patience=1 if patience is None else patience)
    return Stopping(patience, options["tol"] or None, options.get("stop_at_train"))


def run_em(learner: Learner, options: EMOptions) -> list[History]:
    """Run EM; one history for each member."""
    callbacks, checkpoint = options.get("callbacks", ()), options.get("checkpoint")
    return run(learner, options["epochs"], callbacks=callbacks, checkpoint=checkpoint)


class EM(Learner):
    """Abstract EM of one or more members: an epoch is an M-step (not in the first epoch) and an E-step.

    `params` are those of the active members, `best` of every member; `generators` those M-steps draw from.
    """

    unit = "iteration"
    advice = "Values that differ by many orders of magnitude may be the reason."

    def __init__(
        self,
        params: Parameters,
        stopping: Sequence[Stopping],
        validated: bool,
        generators: Sequence[Random] = (),
    ) -> None:
        self.params, self.stopping, self.validated = params, stopping, validated
        self.best = {name: t.clone() for name, t in params.items()}
        self.active = list(range(len(stopping)))
        self.generators = [g for g in generators if g is not None]
        self.steps = -1  # M-steps done
        self.memory: Parameters = {}  # further tensors that the next step depends on
        self.notes: list[list[str]] = [[] for _ in stopping]  # components that were placed again

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
        for own, group in ((self.best, "best"), (self.memory, "memory")):
            for name, t in own.items():
                t.copy_(tensors[group][name])
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
