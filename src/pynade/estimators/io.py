"""`pynade.load`: any saved model back as what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pynade.estimators.base import DensityEstimator, device_here
from pynade.estimators.baselines_binary import BernoulliMixture, ChowLiu
from pynade.estimators.baselines_real import MFA, Gaussian, GaussianMixture
from pynade.estimators.fixed_order import FVSBN, MADE, NADE
from pynade.estimators.images import ConvNADE, ImageNADE
from pynade.estimators.orderless import DeepNADE, EoNADE
from pynade.estimators.rbm import RBM
from pynade.estimators.real import RNADE, DeepRNADE
from pynade.estimators.transformer import BinaryTransformerNADE, TransformerNADE
from pynade.models import Model
from pynade.store import load_density
from pynade.training import History

ESTIMATORS: dict[str, type[DensityEstimator]] = {
    "nade": NADE,
    "made": MADE,
    "fvsbn": FVSBN,
    "deepnade": DeepNADE,
    "eonade": EoNADE,
    "rnade": RNADE,
    "deep-rnade": DeepRNADE,
    "made-e": MADE,
    "mob": BernoulliMixture,
    "chow-liu": ChowLiu,
    "rbm": RBM,
    "gaussian": Gaussian,
    "mog": GaussianMixture,
    "mfa": MFA,
    "convnade": ConvNADE,
    "hybrid": ConvNADE,
    "unet": ImageNADE,
    "transformer": TransformerNADE,
    "causal-transformer": TransformerNADE,
    "permuted-transformer": TransformerNADE,
    "binary-transformer": BinaryTransformerNADE,
}

# what a name sets besides choosing the estimator
PRESETS: dict[str, dict[str, Any]] = {
    "made-e": {"n_orderings": 32},
    "hybrid": {"hybrid": [500, 500]},
    "causal-transformer": {"fixed_order": True},
    "permuted-transformer": {"causal": True, "n_orderings": 8},
}

Loaded = DensityEstimator | Model


def load(path: Path | str) -> Loaded:
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
        facts = header["estimator"]
        kinds = {kind.__name__: kind for kind in ESTIMATORS.values()}
        estimator = kinds[facts["name"]](**facts["params"])
        estimator.device = device_here(estimator.device)
        fitted = facts["fitted"]
        estimator.model_ = density
        estimator.seed_ = int(fitted["seed_"])
        estimator.history_ = History(**fitted["history_"])
        estimator.n_iter_ = len(estimator.history_.epochs)
        estimator.n_features_in_ = int(fitted["n_features_in_"])
        for name in estimator._facts:
            setattr(estimator, name, fitted[name])
        if header.get("columns"):
            estimator.columns_ = list(header["columns"])
        if "feature_names_in_" in fitted:
            estimator.feature_names_in_ = np.asarray(fitted["feature_names_in_"], dtype=object)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} cannot be loaded: unknown estimator or parameter {error}") from None
    return estimator, header
