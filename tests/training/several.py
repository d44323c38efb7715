"""What several processes do together, as a program for torchrun; `torchrun` starts it.

torchrun --standalone --nproc-per-node 2 -m tests.training.several models FOLDER
torchrun --standalone --nproc-per-node 2 -m tests.training.several command RANK EPOCH SIGNAL fit DATA
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from pynade.cli.main import main
from pynade.estimators.net import NetEstimator
from pynade.families import Bernoulli
from pynade.models import Independent
from pynade.processes import gather_values, is_first, rank_and_size, together
from pynade.training import Gradient, checkpoint, fit
from pynade.training.gradient import _Gradient
from tests.estimators.cases import ESTIMATORS, gaps, rows

ROOT = Path(__file__).parents[2]
NETS = [name for name, (make, _) in ESTIMATORS.items() if isinstance(make(), NetEstimator)]
UPDATES = {"epochs": 5, "updates_per_epoch": 10, "batch_size": 33, "patience": 3, "device": "cpu"}


def torchrun(n, *words, module="tests.training.several"):
    """Run a module by n processes; the finished process of torchrun, with its output as text."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", "-m"]
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    options = {"capture_output": True, "text": True, "env": environment, "timeout": 500}
    return subprocess.run([*command, module, *map(str, words)], **options)


def fitted(name, **more):
    """The estimator after 50 updates: with dropout, missing cells and validation rows where it takes them."""
    make, kind = ESTIMATORS[name]
    estimator = make()
    if "dropout" in estimator.get_params():
        more |= {"dropout": 0.2}
    if name == "tabularnade":
        more |= {"members": 2}
    estimator.set_params(**UPDATES | more)
    x = rows(kind)
    return estimator.fit(gaps(x) if estimator.takes_missing else x)


def course(estimator):
    """What was measured after each epoch, and why training ended."""
    history = estimator.history_
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in history.epochs]
    return {"epochs": lines, "stopped": history.stopped, "best_epoch": history.best_epoch}


class OwnDraws(Independent):
    """Its loss draws numbers for the rows it is given, not for the whole minibatch."""

    def loss(self, x, generator=None):
        return super().loss(x) * torch.rand(len(x), generator=generator)


def models(folder):
    """Fit all estimators of nets; the first process writes FOLDER/NAME.safetensors and FOLDER/NAME.json."""
    with together():
        for name in NETS:
            estimator = fitted(name)
            if is_first():
                estimator.save(f"{folder}/{name}.safetensors")
                Path(f"{folder}/{name}.json").write_text(json.dumps(course(estimator)))
        facts = decisions()
        if is_first():
            Path(f"{folder}/facts.json").write_text(json.dumps(facts))


def decisions():
    """What every process has decided, or was refused."""
    calls = []

    def stop(now):
        scores = now.model.log_prob(torch.zeros(3, 5)), estimator.score(rows("binary"))  # (by this process)
        calls.append(now.epoch_done and len(scores) == 2)
        return now.epoch == 2

    estimator = fitted("fvsbn")
    estimator.fit(rows("binary"), callbacks=[stop])
    timed = fitted("tabularnade", epochs=None, time_limit=1.0, updates_per_epoch=None)
    random = fitted("made", random_state=None)
    refusals = []
    for refused in (
        lambda: fit(OwnDraws(Bernoulli(), 5), rows("binary"), options=Gradient(epochs=1, batch_size=33)),
        lambda: ESTIMATORS["chowliu"][0]().fit(rows("binary")),
    ):
        try:
            refused()
        except ValueError as error:
            refusals.append(str(error))
    facts = {"epochs": estimator.n_iter_, "timed": timed.history_.epochs[-1]["updates"], "seed": random.seed_}
    return gather_values(facts | {"refusals": refusals, "calls": len(calls)})


def command(rank, epoch, signal, *words):
    """`pynade WORDS`, with a checkpoint after every epoch; a process gets a signal in an epoch."""
    checkpoint.CHECKPOINT_SECONDS = -1.0
    advance = _Gradient.advance

    def signalled(learner, report):
        if (rank_and_size()[0], learner.epoch + 1) == (int(rank), int(epoch)):
            os.kill(os.getpid(), int(signal))
        return advance(learner, report)

    _Gradient.advance = signalled
    sys.argv = ["pynade", *words]
    main()


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    {"models": models, "command": command}[sys.argv[1]](*sys.argv[2:])
