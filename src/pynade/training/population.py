"""Many models of one architecture, trained as one program.

Folds × learning rates × weight decays × seeds: the members' parameters are stacked on a leading axis, every
update is one batched computation, and each member has its own numbers, its own rows and its own early stop.
A member ends as it would have ended alone (up to rounding), because its shuffling and its prefixes come from
a generator seeded as `fit` seeds it; members with the same rows and the same seed share one such stream.
(Dropout is the exception: its noise is drawn for all members at once.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pynade.training.checkpoint import CHECKPOINT_SECONDS, load_checkpoint, save_checkpoint
from pynade.training.fit import History, checked_rows, decays, minibatches
from pynade.training.optimizer import Optimizer
from pynade.training.options import Gradient, decline
from pynade.training.stacked import Member, Population, Scored, distinct
from pynade.training.step import Step, fast_matmul

OWN = ("learning_rate", "gamma", "momentum", "weight_decay", "patience", "stop_at_train")  # may differ


@dataclass
class PopulationProgress:
    """What a callback is told after every epoch; one that returns True ends training."""

    epoch: int
    epochs: int
    training: np.ndarray  # bool (M,), who is still being trained
    train_nll: np.ndarray  # (M,), of this epoch; NaN for members that have stopped
    best_valid: np.ndarray  # (M,), best validation log-likelihood so far, NaN where there is none
    seconds: float


@dataclass
class Histories:
    """What happened to every member, epoch by epoch: arrays (epochs, M), NaN after a member has stopped."""

    train_nll: np.ndarray
    valid: np.ndarray  # validation log-likelihood
    best_epoch: np.ndarray  # (M,), from 1; 0 if there was no good epoch
    train_at_best: np.ndarray  # (M,), log-likelihood of the training rows under the weights that were kept
    stopped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def of(self, member: int) -> History:
        """One member's history, as `fit` gives it."""
        ran = int(np.isfinite(self.train_nll[:, member]).sum())
        best = int(self.best_epoch[member])
        epochs = [
            {
                "epoch": e + 1,
                "train_nll": float(self.train_nll[e, member]),
                "valid_nll": None if np.isnan(self.valid[e, member]) else -float(self.valid[e, member]),
            }
            for e in range(ran)
        ]
        valid = None if best == 0 or np.isnan(self.valid[best - 1, member]) else self.valid[best - 1, member]
        known = None if valid is None else float(valid)
        return History(epochs, best, known, self.seconds, self.stopped[member])


def fit_population(
    members: Sequence[Member],
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[[PopulationProgress], bool | None]] = (),
) -> Histories:
    """Train all members in place, as `fit` would train each; those with validation rows end at their best.

    A member that diverges stops with its best weights and leaves the others alone.

    Args:
        members: of one architecture, on one device. Their settings may differ in learning_rate, gamma,
            momentum, weight_decay, patience and stop_at_train, their nets in dropout. Where their numbers of
            rows differ and `updates_per_epoch` is not set, an epoch has as many updates as the largest set
            needs.
        folder: where to keep a checkpoint; None keeps nothing.
        resume: go on from the checkpoint in `folder`.
        callbacks: told of every epoch.

    Example:
        >>> import torch
        >>> from pynade.families import Bernoulli
        >>> from pynade.models import Autoregressive
        >>> from pynade.nets import FVSBNNet
        >>> from pynade.ordering import Ordering
        >>> x = torch.eye(4).repeat(25, 1)
        >>> def member(rate):
        ...     model = Autoregressive(FVSBNNet(4), Bernoulli(), Ordering.natural(4))
        ...     return Member(model, x, x, Gradient(epochs=30, learning_rate=rate))
        >>> two = [member(0.0001), member(0.1)]
        >>> histories = fit_population(two)
        >>> bool(two[1].model.log_prob(x).mean() > two[0].model.log_prob(x).mean() + 0.5)
        True
    """
    how = _shared(members)
    run = _Run(members, how)
    checkpoint = None if folder is None else Path(folder) / "population.safetensors"
    if resume and checkpoint is not None and checkpoint.is_file():
        run.restore(checkpoint)
    started = time.monotonic() - run.seconds
    saved = time.monotonic()
    while run.training.any():
        run.train_one_epoch()
        run.seconds = time.monotonic() - started
        train = run.train_nll[run.epoch - 1]
        now = PopulationProgress(run.epoch, how.epochs, run.training, train, run.best_valid, run.seconds)
        answers = [callback(now) for callback in callbacks]
        if any(answers):
            run.stop(run.training, "a callback asked for it")
        run.shrink()
        if checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
            run.save(checkpoint)
            saved = time.monotonic()
    run.put_back()
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    train, valid = run.train_nll[: run.epoch], run.valid[: run.epoch]
    return Histories(train, valid, run.best_epoch, run.train_at_best(), run.stopped, run.seconds)


