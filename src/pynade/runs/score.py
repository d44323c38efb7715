"""Scoring a trained run on data, and the record that a result leaves."""

from __future__ import annotations

import shlex
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import InUse, sole_writer, write_json
from pynade.device import available_device, torch_device
from pynade.digest import read_json
from pynade.estimators.base import DensityEstimator
from pynade.estimators.tabular import TabularNADE
from pynade.evaluation import OrderingScores
from pynade.likelihood import Estimate, row_log_probs
from pynade.models import Density, Orderless
from pynade.processes import rank_and_size
from pynade.runs.groups import group_facts
from pynade.runs.provenance import OF_MACHINE, code_version, device_name, now
from pynade.runs.run import as_command, data_for, load_run
from pynade.runs.stream import ask
from pynade.runs.summary import read_metrics, read_result, read_spec
from pynade.tables import Dataset, Schema
from pynade.tables.files import stem
from pynade.tables.frames import align
from pynade.tables.images import binarized
from pynade.tables.stream import is_table

OF_RESULT = ("epochs", "best_epoch", "train_log_likelihood", "stopped")  # what a record has of result.json


@dataclass(frozen=True)
class Score:
    """Log-probabilities of one part of a data set; under many orderings where that was asked."""

    data: Dataset
    split: str  # its part
    log_probs: np.ndarray  # of each row, exact; empty where only an estimate of their mean was made
    estimate: Estimate  # the number asked for, with its standard error: the mean over rows
    lines: list[str]  # the result in words
    facts: dict[str, Any]  # what else a record says of it
    orderings: int | None  # that were asked for
    options: str  # of the command that makes it again: orderings and estimates
    seconds: float  # how long it took
    chunks: Path | None = None  # where its chunks were kept, if there were many orderings


def ensemble_sizes(k: int) -> list[int]:
    """Sizes of ensembles worth keeping, up to k orderings: powers of two, ten, and k."""
    return sorted({2**p for p in range(k.bit_length())} | {k} | ({10} if k > 10 else set()))


def mean_over_folds(folds: list[Estimate]) -> dict[str, Any]:
    """Mean over folds of the mean over rows; with several folds the standard error is over folds."""
    if len(folds) == 1:
        return folds[0].to_json()
    means, errors = np.array([fold.mean for fold in folds]), np.array([fold.mc_stderr for fold in folds])
    facts: Any = {"n": sum(fold.n for fold in folds), "exact": all(fold.exact for fold in folds)}
    facts |= {"mc_stderr": float(np.sqrt(np.mean(errors**2) / len(errors)))}
    return replace(Estimate.from_rows(means), **facts).to_json() | {"folds": means.tolist()}


def ensemble_facts(folds: list[OrderingScores], typical: int | None = None) -> dict[str, Any]:
    """What ensembles of fewer orderings give, and how much single orderings differ (mean over folds).

    The typical ordering is the mean over the first so many of them, or over all.
    """

    def mean(estimates: list[Estimate]) -> dict[str, Any]:
        return {name: value for name, value in mean_over_folds(estimates).items() if name != "folds"}

    k = folds[0].log_probs.shape[1]
    singles = mean([OrderingScores(fold.log_probs[:, :typical]).mean() for fold in folds])
    stds = [fold.ordering_means().std(ddof=1) for fold in folds] if k > 1 else None
    return {
        "mean_over_orderings": singles | {"orderings": min(k, typical or k)},
        "ensembles": {str(n): mean([fold.ensemble(n) for fold in folds]) for n in ensemble_sizes(k)},
        "ordering_std": stds and float(np.mean(stds)),
    }


def score_rows(estimator: Any, rows: np.ndarray) -> tuple[np.ndarray, OrderingScores | None]:
    """Every row's score; of an ensemble over orderings also those of its members."""
    k = getattr(estimator, "n_orderings", 1)
    if estimator.has_orderings and k > 1 and not np.isnan(rows).any():
        members = estimator.score_orderings(rows, k)  # smaller ensembles cost nothing more
        return members.ensemble_rows(), members
    return estimator.score_samples(rows), None


def score_folds(estimators: list[Any], parts: list[Dataset], name: str) -> tuple[list[Any], dict[str, Any]]:
    """Scores of one part of each fold, and what a record says of them; of ensembles also of smaller ones."""
    pairs = [score_rows(e, part.split(name)) for e, part in zip(estimators, parts, strict=True)]
    scores, members = [rows for rows, _ in pairs], [orderings for _, orderings in pairs if orderings]
    facts = {name: mean_over_folds([e.summary(rows) for e, rows in zip(estimators, scores, strict=True)])}
    if len(parts) == 1:
        facts |= group_facts(parts[0], name, scores[0])
    if len(members) == len(parts):
        facts |= ensemble_facts(members)
    return scores, facts


