"""Sweeps of classical models: each chooses among its own settings on every fold, MFA on several at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_json
from pynade.estimators.classical import ClassicalEstimator, fit_folds
from pynade.estimators.registry import estimator_named
from pynade.runs.sweep_record import Report, SweepProgress
from pynade.training.loop import Callback


@dataclass(frozen=True)
class ClassicalSweep:
    """The two phases of a sweep, for estimators that take several values of a parameter and choose."""

    folder: Path
    model: str
    fixed: dict[str, Any]
    seed: int
    report: Report | None

    def grid(
        self, tried: list[dict[str, Any]], train: list[np.ndarray], valid: list[np.ndarray | None]
    ) -> tuple[list[dict[str, Any]], float]:
        """One outcome for every setting and fold, and the seconds they took; finished folds are read back."""
        several = {name: tuple(dict.fromkeys(s[name] for s in tried)) for name in tried[0]}
        try:
            able = set(self._estimator(several)._settings(train[0], validated=True)[0])
        except TypeError:
            able = set()
        for name in set(several) - able:
            raise ValueError(f"a {self.model} does not choose among values of {name}; fix it with --set")
        files = [self.folder / f"choices-{fold + 1}.json" for fold in range(len(train))]
        left = [fold for fold, file in enumerate(files) if not file.is_file()]
        for fold, estimator, seconds in self._fitted("grid", dict.fromkeys(left, several), train, valid):
            history = estimator.history_
            lines = [
                {
                    "setting": {name: choice[name] for name in tried[0]},
                    "fold": fold,
                    "valid": choice["valid"] if choice["valid"] is not None else history.best_valid,
                    "train": history.train_log_likelihood,  # of the chosen one, the only known one
                    "best_epoch": history.best_epoch,
                    "stopped": history.stopped,
                }
                for choice in estimator.choices_
            ]
            write_json(files[fold], {"seconds": seconds, "outcomes": lines})
        contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        outcomes = [line for content in contents for line in content["outcomes"]]
        return outcomes, sum(content["seconds"] for content in contents)

    def final(
        self,
        ranked: list[list[dict[str, Any]]],
        train: list[np.ndarray],
        valid: list[np.ndarray | None],
        retrain: bool,
    ) -> tuple[list[dict[str, Any]], list[ClassicalEstimator]]:
        """Each fold's best outcome and its estimator, learned again."""
        chosen = [outcomes[0] for outcomes in ranked]
        settings = {}
        for fold, outcome in enumerate(chosen):
            setting = outcome["setting"]
            if retrain:
                setting = setting | {"validation_fraction": 0.0}
                if "stop_at_train" in estimator_named(self.model, {}).flat_parameters():
                    setting = setting | {"stop_at_train": outcome["train"], "patience": None}
            settings[fold] = setting
        return chosen, [made for _, made, _ in self._fitted("final", settings, train, valid)]

    def _fitted(
        self,
        what: str,
        settings: dict[int, dict[str, Any]],
        train: list[np.ndarray],
        valid: list[np.ndarray | None],
    ) -> Iterator[tuple[int, ClassicalEstimator, float]]:
        """Each fold with its estimator, learned with the fold's setting, and its share of the seconds.

        As many folds as the model takes are learned at once; callbacks get the first of them.
        """
        folds = list(settings)
        size = self._estimator({})._folds_at_once
        for group in (folds[i : i + size] for i in range(0, len(folds), size)):
            began = time.perf_counter()
            made = [self._estimator(settings[fold]) for fold in group]
            callbacks = self._callbacks(what, group[0], len(train))
            fit_folds(made, [train[fold] for fold in group], [valid[fold] for fold in group], callbacks)
            seconds = (time.perf_counter() - began) / len(group)
            yield from ((fold, estimator, seconds) for fold, estimator in zip(group, made, strict=True))

    def _estimator(self, setting: dict[str, Any]) -> ClassicalEstimator:
        estimator = estimator_named(self.model, {"random_state": self.seed, **self.fixed, **setting})
        assert isinstance(estimator, ClassicalEstimator)
        return estimator

    def _callbacks(self, what: str, fold: int, n_folds: int) -> list[Callback]:
        report = self.report
        if report is None:
            return []
        return [lambda now: report(SweepProgress(what, fold + 1, n_folds, [], now))]
