"""A grid of settings on one data set (and its folds), trained as populations.

Settings × folds that share an architecture are one population. On every fold the setting that is best on
validation is chosen, trained again on train + valid until its training likelihood reaches that of the chosen
run's best epoch (the paper's rule), and evaluated on the test set once. Without `retrain` the validated
weights are taken as they are (a classical model is fitted again, with the same result). Training the chosen
settings with several seeds (`repeats`) shows how much the result depends on the ordering and the other random
choices.

A sweep lives in a folder: spec.json, one file per finished population, a checkpoint of the one in progress,
and at the end result.json with the models of all folds. Given again, the command goes on where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pynade.arguments import check_positive
from pynade.atomic import write_json
from pynade.device import torch_device
from pynade.estimators.classical import ClassicalEstimator
from pynade.estimators.net import NetEstimator
from pynade.estimators.registry import PARAMETERS, estimator_named
from pynade.runs import sweep_record as records
from pynade.runs.population_sweep import ClassicalSweep, PopulationSweep, Rows, best_first
from pynade.runs.provenance import OF_MACHINE, now, provenance
from pynade.runs.summary import read_json
from pynade.runs.sweep_record import Report, Setting
from pynade.tables import Dataset, resolve
from pynade.tables.registry import entries, entry, fold_names, folds

IN_RECORD = ("model", "data", "fixed", "grid", "folds", "retrain", "repeats")  # of the folder's spec
TRIAL = 200  # validation rows of a trial, at most


class OtherSweep(ValueError):
    """A folder holds another sweep than the one asked for."""


def settings(grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """All combinations.

    Example:
        >>> settings({"a": [1, 2], "b": [3]})
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def run_sweep(
    folder: Path,
    model: str,
    data: str,
    fixed: Setting,
    grid: Mapping[str, Sequence[Any]],
    *,
    seed: int = 0,
    data_dir: Path | None = None,
    n_folds: int | None = None,
    retrain: bool = True,
    repeats: int = 1,
    quick: bool = False,
    report: Report | None = None,
) -> dict[str, Any]:
    """Train the whole grid, choose on validation, score the test part once; returns the record.

    Args:
        folder: where the sweep lives; an interrupted one goes on.
        model: an estimator's name. Baselines choose among their own settings, fold by fold.
        data: a registered name (with its folds, if it has any and none is named) or a file.
        fixed: parameters of the estimator that do not vary.
        grid: values to try for each of the others.
        seed: of orderings, weights and shuffling.
        data_dir: folder of the registered data sets.
        n_folds: cut the rows into this many folds, for data that have none of their own.
        retrain: train the chosen settings again on train + valid before the test.
        repeats: train the chosen settings with this many seeds, `seed` and those after it, each with an
            ordering, initial weights and shuffling of its own; the record then has the standard deviation of
            their test means over seeds. One split only. With `retrain` all stop at the same training
            likelihood.
        quick: two folds, a tenth of the epochs, some validation rows in place of the test part (`valid` in
            the record, no `test`): shows that everything works; the record says so and does not count.
        report: called with a `SweepProgress` after every epoch.
    """
    fixed = {PARAMETERS.get(name, name): value for name, value in fixed.items()}
    grid = {PARAMETERS.get(name, name): list(values) for name, values in grid.items()}
    tried = settings(grid)
    _check_settings(fixed, grid)
    first = estimator_named(model, {"random_state": seed, **fixed, **tried[0]})
    if data in entries() and fold_names(entry(data)):
        if n_folds is not None:
            raise ValueError(f"data set {data!r} has folds of its own; give no number of folds")
        parts = folds(data, data_dir)
    else:
        whole = resolve(data, data_dir)
        parts = [whole] if n_folds is None else whole.folds(n_folds, seed)
        if parts[0].test is None:
            reason = f"the data {data!r} have no test part to report"
            raise ValueError(f"{reason}: cut them with --folds, such as 10")
    _check_repeats(repeats, model, first, {*fixed, *grid}, len(parts))
    if quick and (isinstance(first, NetEstimator) or model == "rbm"):
        epochs = estimator_named(model, fixed).flat_parameters()["epochs"]
        fixed = {**fixed, "epochs": max(2, epochs // 10)}
    parts = [part.with_validation(first.validation_fraction, seed) for part in parts[: 2 if quick else None]]
    if quick:
        parts = [replace(part, valid=part.split("valid")[:TRIAL]) for part in parts]
    spec: dict[str, Any] = {
        "model": model,
        "data": data,
        "fixed": fixed,
        "grid": grid,
        "seed": seed,
        "folds": n_folds,
        "retrain": retrain,
        "quick": quick,
        "data_checksums": [part.checksum for part in parts],
        **({"repeats": repeats} if repeats > 1 else {}),
    }
    _check_requests(model, fixed, tried, seed, parts[0])
    _claim(folder, spec)
    kind: Any = ClassicalSweep if isinstance(first, ClassicalEstimator) else PopulationSweep
    sweep = kind(folder, model, fixed, seed, report, repeats, not retrain)
    with _session(folder) as sessions:
        record = _record(sweep, spec, parts, tried, first)
    record["sessions"] = sessions
    write_json(folder / "result.json", record)
    return record


@contextmanager
def _session(folder: Path) -> Iterator[list[list[str]]]:
    """When this sweep was at work: earlier commands' times, and at the end this one's too."""
    file = folder / "sessions.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    known.append([now(), now()])
    write_json(file, known)  # one that is killed has at least begun
    try:
        yield known
    finally:
        known[-1][1] = now()
        write_json(file, known)


def _record(
    sweep: Any, spec: dict[str, Any], parts: list[Dataset], tried: list[Setting], first: Any
) -> dict[str, Any]:
    """Train the grid and the chosen settings, score them, and return the record."""
    where = provenance(parts[0], seed=sweep.seed, device=torch_device(first.device))
    retrain, quick, repeats = spec["retrain"], spec["quick"], sweep.repeats
    rows: Rows = [(part.train, part.valid) for part in parts]
    outcomes, seconds = sweep.grid(tried, rows)
    ranked = [best_first(outcomes, fold) for fold in range(len(parts))]
    began = time.monotonic()
    if retrain:
        rows = [(np.concatenate([part.train, part.split("valid")]), None) for part in parts]
    chosen, trained = sweep.final(ranked, rows, retrain)
    final = trained[::repeats]
    for fold, (estimator, part) in enumerate(zip(final, parts, strict=True), start=1):
        estimator.save(sweep.folder / f"fold-{fold}.safetensors", columns=list(part.schema.names))

    def score(name: str) -> tuple[list[np.ndarray], list[Any], dict[str, Any]]:
        """Scores of one part of each fold, of an ensemble also under each ordering, and their mean."""
        pairs = [records.scored(e, part.split(name)) for e, part in zip(final, parts, strict=True)]
        scores, many = [rows for rows, _ in pairs], [found for _, found in pairs if found is not None]
        summaries = [e.summary(s) for e, s in zip(final, scores, strict=True)]
        return scores, many, records.averaged_over_folds(scores, summaries)

    asked = "valid" if quick else "test"
    scores, many, mean = score(asked)
    stops = "stop_at_train" in first.flat_parameters()
    seeds = f"; the chosen settings trained with {repeats} seeds" if repeats > 1 else ""
    checksum = "".join(spec["data_checksums"])
    if len(parts) > 1:
        checksum = hashlib.sha256(checksum.encode()).hexdigest()
    return {
        asked: mean | {"orderings": getattr(final[0], "n_orderings", 1)},
        **(records.ensembles_of(many) if len(many) == len(parts) else {}),
        **(records.over_seeds(trained, scores[0], parts[0].split(asked)) if repeats > 1 else {}),
        **({} if retrain or quick else {"valid": score("valid")[2]}),
        "quick": quick,
        "protocol": records.protocol_words(len(parts), len(tried), retrain, stops) + seeds,
        "spec": {name: spec[name] for name in IN_RECORD if name in spec},
        "chosen": [
            {"fold": o["fold"] + 1, **o["setting"], "valid": o["valid"], "best_epoch": o["best_epoch"]}
            | {"final": e.history_.stopped, "final_epochs": len(e.history_.epochs)}
            | ({"diverged_before": rank} if (rank := ranked[o["fold"]].index(o)) else {})
            for o, e in zip(chosen, final, strict=True)
        ],
        "validation_grid": records.by_setting(outcomes, tried, len(parts)),
        "commands": [records.as_sweep_command(spec)],
        "seed": sweep.seed,
        "data_checksum": checksum,
        **{name: where[name] for name in OF_MACHINE},
        "trained": where["started"],
        "wall_seconds": {"grid": round(seconds, 2), "final": max(0.01, round(time.monotonic() - began, 2))},
    }


def _check_settings(fixed: Setting, grid: Mapping[str, Sequence[Any]]) -> None:
    """Refuse what a sweep would not do as the record would say."""
    for name in grid:
        if name in fixed:
            raise ValueError(f"{name} is both fixed and varied; give it once")
        if name == "validation_fraction":
            raise ValueError("validation_fraction cannot be varied: settings are compared on the same rows")
    if any(fixed.get("pretrain_epochs", 0) or v for v in grid.get("pretrain_epochs", [0])):
        reason = "members of a population are not pretrained layer by layer"
        raise ValueError(f"{reason}; leave pretrain_epochs at 0")


def _check_repeats(repeats: int, model: str, first: Any, given: set[str], n_parts: int) -> None:
    """Refuse repeats of what is not one net on one split, with seeds of its own."""
    check_positive(**{"the number of repeats": repeats})
    if repeats == 1:
        return
    if not isinstance(first, NetEstimator):
        raise ValueError(f"repeats are for models trained by gradient descent, which {model!r} is not")
    if n_parts > 1:
        raise ValueError(f"repeats are for one split into train, valid and test, not for {n_parts} folds")
    if "random_state" in given:
        raise ValueError("repeats have seeds of their own, from --seed on; leave random_state out")


def _check_requests(model: str, fixed: Setting, tried: list[Setting], seed: int, part: Dataset) -> None:
    """Whatever training would say about the first fold and any setting, before anything is written."""
    try:
        for setting in tried:
            estimator = estimator_named(model, {"random_state": seed, **fixed, **setting})
            if isinstance(estimator, NetEstimator):
                estimator.check_request(part.train, part.valid, part.schema.names)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a parameter has a value of the wrong kind: {error}") from None


def _claim(folder: Path, spec: dict[str, Any]) -> None:
    """A new folder, or that of the same sweep."""
    file = folder / "spec.json"
    if file.is_file():
        if read_json(file) != json.loads(json.dumps(spec)):
            raise OtherSweep(f"{folder} holds a sweep of other settings or data; give another folder")
        return
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} already exists and is no sweep; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, spec)
