"""TabularNADE on a table with default settings: time, memory and held-out log-likelihood of one run.

    python benchmarks/table_speed.py adult.csv.gz --drop split --out benchmarks/results/tables-adult.json

Four fifths of the rows are for training, the rest for the test; one cell in five of the test rows is hidden
for imputation. The record has what is needed to make it again.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch

import pynade
from pynade.atomic import write_json
from pynade.runs.provenance import code_version, device_name
from pynade.tables.files import read_frame


def timed(function):
    """What a call gives, and its seconds."""
    began = time.perf_counter()
    return function(), time.perf_counter() - began


def peak():
    """Largest memory of the process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="CSV or Parquet")
    parser.add_argument("--drop", nargs="*", default=[], help="columns to leave out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record here (.json)")
    arguments = parser.parse_args()

    table = read_frame(arguments.file).drop(arguments.drop)
    rng = np.random.default_rng(arguments.seed)
    order, cut = rng.permutation(len(table)), int(0.8 * len(table))
    train, test = table[order[:cut]], table[order[cut:]]
    before = peak()
    model, fit = timed(lambda: pynade.TabularNADE(random_state=arguments.seed).fit(train))
    scores, score = timed(lambda: model.score_samples(test, orderings=1, density=True))
    hidden = {name: pl.Series(rng.random(len(test)) < 0.2) for name in test.columns}
    gaps = test.with_columns(pl.when(~hidden[name]).then(pl.col(name)).alias(name) for name in test.columns)
    filled, impute = timed(lambda: model.impute(gaps))
    draws, sample = timed(lambda: model.sample(2000, random_state=0))
    cells, surprise = timed(lambda: model.surprise(test[:2000]))
    record = {
        "table": arguments.file.name.split(".")[0],
        "checksum": hashlib.sha256(arguments.file.read_bytes()).hexdigest(),
        "rows": {"train": len(train), "test": len(test)},
        "columns": len(model.schema_),
        "seed": arguments.seed,
        "fit_seconds": round(fit, 1),
        "epochs": len(model.history_.epochs),
        "score_rows_per_second": round(len(scores) / score),
        "impute_rows_per_second": round(len(filled) / impute),
        "sample_rows_per_second": round(len(draws) / sample),
        "surprise_rows_per_second": round(len(cells) / surprise),
        "memory_mib": round(peak() - before),
        "test_density": {
            "mean": round(float(scores.mean()), 3),
            "stderr": round(float(scores.std() / len(scores) ** 0.5), 3),
            "orderings": 1,
        },
        "disagreement": model.disagreement_,
        "threads": torch.get_num_threads(),
        "device": device_name(torch.device("cpu")),
        "torch": torch.__version__,
        "code": code_version(),
        "command": f"python benchmarks/table_speed.py {arguments.file.name} "
        f"--drop {' '.join(arguments.drop)} --seed {arguments.seed}",
    }
    for name, value in record.items():
        print(f"{name:26}{value}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out, record)


if __name__ == "__main__":
    main()
