"""Layer-wise pretraining (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pynade.learn.fit import Callback, fit
from pynade.learn.how import Gradient
from pynade.models import Orderless
from pynade.nets import MaskedMLP


def pretrain(
    model: Orderless,
    train: Tensor | np.ndarray,
    how: Gradient,
    *,
    iterations: int = 20,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> Orderless:
    """A model of the same shape whose layers were added and trained one after the other.

    Starting from a random net with one hidden layer: remove the output layer, add a new hidden layer and
    a new output layer, train everything for `iterations` epochs; repeat until the net is as deep as
    `model`'s. A net with one hidden layer is returned untrained, as in Algorithm 2.

    Args:
        model: says the shape; its own weights are not used beyond the output bias.
        train: rows (N, D).
        how: the settings; its epochs are replaced by `iterations` and nothing is stopped early.
        iterations: epochs after each new layer.
        seed: of new layers and of the training.
        callbacks: told of progress.
    """
    net = model.net
    if not isinstance(net, MaskedMLP):
        raise TypeError(f"layers can be added to a MaskedMLP, not to a {type(net).__name__}")
    how = replace(how, epochs=iterations, patience=None, stop_at_train=None)
    generator = torch.Generator().manual_seed(seed)
    marginal = net.bias.detach().clone()
    first, *rest = net.hidden
    grown = MaskedMLP(**(net.config() | {"hidden": [first]}), generator=generator).to(net.bias)
    for depth, width in enumerate(rest, start=2):
        grown = grown.deeper(width, generator)
        grown.set_output_bias(marginal)
        fit(
            Orderless(grown, model.family, model.stratified),
            train,
            how=how,
            seed=seed + depth,
            callbacks=callbacks,
        )
    if not rest:
        grown.set_output_bias(marginal)
    return Orderless(grown, model.family, model.stratified)
