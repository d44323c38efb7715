"""`pynade bench baselines`: the classical models beside scikit-learn and plain NumPy.

Each of three problems is first solved once by every contender (as a warm-up, and to compare the results),
then timed in turn. The matrix products of NumPy and scikit-learn have as many threads as torch.

- An iteration of EM for a mixture of Gaussians: the difference between fits of n + 1 iterations and of one,
  over n, from the same start with the same floor. The work that a fit does only once cancels.
- The exact partition function of an RBM. NumPy loops over blocks of hidden states in two versions: with
  `logaddexp(0, a)`, and with `log(1 + exp(a))`, which overflows for large a but is the fastest in NumPy. It
  is timed on the first of the states, and its time is scaled to all, since the work is the same for each.
- A Chow–Liu tree, from rows of bytes to tables. The estimator's whole fit is timed too: it checks its input,
  holds out a tenth of the rows, chooses the smoothing on it and scores the training rows.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.special import logsumexp, xlogy

from pynade import estimators
from pynade.classical import RBM, ChowLiuTree, GaussianMixture, chow_liu, em_gaussian
from pynade.runs.provenance import LIBRARIES, code_version, device_name, now
from pynade.tables import registry
from pynade_benchmarks.nade import Timing, clock

Softplus = Callable[[np.ndarray], np.ndarray]

CPU = torch.device("cpu")
OURS, OURS_ON_CPU, WHOLE_FIT = "ours", "ours on the CPU", "ours, whole fit"
FLOOR = 1e-6  # added to the diagonals of all covariances, scikit-learn's default too
GPU_ITERATIONS = 20  # more of them, since they are short on a GPU and the difference would be noisy
ENOUGH = 30.0  # seconds after which a contender that is not ours is not timed again
NUMPY_STATES = 2**10  # hidden states at a time, so that blocks stay in the cache


@dataclass(frozen=True)
class Sizes:
    """How large the three problems are."""

    rows: int = 100_000  # of the mixture of Gaussians
    columns: int = 63
    components: int = 100
    iterations: int = 2  # by which the two fits differ
    visible: int = 180  # as the data set dna
    hidden: int = 23
    states: int = 2**18  # hidden states on which NumPy is timed
    tree_rows: int = 50_000
    tree_columns: int = 784
    real: str | None = "binarized_mnist"  # a tree of real rows too, if they are on this machine


FULL = Sizes()
QUICK = Sizes(1000, 6, 4, 20, 12, 10, 2**8, 300, 20, None)


@dataclass(frozen=True)
class Problem:
    """A problem, a function that times each contender once, and the difference between the results."""

    name: str
    contenders: dict[str, Callable[[], float]]
    difference: float
    notes: str = ""


def mixture_problem(sizes: Sizes, device: torch.device) -> Problem:
    """One iteration of EM; results differ by their mean training log-likelihoods, in nats."""
    N, D, K = sizes.rows, sizes.columns, sizes.components
    g = torch.Generator().manual_seed(0)
    spread = torch.randn(K, D, D, generator=g, dtype=torch.float64) / D**0.5
    eye, even = torch.eye(D, dtype=torch.float64), torch.full((K,), 1 / K, dtype=torch.float64)
    centres = torch.randn(K, D, generator=g, dtype=torch.float64)
    x = GaussianMixture.from_moments(even, centres, spread @ spread.mT + 0.1 * eye).sample(N, g).double()
    means, covariances = x[:K], eye.repeat(K, 1, 1)
    rows = x.numpy()

    def ours(where: torch.device, iterations: int) -> list[float]:
        start = GaussianMixture.from_moments(even, means, covariances)
        fitted = em_gaussian(
            x.to(where),
            K,
            epochs=iterations + 1,
            tol=0.0,
            covariance_floor=FLOOR,
            init=start,
            standardise=False,
        )
        return [line["train"] for line in fitted[1].epochs]

    def scikit_learn(iterations: int) -> float:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture as Theirs

        model = Theirs(
            K,
            max_iter=iterations,
            tol=0.0,
            reg_covar=FLOOR,
            weights_init=even.numpy(),
            means_init=means.numpy(),
            precisions_init=covariances.numpy(),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # few iterations are intended
            return float(model.fit(rows).lower_bound_)

    def iteration(run: Callable[[int], Any], n: int, where: torch.device = CPU) -> float:
        one = clock(partial(run, 1), where)
        return (clock(partial(run, 1 + n), where) - one) / n

    n = sizes.iterations if device.type == "cpu" else GPU_ITERATIONS
    found = ours(device, n)
    contenders: dict[str, Callable[[], float]] = {OURS: partial(iteration, partial(ours, device), n, device)}
    if device.type != "cpu":
        ours(CPU, 1)
        contenders[OURS_ON_CPU] = partial(iteration, partial(ours, CPU), sizes.iterations)
    contenders["scikit-learn"] = partial(iteration, scikit_learn, sizes.iterations)
    difference = abs(found[sizes.iterations - 1] - scikit_learn(sizes.iterations))
    return Problem(f"MoG: iteration of EM, K={K}, D={D}, {N:,} rows", contenders, difference)


def partition_problem(sizes: Sizes, device: torch.device) -> Problem:
    """log Z of an RBM; results are compared on the hidden states for which NumPy is timed."""
    D, H = sizes.visible, sizes.hidden
    g = torch.Generator().manual_seed(0)
    machine = RBM(D, H, scale=0.3, generator=g)
    machine.b.data.normal_(0.0, 1.0, generator=g)
    W, b, c = (p.detach().double().numpy() for p in (machine.W, machine.b, machine.c))
    there = RBM(D, H).to(device)
    there.load_state_dict(machine.state_dict())
    part = RBM(D, sizes.states.bit_length() - 1).to(device)  # the first states set only the first units
    part.load_state_dict({"W": machine.W[: part.n_hidden], "b": machine.b, "c": machine.c[: part.n_hidden]})
    whole = 2**H / sizes.states

    def numpy_loop(softplus: Softplus) -> float:
        return numpy_log_partition(W, b, c, sizes.states, softplus)

    there.log_partition()
    contenders: dict[str, Callable[[], float]] = {OURS: lambda: clock(there.log_partition, device)}
    if device.type != "cpu":
        machine.log_partition()
        contenders[OURS_ON_CPU] = lambda: clock(machine.log_partition, CPU)
    contenders["NumPy loop"] = lambda: whole * clock(partial(numpy_loop, safe), CPU)
    contenders["NumPy loop, log(1 + exp)"] = lambda: whole * clock(partial(numpy_loop, unsafe), CPU)
    difference = max(abs(part.log_partition() - numpy_loop(way)) for way in (safe, unsafe))
    notes = f"NumPy was timed on {sizes.states:,} of the {2**H:,} hidden states and scaled by {whole:g}"
    return Problem(f"RBM: exact log Z, H={H}, D={D}", contenders, difference, notes)


def tree_problem(x: np.ndarray, name: str, device: torch.device) -> Problem:
    """A Chow–Liu tree of rows x; results differ by the summed mutual information of the edges."""
    rows = torch.as_tensor(x)

    def ours(where: torch.device) -> ChowLiuTree:
        return chow_liu(rows.to(where))

    def whole_fit() -> None:
        estimators.ChowLiu(random_state=0, device=str(device)).fit(x)

    child, parent = np.array(ours(device).edges()).T
    information, theirs = numpy_chow_liu(x)
    difference = abs(information[child, parent].sum() - information[theirs].sum())
    whole_fit()
    contenders: dict[str, Callable[[], float]] = {
        OURS: lambda: clock(partial(ours, device), device),
        WHOLE_FIT: lambda: clock(whole_fit, device),
    }
    if device.type != "cpu":
        ours(CPU)
        contenders[OURS_ON_CPU] = lambda: clock(partial(ours, CPU), CPU)
    contenders["NumPy and SciPy"] = lambda: clock(partial(numpy_chow_liu, x), CPU)
    N, D = x.shape
    return Problem(f"Chow-Liu: {name}, D={D}, {N:,} rows", contenders, float(difference))


def random_tree_rows(n_rows: int, n_columns: int) -> np.ndarray:
    """Rows (N, D) of bytes from a random tree in which neighbours mostly agree."""
    g = torch.Generator().manual_seed(0)
    parent = [-1, *(int(torch.randint(d, (1,), generator=g)) for d in range(1, n_columns))]
    tree = ChowLiuTree(n_columns, parent)
    with torch.no_grad():
        tree.logits.copy_(torch.randn(n_columns, 2, generator=g) + torch.tensor([-1.5, 1.5]))
    return tree.sample(n_rows, g).to(torch.uint8).numpy()


def safe(a: np.ndarray) -> np.ndarray:
    """log(1 + e^a) of any a."""
    return np.logaddexp(0, a)


def unsafe(a: np.ndarray) -> np.ndarray:
    """log(1 + e^a) of a below 700."""
    return np.log(1 + np.exp(a))


def numpy_log_partition(
    W: np.ndarray, b: np.ndarray, c: np.ndarray, states: int, softplus: Softplus = safe
) -> float:
    """Log of the sum over the first `states` hidden states, visible units summed out: the plain loop.

    Example:
        >>> W, b, c = np.zeros((3, 4)), np.zeros(4), np.zeros(3)
        >>> round(numpy_log_partition(W, b, c, 2**3), 6)  # 2⁷ states of energy zero: 7 log 2
        4.85203
    """
    units, sums = np.arange(len(c)), []
    for first in range(0, states, NUMPY_STATES):
        numbers = np.arange(first, min(states, first + NUMPY_STATES))
        h = (numbers[:, None] >> units & 1).astype(float)
        sums.append(logsumexp(h @ c + softplus(h @ W + b).sum(1)))
    return float(logsumexp(sums))


def numpy_chow_liu(x: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Mutual information (D, D) from the four tables of counts, and the ends of the best tree's edges.

    Example:
        >>> x = np.array([[0, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]])
        >>> information, edges = numpy_chow_liu(x)
        >>> round(float(information[0, 2]), 6), len(edges[0])
        (0.693147, 2)
    """
    values = [1 - x.astype(np.float32), x.astype(np.float32)]
    alone = [v.mean(0, dtype=np.float64) for v in values]
    information = np.zeros((x.shape[1], x.shape[1]))
    for v, p_v in zip(values, alone, strict=True):
        for w, p_w in zip(values, alone, strict=True):
            joint = (v.T @ w).astype(np.float64) / len(x)
            information += xlogy(joint, joint) - xlogy(joint, np.outer(p_v, p_w))
    return information, minimum_spanning_tree(-(information + 1)).nonzero()


