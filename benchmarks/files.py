"""What checkpoints, an interruption and digests cost: `python benchmarks/files.py --out files.json`.

Checkpoints: seconds, and seconds of processor time, of a fit that go into writing them, as shares.
Interruption: seconds from the call that resumes a run to its next update (the process has the library
imported). Digest: fewest seconds, and fewest seconds of processor time, of several `pynade.load`
with and without verification, of the digest alone, and of a new process that loads the model. `$PYNADE_DATA`
holds mushrooms and adult.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import pynade
from pynade import digest
from pynade.atomic import write_json
from pynade.digest import read_json
from pynade.estimators import base
from pynade.runs.provenance import code_version, device_name, now
from pynade.runs.run import resume_run, start_run
from pynade.training import checkpoint, gradient

FITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "NADE of 500 units on mushrooms": ("nade", {"hidden": 500, "epochs": 10}, "mushrooms"),
    "DeepNADE of 2 x 2000 units on mushrooms": (
        "deepnade",
        {"hidden": (2000, 2000), "epochs": 6},
        "mushrooms",
    ),
    "TabularNADE on adult": ("tabularnade", {"epochs": 10}, "tables/adult.csv.gz"),
}
#: Put before the code of a process, the second so that it verifies nothing: both import the same first.
VERIFIED = "import contextlib, pynade.estimators.base as b"
UNVERIFIED = f"{VERIFIED}; b.verify_digest = contextlib.nullcontext"


class Restored(Exception):
    """Ends a run that goes on, before its first update."""


def fit_costs(model: str, parameters: dict[str, Any], data: str, folder: Path) -> dict[str, Any]:
    """Costs of checkpoints and of one interruption."""
    spent: list[tuple[float, float]] = []
    save, restore = checkpoint.Checkpoint.save, gradient._Gradient.restore
    where = Path(os.environ["PYNADE_DATA"])
    source = str(where / data) if "/" in data else data

    def timed(self: Any, *args: Any) -> None:
        used, began = _processor(), time.perf_counter()
        save(self, *args)
        spent.append((time.perf_counter() - began, _processor() - used))

    def interrupt(now: Any) -> None:
        if now.epoch_done and now.epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def restored(self: Any, *args: Any) -> None:
        restore(self, *args)
        raise Restored

    used, began = _processor(), time.perf_counter()
    with patch.object(checkpoint.Checkpoint, "save", timed):
        start_run(folder / "whole", model, parameters, source, data_dir=where)
    whole = time.perf_counter() - began, _processor() - used
    with suppress(KeyboardInterrupt):
        start_run(folder / "two", model, parameters, source, data_dir=where, callbacks=[interrupt])
    began = time.perf_counter()
    with patch.object(gradient._Gradient, "restore", restored), suppress(Restored):
        resume_run(folder / "two", data_dir=where)
    resume = time.perf_counter() - began
    shares = [sum(some) / all_ for some, all_ in zip(zip(*spent, strict=True), whole, strict=True)]
    found: dict[str, Any] = {"fit_seconds": whole[0], "processor_in_fit": whole[1], "checkpoints": spent}
    found |= {"share": shares[0], "share_of_processor": shares[1]}
    made = read_json(folder / "whole/provenance.json", data=dict, seed=int)
    spec = {"model": model, "parameters": parameters, "data": made["data"]["name"]}
    facts = {"spec": spec, "seed": made["seed"], "data_checksum": made["data"]["checksum"]}
    return facts | found | {"seconds_to_resume": resume}


def _processor() -> float:
    """Seconds of processor time that this process and those that it started have taken."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def digest_costs(hidden: int, folder: Path) -> dict[str, float]:
    """Costs of the digest of a model with two layers of so many units."""
    rows = np.random.default_rng(0).integers(0, 2, (64, 784))
    path = folder / "model.safetensors"
    pynade.DeepNADE(hidden=(hidden, hidden), epochs=1, random_state=0).fit(rows).save(path)
    seconds: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, what: Callable[[], object]) -> None:
        used, began = _processor(), time.perf_counter()
        what()
        seconds[name].append(time.perf_counter() - began)
        seconds[f"processor_in_{name}"].append(_processor() - used)

    for _ in range(41):
        timed("load", lambda: pynade.load(path))
        with patch.object(base, "verify_digest", nullcontext):
            timed("load_unverified", lambda: pynade.load(path))
        timed("digest", lambda: digest.read_header(path))
    once = f"import pynade; pynade.load({str(path)!r})"
    codes = {"process": f"{VERIFIED}; {once}", "process_unverified": f"{UNVERIFIED}; {once}"}
    for name, code in [*codes.items()] * 7:
        timed(name, partial(subprocess.run, [sys.executable, "-c", code], check=True))
    found = {f"seconds_of_{name}": min(several) for name, several in seconds.items()}
    return {"bytes": path.stat().st_size} | found


def main() -> None:
    """Measure, print, write."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `pynade` does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the numbers here (.json)")
    asked = parser.parse_args()
    facts: dict[str, Any] = {"code": code_version(), "torch": torch.__version__, "fits": {}, "digests": []}
    facts |= {"device": device_name(torch.device("cpu")), "threads": torch.get_num_threads()}
    facts |= {"cores": os.cpu_count(), "at": now(), "load_average": [os.getloadavg()[1]]}
    facts["command"] = "python benchmarks/files.py --out files.json"
    with tempfile.TemporaryDirectory() as folder:
        for name, what in FITS.items():
            facts["fits"][name] = fit_costs(*what, Path(folder) / what[0])
            print(name, facts["fits"][name], flush=True)
        for hidden in (1000, 3000):
            facts["digests"].append(digest_costs(hidden, Path(folder)))
            print(facts["digests"][-1], flush=True)
    facts["load_average"].append(os.getloadavg()[1])  # of five minutes: before and at the end
    if asked.out is not None:
        write_json(asked.out, facts)


if __name__ == "__main__":
    main()
