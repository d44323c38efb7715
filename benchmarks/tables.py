"""TabularNADE beside other systems on the same rows of real tables.

    python benchmarks/tables.py install --environments ENVS
    python benchmarks/tables.py run --environments ENVS --work WORK [--tables ...] [--systems ...] [--seeds 0]
    python benchmarks/tables.py report --work WORK --out benchmarks/results/tables.json

Each system is installed from the package index in an environment of its own. Four fifths of the rows are for
training, the rest for the test. Of the test rows 10, 30 and 50 % of the cells are hidden at random, and in a
further pattern half the cells where the first column of numbers is above its median. What was measured is
kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pandas as pd

from pynade.tables.schema import Schema
from table_measures import report

HERE = Path(__file__).parent
TORCH = ["torch==2.13.0"]
ENVIRONMENTS = {
    "arfpy": ["arfpy", "numpy<2.4", "pandas<3", "pyarrow"],
    "zuko": [*TORCH, "zuko", "scikit-learn", "pandas", "pyarrow"],
    "mostlyai": [*TORCH, "mostlyai-engine", "pyarrow"],
    "pomegranate": [*TORCH, "pomegranate", "pandas", "pyarrow"],
    "miceforest": ["miceforest", "lightgbm<4.6", "pandas", "pyarrow"],
    "hyperimpute": [*TORCH, "hyperimpute", "scikit-learn<1.7", "pandas", "pyarrow"],
    "tabpfn": [*TORCH, "tabpfn", "tabpfn-extensions", "pandas", "pyarrow"],
    "sdv": [*TORCH, "sdv", "pandas<3", "pyarrow"],
}
OWN = (
    "pynade",
    "pynade-10s",
    "gaussian-mixture",
    "knn",
    "ridge",
    "forests",
    "marginals",
    "bootstrap",
)  # this environment
SYSTEMS = (*OWN, *(name for name in ENVIRONMENTS if name != "sdv"), "sdv-copula", "sdv-tvae")
HIDDEN = {"10": 0.1, "30": 0.3, "50": 0.5}
MOST_TEST = 5000  # test rows that are scored and filled


def bundled(name, data):
    """Tables of scikit-learn and of packages, or files in the data folder."""
    if name == "breast_cancer":
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer(as_frame=True).frame.drop(columns="target")
    if name == "penguins":
        import pynade

        return pynade.datasets.penguins("pandas")
    if name == "diamonds":
        return pd.read_csv(data / "tables" / "diamonds.csv")
    if name in ("red_wine", "white_wine"):
        return pd.read_csv(data / "uci" / f"winequality-{name[:-5]}.csv", sep=";")
    if name == "parkinsons":
        return pd.read_csv(data / "uci" / "parkinsons_updrs.data")
    return pd.read_csv(data / "tables" / f"{name}.csv.gz", na_values="?", dtype=TEXTS.get(name))


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


def prepare(name, seed, data, work):
    """Write the split of a table with its hidden cells; nothing if it is there."""
    folder = work / name / str(seed)
    if (folder / "facts.json").exists():
        return folder
    frame = bundled(name, data).drop(columns=DROPPED.get(name, []))
    if name == "beijing_pm25":
        frame["time"] = pd.to_datetime(frame["time"])
    schema = Schema.inferred(frame)
    columns = []
    for column in schema.columns:
        date = column.kind == "date"
        levels = [] if not column.n_levels else sorted(frame[column.name].dropna().astype(str).unique())
        columns.append(
            {
                "name": column.name,
                "levels": levels,
                "step": column.resolution / 3.6e9 if date else column.resolution,
                "origin": str(frame[column.name].min()) if date else "",
            }
        )
    frame = frame[[c["name"] for c in columns]]
    for c in columns:
        if c["levels"]:
            frame[c["name"]] = (
                frame[c["name"]].astype(object).where(frame[c["name"]].isna(), frame[c["name"]].astype(str))
            )
        elif not c["origin"]:
            frame[c["name"]] = frame[c["name"]].astype(float)
    rng = np.random.default_rng(seed)
    order, cut = rng.permutation(len(frame)), int(0.8 * len(frame))
    train = frame.iloc[order[:cut]].reset_index(drop=True)
    test = frame.iloc[order[cut:][:MOST_TEST]].reset_index(drop=True)
    masks = {gap: rng.random(test.shape) < share for gap, share in HIDDEN.items()}
    first = next(c["name"] for c in columns if not c["levels"])
    above = (test[first] > test[first].median()).to_numpy()[:, None]
    masks["pattern"] = above & (rng.random(test.shape) < 0.5) & (np.array(test.columns) != first)
    folder.mkdir(parents=True, exist_ok=True)
    train.to_parquet(folder / "train.parquet")
    test.to_parquet(folder / "test.parquet")
    for gap, mask in masks.items():
        test.mask(mask).to_parquet(folder / f"gaps-{gap}.parquet")
    digest = hashlib.sha256(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()).hexdigest()
    facts = {"table": name, "seed": seed, "columns": columns, "target": TARGETS[name], "checksum": digest}
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
    """Measure what is not measured yet, one system at a time."""
    for seed in arguments.seeds:
        for name in arguments.tables:
            folder = prepare(name, seed, arguments.data, arguments.work)
            for system in arguments.systems:
                out = folder / system
                if (out / "facts.json").exists():
                    continue
                python = interpreter(system, arguments.environments)
                command = [python, HERE / "table_systems.py", system, folder, *arguments.questions]
                print(name, seed, system, flush=True)
                with (folder / f"{system}.log").open("w") as log:
                    try:
                        subprocess.run(
                            [str(c) for c in command],
                            stdout=log,
                            stderr=log,
                            timeout=arguments.limit,
                            env={**os.environ, "OMP_NUM_THREADS": "2"},
                            check=True,
                        )
                    except (subprocess.SubprocessError, OSError) as error:
                        out.mkdir(exist_ok=True)
                        facts = {"stages": {}, "errors": {"run": str(error)[:200]}}
                        (out / "facts.json").write_text(json.dumps(facts))


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
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--questions", nargs="*", default=["scores", "fill", "draws", "sample"])
    parser.add_argument("--limit", type=float, default=3600, help="seconds of one system on one split")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "tables.json")
    arguments = parser.parse_args()
    if arguments.task == "install":
        install(arguments.environments)
    elif arguments.task == "run":
        run(arguments)
    else:
        report(arguments.work, arguments.out, arguments.tables)


if __name__ == "__main__":
    main()
