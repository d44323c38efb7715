"""Sweeps of the baselines: each chooses among its own settings on every fold."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_json
from pynade.estimators.baselines import Baseline
from pynade.experiments.run import estimator_named
from pynade.learn import Callback, Progress


@dataclass(frozen=True)
class BaselineSweep:
    """The two phases of a sweep, for estimators that take several values of a parameter and choose."""

    folder: Path
    model: str
    fixed: dict[str, Any]
    seed: int
    told: Any  # called as told(what, part, parts, Progress)

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
        outcomes, seconds = [], 0.0
        for fold, (rows, held) in enumerate(zip(train, valid, strict=True)):
            file = self.folder / f"choices-{fold + 1}.json"
            if not file.is_file():
                begin = time.perf_counter()
                estimator = self._estimator(several)
                estimator.fit(rows, X_valid=held, callbacks=self._callbacks("grid", fold, len(train)))
                history = estimator.history_
                lines = [
                    {
                        "setting": {name: choice[name] for name in tried[0]},
                        "fold": fold,
                        "valid": choice["valid"] if choice["valid"] is not None else history.best_valid,
                        "train": history.train_log_likelihood,  # of the chosen one, the only one asked for it
                        "best_epoch": history.best_epoch,
                        "stopped": history.stopped,
                    }
                    for choice in estimator.choices_
                ]
                write_json(file, {"seconds": time.perf_counter() - begin, "outcomes": lines})
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
    ) -> tuple[list[dict[str, Any]], list[Baseline]]:
        """Each fold's best outcome and its estimator, learned again."""
        chosen = [outcomes[0] for outcomes in ranked]
        made = []
        for fold, outcome in enumerate(chosen):
            setting = outcome["setting"]
            if retrain:
                setting = setting | {"validation_fraction": 0.0}
                if "stop_at_train" in estimator_named(self.model, {}).get_params():
                    setting = setting | {"stop_at_train": outcome["train"], "patience": None}
            estimator = self._estimator(setting)
            callbacks = self._callbacks("final", fold, len(chosen))
            made.append(estimator.fit(train[fold], X_valid=valid[fold], callbacks=callbacks))
        return chosen, made

    def _estimator(self, setting: dict[str, Any]) -> Baseline:
        estimator = estimator_named(self.model, {"random_state": self.seed, **self.fixed, **setting})
        assert isinstance(estimator, Baseline)
        return estimator

    def _callbacks(self, what: str, fold: int, n_folds: int) -> list[Callback]:
        told = self.told
        if told is None:
            return []

        def tell(now: Progress) -> None:
            told(what, fold + 1, n_folds, now)

        return [tell]
