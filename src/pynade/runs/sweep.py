"""A grid of settings on one data set (and its folds), trained as populations, and the record of its result.

On every fold the setting that is best on validation is chosen, trained again on train + valid until its
training likelihood reaches that of the chosen run's best epoch (the paper's rule), and evaluated on the test
set once. A sweep lives in a folder: spec.json, one file per finished population, a checkpoint of the one in
progress, and at the end result.json with the models of all folds. Given again, the command goes on where it
was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pynade.arguments import check_positive
from pynade.atomic import write_json
from pynade.device import torch_device
from pynade.estimators.base import DensityEstimator
from pynade.estimators.classical import ClassicalEstimator
from pynade.estimators.net import NetEstimator
from pynade.estimators.registry import PARAMETERS, estimator_named
from pynade.evaluation import OrderingScores
from pynade.likelihood import Estimate
from pynade.runs.population_sweep import ClassicalSweep, PopulationSweep, Report, Rows, Setting, best_first
from pynade.runs.provenance import OF_MACHINE, now, provenance
from pynade.runs.score import ensemble_sizes
from pynade.runs.summary import read_json
from pynade.tables import Dataset, resolve
from pynade.tables.registry import Entry, entries, entry, fold_names, folds

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
    known: Mapping[str, Entry] | None = None,
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
        retrain: train the chosen settings again on train + valid before the test. Without it the validated
            weights are taken as they are (a classical model is fitted again, with the same result).
        repeats: train the chosen settings with this many seeds, `seed` and those after it, each with an
            ordering, initial weights and shuffling of its own; the record then has the standard deviation of
            their test means over seeds. One split only. With `retrain` all stop at the same training
            likelihood.
        quick: two folds, a tenth of the epochs, some validation rows in place of the test part (`valid` in
            the record, no `test`): shows that everything works; the record says so and does not count.
        report: called with a `SweepProgress` after every epoch.
        known: the named data sets, by name; None takes those that are registered.
    """
    fixed = {PARAMETERS.get(name, name): value for name, value in fixed.items()}
    grid = {PARAMETERS.get(name, name): list(values) for name, values in grid.items()}
    tried = settings(grid)
    first: Any = estimator_named(model, {"random_state": seed, **fixed, **tried[0]})
    if data in (known or entries()) and fold_names(entry(data, known)):
        if n_folds is not None:
            raise ValueError(f"data set {data!r} has folds of its own; give no number of folds")
        parts = folds(data, data_dir, known=known)
    else:
        whole = resolve(data, data_dir, known=known)
        parts = [whole] if n_folds is None else whole.folds(n_folds, seed)
        if parts[0].test is None:
            cut = "cut them with --folds, such as 10"
            raise ValueError(f"the data {data!r} have no test part to report: {cut}")
    spec: Any = {"model": model, "data": data, "fixed": fixed, "grid": grid, "seed": seed, "folds": n_folds}
    spec |= {"retrain": retrain, "quick": quick} | ({} if repeats == 1 else {"repeats": repeats})
    _check(spec, first, len(parts))
    if quick and (isinstance(first, NetEstimator) or model == "rbm"):
        epochs = estimator_named(model, fixed).flat_parameters()["epochs"]
        fixed["epochs"] = max(2, epochs // 10)
    parts = [part.with_validation(first.validation_fraction, seed) for part in parts[: 2 if quick else None]]
    if quick:
        parts = [replace(part, valid=part.split("valid")[:TRIAL]) for part in parts]
    spec["data_checksums"] = [part.checksum for part in parts]
    kind: Any = ClassicalSweep if isinstance(first, ClassicalEstimator) else PopulationSweep
    sweep = kind(folder, spec, report)
    try:  # whatever training would say about the first fold and any setting, before anything is written
        for estimator in map(sweep.estimator, tried):
            if isinstance(estimator, NetEstimator):
                estimator.check_request(parts[0].train, parts[0].valid, parts[0].schema.names)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a parameter has a value of the wrong kind: {error}") from None
    _claim(folder, spec)
    file = folder / "sessions.json"  # when this sweep was at work: earlier commands, and this one
    sessions = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    sessions.append([now(), now()])
    write_json(file, sessions)  # one that is killed has at least begun
    try:
        record = _record(sweep, parts, tried, first)
    finally:
        sessions[-1][1] = now()
        write_json(file, sessions)
    record["sessions"] = sessions
    write_json(folder / "result.json", record)
    return record


def _record(sweep: Any, parts: list[Dataset], tried: list[Setting], first: Any) -> dict[str, Any]:
    """Train the grid and the chosen settings, score them, and return the record."""
    spec, repeats = sweep.spec, sweep.spec.get("repeats", 1)
    retrain, quick = spec["retrain"], spec["quick"]
    where = provenance(parts[0], seed=spec["seed"], device=torch_device(first.device))
    rows: Rows = [(part.train, part.valid) for part in parts]
    outcomes, seconds = sweep.grid(tried, rows)
    ranked = [best_first(outcomes, fold) for fold in range(len(parts))]
    began = time.monotonic()
    if retrain:
        rows = [(np.concatenate([part.train, part.split("valid")]), None) for part in parts]
    chosen, trained = sweep.final(ranked, rows)
    final = trained[::repeats]
    for fold, (estimator, part) in enumerate(zip(final, parts, strict=True), start=1):
        estimator.save(sweep.folder / f"fold-{fold}.safetensors", columns=list(part.schema.names))

    def score(name: str) -> tuple[list[np.ndarray], list[Any], dict[str, Any]]:
        """Scores of one part of each fold, of an ensemble also under each ordering, and their mean."""
        pairs = [scored(e, part.split(name)) for e, part in zip(final, parts, strict=True)]
        scores, many = [rows for rows, _ in pairs], [found for _, found in pairs if found is not None]
        summaries = [e.summary(s) for e, s in zip(final, scores, strict=True)]
        return scores, many, averaged_over_folds(scores, summaries)

    asked = "valid" if quick else "test"
    scores, many, mean = score(asked)
    split = "one split" if len(parts) == 1 else f"{len(parts)} folds"
    protocol = f"{split}, {len(tried)} settings, chosen on validation on each fold"
    protocol += ", retrained on train + valid" if retrain else ""
    if retrain and "stop_at_train" in first.flat_parameters():
        protocol += " until the training likelihood of the best validation iteration"
    protocol += f"; the chosen settings trained with {repeats} seeds" if repeats > 1 else ""
    sums = "".join(spec["data_checksums"])
    checksum = sums if len(parts) == 1 else hashlib.sha256(sums.encode()).hexdigest()
    return {
        asked: mean | {"orderings": getattr(final[0], "n_orderings", 1)},
        **(ensembles_of(many) if len(many) == len(parts) else {}),
        **(over_seeds(trained, scores[0], parts[0].split(asked)) if repeats > 1 else {}),
        **({} if retrain or quick else {"valid": score("valid")[2]}),
        "quick": quick,
        "protocol": protocol,
        "spec": {name: spec[name] for name in IN_RECORD if name in spec},
        "chosen": [
            {"fold": o["fold"] + 1, **o["setting"], "valid": o["valid"], "best_epoch": o["best_epoch"]}
            | {"final": e.history_.stopped, "final_epochs": len(e.history_.epochs)}
            | ({"diverged_before": rank} if (rank := ranked[o["fold"]].index(o)) else {})
            for o, e in zip(chosen, final, strict=True)
        ],
        "validation_grid": by_setting(outcomes, tried, len(parts)),
        "commands": [as_sweep_command(spec)],
        "seed": spec["seed"],
        "data_checksum": checksum,
        **{name: where[name] for name in OF_MACHINE},
        "trained": where["started"],
        "wall_seconds": {"grid": round(seconds, 2), "final": max(0.01, round(time.monotonic() - began, 2))},
    }


def _check(spec: dict[str, Any], first: Any, n_parts: int) -> None:
    """Refuse what a sweep would not do as the record would say, and repeats of what is not one net."""
    fixed, grid, repeats = spec["fixed"], spec["grid"], spec.get("repeats", 1)
    net = isinstance(first, NetEstimator)
    if not (net or isinstance(first, ClassicalEstimator)):
        what = f"{spec['model']!r} is not trained by gradient descent"
        raise ValueError(f"a sweep trains populations of nets; {what}")
    for name in grid:
        if name in fixed:
            raise ValueError(f"{name} is both fixed and varied; give it once")
        if name == "validation_fraction":
            raise ValueError("validation_fraction cannot be varied: settings are compared on the same rows")
    if any([fixed.get("pretrain_epochs"), *grid.get("pretrain_epochs", ())]):
        reason = "members of a population are not pretrained layer by layer"
        raise ValueError(f"{reason}; leave pretrain_epochs at 0")
    check_positive(**{"the number of repeats": repeats})
    if repeats > 1 and not net:
        who = f"which {spec['model']!r} is not"
        raise ValueError(f"repeats are for models trained by gradient descent, {who}")
    if repeats > 1 and n_parts > 1:
        raise ValueError(f"repeats are for one split into train, valid and test, not for {n_parts} folds")
    if repeats > 1 and "random_state" in {*fixed, *grid}:
        raise ValueError("repeats have seeds of their own, from --seed on; leave random_state out")


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


def by_setting(outcomes: list[dict[str, Any]], tried: list[Setting], n_folds: int) -> list[dict[str, Any]]:
    """Every setting with its validation log-likelihood on each fold.

    None where it diverged at once; folds where it did after a good epoch (then it comes last) are named.
    """
    lines = []
    for setting in tried:
        plain = json.loads(json.dumps(setting))  # tuples come back from files as lists
        found = {o["fold"]: o for o in outcomes if o["setting"] == plain}
        mine = [found[fold] for fold in range(n_folds)]
        valid = [o["valid"] if o["valid"] is None else round(o["valid"], 4) for o in mine]
        later = [o["fold"] + 1 for o in mine if o.get("stopped") == "diverged" and o["valid"] is not None]
        lines.append(plain | {"valid": valid} | ({"diverged_on_folds": later} if later else {}))
    return lines


def scored(estimator: Any, test: np.ndarray) -> tuple[np.ndarray, OrderingScores | None]:
    """Every row's score; of an ensemble over orderings also those of its members."""
    k = getattr(estimator, "n_orderings", 1)
    if estimator.has_orderings and k > 1 and not np.isnan(test).any():
        many = estimator.score_orderings(test, k)  # smaller ensembles cost nothing more
        return many.ensemble_rows(), many
    return estimator.score_samples(test), None


def over_seeds(several: list[DensityEstimator], first: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Test means of one setting under several seeds; the first has been scored.

    The standard error of a standard deviation of n normal numbers is the deviation over sqrt(2 (n - 1)).
    A run that diverged counts with the weights it had before, and the record names its seed.
    """
    means = np.array([first.mean(), *(scored(estimator, test)[0].mean() for estimator in several[1:])])
    std = float(means.std(ddof=1))
    seeds = [e.random_state for e in several]
    diverged = [s for s, e in zip(seeds, several, strict=True) if e.history_.stopped == "diverged"]
    facts = {"seeds": seeds, "means": means.tolist(), "mean": float(means.mean()), "std": std}
    facts |= {"stderr_of_std": float(std / np.sqrt(2 * (len(means) - 1)))}
    return {"repeats": facts | ({"diverged": diverged} if diverged else {})}


def averaged_over_folds(scores: list[np.ndarray], summaries: list[Estimate]) -> dict[str, Any]:
    """Mean over folds of the mean over rows; with several folds the standard error is over folds."""
    means = np.array([s.mean() for s in scores])
    rows = np.concatenate(scores)
    spread = rows if len(scores) == 1 else means
    errors = [s.mc_stderr for s in summaries if s.mc_stderr is not None]
    mc_stderr = float(np.sqrt(np.mean(np.square(errors)) / len(errors))) if errors else None
    facts: Any = {"mean": float(means.mean()), "stderr": float(spread.std(ddof=1) / np.sqrt(len(spread)))}
    facts |= {"mc_stderr": mc_stderr, "n": len(rows), "exact": all(s.exact for s in summaries)}
    return facts | ({"folds": means.tolist()} if len(scores) > 1 else {})


def ensembles_of(many: list[OrderingScores]) -> dict[str, Any]:
    """What ensembles of fewer orderings give, and how much single orderings differ (mean over folds)."""

    def over_folds(scores: list[np.ndarray]) -> dict[str, Any]:
        facts = averaged_over_folds(scores, [Estimate.from_rows(rows) for rows in scores])
        return {name: value for name, value in facts.items() if name != "folds"}

    k = many[0].log_probs.shape[1]
    return {
        "mean_over_orderings": over_folds([m.log_probs.mean(1) for m in many]) | {"orderings": k},
        "ensembles": {str(n): over_folds([m.ensemble_rows(n) for m in many]) for n in ensemble_sizes(k)},
        "ordering_std": float(np.mean([m.ordering_means().std(ddof=1) for m in many])),
    }
