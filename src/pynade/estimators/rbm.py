"""Restricted Boltzmann machines as a scikit-learn estimator."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pynade.device import torch_device
from pynade.estimators.cells import BinaryTable
from pynade.estimators.classical import ClassicalEstimator, Problem, Results, check_ranges, in_range
from pynade.estimators.modules import classical, families, likelihood, torch
from pynade.estimators.parameters import documented
from pynade.estimators.questions import Given, Orders, checked_count


@dataclass(frozen=True, kw_only=True)
class ContrastiveDivergence:
    """Advanced options of contrastive divergence.

    Attributes:
        updates_per_epoch: updates in an epoch; None makes an epoch one pass over the rows.
        schedule: "constant" learning rate, or "linear" to zero.
        evaluate_every: epochs between validations; the best parameters are kept. An RBM too large for exact
            scores is validated at the end only.
        ais_chains: number of chains of annealed importance sampling.
        ais_steps: number of intermediate distributions of annealed importance sampling.
        gibbs_steps: Gibbs steps per sample of an RBM too large for exact draws.
    """

    updates_per_epoch: int | None = None
    schedule: str = "constant"
    evaluate_every: int = 10
    ais_chains: int = 100
    ais_steps: int = 1000
    gibbs_steps: int = 1000

    def __post_init__(self) -> None:
        check_ranges(self)


@documented
class RBM(BinaryTable, ClassicalEstimator):
    """Restricted Boltzmann machine by contrastive divergence.

    If the smaller layer has at most 25 units (the paper uses 23), the RBM is an exact density and supports
    all queries; incomplete rows take a sum over all states of that layer for each pattern of missing cells
    (about a second at 23 units). The partition function of a larger RBM is estimated by annealed importance
    sampling: its scores are estimates with a common standard error `log_z_stderr_`, that of the logarithm
    `log_z_` (0 if exact), its samples are states of Gibbs chains, and other queries raise an error.

    Example:
        >>> import numpy as np
        >>> X = np.repeat([[0, 0, 0, 0], [1, 1, 1, 1]], 100, axis=0)
        >>> model = RBM(hidden=3, learning_rate=0.2, cd_steps=3, batch_size=10, random_state=0).fit(X)
        >>> bool(model.score(X) > -1.2)  # four fair coins have 2.77, the entropy is 0.69
        True
    """

    hidden: int = 23
    learning_rate: float | Sequence[float] = 0.1
    epochs: int = 100
    cd_steps: int = 1
    persistent: bool = False
    batch_size: int = 100
    n_init: int = 1
    training: ContrastiveDivergence | Mapping[str, Any] | None = field(default=None, kw_only=True)

    _options = ContrastiveDivergence
    _facts = (*ClassicalEstimator._facts, "log_z_", "log_z_stderr_")
    _grid_parameters = ("learning_rate",)
    _fits_missing = False
    _trains_jointly = True

    def machine(self) -> classical.RBM:
        """A copy of the fitted `pynade.classical.RBM`, with energies, Gibbs sampling and gradients."""
        check_is_fitted(self, "model_")
        return copy.deepcopy(self.model_.rbm if self._exact() else self.model_)

    def _copy(self) -> Any:
        check_is_fitted(self, "model_")
        if self._exact():
            return super()._copy()
        smaller = min(self.model_.n_visible, self.model_.n_hidden)
        raise ValueError(
            f"exact answers sum over all states of the smaller layer, which has {smaller} units and may "
            f"have {classical.rbm.MOST_UNITS}: fit an RBM with fewer hidden units, a BernoulliMixture "
            "or a DeepNADE"
        )

    def score_samples(self, X: Any, orderings: Orders | None = None) -> np.ndarray:
        """log p of each row, in nats: exact, or for a large RBM an estimate, with a warning.

        Args:
            X: rows; NaN = missing, which is marginalised if scores are exact, else an error.
            orderings: None; an RBM has no orderings.
        """
        check_is_fitted(self, "model_")
        if self._exact():
            return super().score_samples(X, orderings)
        rows = self._rows(X)
        if np.isnan(rows).any():
            self._copy()  # raises the error
        warnings.warn(
            f"the partition function of so large an RBM is estimated: scores are estimates, with a common "
            f"standard error of {self.log_z_stderr_:.2g} nats, and tend to be too high",
            stacklevel=2,
        )
        machine = self.machine().double().to(torch_device(self.device))
        with torch.no_grad():
            parts = torch.as_tensor(rows).split(4096)
            energies = torch.cat([machine.free_energy(part.to(machine.device)) for part in parts])
        return -energies.cpu().numpy() - self.log_z_

    def summary(self, log_probs: Any) -> likelihood.Estimate:
        """Mean score with its standard errors, and whether the scores are exact.

        Args:
            log_probs: scores of rows, from `score_samples`.
        """
        mean = super().summary(log_probs)
        return mean if self._exact() else replace(mean, exact=False, mc_stderr=self.log_z_stderr_)

    def sample(self, n_samples: int = 1, random_state: Any = None, *, given: Given = None) -> Any:
        """Draws (n_samples, D): exact, or for a large RBM the states of n_samples Gibbs chains.

        Args:
            n_samples: number of rows.
            random_state: seed of the draws.
            given: values of known variables; an error for an RBM too large for exact draws.
        """
        check_is_fitted(self, "model_")
        if self._exact():
            return super().sample(n_samples, random_state, given=given)
        if given is not None:
            self._copy()  # raises the error
        machine = self.machine().to(torch_device(self.device))
        steps = self._training_options().gibbs_steps
        return self._native(machine.gibbs(checked_count(n_samples), steps, self._generator(random_state)))

    def _exact(self) -> bool:
        return hasattr(self.model_, "rbm")

    def _grid(self, train: np.ndarray, validated: bool) -> dict[str, list[Any]]:
        if self.epochs == 0:
            raise ValueError("epochs must be at least 1, not 0")
        in_range("n_init", self.n_init)
        starts = {"init": list(range(self.n_init))} if self.n_init > 1 else {}
        return super()._grid(train, validated) | starts

    def _learn(self, problem: Problem) -> Results:
        base = families.Bernoulli().eta_from_marginal(torch.as_tensor(problem.train)).squeeze(-1)
        machines = []
        for setting in problem.settings:  # the same machine for the same `init`
            generator = torch.Generator().manual_seed(problem.seed + setting.get("init", 0))
            machine = classical.RBM(len(base), self.hidden, generator=generator)
            machine.b.data.copy_(base)
            machines.append(machine.to(problem.device))
        options: Any = {name: getattr(self, name) for name in ("persistent", "epochs", "batch_size")}
        options |= asdict(self._training_options()) | {"k": self.cd_steps, "generator": problem.generator()}
        del options["gibbs_steps"]
        rates = [setting["learning_rate"] for setting in problem.settings]
        options |= problem.loop() | {"x": problem.train, "valid": problem.valid}
        results = classical.contrastive_divergence(machines, learning_rates=rates, **options)
        exact = min(len(base), self.hidden) <= classical.rbm.MOST_UNITS
        uniform = -len(base) * math.log(2)  # log p of a row of fair coins
        self._partitions = [(result.log_z, result.log_z_stderr) for result in results]
        histories = [result.history for result in results]
        for history in histories:
            if (train := history.train_log_likelihood) < uniform:
                scores = f"training rows score {train:.4g} nats, fair coins {uniform:.4g}"
                history.messages.append(f"{scores}: try a smaller learning rate")
        densities = [machine.double().normalised() if exact else machine for machine in machines]
        return list(zip(densities, histories, strict=True))

    def _adopt(self, problem: Problem, results: Results) -> None:
        super()._adopt(problem, results)
        self.log_z_, self.log_z_stderr_ = self._partitions[problem.settings.index(self.chosen_)]
        del self._partitions
