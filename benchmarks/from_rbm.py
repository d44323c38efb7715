"""Does it help NADE to start from a trained RBM?

    python benchmarks/from_rbm.py [--data mushrooms] [--out FILE.json]

For each seed an RBM is trained, and its learning rate chosen on the validation rows. NADE then starts from it
(`NADE.from_rbm`) and from random weights, with the same units, ordering and learning rates (one is chosen on
the validation rows), which fall to zero over the same number of epochs. The training of the RBM is not
counted in the epochs. The chosen model of each seed and start is scored on the test rows once.
"""

import argparse
import math
import statistics
import time
import warnings
from pathlib import Path

import numpy as np

import pynade
from pynade.atomic import write_json
from pynade.device import torch_device
from pynade.likelihood import Estimate
from pynade.runs.provenance import provenance
from pynade.tables.registry import load

STARTS = ("RBM", "random")
RBM_RATES = (0.2, 0.1, 0.05)
RATES = (0.03, 0.01, 0.003)


def trained_rbm(data, options, seed):
    rbm = pynade.RBM(
        hidden=options.hidden,
        learning_rate=RBM_RATES,
        epochs=options.rbm_epochs,
        batch_size=20,
        device=options.device,
        random_state=seed,
    )
    return rbm.fit(data.train, X_valid=data.valid)


def chosen_nade(start, rbm, data, options, seed):
    """The NADE with the best validation score, its curve, and the seconds of all learning rates."""
    order = np.random.default_rng(seed).permutation(data.train.shape[1]).tolist()
    shared = {
        "ordering": order,
        "batch_size": 100,
        "training": {"schedule": "linear"},
        "epochs": options.epochs,
        "patience": None,
        "device": options.device,
        "random_state": seed,
    }
    best, began = None, time.perf_counter()
    for rate in RATES:
        if start == "RBM":
            model = pynade.NADE.from_rbm(rbm, learning_rate=rate, **shared)
        else:
            model = pynade.NADE(hidden=options.hidden, learning_rate=rate, **shared)
        model.fit(data.train, X_valid=data.valid)
        if best is None or model.history_.best_valid > best.history_.best_valid:
            best = model
    curve = [line["valid"] for line in best.history_.epochs]
    return best, curve, time.perf_counter() - began


def one_seed(data, options, seed):
    """A line for the record, and the test log-probabilities of both starts (2, N)."""
    began = time.perf_counter()
    rbm = trained_rbm(data, options, seed)
    line = {"seed": seed, "rbm": {**rbm.chosen_, "seconds": time.perf_counter() - began}}
    models = {start: chosen_nade(start, rbm, data, options, seed) for start in STARTS}
    common = min(max(curve) for _, curve, _ in models.values())  # a score that both reach
    for start, (model, curve, seconds) in models.items():
        line[start] = {
            "learning_rate": model.learning_rate,
            "valid": max(curve),
            "best_epoch": model.history_.best_epoch,
            "epochs": len(curve),
            "epochs_to_common_score": 1 + next(e for e, score in enumerate(curve) if score >= common),
            "seconds": seconds,
        }
    tests = np.stack([model.score_samples(data.test) for model, _, _ in models.values()])
    return line, tests


def conclusion(data, options, lines, summary):
    """The result as a sentence."""
    difference, seeds = summary["difference"], len(lines)
    error = math.hypot(difference["stderr"], difference["stderr_over_seeds"])
    gain = difference["mean"]
    sides = ("helps" if gain > 0 else "does harm", "makes no difference that shows")
    effect = sides[abs(gain) < 2 * error]
    epochs = [statistics.median(line[start]["epochs_to_common_score"] for line in lines) for start in STARTS]
    return (
        f"On {data.name} ({options.hidden} units, {seeds} seeds) it {effect}: "
        f"{summary['RBM']['mean']:.2f} ± {summary['RBM']['stderr']:.2f} nats on the test rows against "
        f"{summary['random']['mean']:.2f} ± {summary['random']['stderr']:.2f} from random weights, a "
        f"difference of {gain:.3f} ± {error:.3f}; the score that both reach on the validation rows comes "
        f"after {epochs[0]:g} epochs instead of {epochs[1]:g}."
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mushrooms")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=150, help="of NADE")
    parser.add_argument("--rbm-epochs", type=int, default=50)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error("a standard error over seeds needs at least 2 of them")
    warnings.filterwarnings("ignore", "the partition function of so large an RBM is estimated")
    data = load(options.data)
    facts = provenance(data, 0, torch_device(options.device))
    lines, tests = [], []
    for seed in range(options.seeds):
        line, test = one_seed(data, options, seed)
        lines.append(line)
        tests.append(test)
        print(
            f"seed {seed}: "
            + ", ".join(f"{start} {line[start]['valid']:.3f} on validation" for start in STARTS)
        )
    tests = np.stack(tests)  # (seeds, starts, rows)
    summary = {start: Estimate.from_rows(tests[:, k].mean(0)).to_json() for k, start in enumerate(STARTS)}
    gains = tests[:, 0] - tests[:, 1]
    summary["difference"] = Estimate.from_rows(gains.mean(0)).to_json() | {
        "stderr_over_seeds": float(gains.mean(1).std(ddof=1) / math.sqrt(len(gains)))
    }
    sentence = conclusion(data, options, lines, summary)
    print(sentence)
    if options.out:
        settings = vars(options) | {"rbm_learning_rates": RBM_RATES, "learning_rates": RATES}
        del settings["out"], facts["seed"]  # there are several, in the lines
        record = {"conclusion": sentence, "test": summary, "settings": settings, "lines": lines}
        write_json(options.out, record | facts)


if __name__ == "__main__":
    main()
