"""Scoring a trained run on data, and the record that a result leaves."""

from __future__ import annotations

import shlex
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_json
from pynade.device import device_here, torch_device
from pynade.estimators.base import DensityEstimator
from pynade.estimators.io import load_with_facts
from pynade.estimators.tabular import TabularNADE
from pynade.evaluation import ControlVariateEnsemble, OrderingScores
from pynade.likelihood import Estimate, row_log_probs
from pynade.models import Density, Orderless
from pynade.runs.provenance import OF_MACHINE, code_version, device_name, now
from pynade.runs.run import as_command
from pynade.runs.summary import read_json, read_metrics
from pynade.runs.table import added_up, table_options
from pynade.tables import Dataset, resolve
from pynade.tables.files import check_destination
from pynade.tables.frames import align
from pynade.tables.images import binarized


@dataclass(frozen=True)
class Score:
    """Log-probabilities of one part of a data set; under many orderings where that was asked.

    Attributes:
        data: the data set.
        split: its part.
        log_probs: of each row, exact; empty where only an estimate of their mean was made.
        seconds: how long it took.
        orderings: scores under many orderings: of all rows, or with an estimate of every n-th.
        estimated: an estimate of the mean over orderings on all rows.
        control_variate: the ensemble on all rows, from estimates of all and exact scores of some.
        draws: prefixes per row of the estimates.
        precision: of the nets, under many orderings and in estimates.
    """

    data: Dataset
    split: str
    log_probs: np.ndarray
    seconds: float
    orderings: OrderingScores | None = None
    estimated: Estimate | None = None
    control_variate: ControlVariateEnsemble | None = None
    draws: int | None = None
    precision: str | None = None
    summary: Estimate | None = None  # the model's own, where its scores are estimates themselves
    gain: Estimate | None = None  # of a mixed table: over independent columns
    adds_up: str = ""  # of a mixed table: what a row's score is

    @property
    def estimate(self) -> Estimate:
        """The number asked for, with its standard error: the mean over rows."""
        if self.control_variate is not None:
            return self.control_variate.ensemble
        return self.estimated or self.summary or Estimate.from_rows(self.log_probs)


def ensemble_sizes(k: int) -> list[int]:
    """Sizes of ensembles worth keeping, up to k orderings: powers of two, ten, and k.

    Example:
        >>> ensemble_sizes(20)
        [1, 2, 4, 8, 10, 16, 20]
    """
    return sorted({2**p for p in range(k.bit_length())} | {k} | ({10} if k > 10 else set()))


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
    their ensemble from exact scores of every tenth row (`pynade.evaluation`).

    Args:
        run: run folder or model file.
        data: registered name or file.
        split: train, valid, test or all.
        data_dir: folder of the registered data sets.
        orderings: score an orderless model under this many orderings (finished chunks are kept in the run
            folder until all are there, so a killed call goes on where it was).
        progress: called as progress(done, total).
        draws: prefixes per row of an estimate.
        precision: of the nets on a GPU: "float32", "tf32" or "bf16".
        every: with `draws` and `orderings`, every n-th row has exact scores.
        first: only the first rows (a trial).
        density: of a mixed table, divide probabilities of values on a lattice by its resolution.
    """
    model, facts = load_with_facts(run)
    dataset = binarized(resolve(data, data_dir, **table_options(model)), facts.get("binarize"))
    if split is None:
        split = "test" if dataset.test is not None else "all"
    if isinstance(model, TabularNADE):
        return _score_table(model, dataset, split, orderings, draws, density, first)
    if density:
        raise ValueError("--density is for models of tables of mixed columns (tabularnade)")
    rows = align(dataset.split(split), dataset.schema.names, facts.get("columns"), facts.get("dropped", ()))
    rows = rows[:first]
    folder = chunk_folder(run, dataset.name, split) if run.is_dir() else None
    options: dict[str, Any] = {"progress": progress, "precision": precision}
    begin = time.perf_counter()

    def score(log_probs: np.ndarray, **facts: Any) -> Score:
        return Score(dataset, split, log_probs, time.perf_counter() - begin, **facts)

    if not isinstance(model, DensityEstimator):
        if not isinstance(model, Density):
            what = f"{run} holds a {type(model).__name__}, which is no density"
            raise ValueError(f"{what}: an orderless model has `.under(…)`, an RBM `.normalised()`")
        if orderings is not None or draws is not None:
            raise ValueError(f"{run} was not saved by an estimator, so it has no orderings to choose")
        return score(row_log_probs(model.double(), rows).numpy())
    if draws is not None:
        if orderings is None:
            estimated = model.estimate(rows, draws, **options)
            return score(np.empty(0), estimated=estimated, draws=draws, precision=precision)
        made = model.control_variate_ensemble(rows, orderings, draws, every, folder=folder, **options)
        means = {"estimated": made.typical, "orderings": made.subset, "control_variate": made}
        return score(np.empty(0), **means, draws=draws, precision=precision)
    if orderings is not None:
        scores = model.score_orderings(rows, orderings, folder=folder, **options)
        return score(scores.ensemble_rows(), orderings=scores, precision=precision)
    if isinstance(model.model_, Orderless) and not np.isnan(rows).any():
        many = model.score_orderings(rows, model.orderings(), folder=folder, **options)
        log_probs = many.ensemble_rows()
    else:
        with warnings.catch_warnings(action="ignore"):  # the summary says whether it is an estimate
            log_probs = model.score_samples(rows)
    return score(log_probs, summary=model.summary(log_probs))


def _score_table(
    model: TabularNADE, data: Dataset, split: str, k: int | None, draws: int | None, density: bool, first: Any
) -> Score:
    """Scores of a mixed table, which are exact: under the model's own orderings, or under k."""
    if draws is not None:
        raise ValueError("scores of a table of mixed columns are exact: leave --estimate out")
    rows, begin = data.split(split)[:first], time.perf_counter()
    log_probs, gain = model.score_samples(rows, k, density), Estimate.from_rows(model.gain(rows))
    seconds, text = time.perf_counter() - begin, added_up(model.schema_, density)
    return Score(data, split, log_probs, seconds, gain=gain, adds_up=text)


