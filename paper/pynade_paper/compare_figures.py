"""Pictures of several models' samples beside real rows: scatter plots, natural patches, speech."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.estimators.base import load_with_facts
from pynade.plots.drawing import COLOURS
from pynade.runs.figures import image_panels, tile
from pynade.tables import Dataset
from pynade_paper.data.patches import whole_patches
from pynade_paper.records import read_json
from pynade_paper.tables import read_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES = 11  # of a window of speech


def scatter_figure(
    runs: Sequence[Path], data: Dataset, columns: tuple[str, str], n: int = 1000, seed: int = 0
) -> Figure:
    """Samples of each model (red) over n training rows (black), two columns: the paper's "UCI-thresholds".

    Each run folder or model file has a panel; columns across and upwards are names, or numbers from 0.
    """
    from matplotlib.figure import Figure

    across, up = (_index(data, column) for column in columns)
    rng = np.random.default_rng(seed)
    real = data.train[rng.permutation(len(data.train))[:n]]
    low, high = np.nanquantile(real, [0.0, 1.0], axis=0)
    lines = -(-len(runs) // 2)
    figure = Figure(figsize=(9, 4.2 * lines), layout="constrained")
    axes: Any = figure.subplots(lines, min(2, len(runs)), squeeze=False, sharex=True, sharey=True)
    for axis, run in zip(axes.flat, runs, strict=False):
        model, facts = _estimator(run)
        drawn = model.sample(n, random_state=seed)
        own = facts.get("columns") or list(data.schema.names)
        x, y = (_column(own, data.schema.names[i], run) for i in (across, up))
        axis.scatter(real[:, across], real[:, up], s=4, color="black", label="data")
        axis.scatter(drawn[:, x], drawn[:, y], s=4, color=COLOURS[1], alpha=0.6, label="samples")
        axis.set_title(title(model), fontsize=11)
    for set_limits, at in ((axes[0, 0].set_xlim, across), (axes[0, 0].set_ylim, up)):
        margin = 0.1 * (high[at] - low[at])
        set_limits(low[at] - margin, high[at] + margin)
    names = data.schema.names
    figure.supxlabel(names[across])
    figure.supylabel(names[up])
    axes[0, 0].legend(fontsize=9)
    return figure


def sample_figure(runs: Sequence[Path], data: Dataset, n: int = 100, seed: int = 0) -> Figure:
    """Real rows and each model's samples as pictures, each sorted by density under the last model.

    With unbounded scales, one extreme value of a conditional can make the next more extreme. Such draws are
    left out of the picture and counted in its title.

    These are the paper's "natimg-samples" (patches of images) and "speech-samples" (windows of speech); n of
    the test rows are shown.
    """
    from matplotlib.figure import Figure

    models = [_estimator(run)[0] for run in runs]
    rng = np.random.default_rng(seed)
    test = data.split("test")
    panels = {"test data": test[np.sort(rng.permutation(len(test))[:n])]}
    for model in models:
        drawn = model.sample(2 * n, random_state=seed)
        finite = np.isfinite(drawn).all(1) & (np.abs(drawn).max(1) < 10 * np.abs(test[:10_000]).max())
        kept = np.flatnonzero(finite)[:n]
        lost = int((~finite[: kept[-1] + 1]).sum()) if len(kept) else 2 * n
        note = f" ({lost} of {lost + len(kept)} draws diverged and are left out)" if lost else ""
        panels[title(model) + note] = drawn[kept]
    pictures = speech_pictures if data.n_variables % FRAMES == 0 else whole_patches
    across = 25 if pictures is whole_patches else 20
    figure = Figure(figsize=(10, 2.4 * len(panels)), layout="constrained")
    axes: Any = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (name, rows) in zip(axes, panels.items(), strict=True):
        ordered = rows[np.argsort(-models[-1].score_samples(rows))]
        images = _stretched(pictures(ordered))
        tiled = tile(images.reshape(len(images), -1), images.shape[1:], across)
        axis.imshow(tiled, cmap="gray", vmin=0, vmax=1)
        axis.set_title(name, fontsize=11)
        axis.set_axis_off()
    return figure


def comparator_figure(runs: Sequence[Path]) -> Figure:
    """The images that `pynade_paper.comparators.train` drew from its models, a panel for each folder."""
    from safetensors.numpy import load_file

    panels, names = {}, {row.record: row.model for row in read_tables()["mnist"].rows}
    for run in runs:
        result = read_json(run / "result.json")
        drawn = {} if result is None else load_file(run / "weights.safetensors")
        if result is None or "samples" not in drawn:
            raise ValueError(f"{run} holds no finished run of pynade_paper.comparators.train")
        panels[names[f"comparators/{result['model']}.json"]] = drawn["samples"]
        shape = result["spec"]["height"], result["spec"]["width"]
    return image_panels(panels, shape)


def speech_pictures(rows: np.ndarray) -> np.ndarray:
    """Windows as pictures (N, 21, 11): time across; from the bottom the energy, then the filters upwards.

    Example:
        >>> speech_pictures(np.arange(231.0)[None])[0, -1, :2].tolist()  # the energies of the first frames
        [20.0, 41.0]
    """
    frames = rows.reshape(len(rows), FRAMES, -1)
    energy_first = np.concatenate([frames[:, :, -1:], frames[:, :, :-1]], axis=2)
    return np.flip(energy_first.transpose(0, 2, 1), axis=1)


def _stretched(images: np.ndarray) -> np.ndarray:
    """Each picture to the range 0 … 1, all by the same contrast about its own mean."""
    centred = images - images.mean(axis=(1, 2), keepdims=True)
    spread = np.quantile(np.abs(centred), 0.98) or 1.0
    return np.clip(0.5 + 0.5 * centred / spread, 0, 1)


def title(model: Any) -> str:
    """Such as "RNADE-mog, K = 10, 512 units"."""
    parameters = model.get_params()
    name = type(model).__name__ + (f"-{parameters['family']}" if "family" in parameters else "")
    if isinstance(parameters.get("n_components"), int) and parameters.get("family", "mo").startswith("mo"):
        name += f", K = {parameters['n_components']}"
    hidden = parameters.get("hidden")
    return name if hidden is None else f"{name}, {hidden} units"


def _index(data: Dataset, column: str) -> int:
    names = data.schema.names
    if column in names:
        return names.index(column)
    if column.isdigit() and int(column) < len(names):
        return int(column)
    raise ValueError(f"the data have no column {column!r}; they have: {', '.join(names)}")


def _column(names: Sequence[str], name: str, run: Path) -> int:
    """The index of a column of the data in the model."""
    if name not in names:
        raise ValueError(f"the model {run} was trained without column {name!r}")
    return list(names).index(name)


def _estimator(run: Path) -> tuple[Any, dict[str, Any]]:
    """An estimator, and the names of its columns among what is saved with it."""
    model, facts = load_with_facts(run)
    if not hasattr(model, "score_samples"):
        raise ValueError(f"{run} holds no model trained by `pynade fit` or `pynade sweep`")
    return model, facts
