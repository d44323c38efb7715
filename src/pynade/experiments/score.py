"""Scoring a trained run on data, and the record that a result leaves."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import write_atomically, write_json
from pynade.data import Dataset, resolve
from pynade.estimators import BinaryDensity, load
from pynade.estimators.base import torch_device
from pynade.experiments.provenance import provenance
from pynade.experiments.run import read_spec
from pynade.likelihood import Estimate, row_log_probs
from pynade.models import Orderless


@dataclass(frozen=True)
class Score:
    """Log-probabilities of one part of a data set."""

    data: Dataset
    split: str
    log_probs: np.ndarray
    seconds: float

    @property
    def estimate(self) -> Estimate:
        """Their mean with its standard error."""
        return Estimate.from_rows(self.log_probs)


def score_run(run: Path, data: str, split: str | None = None, data_dir: Path | None = None) -> Score:
    """Exact log p of every row of a part of the data: by default the test part, or all of a plain file."""
    model = load(run)
    dataset = resolve(data, data_dir)
    if split is None:
        split = "test" if dataset.test is not None else "all"
    rows = dataset.split(split)
    begin = time.perf_counter()
    if isinstance(model, BinaryDensity):
        log_probs = model.score_samples(rows)
    elif isinstance(model, Orderless):
        raise ValueError(
            f"{run} holds an orderless model, which is scored along an ordering: use `.under(…)`"
        )
    else:
        log_probs = row_log_probs(model.double(), rows).numpy()
    return Score(dataset, split, log_probs, time.perf_counter() - begin)


def write_rows(path: Path, log_probs: np.ndarray) -> None:
    """One log-probability per row, as .csv (with a header) or .npy."""
    if path.suffix not in (".csv", ".npy"):
        raise ValueError(f"cannot write rows to {path.name}: its ending must be .csv or .npy")
    _needs_folder(path)
    if path.suffix == ".csv":
        text = "log_prob\n" + "".join(f"{float(v)!r}\n" for v in log_probs)
        write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))
    else:
        with open(path, "wb") as f:
            np.save(f, log_probs)


def write_record(path: Path, run: Path, score: Score) -> None:
    """The result of a run folder with everything needed to make it again."""
    _needs_folder(path)
    spec = read_spec(run)
    trained = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    scored = provenance(
        score.data,
        seed=spec["parameters"]["random_state"],
        device=torch_device(spec["parameters"]["device"]),
    )
    record: dict[str, Any] = {
        score.split: score.estimate.to_json() | {"orderings": spec["parameters"].get("n_orderings", 1)},
        "valid": result["valid"],
        "spec": {"model": spec["model"], "parameters": spec["parameters"], "data": score.data.name},
        "epochs": result["epochs"],
        "best_epoch": result["best_epoch"],
        "stopped": result["stopped"],
        "seed": spec["parameters"]["random_state"],
        "data_checksum": score.data.checksum,
        "code": trained["code"],
        "libraries": trained["libraries"],
        "python": trained["python"],
        "device": trained["device"],
        "threads": trained["threads"],
        "trained": trained["started"],
        "scored": {"code": scored["code"], "at": scored["started"]},
        "wall_seconds": {"fit": result["seconds"], "score": round(score.seconds, 2)},
    }
    write_json(path, record)


def _needs_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path.name}: the folder {path.parent} does not exist")
