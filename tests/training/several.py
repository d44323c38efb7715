"""Fits of all estimators trained by gradient descent, by as many processes as run this module.

    torchrun --standalone --nproc-per-node 2 -m tests.training.several FOLDER

The first process writes the fitted models as FOLDER/NAME.safetensors and what training says as FOLDER/NAME.json.
"""

import json
import sys
import warnings
from pathlib import Path

import torch

from pynade.estimators.net import NetEstimator
from pynade.processes import is_first, together
from tests.estimators.cases import ESTIMATORS, gaps, rows

NETS = [name for name, (make, _) in ESTIMATORS.items() if isinstance(make(), NetEstimator)]
UPDATES = {"epochs": 5, "updates_per_epoch": 10, "batch_size": 33, "patience": 3, "device": "cpu"}


def fitted(name, **more):
    """The estimator after 50 updates: with dropout, missing cells and validation rows where it takes them."""
    make, kind = ESTIMATORS[name]
    estimator = make()
    if "dropout" in estimator.get_params():
        more |= {"dropout": 0.2}
    if name == "tabularnade":
        more |= {"members": 2}
    estimator.set_params(**UPDATES, **more)
    x = rows(kind)
    return estimator.fit(gaps(x) if estimator.takes_missing else x)


def course(estimator):
    """What was measured after each epoch, and why training ended."""
    history = estimator.history_
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in history.epochs]
    return {"epochs": lines, "stopped": history.stopped, "best_epoch": history.best_epoch}


def main(folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with together():
        for name in NETS:
            estimator = fitted(name)
            if is_first():
                estimator.save(folder / f"{name}.safetensors")
                (folder / f"{name}.json").write_text(json.dumps(course(estimator)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
