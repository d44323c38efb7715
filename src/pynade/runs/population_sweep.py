"""The training of a sweep: nets as populations of settings × folds, classical models fold by fold."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_json
from pynade.device import torch_device
from pynade.estimators.classical import ClassicalEstimator, fit_folds
from pynade.estimators.io import load
from pynade.estimators.net import NetEstimator
from pynade.estimators.registry import estimator_named
from pynade.training.gradient import Member
from pynade.training.history import History
from pynade.training.loop import Callback, Progress
from pynade.training.population import OWN, fit_population, train_log_likelihoods

Setting = dict[str, Any]
Rows = list[tuple[np.ndarray, np.ndarray | None]]  # of each fold, for training and validation
Outcome = dict[str, Any]  # a setting, the number of a fold (from 0), and how the training ended
Job = tuple[Setting, int]  # a setting and the number of a fold


@dataclass(frozen=True)
class SweepProgress:
    """What a callback of a sweep gets after every epoch."""

    what: str  # "grid" or "final"
    part: int  # which population (of a classical model: fold) this is, from 1
    parts: int  # how many there are
    settings: list[Setting]  # of the members of the population; empty for a classical model
    now: Progress  # of the training


Report = Callable[[SweepProgress], None]


@dataclass(frozen=True)
class Sweep:
    """A sweep: its folder, the content of its spec.json, a callback."""

    folder: Path
    spec: dict[str, Any]
    report: Report | None

    def estimator(self, setting: Setting) -> Any:
        """The estimator with the fixed parameters and those of a setting."""
        given = {"random_state": self.spec["seed"], **self.spec["fixed"], **setting}
        return estimator_named(self.spec["model"], given)

    def _callbacks(self, what: str, part: int, parts: int, settings: list[Setting]) -> list[Callback]:
        def callback(now: Progress) -> None:
            if self.report and now.epoch_done:
                self.report(SweepProgress(what, part, parts, settings, now))

        return [callback] if self.report else []


class ClassicalSweep(Sweep):
    """The two phases of a sweep, for estimators that take several values of a parameter and choose."""

    def grid(self, tried: list[Setting], rows: Rows) -> tuple[list[Outcome], float]:
        """One outcome for every setting and fold, and the seconds they took; finished folds are read back."""
        several = {name: tuple(dict.fromkeys(s[name] for s in tried)) for name in tried[0]}
        able: set[str] = set()
        with suppress(TypeError):
            able = set(self.estimator(several)._settings(rows[0][0], validated=True)[0])
        for name in set(several) - able:
            reason = f"a {self.spec['model']} does not choose among values of {name}"
            raise ValueError(f"{reason}; fix it with --set")
        files = [self.folder / f"choices-{fold + 1}.json" for fold in range(len(rows))]
        left = [fold for fold, file in enumerate(files) if not file.is_file()]
        for fold, estimator, seconds in self._fitted("grid", dict.fromkeys(left, several), rows):
            history, lines = estimator.history_, []
            for choice in estimator.choices_:
                setting = {name: choice[name] for name in several}
                valid = history.best_valid if choice["valid"] is None else choice["valid"]
                lines.append(_outcome(setting, fold, valid, history.train_log_likelihood, history))
            write_json(files[fold], {"seconds": seconds, "outcomes": lines})
        return _outcomes(files)

    def final(
        self, ranked: list[list[Outcome]], rows: Rows
    ) -> tuple[list[Outcome], list[ClassicalEstimator]]:
        """Each fold's best outcome and its estimator, learned again."""
        chosen = [outcomes[0] for outcomes in ranked]
        settings = {fold: dict(outcome["setting"]) for fold, outcome in enumerate(chosen)}
        for fold, outcome in enumerate(chosen) if self.spec["retrain"] else ():
            settings[fold]["validation_fraction"] = 0.0
            if "stop_at_train" in self.estimator({}).flat_parameters():
                settings[fold] |= {"stop_at_train": outcome["train"], "patience": None}
        return chosen, [made for _, made, _ in self._fitted("final", settings, rows)]

    def _fitted(
        self, what: str, settings: dict[int, Setting], rows: Rows
    ) -> Iterator[tuple[int, ClassicalEstimator, float]]:
        """Each fold with its estimator, learned with the fold's setting, and its share of the seconds.

        As many folds as the model takes are learned at once; callbacks get the first of them.
        """
        folds, size = list(settings), self.estimator({})._folds_at_once
        for group in (folds[i : i + size] for i in range(0, len(folds), size)):
            began = time.perf_counter()
            made = [self.estimator(settings[fold]) for fold in group]
            train, valid = zip(*(rows[fold] for fold in group), strict=True)
            fit_folds(made, train, valid, self._callbacks(what, group[0] + 1, len(rows), []))
            seconds = (time.perf_counter() - began) / len(group)
            yield from ((fold, estimator, seconds) for fold, estimator in zip(group, made, strict=True))


