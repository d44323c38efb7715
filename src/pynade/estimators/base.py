"""What all estimators share: parameters, rows in, a fitted model, files.

Estimators are dataclasses, so that the constructor only stores, and each parameter is declared, typed and
given its default once. Torch is imported where it is needed: parameters can be listed without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from pynade.device import torch_device
from pynade.estimators.cells import missing_cells
from pynade.estimators.questions import Questions
from pynade.tables.dataset import validation_rows
from pynade.tables.frames import align, as_matrix, frame_kind

if TYPE_CHECKING:
    from pynade.tables.dataset import RowSource
    from pynade.training import Callback


@dataclass(kw_only=True, eq=False, repr=False)
class DensityEstimator(Questions):
    """Abstract estimator of a density: a table of cells, a model, and the questions one can ask of it.

    A concrete estimator declares its parameters and says what its cells are and how its model is built. What
    can be answered is a property of the fitted model (see `pynade.estimators.questions`).
    """

    validation_fraction: float = 0.1
    device: str = "auto"
    random_state: Any = None

    _options: ClassVar[type | None] = None  # class of the `training` parameter
    _defaults: ClassVar[dict[str, Any]] = {}  # of its fields, where this estimator has others
    _facts: ClassVar[tuple[str, ...]] = ()  # further fitted attributes that JSON can hold, saved and loaded

    @abstractmethod
    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: FitRequest) -> None:
        """Fit to converted rows; sets `model_` and `history_`."""

    @abstractmethod
    def _check(self, train: np.ndarray, valid: np.ndarray | None) -> None:
        """Raise a ValueError if the parameters do not fit these rows."""

    @property
    def takes_missing(self) -> bool:
        """Whether rows to fit and to score may have missing cells."""
        return True

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_valid: Any = None,
        folder: Path | str | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        source: RowSource | None = None,
        columns: Sequence[str] | None = None,
    ) -> Self:
        """Fit by maximum likelihood; validation rows end training early and choose among settings.

        Args:
            X: rows (N, D): array or data frame.
            y: ignored.
            X_valid: validation rows; without them a share of X, drawn by random_state, is held out.
            folder: keep metrics.jsonl and checkpoints here.
            resume: go on from the checkpoints in `folder`, to the identical result.
            callbacks: called with a `pynade.training.Progress`; one that returns True ends training.
            source: draw fresh training rows from here, `updates_per_epoch` minibatches an epoch (of a
                mixture: in minibatches); X then only gives scales and initial biases.
            columns: names of the columns of an array; a data frame has its own.
        """
        request = FitRequest(None if folder is None else Path(folder), resume, tuple(callbacks), source)
        rows = self._rows(X, fitting=True, columns=columns)
        seed = self._resumed_seed(request)
        train, valid = self._split(rows, X_valid, seed)
        self._check(train, valid)
        self._fit(train, valid, seed, request)
        self.seed_ = seed
        self.n_iter_ = len(self.history_.epochs)
        return self

    def check_request(self, X: Any, X_valid: Any = None, columns: Sequence[str] | None = None) -> None:
        """Raise whatever `fit` would raise about its input and parameters, without training."""
        torch_device(self.device)
        check_random_state(self.random_state)
        rows = self._rows(X, fitting=True, columns=columns)
        self._check(*self._split(rows, X_valid, 0))

    def _split(self, rows: np.ndarray, X_valid: Any, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Training and validation rows; the same ones as on the command line, for a whole random_state."""
        if X_valid is not None:
            return rows, self._rows(X_valid, columns=self._names())
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be in [0, 1), not {self.validation_fraction}")
        held = round(self.validation_fraction * len(rows))
        if held < 2 or len(rows) - held < 2:  # too few for a score with a standard error
            return rows, None
        whole = isinstance(self.random_state, int | np.integer)
        chosen = validation_rows(
            len(rows), self.validation_fraction, int(self.random_state) if whole else seed
        )
        return rows[chosen[0]], rows[chosen[1]]

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _resumed_seed(self, request: FitRequest) -> int:
        """The seed of this fit; without a random_state, that of the fit that is resumed."""
        return self._seed()

    def _rows(self, X: Any, **options: Any) -> np.ndarray:
        """Converted rows, or one clear sentence; columns of a frame are put into the fitted order.

        Options: `fitting`, `missing` (whether cells may be), `columns` (names of those of an array).
        """
        fitting, columns = options.get("fitting", False), options.get("columns")
        table, names = as_matrix(X)
        names = names or (None if columns is None else list(columns))
        least = 2 if fitting else 1
        if not fitting:
            check_is_fitted(self, "n_features_in_")
            table = align(table, names, self._names())
        numbers = check_array(
            table,
            dtype="numeric",
            ensure_all_finite=False,
            ensure_min_samples=least,
            ensure_min_features=least,
            estimator=self,
        )
        if fitting:
            self.n_features_in_, self.frame_ = numbers.shape[1], frame_kind(X)
            if names is not None:
                self.feature_names_in_ = np.asarray(names, dtype=object)
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        elif numbers.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {numbers.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        cells = self._cells()
        allowed = options.get("missing", self.takes_missing)
        gaps = missing_cells(numbers, type(self).__name__, cells.takes, allowed)
        rows: np.ndarray = cells.convert(numbers, gaps)
        if fitting:
            cells.check_columns(rows, self._names())
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.takes_missing
        return tags

    def flat_parameters(self) -> dict[str, Any]:
        """All parameters by name, the options of `training` among them."""
        own = self.get_params(deep=False)
        options = self._training_options()
        return {k: v for k, v in own.items() if k != "training"} | (
            {} if options is None else asdict(options)
        )

    def set_params(self, **params: Any) -> Self:
        """Set parameters; options of `training` may be given by their own names."""
        known = {} if self._options is None else {f.name for f in fields(self._options)}
        options = {name: params.pop(name) for name in list(params) if name in known}
        super().set_params(**params)
        if options:
            setattr(self, "training", asdict(self._training_options()) | options)  # noqa: B010
        return self

    def _training_options(self) -> Any:
        """The options of `training` as an object, with this estimator's defaults."""
        if self._options is None:
            return None
        given = getattr(self, "training", None)
        if is_dataclass(given):
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
        from pynade.store import save_density

        check_is_fitted(self, "model_")
        parameters = {name: plain(value) for name, value in self.flat_parameters().items()}
        fitted: dict[str, Any] = {
            "n_features_in_": self.n_features_in_,
            "history_": asdict(self.history_),
            "seed_": self.seed_,
            "frame_": getattr(self, "frame_", None),
        }
        facts_of = {name: getattr(self, name) for name in self._facts}
        fitted |= {k: v.to_json() if hasattr(v, "to_json") else v for k, v in facts_of.items()}
        if self._names() is not None:
            fitted["feature_names_in_"] = self._names()
        extra = {"estimator": {"name": type(self).__name__, "params": parameters, "fitted": fitted}} | facts
        save_density(self.model_, path, extra)


@dataclass(frozen=True)
class FitRequest:
    """The folder of a fit, whether it resumes, its callbacks, and the source of fresh rows."""

    folder: Path | None = None
    resume: bool = False
    callbacks: tuple[Callback, ...] = ()
    source: RowSource | None = None


def plain(value: Any) -> Any:
    """A parameter as JSON can hold it; a generator given as random_state becomes None."""
    if hasattr(value, "order"):  # an Ordering
        value = value.order
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(name): plain(v) for name, v in value.items()}
    if type(value).__name__ == "device":
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else None
