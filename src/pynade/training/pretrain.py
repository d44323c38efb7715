"""Layer-wise pretraining (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pynade.models import Orderless
from pynade.nets import MaskedMLP
from pynade.training.gradient import fit, save_last_good
from pynade.training.loop import Callback, Diverged
from pynade.training.options import Gradient


def pretrain(
    model: Orderless,
    train: Tensor | np.ndarray,
    options: Gradient,
    *,
    epochs: int = 20,
    seed: int = 0,
    folder: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
) -> Orderless:
    """A model of the same shape whose layers were added and trained one after the other.

    Starting from a random net with one hidden layer: remove the output layer, add a new hidden layer and
    a new output layer, train everything for `epochs` epochs; repeat until the net is as deep as
    `model`'s. A net with one hidden layer is returned untrained, as in Algorithm 2.

    Args:
        model: gives the shape; of its own weights only the output bias is used.
        train: rows (N, D).
        options: how to train; its epochs are replaced, and there is no early stopping.
        epochs: after each new layer.
        seed: of new layers and of the training.
        folder: where the last good weights go if training diverges.
        callbacks: called with a `Progress`.
    """
    net = model.net
    if not isinstance(net, MaskedMLP):
        raise TypeError(f"layers can be added to a MaskedMLP, not to a {type(net).__name__}")
    options = replace(options, epochs=epochs, patience=None, stop_at_train=None)
    generator = torch.Generator().manual_seed(seed)
    marginal = net.bias.detach().clone()
    first, *rest = net.hidden
    grown = MaskedMLP(**(net.config() | {"hidden": [first]}), generator=generator).to(net.bias)
    for depth, width in enumerate(rest, start=2):
        grown = grown.deeper(width, generator)
        grown.set_output_bias(marginal)
        deeper = Orderless(grown, model.family, model.stratified)
        try:
            fit(deeper, train, options=options, seed=seed + depth, callbacks=callbacks)
        except Diverged as error:
            if folder is None:
                raise
            kept = save_last_good(Path(folder), deeper)
            raise Diverged(f"in pretraining ({depth} layers) {error} They are in {kept}.") from None
    if not rest:
        grown.set_output_bias(marginal)
    return Orderless(grown, model.family, model.stratified)
