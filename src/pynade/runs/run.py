"""Run folders: one training run with everything that belongs to it.

spec.json           model, its parameters, data: what was asked, fully resolved
provenance.json     code, libraries, device, data checksum, seed
metrics.jsonl       one line per epoch
checkpoint*.safetensors  while training, for --resume
model.safetensors   the weights, loadable with `pynade.load(folder)`
result.json         how training ended and the validation score
"""

from __future__ import annotations

import math
import os
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from pynade.atomic import is_unclaimed, sole_writer, write_json
from pynade.device import torch_device
from pynade.digest import Damaged, add_digest, read_json
from pynade.estimators.base import DensityEstimator, load_with_facts, to_json
from pynade.estimators.registry import MODELS, estimator_named
from pynade.estimators.tabular import TabularNADE
from pynade.likelihood import Estimate
from pynade.models import Orderless
from pynade.processes import enter_in_first, gather_values, is_first, rank_and_size, value_of_first
from pynade.runs.provenance import provenance
from pynade.runs.summary import read_result, read_spec
from pynade.tables import Dataset, Schema, read_file, resolve
from pynade.tables.images import binarized, is_grey
from pynade.tables.large import CODED, FileTable, Progress
from pynade.tables.registry import is_registered
from pynade.tables.stream import is_table, read_part
from pynade.training.checkpoint import numbered_checkpoints
from pynade.training.loop import Callback, Diverged

FILES = ["spec.json", "provenance.json", "result.json", "metrics.jsonl"]
FILES += ["last_good.safetensors", "model.safetensors"]


def data_for(model: Any, data: str, data_dir: Path | None = None) -> Dataset:
    """The data set that a name or a file stands for, as frames if the model is one of mixed tables."""
    frames, missing = isinstance(model, TabularNADE), getattr(model, "missing", None)
    return resolve(data, data_dir, frames=frames, missing=missing)


def training_data(model: Any, data: str, data_dir: Path | None = None, progress: Progress = None) -> Dataset:
    """`data_for`; for `TabularNADE` also tables of several files, and tables that memory does not hold.

    Args:
        model, data, data_dir: as for `data_for`.
        progress: as for `pynade.tables.large.FileTable`.
    """
    path, mixed = Path(data), isinstance(model, TabularNADE) and is_table(data)
    most = {".csv": 1, ".gz": 1032}.get(path.suffix.lower(), math.inf)  # cells that a byte can stand for
    if not mixed or (path.is_file() and CODED * most * path.stat().st_size <= model.stream_above * 2**30):
        return data_for(model, data, data_dir)
    table = model._files(data, progress)
    if (fits := table.fits(model.stream_above)) and path.is_file():
        return data_for(model, data, data_dir)
    name = "/".join(path.absolute().parts[-2:])
    facts = {"source": name, "files": len({part.file for part in table.parts})}
    dataset = Dataset.of_frame(name, table.read() if fits else read_part(table.parts[0]), facts)
    return dataset if fits else replace(dataset, train=table)


def in_memory(dataset: Dataset) -> Dataset:
    """A data set in memory: of one that is not, a random sample of its rows and those held out."""
    if not isinstance(table := dataset.train, FileTable):
        return dataset
    return replace(dataset, train=table.sample, valid=table.valid)


def table_for(model: Any, data: str) -> Any:
    """The data as `pynade.runs.stream.ask` takes them: files by name, other data as the rows of all parts."""
    if is_table(data):
        return data
    return data_for(model, data).split("all") if isinstance(model, TabularNADE) else read_file(data)[0]


