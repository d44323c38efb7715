"""Sweeps of nets: a grid's settings × folds trained as populations, then the chosen ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_json
from pynade.device import torch_device
from pynade.estimators.io import load
from pynade.estimators.net import NetEstimator
from pynade.estimators.registry import estimator_named
from pynade.runs.sweep_record import Report, Setting, SweepProgress
from pynade.training.loop import Callback
from pynade.training.population import OWN, fit_population, train_log_likelihoods
from pynade.training.stacked import Member

Job = tuple[Setting, int]  # a setting and the number of a fold, from 0


@dataclass(frozen=True)
class PopulationSweep:
    """The two phases of a sweep, for nets: settings × folds of one architecture are one population."""

    folder: Path
    model: str
    fixed: Setting
    seed: int
    report: Report | None
    repeats: int = 1
    keep: bool = False  # the best weights of the grid, which are scored as they are

    def grid(
        self, tried: list[Setting], train_rows: list[np.ndarray], valid: list[np.ndarray | None]
    ) -> tuple[list[dict[str, Any]], float]:
        """One outcome for every setting and fold, and the seconds they took; finished ones are read back."""
        groups = _architectures([(setting, fold) for setting in tried for fold in range(len(train_rows))])
        outcomes, seconds = [], 0.0
        for number, (key, jobs) in enumerate(groups.items(), start=1):
            file = self.folder / f"population-{key}.json"
            if not self._finished(file):
                done, trained = self._train(key, jobs, train_rows, valid, ("grid", number, len(groups)))
                lines = [
                    {
                        "setting": setting,
                        "fold": fold,
                        "valid": e.history_.best_valid,
                        "train": train,
                        "best_epoch": e.history_.best_epoch,
                        "stopped": e.history_.stopped,
                    }
                    for (setting, fold), e, train in zip(jobs, done, trained, strict=True)
                ]
                for best in self._to_keep(lines):
                    done[lines.index(best)].save(self._weights(best))
                write_json(file, {"seconds": done[0].history_.seconds, "outcomes": lines})
            content = json.loads(file.read_text(encoding="utf-8"))
            outcomes += content["outcomes"]
            seconds += content["seconds"]
        return outcomes, seconds

    def final(
        self,
        ranked: list[list[dict[str, Any]]],
        train: list[np.ndarray],
        valid: list[np.ndarray | None],
        retrain: bool,
    ) -> tuple[list[dict[str, Any]], list[NetEstimator]]:
        """Each fold's best outcome and its estimators, one for each seed, fold after fold.

        Where the training with the first seed diverges, those of the next best outcome.
        """
        chosen = [outcomes[0] for outcomes in ranked]
        seeds = [{}, *({"random_state": self.seed + k} for k in range(1, self.repeats))]
        if not retrain:
            return chosen, self._validated(chosen, seeds[1:], train, valid)
        made: dict[int, list[NetEstimator]] = {}  # by fold
        while len(made) < len(ranked):
            jobs = [
                (o["setting"] | {"patience": None, "stop_at_train": o["train"]}, fold)
                for fold, o in enumerate(chosen)
                if fold not in made
            ]
            groups = _architectures(jobs)
            for number, (key, once) in enumerate(groups.items(), start=1):
                some = [(setting | own, fold) for setting, fold in once for own in seeds]
                name = (
                    f"final-{key}-{_digest(some)}"  # a second round must not find the first one's checkpoint
                )
                done, _ = self._train(name, some, train, valid, ("final", number, len(groups)))
                for place, (_, fold) in enumerate(once):
                    several = done[place * len(seeds) : (place + 1) * len(seeds)]
                    rank = ranked[fold].index(chosen[fold]) + 1
                    if several[0].history_.stopped != "diverged" or rank == len(ranked[fold]):
                        made[fold] = several
                    else:
                        chosen[fold] = ranked[fold][rank]
        return chosen, [estimator for fold in range(len(ranked)) for estimator in made[fold]]

    def _finished(self, file: Path) -> bool:
        """Whether a population is done, and the weights that may be asked for are there."""
        if not file.is_file():
            return False
        lines = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
        return all(self._weights(best).is_file() for best in self._to_keep(lines))

    def _to_keep(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A population's outcomes whose weights are kept: the best of each fold, if any did not diverge."""
        folds = {line["fold"] for line in lines if line["valid"] is not None}
        return [best_first(lines, fold)[0] for fold in sorted(folds)] if self.keep else []

    def _validated(
        self,
        chosen: list[dict[str, Any]],
        more: list[Setting],
        train: list[np.ndarray],
        valid: list[np.ndarray | None],
    ) -> list[NetEstimator]:
        """Each fold's estimator with the weights the grid validated, and those of more seeds (one fold)."""
        made: list[Any] = [load(self._weights(outcome)) for outcome in chosen]
        if more:
            jobs = [(chosen[0]["setting"] | own, 0) for own in more]
            made += self._train(f"final-{_digest(jobs)}", jobs, train, valid, ("final", 1, 1))[0]
        return made

    def _weights(self, outcome: dict[str, Any]) -> Path:
        """Where the best weights of an outcome's population are kept, for its fold."""
        (key,) = _architectures([(outcome["setting"], outcome["fold"])])
        return self.folder / f"population-{key}-{outcome['fold'] + 1}.safetensors"

    def _train(
        self,
        name: str,
        jobs: list[Job],
        train: list[np.ndarray],
        valid: list[np.ndarray | None],
        at: tuple[str, int, int],
    ) -> tuple[list[NetEstimator], list[float]]:
        """Settings of one architecture on their folds, as one population; and their training likelihoods."""
        estimators, members = [], []
        rows: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}  # of a fold, as the estimator takes them
        for setting, fold in jobs:
            estimator = _estimator(self.model, self.fixed, setting, self.seed)
            seed = estimator._seed()
            mine, held = estimator._rows(train[fold], fitting=True), valid[fold]
            if fold not in rows:
                rows[fold] = mine, None if held is None else estimator._rows(held)
            model = estimator.build(rows[fold][0], seed).to(torch_device(estimator.device))
            members.append(Member(model, *rows[fold], estimator.options(), seed))
            estimators.append(estimator)
        callbacks: list[Callback] = []
        if self.report is not None:
            report, settings = self.report, [setting for setting, _ in jobs]
            callbacks = [lambda now: report(SweepProgress(*at, settings, now)) if now.epoch_done else None]
        place = self.folder / name
        place.mkdir(exist_ok=True)
        histories = fit_population(members, folder=place, resume=True, callbacks=callbacks)
        shutil.rmtree(place)
        trained = train_log_likelihoods(members)
        for estimator, member, history in zip(estimators, members, histories, strict=True):
            estimator.adopt(member.model, history, member.seed)
        return estimators, trained


def _estimator(model: str, fixed: Setting, setting: Setting, seed: int) -> NetEstimator:
    estimator = estimator_named(model, {"random_state": seed, **fixed, **setting})
    if not isinstance(estimator, NetEstimator):
        raise ValueError(f"a sweep trains populations of nets; {model!r} is not trained by gradient descent")
    return estimator


def _architectures(jobs: list[Job]) -> dict[str, list[Job]]:
    """Jobs by what decides the shapes of their parameters."""
    groups: dict[str, list[Job]] = {}
    for setting, fold in jobs:
        shape = {
            name: value for name, value in setting.items() if name not in (*OWN, "dropout", "random_state")
        }
        groups.setdefault(_digest(shape), []).append((setting, fold))
    return groups


def best_first(outcomes: list[dict[str, Any]], fold: int) -> list[dict[str, Any]]:
    """A fold's outcomes by validation score; those that diverged after a good epoch come last."""
    mine = [o for o in outcomes if o["fold"] == fold and o["valid"] is not None]
    if not mine:
        raise ValueError(f"every setting diverged on fold {fold + 1}")
    return sorted(mine, key=lambda o: (o["stopped"] == "diverged", -o["valid"]))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
