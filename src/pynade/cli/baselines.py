"""Options of `pynade fit` that only the baselines have, and what they mean as parameters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

PANEL = "Baselines (mob, chow-liu, rbm, gaussian, mog, mfa)"
CHOSEN = {  # parameters of which some models choose the best of several on the validation rows
    "n_components": ("mob", "chow-liu", "mog", "mfa"),
    "n_factors": ("mfa",),
    "alpha": ("chow-liu",),
    "learning_rate": ("rbm",),
}


def _option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PANEL)


Factors = Annotated[list[int] | None, _option("Factors [2]; repeat to choose from several (mfa).")]
Alpha = Annotated[
    list[float] | None,
    _option("Smoothing of the tables; repeat to choose; default from 1e-20 to 1 (chow-liu)."),
]
Smoothing = Annotated[float | None, _option("Pseudo-counts of both outcomes [0.1] (mob).")]
Iterations = Annotated[int | None, _option("EM at most: mob, mog 200, chow-liu 50, mfa 500, minibatch 1000.")]
Tolerance = Annotated[float | None, _option("EM ends when a row gains less, in nats.")]
CDSteps = Annotated[int | None, _option("Rounds of Gibbs sampling per update [1] (rbm).")]
Persistent = Annotated[bool | None, _option("Chains go on from the last update (rbm).", "--persistent")]
NInit = Annotated[int | None, _option("Initial weights to try with each rate, the best kept [1] (rbm).")]
EvaluateEvery = Annotated[int | None, _option("Epochs between validations [10] (rbm).")]
AISChains = Annotated[int | None, _option("Chains of the estimate for more than 25 units [100] (rbm).")]
AISSteps = Annotated[int | None, _option("Its steps [1000] (rbm).")]
GibbsSteps = Annotated[int | None, _option("Rounds before a sample of more than 25 units [1000] (rbm).")]
Init = Annotated[str | None, _option("Start of EM: k-means++ (mog's default) or rows (mfa's).")]
Shrinkage = Annotated[str | None, _option("A number from 0 to 1, or ledoit-wolf (gaussian).")]
CovarianceFloor = Annotated[float | None, _option("Added to variances, standardised (gaussian 0, mog 1e-6).")]
NoiseFloor = Annotated[float | None, _option("Smallest noise variance, standardised [1e-6] (mfa).")]
Minibatch = Annotated[bool | None, _option("EM on random rows; --batch-size [20000] (mog).", "--minibatch")]
StepSize = Annotated[float | None, _option("Of the first such update [0.1] (mog).")]
ZeroMeans = Annotated[bool | None, _option("All means are zero, with --minibatch (mog).", "--zero-means")]


def parameters_of(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options as parameters of an estimator, under its names.

    Example:
        >>> parameters_of("mob", {"components": [32, 64], "seed": 1})
        {'random_state': 1, 'n_components': [32, 64]}
        >>> parameters_of("rbm", {"hidden": [23], "seed": 0})
        {'random_state': 0, 'n_hidden': 23}
    """
    parameters = dict(options)
    parameters["random_state"] = parameters.pop("seed")
    for option, name in (
        ("orderings", "n_orderings"),
        ("components", "n_components"),
        ("factors", "n_factors"),
    ):
        if option in parameters:
            parameters[name] = parameters.pop(option)
    for name, able in CHOSEN.items():
        if name in parameters:
            values = parameters[name]
            if len(values) > 1 and model not in able:
                option = name.removeprefix("n_").replace("_", "-")
                raise ValueError(f"give --{option} once; only {' and '.join(able)} can choose from several")
            parameters[name] = values[0] if len(values) == 1 else values
    if "hidden" in parameters:
        hidden = parameters.pop("hidden")
        if model in ("nade", "rnade", "rbm") and len(hidden) > 1:
            raise ValueError(f"a {model} has one hidden layer; give --hidden once")
        parameters["n_hidden" if model == "rbm" else "hidden"] = hidden[0] if len(hidden) == 1 else hidden
    if "shrinkage" in parameters and parameters["shrinkage"] != "ledoit-wolf":
        try:
            parameters["shrinkage"] = float(parameters["shrinkage"])
        except ValueError:
            raise ValueError(
                f"--shrinkage is a number from 0 to 1 or ledoit-wolf, not {parameters['shrinkage']!r}"
            ) from None
    if "image_shape" in parameters:
        parameters["image_shape"] = _sides(parameters["image_shape"])
    if "binarize" in parameters and not parameters["binarize"].startswith("random"):
        try:
            parameters["binarize"] = float(parameters["binarize"])
        except ValueError:
            words = f"--binarize is a number, random or random:SEED, not {parameters['binarize']!r}"
            raise ValueError(words) from None
    return parameters


def _sides(text: str) -> list[int]:
    try:
        return [int(side) for side in text.lower().split("x")]
    except ValueError:
        raise ValueError(f"an image shape is written HxW (or CxHxW), such as 28x28, not {text!r}") from None
