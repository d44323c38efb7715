"""`pynade.load`: a saved model back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pynade.device import device_here
from pynade.estimators.base import DensityEstimator
from pynade.estimators.registry import estimator_named
from pynade.models import Model
from pynade.store import load_density
from pynade.tables.schema import Schema
from pynade.training.history import History

Loaded = DensityEstimator | Model


def load(path: Path | str) -> Any:
    """Load a model file, or the model of a run folder.

    Nothing in the file is executed. An estimator comes back as that estimator, a density saved with
    `pynade.store.save_density` as that density. What was trained on a GPU works without one.

    Args:
        path: a .safetensors file written by `save`, or a run folder written by `pynade fit`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, foreign, or from a newer pynade.
    """
    return load_with_facts(path)[0]


def load_with_facts(path: Path | str) -> tuple[Loaded, dict[str, Any]]:
    """`load`, and the metadata the model was saved with."""
    path = Path(path)
    if path.is_dir():
        if not (path / "model.safetensors").is_file():
            raise FileNotFoundError(f"{path} is no finished run folder: it has no model.safetensors")
        path = path / "model.safetensors"
    density, header = load_density(path)
    if "estimator" not in header:
        return density, header
    try:
        facts, fitted = header["estimator"], header["estimator"]["fitted"]
        estimator: Any = estimator_named(facts["name"].lower(), facts["params"])
        estimator.device = device_here(estimator.device)
        estimator.model_ = density
        estimator.history_ = History.from_json(fitted["history_"])
        estimator.n_iter_ = len(estimator.history_.epochs)
        for name in ("seed_", *estimator._facts):
            setattr(estimator, name, Schema.from_json(fitted[name]) if name == "schema_" else fitted[name])
        names = fitted.get("feature_names_in_") or header.get("columns") or None
        estimator._remember(fitted["n_features_in_"], names, fitted.get("frame_"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} cannot be loaded: unknown estimator or parameter {error}") from None
    return estimator, header
