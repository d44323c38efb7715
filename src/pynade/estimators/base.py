"""What all estimators share: parameters, rows in, a fitted model, files."""

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
    """Abstract estimator of a density: a concrete one says what its cells are and how its model is built."""

    validation_fraction: float = 0.1
    device: str = "auto"
    random_state: Any = None

    takes_missing: ClassVar[bool] = True  # whether rows to fit and to score may have missing cells
    _fits_missing: ClassVar[bool] = True  # whether those to fit may, if those to score may
    _shared: ClassVar[bool] = False  # whether the processes that torchrun started can fit it together
    _options: ClassVar[type | None] = None  # class of the `training` parameter
    _defaults: ClassVar[dict[str, Any]] = {}  # of its fields, where this estimator has others
    _facts: ClassVar[tuple[str, ...]] = ()  # further fitted attributes that JSON can hold, saved and loaded

    @abstractmethod
    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: FitRequest) -> None:
        """Fit to converted rows; sets `model_` and `history_`."""

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
        """Fit by maximum likelihood; validation rows end training early and choose among settings.

        Several processes can fit a model of a net together: `with pynade.processes.together(): model.fit(X)`
        in a program started by torchrun. Each is given the same rows, and gets the same model.

        Args:
            X: rows (N, D): array or data frame. Of `TabularNADE` also a CSV or Parquet file, a folder of them
                or a pattern such as ``data/*.parquet``; what does not fit into memory is read in parts.
            y: ignored.
            X_valid: validation rows; without them a share of X, drawn by random_state, is held out.
            folder: keep metrics.jsonl and checkpoints here.
            resume: go on from the checkpoints in `folder`, to the identical result.
            callbacks: called with a `pynade.training.Progress`; one that returns True or a reason ends
                training.
            source: draw fresh training rows from here, `updates_per_epoch` minibatches an epoch (of a
                mixture: in minibatches); X then only gives scales and initial biases.
            columns: names of the columns of an array; a data frame has its own.
        """
        self._check_processes()
        place = None if folder is None else Path(folder)
        with self._opened(X, X_valid, source, place) as (X, X_valid, source):
            request = FitRequest(place, resume, tuple(callbacks), source)
            rows = self._rows(X, fitting=True, columns=columns)
            seed = processes.value_of_first(self._seed(request))
            train, valid = self._split(rows, X_valid, seed)
            self._check(train, valid)
            self._fit(train, valid, seed, request)
        self.seed_ = seed
        self.n_iter_ = len(self.history_.epochs)
        return self

    def check_request(self, X: Any, X_valid: Any = None, columns: Names = None) -> None:
        """Raise whatever `fit` would raise about its input and parameters, without training."""
        torch_device(self.device)
        check_random_state(self.random_state)
        self._check_processes()
        self._check(*self._split(self._rows(X, fitting=True, columns=columns), X_valid, 0))

    @contextmanager
    def _opened(self, X: Any, X_valid: Any, source: Any, folder: Path | None) -> Iterator[Any]:
        """The rows, those for validation, and the source of `fit`; here files are refused."""
        if isinstance(X, str | os.PathLike):
            what = f"{type(self).__name__} is fitted to an array or a data frame, not to a file"
            raise TypeError(f"{what} such as {os.fspath(X)!r}; TabularNADE takes tables in files")
        yield X, X_valid, source

    def _check_processes(self) -> None:
        """Refuse several processes where they cannot share the work."""
        if processes.rank_and_size()[1] == 1:
            return
        if not self._shared:
            raise ValueError(f"{type(self).__name__} is fitted by one process: start it without torchrun")
        if str(self.device).startswith("cuda:"):
            raise ValueError(f"several processes take a GPU each: give device='cuda', not {self.device!r}")

    def _split(self, rows: np.ndarray, X_valid: Any, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Training and validation rows; the same ones as on the command line, for a whole random_state."""
        if X_valid is not None:
            return rows, self._rows(X_valid, columns=self._names())
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be in [0, 1), not {self.validation_fraction}")
        held = round(self.validation_fraction * len(rows))
        if held < 2 or len(rows) - held < 2:  # too few for a score with a standard error
            return rows, None
        seed = int(self.random_state) if isinstance(self.random_state, int | np.integer) else seed
        train, valid = validation_rows(len(rows), self.validation_fraction, seed)
        return rows[train], rows[valid]

    def _seed(self, request: FitRequest | None = None) -> int:
        """The seed of a fit; without a random_state, that of the fit that is resumed, where it is known."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _rows(
        self, X: Any, *, fitting: bool = False, missing: bool | None = None, columns: Names = None
    ) -> np.ndarray:
        """Converted rows, or one clear sentence; `missing`: whether cells may be; `columns`: of an array."""
        table, names = as_matrix(X)
        names = names or (None if columns is None else list(columns))
        if not fitting:
            check_is_fitted(self, "n_features_in_")
            table = align(table, names, self._names())
        least = dict.fromkeys(("ensure_min_samples", "ensure_min_features"), 2 if fitting else 1)
        numbers = check_array(table, dtype="numeric", ensure_all_finite=False, estimator=self, **least)
        if fitting:
            self._remember(numbers.shape[1], names, frame_kind(X))
        elif numbers.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {numbers.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        cells = self._cells()
        rows: np.ndarray = cells.convert(numbers, self._gaps(numbers, missing))
        if fitting:
            cells.check_columns(rows, self._names())
        return rows

    def _remember(self, n: int, names: Names, frame: str | None) -> None:
        """Keep the number and the names of the columns, and the kind of the frame, of the fitted table."""
        self.n_features_in_, self.frame_ = n, frame
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)

    def _gaps(self, X: np.ndarray, allowed: bool | None) -> np.ndarray | None:
        """Where cells are missing (NaN), or None if none is; refuses infinities, empty rows, unwanted NaN."""
        if X.dtype.kind != "f" or np.isfinite(X).all():
            return None
        missing, infinite = np.isnan(X), np.isinf(X)
        allowed = self.takes_missing if allowed is None else allowed
        refused = infinite if allowed or infinite.any() else missing
        if refused.any():
            row, column = np.argwhere(refused)[0]
            where = f"{type(self).__name__} takes {self._cells().takes}, but row {row}, column {column} is"
            others = "orderless models (DeepNADE, DeepRNADE) and mixtures (BernoulliMixture, GaussianMixture)"
            where += " inf" if infinite.any() else f" NaN; {others} take missing values"
            raise ValueError(where)
        if missing.all(1).any():
            raise ValueError(f"row {missing.all(1).argmax()} has no value at all: every cell is missing")
        return missing

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.takes_missing and self._fits_missing
        return tags

    def flat_parameters(self) -> dict[str, Any]:
        """All parameters by name, the options of `training` among them."""
        own, options = self.get_params(deep=False), self._training_options()
        own.pop("training", None)
        return own | ({} if options is None else asdict(options))

    def set_params(self, **params: Any) -> Self:
        """Set parameters; options of `training` may be given by their own names.

        Args:
            **params: by name.
        """
        names = set() if self._options is None else {f.name for f in fields(self._options)}
        options = {name: params.pop(name) for name in list(params) if name in names}
        super().set_params(**params)
        if options:
            given: Any = getattr(self, "training", None) or {}
            known = vars(given) if is_dataclass(given) else given
            setattr(self, "training", {**known, **options})  # noqa: B010
        return self

    def _training_options(self) -> Any:
        """The options of `training` as an object, with this estimator's defaults."""
        given = getattr(self, "training", None)
        if self._options is None or is_dataclass(given):
            return given
        try:
            return self._options(**self._defaults | dict(given or {}))
        except TypeError:
            known = [f.name for f in fields(self._options)]
            wrong = next((name for name in given or {} if name not in known), given)
            raise ValueError(f"unknown option {wrong!r} of training; known: {', '.join(known)}") from None

    def save(self, path: Path | str, **facts: Any) -> None:
        """Write the fitted model as safetensors; `pynade.load(path)` gives this estimator back.

        Args:
            path: the file to write.
            **facts: further JSON facts to keep in the metadata.
        """
        check_is_fitted(self, "model_")
        parameters = {name: plain(value) for name, value in self.flat_parameters().items()}
        fitted = {"history_": asdict(self.history_), "feature_names_in_": self._names()}
        for name in ("n_features_in_", "seed_", "frame_", *self._facts):
            value: Any = getattr(self, name, None)
            fitted[name] = value.to_json() if hasattr(value, "to_json") else value
        extra = {"estimator": {"name": type(self).__name__, "params": parameters, "fitted": fitted}} | facts
        store.save_density(self.model_, path, extra)


@dataclass(frozen=True)
class FitRequest:
    """The folder of a fit, whether it resumes, its callbacks, and the source of fresh rows."""

    folder: Path | None = None
    resume: bool = False
    callbacks: tuple[training.Callback, ...] = ()
    source: RowSource | None = None


def plain(value: Any) -> Any:
    """A parameter as JSON can hold it; a generator given as random_state becomes None."""

    def simple(value: Any) -> Any:
        value = getattr(value, "order", value)  # of an Ordering
        if isinstance(value, Mapping) or type(value).__name__ == "device":
            return dict(value) if isinstance(value, Mapping) else str(value)
        return value.tolist() if hasattr(value, "tolist") else None

    return json.loads(json.dumps(value, default=simple))


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


def load_with_facts(path: Path | str) -> tuple[Any, dict[str, Any]]:
    """`load`, and the metadata the model was saved with."""
    path = Path(path)
    if path.is_dir():
        if not (path / "model.safetensors").is_file():
            raise FileNotFoundError(f"{path} is no finished run folder: it has no model.safetensors")
        path = path / "model.safetensors"
    with verify_digest(path):  # which also hides behind the import of torch
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
