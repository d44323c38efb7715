"""Pixel RNN (van den Oord, Kalchbrenner and Kavukcuoglu, 2016) with Diagonal BiLSTMs, for binary images."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade_paper.comparators.diagonal_lstm import diagonal_lstm
from pynade_paper.comparators.training import Comparator, Random, drawn, gaussian, log_prob

FILTER = 7  # side of the first convolution


class PixelRNN(Comparator):
    """An exact density of binary images, pixel by pixel in raster order.

    A 7×7 convolution with mask A gives 2 · units maps; each layer maps them to the gates of two LSTMs, adds
    the states of both (those of the right-to-left one moved down one row), maps the sum to 2 · units maps and
    adds its input; then ReLU, 1×1 convolution, ReLU, 1×1 convolution to one logit for each pixel.

    The right-to-left states come from the row above, and mask A hides a pixel from its own position: so the
    last pixel of the row above is seen only by pixels at most three columns from it.

    Guessed: zero states outside the image, a bias of 1 for the forget gates, Gaussian initial weights with
    variance 1 / (number of inputs), 2 · units maps in the last hidden 1×1 convolution (32, as in the paper's
    table), Adam instead of RMSProp, batches larger than the paper's 16, no skip connections to the output.

    Args:
        height: rows of the image.
        width: columns of the image.
        layers: Diagonal BiLSTM layers.
        units: of the LSTM in each direction.
        generator: source of the initial weights.

    Example:
        >>> net = PixelRNN(2, 3, layers=1, units=2)
        >>> net.log_prob(torch.zeros(4, 6)).shape
        torch.Size([4])
    """

    kind = "exact"
    mask: Tensor

    def __init__(
        self, height: int = 28, width: int = 28, layers: int = 7, units: int = 16, generator: Random = None
    ) -> None:
        super().__init__()
        self.height, self.width, self.layers, self.units = height, width, layers, units
        maps = 2 * units

        normal = partial(gaussian, generator=generator)
        self.first_weight = normal(maps, 1, FILTER, FILTER, inputs=FILTER * FILTER // 2)
        self.first_bias = nn.Parameter(torch.zeros(maps))
        self.input_weight = normal(layers, maps, 8 * units, inputs=maps)
        forget = torch.zeros(layers, 2, 4, units)
        forget[:, :, 1] = 1.0
        self.input_bias = nn.Parameter(forget.view(layers, 8 * units))
        self.state_weight = normal(layers, 2, 2, units, 4 * units, inputs=2 * units)
        self.up_weight = normal(layers, units, maps, inputs=2 * units)
        self.up_bias = nn.Parameter(torch.zeros(layers, maps))
        self.hidden_weight = normal(maps, maps, inputs=maps)
        self.hidden_bias = nn.Parameter(torch.zeros(maps))
        self.out_weight, self.out_bias = normal(maps, 1, inputs=maps), nn.Parameter(torch.zeros(1))
        before = torch.zeros(FILTER, FILTER)
        before.view(-1)[: FILTER * FILTER // 2] = 1.0
        self.register_buffer("mask", before, persistent=False)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (B, H · W) of p(x_d = 1 | x_<d) for rows x (B, H · W) in raster order."""
        B, H, W = len(x), self.height, self.width
        image = x.to(self.out_bias).view(B, 1, H, W)
        y = functional.conv2d(image, self.first_weight * self.mask, self.first_bias, padding=FILTER // 2)
        y = y.permute(0, 2, 3, 1).reshape(B * H * W, -1)
        for k in range(self.layers):
            gates = torch.addmm(self.input_bias[k], y, self.input_weight[k])
            h = diagonal_lstm(gates.view(B, H, W, 2, -1), self.state_weight[k])
            both = h[..., 0, :] + functional.pad(h[:, :-1, :, 1], (0, 0, 0, 0, 1, 0))
            y = y + torch.addmm(self.up_bias[k], both.reshape(B * H * W, -1), self.up_weight[k])
        y = torch.addmm(self.hidden_bias, torch.relu(y), self.hidden_weight)
        return (torch.relu(y) @ self.out_weight + self.out_bias).view(B, H * W)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p of rows (B, H · W): (B,), exact."""
        return log_prob(x.double(), self.logits(x).double())

    def loss(self, x: Tensor, generator: Random = None) -> Tensor:
        """−log p of rows: (B,); what training minimises."""
        logits = self.logits(x)
        return functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)

    @torch.no_grad()
    def scores(self, x: Tensor, generator: Random = None, samples: int = 1) -> dict[str, Tensor]:
        """{"nll": (B,)}: the exact −log p of rows."""
        return {"nll": -self.log_prob(x)}

    @torch.no_grad()
    def sample(self, n: int, generator: Random = None) -> Tensor:
        """Rows (n, H · W), drawn pixel by pixel: one pass of the whole net for each pixel."""
        x = self.out_bias.new_zeros(n, self.height * self.width)
        for d in range(x.shape[1]):
            x[:, d] = drawn(self.logits(x)[:, d], generator)
        return x
