"""`pynade demo --digits`: four models of handwritten digits in under a minute, a table and a figure."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pynade.estimators import FVSBN, MADE, NADE, DensityEstimator
from pynade.families import Bernoulli
from pynade.likelihood import Estimate, log_likelihood
from pynade.models import Independent
from pynade.runs.figures import image_panels, save_figure
from pynade.tables.registry import load

SEED = 0


class Line(NamedTuple):
    """One line of the demo's table: a model, its score on the test set, and how long training took."""

    model: str
    test: Estimate
    seconds: float


def models() -> dict[str, DensityEstimator]:
    """Return the models of the demo that are trained; their settings were chosen on the validation set."""
    common: Any = {"batch_size": 50, "random_state": SEED, "training": {"schedule": "linear"}}
    return {
        "FVSBN (logistic regressions)": FVSBN(learning_rate=0.02, epochs=60, **common),
        "MADE (500 hidden units)": MADE(hidden=(500,), learning_rate=0.003, epochs=80, **common),
        "NADE (200 hidden units)": NADE(hidden=200, learning_rate=0.01, epochs=80, **common),
    }


def digits_demo(picture: Path, started: Callable[[str], None] = lambda name: None) -> list[Line]:
    """Train on the embedded digits, score the test set, draw the figure.

    Args:
        picture: The PNG to write: real digits, samples, and the probabilities of their pixels.
        started: Called with a model's name before it is trained.
    """
    digits, begin = load("digits"), time.perf_counter()
    test = digits.split("test")
    independent = Independent.fitted(Bernoulli(), torch.as_tensor(digits.train)).double()
    seconds = time.perf_counter() - begin
    lines = [Line("independent Bernoullis", log_likelihood(independent, test), seconds)]
    for name, model in models().items():
        started(name)
        begin = time.perf_counter()
        model.fit(digits.train, X_valid=digits.valid)
        seconds = time.perf_counter() - begin
        lines.append(Line(name, Estimate.from_rows(model.score_samples(test)), seconds))
    samples, density = model.sample(49, random_state=SEED), model.model_
    means = density.conditional_means(torch.as_tensor(samples)).detach().numpy()
    panels = {"Real digits": test[:49], "NADE samples": samples, "Pixel probabilities": means}
    save_figure(image_panels(panels, digits.image_shape or ()), picture)
    return lines
