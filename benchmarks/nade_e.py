"""What keeps NADE-E, trained by the paper's gradient, behind the paper's NADE-E?

    python benchmarks/nade_e.py --out FILE.json [--data connect4] [--updates 20000] [--rates 0.016 0.004]

The settings of the row "by the paper's gradient and grid" (momentum 0.9, the mask as an input) are changed
one at a time, over fewer updates than its 100,000. Each score is the exact log-likelihood of the ensemble of
16 orderings, of all validation rows and of 1,000 training rows. Test rows are not used.

Given again, it goes on after the lines that the file has.
"""

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import torch

import pynade
from pynade.atomic import write_json
from pynade.device import torch_device
from pynade.likelihood import Estimate
from pynade.ordering import random_observed
from pynade.runs.provenance import provenance
from pynade.tables.registry import load

SGD = {"optimizer": "sgd", "momentum": 0.9}
CHANGES = {  # parameters of the estimator, options of its training
    "as in the row": ({}, SGD),
    "without the mask": ({"input_observed": False}, SGD),
    "without momentum": ({}, SGD | {"momentum": 0.0}),
    "gradient clipped": ({}, SGD | {"clip": 5.0}),
    "Adam": ({}, {"optimizer": "adam"}),
    "Adam, without the mask": ({"input_observed": False}, {"optimizer": "adam"}),
}
ADAM_RATE = 0.001
ORDERINGS = 16
EPOCHS = 20
TRAIN_ROWS = 1000  # that are scored


def idle_units(model, rows):
    """The share of hidden units that are zero for all of these rows, each with a random prefix."""
    net, x = model.model_.net, torch.as_tensor(rows, dtype=torch.float32)
    observed = random_observed(*x.shape, torch.Generator().manual_seed(0))
    inputs = torch.stack((x * observed, observed.float()), -1)[..., : net.weight.shape[1]]
    active = inputs.flatten(1) @ net.weight.float().flatten(0, 1) + net.hidden_bias[0].float() > 0
    return float((~active.any(0)).float().mean())


def one_line(change, rate, data, some, options):
    """Train with one change and one learning rate; a line for the record."""
    parameters, training = CHANGES[change]
    model = pynade.EoNADE(
        hidden=options.hidden,
        n_orderings=ORDERINGS,
        epochs=EPOCHS,
        learning_rate=rate,
        patience=None,
        training=training | {"schedule": "linear", "updates_per_epoch": max(1, options.updates // EPOCHS)},
        device=options.device,
        random_state=options.seed,
        **parameters,
    )
    began = time.perf_counter()
    model.fit(data.train, X_valid=data.valid)
    seconds = time.perf_counter() - began
    scores = {part: model.score_samples(rows) for part, rows in (("valid", data.valid), ("train", some))}
    return {
        "change": change,
        "learning_rate": rate,
        **{part: Estimate.from_rows(rows).to_json() for part, rows in scores.items()},
        "best_epoch": model.history_.best_epoch,
        "epochs": EPOCHS,
        "curve": [round(line["valid"], 3) for line in model.history_.epochs],
        "idle_units": idle_units(model, data.valid),
        "seconds": round(seconds, 1),
    }


def finished(path, settings, facts):
    """The lines of a record, by change and learning rate, if the same settings, code and device made it.

    `facts` takes over when that was started.
    """
    if path is None or not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    for record in (wanted := json.loads(json.dumps({"settings": settings} | facts)), found):
        del record["settings"]["changes"], record["settings"]["rates"]
    if any(found.get(name) != value for name, value in wanted.items() if name != "started"):
        return {}
    facts["started"] = found["started"]
    return {(line["change"], line["learning_rate"]): line for line in found["lines"]}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="connect4")
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.016, 0.004], help="of gradient descent")
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=list(CHANGES), metavar="CHANGE")
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    data = load(options.data)
    facts = provenance(data, options.seed, torch_device(options.device))
    rng = np.random.default_rng(options.seed)
    some = data.train[rng.permutation(len(data.train))[:TRAIN_ROWS]]
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "seed")}
    settings |= {"orderings": ORDERINGS, "batch_size": 100, "options": CHANGES}
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "benchmarks/nade_e.py", *words])
    rates = {
        change: [ADAM_RATE] if change.startswith("Adam") else options.rates for change in options.changes
    }
    asked = [(change, rate) for change in rates for rate in rates[change]]
    lines = finished(options.out, settings, facts)
    for change, rate in asked:
        if (change, rate) not in lines:
            lines[change, rate] = one_line(change, rate, data, some, options)
            print({k: v for k, v in lines[change, rate].items() if k != "curve"}, flush=True)
        if options.out:
            found = [lines[key] for key in asked if key in lines]
            write_json(options.out, {"settings": settings, "lines": found, "command": command} | facts)


if __name__ == "__main__":
    main()
