"""The base class of all estimators: parameters, checks of the input, fitting, saving and loading."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from pynade.device import available_device, torch_device
from pynade.digest import verify_digest
from pynade.estimators.modules import processes, store, training
from pynade.estimators.questions import Questions
from pynade.estimators.registry import estimator_named
from pynade.tables.dataset import RowSource, validation_rows
from pynade.tables.frames import Names, align, as_matrix, frame_kind
from pynade.tables.schema import Schema


@dataclass(kw_only=True, eq=False, repr=False)
class DensityEstimator(Questions):
    """Abstract estimator of a density; subclasses define the kind of cells and how the model is built."""

    validation_fraction: float = 0.1
    device: str = "auto"
    random_state: Any = None

    takes_missing: ClassVar[bool] = True  # whether rows may have missing cells
    _fits_missing: ClassVar[bool] = True  # if takes_missing: whether training rows may have them too
    _trains_in_processes: ClassVar[bool] = False  # whether several processes (torchrun) can fit it together
    _options: ClassVar[type | None] = None  # class of the `training` parameter
    _defaults: ClassVar[dict[str, Any]] = {}  # defaults of its fields that differ for this estimator
    _facts: ClassVar[tuple[str, ...]] = ()  # further fitted attributes, saved as JSON

    @abstractmethod
    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: FitRequest) -> None:
        """Fit the model to converted rows; sets `model_` and `history_`."""

    @abstractmethod
    def _check(self, train: np.ndarray, valid: np.ndarray | None) -> None:
        """Raise a ValueError if the parameters do not fit these rows."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_valid: Any = None,
        folder: Path | str | None = None,
        resume: bool = False,
        callbacks: Sequence[training.Callback] = (),
        source: RowSource | None = None,
        columns: Names = None,
    ) -> Self:
        """Fit by maximum likelihood; validation rows stop training early and choose among settings.

        Several processes can train one neural net together: `with pynade.processes.together(): model.fit(X)`
        in a program started by torchrun. Every process passes the same rows and obtains the same model.

        Args:
            X: rows (N, D): array or data frame. `TabularNADE` also takes a CSV or Parquet file, a folder of
                files or a pattern such as ``data/*.parquet``; files larger than memory are read in parts.
            y: ignored.
            X_valid: validation rows; None holds out a random share of X (`validation_fraction`).
            folder: folder for metrics.jsonl and checkpoints.
            resume: continue from the checkpoints in `folder`; the result is identical to that of an
                uninterrupted fit.
            callbacks: called with a `pynade.training.Progress`; a callback that returns True or a reason
                stops training.
            source: source of fresh training rows, of which an epoch draws `updates_per_epoch` minibatches
                (mixtures: needs minibatch training); X then only determines scales and initial biases.
            columns: names of the columns of an array; ignored for a data frame.
        """
        self._check_processes()
        path = None if folder is None else Path(folder)
        with self._open_data(X, X_valid, source, path) as (X, X_valid, source):
            request = FitRequest(path, resume, tuple(callbacks), source)
            rows = self._rows(X, fitting=True, columns=columns)
            seed = processes.value_of_first(self._seed(request))
            train, valid = self._split(rows, X_valid, seed)
            self._check(train, valid)
            self._fit(train, valid, seed, request)
        self.seed_ = seed
        self.n_iter_ = len(self.history_.epochs)
        return self

    def check_request(self, X: Any, X_valid: Any = None, columns: Names = None) -> None:
        """Raise the errors that `fit` would raise about its input and parameters, without training."""
        torch_device(self.device)
        check_random_state(self.random_state)
        self._check_processes()
        self._check(*self._split(self._rows(X, fitting=True, columns=columns), X_valid, 0))

    @contextmanager
    def _open_data(self, X: Any, X_valid: Any, source: Any, folder: Path | None) -> Iterator[Any]:
        """Training rows, validation rows and the source of rows for `fit`; files raise a TypeError here."""
        if isinstance(X, str | os.PathLike):
            error = f"{type(self).__name__} is fitted to an array or a data frame, not to a file"
            raise TypeError(f"{error} such as {os.fspath(X)!r}; TabularNADE takes tables in files")
        yield X, X_valid, source

    def _check_processes(self) -> None:
        """Raise a ValueError if several processes run but cannot train this estimator together."""
        if processes.rank_and_size()[1] == 1:
            return
        if not self._trains_in_processes:
            raise ValueError(f"{type(self).__name__} is fitted by one process: start it without torchrun")
        if str(self.device).startswith("cuda:"):
            raise ValueError(f"each process uses a GPU of its own: give device='cuda', not {self.device!r}")

    def _split(self, rows: np.ndarray, X_valid: Any, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Training and validation rows; an integer random_state gives the same split as the command line."""
        if X_valid is not None:
            return rows, self._rows(X_valid, columns=self._names())
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be in [0, 1), not {self.validation_fraction}")
        n_valid = round(self.validation_fraction * len(rows))
        if n_valid < 2 or len(rows) - n_valid < 2:  # too few for a standard error
            return rows, None
        seed = int(self.random_state) if isinstance(self.random_state, int | np.integer) else seed
        train, valid = validation_rows(len(rows), self.validation_fraction, seed)
        return rows[train], rows[valid]

    def _seed(self, request: FitRequest | None = None) -> int:
        """The seed of a fit; if random_state is None and a fit is resumed, the seed of its checkpoint."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _rows(
        self, X: Any, *, fitting: bool = False, missing: bool | None = None, columns: Names = None
    ) -> np.ndarray:
        """Checked rows as numbers; `missing`: whether NaN is allowed (None: by the estimator)."""
        table, names = as_matrix(X)
        names = names or (None if columns is None else list(columns))
        if not fitting:
            check_is_fitted(self, "n_features_in_")
            table = align(table, names, self._names())
        minimum = dict.fromkeys(("ensure_min_samples", "ensure_min_features"), 2 if fitting else 1)
        numbers = check_array(table, dtype="numeric", ensure_all_finite=False, estimator=self, **minimum)
        if fitting:
            self._remember(numbers.shape[1], names, frame_kind(X))
        elif numbers.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {numbers.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        cells = self._cells()
        rows: np.ndarray = cells.convert(numbers, self._find_missing(numbers, missing))
        if fitting:
            cells.check_columns(rows, self._names())
        return rows

    def _remember(self, n: int, names: Names, frame: str | None) -> None:
        """Store the number and the names of the fitted columns, and the kind of data frame."""
        self.n_features_in_, self.frame_ = n, frame
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)

    def _find_missing(self, X: np.ndarray, allowed: bool | None) -> np.ndarray | None:
        """Mask (N, D) of missing cells (NaN), or None; raises an error for inf, empty rows, refused NaN."""
        if X.dtype.kind != "f" or np.isfinite(X).all():
            return None
        missing, infinite = np.isnan(X), np.isinf(X)
        allowed = self.takes_missing if allowed is None else allowed
        invalid = infinite if allowed or infinite.any() else missing
        if invalid.any():
            row, column = np.argwhere(invalid)[0]
            error = f"{type(self).__name__} takes {self._cells().takes}, but row {row}, column {column} is"
            others = "orderless models (DeepNADE, DeepRNADE) and mixtures (BernoulliMixture, GaussianMixture)"
            error += " inf" if infinite.any() else f" NaN; {others} take missing values"
            raise ValueError(error)
        if missing.all(1).any():
            raise ValueError(f"row {missing.all(1).argmax()} has no value at all: every cell is missing")
        return missing

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.takes_missing and self._fits_missing
        return tags

    def flat_parameters(self) -> dict[str, Any]:
        """All parameters by name, including the options of `training`."""
        params, options = self.get_params(deep=False), self._training_options()
        params.pop("training", None)
        return params | ({} if options is None else asdict(options))

    def set_params(self, **params: Any) -> Self:
        """Set parameters; options of `training` may be set by name like any other parameter.

        Args:
            **params: values by name.
        """
        names = set() if self._options is None else {f.name for f in fields(self._options)}
        options = {name: params.pop(name) for name in list(params) if name in names}
        super().set_params(**params)
        if options:
            training: Any = getattr(self, "training", None) or {}
            present = vars(training) if is_dataclass(training) else training
            setattr(self, "training", {**present, **options})  # noqa: B010
        return self

    def _training_options(self) -> Any:
        """The options of `training` as an object, with this estimator's defaults."""
        options = getattr(self, "training", None)
        if self._options is None or is_dataclass(options):
            return options
        try:
            return self._options(**self._defaults | dict(options or {}))
        except TypeError:
            known = [f.name for f in fields(self._options)]
            unknown = next((name for name in options or {} if name not in known), options)
            raise ValueError(f"unknown option {unknown!r} of training; known: {', '.join(known)}") from None

    def save(self, path: Path | str, **facts: Any) -> None:
        """Write the fitted estimator to a safetensors file, which `pynade.load(path)` reads.

        Args:
            path: the file to write.
            **facts: further metadata, as JSON.
        """
        check_is_fitted(self, "model_")
        parameters = {name: to_json(value) for name, value in self.flat_parameters().items()}
        fitted = {"history_": asdict(self.history_), "feature_names_in_": self._names()}
        for name in ("n_features_in_", "seed_", "frame_", *self._facts):
            value: Any = getattr(self, name, None)
            fitted[name] = value.to_json() if hasattr(value, "to_json") else value
        extra = {"estimator": {"name": type(self).__name__, "params": parameters, "fitted": fitted}} | facts
        store.save_density(self.model_, path, extra)