def load_run(run: Path, kind: type = object) -> tuple[Any, dict[str, Any]]:
    """The model of a run folder or a model file, which must be of this kind, and the facts saved with it."""
    model, facts = load_with_facts(run)
    if not isinstance(model, kind):
        for_tables = "; this command is for models of tables of mixed columns (tabularnade)"
        expected = for_tables if kind is TabularNADE else ", not a model saved by an estimator"
        raise ValueError(f"{run} is a {type(model).__name__}{expected}")
    if isinstance(model, TabularNADE):
        model.schema_ = replace(model.schema_, frame="polars")  # whatever it was trained on
    return model, facts


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
    checked: Callable[[DensityEstimator], None] | None = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """Train from scratch into a new run folder, made once the request is checked; returns result.json.

    Further arguments are options of `pynade fit`. Of several processes (`pynade.processes`) the first writes.

    Args:
        folder: the run folder to make.
        model: a name in `pynade.estimators.names`.
        parameters: of the estimator; what is not given takes its default. `random_state` is the seed.
        data: a registered data set or a file.
        valid_rows: take only the first of the validation rows (a trial).
        callbacks: called with a `pynade.training.Progress`.
        checked: called with the estimator before training; one of mixed tables then has its schema.
        progress: as for `training_data`.
    """
    estimator = estimator_named(model, {"random_state": 0} | parameters)
    dataset = _drop_constant(training_data(estimator, data, data_dir, progress), drop_constant)
    dataset = binarized(dataset, rule := _binarize_rule(dataset, estimator))
    _check_request(model, estimator, dataset)  # before any split, so that rows are the file's
    dataset = dataset if dataset.framed else _cut_validation(dataset, estimator, valid_rows)
    given = {name: to_json(value) for name, value in estimator.flat_parameters().items()}
    is_path = not is_registered(data) and (Path(data).exists() or is_table(data))  # (a pattern)
    source = str(Path(data).resolve()) if is_path else data
    spec: Any = {"model": model, "parameters": given, "data": source, "data_checksum": dataset.checksum}
    options = {"drop_constant": drop_constant or None, "valid_rows": valid_rows, "binarize": rule}
    spec |= {name: value for name, value in options.items() if value is not None}
    origin = _provenance(dataset, estimator)
    if len(set(gather_values(dataset.checksum))) > 1:
        raise ValueError(f"the processes of this fit have read different data as {data!r}")
    with enter_in_first(_claim(folder, overwrite)):
        if checked is not None:
            checked(estimator)
        _write(folder / "spec.json", spec)
        _write(folder / "provenance.json", origin)
        return _train(folder, estimator, dataset, resume=False, callbacks=callbacks)


def resume_run(
    folder: Path,
    *,
    data_dir: Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress = None,
) -> dict[str, Any]:
    """Go on with an interrupted run to the result it would have had; arguments as for `start_run`."""
    read_spec(folder)
    if (result := _finished_result(folder)) is not None:
        with suppress(OSError):  # (it may have been killed just before, and may be read-only)
            _clear(folder)
        return result
    with enter_in_first(sole_writer(folder)):
        if (result := _finished_result(folder)) is not None:  # another process may have been quicker
            return result
        spec = read_spec(folder)
        if is_first():
            _clear_parts(folder)
        with _name_settings(folder):
            estimator = estimator_named(spec["model"], spec["parameters"])
            torch_device(estimator.device)
            seed = estimator.random_state
            if seed is not None and (not isinstance(seed, int) or seed < 0):
                raise ValueError(f"random_state is a whole number from 0 on, not {seed!r:.60}")
        dataset = training_data(estimator, spec["data"], data_dir, progress)
        dataset = binarized(_drop_constant(dataset, spec.get("drop_constant", False)), spec.get("binarize"))
        if not dataset.framed:
            dataset = _cut_validation(dataset, estimator, spec.get("valid_rows"))
        if dataset.checksum != spec["data_checksum"]:
            sums = f"(checksum {dataset.checksum[:12]}…, expected {spec['data_checksum'][:12]}…)"
            message = f"the data {spec['data']!r} are not those the run in {folder} began with"
            raise ValueError(f"{message}{_changed_file(folder, dataset)} {sums}")
        if not (folder / "provenance.json").is_file():  # killed just before it was written
            _write(folder / "provenance.json", _provenance(dataset, estimator))
        begun = value_of_first(any(path.is_file() for path in _files(folder)))  # else it starts over
        with _name_settings(folder):
            return _train(folder, estimator, dataset, resume=begun, callbacks=callbacks)


@contextmanager
def _name_settings(folder: Path) -> Iterator[None]:
    """What is refused in this block, but for damaged files, are settings of the run in its spec.json."""
    try:
        yield
    except Damaged:
        raise
    except (ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]  # (torch's have several lines)
        raise ValueError(f"the run cannot go on as {folder / 'spec.json'} says: {reason}") from error


def _provenance(dataset: Dataset, estimator: DensityEstimator) -> dict[str, Any]:
    """The provenance of a run, with the number of processes where there are several."""
    origin = provenance(dataset, seed=estimator.random_state, device=torch_device(estimator.device))
    if (digests := getattr(dataset.train, "digests", None)) is not None:  # of a table of files
        origin["data"] |= {"digests": digests}
    return origin | ({"processes": size} if (size := rank_and_size()[1]) > 1 else {})


def _changed_file(folder: Path, dataset: Dataset) -> str:
    """Of a table of files the first that is not as it was when the run began, as a part of a sentence."""
    with suppress(OSError, ValueError, KeyError, AttributeError):
        before = read_json(folder / "provenance.json", data=dict)["data"]["digests"]
        after = dataset.train.digests
        for file in before | after:
            if before.get(file) != after.get(file):
                gone = "has changed" if file in after else "has disappeared"
                return f": {file} {gone if file in before else 'is new'}"
    return ""


