"""Run folders: one training run with everything that belongs to it.

spec.json           model, its parameters, data: what was asked, fully resolved
provenance.json     code, libraries, device, data checksum, seed
metrics.jsonl       one line per epoch
checkpoint*.safetensors  while training, for --resume
model.safetensors   the weights, loadable with `pynade.load(folder)`
result.json         how training ended and the validation score
"""

from __future__ import annotations

import json
import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pynade.atomic import write_json
from pynade.device import torch_device
from pynade.estimators.base import DensityEstimator, plain
from pynade.estimators.registry import MODELS, estimator_named
from pynade.runs.provenance import provenance
from pynade.runs.summary import read_spec
from pynade.tables import Dataset, Schema, resolve
from pynade.tables.images import binarized, is_grey
from pynade.training.checkpoint import numbered_checkpoints
from pynade.training.loop import Callback, Diverged

if TYPE_CHECKING:
    from pynade.likelihood import Estimate

FILES = (
    "spec.json",
    "provenance.json",
    "metrics.jsonl",
    "last_good.safetensors",
    "model.safetensors",
    "result.json",
)


def start_run(
    folder: Path,
    model: str,
    parameters: dict[str, Any],
    data: str,
    *,
    data_dir: Path | None = None,
    overwrite: bool = False,
    drop_constant: bool = False,
    valid_rows: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train from scratch into a new run folder; returns the content of result.json.

    Everything that can be wrong with the request is found before the folder is made.

    Args:
        folder: the run folder to make.
        model: a name in `pynade.estimators.names`.
        parameters: of the estimator; what is not given takes its default. `random_state` is the seed.
        data: a registered data set or a file.
        data_dir: folder of the registered data sets.
        overwrite: replace an earlier run in this folder.
        drop_constant: leave out the columns that never vary in the training rows.
        valid_rows: take only the first of the validation rows (a trial).
        callbacks: called with a `pynade.training.Progress`.
    """
    parameters = {"random_state": 0} | parameters
    estimator = estimator_named(model, parameters)
    whole, made_binary = _as_images(_varying(resolve(data, data_dir), drop_constant), estimator)
    _check_request(model, estimator, whole)  # before any split, so that rows are the file's
    dataset = _with_validation(whole, estimator, valid_rows)
    _claim(folder, overwrite)
    spec: dict[str, Any] = {
        "model": model,
        "parameters": {name: plain(value) for name, value in estimator.flat_parameters().items()},
        "data": data if not Path(data).exists() else str(Path(data).resolve()),
        "data_checksum": dataset.checksum,
    } | ({"drop_constant": True} if drop_constant else {})
    if valid_rows is not None:
        spec["valid_rows"] = valid_rows
    if made_binary is not None:
        spec["binarize"] = made_binary
    write_json(folder / "spec.json", spec)
    device = torch_device(estimator.device)
    write_json(folder / "provenance.json", provenance(dataset, seed=estimator.random_state, device=device))
    try:
        return _train(folder, estimator, dataset, made_binary, resume=False, callbacks=callbacks)
    except ValueError:  # what only learning finds out, such as a singular covariance: there is no run
        _clear(folder)
        if not any(folder.iterdir()):
            folder.rmdir()
        raise


def resume_run(
    folder: Path, *, data_dir: Path | None = None, callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Go on with an interrupted run, to the same result as if it had not been interrupted."""
    spec = read_spec(folder)
    if (folder / "result.json").is_file():
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if result["status"] == "finished":
            _remove_checkpoints(folder)  # (it may have been killed just before)
            return dict(result)
        raise ValueError(f"the run in {folder} ended with: {result['stopped']}; it cannot go on from there")
    estimator = estimator_named(spec["model"], spec["parameters"])
    dropped = spec.get("drop_constant", False)
    whole = _varying(resolve(spec["data"], data_dir), dropped)
    if "binarize" in spec:
        whole = binarized(whole, spec["binarize"])
    dataset = _with_validation(whole, estimator, spec.get("valid_rows"))
    if dataset.checksum != spec["data_checksum"]:
        raise ValueError(
            f"the data {spec['data']!r} are not those the run in {folder} began with "
            f"(checksum {dataset.checksum[:12]}…, expected {spec['data_checksum'][:12]}…)"
        )
    begun = any(path.is_file() for path in _checkpoints(folder))  # without a checkpoint it starts over
    return _train(folder, estimator, dataset, spec.get("binarize"), resume=begun, callbacks=callbacks)


def as_command(spec: dict[str, Any], folder: str) -> str:
    """The command that makes a run with this spec: what differs from the defaults, as options."""
    usual = estimator_named(spec["model"], {}).flat_parameters()
    words = ["pynade fit", shlex.quote(spec["data"]), "--model", spec["model"]]
    for name, value in spec["parameters"].items():
        if name not in usual or plain(value) == plain(usual[name]) or name == "random_state":
            continue
        option = name.replace("_", "-")
        values = value if isinstance(value, list | tuple) else [value]
        if name == "image_shape":
            words.append(f"--{option} {'x'.join(map(str, values))}")
        elif isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option} {v}" for v in values]
    seed = spec["parameters"]["random_state"]
    words += ["--drop-constant"] if spec.get("drop_constant") else []
    words += [f"--binarize {spec['binarize']}"] if "binarize" in spec else []
    return " ".join([*words, *([f"--random-state {seed}"] if seed else []), "--out", folder])


