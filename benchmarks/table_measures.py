"""Measures of what `table_systems.py` wrote, over the seeds of each table."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import table_page
from pynade.atomic import write_json
from pynade.digest import read_json
from pynade.runs.provenance import code_version, device_name
from table_systems import Task

PAIRED = "pynade"  # the system that all others are compared with


def report(work: Path, out: Path, names: list[str], docs: Path = table_page.DOCS) -> None:
    """Add the measures of these tables under `work` to the record, print a summary, and write the page.

    Measures of other splits stay in the record. A difference to ours on the same rows is dropped when ours is
    measured again without that system.
    """
    record = read_json(out) if out.exists() else {"tables": {}}
    record["command"] = "python benchmarks/tables.py run && python benchmarks/tables.py report"
    for table in (work / Path(name).stem for name in names):
        for folder in sorted(p.parent for p in table.glob("*/facts.json")):
            task, seed = Task(folder, dates=False), folder.name
            facts = {"rows": {"train": len(task.train), "test": len(task.test)}, "columns": len(task.names)}
            facts |= {"checksum": task.facts["checksum"]}
            systems = record["tables"].setdefault(table.name, {"systems": {}})["systems"]
            record["tables"][table.name] |= facts
            if (folder / PAIRED / "measures.json").exists():
                for parts in systems.values():
                    for name in ("to_pynade", "to_pynade_stderr"):
                        parts.get(seed, {}).get("log_density", {}).pop(name, None)
            for file in folder.glob("*/measures.json"):
                part = read_json(file)
                if (file.parent / "scores.npy").exists():
                    part["log_density"] = likelihood(file.parent, folder / PAIRED)
                systems.setdefault(file.parent.name, {})[seed] = _rounded(part)
    for facts in record["tables"].values():
        facts["systems"] = dict(sorted(facts["systems"].items()))
    record["tables"] = dict(sorted(record["tables"].items()))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
    summary = summarised(record)
    for name, facts in summary["tables"].items():
        show(name, facts["systems"])
    table_page.write(summary, docs)


def _rounded(value: Any) -> Any:
    """Numbers of a record with four decimals."""
    if isinstance(value, dict):
        return {name: _rounded(v) for name, v in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def summarised(record: dict) -> dict:
    """The record with the measures of each system over its seeds in place of those of each seed."""
    tables = {}
    for name, facts in record["tables"].items():
        parts = {
            system: [part | {"seed": int(seed)} for seed, part in by_seed.items()]
            for system, by_seed in facts["systems"].items()
        }
        summary = {system: combined(own, parts.get(PAIRED, [])) for system, own in parts.items()}
        tables[name] = facts | {"systems": summary}
    return record | {"tables": tables}


def likelihood(folder: Path, ours: Path) -> dict[str, float]:
    """Mean log-density of the test rows that a system scores, and its difference to ours on them."""
    values = np.load(folder / "scores.npy")
    found = {"mean": np.nanmean(values), "stderr": _error(values), "scored": np.isfinite(values).mean()}
    if (ours / "scores.npy").exists():
        difference = values - np.load(ours / "scores.npy")
        found |= {"to_pynade": np.nanmean(difference), "to_pynade_stderr": _error(difference)}
    return {k: float(v) for k, v in found.items()}


def mean_over_seeds(parts: list[dict]) -> dict[str, float]:
    """Means of the seeds' log-densities, and of their differences to ours, with standard errors by rows."""
    found = {"scored": float(np.mean([part["scored"] for part in parts]))}
    for name, error in (("mean", "stderr"), ("to_pynade", "to_pynade_stderr")):
        known = [part for part in parts if name in part]
        if known:
            found[name] = round(float(np.mean([part[name] for part in known])), 4)
            found[error] = round(float(np.linalg.norm([part[error] for part in known])) / len(known), 4)
    return found


def _error(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.std() / np.sqrt(max(1, len(known))))


