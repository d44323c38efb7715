"""A grid trained as one population against one member after the other.

    python benchmarks/population.py [--device cuda] [--out FILE.json]

RNADE with mixtures of Gaussians, 50 hidden units, 11 real variables, minibatches of 100, as in the paper's
UCI tables: a grid of learning rates over ten folds. Both are measured in one run: seconds per member and
epoch (ten updates, a validation).
"""

import argparse
import json
import time

import numpy as np
import torch

from pynade.estimators import RNADE
from pynade.runs.provenance import code_version, device_name, now
from pynade.training import Member, fit, fit_population

FOLDS = 10


def members(n, components, device, epochs, folds):
    """A grid of learning rates over the folds; members of a fold share its rows."""
    made = []
    for k in range(n):
        train, valid = folds[k % len(folds)]
        estimator = RNADE(
            n_components=components,
            hidden=50,
            standardise=False,
            learning_rate=0.01 / (1 + k // len(folds)),
            batch_size=100,
            epochs=epochs,
            patience=None,
            random_state=0,
            training={"optimizer": "sgd", "schedule": "linear", "updates_per_epoch": 10},
        )
        model = estimator.build(train, 0).to(device)
        made.append(Member(model, train, valid, estimator.options(), 0))
    return made


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--members", type=int)
    parser.add_argument("--out")
    options = parser.parse_args()
    device = torch.device(options.device)
    many = options.members or (240 if device.type == "cuda" else 48)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1440, 11)).cumsum(1)
    x = (x - x.mean(0)) / x.std(0)
    tenths = np.array_split(np.arange(len(x)), FOLDS)
    folds = [(np.delete(x, part, axis=0), x[part]) for part in tenths]
    lines = []
    epochs = 200 if device.type == "cuda" else 20  # the capture of the first update takes time there
    for components in (2, 5, 10, 20):
        fit_population(members(2, components, device, 2, folds))  # warm-up
        alone = members(3, components, device, epochs, folds)
        begin = time.perf_counter()
        for member in alone:
            fit(member.model, member.train, member.valid, member.options)
        single = (time.perf_counter() - begin) / (len(alone) * epochs)
        group = members(many, components, device, epochs, folds)
        begin = time.perf_counter()
        fit_population(group)
        together = (time.perf_counter() - begin) / (many * epochs)
        ratio = single / together
        lines.append(
            {"K": components, "members": many, "alone": single, "together": together, "ratio": ratio}
        )
        print(
            f"K = {components}: {1e3 * single:.2f} ms alone, {1e3 * together:.3f} ms of {many}: {ratio:.1f}x"
        )
    if options.out:
        facts = {"device": device_name(device), "threads": torch.get_num_threads(), "code": code_version()}
        with open(options.out, "w", encoding="utf-8") as f:
            json.dump(facts | {"at": now(), "torch": torch.__version__, "lines": lines}, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
