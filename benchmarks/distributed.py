"""Rows per second of training by two processes (gloo), beside one: each with one thread.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 benchmarks/distributed.py [--out FILE.json]

One process and all of them train in turn, in one run; while one trains, the others wait. Measured are whole
updates (shuffling, random prefixes, loss, gradients, their exchange, AdamW or Adam), without validation rows.
Processor seconds of the first process tell how much of a ratio is due to other work on the machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import pynade
from pynade.atomic import write_json
from pynade.processes import alone, gather_values, is_first, rank_and_size, together
from pynade.runs.provenance import code_version, device_name, now
from pynade.training import fit


def table(batch_size: int | None = None) -> tuple[Any, np.ndarray]:
    """TabularNADE and a table of 24,000 rows: eight columns of levels, six of numbers, as in a census."""
    rng = np.random.default_rng(0)
    cause, noise = rng.normal(size=24_000), rng.normal(size=(14, 24_000))
    levels = {f"level{n}": (cause + noise[n]).round().astype(int) % (n + 2) for n in range(8)}
    numbers = {f"number{n}": (n * cause + noise[n]).round(2) for n in range(8, 14)}
    frame = pd.DataFrame({name: values.astype(str) for name, values in levels.items()} | numbers)
    estimator = pynade.TabularNADE(batch_size=batch_size, random_state=0, device="cpu")
    return estimator, estimator._rows(frame, fitting=True)


def images(batch_size: int) -> tuple[Any, np.ndarray]:
    """DeepNADE with two layers of 500 units and 10,000 rows of 784 zeros and ones."""
    rows = np.random.default_rng(0).integers(0, 2, (10_000, 784))
    return pynade.DeepNADE(batch_size=batch_size, random_state=0, device="cpu"), rows


def convolutions() -> tuple[Any, np.ndarray]:
    """ConvNADE with its own layers and 1,000 images of 28 x 28 zeros and ones."""
    rows = np.random.default_rng(0).integers(0, 2, (1000, 784))
    return pynade.ConvNADE(image_shape=(28, 28), random_state=0, device="cpu"), rows


#: What is trained, and how many updates of it are measured.
CASES: dict[str, tuple[Callable[[], tuple[Any, np.ndarray]], int]] = {
    "TabularNADE, 3 x 256 units, 14 columns, batch 512": (table, 60),
    "TabularNADE, 3 x 256 units, 14 columns, batch 2048": (lambda: table(2048), 20),
    "DeepNADE, 2 x 500 units, 784 columns, batch 100": (lambda: images(100), 60),
    "DeepNADE, 2 x 500 units, 784 columns, batch 500": (lambda: images(500), 20),
    "DeepNADE, 2 x 500 units, 784 columns, batch 2000": (lambda: images(2000), 8),
    "ConvNADE, 784 columns, batch 100": (convolutions, 2),
}


def rows_per_second(estimator: Any, rows: np.ndarray, updates: int) -> tuple[float, float]:
    """By the wall clock, and by the processor seconds of this process, after a first epoch that warms up."""
    options = replace(estimator.options(), epochs=2, updates_per_epoch=updates, warm_up=0, patience=None)
    marks = []
    call = lambda now: marks.append((time.perf_counter(), time.process_time())) if now.epoch_done else None  # noqa: E731
    fit(estimator.build(rows, 0), rows, None, options, callbacks=[call])
    if not marks:  # of another process than the first
        return 0.0, 0.0
    n = updates * options.batch_size
    (first_wall, first_cpu), (wall, cpu) = marks
    return n / (wall - first_wall), n / (cpu - first_cpu)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the numbers here (.json)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    with together():
        size = rank_and_size()[1]
        for name, (make, updates) in CASES.items():
            given, single, joint = make(), [], []
            for _ in range(asked.rounds):
                if is_first():
                    with alone():
                        single.append(rows_per_second(*given, updates))
                gather_values(None)  # the others have waited here
                joint.append(rows_per_second(*given, updates))
            if not is_first():
                continue
            (one, busy_one), (all_, busy_all) = (np.array(found).T for found in (single, joint))
            line: dict[str, Any] = {"case": name, "processes": size, "rounds": asked.rounds}
            line |= {"rows_per_second_of_one": one.tolist(), "rows_per_second_of_all": all_.tolist()}
            line |= {"ratio": float(np.median(all_ / one)), "ratio_of_best": float(all_.max() / one.max())}
            line |= {"ratio_by_processor_seconds": float(np.median(busy_all / busy_one))}
            line |= {"load_average": round(os.getloadavg()[0], 2)}
            lines.append(line)
            print({k: v for k, v in line.items() if not isinstance(v, list)}, flush=True)
        facts = {"device": device_name(torch.device("cpu")), "threads_of_each": 1, "cores": os.cpu_count()}
        facts |= {"code": code_version(), "at": now(), "torch": torch.__version__, "lines": lines}
        start = "OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node"
        facts["command"] = f"{start} {size} benchmarks/distributed.py --rounds {asked.rounds}"
        if asked.out is not None and is_first():
            write_json(asked.out, facts)


if __name__ == "__main__":
    main()