@dataclass(frozen=True)
class FitRequest:
    """Arguments of `fit`: the output folder, whether to resume, the callbacks, and the source of rows."""

    folder: Path | None = None
    resume: bool = False
    callbacks: tuple[training.Callback, ...] = ()
    source: RowSource | None = None


def to_json(value: Any) -> Any:
    """The value of a parameter as JSON; a random generator becomes None."""

    def convert(value: Any) -> Any:
        value = getattr(value, "order", value)  # of an Ordering
        if isinstance(value, Mapping) or type(value).__name__ == "device":
            return dict(value) if isinstance(value, Mapping) else str(value)
        return value.tolist() if hasattr(value, "tolist") else None

    return json.loads(json.dumps(value, default=convert))


def load(path: Path | str) -> Any:
    """Load a model file, or the model of a run folder.

    No code in the file is executed. The result is the estimator, or the density that
    `pynade.store.save_density` wrote. A model trained on a GPU can be loaded without one.

    Args:
        path: a .safetensors file written by `save`, or a run folder written by `pynade fit`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, not a file of pynade, or written by a newer version.
    """
    return load_with_facts(path)[0]


def load_with_facts(path: Path | str) -> tuple[Any, dict[str, Any]]:
    """As `load`, together with the metadata of the file."""
    path = Path(path)
    if path.is_dir():
        if not (path / "model.safetensors").is_file():
            raise FileNotFoundError(f"{path} is no finished run folder: it has no model.safetensors")
        path = path / "model.safetensors"
    with verify_digest(path):  # (runs while torch is imported)
        density, header = store.load_unverified(path)
    if "estimator" not in header:
        return density, header
    try:
        facts, fitted = header["estimator"], header["estimator"]["fitted"]
        estimator: Any = estimator_named(facts["name"].lower(), facts["params"])
        estimator.device = available_device(estimator.device)
        estimator.model_ = density
        estimator.history_ = training.History.from_json(fitted["history_"])
        estimator.n_iter_ = len(estimator.history_.epochs)
        for name in ("seed_", *estimator._facts):
            setattr(estimator, name, Schema.from_json(fitted[name]) if name == "schema_" else fitted[name])
        names = fitted.get("feature_names_in_") or header.get("columns") or None
        estimator._remember(fitted["n_features_in_"], names, fitted.get("frame_"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} cannot be loaded: unknown estimator or parameter {error}") from None
    return estimator, header