def measured(task: Task, folder: Path) -> dict[str, float]:
    """All measures of one system on one split."""
    facts, found = json.loads((folder / "facts.json").read_text()), {}
    for stage, spent in facts["stages"].items():
        if stage in ("fit", "score", "fill-30", "sample"):
            found |= {f"{stage}_seconds": spent["seconds"], f"{stage}_cpu_seconds": spent["cpu_seconds"]}
            found[f"{stage}_peak_mib"] = spent["peak_mib"]
    truth = task.matrix(task.test)
    n = len(task.numbers)
    scale = np.nanstd(task.matrix(task.train)[:, :n], 0)
    for gap, frame in task.gaps.items():
        hidden = np.isnan(task.matrix(frame)) & ~np.isnan(truth)
        if (folder / f"filled-{gap}.npz").exists():
            filled = np.load(folder / f"filled-{gap}.npz")["cells"]
            error = ((filled - truth)[:, :n] / scale)[hidden[:, :n]]
            right = (filled == truth)[:, n:][hidden[:, n:]]
            found |= {f"rmse_{gap}": np.sqrt((error**2).mean()), f"accuracy_{gap}": _mean(right)}
        if (folder / f"draws-{gap}.npz").exists():
            draws = np.load(folder / f"draws-{gap}.npz")["cells"].astype(float)
            z = np.sort(
                ((draws - truth) / np.append(scale, np.ones(truth.shape[1] - n)))[:, :, :n][:, hidden[:, :n]],
                0,
            )
            k = len(z)
            spread = ((2 * np.arange(1, k + 1) - k - 1)[:, None] * z).sum(0) / (k * (k - 1))  # half E|X - X'|
            found[f"crps_{gap}"] = (np.abs(z).mean(0) - spread).mean()
            rng = np.random.default_rng(0)
            rank = (z < 0).sum(0) + rng.random(z.shape[1]) * ((z == 0).sum(0) + 1)
            found[f"coverage_{gap}"] = (
                (rank >= 1) & (rank < k)
            ).mean()  # inside the draws: (k - 1) / (k + 1)
        if (folder / f"scores-{gap}.npy").exists() and (folder / "scores.npy").exists():
            both = np.load(folder / "scores.npy") - np.load(folder / f"scores-{gap}.npy")
            cells = hidden[np.isfinite(both)].sum()
            found[f"log_p_{gap}"] = np.nansum(both) / cells if cells else np.nan
    if (folder / "sample.npz").exists():
        drawn = np.load(folder / "sample.npz")["cells"]
        found["two_sample_auc"] = two_sample(task, drawn)
        found |= train_on(task, drawn)
    i = (task.numbers + list(task.levels)).index(task.target)
    for gap in ("complete", "30"):
        if (folder / f"predicted-{gap}.npy").exists():
            guess, asked = np.load(folder / f"predicted-{gap}.npy"), ~np.isnan(truth[:, i])
            wrong = (guess != truth[:, i]) if task.target in task.levels else (guess - truth[:, i]) ** 2
            for suffix, rows in (("", asked), ("_unseen", asked & unseen(task, i))):
                mean = _mean(wrong[rows])
                found[f"target_error_{gap}{suffix}"] = mean if task.target in task.levels else mean**0.5
    if (folder / "surprise.npy").exists():
        found |= surprise_auc(task, np.load(folder / "surprise.npy"))
    found |= {k: facts[k] for k in ("disagreement", "mixture_weight") if facts.get(k) is not None}
    found["versions"] = facts.get("versions", {})
    found |= {"code": code_version(), "device": device_name(torch.device("cpu"))}
    found["measured"] = datetime.now(UTC).isoformat(timespec="seconds")
    if facts["errors"]:
        found["errors"] = facts["errors"]
    return found


def unseen(task: Task, column: int) -> np.ndarray:
    """Which test rows have no training row that is the same in all columns but this one."""
    train, test = (np.delete(task.matrix(rows), column, 1) + 0.0 for rows in (task.train, task.test))
    known = {row.tobytes() for row in train}
    return np.array([row.tobytes() not in known for row in test])