def _finished_result(folder: Path) -> dict[str, Any] | None:
    """The result of a finished run, None of an unfinished one; refuses one that cannot go on."""
    if not (folder / "result.json").is_file():
        return None
    result = read_result(folder)
    if result["status"] != "finished":
        raise ValueError(f"the run in {folder} ended with: {result['stopped']}; it cannot go on from there")
    return result


def as_command(spec: dict[str, Any], folder: str) -> str:
    """The command that makes a run with this spec: what differs from the defaults, as options."""
    defaults, given = estimator_named(spec["model"], {}).flat_parameters(), spec["parameters"]
    words = ["pynade fit", shlex.quote(spec["data"]), "--model", spec["model"]]
    for name, value in given.items():
        if name not in defaults or to_json(value) == to_json(defaults[name]) or name == "random_state":
            continue
        option, values = name.replace("_", "-"), value if isinstance(value, list | tuple) else [value]
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif name == "schema":
            words += [f"--column {shlex.quote(f'{column}={kind}')}" for column, kind in value.items()]
        elif name == "image_shape":
            words.append(f"--image-shape {'x'.join(map(str, value))}")
        else:
            words += [f"--{option} {shlex.quote(v) if name in ('drop', 'missing') else v}" for v in values]
    words += ["--drop-constant"] if spec.get("drop_constant") else []
    words += [f"--binarize {spec['binarize']}"] if "binarize" in spec else []
    words += [f"--random-state {given['random_state']}"] if given["random_state"] else []
    return " ".join([*words, "--out", folder])


def _drop_constant(dataset: Dataset, wanted: bool) -> Dataset:
    """The data without the columns that are constant in the training rows, if that is wanted."""
    if not wanted or dataset.framed:  # (a model of mixed tables has constant columns)
        return dataset
    columns = dataset.train.astype(np.float64).T
    varies = np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in columns])
    if not varies.any():
        raise ValueError("every column is constant")
    parts: dict[str, Any] = {part: rows[:, varies] for part, rows in dataset.parts.items()}
    schema = Schema(tuple(compress(dataset.schema.columns, varies)))
    facts = dataset.provenance | {"dropped_columns": list(compress(dataset.schema.names, ~varies))}
    return replace(dataset, **parts, schema=schema, image_shape=None, provenance=facts, source=None)


def _binarize_rule(dataset: Dataset, estimator: DensityEstimator) -> float | str | None:
    """How grey levels are made black and white, if that is wanted; a model of images gets their shape.

    It is the run's, not the estimator's: images that are scored later must be treated in the same way.
    """
    given = estimator.get_params(deep=False)
    if "image_shape" in given and given["image_shape"] is None and dataset.image_shape is not None:
        estimator.set_params(image_shape=tuple(dataset.image_shape))
    rule, family, grey = given.get("binarize"), given.get("family", "bernoulli"), is_grey(dataset)
    if not grey and isinstance(rule, str):
        binarized(dataset, rule)  # refuses an unknown word
        raise ValueError(f"--binarize {rule} is for images with grey levels, which {dataset.name!r} has not")
    if grey and rule is None and "binarize" in given and family == "bernoulli":
        raise ValueError(
            f"the images of {dataset.name!r} have grey levels, but the model is one of zeros and ones: "
            "give --binarize 0.5 or --binarize random, or (convnade, unet) a --family for grey levels"
        )
    if not grey or rule is None:
        return None
    if family != "bernoulli":
        raise ValueError(f"--binarize makes zeros and ones, but --family {family} is for grey levels")
    estimator.set_params(binarize=None)
    return rule


def _cut_validation(dataset: Dataset, estimator: DensityEstimator, valid_rows: int | None = None) -> Dataset:
    """The data with a validation part, if the estimator wants one and there are rows enough for it."""
    if not 0 <= estimator.validation_fraction < 1:
        raise ValueError(f"validation_fraction must be in [0, 1), not {estimator.validation_fraction}")
    dataset = in_memory(dataset)
    rows = round(estimator.validation_fraction * len(dataset.train))
    if dataset.valid is None and rows >= 2 and len(dataset.train) - rows >= 2:
        dataset = dataset.with_validation(estimator.validation_fraction, seed=estimator.random_state)
    if dataset.valid is not None and valid_rows is not None:
        dataset = replace(dataset, valid=dataset.valid[:valid_rows])
    return dataset


