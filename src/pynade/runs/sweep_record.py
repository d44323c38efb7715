"""The record of a sweep: scores averaged over folds, what was chosen, and the command that makes it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pynade.estimators.base import DensityEstimator
from pynade.evaluation import OrderingScores
from pynade.likelihood import Estimate
from pynade.runs.score import ensemble_sizes
from pynade.tables import Dataset

Setting = dict[str, Any]
Outcome = dict[str, Any]  # a setting, the number of a fold (from 0), and how the training ended


def best_first(outcomes: list[Outcome], fold: int) -> list[Outcome]:
    """A fold's outcomes by validation score; those that diverged after a good epoch come last."""
    mine = [o for o in outcomes if o["fold"] == fold and o["valid"] is not None]
    if not mine:
        raise ValueError(f"every setting diverged on fold {fold + 1}")
    return sorted(mine, key=lambda o: (o["stopped"] == "diverged", -o["valid"]))


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


def scored_folds(estimators: list[Any], parts: list[Dataset], name: str) -> tuple[list[Any], dict[str, Any]]:
    """Scores of one part of each fold, and what a record says of them; of ensembles also of smaller ones."""
    pairs = [scored(estimator, part.split(name)) for estimator, part in zip(estimators, parts, strict=True)]
    scores, many = [rows for rows, _ in pairs], [found for _, found in pairs if found is not None]
    mean = averaged([e.summary(rows) for e, rows in zip(estimators, scores, strict=True)], scores)
    return scores, {name: mean, **(ensembles_of(many) if len(many) == len(parts) else {})}


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


def averaged(summaries: list[Estimate], scores: list[np.ndarray]) -> dict[str, Any]:
    """Mean over folds of the mean over rows; with several folds the standard error is over folds."""
    means, rows = np.array([s.mean() for s in scores]), np.concatenate(scores)
    spread, errors = rows if len(scores) == 1 else means, np.array([s.mc_stderr for s in summaries])
    facts: Any = {"mean": float(means.mean()), "stderr": float(spread.std(ddof=1) / np.sqrt(len(spread)))}
    facts |= {"mc_stderr": float(np.sqrt(np.mean(errors**2) / len(errors))), "n": len(rows)}
    facts |= {"exact": all(s.exact for s in summaries)}
    return facts | ({"folds": means.tolist()} if len(scores) > 1 else {})


def ensembles_of(many: list[OrderingScores]) -> dict[str, Any]:
    """What ensembles of fewer orderings give, and how much single orderings differ (mean over folds)."""

    def over_folds(scores: list[np.ndarray]) -> dict[str, Any]:
        facts = averaged([Estimate.from_rows(rows) for rows in scores], scores)
        return {name: value for name, value in facts.items() if name != "folds"}

    k = many[0].log_probs.shape[1]
    return {
        "mean_over_orderings": over_folds([m.log_probs.mean(1) for m in many]) | {"orderings": k},
        "ensembles": {str(n): over_folds([m.ensemble_rows(n) for m in many]) for n in ensemble_sizes(k)},
        "ordering_std": float(np.mean([m.ordering_means().std(ddof=1) for m in many])),
    }
