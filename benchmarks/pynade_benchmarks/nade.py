"""`pynade bench`: the speed of NADE, beside what one would otherwise write or install.

All is measured in one run on one machine, the contenders in turn, after a warm-up: ratios are more reliable
than absolute times on a busy machine. The ceiling is measured too: how many sigmoids per second plain torch
computes on data that fits the cache, how many multiply-adds per second a large matrix product does, and how
many bytes per second are copied. A kernel with a faster sigmoid than torch's may exceed this ceiling.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pynade.kernels import Uniforms, recurrence, sample
from pynade.nets import NADENet
from pynade.ordering import Ordering
from pynade.runs.provenance import code_version, device_name, now


@dataclass(frozen=True)
class Shape:
    """One problem: B rows, D variables, H hidden units, share of ones, K Gaussians per conditional.

    `ones=None` means dense real inputs; K = 0 means Bernoulli conditionals, K > 0 mixtures of K Gaussians.
    """

    B: int = 100
    D: int = 784
    H: int = 500
    ones: float | None = 0.13
    K: int = 0


@dataclass
class Timing:
    """Seconds of one contender at one task: every repeat, their median and spread."""

    task: str
    contender: str
    shape: Shape | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle repeat."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        low, high = np.quantile(self.seconds, [0.25, 0.75])
        return float((high - low) / 2 / self.median)

    def entry(self) -> dict[str, float]:
        """The entry of a record."""
        return {"median": self.median, "spread": self.spread, "repeats": len(self.seconds)}


class Problem:
    """Inputs and parameters of a shape on a device, and each contender's way of doing each task."""

    def __init__(self, shape: Shape, device: torch.device, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.shape, self.device = shape, device
        self.net = NADENet(shape.D, max(1, 3 * shape.K), shape.H, generator=g)
        if shape.K == 0 and shape.ones is not None:  # so that samples have that share of ones too
            half = self.net.output.sum(-1) / 2  # what half-active hidden units contribute
            self.net.set_output_bias(math.log(shape.ones / (1 - shape.ones)) - half)
        x = torch.rand(shape.B, shape.D, generator=g)
        x = torch.randn(x.shape, generator=g) if shape.ones is None else (x < shape.ones).float()
        self.net = self.net.to(device)
        self.x = x.to(device)
        self.target = (self.x > 0).float()  # what the Bernoulli outputs are scored on
        self.ordering = Ordering.random(shape.D, generator=g).to(device)
        self.params = list(self.net.parameters())

    # the contenders' forward passes: eta (B, D, P)

    def ours(self) -> Tensor:
        """The fused kernel, chosen for the device."""
        eta: Tensor = self.net(self.x.unsqueeze(-1), self.ordering)
        return eta

    def loop(self) -> Tensor:
        """The plain loop over D."""
        net, a, etas = self.net, self.net.hidden_bias.expand(self.shape.B, -1), []
        order = self.ordering.order.tolist()
        for i in order:
            h = torch.sigmoid(a)
            etas.append(h @ net.output[i].T + net.bias[i])
            a = a + self.x[:, i, None] * net.weight[i, 0]
        return torch.stack(etas, 1)[:, self.ordering.rank]

    def cumulative(self) -> Tensor:
        """The vectorised version: the whole (B, D, H) tensor by a cumulative sum."""
        net, order = self.net, self.ordering.order
        update = self.x[:, order, None] * net.weight[order, 0]
        a = net.hidden_bias + update.cumsum(1) - update
        eta = torch.einsum("bdh,dph->bdp", torch.sigmoid(a), net.output[order]) + net.bias[order]
        return eta[:, self.ordering.rank]

    # the tasks

    def log_prob(self, forward: Callable[[], Tensor]) -> Tensor:
        """log p of every row."""
        with torch.no_grad():
            return self._rows(forward())

    def train(self, forward: Callable[[], Tensor]) -> Any:
        """Loss and gradients of all parameters."""
        return torch.autograd.grad(-self._rows(forward()).mean(), self.params)

    def _rows(self, eta: Tensor) -> Tensor:
        if self.shape.K == 0:
            return functional.logsigmoid((2 * self.target - 1) * eta.squeeze(-1)).sum(-1)
        weight, mean, log_scale = eta.chunk(3, dim=-1)
        z = (self.x.unsqueeze(-1) - mean) * torch.exp(-log_scale)
        parts = functional.log_softmax(weight, -1) - 0.5 * z * z - log_scale - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(parts, -1).sum(-1)

    def sample_ours(self, n: int) -> Tensor:
        """The fused sampler."""
        net, size = self.net, (n, self.shape.D)
        # on CUDA the sampler is captured in a graph, where nothing can come from a seed on the host
        cuda = self.device.type == "cuda"
        uniforms = torch.rand(size, device=self.device) if cuda else Uniforms.draw(*size, None)
        weights = (net.weight, net.hidden_bias, net.output, net.bias, self.ordering.order)
        return sample(weights, uniforms, None, "sigmoid")

    @torch.no_grad()
    def sample_loop(self, n: int) -> Tensor:
        """Plain ancestral sampling."""
        net, a = self.net, self.net.hidden_bias.expand(n, -1)
        x = torch.empty(n, self.shape.D, device=self.device)
        for i in self.ordering.order.tolist():
            p = torch.sigmoid(torch.sigmoid(a) @ net.output[i, 0] + net.bias[i, 0])
            x[:, i] = torch.bernoulli(p)
            a = a + x[:, i, None] * net.weight[i, 0]
        return x


def tasks(problem: Problem, samples: int = 1000) -> dict[tuple[str, str], Callable[[], Any]]:
    """Every (task, contender) of a problem."""
    forwards = {"ours": problem.ours, "loop": problem.loop, "cumulative": problem.cumulative}
    todo: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, forward in forwards.items():
        todo["train step", name] = partial(problem.train, forward)
        todo["log_prob", name] = partial(problem.log_prob, forward)
    if problem.shape.K == 0 and problem.shape.ones is not None:
        todo["sample", "ours"] = partial(problem.sample_ours, samples)
        todo["sample", "loop"] = partial(problem.sample_loop, samples)
    return todo


def peer(shape: Shape, device: torch.device, samples: int = 1000) -> list[Timing]:
    """zuko's masked autoregressive flow with as many parameters, if it is installed: log_prob and sample.

    It is another model (of real-valued data), but does the same: an exact log-likelihood in one pass, samples
    one variable after the other. Sampling takes D passes, so that it is timed once.
    """
    try:
        import zuko
    except ImportError:
        return []
    wanted = 2 * shape.D * shape.H + shape.D + shape.H
    width = round(
        wanted / (3 * shape.D)
    )  # D inputs to its hidden layer, a shift and a scale out per variable
    flow = zuko.flows.MAF(shape.D, transforms=1, hidden_features=(width,)).to(device)
    x = torch.randn(shape.B, shape.D, device=device)
    out = []
    with torch.no_grad():
        for task, call, repeats in (
            ("log_prob", lambda: flow().log_prob(x), 10),
            ("sample", lambda: flow().sample((samples,)), 1),
        ):
            if repeats > 1:
                call()
            timing = Timing(task, "zuko MAF", shape)
            timing.seconds = [clock(call, device) for _ in range(repeats)]
            out.append(timing)
    return out


def measure(
    shape: Shape,
    device: torch.device,
    repeats: int = 15,
    only: tuple[str, ...] = ("ours", "loop", "cumulative"),
    wanted: tuple[str, ...] = ("train step", "log_prob", "sample"),
) -> list[Timing]:
    """Time the contenders in turn, `repeats` times, after two warm-up rounds.

    Before each timing the contender runs once untimed, so that the caches have its own data and not those of
    the contender before it, as when a user repeats a call.
    """
    problem = Problem(shape, device)
    todo = {k: f for k, f in tasks(problem).items() if k[1] in only and k[0] in wanted}
    if device.type == "cuda":  # as training does: ours is replayed from a graph
        todo = {k: (captured(f) if k[1] == "ours" else f) for k, f in todo.items()}
    timings = {k: Timing(*k, shape) for k in todo}
    for round_ in range(repeats + 2):
        for key, function in todo.items():
            slow = key[1] != "ours" and round_ > 2 + repeats // 3  # slow contenders need fewer repeats
            if slow:
                continue
            function()
            seconds = clock(function, device)
            if round_ >= 2:
                timings[key].seconds.append(seconds)
    return list(timings.values())


def clock(function: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call, with the device's work done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def captured(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def ceiling(device: torch.device, repeats: int = 20) -> dict[str, float]:
    """The machine's rates per second: sigmoids on data in cache, multiply-adds, bytes copied."""
    size = 2**22 if device.type == "cuda" else 2**15
    small = torch.randn(size, device=device)
    out = torch.empty_like(small)
    rounds = 50

    def many() -> None:
        for _ in range(rounds):
            torch.sigmoid(small, out=out)

    large = torch.randn(2**28 if device.type == "cuda" else 2**25, device=device)
    other = torch.empty_like(large)
    run_many = captured(many) if device.type == "cuda" else many
    sigmoids = statistics.median(clock(run_many, device) for _ in range(repeats))
    copy = statistics.median(clock(lambda: other.copy_(large), device) for _ in range(repeats))
    n = 4096 if device.type == "cuda" else 1024
    square = torch.randn(n, n, device=device)
    product = statistics.median(clock(lambda: torch.mm(square, square), device) for _ in range(repeats))
    return {
        "sigmoids_per_second": rounds * size / sigmoids,
        "multiply_adds_per_second": n**3 / product,
        "bytes_per_second": 8 * large.numel() / copy,
    }


def needed_sigmoids(shape: Shape, device: torch.device) -> float:
    """Hidden activations of a forward pass: on a CPU and for binary inputs only where the state changes."""
    skips = shape.ones is not None and device.type == "cpu"
    changes = 1 + shape.ones * shape.D if skips and shape.ones is not None else shape.D
    return shape.B * shape.H * min(shape.D, changes)


def growth(sizes: list[float], seconds: list[float]) -> float:
    """Exponent of the fitted power law time ~ size^e."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


SWEEPS: dict[str, list[Any]] = {
    "D": [98, 196, 392, 784, 1568],
    "H": [64, 128, 256, 512, 1024],
    "B": [16, 32, 64, 128, 256],
    "ones": [0.02, 0.04, 0.08, 0.16, 0.32],
}


FULL = [
    Shape(),
    Shape(B=1000),
    Shape(ones=None),
    Shape(B=25, D=63, H=512, ones=None, K=10),
]
QUICK = [Shape(B=20, D=98, H=64), Shape(B=20, D=20, H=32, ones=None, K=3)]


def sweep(
    device: torch.device, sweeps: dict[str, list[Any]], middle: Shape, repeats: int = 9
) -> Iterator[tuple[str, list[Any], dict[str, list[float]]]]:
    """Our times against D, H, B and the share of ones, each from the same middle shape."""
    for name, values in sweeps.items():
        series: dict[str, list[float]] = {}
        for value in values:
            shape = replace(middle, **{name: value})
            for t in measure(shape, device, repeats, ("ours",), ("train step", "log_prob")):
                series.setdefault(t.task, []).append(t.median)
        yield name, values, series


def bench(
    device: torch.device,
    shapes: list[Shape],
    repeats: int = 15,
    sweeps: dict[str, list[Any]] | None = None,
    middle: Shape | None = None,
    progress: Callable[[str], None] = lambda task: None,
) -> dict[str, Any]:
    """The whole benchmark as one JSON object.

    Args:
        device: where to measure.
        shapes: problems on which the contenders are compared.
        repeats: of each measurement.
        sweeps: values of D, H, B and the share of ones for the growth of our times.
        middle: the shape the sweeps vary.
        progress: called with the next measurement.
    """
    result: dict[str, Any] = {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "code": code_version(),
        "torch": torch.__version__,
        "at": now(),
    }
    progress("ceiling")
    result["ceiling"] = ceiling(device)
    result["shapes"] = []
    for shape in shapes:
        progress(f"{shape}")
        timings = measure(shape, device, repeats)
        if shape == Shape():  # one peer, at the middle shape
            timings += peer(shape, device)
        entry: dict[str, Any] = {"shape": asdict(shape), "tasks": {}}
        for t in timings:
            entry["tasks"].setdefault(t.task, {})[t.contender] = t.entry()
        for contenders in entry["tasks"].values():
            ours = contenders["ours"]["median"]
            contenders["ratios"] = {
                name: c["median"] / ours for name, c in contenders.items() if name not in ("ours", "ratios")
            }
        for task, passes in (("log_prob", 1), ("train step", 2)):  # backward computes them once more
            row = entry["tasks"][task]
            rate = passes * needed_sigmoids(shape, device) / row["ours"]["median"]
            row["share_of_ceiling"] = rate / result["ceiling"]["sigmoids_per_second"]
        result["shapes"].append(entry)
    result["growth"] = {}
    for name, values, series in sweep(device, sweeps or {}, middle or Shape()):
        progress(f"growth in {name}")
        result["growth"][name] = {
            "values": values,
            "seconds": series,
            "exponent": {task: growth(values, s) for task, s in series.items()},
        }
    return result


@torch.no_grad()
def check_agreement(shape: Shape, device: torch.device) -> float:
    """Largest difference between ours and the reference in float64, over the largest value."""
    problem = Problem(shape, device)
    net = problem.net
    w, c, v, b = (t.double() for t in (net.weight, net.hidden_bias, net.output, net.bias))
    x, order = problem.x.double().unsqueeze(-1), problem.ordering.order
    exact = recurrence(x, w, c, v, b, order, "sigmoid", "reference")
    return ((problem.ours() - exact).abs().max() / exact.abs().max()).item()