def problems(sizes: Sizes, device: torch.device, data_dir: Path | None = None) -> Iterator[Problem]:
    """All problems, each made when it is needed."""
    yield mixture_problem(sizes, device)
    yield partition_problem(sizes, device)
    yield tree_problem(random_tree_rows(sizes.tree_rows, sizes.tree_columns), "rows of a tree", device)
    if sizes.real is not None and registry.entry(sizes.real).here(data_dir):
        yield tree_problem(registry.load(sizes.real, data_dir).train, sizes.real, device)


def measure(problem: Problem, repeats: int) -> dict[str, Any]:
    """Time the contenders in turn; those that are not ours need fewer repeats, and slow ones fewer still."""
    timings = {name: Timing(problem.name, name) for name in problem.contenders}
    taken = dict.fromkeys(problem.contenders, 0.0)
    for round_ in range(repeats):
        for name, seconds in problem.contenders.items():
            if name == OURS or (round_ < max(3, repeats // 3) and taken[name] < ENOUGH):
                start = time.monotonic()
                timings[name].seconds.append(seconds())
                taken[name] += time.monotonic() - start
    ours = timings[OURS].median
    result = {
        "problem": problem.name,
        "contenders": {name: timing.entry() for name, timing in timings.items()},
        "ratios": {name: timing.median / ours for name, timing in timings.items() if name != OURS},
        "difference": problem.difference,
    }
    return result | ({"notes": problem.notes} if problem.notes else {})


def bench_baselines(
    device: torch.device,
    sizes: Sizes = FULL,
    repeats: int = 15,
    data_dir: Path | None = None,
    progress: Callable[[str], None] = lambda task: None,
) -> dict[str, Any]:
    """The whole benchmark as one JSON object.

    Args:
        device: where ours runs; on a GPU it is also timed on the CPU. The others run on the CPU.
        sizes: of the problems.
        repeats: of each measurement of ours.
        data_dir: folder of the real data.
        progress: called with the next measurement.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    threads = torch.get_num_threads()
    result: dict[str, Any] = {
        "device": device_name(device),
        "threads": threads,
        "code": code_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "at": now(),
        "problems": [],
    }
    progress("first runs")
    with threadpool_limits(threads, user_api="blas"):
        for problem in problems(sizes, device, data_dir):
            progress(problem.name)
            result["problems"].append(measure(problem, repeats))
    return result