def _train(folder: Path, estimator: DensityEstimator, dataset: Dataset, **options: Any) -> dict[str, Any]:
    """Fit, save and score the estimator, which cuts off the validation rows of a mixed table itself."""
    names, valid = list(dataset.schema.names), _cut_validation(dataset, estimator).valid
    origin = dataset.provenance
    if valid is None:
        estimator.set_params(validation_fraction=0.0)
    training = estimator._training_options()  # fresh rows are drawn where epochs have a length of their own
    gradient = hasattr(training, "optimizer") and training.updates_per_epoch is not None
    source = dataset.source if getattr(training, "minibatch", gradient) else None
    options |= {"folder": folder, "source": source, "columns": names}
    try:
        estimator.fit(dataset.train, X_valid=dataset.valid, **options)
    except Diverged as error:
        _write(folder / "result.json", {"status": "diverged", "stopped": str(error)})
        raise
    facts = {"dropped": origin.get("dropped_columns", []), "image_shape": dataset.image_shape}
    facts |= {name: origin[name] for name in ("binarize",) if name in origin}
    if is_first():
        estimator.save(folder / "model.safetensors", columns=names, **facts)
    score = gain = None
    if valid is not None:
        model = estimator.model_
        slow = isinstance(model, Orderless) and model.net.row_floats  # a pass of the net for every variable
        with warnings.catch_warnings(action="ignore"):  # the result itself says whether it is an estimate
            if dataset.framed:
                scores, gains = estimator.scores_and_gain(valid)
                score, gain = estimator.summary(scores), Estimate.from_rows(gains).to_json()
            elif slow:
                score = estimator.estimate(valid)
            else:
                score = estimator.summary(estimator.score_samples(valid))
    history, chosen = estimator.history_, getattr(estimator, "chosen_", {})
    result = {"status": "finished", "stopped": history.stopped, "epochs": len(history.epochs)}
    result |= {name: getattr(history, name) for name in ("best_epoch", "train_log_likelihood")}
    result |= {"valid": score and score.to_json(), "seconds": round(history.seconds, 2)}
    result |= {"chosen": chosen, "choices": estimator.choices_} if chosen else {}
    result |= {"messages": history.messages} if history.messages else {}
    if dataset.framed:
        result |= {"gain": gain, "disagreement": estimator.disagreement_}
    _write(folder / "result.json", result)
    _clear(folder)
    return result


def _check_request(model: str, estimator: DensityEstimator, dataset: Dataset) -> None:
    """What the estimator refuses; where it is the kind of the data, with the models that fit."""
    kind, bits = estimator._cells().kind, set(dataset.schema.kinds) == {"binary"}
    other = "binary" if bits else "real"
    *names, last = (name for name, entry in MODELS.items() if entry.data.startswith(other))
    others = f"{', '.join(names)} and {last}"
    if kind == "real" and bits:
        reason = f"{model} takes real numbers, but every column of {dataset.name} holds only zeros and ones"
        raise ValueError(f"{reason}; models of these are {others}")
    try:
        estimator.check_request(dataset.train, dataset.valid, columns=dataset.schema.names)
    except ValueError as error:
        if kind == "binary" and getattr(estimator, "binarize", None) is None and not bits:
            raise ValueError(f"{error}; models of real numbers are {others}") from None
        raise


@contextmanager
def _claim(folder: Path, overwrite: bool) -> Iterator[None]:
    """Make the run folder, or remove an earlier run from it, and hold its lock; other files stay.

    Nothing is left of a run that is refused in this block, as by learning a singular covariance.
    """
    try:
        _check_free(folder, overwrite)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError
        except OSError as error:
            reason = error.strerror or "no permission"
            raise ValueError(f"cannot write to the output folder {folder}: {reason}") from None
        with sole_writer(folder):
            _check_free(folder, overwrite)  # another process may have been quicker
            _clear_parts(folder)
            _clear(folder, *FILES)
            try:
                yield
            except ValueError:
                if not (folder / "model.safetensors").is_file():
                    _clear(folder, *FILES)
                raise
    except ValueError:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise


def _check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds something, but for a run that may be replaced."""
    if not folder.exists() or (folder.is_dir() and is_unclaimed(folder)):
        return
    if not overwrite:
        raise ValueError(f"{folder} already exists; give --overwrite to replace it")
    try:
        read_spec(folder)
    except (ValueError, OSError) as error:
        message = f"{folder} is not a run folder, so --overwrite will not touch it"
        raise ValueError(f"{message}: {error}") from None


def _files(folder: Path, *names: str) -> list[Path]:
    """The checkpoints of a run, and its files of these names."""
    return [folder / name for name in ("checkpoint.safetensors", *names)] + numbered_checkpoints(folder)


def _write(path: Path, value: dict[str, Any]) -> None:
    """Write a sealed file; of several processes the first one does."""
    if is_first():
        write_json(path, add_digest(value))


def _clear(folder: Path, *names: str) -> None:
    for path in _files(folder, *names) if is_first() else ():
        path.unlink(missing_ok=True)


def _clear_parts(folder: Path) -> None:
    """Remove what processes that were killed have left of the run's files, while this one holds the lock."""
    for file in _files(folder, *FILES):
        for part in folder.glob(f".{file.name}.*.part"):
            part.unlink()