def _varying(dataset: Dataset, wanted: bool) -> Dataset:
    """The data without the columns that are constant in the training rows, if that is wanted."""
    if not wanted:
        return dataset
    known = dataset.train.astype(np.float64)
    kept = np.flatnonzero([len(np.unique(c[~np.isnan(c)])) > 1 for c in known.T])
    if len(kept) == 0:
        raise ValueError("every column is constant")
    parts: dict[str, Any] = {part: rows[:, kept] for part, rows in dataset.parts.items()}
    schema = Schema(tuple(dataset.schema.columns[i] for i in kept))
    dropped = [name for name in dataset.schema.names if name not in schema.names]
    provenance = {**dataset.provenance, "dropped_columns": dropped}
    return replace(dataset, **parts, schema=schema, image_shape=None, provenance=provenance, source=None)


def _as_images(dataset: Dataset, estimator: DensityEstimator) -> tuple[Dataset, float | str | None]:
    """Give a model of images their shape, and make grey levels black and white if that is wanted.

    The threshold of images is a share of white, whatever their levels. Returns the threshold too, since
    images that are scored later must be treated in the same way.
    """
    known = estimator.get_params(deep=False)
    if "image_shape" in known and known["image_shape"] is None and dataset.image_shape is not None:
        estimator.set_params(image_shape=tuple(dataset.image_shape))
    threshold: float | str | None = known.get("binarize")
    if is_grey(dataset):
        if threshold is not None:
            family = known.get("family", "bernoulli")
            if family != "bernoulli":
                raise ValueError(f"--binarize makes zeros and ones, but --family {family} is for grey levels")
            estimator.set_params(binarize=None)
            return binarized(dataset, threshold), threshold
        if "binarize" in known and known.get("family", "bernoulli") == "bernoulli":
            raise ValueError(
                f"the images of {dataset.name!r} have grey levels, but the model is one of zeros and ones: "
                "give --binarize 0.5 or --binarize random, or (convnade, unet) a --family for grey levels"
            )
    elif isinstance(threshold, str):
        binarized(dataset, threshold)  # refuses an unknown word
        raise ValueError(
            f"--binarize {threshold} is for images with grey levels, which {dataset.name!r} has not"
        )
    return dataset, None


def _with_validation(dataset: Dataset, estimator: DensityEstimator, valid_rows: int | None = None) -> Dataset:
    """The data with a validation part, if the estimator wants one and there are rows enough for it."""
    if not 0 <= estimator.validation_fraction < 1:
        raise ValueError(f"validation_fraction must be in [0, 1), not {estimator.validation_fraction}")
    rows = round(estimator.validation_fraction * len(dataset.train))
    if dataset.valid is None and rows >= 2 and len(dataset.train) - rows >= 2:
        dataset = dataset.with_validation(estimator.validation_fraction, seed=estimator.random_state)
    if dataset.valid is not None and valid_rows is not None:
        dataset = replace(dataset, valid=dataset.valid[:valid_rows])
    return dataset


