"""A grid of settings on one data set (and its folds): trained, chosen on validation, tested once.

A sweep lives in a folder: spec.json, one file per finished batch of trainings, a checkpoint of the one in
progress, and at the end result.json with the models of all folds. Given again, it goes on where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pynade.atomic import is_unclaimed, sole_writer, write_json
from pynade.device import torch_device
from pynade.digest import Damaged, add_digest, read_json
from pynade.engines import check_engine, run_jobs
from pynade.estimators.base import load
from pynade.estimators.classical import ClassicalEstimator, fit_folds
from pynade.estimators.net import NetEstimator
from pynade.estimators.registry import PARAMETERS, estimator_named
from pynade.runs.provenance import OF_MACHINE, now, provenance
from pynade.runs.score import score_folds, seed_facts
from pynade.tables import Dataset, registry, resolve
from pynade.training.gradient import PER_MEMBER, Member, fit_population, train_log_likelihoods
from pynade.training.history import History
from pynade.training.loop import Callback, Progress

_read_batch = partial(read_json, seconds=object, outcomes=list)  # of a file
Setting = dict[str, Any]
Outcome = dict[str, Any]  # a setting, the number of a fold (from 0), and how the training ended
Job = tuple[Setting, int]  # a setting and the number of a fold
Batch = list[Job]  # of one training
Estimators = list[list[Any]]  # of each fold, one for each seed
Rows = list[tuple[np.ndarray, np.ndarray | None]]  # of each fold, for training and validation
Trained = tuple[float, list[tuple[Outcome, Any]]]  # seconds, and outcomes with their estimators
SPEC = ("model", "data", "fixed", "grid", "seed", "folds", "retrain", "quick")  # in spec.json
TRIAL = 200  # validation rows of a trial, at most


class OtherSweep(ValueError):
    """A folder holds another sweep than the one asked for."""


class SweepProgress(NamedTuple):
    """What a callback of a sweep gets after every epoch."""

    phase: str  # "grid" or "final"
    part: int  # which population (of a classical model: fold) this is, from 1
    parts: int  # how many there are
    settings: list[Setting]  # of the members of the population; empty for a classical model
    now: Progress  # of the training


@dataclass
class Sweep:
    """A grid of settings, and how it is trained.

    On every fold the setting that is best on validation is chosen, trained again on train + valid until its
    training likelihood reaches that of the chosen run's best epoch (the paper's rule), and evaluated on the
    test set once. Nets are trained as populations: settings × folds of one architecture are one batched
    program. Classical models choose among their own settings, fold by fold; some learn several at once.
    """

    folder: Path  # where the sweep lives; an interrupted one goes on
    model: str  # an estimator's name
    data: str  # a registered name (with its folds, if it has any and none is named) or a file
    fixed: Setting  # parameters of the estimator that do not vary
    grid: Mapping[str, Sequence[Any]]  # values to try for each of the others
    _: KW_ONLY
    seed: int = 0  # of orderings, weights and shuffling
    data_dir: Path | None = None  # folder of the registered data sets
    folds: int | None = None  # cut the rows into this many folds, for data that have none of their own
    # train the chosen settings again on train + valid before the test, or take the validated weights
    retrain: bool = True
    # seeds, from `seed` on, of the chosen settings of one split; retrained ones stop at the same likelihood
    repeats: int = 1
    quick: bool = False  # a trial, see `pynade sweep --help`; the record has `valid` and no `test`
    # called after every epoch, or at the end of each training that is not done in this process
    report: Callable[[SweepProgress], None] | None = None
    known: registry.Known = None  # the named data sets; None takes those that are registered
    engine: str = "local"  # where populations (of a classical model: folds) are trained, see `pynade.engines`
    workers: int | None = None  # how many of them at a time

    def __post_init__(self) -> None:
        self.fixed = {PARAMETERS.get(name, name): value for name, value in self.fixed.items()}
        self.grid = {PARAMETERS.get(name, name): list(values) for name, values in self.grid.items()}
        combinations = itertools.product(*self.grid.values())
        self.settings: list[Setting] = [dict(zip(self.grid, values, strict=True)) for values in combinations]
        self.first = self.estimator(self.settings[0])
        self.classical = isinstance(self.first, ClassicalEstimator)
        self.stops_at_train = self.retrain and "stop_at_train" in self.first.flat_parameters()

    def estimator(self, setting: Mapping[str, Any]) -> Any:
        """The estimator with the fixed parameters and those of a setting."""
        return estimator_named(self.model, {"random_state": self.seed, **self.fixed, **setting})

    def run(self) -> dict[str, Any]:
        """Train the whole grid, choose on validation, score the test part once; returns the record."""
        check_engine(self.engine, self.workers)
        parts = self._parts()
        self._check(len(parts))
        if self.quick and (not self.classical or self.model == "rbm"):
            epochs = estimator_named(self.model, self.fixed).flat_parameters()["epochs"]
            self.fixed["epochs"] = max(2, epochs // 10)
        fraction = self.first.validation_fraction
        parts = [part.with_validation(fraction, self.seed) for part in parts[: 2 if self.quick else None]]
        if self.quick:
            parts = [replace(part, valid=part.split("valid")[:TRIAL]) for part in parts]
        self._check_settings(parts[0])
        self.spec = {name: getattr(self, name) for name in SPEC}
        self.spec |= {} if self.repeats == 1 else {"repeats": self.repeats}
        self.spec |= {"data_checksums": [part.checksum for part in parts]}
        self._claim()
        with sole_writer(self.folder):
            return self._session(parts)

    def _session(self, parts: list[Dataset]) -> dict[str, Any]:
        """Train what is left, as the one process that writes to the folder."""
        for left in self.folder.glob(".*.part"):
            left.unlink()  # of a process that was killed
        file = self.folder / "sessions.json"  # when this sweep was at work: earlier commands, and this one
        try:
            sessions = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
            if not isinstance(sessions, list):
                raise ValueError(f"expected a list, not {type(sessions).__name__}")
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{file} is damaged (remove it to go on): {error}") from None
        sessions.append([now(), now()])
        write_json(file, sessions)  # one that is killed has at least begun
        try:
            record = self._train(parts)
        finally:
            sessions[-1][1] = now()
            write_json(file, sessions)
        record["sessions"] = sessions
        write_json(self.folder / "result.json", add_digest(record))
        return record

    def _parts(self) -> list[Dataset]:
        """The data set, or its folds."""
        entry = (self.known or registry.entries()).get(self.data)
        if entry is not None and registry.fold_names(entry):
            if self.folds is not None:
                raise ValueError(f"data set {self.data!r} has folds of its own; give no number of folds")
            return registry.folds(self.data, self.data_dir, known=self.known)
        dataset = resolve(self.data, self.data_dir, known=self.known)
        parts = [dataset] if self.folds is None else dataset.folds(self.folds, self.seed)
        if parts[0].test is None:
            message = f"the data {self.data!r} have no test part to report"
            raise ValueError(f"{message}: cut them with --folds, such as 10")
        return parts

    def _check(self, n_parts: int) -> None:
        """Refuse what a sweep would not do as the record would say, and repeats of what is not one net."""
        model, fixed, grid = self.model, self.fixed, self.grid
        other = not isinstance(self.first, NetEstimator | ClassicalEstimator)
        deep = any([fixed.get("pretrain_epochs"), *grid.get("pretrain_epochs", ())])
        seeded, cut = "random_state" in {*fixed, *grid}, "validation_fraction" in grid
        refused = {
            f"a sweep trains populations of nets; {model!r} is not trained by gradient descent": other,
            **{f"{name} is both fixed and varied; give it once": name in fixed for name in grid},
            "validation_fraction cannot be varied: settings are compared on the same rows": cut,
            "members of a population are not pretrained layer by layer; leave pretrain_epochs at 0": deep,
            f"the number of repeats must be at least 1, not {self.repeats}": self.repeats < 1,
        }
        if self.repeats > 1:
            refused |= {
                f"repeats are for models trained by gradient descent, which {model!r} is not": self.classical,
                f"repeats are for one split into train, valid and test, not for {n_parts} folds": n_parts > 1,
                "repeats have seeds of their own, from --seed on; leave random_state out": seeded,
            }
        for sentence in (sentence for sentence, wrong in refused.items() if wrong):
            raise ValueError(sentence)

    def _check_settings(self, part: Dataset) -> None:
        """Raise whatever training would say about the first fold, before anything is written."""
        if self.classical:
            able: set[str] = set()
            with suppress(TypeError):
                able = set(self.estimator(self.grid)._settings(part.train, validated=True)[0])
            for name in set(self.grid) - able:
                message = f"a {self.model} does not choose among values of {name}"
                raise ValueError(f"{message}; fix it with --set")
            return
        try:
            for setting in self.settings:
                self.estimator(setting).check_request(part.train, part.valid, part.schema.names)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"a parameter has a value of the wrong kind: {error}") from None

    def _claim(self) -> None:
        """A new folder, or that of the same sweep."""
        file = self.folder / "spec.json"
        if file.is_file():
            if read_json(file) != json.loads(json.dumps(self.spec)):
                other = "holds a sweep of other settings or data"
                raise OtherSweep(f"{self.folder} {other}; give another folder")
        elif self.folder.exists() and not is_unclaimed(self.folder):
            raise ValueError(f"{self.folder} already exists and is no sweep; give another folder")
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(file, add_digest(self.spec))

    def _train(self, parts: list[Dataset]) -> dict[str, Any]:
        """Train the grid and the chosen settings, score them, and return the record."""
        origin = provenance(parts[0], seed=self.seed, device=torch_device(self.first.device))
        rows: Rows = [(part.train, part.valid) for part in parts]
        jobs = [(setting, fold) for setting in self.settings for fold in range(len(parts))]
        for name, (seconds, pairs) in self._run_batches("grid", jobs, rows):
            outcomes = [outcome for outcome, _ in pairs]
            for path, best in self._weights(outcomes).items():
                pairs[outcomes.index(best)][1].save(path)
            write_json(self.folder / f"{name}.json", add_digest({"seconds": seconds, "outcomes": outcomes}))
        batches = [_read_batch(self.folder / f"{name}.json") for name in self._batches(jobs)]
        outcomes = [outcome for batch in batches for outcome in batch["outcomes"]]
        began = time.monotonic()
        if self.retrain:
            rows = [(np.concatenate([part.train, part.split("valid")]), None) for part in parts]
        chosen, estimators = self._final([best_first(outcomes, fold) for fold in range(len(parts))], rows)
        for fold, (seeds, part) in enumerate(zip(estimators, parts, strict=True), start=1):
            seeds[0].save(self.folder / f"fold-{fold}.safetensors", columns=list(part.schema.names))
        record = self._record(parts, outcomes, chosen, estimators)
        record |= {name: origin[name] for name in OF_MACHINE} | {"trained": origin["started"]}
        wall = {"grid": round(sum(batch["seconds"] for batch in batches), 2)}
        return record | {"wall_seconds": wall | {"final": max(0.01, round(time.monotonic() - began, 2))}}

    def _record(
        self, parts: list[Dataset], outcomes: list[Outcome], chosen: list[Outcome], estimators: Estimators
    ) -> dict[str, Any]:
        """Score what was chosen: of each fold an outcome, and an estimator for each seed."""
        final, part = [seeds[0] for seeds in estimators], "valid" if self.quick else "test"
        scores, facts = score_folds(final, parts, part)
        facts[part]["orderings"] = getattr(final[0], "n_orderings", 1)
        protocol = "one split" if len(parts) == 1 else f"{len(parts)} folds"
        protocol += f", {len(self.settings)} settings, chosen on validation on each fold"
        protocol += ", retrained on train + valid" if self.retrain else ""
        if self.stops_at_train:
            protocol += " until the training likelihood of the best validation iteration"
        if self.repeats > 1:
            protocol += f"; the chosen settings trained with {self.repeats} seeds"
            facts |= seed_facts(estimators[0], scores[0], parts[0].split(part))
        if not (self.retrain or self.quick):  # (the weights are those that were validated)
            facts["valid"] = score_folds(final, parts, "valid")[1]["valid"]
        sums = "".join(self.spec["data_checksums"])
        ranks = [best_first(outcomes, o["fold"]).index(o) for o in chosen]
        return {
            **facts,
            "quick": self.quick,
            "protocol": protocol,
            "spec": {k: v for k, v in self.spec.items() if k not in ("seed", "quick", "data_checksums")},
            "chosen": [
                {"fold": o["fold"] + 1, **o["setting"], "valid": o["valid"], "best_epoch": o["best_epoch"]}
                | {"final": e.history_.stopped, "final_epochs": len(e.history_.epochs)}
                | ({"diverged_before": rank} if rank else {})
                for o, e, rank in zip(chosen, final, ranks, strict=True)
            ],
            "validation_grid": by_setting(outcomes, self.settings, len(parts)),
            "commands": [as_sweep_command(self.spec)],
            "seed": self.seed,
            "data_checksum": sums if len(parts) == 1 else hashlib.sha256(sums.encode()).hexdigest(),
        }

    def _final(self, ranked: list[list[Outcome]], rows: Rows) -> tuple[list[Outcome], Estimators]:
        """Each fold's best outcome (the next one if its first seed diverges), and estimators of all seeds."""
        seeds: list[Setting] = [{}, *({"random_state": self.seed + n} for n in range(1, self.repeats))]

        def train_jobs(jobs: list[Job]) -> list[tuple[Outcome, Any]]:
            return [pair for _, (_, pairs) in self._run_batches("final", jobs, rows) for pair in pairs]

        if not self.retrain and not self.classical:  # the first seed has the weights that the grid validated
            best = [outcomes[0] for outcomes in ranked]
            more = train_jobs([(best[0]["setting"] | seed, 0) for seed in seeds[1:]])  # of one fold only
            first, *others = ([load(path)] for path in self._weights(best))
            return best, [[*first, *(estimator for _, estimator in more)], *others]
        all_rows = {"validation_fraction": 0.0} if self.retrain and self.classical else {}
        done: dict[int, list[Any]] = {}  # by fold
        while left := [fold for fold in range(len(ranked)) if fold not in done]:
            jobs = []
            for fold in left:
                setting, train = ranked[fold][0]["setting"], ranked[fold][0]["train"]
                stop = {"patience": None, "stop_at_train": train} if self.stops_at_train else {}
                jobs += [(setting | stop | all_rows | seed, fold) for seed in seeds]
            pairs = train_jobs(jobs)
            for fold in left:
                estimators = [estimator for outcome, estimator in pairs if outcome["fold"] == fold]
                if estimators[0].history_.stopped == "diverged" and len(ranked[fold]) > 1:
                    ranked[fold].pop(0)
                else:
                    done[fold] = estimators
        return [outcomes[0] for outcomes in ranked], [done[fold] for fold in sorted(done)]

    def _batches(self, jobs: list[Job]) -> dict[str, Batch]:
        """Jobs that are one training: of nets those with weights of the same shapes, else those of a fold."""
        batches: dict[str, Batch] = {}
        for setting, fold in jobs:
            shape = {k: v for k, v in setting.items() if k not in (*PER_MEMBER, "dropout", "random_state")}
            name = f"choices-{fold + 1}" if self.classical else f"population-{_digest(shape)}"
            batches.setdefault(name, []).append((setting, fold))
        return batches

    def _weights(self, outcomes: list[Outcome]) -> dict[Path, Outcome]:
        """Where weights are kept, if they are to be scored as they are: of the best outcome of each fold."""
        if self.retrain or self.classical:
            return {}
        paths = {}
        for fold in sorted({outcome["fold"] for outcome in outcomes if outcome["valid"] is not None}):
            best = best_first(outcomes, fold)[0]
            (name,) = self._batches([(best["setting"], fold)])
            paths[self.folder / f"{name}-{fold + 1}.safetensors"] = best
        return paths

    def _finished(self, name: str) -> bool:
        path = self.folder / f"{name}.json"
        return path.is_file() and all(map(Path.is_file, self._weights(_read_batch(path)["outcomes"])))

    def _run_batches(self, phase: str, jobs: list[Job], rows: Rows) -> Iterator[tuple[str, Trained]]:
        """The name of each batch that is left, the seconds it took, its outcomes with their estimators."""
        batches = self._batches(jobs)
        left = [name for name in batches if phase == "final" or not self._finished(name)]
        local, remote = self.engine == "local" and self.workers in (None, 1), copy(self)
        remote.report = remote.known = None  # (of this process)
        train = remote._folds if self.classical else remote._population
        size = self.first._folds_at_once if self.classical else 1
        groups = [left[first : first + size] for first in range(0, len(left), size)]
        reports, todo = [], []
        for group in groups:
            members = [] if self.classical else [setting for setting, _ in batches[group[0]]]
            number = list(batches).index(group[0]) + 1  # of several folds the first
            reports.append(partial(self._report, phase, number, len(batches), members))
            callbacks = [reports[-1]] if self.report and local else []
            todo.append((phase, [batches[name] for name in group], callbacks))
        for n, results in run_jobs(partial(train, rows), todo, self.engine, self.workers, self.first.device):
            if not local:
                histories = [estimator.history_ for _, pairs in results for _, estimator in pairs]
                epochs, seconds = len(histories[0].epochs), sum(seconds for seconds, _ in results)
                progress = Progress(None, epochs, epochs, 0, 0, math.nan, math.nan, True)
                reports[n](replace(progress, seconds=seconds, histories=histories))
            yield from zip(groups[n], results, strict=True)

    def _report(self, phase: str, part: int, parts: int, settings: list[Setting], now: Progress) -> None:
        """Call the callback of the sweep at the end of an epoch of a training."""
        if self.report and now.epoch_done:
            self.report(SweepProgress(phase, part, parts, settings, now))

    def _folds(
        self, rows: Rows, phase: str, batches: list[Batch], callbacks: list[Callback]
    ) -> list[Trained]:
        """Folds of a classical model: each chooses among the grid, or has one setting."""
        began, folds = time.perf_counter(), [jobs[0][1] for jobs in batches]
        estimators = [self.estimator(self.grid if phase == "grid" else jobs[0][0]) for jobs in batches]
        fit_folds(estimators, [rows[fold][0] for fold in folds], [rows[fold][1] for fold in folds], callbacks)
        seconds, trained = (time.perf_counter() - began) / len(folds), []
        for fold, estimator in zip(folds, estimators, strict=True):
            history, pairs = estimator.history_, []
            for choice in estimator.choices_ if phase == "grid" else estimator.choices_[:1]:
                setting = {name: choice[name] for name in self.grid}
                valid = history.best_valid if choice["valid"] is None else choice["valid"]
                outcome = _outcome(setting, fold, valid, history.train_log_likelihood, history)
                pairs.append((outcome, estimator))
            trained.append((seconds, pairs))
        return trained

    def _population(
        self, rows: Rows, phase: str, batches: list[Batch], callbacks: list[Callback]
    ) -> list[Trained]:
        """Nets of one architecture on their folds, as one population."""
        (jobs,), (name,) = batches, self._batches(batches[0])
        estimators, members = [self.estimator(setting) for setting, _ in jobs], []
        checked: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}  # rows as the estimator takes them
        for estimator, (_, fold) in zip(estimators, jobs, strict=True):
            seed, (train, valid) = estimator._seed(), rows[fold]
            train = estimator._rows(train, fitting=True)
            if fold not in checked:
                checked[fold] = train, None if valid is None else estimator._rows(valid)
            model = estimator.build(checked[fold][0], seed).to(torch_device(estimator.device))
            members.append(Member(model, *checked[fold], estimator.options(), seed))
        key = name.removeprefix("population-")  # (a second round has a checkpoint of its own)
        folder = self.folder / (key if phase == "grid" else f"final-{key}-{_digest(jobs)}")
        folder.mkdir(exist_ok=True)
        histories = fit_population(members, folder=folder, resume=True, callbacks=callbacks)
        shutil.rmtree(folder)
        outcomes = []
        for n, likelihood in enumerate(train_log_likelihoods(members)):
            estimators[n].adopt(members[n].model, histories[n], members[n].seed)
            outcomes.append(_outcome(*jobs[n], histories[n].best_valid, likelihood, histories[n]))
        return [(histories[0].seconds, list(zip(outcomes, estimators, strict=True)))]


