"""DRAW (Gregor, Danihelka, Graves, Rezende and Wierstra, 2015): binary images, with or without attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade_paper.comparators.training import Comparator, Random, drawn, gaussian, importance

ROWS_AT_ONCE = 5000  # copies of rows in one pass of an estimate
PLACE = 5  # numbers that place a grid of filters: centre x and y, log variance, log stride, log intensity
Many = Sequence[Tensor]


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
        generator: Random = None,
    ) -> None:
        super().__init__()
        if (read is None) != (write is None) or (read is not None and height != width):
            raise ValueError("attention reads and writes, and takes square images")
        self.height, self.width, self.steps, self.units, self.latent = height, width, steps, units, latent
        self.read, self.write = read, write
        pixels = height * width

        def normal(inputs: int, outputs: int, scale: float = 1.0) -> nn.Parameter:
            return gaussian(inputs, outputs, inputs=inputs / scale**2, generator=generator)

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

    def begin(self, stage: int, rows: Tensor) -> None:
        """On a GPU a step is compiled: its many small operations become few kernels."""
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
        images = torch.stack([x, error], 1).view(len(x), 2, 1, self.height, self.width)
        # sums, not products, compile into few kernels
        lines = (filters[:, None, 1, :, :, None] * images).sum(3)
        patches = (lines[:, :, :, None] * filters[:, None, None, 0]).sum(-1)
        return patches.flatten(1) * intensity

    def _written(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to the canvas (B, pixels), and where to read next (B, 5)."""
        if self.write is None:
            return out, out
        patch, where, place = out.split([self.write**2, PLACE, PLACE], -1)
        filters, intensity = self._filters(where, self.write)
        patch = (patch / intensity).view(-1, self.write, self.write, 1)
        lines = (patch * filters[:, None, 0]).sum(2)
        return (filters[:, 1, :, :, None] * lines[:, :, None]).sum(1).flatten(1), place.contiguous()

    def _decode(self, z: Tensor, state: Many, biases: Many, weights: Many) -> list[Tensor]:
        h, cell, canvas = state
        h, cell = self._lstm(torch.cat([z, h], -1), weights[0], biases[0], cell)
        more, place = self._written(h @ weights[1] + biases[1])
        return [h, cell, canvas + more, place]

    def _step(self, x: Tensor, noise: Tensor, biases: Many, weights: Many, state: Many) -> tuple[Tensor, ...]:
        """One step: states of the LSTMs, canvas, reading place; μ and log σ; z and what was read, fixed."""
        h_enc, c_enc, h_dec, c_dec, canvas, place = state
        glimpse = self._glimpse(x, canvas, place)
        seen = torch.cat([glimpse, h_dec, h_enc], -1)
        h_enc, c_enc = self._lstm(seen, weights[0], biases[0], c_enc)
        posterior = h_enc @ weights[1] + biases[1]
        mean, log_sd = posterior.chunk(2, -1)
        z = mean + torch.exp(log_sd) * noise
        after = self._decode(z, (h_dec, c_dec, canvas), biases[2:], weights[2:])
        return h_enc, c_enc, *after, posterior, z.detach(), glimpse.detach()

    def _started(self, n: int) -> list[Tensor]:
        states = [s.expand(n, -1) for s in self.start]
        place = self._written(states[2] @ self.output + self.output_bias)[1]
        return [s.contiguous() for s in (*states, self.canvas.expand(n, -1), place)]

    def _inputs(self, x: Tensor) -> list[Tensor]:
        """What the units of the four matrices take beside them at each step: (steps, B, units)."""
        biases = [self.encoder_bias, self.posterior_bias, self.decoder_bias, self.output_bias]
        rows = [b.expand(len(x), -1) for b in biases]
        if self.read is None:
            rows[0] = rows[0] + x @ self.image
        return [r.expand(self.steps, -1, -1) for r in rows]

    def _unrolled(self, x: Tensor, noise: Tensor, inputs: Many, weights: Many, run: Any) -> list[Tensor]:
        """What `_step` gives, at each step (steps, B, …), after −log p(x | z) and the divergence (B,)."""
        state, made = self._started(len(x)), []
        for number, biases in enumerate(zip(*(i.unbind() for i in inputs), strict=True)):
            made.append(run(x, noise[number], biases, weights, state))
            state = list(made[-1][:6])
        found = [torch.stack([step[k] for step in made]) for k in (0, 2, 6, 7, 8)]
        mean, log_sd = found[2].chunk(2, -1)
        divergence = 0.5 * (mean**2 + torch.exp(2 * log_sd) - 1) - log_sd
        misfit = functional.binary_cross_entropy_with_logits(state[4], x, reduction="none")
        return [misfit.sum(-1), divergence.sum((0, 2)), *found]

    def _noise(self, x: Tensor, generator: Random) -> Tensor:
        shape = (self.steps, len(x), self.latent)
        return torch.randn(shape, generator=generator, device=x.device, dtype=x.dtype)

    def _weights(self) -> list[Tensor]:
        return [self.encoder, self.posterior, self.decoder, self.output]

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """Bound on −log p of rows (B,), from one draw of z, with the exact divergences."""
        found = self._unrolled(x, self._noise(x, generator), self._inputs(x), self._weights(), self._step)
        return found[0] + found[1]

    def gradients(self, x: Tensor, generator: Random = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its derivatives; those of the matrices in one product over all steps."""
        inputs = [i.detach().clone().requires_grad_() for i in self._inputs(x)]
        weights = [w.detach() for w in self._weights()]
        misfit, divergence, h_enc, h_dec, _, z, glimpse = self._unrolled(
            x, self._noise(x, generator), inputs, weights, self._run
        )
        loss = misfit + divergence
        direct = [self.start, self.canvas, self.output, self.output_bias]
        found = torch.autograd.grad(loss.mean(), [*inputs, *direct], materialize_grads=True)
        h_enc, h_dec = h_enc.detach(), h_dec.detach()
        before = [
            torch.cat([first.detach().expand(1, len(x), -1), h[:-1]])
            for first, h in ((self.start[0], h_enc), (self.start[2], h_dec))
        ]
        took = [torch.cat([glimpse, before[1], before[0]], -1), h_enc, torch.cat([z, before[1]], -1), h_dec]
        grads = dict(zip(("start", "canvas", "output", "output_bias"), found[4:], strict=True))
        for name, a, b in zip(("encoder", "posterior", "decoder", "output"), took, found, strict=False):
            grads[name] = a.flatten(0, 1).mT @ b.flatten(0, 1) + grads.get(name, 0.0)
            grads[f"{name}_bias"] = b.sum((0, 1)) + grads.get(f"{name}_bias", 0.0)
        if self.read is None:
            grads["image"] = x.mT @ found[0].sum(0)
        return loss.detach(), grads

    @torch.no_grad()
    def scores(self, x: Tensor, generator: Random = None, samples: int = 1) -> dict[str, Tensor]:
        """{"bound": (B,), "estimate": (B,)}: mean of the bound, and −log of the mean importance weight."""
        bounds = []

        def log_weights(many: Tensor) -> Tensor:
            noise = self._noise(many, generator)
            found = self._unrolled(many, noise, self._inputs(many), self._weights(), self._step)
            misfit, exact, _, _, posterior, z, _ = found
            divergence = (0.5 * (z**2 - noise**2) - posterior[..., self.latent :]).sum((0, 2))
            bounds.append((misfit + exact).double().view(-1, len(x)))
            return -(misfit.double() + divergence.double())

        return importance(log_weights, x, samples, ROWS_AT_ONCE) | {"bound": torch.cat(bounds).mean(0)}

    def decode(self, z: Tensor) -> Tensor:
        """Logits (n, pixels) of the images that z (steps, n, latent) draw."""
        state = self._started(z.shape[1])[2:]
        for part in z:
            state = self._decode(part, state[:3], [self.decoder_bias, self.output_bias], self._weights()[2:])
        return state[2]

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Rows (n, pixels)."""
        z = self.canvas.new_empty(self.steps, n, self.latent).normal_(generator=generator)
        return drawn(self.decode(z), generator)
