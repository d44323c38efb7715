"""Deep belief network of two hidden layers (Hinton et al., 2006; Salakhutdinov and Murray, 2008)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pynade.classical.rbm import RBM, PartitionEstimate
from pynade_paper.comparators.training import Comparator, Random, base_logits, drawn, importance, log_prob

ROWS_AT_ONCE = 20000  # copies of rows in one pass of an estimate
GIBBS_STEPS = 1000  # rounds before a sample is taken


class DBN(Comparator):
    """p(x) = Σ_h p(x | h) p(h): p(h) is the marginal of an RBM on top, p(x | h) comes from the RBM below.

    Trained greedily. Stage 0 trains the bottom RBM on the images. Stage 1 trains the top RBM on draws from
    the bottom RBM's p(h | x); it starts as the bottom RBM turned over (its first hidden units are the
    pixels), so that at first the network is the bottom RBM, and improves a bound on log p from there. Both
    by persistent contrastive divergence; the loss has its gradient. Nothing is fine-tuned.

    The importance weights p(x, h) / p(h | x; bottom) give a bound (their mean logarithm) and an estimate (the
    logarithm of their mean); log Z of the top RBM is estimated by AIS, from a start with the layer's base
    rates. So the "bound" is one up to the error of log Z. AIS forward tends to give too small a log Z, AIS
    backward from the chains too large a one: they must agree, and the larger is used, or else validation
    would choose the weights for which AIS fails.

    Guessed: persistent chains where the paper has CD-25, their number, the start of the top RBM, learning
    rates, weight decay, the average of the weights.

    Args:
        height: rows of the image.
        width: columns of the image.
        units: of the first hidden layer.
        top_units: of the second, at least as many as pixels.
        gibbs: rounds of Gibbs sampling in an update.
        chains: persistent chains.
        ais_chains: chains of the final AIS; a tenth of them in validation.
        ais_steps: intermediate distributions of the final AIS; a tenth of them in validation.
        generator: source of the initial weights.

    Example:
        >>> net = DBN(2, 2, units=3, top_units=5, generator=torch.Generator().manual_seed(0))
        >>> net.begin(0, torch.eye(4))
        >>> net.loss(torch.eye(4)).shape
        torch.Size([4])
    """

    kind = "estimate"
    stages = ((0.5, 1.0), (0.5, 0.5))
    chains: Tensor
    base: Tensor
    pixel_base: Tensor
    turned: Tensor

    def __init__(
        self,
        height: int = 28,
        width: int = 28,
        units: int = 500,
        top_units: int = 2000,
        gibbs: int = 25,
        chains: int = 500,
        ais_chains: int = 1000,
        ais_steps: int = 20000,
        generator: Random = None,
    ) -> None:
        super().__init__()
        if top_units < height * width:
            why = "takes over the weights of all pixels, so it has at least as many units"
            raise ValueError(f"the top layer {why}")
        self.height, self.width, self.units, self.top_units = height, width, units, top_units
        self.gibbs, self.n_chains, self.ais_chains, self.ais_steps = gibbs, chains, ais_chains, ais_steps
        self.bottom = RBM(height * width, units, generator=generator)
        self.top = RBM(units, top_units, generator=generator)
        self.stage = 1
        self.partition: PartitionEstimate | None = None  # of the scores
        self.log_z: dict[str, float] = {}  # of both directions
        self.register_buffer("chains", torch.zeros(chains, 1), persistent=False)
        self.register_buffer("pixel_base", torch.zeros(height * width), persistent=False)  # of the pixels
        self.register_buffer("base", torch.zeros(units))  # logits of the first layer's base rates
        self.register_buffer("turned", torch.zeros(()))  # whether the top RBM has its start

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        names = ("height", "width", "units", "top_units", "gibbs", "ais_chains", "ais_steps")
        return {name: getattr(self, name) for name in names} | {"chains": self.n_chains}

    def facts(self) -> dict[str, Any]:
        """Both estimates of log Z; the scores were computed with the larger."""
        return {"log_z": self.log_z}

    @torch.no_grad()
    def begin(self, stage: int, rows: Tensor) -> None:
        """Initial biases from the data; the top RBM starts as the bottom one turned over."""
        self.stage = stage
        some = rows[torch.arange(self.n_chains, device=rows.device) % len(rows)]
        if stage == 0:
            self.pixel_base = base_logits(rows)
            if not self.bottom.b.any():
                self.bottom.b.copy_(self.pixel_base)
            self.chains = some.to(self.bottom.W)
        else:
            up = torch.cat([torch.sigmoid(_inputs(self.bottom, part)) for part in rows.split(5000)])
            self.base = base_logits(up)
            if not self.turned:
                pixels = self.height * self.width
                self.top.W[:pixels] = self.bottom.W.T
                self.top.b.copy_(self.bottom.c)
                self.top.c[:pixels] = self.bottom.b
                self.turned.fill_(1)
            self.chains = drawn(_inputs(self.bottom, some), torch.Generator(rows.device).manual_seed(0))
        for number, rbm in enumerate((self.bottom, self.top)):
            rbm.requires_grad_(number == stage)

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """Free energies of rows less those of the chains (B,); their gradient is contrastive divergence's."""
        rbm = self.top if self.stage else self.bottom
        with torch.no_grad():
            if self.stage:
                x = drawn(_inputs(self.bottom, x), generator)
            v = self.chains
            for _ in range(self.gibbs):
                v = drawn(drawn(_inputs(rbm, v), generator) @ rbm.W + rbm.b, generator)
            self.chains.copy_(v)
        return free_energy(rbm, x) - free_energy(rbm, v).mean()

    @torch.no_grad()
    def ready(self, generator: Random = None, final: bool = False) -> None:
        """Estimate log Z of the RBM of the present stage by AIS; the larger of both directions is taken."""
        rbm, base = (self.top, self.base) if self.stage else (self.bottom, self.pixel_base)
        part = 1 if final else 10
        chains, steps = max(2, self.ais_chains // part), max(1, self.ais_steps // part)
        z = rbm.log_partition_ais(chains, steps, generator, base=base)
        start = self.chains[torch.arange(chains, device=base.device) % len(self.chains)]
        start = rbm.gibbs(chains, steps // 10, generator, start)
        back = log_partition_backward(rbm, start, steps, generator, base)
        self.log_z = {"forward": z.log_z, "stderr": z.stderr, "backward": back}
        self.log_z |= {"chains": chains, "steps": steps}
        self.partition = replace(z, log_z=max(z.log_z, back))

    @torch.no_grad()
    def scores(self, x: Tensor, generator: Random = None, samples: int = 1) -> dict[str, Tensor]:
        """{"estimate": (B,), "bound": (B,)} of −log p; in stage 0 the bottom RBM's −log p as the estimate."""
        assert self.partition is not None, "log Z was not estimated: call ready first"
        log_z = self.partition.log_z
        if self.stage == 0:
            return {"estimate": free_energy(self.bottom, x).double() + log_z}

        def log_weights(many: Tensor) -> Tensor:
            inputs = _inputs(self.bottom, many)
            h = drawn(inputs, generator)
            log_p = log_prob(many, h @ self.bottom.W + self.bottom.b)
            return (log_p - free_energy(self.top, h) - log_prob(h, inputs)).double() - log_z

        found = importance(log_weights, x, samples, ROWS_AT_ONCE)
        return {name: found[name] for name in ("estimate", "bound")}

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Rows (n, pixels) after rounds of Gibbs sampling in the top RBM: near the model, not exact draws."""
        h = self.top.gibbs(n, GIBBS_STEPS, generator)
        return drawn(h @ self.bottom.W + self.bottom.b, generator)


@torch.no_grad()
def log_partition_backward(rbm: RBM, x: Tensor, steps: int, generator: Random, base: Tensor) -> float:
    """log Z by AIS from rows x (n, D), draws of the RBM or near them, to independent ones of logits `base`.

    With draws of the RBM, E[1 / Z] is right, so that log Z is too large on average.
    """
    W, b, c, start, x = (t.double() for t in (rbm.W, rbm.b, rbm.c, base, x))
    log_w = x.new_zeros(len(x))
    betas = torch.linspace(1, 0, steps + 1, dtype=torch.float64).tolist()
    for beta, after in pairwise(betas):
        h = drawn(beta * (x @ W.T + c), generator)
        x = drawn((1 - beta) * start + beta * (h @ W + b), generator)
        a = x @ W.T + c
        rise = functional.logsigmoid(-beta * a) - functional.logsigmoid(-after * a)
        log_w += (after - beta) * (x @ (b - start)) + rise.sum(-1)
    log_base = rbm.n_hidden * math.log(2) + float(functional.softplus(start).sum())
    return log_base - float(torch.logsumexp(log_w, 0)) + math.log(len(x))


def free_energy(rbm: RBM, x: Tensor) -> Tensor:
    """−log Σ_h exp(−E(x, h)) of rows (B, D): (B,)."""
    return -functional.softplus(_inputs(rbm, x)).sum(-1) - x @ rbm.b


def _inputs(rbm: RBM, x: Tensor) -> Tensor:
    """Logits (B, H) of the hidden units given rows (B, D)."""
    return x @ rbm.W.T + rbm.c
