"""A grid of settings: train each, choose on validation, score the test part once, leave one record.

    python -m pynade.experiments.grid DATA --runs FOLDER --record results/binary/DATA/nade.json

runs the paper's grid for NADE (500 sigmoid units, fixed random order, SGD: learning rates 0.05, 0.005,
0.0005 × gamma 0, 0.001, 0.000001). Every setting is a run folder; finished ones are kept and interrupted
ones go on, so the command may be killed and given again.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from pynade.atomic import write_json
from pynade.experiments.run import read_spec, resume_run, start_run
from pynade.experiments.score import score_run, write_record
from pynade.learn import Diverged

PAPER_NADE: dict[str, dict[str, Any]] = {
    "fixed": {
        "hidden": 500,
        "activation": "sigmoid",
        "optimizer": "sgd",
        "schedule": "inverse",
        "batch_size": 10,
        "epochs": 400,
        "patience": 30,
    },
    "grid": {"learning_rate": [0.05, 0.005, 0.0005], "gamma": [0.0, 0.001, 0.000001]},
}


def settings(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations.

    Example:
        >>> settings({"a": [1, 2], "b": [3]})
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def run_grid(
    runs: Path,
    record: Path,
    model: str,
    data: str,
    fixed: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    *,
    seed: int = 0,
    data_dir: Path | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Train all settings (`workers` at a time, one thread each) and record the one best on validation.

    Returns:
        The chosen setting.
    """
    todo = [
        (runs / _name(s), model, {**fixed, **s, "random_state": seed}, data, data_dir) for s in settings(grid)
    ]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(_train, todo))
    kept = ("status", "valid", "best_epoch", "epochs")
    tried = [
        {**setting, **{name: result.get(name) for name in kept}}
        for setting, result in zip(settings(grid), results, strict=True)
    ]
    finished = [k for k, line in enumerate(tried) if line["valid"] is not None]
    if not finished:
        raise ValueError("every setting of the grid diverged")
    best = max(finished, key=lambda k: tried[k]["valid"]["mean"])
    folder = todo[best][0]
    write_record(record, folder, score_run(folder, data, "test", data_dir))
    content = json.loads(record.read_text(encoding="utf-8"))
    content["validation_grid"] = tried
    write_json(record, content)
    return settings(grid)[best]


def _train(job: tuple[Path, str, dict[str, Any], str, Path | None]) -> dict[str, Any]:
    folder, model, parameters, data, data_dir = job
    torch.set_num_threads(1)
    if (folder / "spec.json").is_file():
        spec = read_spec(folder)
        asked = spec["parameters"] | parameters
        if (spec["model"], spec["data"], spec["parameters"]) != (model, data, asked):
            raise ValueError(f"{folder} holds a run of other settings; give another --runs folder")
        result = folder / "result.json"
        if result.is_file():
            return dict(json.loads(result.read_text(encoding="utf-8")))
        return resume_run(folder, data_dir=data_dir)
    try:
        return start_run(folder, model, parameters, data, data_dir=data_dir)
    except Diverged as error:  # a setting that diverges is a result too
        return {"status": "diverged", "stopped": str(error)}


def _name(setting: Mapping[str, Any]) -> str:
    return "-".join(f"{name}={value:g}" for name, value in setting.items())


def main() -> None:
    """The paper's NADE grid on one data set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    chosen = run_grid(
        options.runs,
        options.record,
        "nade",
        options.data,
        PAPER_NADE["fixed"],
        PAPER_NADE["grid"],
        data_dir=options.data_dir,
        workers=options.workers,
    )
    print(f"{options.data}: chosen on validation: {chosen}; recorded in {options.record}")


if __name__ == "__main__":
    main()
