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
Parameters = dict[str, Tensor]


class EMOptions(TypedDict, total=False):
    """Options of every EM; each function that takes them names its defaults.

    Attributes:
        epochs: iterations at most, one more than M-steps.
        patience: validations without improvement before stopping; None: no limit.
        tol: stop when the mean training log-likelihood (for binary mixtures the `objective` in the history,
            with a log-prior) changes by less, in nats per row; 0: never.
        stop_at_train: stop when the mean training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `train_log_likelihood` of the validated run).
        generator: draws the starting point, and rows from which empty components start anew.
        callbacks: called with a `Progress` after each iteration; one that returns True ends EM.
        checkpoint: stores the state, from which an interrupted EM continues.
    """

    epochs: int
    patience: int | None
    tol: float
    stop_at_train: float | None
    generator: Random
    callbacks: Sequence[Callback]
    checkpoint: Checkpoint | None


class Members(Learner):
    """Abstract learner of one or more members, each with its current and its best parameters."""

    def __init__(self, params: list[Parameters], rule: Stopping, generators: Sequence[Random] = ()) -> None:
        self.params, self.stopping = params, [rule for _ in params]
        self.best = [{name: t.clone() for name, t in parameters.items()} for parameters in params]
        self.active = list(range(len(params)))
        self.generators = [g for g in generators if g is not None]
        self.memory: Parameters = {}  # other tensors that the next epoch depends on
        self.notes: list[list[str]] = [[] for _ in params]  # messages about components that started anew
        self.steps = -1  # epochs done minus one: in EM, the number of M-steps

    def accept(self, better: Sequence[int]) -> None:
        """Copy the parameters of these members as their best."""
        for m in better:
            self.best[m] = {name: t.clone() for name, t in self.params[m].items()}

    def drop(self, members: Sequence[int]) -> None:
        """Stop training these members."""
        self.active = [m for m in self.active if m not in members]

    def state(self) -> State:
        """Parameters, states of the generators, and notes."""
        random = {str(k): g.get_state() for k, g in enumerate(self.generators)}
        groups = {"memory": self.memory, "generators": random}
        for m in range(len(self.params)):
            groups |= {f"params {m}": self.params[m], f"best {m}": self.best[m]}
        return groups, {"active": self.active, "steps": self.steps, "notes": self.notes}

    def restore(self, state: State) -> None:
        """Copy a state into the tensors of this learner."""
        groups, facts = state
        for group, tensors in Members.state(self)[0].items():
            for name, t in tensors.items() if group != "generators" else ():
                t.copy_(groups[group][name])
        for k, generator in enumerate(self.generators):
            generator.set_state(groups["generators"][str(k)].cpu())
        self.active, self.steps, self.notes = facts["active"], facts["steps"], facts["notes"]


class EM(Members):
    """Abstract EM: an epoch is an M-step (not in the first epoch) and an E-step."""

    unit = "iteration"
    advice = "Values that differ by many orders of magnitude may be the reason."

    def __init__(
        self, params: list[Parameters], options: EMOptions, generators: Sequence[Random] = ()
    ) -> None:
        for name in options.keys() - EMOptions.__annotations__.keys():
            raise TypeError(f"EM has no option {name!r}; known: {', '.join(EMOptions.__annotations__)}")
        patience = options["patience"]
        check_positive(epochs=options["epochs"], patience=1 if patience is None else patience)
        rule = Stopping(patience, options["tol"] or None, options.get("stop_at_train"))
        super().__init__(params, rule, generators)
        self.options = options

    @abstractmethod
    def expect(self) -> list[float | None]:
        """E-step; the mean training log-likelihood of each active member."""

    @abstractmethod
    def maximise(self) -> None:
        """M-step from the statistics of the last E-step."""

    def advance(self, report: Report) -> list[float | None]:
        """One iteration."""
        if self.steps >= 0:
            self.maximise()
        self.steps += 1
        return self.expect()

    def restore(self, state: State) -> None:
        """Restore a state and repeat its E-step."""
        super().restore(state)
        if self.active:
            self.expect()

    def revert(self, epoch: int) -> str:
        """The end of the error message: there are no earlier parameters to return to."""
        return "no model was fitted"

    def run(self) -> list[History]:
        """Train; the history of each member, whose messages are its notes with their counts."""
        callbacks, checkpoint = self.options.get("callbacks", ()), self.options.get("checkpoint")
        histories = run(self, self.options["epochs"], callbacks=callbacks, checkpoint=checkpoint)
        for history, notes in zip(histories, self.notes, strict=True):
            counts = Counter(notes).items()
            history.messages = [text + (f", {times} times" if times > 1 else "") for text, times in counts]
        return histories


def draw_rows(x: Tensor, n: int, generator: Random) -> Tensor:
    """n rows of x, with replacement, drawn on the generator's device."""
    device = x.device if generator is None else generator.device
    return x[torch.randint(len(x), (n,), generator=generator, device=device).to(x.device)]


def draw_components(weights: Tensor, n: int, generator: Random) -> Tensor:
    """n components for each row of weights (..., K) -> (..., n), drawn on the generator's device."""
    device = weights.device if generator is None else generator.device
    return torch.multinomial(weights.to(device), n, replacement=True, generator=generator).to(weights.device)