class _Run:
    """A population in training: who is in the stack, what each has reached, and one epoch at a time."""

    def __init__(self, members: Sequence[Member], how: Gradient) -> None:
        self.members, self.how = members, how
        self.device, self.dtype = members[0].model.device, members[0].model.dtype
        sets, data_of = distinct([m.train for m in members])
        rows = [checked_rows(members[0].model, x) for x in sets]
        self.sizes = [len(r) for r in rows]
        # an epoch is one pass, or with sets of different sizes as many updates as the largest needs for one
        self.one_pass = how.updates_per_epoch is None and len(set(self.sizes)) == 1
        self.per_epoch = how.updates_per_epoch or -(-max(self.sizes) // how.batch_size)
        self.total = how.epochs * self.per_epoch
        self.offsets = np.cumsum([0, *self.sizes]).tolist()
        self.x = torch.cat(rows)
        self.key_of = [(d, m.seed) for d, m in zip(data_of, members, strict=True)]  # (rows, seed)

        n = len(members)
        self.held = np.arange(n)  # the members in the stack
        self.keys = sorted(set(self.key_of))  # of the streams somebody in the stack listens to
        self.population = Population([m.model for m in members], self._stream())
        self.best = {name: t.detach().clone() for name, t in self.population.trained.items()}
        self.stopped = [""] * n
        self.epoch, self.seconds = 0, 0.0
        self.train_nll = np.full((how.epochs, n), np.nan)
        self.valid = np.full((how.epochs, n), np.nan)
        self.best_epoch = np.zeros(n, dtype=int)
        self.best_valid = np.full(n, np.nan)
        self.on_valid = self.on_train = None
        if any(m.valid is not None for m in members):
            if any(m.valid is None for m in members):
                raise ValueError("either all members of a population have validation rows, or none has")
            self.on_valid = Scored(members, [m.valid for m in members], self.population.orderless)
        if any(m.how.stop_at_train is not None for m in members):
            self.on_train = Scored(members, [m.train for m in members], self.population.orderless)
        generators = [torch.Generator(self.device).manual_seed(seed) for _, seed in self.keys]
        self.step = self._step(generators)

    @property
    def training(self) -> np.ndarray:
        """bool (M,), True for members that have not stopped."""
        return np.array([not why for why in self.stopped])

    def train_one_epoch(self) -> None:
        """All updates of an epoch, then the validation scores and what follows from them."""
        how, step = self.how, self.step
        hows = [self.members[m].how for m in self.held.tolist()]
        self.epoch += 1
        momentum = self._numbers([h.momentum if self.epoch > h.momentum_after else 0.0 for h in hows])
        rate, gamma = (self._numbers([getattr(h, n) for h in hows]) for n in ("learning_rate", "gamma"))
        streams = []
        for (data, _), generator in zip(self.keys, step.generators, strict=True):
            parts = minibatches(self.sizes[data], how.batch_size, self.per_epoch, self.one_pass, generator)
            streams.append(torch.cat(list(parts)) + self.offsets[data])
        step.loss_sum.zero_()
        rows = 0
        for part in torch.stack(streams).split(how.batch_size, dim=1):
            batch = part[self.population.stream]  # (M, B)
            now = rate * how.warmth(step.optimizer.t)
            now = now * decline(how.schedule, gamma, step.optimizer.t, self.total)
            with fast_matmul():
                step(batch, now, momentum)
            rows += batch.shape[1]
        train = (step.loss_sum / rows).cpu().numpy()
        own = self.population.trained
        self.population.trained = step.average or own
        valid, reached = (
            None if rows is None else rows.score(self.population, self.held)
            for rows in (self.on_valid, self.on_train)
        )
        self.population.trained = own
        self._decide(train, valid, reached)

    def _decide(self, train: np.ndarray, valid: np.ndarray | None, reached: np.ndarray | None) -> None:
        """Who has improved, and who stops (arrays are of those in the stack)."""
        held, e = self.held, self.epoch
        running = self.training[held]
        sound = [t.detach().flatten(1).isfinite().all(1) for t in self.population.trained.values()]
        finite = np.isfinite(train) & torch.stack(sound).all(0).cpu().numpy()
        finite &= np.isfinite(valid) if valid is not None else True
        good = running & finite
        self.train_nll[e - 1, held[good]] = train[good]
        better = good
        if valid is not None:
            self.valid[e - 1, held[good]] = valid[good]
            best = self.best_valid[held]
            better = good & (np.isnan(best) | (valid > best))
            self.best_valid[held[better]] = valid[better]
        self.best_epoch[held[better]] = e
        here = torch.as_tensor(np.flatnonzero(better), device=self.device)
        there = torch.as_tensor(held[better], device=self.device)
        weights = self.step.average or self.population.trained
        for name, tensor in self.best.items():
            tensor.index_copy_(0, there, weights[name].detach()[here])
        for k, m in enumerate(held.tolist()):
            own = self.members[m].how
            patience = own.patience if valid is not None else None
            if not finite[k]:
                self.stop([m], "diverged")
            elif reached is not None and own.stop_at_train is not None and reached[k] > own.stop_at_train:
                self.stop([m], "training likelihood passed the given value")
            elif patience is not None and e - self.best_epoch[m] >= patience:
                self.stop([m], f"no better validation score for {patience} epochs")
            elif e == self.how.epochs:
                self.stop([m], "all epochs done")

    def stop(self, members: Sequence[int] | np.ndarray, why: str) -> None:
        """These members (indexes or flags) are done, unless they were already."""
        for m in np.arange(len(self.members))[members]:
            self.stopped[m] = self.stopped[m] or why

    def shrink(self) -> None:
        """Take the stopped members out of the stack when they are half of it."""
        running = self.training[self.held]
        if not running.any() or 2 * running.sum() > len(running):
            return
        old, chosen = self.step, torch.as_tensor(np.flatnonzero(running), device=self.device)
        self.held = self.held[running]
        heard = dict(zip(self.keys, old.generators, strict=True))
        self.keys = sorted({self.key_of[m] for m in self.held})
        self.population.keep(chosen)
        self.population.listen(self._stream())
        self.step = self._step([heard[key] for key in self.keys])
        self.step.optimizer.t = old.optimizer.t
        self.step.optimizer.state = {n: t[chosen] for n, t in old.optimizer.state.items()}
        self.step.average = {n: t[chosen] for n, t in old.average.items()}

    def put_back(self) -> None:
        """The best weights into the members' own models."""
        for m, member in enumerate(self.members):
            params = dict(member.model.named_parameters())
            with torch.no_grad():
                for name, tensor in self.best.items():
                    params[name].copy_(tensor[m])

    def train_at_best(self) -> np.ndarray:
        """Log-likelihood of every member's training rows, with the weights it ends with."""
        rows = self.on_train or Scored(
            self.members, [m.train for m in self.members], self.population.orderless
        )
        everyone = np.arange(len(self.members))
        return rows.score(Population([m.model for m in self.members], 0 * everyone), everyone)

    def save(self, path: Path) -> None:
        """Everything needed to go on."""
        tensors = {
            "trained": self.population.trained,
            "best": self.best,
            "average": self.step.average,
            "optimizer": self.step.optimizer.state,
            "generators": {str(k): g.get_state() for k, g in enumerate(self.step.generators)},
            "arrays": {
                n: torch.as_tensor(getattr(self, n))
                for n in ("train_nll", "valid", "best_epoch", "best_valid")
            },
        }
        facts = {n: getattr(self, n) for n in ("stopped", "epoch", "seconds")}
        facts |= {"held": self.held.tolist(), "t": self.step.optimizer.t}
        save_checkpoint(path, tensors, facts)

    def restore(self, path: Path) -> None:
        """Put everything back as `save` found it."""
        tensors, facts = load_checkpoint(path)
        held = np.array(facts["held"])
        here = torch.as_tensor(held, device=self.device)
        self.population.keep(here)
        self.held, self.keys = held, sorted({self.key_of[m] for m in held})
        self.population.listen(self._stream())
        self.stopped, self.epoch, self.seconds = (facts[n] for n in ("stopped", "epoch", "seconds"))
        for name, array in tensors["arrays"].items():
            setattr(self, name, array.numpy())
        with torch.no_grad():
            for name, t in tensors["trained"].items():
                self.population.trained[name].copy_(t)
            for name, t in tensors["best"].items():
                self.best[name].copy_(t)
        generators = []
        for k in range(len(self.keys)):
            generators.append(torch.Generator(self.device))
            generators[k].set_state(tensors["generators"][str(k)])
        self.step = self._step(generators)
        self.step.optimizer.t = facts["t"]
        self.step.optimizer.state = {n: t.to(self.device) for n, t in tensors["optimizer"].items()}
        self.step.average = {n: t.to(self.device) for n, t in tensors.get("average", {}).items()}

    def _stream(self) -> np.ndarray:
        return np.array([self.keys.index(self.key_of[m]) for m in self.held.tolist()])

    def _numbers(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype)

    def _step(self, generators: list[torch.Generator]) -> Step:
        """The update of those in the stack."""
        trained = self.population.trained
        decay = self._numbers([self.members[m].how.weight_decay for m in self.held.tolist()]).to(self.device)
        how = replace(self.how, weight_decay=float(decay.any()))
        decayed = decays(self.members[0].model, trained, how)
        optimizer = Optimizer(how.optimizer, trained, dict.fromkeys(decayed, decay))
        return Step(self.population, self.x, how, generators, optimizer, members=len(self.held))


def _shared(members: Sequence[Member]) -> Gradient:
    """The settings that all members share."""
    if not members:
        raise ValueError("a population needs at least one member")
    plain = {name: getattr(Gradient, name) for name in OWN}
    hows = {replace(m.how, **plain) for m in members}
    if len(hows) > 1:
        raise ValueError(f"members of a population may differ only in {', '.join(OWN)}")
    return hows.pop()