class PopulationSweep(Sweep):
    """The two phases of a sweep, for nets: settings × folds of one architecture are one population.

    Without retraining, the best weights of each population of the grid are kept, to be scored as they are.
    """

    def grid(self, tried: list[Setting], rows: Rows) -> tuple[list[Outcome], float]:
        """One outcome for every setting and fold, and the seconds they took; finished ones are read back."""
        groups = _architectures([(setting, fold) for setting in tried for fold in range(len(rows))])
        files = [self.folder / f"population-{key}.json" for key in groups]
        for number, (file, (key, jobs)) in enumerate(zip(files, groups.items(), strict=True), start=1):
            ended = self._to_keep(_outcomes([file])[0]) if file.is_file() else None
            if ended is not None and all(self._weights(outcome).is_file() for outcome in ended):
                continue
            done, trained = self._train(key, jobs, rows, ("grid", number, len(groups)))
            ends = zip(jobs, done, trained, strict=True)
            lines = [_outcome(*job, e.history_.best_valid, train, e.history_) for job, e, train in ends]
            for best in self._to_keep(lines):
                done[lines.index(best)].save(self._weights(best))
            write_json(file, {"seconds": done[0].history_.seconds, "outcomes": lines})
        return _outcomes(files)

    def final(self, ranked: list[list[Outcome]], rows: Rows) -> tuple[list[Outcome], list[NetEstimator]]:
        """Each fold's best outcome and its estimators, one for each seed, fold after fold.

        Where the training with the first seed diverges, those of the next best outcome. Without retraining
        the estimator of the first seed has the weights that the grid validated.
        """
        chosen = [outcomes[0] for outcomes in ranked]
        others = range(self.spec["seed"] + 1, self.spec["seed"] + self.spec.get("repeats", 1))
        seeds = [{}, *({"random_state": seed} for seed in others)]
        if not self.spec["retrain"]:
            loaded: list[Any] = [load(self._weights(outcome)) for outcome in chosen]
            jobs = [(chosen[0]["setting"] | own, 0) for own in seeds[1:]]  # of one fold only
            more = self._train(f"final-{_digest(jobs)}", jobs, rows, ("final", 1, 1))[0] if jobs else []
            return chosen, loaded + more
        made: dict[int, list[NetEstimator]] = {}  # by fold
        while len(made) < len(ranked):
            again = [o["setting"] | {"patience": None, "stop_at_train": o["train"]} for o in chosen]
            groups = _architectures([(s, fold) for fold, s in enumerate(again) if fold not in made])
            for number, (key, once) in enumerate(groups.items(), start=1):
                some = [(setting | own, fold) for setting, fold in once for own in seeds]
                name = f"final-{key}-{_digest(some)}"  # a second round has checkpoints of its own
                done, _ = self._train(name, some, rows, ("final", number, len(groups)))
                for place, (_, fold) in enumerate(once):
                    several = done[place * len(seeds) : (place + 1) * len(seeds)]
                    rank = ranked[fold].index(chosen[fold]) + 1
                    if several[0].history_.stopped != "diverged" or rank == len(ranked[fold]):
                        made[fold] = several
                    else:
                        chosen[fold] = ranked[fold][rank]
        return chosen, [estimator for fold in range(len(ranked)) for estimator in made[fold]]

    def _to_keep(self, lines: list[Outcome]) -> list[Outcome]:
        """A population's outcomes whose weights are kept: the best of each fold, if any did not diverge."""
        folds = {line["fold"] for line in lines if line["valid"] is not None}
        return [] if self.spec["retrain"] else [best_first(lines, fold)[0] for fold in sorted(folds)]

    def _weights(self, outcome: Outcome) -> Path:
        """Where the best weights of an outcome's population are kept, for its fold."""
        (key,) = _architectures([(outcome["setting"], outcome["fold"])])
        return self.folder / f"population-{key}-{outcome['fold'] + 1}.safetensors"

    def _train(
        self, name: str, jobs: list[Job], rows: Rows, at: tuple[str, int, int]
    ) -> tuple[list[NetEstimator], list[float]]:
        """Settings of one architecture on their folds, as one population; and their training likelihoods."""
        estimators, members = [self.estimator(setting) for setting, _ in jobs], []
        checked: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}  # rows as the estimator takes them
        for estimator, (_, fold) in zip(estimators, jobs, strict=True):
            seed, (train, valid) = estimator._seed(), rows[fold]
            mine = estimator._rows(train, fitting=True)
            if fold not in checked:
                checked[fold] = mine, None if valid is None else estimator._rows(valid)
            model = estimator.build(checked[fold][0], seed).to(torch_device(estimator.device))
            members.append(Member(model, *checked[fold], estimator.options(), seed))
        place = self.folder / name
        place.mkdir(exist_ok=True)
        callbacks = self._callbacks(*at, [setting for setting, _ in jobs])
        histories = fit_population(members, folder=place, resume=True, callbacks=callbacks)
        shutil.rmtree(place)
        trained = train_log_likelihoods(members)
        for estimator, member, history in zip(estimators, members, histories, strict=True):
            estimator.adopt(member.model, history, member.seed)
        return estimators, trained


def best_first(outcomes: list[Outcome], fold: int) -> list[Outcome]:
    """A fold's outcomes by validation score; those that diverged after a good epoch come last."""
    mine = [o for o in outcomes if o["fold"] == fold and o["valid"] is not None]
    if not mine:
        raise ValueError(f"every setting diverged on fold {fold + 1}")
    return sorted(mine, key=lambda o: (o["stopped"] == "diverged", -o["valid"]))


def _outcome(setting: Setting, fold: int, valid: float | None, train: float, history: History) -> Outcome:
    ended = {"best_epoch": history.best_epoch, "stopped": history.stopped}
    return {"setting": setting, "fold": fold, "valid": valid, "train": train, **ended}


def _outcomes(files: list[Path]) -> tuple[list[Outcome], float]:
    """What finished populations or folds left, and their seconds."""
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [line for c in contents for line in c["outcomes"]], sum(c["seconds"] for c in contents)


def _architectures(jobs: list[Job]) -> dict[str, list[Job]]:
    """Jobs by what decides the shapes of their parameters."""
    groups: dict[str, list[Job]] = {}
    for setting, fold in jobs:
        shape = {k: v for k, v in setting.items() if k not in (*OWN, "dropout", "random_state")}
        groups.setdefault(_digest(shape), []).append((setting, fold))
    return groups


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
