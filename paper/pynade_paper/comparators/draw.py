"""DRAW (Gregor, Danihelka, Graves, Rezende and Wierstra, 2015): binary images, with or without attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade_paper.comparators.training import Comparator

ROWS_AT_ONCE = 5000  # copies of rows in one pass of an estimate
PLACE = 5  # numbers that place a grid of filters: centre x and y, log variance, log stride, log intensity


class DRAW(Comparator):
    """A variational autoencoder that draws on a canvas in steps, with an LSTM as encoder and one as decoder.

    At each step the encoder takes what is read of the image x and of the error x − σ(canvas), and the state
    of the decoder; z ~ N(μ, σ²) from the encoder's state goes into the decoder, whose state is written onto
    the canvas. Pixels are Bernoulli with logits the last canvas. The prior of each z is N(0, I). With
    attention, reading and writing go through grids of Gaussian filters that the decoder's state places; each
    filter is normalised over the pixels of its axis.

    Guessed: learned initial states and canvas (the paper learns biases as initial states), a bias of 1 for
    the forget gates, no peepholes, Gaussian initial weights with variance 1 / (number of inputs) for what is
    read and for states by themselves, a tenth of that deviation for what is written and for the place of the
    grids, grids that cover the image at first (a 2×2 grid of the largest stride would read the blank
    corners), learning rate and batch size.

    Args:
        height: rows of the image; with attention the same as the columns.
        width: columns of the image.
        steps: number of steps.
        units: of each LSTM.
        latent: numbers in each z.
        read: side of the grid for reading, None to read the whole image.
        write: side of the grid for writing, None to write the whole image.
        generator: source of the initial weights.

    Example:
        >>> net = DRAW(4, 4, steps=2, units=3, latent=2, read=2, write=2)
        >>> net.loss(torch.zeros(5, 16)).shape
        torch.Size([5])
    """

    kind = "bound"

    def __init__(
        self,
        height: int = 28,
        width: int = 28,
        steps: int = 64,
        units: int = 256,
        latent: int = 100,
        read: int | None = None,
        write: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if (read is None) != (write is None) or (read is not None and height != width):
            raise ValueError("attention reads and writes, and takes square images")
        self.height, self.width, self.steps, self.units, self.latent = height, width, steps, units, latent
        self.read, self.write = read, write
        pixels = height * width

        def normal(inputs: int, outputs: int, scale: float = 1.0) -> nn.Parameter:
            return nn.Parameter(
                torch.empty(inputs, outputs).normal_(generator=generator) * scale * inputs**-0.5
            )

        forget = torch.zeros(4, units)
        forget[1] = 1.0
        glimpse = pixels if read is None else 2 * read * read
        parts = [normal(glimpse, 4 * units), normal(2 * units, 4 * units)]
        self.encoder = nn.Parameter(torch.cat([part.detach() for part in parts]))
        self.encoder_bias = nn.Parameter(forget.flatten())
        if read is None:  # the image does not change from step to step; the error does
            self.image = normal(pixels, 4 * units)
        self.posterior = normal(units, 2 * latent)
        self.posterior_bias = nn.Parameter(torch.zeros(2 * latent))
        self.decoder = normal(latent + units, 4 * units)
        self.decoder_bias = nn.Parameter(forget.flatten().clone())
        written = pixels if write is None else write * write + 2 * PLACE
        self.output = normal(units, written, scale=0.1)
        bias = torch.zeros(written)
        if read is not None and write is not None:  # at first the grids cover the image
            bias[write * write :] = torch.cat([self._covering(write), self._covering(read)])
            bias[-PLACE - 1] = -2 * math.log(height / (write + 1))  # what is written keeps its size
        self.output_bias = nn.Parameter(bias)
        self.start = nn.Parameter(torch.zeros(4, units))  # states and cells of encoder and decoder
        self.canvas = nn.Parameter(torch.zeros(pixels))
        self._run = self._step

    def config(self) -> dict[str, Any]:
        """Constructor arguments."""
        names = ("height", "width", "steps", "units", "latent", "read", "write")
        return {name: getattr(self, name) for name in names}

    def begin(self, stage: int, rows: Tensor) -> None:
        """On a GPU a step is compiled: its many small operations become few kernels.

        Args:
            stage: not used.
            rows: training rows, which say where training takes place.
        """
        if rows.is_cuda:
            import torch._dynamo

            torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is
            self._run = torch.compile(self._step, dynamic=False)

    def _covering(self, n: int) -> Tensor:
        """Numbers (5,) of a grid of n × n filters, spread over the image and half a stride wide."""
        stride = self.height / (n + 1)
        log_stride = math.log(stride * max(1, n - 1) / max(1, self.height - 1))
        return torch.tensor([0.0, 0.0, 2 * math.log(stride / 2), log_stride, 0.0])

    def _lstm(self, x: Tensor, weight: Tensor, bias: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = (x @ weight + bias).chunk(4, -1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def _filters(self, place: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Filters (B, 2, n, side) along x and y, and intensities (B, 1), from (B, 5)."""
        side = self.height
        at = torch.arange(side, device=place.device, dtype=place.dtype)
        grid = torch.arange(n, device=place.device, dtype=place.dtype) - (n - 1) / 2
        centre = (place[:, :2] + 1) * (0.5 * (side + 1)) - 1  # pixels are counted from 0
        stride = torch.exp(place[:, 3:4]) * ((side - 1) / max(1, n - 1))
        means = centre[..., None] + stride[..., None] * grid  # (B, 2, n)
        narrow = -0.5 * torch.exp(-place[:, 2])
        logs = narrow[:, None, None, None] * (at - means[..., None]) ** 2
        return torch.softmax(logs, -1), torch.exp(place[:, 4:5])

    def _glimpse(self, x: Tensor, canvas: Tensor, place: Tensor) -> Tensor:
        """What the encoder is shown: the error image, or two patches."""
        error = x - torch.sigmoid(canvas)
        if self.read is None:
            return error
        filters, intensity = self._filters(place, self.read)
        images = torch.stack([x, error], 1).view(len(x), 2, self.height, self.width)
        patches = filters[:, 1:] @ images @ filters[:, :1].mT
        return patches.flatten(1) * intensity

    def _written(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to the canvas (B, pixels), and where to read next (B, 5)."""
        if self.write is None:
            return out, out
        patch, where, place = out.split([self.write**2, PLACE, PLACE], -1)
        filters, intensity = self._filters(where, self.write)
        patch = (patch / intensity).view(-1, self.write, self.write)
        return (filters[:, 1].mT @ patch @ filters[:, 0]).flatten(1), place.contiguous()

    def _decode(
        self, z: Tensor, h: Tensor, cell: Tensor, canvas: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h, cell = self._lstm(torch.cat([z, h], -1), self.decoder, self.decoder_bias, cell)
        more, place = self._written(h @ self.output + self.output_bias)
        return h, cell, canvas + more, place

    def _step(self, x: Tensor, shown: Tensor, noise: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step; the state is those of the LSTMs, canvas and reading place; μ and log σ come last."""
        h_enc, c_enc, h_dec, c_dec, canvas, place = state
        seen = torch.cat([self._glimpse(x, canvas, place), h_dec, h_enc], -1)
        h_enc, c_enc = self._lstm(seen, self.encoder, shown, c_enc)
        mean, log_sd = (h_enc @ self.posterior + self.posterior_bias).chunk(2, -1)
        z = mean + torch.exp(log_sd) * noise
        return h_enc, c_enc, *self._decode(z, h_dec, c_dec, canvas), mean, log_sd

    def _started(self, n: int) -> list[Tensor]:
        states = [s.expand(n, -1) for s in self.start]
        place = self._written(states[2] @ self.output + self.output_bias)[1]
        return [s.contiguous() for s in (*states, self.canvas.expand(n, -1), place)]

    def _parts(self, x: Tensor, generator: torch.Generator | None, run: Any) -> tuple[Tensor, Tensor, Tensor]:
        """−log p(x | z) and the divergence from the prior, exact (B,) and as drawn (B,)."""
        shape = (self.steps, len(x), self.latent)
        noise = torch.randn(shape, generator=generator, device=x.device, dtype=x.dtype)
        shown = self.encoder_bias.expand(len(x), -1)
        if self.read is None:
            shown = shown + x @ self.image
        state, means, log_sds = self._started(len(x)), [], []
        for k in range(self.steps):
            *state, mean, log_sd = run(x, shown, noise[k], tuple(state))
            means.append(mean)
            log_sds.append(log_sd)
        mean, log_sd = torch.stack(means), torch.stack(log_sds)
        z = mean + torch.exp(log_sd) * noise
        exact = 0.5 * (mean**2 + torch.exp(2 * log_sd) - 1) - log_sd
        drawn = 0.5 * (z**2 - noise**2) - log_sd
        misfit = functional.binary_cross_entropy_with_logits(state[4], x, reduction="none")
        return misfit.sum(-1), exact.sum((0, 2)), drawn.sum((0, 2))

    def loss(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Bound on −log p of rows (B,), from one draw of z, with the exact divergences.

        Args:
            x: rows (B, pixels).
            generator: source of z.
        """
        misfit, divergence, _ = self._parts(x, generator, self._run)
        return misfit + divergence

    @torch.no_grad()
    def scores(
        self, x: Tensor, generator: torch.Generator | None = None, samples: int = 1
    ) -> dict[str, Tensor]:
        """{"bound": (B,), "estimate": (B,)}: mean of the bound, and −log of the mean importance weight.

        Args:
            x: rows (B, pixels).
            generator: source of z.
            samples: draws for each row; with one, the estimate is a bound with a larger variance.
        """
        bounds: list[Tensor] = []
        logs: list[Tensor] = []
        most = max(1, ROWS_AT_ONCE // len(x))
        for done in range(0, samples, most):
            copies = min(samples - done, most)
            misfit, exact, drawn = self._parts(x.repeat(copies, 1), generator, self._step)
            bounds.append((misfit + exact).double().view(copies, -1))
            logs.append(-(misfit.double() + drawn.double()).view(copies, -1))
        log_mean = torch.logsumexp(torch.cat(logs), 0) - math.log(samples)
        return {"bound": torch.cat(bounds).mean(0), "estimate": -log_mean}

    def decode(self, z: Tensor) -> Tensor:
        """Logits (n, pixels) of the images that z (steps, n, latent) draw."""
        _, _, h, cell, canvas, _ = self._started(z.shape[1])
        for part in z:
            h, cell, canvas, _ = self._decode(part, h, cell, canvas)
        return canvas

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Rows (n, pixels).

        Args:
            n: number of rows.
            generator: source of randomness.
        """
        z = self.canvas.new_empty(self.steps, n, self.latent).normal_(generator=generator)
        p = torch.sigmoid(self.decode(z))
        return (torch.rand(p.shape, generator=generator, device=p.device) < p).to(p)
