"""A Gaussian, Chow–Liu trees, and mixtures of Bernoullis, of trees, of Gaussians and of factor analysers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from pynade.estimators.cells import BinaryTable, Real
from pynade.estimators.classical import ClassicalEstimator, Problem, Results, check_ranges, choices
from pynade.estimators.modules import classical, likelihood, torch
from pynade.estimators.parameters import documented

ALPHAS = (1e-20, 0.001, 0.01, 0.1, 1.0)  # smoothing of trees, chosen on validation rows
DEFAULT_ALPHA = 0.1  # without validation rows


@documented
class BernoulliMixture(BinaryTable, ClassicalEstimator):
    """Mixture of multivariate Bernoullis by EM, the paper's MoB; training rows may have missing cells (NaN).

    Example:
        >>> import numpy as np
        >>> X = np.repeat([[0, 0, 0, 0], [1, 1, 1, 1]], 100, axis=0)
        >>> model = BernoulliMixture(n_components=(1, 2), random_state=0).fit(X)
        >>> model.chosen_
        {'n_components': 2}
        >>> model.impute(np.array([[1, np.nan, np.nan, np.nan]])).tolist()
        [[1, 1, 1, 1]]
    """

    n_components: int | Sequence[int] = 32
    smoothing: float = 0.1
    epochs: int = 200
    patience: int | None = 10
    tol: float = 1e-6

    _grid_parameters = ("n_components",)

    def _learn(self, problem: Problem) -> Results:
        return problem.learn_each(classical.em_bernoulli, smoothing=self.smoothing, **self._em_options())


@documented
class ChowLiu(BinaryTable, ClassicalEstimator):
    """Chow–Liu tree of binary variables, or a mixture of such trees by EM.

    The structure is the tree of largest mutual information; its tables are smoothed by add-α.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).integers(0, 2, (300, 1))
        >>> X = np.hstack([x, 1 - x, x])
        >>> model = ChowLiu(random_state=0).fit(X)
        >>> model.tree_.edges()
        [(0, 1), (0, 2)]
        >>> model.conditional(1, given={0: 1}).mean() < 0.01
        True
    """

    alpha: float | Sequence[float] | None = None
    n_components: int | Sequence[int] = 1
    epochs: int = 50
    patience: int | None = 5
    tol: float = 1e-6

    _grid_parameters = ("n_components",)
    _fits_missing = False

    @property
    def tree_(self) -> classical.ChowLiuTree:
        """The fitted tree; of a mixture, the one with the largest weight."""
        check_is_fitted(self, "model_")
        trees = getattr(self.model_, "trees", None)
        return self.model_ if trees is None else trees[int(self.model_.log_weights.argmax())]

    def _grid(self, train: np.ndarray, validated: bool) -> dict[str, list[Any]]:
        default = ALPHAS if validated else DEFAULT_ALPHA
        alpha = default if self.alpha is None else self.alpha
        return super()._grid(train, validated) | {"alpha": choices("alpha", alpha)}

    def _learn(self, problem: Problem) -> Results:
        alphas = {n: s["alpha"] for n, s in enumerate(problem.settings) if s["n_components"] == 1}
        mixtures = [n for n in range(len(problem.settings)) if n not in alphas]
        results: dict[int, tuple[Any, Any]] = {}
        if alphas:  # single trees: all alphas are scored at once, and the best tree is returned
            x, valid = problem.rows()
            rows, values = x if valid is None else valid, list(alphas.values())
            tree, scores = classical.chow_liu_chosen(x, rows, values, dtype=torch.float64)
            train, best = float(likelihood.row_log_probs(tree, x).mean()), max(scores, key=scores.__getitem__)
            for n, alpha in alphas.items():
                score = None if valid is None else scores[alpha]
                results[n] = tree, problem.closed_form(train, score, report=alpha == best)
        trained = problem.learn_each(classical.em_trees, mixtures, **self._em_options())
        results |= zip(mixtures, trained, strict=True)
        return [results[n] for n in range(len(problem.settings))]


@dataclass(eq=False, repr=False)
class RealMixture(ClassicalEstimator):
    """Abstract estimator of a Gaussian or a mixture of Gaussians."""

    standardise: bool = field(default=True, kw_only=True)

    _limited_by_data = True
    _floor_parameter: ClassVar[str] = ""  # name of the parameter that keeps covariances from being singular

    def _cells(self) -> Real:
        return Real(self._floor_parameter, getattr(self, self._floor_parameter, 0.0))


@documented
class Gaussian(RealMixture):
    """One Gaussian with a full covariance, in closed form, or by EM if values are missing.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(500, 1))
        >>> X = np.hstack([x, 3 * x + 0.1 * np.random.default_rng(1).normal(size=x.shape)])
        >>> model = Gaussian(random_state=0).fit(X)
        >>> model.impute(np.array([[1.0, np.nan]])).round(1).tolist()
        [[1.0, 3.0]]
    """

    shrinkage: str | float | None = None
    covariance_floor: float = 0.0
    validation_fraction: float = field(default=0.0, kw_only=True)  # nothing is chosen

    def check_request(self, X: Any, X_valid: Any = None, columns: Sequence[str] | None = None) -> None:
        """Raise the errors that `fit` would raise; complete rows are fitted, which takes little time."""
        super().check_request(X, X_valid, columns)
        rows = self._rows(X)
        if not np.isnan(rows).any():
            clone(self).set_params(device="cpu").fit(rows)

    def _learn(self, problem: Problem) -> Results:
        x, valid = problem.rows()
        model = classical.gaussian(x, self.shrinkage, self.covariance_floor, self.standardise)
        scores: list[Any] = [
            None if rows is None else float(model.marginal_log_prob(rows, ~torch.isnan(rows)).mean())
            for rows in (x, valid)
        ]
        stopped = "converged" if torch.isnan(x).any() else "closed form"
        return [(model, problem.closed_form(scores[0], scores[1], stopped))]


@dataclass(frozen=True, kw_only=True)
class FactorTraining:
    """Advanced options of EM for mixtures of factor analysers.

    Attributes:
        init: "rows": random rows as means, loadings from the pooled covariance; or "k-means++".
        stop_at_train: stop when the training log-likelihood reaches this value (the paper's rule when
            retraining on train + valid: the `history_.train_log_likelihood` of the validated fit).
    """

    init: str = "rows"
    stop_at_train: float | None = None

    def __post_init__(self) -> None:
        if self.init not in ("k-means++", "rows"):
            raise ValueError(f"unknown init {self.init!r}; known: 'k-means++', 'rows'")


@dataclass(frozen=True, kw_only=True)
class MixtureTraining(FactorTraining):
    """Advanced options of EM for mixtures of Gaussians.

    Attributes:
        init: "k-means++", or "rows": random rows as means, the pooled covariance.
        stop_at_train: stop when the training log-likelihood reaches this value; not in minibatches.
        minibatch: draw `batch_size` random rows for every update, and take a step towards their EM update.
        batch_size: rows per update; only in minibatches.
        step_size: step size of the first update, from 0 to 1, decreasing linearly to 0; only in minibatches.
        zero_means: keep all means at zero; only in minibatches.
    """

    init: str = "k-means++"
    minibatch: bool = False
    batch_size: int = 20_000
    step_size: float = 0.1
    zero_means: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self)
        if not 0 < self.step_size <= 1:
            raise ValueError(f"step_size must be above 0 and at most 1, not {self.step_size}")
        if self.zero_means and not self.minibatch:
            raise ValueError("zero_means is for learning in minibatches: set minibatch too")
        if self.stop_at_train is not None and self.minibatch:
            raise ValueError("stop_at_train is not for learning in minibatches, whose scores are noisy")


@documented
class GaussianMixture(RealMixture):
    """Mixture of full-covariance Gaussians by EM, or in minibatches as the paper did for patches and speech.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = np.vstack([rng.normal(-4, 1, (200, 2)), rng.normal(4, 1, (200, 2))])
        >>> model = GaussianMixture(n_components=(1, 2), random_state=0).fit(X)
        >>> model.chosen_, bool(abs(model.conditional(1, given={0: 4.0}).mean() - 4) < 0.3)
        ({'n_components': 2}, True)
    """

    n_components: int | Sequence[int] = 10
    covariance_floor: float = 1e-6
    epochs: int | None = None
    patience: int | None = 10
    tol: float = 1e-4
    training: MixtureTraining | Mapping[str, Any] | None = field(default=None, kw_only=True)

    _options = MixtureTraining
    _grid_parameters = ("n_components",)
    _floor_parameter = "covariance_floor"

    def _learn(self, problem: Problem) -> Results:
        options = asdict(self._training_options())
        minibatch, stop_at_train = options.pop("minibatch"), options.pop("stop_at_train")
        epochs = (1000 if minibatch else 200) if self.epochs is None else self.epochs
        common = {name: getattr(self, name) for name in ("patience", "covariance_floor", "standardise")}
        common |= {"epochs": epochs + 1, "init": options.pop("init")}
        if not minibatch:
            common |= {"tol": self.tol, "stop_at_train": stop_at_train}
            return problem.learn_each(classical.em_gaussian, **common)
        if problem.request.source is not None and self.standardise:  # by the moments of the training rows
            common["standardise"] = problem.rows()[0]
        return problem.learn_each(classical.minibatch_em, **common, **options)


@documented
class MFA(RealMixture):
    """Mixture of factor analysers by EM: Gaussians whose covariance is low rank plus diagonal.

    With several numbers of components or factors, all combinations are fitted by one batched EM, each with
    its own stopping criterion, and the one with the best validation score is kept.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 1)) * [1.0, 2.0, -1.0, 0.5] + 0.1 * rng.normal(size=(400, 4))
        >>> model = MFA(n_components=1, n_factors=(1, 2), random_state=0).fit(X)
        >>> [sorted(setting) for setting in model.choices_]
        [['n_components', 'n_factors', 'valid'], ['n_components', 'n_factors', 'valid']]
        >>> model.impute(np.array([[1.0, np.nan, np.nan, np.nan]])).round().tolist()
        [[1.0, 2.0, -1.0, 0.0]]
    """

    n_components: int | Sequence[int] = 5
    n_factors: int | Sequence[int] = 2
    noise_floor: float = 1e-6
    epochs: int = 500
    patience: int | None = 20
    tol: float = 1e-4
    training: FactorTraining | Mapping[str, Any] | None = field(default=None, kw_only=True)

    _options = FactorTraining
    _grid_parameters = ("n_components", "n_factors")
    _floor_parameter = "noise_floor"
    _trains_jointly = True
    _folds_at_once = 5  # bounds the memory of one EM, and the work lost by an interruption

    def _learn(self, problem: Problem) -> Results:
        return self._learn_folds([self], [problem])[0]

    @classmethod
    def _learn_folds(cls, estimators: Sequence[Any], folds: Sequence[Problem]) -> list[Results]:
        """All settings of all folds by one EM, if the estimators have the same stopping criteria."""
        pairs = list(zip(estimators, folds, strict=True))
        loops = [e._em_options("noise_floor", "standardise") for e in estimators]
        if any((p.device, loop) != (folds[0].device, loops[0]) for p, loop in zip(folds, loops, strict=True)):
            return [cls._learn_folds([e], [problem])[0] for e, problem in pairs]
        tasks = []
        for estimator, problem in pairs:
            (x, valid), options = problem.rows(), asdict(estimator._training_options())
            for setting in problem.settings:
                arguments = options | setting | {"valid": valid, "generator": problem.generator()}
                tasks.append(classical.FactorTask(x, **arguments))
        results = iter(classical.em_factors(tasks, **loops[0], **folds[0].loop()))
        return [list(itertools.islice(results, len(problem.settings))) for problem in folds]