def _outcome(setting: Setting, fold: int, valid: float | None, train: float, history: History) -> Outcome:
    ended = {"best_epoch": history.best_epoch, "stopped": history.stopped}
    return {"setting": setting, "fold": fold, "valid": valid, "train": train, **ended}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def best_first(outcomes: list[Outcome], fold: int) -> list[Outcome]:
    """A fold's outcomes by validation score; those that diverged after a good epoch come last."""
    scored = [o for o in outcomes if o["fold"] == fold and o["valid"] is not None]
    if not scored:
        raise ValueError(f"every setting diverged on fold {fold + 1}")
    return sorted(scored, key=lambda o: (o["stopped"] == "diverged", -o["valid"]))


def as_sweep_command(spec: Mapping[str, Any]) -> str:
    """The command that makes the sweep again."""

    def word(value: Any) -> str:
        return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    words = ["pynade sweep", str(spec["data"]), "--model", spec["model"]]
    words += [f"--set {name}={word(value)}" for name, value in spec["fixed"].items()]
    words += [f"--grid {name}={','.join(map(word, values))}" for name, values in spec["grid"].items()]
    words += [] if spec["folds"] is None else [f"--folds {spec['folds']}"]
    words += [] if spec["retrain"] else ["--no-retrain"]
    words += [f"--repeats {spec['repeats']}"] if "repeats" in spec else []
    return " ".join([*words, "--quick"] if spec["quick"] else words) + f" --seed {spec['seed']} --out FOLDER"


def by_setting(outcomes: list[Outcome], settings: list[Setting], n_folds: int) -> list[dict[str, Any]]:
    """Every setting with its score on each fold, None where it diverged; where it did later, the folds."""
    lines = []
    for setting in settings:
        setting = json.loads(json.dumps(setting))  # tuples come back from files as lists
        of_fold = {o["fold"]: o for o in outcomes if o["setting"] == setting}
        ended = [of_fold[fold] for fold in range(n_folds)]
        valid = [o["valid"] if o["valid"] is None else round(o["valid"], 4) for o in ended]
        diverged = [o["fold"] + 1 for o in ended if o["stopped"] == "diverged" and o["valid"] is not None]
        lines.append(setting | {"valid": valid} | ({"diverged_on_folds": diverged} if diverged else {}))
    return lines