def surprise_auc(task: Task, scores: np.ndarray) -> dict[str, float]:
    """AUC by which cells with planted errors have higher scores than the cells of rows without any."""
    from sklearn.metrics import roc_auc_score

    found, clean = {}, (task.marks == 0).all(1)[:, None] & np.isfinite(scores)
    for word, wrong in (("all", task.marks > 0), ("moved", task.marks == 1), ("shifted", task.marks == 2)):
        some = wrong & ~np.isnan(scores)
        if some.any():
            found[f"surprise_auc_{word}"] = float(
                roc_auc_score(
                    np.repeat([1, 0], [some.sum(), clean.sum()]),
                    np.nan_to_num(np.concatenate([scores[some], scores[clean]]), posinf=1e9, neginf=-1e9),
                )
            )
    return found


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _learner(task: Task, column: int | None, levels: bool):
    """Gradient boosting on a matrix without a column."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    n, D = len(task.numbers), len(task.names)
    many = [len(of) > 250 for of in task.levels.values()]
    kinds = [False] * n + [not m for m in many]
    kept = [i for i in range(D) if i != column]
    model = HistGradientBoostingClassifier if levels else HistGradientBoostingRegressor
    return model(categorical_features=[kinds[i] for i in kept], random_state=0), kept


def two_sample(task: Task, drawn: np.ndarray) -> float:
    """AUC of a classifier that tells samples from test rows, by cross-validation; 0.5 is the best.

    Samples have the gaps of the test rows, and numbers are on their lattice.
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    real = task.matrix(task.test)
    size = min(len(real), len(drawn), 3000)
    real, drawn = real[:size], on_lattice(task, drawn[:size])
    drawn = np.where(np.isnan(real), np.nan, drawn)
    X, y = np.concatenate([real, drawn]), np.repeat([0, 1], size)
    learner, _ = _learner(task, None, True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    p = cross_val_predict(learner, X, y, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(y, p))


def on_lattice(task: Task, cells: np.ndarray) -> np.ndarray:
    """Numbers rounded to the steps of their columns, counted from a training value."""
    cells, train = cells.copy(), task.matrix(task.train)
    for i, step in enumerate(task.step):
        if step:
            origin = np.nanmin(train[:, i])
            cells[:, i] = origin + np.round((cells[:, i] - origin) / step) * step
            digits = max(0, 9 - int(np.floor(np.log10(max(abs(origin), step)))))
            cells[:, i], _ = np.round(cells[:, i], digits), None
    return cells


def train_on(task: Task, drawn: np.ndarray) -> dict[str, float]:
    """Accuracy or R² on test rows of learners of the target: trained on samples, and on as many real rows."""
    i = (task.numbers + list(task.levels)).index(task.facts["target"])
    levels, found = i >= len(task.numbers), {}
    test, train = task.matrix(task.test), task.matrix(task.train)[: len(drawn)]
    for word, rows in (("synthetic", on_lattice(task, drawn)), ("real", train)):
        learner, kept = _learner(task, i, levels)
        known, asked = ~np.isnan(rows[:, i]), ~np.isnan(test[:, i])
        if levels and len(np.unique(rows[known, i])) < 2:
            found[f"train_on_{word}"] = float("nan")
            continue
        learner.fit(rows[known][:, kept], rows[known, i])
        for suffix, part in (("", asked), ("_unseen", asked & unseen(task, i))):
            score = learner.score(test[part][:, kept], test[part, i]) if part.any() else np.nan
            found[f"train_on_{word}{suffix}"] = float(score)
    return found


def combined(parts: list[dict], ours: list[dict]) -> dict:
    """Means over the seeds with standard errors, mean differences to ours, and the errors that occurred."""
    words = ("device", "code", "versions", "measured")
    names = sorted({name for part in parts for name in part} - {"errors", "seed", "log_density", *words})
    found: dict = {"versions": parts[0].get("versions", {}), "seeds": [part["seed"] for part in parts]}
    found |= {word: sorted({part[word] for part in parts if word in part}) for word in ("device", "code")}
    if densities := [part["log_density"] for part in parts if "log_density" in part]:
        found["log_density"] = mean_over_seeds(densities)
    paired = {part["seed"]: part for part in ours}
    for name in names:
        values = {p["seed"]: float(p[name]) for p in parts if isinstance(p.get(name), int | float)}
        values = {seed: value for seed, value in values.items() if np.isfinite(value)}
        found |= _summary(name, list(values.values()))
        both = [(value, paired[seed][name]) for seed, value in values.items() if name in paired.get(seed, {})]
        found |= _summary(f"{name}_to_pynade", [theirs - own for theirs, own in both])
        found |= {f"{name}_paired": [round(float(x), 4) for x in np.mean(both, 0)]} if both else {}
        found |= {f"{name}_pairs": len(both)} if both else {}
    errors = [part["errors"] for part in parts if "errors" in part]
    return found | ({"errors": errors[0]} if errors else {})


def _summary(name: str, values: list[float]) -> dict:
    """Mean, and with several values its standard error, by name."""
    found = {name: round(float(np.mean(values)), 4)} if values else {}
    if len(values) > 1:
        found[f"{name}_stderr"] = round(float(np.std(values, ddof=1) / len(values) ** 0.5), 4)
    return found


def show(table: str, found: dict) -> None:
    """Print the main measures of one table."""
    columns = [
        "rmse_30",
        "accuracy_30",
        "log_p_30",
        "crps_30",
        "coverage_30",
        "two_sample_auc",
        "train_on_synthetic",
    ]
    rows = {}
    for system, own in found.items():
        density = own.get("log_density", {})
        rows[system] = {"log_density": density.get("mean"), "difference": density.get("to_pynade")}
        rows[system] |= {"±": density.get("to_pynade_stderr")} | {c: own.get(c) for c in columns}
        rows[system] |= {"fit_s": own.get("fit_seconds"), "errors": str(own.get("errors", ""))[:60]}
    print(f"\n{table}")
    with pd.option_context("display.width", 250, "display.max_columns", 30, "display.max_colwidth", 60):
        print(pd.DataFrame(rows).T.to_string())
