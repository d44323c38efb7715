"""Mixtures of Bernoullis and Chow–Liu trees as scikit-learn estimators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from pynade import classical, models
from pynade.classical import EMHistory, chow_liu, chow_liu_chosen, em_bernoulli, em_trees
from pynade.classical.chow_liu_learning import ALPHAS
from pynade.estimators.baselines import Baseline, Found, Task, best_index, best_of, history_of
from pynade.estimators.domain import BinaryTable
from pynade.estimators.settings import Setting, check_loop, choices, needs_validation, positive, whole
from pynade.likelihood import row_log_probs

UNCHOSEN_ALPHA = 0.1  # where there are no validation rows to choose it on


@dataclass(eq=False, repr=False)
class BernoulliMixture(BinaryTable, Baseline):
    """Mixture of multivariate Bernoullis by EM, the paper's MoB; NaN is missing, in fitting too.

    Args:
        n_components: K, or several to choose from on the validation rows (the paper: 32, 64, …, 1024).
        smoothing: pseudo-counts of both outcomes, above 0.
        iterations: M-steps at most.
        patience: M-steps without a better validation score before stopping; None runs on.
        tolerance: stop when the objective rises by less, in nats per row.
        **parameters: see `Baseline`, `BinaryTable` and `DensityEstimator`.

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
    iterations: int = 200
    patience: int | None = 10
    tolerance: float = 1e-6

    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        check_loop(self.iterations, self.patience, self.tolerance)
        positive("smoothing", self.smoothing)
        counts = [whole("n_components", k) for k in choices("n_components", self.n_components)]
        return needs_validation([{"n_components": k} for k in counts], validated)

    def _learn(self, task: Task) -> Found:
        found: list[tuple[models.Marginalisable, EMHistory]] = []
        x, valid = task.rows()
        for number, setting in enumerate(task.settings):
            learned = em_bernoulli(
                x,
                x_valid=valid,
                iterations=self.iterations,
                patience=self.patience,
                tolerance=self.tolerance,
                smoothing=self.smoothing,
                generator=task.generator(),
                callback=partial(task.watch.em, setting=number),
                keeper=task.keeper(number),
                **setting,
            )
            found.append(learned)
        return best_of(found)


@dataclass(eq=False, repr=False)
class ChowLiu(BinaryTable, Baseline):
    """Chow–Liu tree of binary variables, or a mixture of such trees by EM.

    The structure is the tree of largest mutual information; its tables are smoothed by add-α.

    Args:
        alpha: α > 0, or several to choose from on the validation rows; None chooses from 1e-20, 0.001, 0.01,
            0.1 and 1 (without validation rows: 0.1).
        n_components: 1 is a single tree, K > 1 a mixture of K trees; several are chosen from.
        iterations: M-steps at most, of a mixture.
        patience: M-steps without a better validation score before stopping; None runs on.
        tolerance: stop when the objective rises by less, in nats per row.
        **parameters: see `Baseline`, `BinaryTable` and `DensityEstimator`.

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
    iterations: int = 50
    patience: int | None = 5
    tolerance: float = 1e-6

    _fits_missing: ClassVar[bool] = False

    @property
    def tree_(self) -> classical.ChowLiuTree:
        """The fitted tree; of a mixture, the one with the largest weight."""
        check_is_fitted(self, "model_")
        if isinstance(self.model_, classical.TreeMixture):
            return self.model_.trees[int(self.model_.log_weights.argmax())]
        tree: classical.ChowLiuTree = self.model_
        return tree

    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        check_loop(self.iterations, self.patience, self.tolerance)
        given = self.alpha
        if given is None:
            given = ALPHAS if validated else UNCHOSEN_ALPHA
        alphas = [positive("alpha", alpha) for alpha in choices("alpha", given)]
        counts = [whole("n_components", k) for k in choices("n_components", self.n_components)]
        grid = [{"n_components": k, "alpha": alpha} for k, alpha in itertools.product(counts, alphas)]
        return needs_validation(grid, validated)

    def _learn(self, task: Task) -> Found:
        found: list[Found] = []
        (x, valid), watch = task.rows(), task.watch
        for k, group in itertools.groupby(task.settings, lambda setting: setting["n_components"]):
            alphas = [setting["alpha"] for setting in group]
            done = sum(len(each.scores) for each in found)
            if k == 1:
                found.append(_single(x, valid, alphas, partial(watch.tell, setting=done + len(alphas) - 1)))
                continue
            mixtures: list[tuple[models.Marginalisable, EMHistory]] = []
            for number, alpha in enumerate(alphas, start=done):
                learned = em_trees(
                    x,
                    k,
                    valid,
                    iterations=self.iterations,
                    patience=self.patience,
                    tolerance=self.tolerance,
                    alpha=alpha,
                    generator=task.generator(),
                    callback=partial(watch.em, setting=number),
                    keeper=task.keeper(number),
                )
                mixtures.append(learned)
            found.append(best_of(mixtures))
        leader = best_index([each.scores[each.chosen] for each in found])
        before = sum(len(each.scores) for each in found[:leader])
        scores = [score for each in found for score in each.scores]
        return found[leader]._replace(chosen=before + found[leader].chosen, scores=scores)


def _single(
    x: torch.Tensor, valid: torch.Tensor | None, alphas: list[float], tell: Callable[..., bool]
) -> Found:
    """One tree, its smoothing chosen."""
    scores: list[float | None] = [None]
    if valid is None:
        tree = chow_liu(x, alphas[0], dtype=torch.float64)
    else:
        tree, by_alpha = chow_liu_chosen(x, valid, alphas, dtype=torch.float64)
        scores = [by_alpha[alpha] for alpha in alphas]
    chosen = best_index(scores)
    train = float(row_log_probs(tree, x).mean())
    history = EMHistory([train], stopped="closed form")
    score = scores[chosen]
    if score is not None:
        history.valid, history.valid_at = [score], [0]
    tell(1, 1, train, score, 0.0)
    return Found(chosen, tree, history_of(history), scores)