def seed_facts(estimators: list[Any], first: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """Means of one setting under several seeds, the first scored before; names those that diverged late."""
    means = np.array([first.mean(), *(score_rows(e, rows)[0].mean() for e in estimators[1:])])
    std, diverged = float(means.std(ddof=1)), [e for e in estimators if e.history_.stopped == "diverged"]
    facts = {"seeds": [e.random_state for e in estimators], "means": means.tolist()}
    facts |= {"mean": float(means.mean()), "std": std}
    facts |= {"stderr_of_std": float(std / np.sqrt(2 * (len(means) - 1)))}  # of normal numbers
    facts |= {"diverged": [e.random_state for e in diverged]} if diverged else {}
    return {"repeats": facts}


def score_run(
    run: Path,
    data: str,
    split: str | None = None,
    data_dir: Path | None = None,
    orderings: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    draws: int | None = None,
    precision: str = "tf32",
    every: int = 10,
    first: int | None = None,
    density: bool = False,
) -> Score:
    """Log p of every row of a part of the data: by default the test part, or all of a plain file.

    Exact, unless `draws` are asked for: then the mean over orderings is estimated, and with `orderings` too,
    their ensemble from exact scores of every tenth row (`pynade.evaluation`). Under many orderings finished
    chunks are kept in the run folder until all are there, so that a killed call goes on where it was. Further
    arguments are options of `pynade score`.

    Args:
        run: run folder or model file.
        data: registered name or file.
        progress: called as progress(done, total).
        draws: prefixes per row of an estimate.
        first: only the first rows (a trial).
    """
    model, saved = load_run(run)
    dataset = binarized(data_for(model, data, data_dir), saved.get("binarize"))
    split = split or ("test" if dataset.test is not None else "all")
    mixed = isinstance(model, TabularNADE)
    if mixed and draws is not None:
        raise ValueError("scores of a table of mixed columns are exact: leave --estimate out")
    if density and not mixed:
        raise ValueError("--density is for models of tables of mixed columns (tabularnade)")
    if not isinstance(model, DensityEstimator | Density):
        message = f"{run} holds a {type(model).__name__}, which is no density"
        raise ValueError(f"{message}: an orderless model has `.under(…)`, an RBM `.normalised()`")
    if (orderings is not None or draws is not None) and not isinstance(model, DensityEstimator):
        raise ValueError(f"{run} was not saved by an estimator, so it has no orderings to choose")
    rows = dataset.split(split)
    if not mixed:
        rows = align(rows, dataset.schema.names, saved.get("columns"), saved.get("dropped", ()))
    rows, log_probs, estimate, began = rows[:first], np.empty(0), None, time.perf_counter()
    options: dict[str, Any] = {"progress": progress, "precision": precision}
    keep = options | {"folder": run / "chunks" if run.is_dir() else None}
    members, labelled = OrderingScores(log_probs), dict[str, Estimate]()  # estimates that have a line each
    facts, gain_lines = dict[str, Any](), list[str]()
    if isinstance(model, TabularNADE):
        log_probs, gains = model.scores_and_gain(rows, orderings, density)
        gain = Estimate.from_rows(gains)
        facts, gain_lines = {"gain": gain.to_json()}, _gain_lines(model.schema_, gain, density)
    elif not isinstance(model, DensityEstimator):
        log_probs = row_log_probs(model.double(), rows).numpy()
    elif draws is not None and orderings is not None:
        control = model.control_variate_ensemble(rows, orderings, draws, every, **keep)
        members, estimate, exact = control.subset, control.ensemble, f"exact on {len(control.estimates)} rows"
        labelled = {"mean over orderings": control.typical, f"ensemble of {orderings}, {exact}": estimate}
        facts = {"mean_over_orderings": control.typical.to_json()}
        facts["ensembles"] = {str(n): control.of(n).to_json() for n in ensemble_sizes(orderings)}
        facts["composition"] = control.to_json(split) | {"draws": draws}
    elif draws is not None:
        estimate = model.estimate(rows, draws, **options)
        facts = {"mean_over_orderings": estimate.to_json()}
    elif orderings is not None:
        members = model.score_orderings(rows, orderings, **keep)
        log_probs, facts = members.ensemble_rows(), ensemble_facts([members], typical=10)
        labelled = {f"one of {orderings} orderings": members.mean()}
        labelled |= {f"ensemble of {n}": members.ensemble(n) for n in ensemble_sizes(orderings)}
    else:
        with warnings.catch_warnings(action="ignore"):  # the summary says whether it is an estimate
            if isinstance(model.model_, Orderless) and not np.isnan(rows).any():
                members = model.score_orderings(rows, model.orderings(), **keep)
                log_probs = members.ensemble_rows()
            else:
                log_probs = model.score_samples(rows)
        estimate = model.summary(log_probs)
    estimate, words = estimate or Estimate.from_rows(log_probs), ""
    if not mixed and (orderings is not None or draws is not None):
        given: Any = {"orderings": orderings, "estimate": draws}
        given |= {"every": every if orderings and draws else None, "precision": precision}
        words = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
        facts["precision"] = precision
    texts = [f"{label}: {value}" for label, value in labelled.items()] or [str(estimate)]
    lines = [*(f"{dataset.name} {split}: {text}" for text in texts), *gain_lines]
    seconds = time.perf_counter() - began
    return Score(dataset, split, log_probs, estimate, lines, facts, orderings, words, seconds, members.folder)


def score_files(
    run: Path,
    data: str,
    split: str | None = None,
    out: Path | None = None,
    orderings: int | None = None,
    density: bool = False,
    **options: Any,
) -> list[str] | None:
    """The score of a table in files, read part by part, in words; None where it has to be read at once.

    Args:
        run, data, split, orderings, density: as for `score_run`.
        out: where to write the log p of every row.
        options: `progress`, `engine` and `workers`, as for `pynade.runs.stream.ask`.
    """
    if not is_table(data) or split not in (None, "all", "train") or rank_and_size()[1] > 1:
        return None
    model, saved = load_run(run)
    mixed = isinstance(model, TabularNADE)
    if not mixed and (density or orderings is not None or not isinstance(model, DensityEstimator)):
        return None
    options |= {"columns": saved.get("columns"), "dropped": saved.get("dropped", ())}
    result = ask(model, "score", data, out, orderings=orderings, density=density, **options)
    path = Path(data)
    name = stem(path) if path.is_file() else path.name
    lines = [f"{name} {split or 'all'}: {result.scores}"]
    return [*lines, *_gain_lines(model.schema_, result.gain, density)] if mixed else lines


def _gain_lines(schema: Schema, gain: Any, density: bool) -> list[str]:
    """The gain of a mixed table, and what the score of a row adds up, in words."""
    real = [c.name for c in schema.columns if not c.n_levels and (density or not c.resolution)]
    discrete = len(schema) - len(real)
    names = ", ".join(real[:5]) + ", …" * (len(real) > 5)
    parts = [f"log-probabilities of {discrete} discrete column{'s' * (discrete > 1)}"] if discrete else []
    parts += [f"log-densities of {len(real)} column{'s' * (len(real) > 1)} ({names})"] if real else []
    text = f"gain over independent columns: {gain.mean:.3f} ± {gain.stderr:.3f} nats"
    return [text, f"(a row's score adds up {' and '.join(parts)})"]


def forget_chunks(score: Score) -> None:
    """Remove the chunks of a finished evaluation, once what was wanted of it has been written."""
    if score.chunks is not None:
        with suppress(InUse, FileNotFoundError), sole_writer(score.chunks, wait=0):
            shutil.rmtree(score.chunks, ignore_errors=True)


def _curve(run: Path) -> dict[str, Any]:
    """Training and validation scores after every epoch, of runs in which both were scored alike."""
    lines = read_metrics(run) if (run / "metrics.jsonl").is_file() else []
    if not any("train_scored" in line for line in lines):
        return {}
    curve = {}
    for name in ("updates", "train", "train_scored", "valid", "seconds"):
        key, sign = (name, 1) if name in ("updates", "seconds") else (f"{name}_nll", -1)
        curve[key] = [line[name] and round(sign * line[name], 3) for line in lines]
    return {"curve": curve}  # records have negative log-likelihoods


def _choices(result: dict[str, Any]) -> dict[str, Any]:
    """What a run chose and among what, as a sweep's record has it; one setting is a grid of one line."""
    only = {"valid": result["valid"] and result["valid"]["mean"]}
    lines = [line for line in result.get("choices", [only]) if line["valid"] is not None]
    grid = [line | {"valid": [line["valid"]]} for line in lines]
    return {"chosen": result.get("chosen", {}), "validation_grid": grid}


def write_record(path: Path, run: Path, score: Score) -> None:
    """Write the score of a run folder to a .json file, with everything needed to make it again."""
    spec, anything = read_spec(run), dict.fromkeys((*OF_MACHINE, "started"), object)
    trained = read_json(run / "provenance.json", **anything)
    result = read_result(run)
    parameters, command = spec["parameters"], f"pynade score RUN {shlex.quote(str(spec['data']))}"
    command += f" --split {score.split}{score.options} --record {path.name}"
    k = score.orderings if score.options else parameters.get("n_orderings", 1)
    device = device_name(torch_device(available_device(parameters["device"])))
    record = {
        score.split: score.estimate.to_json() | {"orderings": k},
        **score.facts,
        **group_facts(score.data, score.split, score.log_probs),
        **({} if score.split == "valid" else {"valid": result["valid"]}),
        **_curve(run),
        "spec": {"model": spec["model"], "parameters": parameters, "data": score.data.name},
        "commands": [as_command(spec, "RUN"), command],
        **{name: result[name] for name in OF_RESULT},
        **_choices(result),
        "seed": parameters["random_state"],
        "data_checksum": score.data.checksum,
        **{name: trained[name] for name in OF_MACHINE},
        "trained": trained["started"],
        "scored": {"code": code_version(), "device": device, "at": now()},
        "wall_seconds": {"fit": result["seconds"], "score": max(0.01, round(score.seconds, 2))},
    }
    write_json(path, record)
