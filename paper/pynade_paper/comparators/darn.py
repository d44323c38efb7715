"""Deep autoregressive network (Gregor, Danihelka, Mnih, Blundell and Wierstra, 2014) for binary rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade_paper.comparators.training import Comparator, Random, base_logits, drawn, importance, log_prob

ROWS_AT_ONCE = 20000  # copies of rows in one pass of an estimate
FIRST_LOG_SD = -4.0  # of the adaptive noise


class DARN(Comparator):
    """Binary hidden units h with an autoregressive prior, and pixels autoregressive given h.

    p(h_j | h_<j) and p(x_d | x_<d, h) are logistic; h reaches the pixels through a layer of tanh units, x_<d
    directly. q(h | x) has independent units behind a layer of tanh units. The loss is the description length
    E_q[log q(h | x) − log p(h, x)], with the exact entropy of q. Its gradient with respect to the logits of q
    is the paper's: the derivative at the drawn h_j times |h_j − q_j| / 2, which is unbiased where the loss is
    quadratic in each h_j.

    With adaptive noise each weight has a Gaussian posterior; the loss adds its divergence from a Gaussian
    prior of mean 0 and, for each matrix, the best variance, divided by the number of training rows and times
    `price`. Noise is drawn for the units' inputs, which has the same distribution row by row. Scores use the
    mean weights. `encoder_noise=False` keeps the weights of q without noise.

    Guessed: the encoder's tanh layer, the prior of the noise, its first size and its price (at the full price
    of 1 the model fits too little), that the weights of q have none in the recorded run, noise row by row,
    AdamW with weight decay, learning rate and batch size. Biases have no noise.

    Args:
        height: rows of the image.
        width: columns of the image.
        units: of the stochastic layer and of each tanh layer.
        noise: train with adaptive weight noise.
        price: factor of the noise's divergence in the loss.
        encoder_noise: give the weights of q(h | x) noise as well.
        generator: source of the initial weights.

    Example:
        >>> net = DARN(2, 2, units=3)
        >>> net.loss(torch.zeros(5, 4)).shape
        torch.Size([5])
    """

    kind = "bound"
    rows_before: Tensor
    units_before: Tensor

    def __init__(
        self,
        height: int = 28,
        width: int = 28,
        units: int = 500,
        noise: bool = False,
        price: float = 1.0,
        encoder_noise: bool = True,
        generator: Random = None,
    ) -> None:
        super().__init__()
        self.height, self.width, self.units, self.noise, self.price = height, width, units, noise, price
        self.encoder_noise = encoder_noise
        D, H = height * width, units
        self.n_rows = 1
        sizes = {"encoder": (D, H), "posterior": (H, H), "decoder": (H, H), "output": (H, D)}
        self.weights, self.biases = nn.ParameterDict(), nn.ParameterDict()
        for name, (inputs, outputs) in sizes.items():
            start = torch.empty(inputs, outputs).normal_(generator=generator) * inputs**-0.5
            self.weights[name] = nn.Parameter(start)
            self.biases[name] = nn.Parameter(torch.zeros(outputs))
        self.weights["prior"] = nn.Parameter(torch.zeros(H, H))  # used above the diagonal alone
        self.biases["prior"] = nn.Parameter(torch.zeros(H))
        self.weights["pixels"] = nn.Parameter(torch.zeros(D, D))
        self.biases["pixels"] = nn.Parameter(torch.zeros(D))
        noisy = [n for n in self.weights if noise and (encoder_noise or n not in ("encoder", "posterior"))]
        log_sds = {n: nn.Parameter(torch.full_like(self.weights[n], FIRST_LOG_SD)) for n in noisy}
        self.log_sds = nn.ParameterDict(log_sds)
        self.register_buffer("units_before", torch.ones(H, H).triu(1), persistent=False)
        self.register_buffer("rows_before", torch.ones(D, D).triu(1), persistent=False)

    def begin(self, stage: int, rows: Tensor) -> None:
        """Count the rows, and start from the pixels' base rates."""
        self.n_rows = len(rows)
        if not self.biases["pixels"].any():
            self.biases["pixels"].data.copy_(base_logits(rows))

    def _mask(self, name: str) -> Tensor | None:
        return {"prior": self.units_before, "pixels": self.rows_before}.get(name)

    def _linear(self, x: Tensor, name: str, noisy: bool, generator: Random) -> Tensor:
        """Inputs of units, with the adaptive noise if asked for."""
        mask = self._mask(name)
        weight = self.weights[name] if mask is None else self.weights[name] * mask
        mean = torch.addmm(self.biases[name], x, weight)
        if not noisy or name not in self.log_sds:
            return mean
        variance = torch.exp(2 * self.log_sds[name])
        variance = x * x @ (variance if mask is None else variance * mask)
        draw = torch.empty_like(mean).normal_(generator=generator)
        return mean + draw * torch.sqrt(variance + 1e-8)

    def _infer(self, x: Tensor, noisy: bool, generator: Random) -> tuple[Tensor, Tensor]:
        """Logits of q(h | x), and draws of it."""
        units = torch.tanh(self._linear(x, "encoder", noisy, generator))
        logits = self._linear(units, "posterior", noisy, generator)
        return logits, drawn(logits, generator)

    def _length(self, x: Tensor, h: Tensor, noisy: bool, generator: Random) -> Tensor:
        """−log p(x, h): (B,)."""
        a = self._linear(h, "prior", noisy, generator)
        d = torch.tanh(self._linear(h, "decoder", noisy, generator))
        b = self._linear(d, "output", noisy, generator) + self._linear(x, "pixels", noisy, generator)
        return (functional.softplus(a) - a * h).sum(-1) + (functional.softplus(b) - b * x).sum(-1)

    def divergence(self) -> Tensor:
        """Divergence of the noise's posterior from its prior, all weights together."""
        total = self.biases["prior"].new_zeros(())
        for name, log_sd in self.log_sds.items():
            mask = self._mask(name)
            square = self.weights[name] ** 2 + torch.exp(2 * log_sd)
            if mask is None:
                total = total + 0.5 * log_sd.numel() * torch.log(square.mean()) - log_sd.sum()
            else:
                n = mask.sum()
                total = total + 0.5 * n * torch.log((square * mask).sum() / n) - (log_sd * mask).sum()
        return total

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """Description length of rows from one draw of h (B,); with noise, that of the weights is added."""
        logits, h = self._infer(x, self.noise, generator)
        q = torch.sigmoid(logits)
        slope = 0.5 * (h - q).abs().detach()
        h = h + slope * (logits - logits.detach())
        entropy = (functional.softplus(logits) - logits * q).sum(-1)
        length = self._length(x, h, self.noise, generator) - entropy
        return length + self.divergence() * (self.price / self.n_rows) if self.noise else length

    @torch.no_grad()
    def scores(self, x: Tensor, generator: Random = None, samples: int = 1) -> dict[str, Tensor]:
        """{"bound": (B,), "estimate": (B,)}: description length, and −log of the mean weight."""

        def log_weights(many: Tensor) -> Tensor:
            logits, h = self._infer(many, False, generator)
            return -self._length(many, h, False, None) - log_prob(h, logits)

        return importance(log_weights, x, samples, ROWS_AT_ONCE)

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Rows (n, pixels), exact draws: unit by unit, then pixel by pixel."""
        prior = self.biases["prior"].expand(n, -1)
        h = self._drawn(prior, self.weights["prior"] * self.units_before, generator)
        d = torch.tanh(self._linear(h, "decoder", False, None))
        known = self._linear(d, "output", False, None) + self.biases["pixels"]
        return self._drawn(known, self.weights["pixels"] * self.rows_before, generator)

    def _drawn(self, known: Tensor, weight: Tensor, generator: Random) -> Tensor:
        """Units drawn one after another, with inputs `known` and from those before."""
        x = torch.zeros_like(known)
        u = torch.rand(known.shape, generator=generator, device=known.device, dtype=known.dtype)
        for d in range(known.shape[1]):
            x[:, d] = (u[:, d] < torch.sigmoid(known[:, d] + x @ weight[:, d])).to(x)
        return x