def chunk_folder(run: Path, data: str, split: str) -> Path:
    """Where the finished chunks of an evaluation under many orderings are kept."""
    return run / f"chunks-{data.replace('/', '-')}-{split}"


def forget_chunks(run: Path, score: Score) -> None:
    """Remove the chunks of a finished evaluation, once what was wanted of it has been written."""
    folder = chunk_folder(run, score.data.name, score.split)
    if folder.is_dir():
        shutil.rmtree(folder)


def _curve(run: Path) -> dict[str, Any]:
    """Training and validation scores after every epoch, of runs in which both were scored alike."""
    lines = read_metrics(run)
    if not any("train_scored" in line for line in lines):
        return {}
    curve = {}
    for name in ("updates", "train", "train_scored", "valid", "seconds"):
        known, sign = (name, 1) if name in ("updates", "seconds") else (f"{name}_nll", -1)
        curve[known] = [line[name] and round(sign * line[name], 3) for line in lines]
    return {"curve": curve}  # records have negative log-likelihoods


def _chosen(result: dict[str, Any]) -> dict[str, Any]:
    """What a run chose and among what, as a sweep's record has it; one setting is a grid of one line."""
    only = {"valid": result["valid"] and result["valid"]["mean"]}
    lines = [line for line in result.get("choices", [only]) if line["valid"] is not None]
    grid = [line | {"valid": [line["valid"]]} for line in lines]
    return {"chosen": result.get("chosen", {}), "validation_grid": grid}


def write_record(path: Path, run: Path, score: Score) -> None:
    """Write the result of a run folder with everything needed to make it again.

    Args:
        path: the file (.json).
        run: the run folder.
        score: of some data.
    """
    check_destination(path, ".json")
    spec, trained, result = (read_json(run / f"{n}.json") for n in ("spec", "provenance", "result"))
    parameters, k = spec["parameters"], spec["parameters"].get("n_orderings", 1)
    many: dict[str, Any] = {}
    command = f"pynade score RUN {shlex.quote(str(spec['data']))} --split {score.split}"
    if score.orderings is not None:
        log_probs, curve = score.orderings.log_probs, score.orderings.curve()
        k = log_probs.shape[1]
        command, sizes = f"{command} --orderings {k}", ensemble_sizes(k)
        mean = OrderingScores(log_probs[:, :10]).mean().to_json()
        many = {
            "mean_over_orderings": mean | {"orderings": min(k, 10)},
            "ensembles": {str(n): curve[n - 1].to_json() for n in sizes},
            "ordering_std": float(score.orderings.ordering_means().std(ddof=1)) if k > 1 else None,
        }
    if score.draws is not None:
        command += f" --estimate {score.draws}"
        many = {"mean_over_orderings": score.estimated.to_json()} if score.estimated else {}
        k = None if score.orderings is None else k
    if score.control_variate is not None:
        command += f" --every {score.control_variate.every}"
        many["ensembles"] = {str(n): score.control_variate.of(n).to_json() for n in sizes}
        many["composition"] = score.control_variate.to_json(score.split) | {"draws": score.draws}
    if score.precision is not None:
        command += f" --precision {score.precision}"
        many["precision"] = score.precision
    device = device_name(torch_device(device_here(parameters["device"])))
    record = {
        score.split: score.estimate.to_json() | {"orderings": k},
        **many,
        **({} if score.gain is None else {"gain": score.gain.to_json()}),
        **({} if score.split == "valid" else {"valid": result["valid"]}),
        **(_curve(run) if (run / "metrics.jsonl").is_file() else {}),
        "spec": {"model": spec["model"], "parameters": parameters, "data": score.data.name},
        "commands": [as_command(spec, "RUN"), f"{command} --record {path.name}"],
        **{name: result[name] for name in ("epochs", "best_epoch", "train_log_likelihood", "stopped")},
        **_chosen(result),
        "seed": parameters["random_state"],
        "data_checksum": score.data.checksum,
        **{name: trained[name] for name in OF_MACHINE},
        "trained": trained["started"],
        "scored": {"code": code_version(), "device": device, "at": now()},
        "wall_seconds": {"fit": result["seconds"], "score": max(0.01, round(score.seconds, 2))},
    }
    write_json(path, record)