def _train(
    folder: Path,
    estimator: DensityEstimator,
    dataset: Dataset,
    made_binary: float | str | None,
    *,
    resume: bool,
    callbacks: Sequence[Callback],
) -> dict[str, Any]:
    if dataset.valid is None:
        estimator.set_params(validation_fraction=0.0)
    names = list(dataset.schema.names)
    source = dataset.source if draws_fresh_rows(estimator) else None
    try:
        estimator.fit(
            dataset.train,
            X_valid=dataset.valid,
            folder=folder,
            resume=resume,
            callbacks=callbacks,
            source=source,
            columns=names,
        )
    except Diverged as error:
        write_json(folder / "result.json", {"status": "diverged", "stopped": str(error)})
        raise
    dropped = dataset.provenance.get("dropped_columns", [])
    facts: dict[str, Any] = {"columns": names, "dropped": dropped, "image_shape": dataset.image_shape}
    if made_binary is not None:
        facts["binarize"] = made_binary
    estimator.save(folder / "model.safetensors", **facts)
    history = estimator.history_
    valid = None
    if dataset.valid is not None:
        with warnings.catch_warnings(action="ignore"):  # the result itself says whether it is an estimate
            valid = _validation_score(estimator, dataset.valid).to_json()
    chosen = getattr(estimator, "chosen_", {})
    result = {
        "status": "finished",
        "stopped": history.stopped,
        "epochs": len(history.epochs),
        "best_epoch": history.best_epoch,
        "train_log_likelihood": history.train_log_likelihood,
        "valid": valid,
        "seconds": round(history.seconds, 2),
    } | ({"chosen": chosen, "choices": estimator.choices_} if chosen else {})
    if history.messages:
        result["messages"] = history.messages
    write_json(folder / "result.json", result)
    _remove_checkpoints(folder)
    return result


def _validation_score(estimator: DensityEstimator, rows: np.ndarray) -> Estimate:
    """Exact, but an estimate for nets that would run once for every variable."""
    from pynade.models import Orderless

    if isinstance(estimator.model_, Orderless) and estimator.model_.net.row_floats:
        return estimator.estimate(rows)
    return estimator.summary(estimator.score_samples(rows))


def draws_fresh_rows(estimator: DensityEstimator) -> bool:
    """Whether training draws fresh rows from a source: epochs must then have a length of their own."""
    options = estimator._training_options()
    if hasattr(options, "minibatch"):
        return bool(options.minibatch)
    return hasattr(options, "optimizer") and options.updates_per_epoch is not None


def _check_request(model: str, estimator: DensityEstimator, dataset: Dataset) -> None:
    """What the estimator refuses; where it is the kind of the data, with the models that fit."""
    kinds, kind = set(dataset.schema.kinds), estimator._cells().kind
    if kind == "real" and kinds == {"binary"}:
        raise ValueError(
            f"{model} takes real numbers, but every column of {dataset.name} holds only zeros and ones; "
            f"models of these are {_models('binary')}"
        )
    try:
        estimator.check_request(dataset.train, dataset.valid, columns=dataset.schema.names)
    except ValueError as error:
        if kind == "binary" and getattr(estimator, "binarize", None) is None and kinds != {"binary"}:
            raise ValueError(f"{error}; models of real numbers are {_models('real')}") from None
        raise


def _models(kind: str) -> str:
    names = [name for name, entry in MODELS.items() if entry.data.startswith(kind)]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _claim(folder: Path, overwrite: bool) -> None:
    """Make the run folder, or remove an earlier run from it; other files are never touched."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not overwrite:
                raise ValueError(f"{folder} already exists; give --overwrite to replace it")
            if not (folder / "spec.json").is_file():
                raise ValueError(f"{folder} is not a run folder, so --overwrite will not touch it")
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise ValueError(
            f"cannot write to the output folder {folder}: {error.strerror or 'no permission'}"
        ) from None
    except OSError as error:
        raise ValueError(f"cannot make the output folder {folder}: {error.strerror}") from None


def _checkpoints(folder: Path) -> list[Path]:
    return [folder / "checkpoint.safetensors", *numbered_checkpoints(folder)]


def _remove_checkpoints(folder: Path) -> None:
    for checkpoint in _checkpoints(folder):
        checkpoint.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    _remove_checkpoints(folder)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
