"""Restricted Boltzmann machines as a scikit-learn estimator."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from pynade import classical, models, queries
from pynade.classical import contrastive_population
from pynade.classical.contrastive_divergence import ContrastiveProgress
from pynade.classical.rbm_sum import MOST_UNITS
from pynade.estimators.base import _count, torch_device
from pynade.estimators.baselines import ROWS, Baseline, Found, Task, best_index
from pynade.estimators.domain import BinaryTable
from pynade.estimators.settings import Setting, choices, needs_validation, positive, whole
from pynade.families import Bernoulli
from pynade.likelihood import Estimate
from pynade.training import History


@dataclass(eq=False, repr=False)
class RBM(BinaryTable, Baseline):
    """Restricted Boltzmann machine by contrastive divergence.

    Where the smaller layer has at most 25 units (the paper uses 23) it is an exact density like any other,
    though questions about incomplete rows cost a sum over all states for each pattern of gaps (about a
    second at 23 units). A larger one has an estimated partition function (annealed importance sampling):
    its scores are estimates that share the standard error `log_z_stderr_`, its samples are states of Gibbs
    chains, and other questions are refused.

    Args:
        n_hidden: H, hidden units.
        learning_rate: step size, or several to choose from on the validation rows, trained all at once. A
            step is along the mean gradient of a minibatch: the paper's 0.005, 0.0005 and 0.00005, which
            move once for every row, are as fast with `batch_size=1`, and with more rows times their number.
        epochs: passes over the training rows.
        cd_steps: rounds of Gibbs sampling per update (the paper: up to 25).
        persistent: chains go on from the last update instead of the data.
        batch_size: rows per update.
        updates_per_epoch: make an epoch so many updates instead of a pass, whatever the number of rows.
        schedule: "constant" learning rates, or "linear" ones that end at zero.
        n_init: machines with different initial weights for each learning rate, the best to be chosen on the
            validation rows: small machines end in local optima that differ by tenths of a nat.
        evaluate_every: epochs between validations, of which the best is kept; a machine too large for exact
            scores is validated at the end only.
        ais_chains: chains of annealed importance sampling.
        ais_steps: its intermediate distributions.
        gibbs_steps: rounds before a sample is taken from a chain of a machine too large for exact draws.
        **parameters: see `Baseline`, `BinaryTable` and `DensityEstimator`.

    Attributes:
        log_z_: logarithm of the partition function.
        log_z_stderr_: its standard error; 0 where it is exact.

    Example:
        >>> import numpy as np
        >>> X = np.repeat([[0, 0, 0, 0], [1, 1, 1, 1]], 100, axis=0)
        >>> model = RBM(n_hidden=3, learning_rate=0.2, cd_steps=3, batch_size=10, random_state=0).fit(X)
        >>> bool(model.score(X) > -1.2)  # four fair coins have 2.77, the entropy is 0.69
        True
    """

    n_hidden: int = 23
    learning_rate: float | Sequence[float] = 0.1
    epochs: int = 100
    cd_steps: int = 1
    persistent: bool = False
    batch_size: int = 100
    updates_per_epoch: int | None = None
    schedule: str = "constant"
    n_init: int = 1
    evaluate_every: int = 10
    ais_chains: int = 100
    ais_steps: int = 1000
    gibbs_steps: int = 1000

    _facts: ClassVar[tuple[str, ...]] = (*Baseline._facts, "log_z_", "log_z_stderr_")
    _fits_missing: ClassVar[bool] = False

    def machine(self) -> classical.RBM:
        """The fitted machine itself: energies, Gibbs samples, `pynade.classical.nade_from_rbm`."""
        check_is_fitted(self, "model_")
        return copy.deepcopy(self.model_.rbm if self._exact() else self.model_)

    def density(self) -> models.Marginalisable:
        """The fitted density in float64, a copy on this estimator's device.

        Raises:
            ValueError: the machine is too large to be one.
        """
        check_is_fitted(self, "model_")
        if not self._exact():
            smaller = min(self.model_.n_visible, self.model_.n_hidden)
            raise ValueError(
                f"exact answers sum over all states of the smaller layer, which has {smaller} units and may "
                f"have {MOST_UNITS}: fit an RBM with fewer hidden units, a BernoulliMixture or a DeepNADE"
            )
        return super().density()

    def score_samples(self, X: Any) -> np.ndarray:
        """log p of each row, in nats: (N, D) -> (N,).

        Exact where the smaller layer has at most 25 units, then missing cells are summed out. Otherwise an
        estimate with the standard error `log_z_stderr_`, common to all rows; a warning says so.
        """
        check_is_fitted(self, "model_")
        if self._exact():
            return super().score_samples(X)
        rows = self._rows(X, reset=False)
        if np.isnan(rows).any():
            self.density()  # says what could
        warnings.warn(
            f"the partition function of so large an RBM is estimated: scores are estimates, with a common "
            f"standard error of {self.log_z_stderr_:.2g} nats, and tend to be too high",
            stacklevel=2,
        )
        machine = self.machine().double().to(torch_device(self.device))
        return _minus_energies(machine, torch.as_tensor(rows)).cpu().numpy() - self.log_z_

    def summary(self, log_probs: Any) -> Estimate:
        """The mean of scores this model gave, with its standard errors and whether it is exact."""
        told = super().summary(log_probs)
        return told if self._exact() else replace(told, exact=False, mc_stderr=self.log_z_stderr_)

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        given: Mapping[int | str, float] | None = None,
    ) -> np.ndarray:
        """Draws (n_samples, D), exact; of a machine too large for that, states of as many Gibbs chains."""
        check_is_fitted(self, "model_")
        if self._exact():
            return super().sample(n_samples, random_state, given=given)
        if given is not None:
            self.density()  # says what could
        machine = self.machine().to(torch_device(self.device))
        steps = whole("gibbs_steps", self.gibbs_steps)
        return self._native(machine.gibbs(_count(n_samples), steps, self._generator(random_state)))

    def conditional(
        self, i: int | str, given: Mapping[int | str, float] | None = None
    ) -> queries.Conditional:
        """p(x_i | given) as a distribution; exact, and refused where the machine is too large for that."""
        self.density()
        return super().conditional(i, given)

    def _exact(self) -> bool:
        return isinstance(self.model_, classical.NormalisedRBM)

    def _settings(self, train: np.ndarray, validated: bool) -> list[Setting]:
        for name in ("n_hidden", "epochs", "cd_steps", "batch_size", "n_init", "evaluate_every", "ais_steps"):
            whole(name, getattr(self, name))
        if self.updates_per_epoch is not None:
            whole("updates_per_epoch", self.updates_per_epoch)
        whole("ais_chains", self.ais_chains, 2)
        rates = [positive("learning_rate", rate) for rate in choices("learning_rate", self.learning_rate)]
        if self.n_init == 1:
            return needs_validation([{"learning_rate": rate} for rate in rates], validated)
        settings = [{"learning_rate": rate, "init": k} for rate in rates for k in range(self.n_init)]
        return needs_validation(settings, validated)

    def _learn(self, task: Task) -> Found:
        small = min(task.train.shape[1], self.n_hidden) <= MOST_UNITS
        keeper = task.keeper()
        evaluator = _Evaluator(self, task, {} if keeper is None else keeper.notes)
        machines = [evaluator.machine(setting.get("init", 0)) for setting in task.settings]
        every = {*range(self.evaluate_every, self.epochs, self.evaluate_every), self.epochs}
        done = contrastive_population(
            machines,
            task.train,
            task.valid,
            learning_rates=[setting["learning_rate"] for setting in task.settings],
            k=self.cd_steps,
            persistent=self.persistent,
            epochs=self.epochs,
            batch_size=self.batch_size,
            updates_per_epoch=self.updates_per_epoch,
            schedule=self.schedule,
            evaluate_at=every if small else {self.epochs},
            evaluate=evaluator,
            generator=task.generator(),
            callback=evaluator.tell,
            keeper=keeper,
        )
        chosen = best_index(done.best_valid)
        best, machine = done.best_epoch[chosen], machines[chosen]
        if best not in done.evaluated:  # no validation rows, or ended before the first validation
            evaluator(machine, None)
        lines: list[dict[str, Any]] = [
            {"epoch": e, "train_nll": None, "valid_nll": None, "best": e == best}
            for e in range(1, evaluator.notes["epoch"] + 1)
        ]
        for n, epoch in enumerate(done.evaluated):
            lines[epoch - 1]["train_nll"] = -evaluator.made[n * len(machines) + chosen].train
            lines[epoch - 1]["valid_nll"] = -done.valid[n][chosen]
        own = -1 if best not in done.evaluated else done.evaluated.index(best) * len(machines) + chosen
        kept = evaluator.made[own]
        lines[best - 1]["train_nll"] = -kept.train
        self.log_z_, self.log_z_stderr_ = kept.log_z, kept.stderr
        stopped = "all epochs done" if done.stopped == "epochs" else done.stopped
        coins = -machine.n_visible * math.log(2)
        worse = f"training rows score {kept.train:.4g} nats, fair coins {coins:.4g}"
        messages = [f"{worse}: try a smaller learning rate"] if kept.train < coins else []
        history = History(lines, best, done.best_valid[chosen], stopped=stopped, messages=messages)
        return Found(chosen, machine.double().normalised() if small else machine, history, done.best_valid)


class _Made(NamedTuple):
    """One evaluation of one machine."""

    log_z: float
    stderr: float
    train: float


class _Evaluator:
    """Scores machines during training, and remembers what was found in `notes`, which are kept with it."""

    def __init__(self, estimator: RBM, task: Task, notes: dict[str, Any]) -> None:
        self.estimator, self.task = estimator, task
        self.base = Bernoulli().eta_from_marginal(torch.as_tensor(task.train)).squeeze(-1)
        self.x = torch.as_tensor(task.train).to(task.device)
        self.notes = notes
        self.notes.setdefault("made", [])
        self.notes.setdefault("epoch", 0)
        task.watch.n_settings = 1  # all are trained together

    def machine(self, init: int) -> classical.RBM:
        """An untrained machine, the same for the same `init`; its visible biases are the data's marginals."""
        generator = torch.Generator().manual_seed(self.task.seed + init)
        machine = classical.RBM(len(self.base), self.estimator.n_hidden, generator=generator)
        machine.b.data.copy_(self.base)
        return machine.to(self.task.device)

    @property
    def made(self) -> list[_Made]:
        """All evaluations so far."""
        return [_Made(*numbers) for numbers in self.notes["made"]]

    def __call__(self, machine: classical.RBM, valid: torch.Tensor | None) -> float:
        """Mean log p of the validation rows."""
        asked = self.estimator
        if min(machine.n_visible, machine.n_hidden) <= MOST_UNITS:
            log_z, stderr = machine.log_partition(), 0.0
        else:
            estimate = machine.log_partition_ais(
                asked.ais_chains, asked.ais_steps, self.task.generator(), base=self.base
            )
            log_z, stderr = estimate.log_z, estimate.stderr
        train, score = (
            math.nan if rows is None else float(_minus_energies(machine, rows).mean()) - log_z
            for rows in (self.x, valid)
        )
        self.notes["made"].append([log_z, stderr, train])
        return score

    def tell(self, now: ContrastiveProgress) -> bool:
        """Pass an epoch on to the callbacks."""
        self.notes["epoch"] = now.epoch
        train, score = math.nan, None
        if now.valid is not None:
            leader = best_index(now.valid)
            train, score = self.made[leader - len(now.valid)].train, now.valid[leader]
        return self.task.watch.tell(now.epoch, now.epochs, train, score, now.seconds)


@torch.no_grad()
def _minus_energies(machine: classical.RBM, rows: torch.Tensor) -> torch.Tensor:
    """Logarithms of the unnormalised probabilities of rows, (N,)."""
    return -torch.cat([machine._free_energy(part.to(machine.W)) for part in rows.split(ROWS)])
