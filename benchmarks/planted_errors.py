"""How well planted errors are found, and can be: `python benchmarks/planted_errors.py --out errors.json`.

Errors are planted as in `tables.py`, in the test rows of its splits, and in rows drawn from the fitted model:
of these the model knows the true distribution, so that what it misses there no model finds. For each measure
of `surprise` the AUC by which wrong cells have larger values than the cells of rows without errors: of all
errors, of values that changed places, of shifted decimal points. `$PYNADE_DATA` is the data folder.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

import pynade
from pynade.atomic import write_json
from pynade.runs.provenance import code_version, device_name
from pynade.tables.frames import native_frame
from pynade.tables.schema import Schema
from tables import DROPPED, described, planted, table

MEASURES = ("log_odds", "p_value", "log_p")
PLANTED = 4  # times that errors are planted anew


def auc(scores: np.ndarray, marks: np.ndarray, kinds: tuple[int, ...]) -> float | None:
    """AUC of cells with marks of these kinds against those of rows without any."""
    wrong = np.isin(marks, kinds) & np.isfinite(scores)
    right = (marks == 0).all(1)[:, None] & np.isfinite(scores)
    if not wrong.any():
        return None
    truth = np.repeat([1, 0], [wrong.sum(), right.sum()])
    return round(float(roc_auc_score(truth, np.concatenate([scores[wrong], scores[right]]))), 4)


def measured(model: pynade.TabularNADE, rows: pd.DataFrame, columns: list[dict]) -> dict:
    """AUC of every measure for errors planted in these rows, several times."""
    marks, scores = [], {measure: [] for measure in MEASURES}
    for seed in range(PLANTED):
        marked, wrong = planted(rows, columns, np.random.default_rng(seed))
        marks.append(marked)
        for measure, found in scores.items():
            found.append(native_frame(model.surprise(wrong, measure=measure))[0].to_numpy().astype(float))
    every = np.concatenate(marks)
    kinds = {"all": (1, 2), "moved": (1,), "shifted": (2,)}
    found = {
        measure: {kind: auc(np.concatenate(cells), every, some) for kind, some in kinds.items()}
        for measure, cells in scores.items()
    }
    return found | {"errors": {"moved": int((every == 1).sum()), "shifted": int((every == 2).sum())}}


def known_ranks(data: Path) -> dict:
    """Places of the two wrong heights of abalone among all cells, by models of the other half and of all."""
    frame, ranks = table("abalone", data), {}
    model = pynade.TabularNADE(random_state=0).fit(frame)
    for name, folds in (("each half by a model of the other", 2), ("by a model of all rows", None)):
        cells = model.surprise(frame, top=1000, folds=folds)
        known = cells[(cells["column"] == "height") & (cells["value"].isin(["1.13", "0.515"]))]
        ranks[name] = {row["value"]: 1 + int(place) for place, row in known.iterrows()}
    return ranks


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="*", default=["red_wine", "white_wine", "abalone"])
    parser.add_argument("--seed", type=int, default=1, help="of the split")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PYNADE_DATA", "data")))
    parser.add_argument("--out", type=Path, help="write the numbers here (.json)")
    asked = parser.parse_args()
    facts = {"code": code_version(), "device": device_name(torch.device("cpu")), "seed": asked.seed}
    facts |= {"command": "python benchmarks/planted_errors.py --out errors.json", "tables": {}}
    for name in asked.tables:
        frame = table(name, asked.data).drop(columns=DROPPED.get(name, []))
        columns = [described(column, frame[column.name]) for column in Schema.inferred(frame).columns]
        frame = frame[[column["name"] for column in columns]].reset_index(drop=True)
        order, cut = np.random.default_rng(asked.seed).permutation(len(frame)), int(0.8 * len(frame))
        train, test = frame.iloc[order[:cut]], frame.iloc[order[cut:]].reset_index(drop=True)
        began = time.perf_counter()
        model = pynade.TabularNADE(random_state=0).fit(train)
        found = {"rows": [len(train), len(test)], "fit_seconds": round(time.perf_counter() - began, 1)}
        found["test rows"] = measured(model, test, columns)
        drawn = model.sample(max(len(test), 500), random_state=0)[list(test.columns)]
        found["rows drawn from the model"] = measured(model, drawn, columns)
        facts["tables"][name] = found
        print(name, found, flush=True)
    if "abalone" in asked.tables:
        facts["abalone's wrong heights, place among all cells"] = known_ranks(asked.data)
    if asked.out is not None:
        write_json(asked.out, facts)


if __name__ == "__main__":
    main()
