"""Faults of numbers and of use: numbers of every size, threads and processes at once, many cycles."""

from __future__ import annotations

import resource
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pynade
from tests.contracts.test_discrete_families import FAMILIES as DISCRETE
from tests.contracts.test_families import FAMILIES, etas, family_of
from tests.estimators.cases import ESTIMATORS, make, rows
from tests.torture.common import LONGEST, Plan, Row, fault_in_sentence, processes, row


def _extreme(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of every size that float64 has, zeros and the ends of its range among them."""
    found = rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(-1074, 1024, shape))
    ends = np.array([0.0, -0.0, 5e-324, 2.2e-308, 1.797e308, -1.797e308, 1.0, 1e100])
    return np.where(rng.random(shape) < 0.2, rng.choice(ends, shape), found)


def extremes_of_families(plan: Plan) -> Row:
    """log_prob of every family at numbers of every size: -inf only where the number would overflow."""
    good, bad = Counter[str](), []
    every = {name: (family_of(make), None) for name, make in FAMILIES.items()}
    every |= {name: (make().double(), levels) for name, (levels, make) in DISCRETE.items()}
    for k, rng in plan.trials(3000):
        name = [*every][k % len(every)]
        family, levels = every[name]
        eta = etas(family, 20, 3, seed=k, scale=float(rng.choice([0.1, 1.0, 10.0])))
        x = _extreme(rng, (20, 3)) if levels is None else rng.integers(0, levels, (20, 3)).astype(float)
        if name.startswith(("bernoulli", "categorical")):  # whose parameters are logits
            eta = torch.as_tensor(_extreme(rng, tuple(eta.shape))).clamp(-1e300, 1e300)
        x = torch.as_tensor(x)
        inside, found = _inside(family, x, family.sample(eta)), family.log_prob(x, eta)
        wrong = inside & (found.isnan() | (found == torch.inf))
        for at in (inside & (found == -torch.inf)).nonzero()[:1].tolist():
            wrong[*at] = not _overflows(family, x[*at], eta[*at], at[1])
        if wrong.any():
            at = wrong.nonzero()[0].tolist()
            bad.append(f"{name}: log_prob({x[*at]:.3g}) = {found[*at]}, eta {[f'{v:.3g}' for v in eta[*at]]}")
        else:
            good["log-probabilities" if inside.all() else "log-probabilities, cells outside refused"] += 1
    return row("numbers of every size: families", good, bad)


def _inside(family: Any, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Whether each number is one that the family takes in its column; `valid` are numbers that it takes."""
    inside = torch.ones_like(x, dtype=torch.bool)
    for at in np.ndindex(*x.shape):
        alone = valid[:1].clone()
        alone[0, at[1]] = x[at]
        try:
            family.check(alone)
        except ValueError:
            inside[at] = False
    return inside


def _overflows(family: Any, x: torch.Tensor, eta: torch.Tensor, column: int) -> bool:
    """Whether a log-density of -inf is one: between median and x, the last finite one is below -1e100."""
    steps, column = torch.arange(1100).double(), torch.tensor([column])
    median = family.quantile(torch.full((1,), 0.5).double(), eta[None], column)
    path = median + (x / 2 - median / 2) * 2.0 ** (1 - steps)
    found = family.log_prob(path, eta.expand(1100, -1), column.expand(1100))
    return bool(found[found.isfinite()][:1].lt(-1e100).any())


def extremes_of_estimators(plan: Plan) -> Row:
    """score_samples of every estimator, and fit, at numbers of every size: finite, or one sentence."""
    good, bad = Counter[str](), []
    fitted: dict[str, Any] = {}
    for k, rng in plan.trials(3000):
        name = [*ESTIMATORS][k % len(ESTIMATORS)]
        if name not in fitted:
            fitted[name] = make(name).fit(rows(ESTIMATORS[name][1], 60))
        X = rows(ESTIMATORS[name][1], 6, seed=k).astype(float)
        some = rng.random(X.shape) < rng.choice([0.05, 0.3])
        limit = rng.choice([1e100, 1e308])  # models of real numbers take those below 1e100
        X = np.where(some, np.clip(_extreme(rng, X.shape), -limit, limit), X)
        try:
            if k % 40 == 39 and ESTIMATORS[name][1] == "real":
                found = make(name, epochs=1).fit(np.vstack([X, rows("real", 40)])).score_samples(X[:1])
            else:
                found = fitted[name].score_samples(X)
            wrong = None if np.isfinite(found).all() else f"a score of {found[~np.isfinite(found)][0]}"
        except BaseException as error:
            wrong, found = fault_in_sentence(error), None
        if wrong:
            bad.append(f"{name}: {wrong}, trial {k}")
        else:
            good["refused in one sentence" if found is None else "finite scores"] += 1
    return row("numbers of every size: estimators", good, bad)


# ------------------------------------------------------------------------------ long and parallel use


def _answers(name: str, path: Path) -> bytes:
    """Scores, completions and draws of a saved model."""
    model, X = pynade.load(path), rows(ESTIMATORS[name][1], 40)
    parts = model.score_samples(X), model.sample(10, random_state=0), model.sample(10, random_state=1)
    return b"".join(np.asarray(part).tobytes() for part in parts)


def _send_answers(name: str, path: Path, answers: Any) -> None:
    answers.send(_answers(name, path))


def parallel(plan: Plan) -> list[Row]:
    """Threads of one process, and several processes, that use one model at once: equal answers."""
    good, expected = {how: Counter[str]() for how in ("threads", "processes")}, {}
    faults: dict[str, list[str]] = {how: [] for how in good}
    files = plan.new("models")
    for k, _ in plan.trials(100):
        name = [*ESTIMATORS][k % len(ESTIMATORS)]
        path = files / f"{name}.safetensors"
        if name not in expected:
            make(name).fit(rows(ESTIMATORS[name][1], 60)).save(path)
            expected[name] = _answers(name, path)
        with ThreadPoolExecutor(4) as pool:
            found = {"threads": [*pool.map(lambda _, n=name, p=path: _answers(n, p), range(4))]}
        if k % 4 == 0:
            pipes = [processes().Pipe() for _ in range(3)]
            several = [processes().Process(target=_send_answers, args=(name, path, c)) for _, c in pipes]
            for process in several:
                process.start()
            found["processes"] = [parent.recv() if parent.poll(LONGEST) else b"" for parent, _ in pipes]
            for process in several:
                process.join()
        for how, answers in found.items():
            if all(answer == expected[name] for answer in answers):
                good[how]["equal answers"] += 1
            else:
                faults[how].append(f"{name}: other answers")
    return [row(f"{how} that use one model at once", good[how], faults[how]) for how in good]


def soak(plan: Plan) -> Row:
    """Cycles of fit, score, save and load in one process: its memory must not grow."""
    good, bad, sizes, path = Counter[str](), [], [], plan.new("soak") / "m.safetensors"
    names, scores = ["nade", "deepnade", "rnade", "gaussianmixture", "chowliu"], {}
    for k, _ in plan.trials(1000):
        name = names[k % len(names)]
        X = rows(ESTIMATORS[name][1], 40)
        make(name, **({} if name == "chowliu" else {"epochs": 1})).fit(X).save(path)
        found = pynade.load(path).score_samples(X).tobytes()
        if scores.setdefault(name, found) == found:
            good["equal scores"] += 1
        else:
            bad.append(f"{name}: other scores in cycle {k}")
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20)
    begin, end = sizes[len(sizes) // 10], sizes[-1]
    grew = f"{begin:.0f} MiB of memory after a tenth of the cycles, {end:.0f} MiB at the end"
    if end > 1.1 * begin + 20:
        bad.append(f"memory grew: {grew}")
    found = row("cycles of fit, save, load and score", good, bad)
    return found._replace(what=f"{found.what}; {grew}")
