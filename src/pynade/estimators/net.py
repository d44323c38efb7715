"""Estimators of nets, trained by gradient descent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pynade.device import torch_device
from pynade.estimators.base import DensityEstimator, FitRequest
from pynade.estimators.modules import evaluation, families, models, nets, ordering, torch, training
from pynade.training.options import Gradient, Training

if TYPE_CHECKING:
    from pynade.ordering import Ordering
    from pynade.training import History

#: Training options that are parameters of the estimators themselves; the others are in `training`.
TRAINING_PARAMETERS = ("epochs", "learning_rate", "batch_size", "weight_decay", "patience")


@dataclass(kw_only=True, eq=False, repr=False)
class NetEstimator(DensityEstimator):
    """Abstract estimator of a net along a fixed ordering (see also `OrderlessEstimator`)."""

    ordering: str | Sequence[int] | Ordering = "random"
    epochs: int = 200
    learning_rate: float = 0.001
    batch_size: int = 100
    weight_decay: float = 0.0
    patience: int | None = 10
    training: Training | Mapping[str, Any] | None = None

    takes_missing: ClassVar[bool] = False  # a fixed ordering needs complete rows
    _trains_in_processes: ClassVar[bool] = True
    _options: ClassVar[type | None] = Training
    _net_class: ClassVar[str]  # a name in `pynade.nets`
    _small_output: ClassVar[bool] = False  # divide the initial output weights by ten

    def _net(self, n_variables: int, family: families.Family, generator: torch.Generator) -> nets.Net:
        """The untrained net."""
        net = self._make_net(self._net_class, family, generator, n_variables=n_variables)
        if self._small_output:  # start near the marginals, where scales are exponentials of outputs
            net.get_parameter("output").data.mul_(0.1)
        return net

    def _make_net(self, name: str, family: families.Family, generator: torch.Generator, **sizes: Any) -> Any:
        """A net by class name, from `sizes` and those estimator parameters that its constructor has."""
        net_class = getattr(nets, name)
        sizes |= {"n_params": family.n_params, "n_features": family.n_features, "generator": generator}
        arguments, names = self.get_params(deep=False) | sizes, inspect.signature(net_class).parameters
        return net_class(**{key: value for key, value in arguments.items() if key in names})

    def _model(self, net: nets.Net, family: families.Family, generator: torch.Generator) -> Any:
        """The untrained model of a net: along one ordering, or an ensemble of several."""
        k = self._n_orderings()
        if k < 1:
            raise ValueError(f"n_orderings must be at least 1, not {k}")
        model_class: Any = models.Autoregressive if k == 1 else models.Ensemble
        return model_class(net, family, self._ordering(net.n_variables, generator, None if k == 1 else k))

    def _n_orderings(self) -> int:
        """The number of orderings that scores, samples and queries average over."""
        return getattr(self, "n_orderings", 1)

    def options(self) -> Gradient:
        """All options of training."""
        parameters = {name: getattr(self, name) for name in TRAINING_PARAMETERS}
        return Gradient(**asdict(self._training_options()), **parameters)

    def build(self, train: np.ndarray, seed: int) -> Any:
        """The untrained model for these training rows; the output bias is set from their marginals."""
        generator, family = torch.Generator().manual_seed(seed), self._cells().family(train)
        net = self._net(train.shape[1], family, generator)
        net.set_output_bias(family.eta_from_marginal(torch.as_tensor(train)))
        return self._model(net, family, generator)

    def adopt(self, model: models.Model, history: History, seed: int) -> Self:
        """Set the fitted attributes from a trained model and its history; returns the estimator."""
        self.model_: Any = model.cpu()
        self.history_, self.seed_, self.n_iter_ = history, seed, len(history.epochs)
        return self

    def _check(self, train: np.ndarray, valid: np.ndarray | None) -> None:
        self.options()
        self.build(train, seed=0)

    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: FitRequest) -> None:
        model: Any = self.build(train, seed).to(torch_device(self.device))
        arguments: Any = {"seed": seed, "folder": request.folder, "callbacks": request.callbacks}
        if not request.resume and (epochs := getattr(self, "pretrain_epochs", 0)):
            if epochs < 0:
                raise ValueError(f"pretrain_epochs must be at least 0, not {epochs}")
            model = training.pretrain(model, train, self.options(), epochs=epochs, **arguments)
        rows, arguments["resume"] = train if request.source is None else request.source, request.resume
        self.adopt(model, training.fit(model, rows, valid, self.options(), **arguments), seed)

    def _ordering(self, n_variables: int, generator: torch.Generator, k: int | None = None) -> Ordering:
        """One ordering, or a batch of k: the parameter `ordering` sets the first, the others are random."""
        if isinstance(self.ordering, str):
            if self.ordering == "random":
                return ordering.Ordering.random(n_variables, k, generator)
            if self.ordering != "natural":
                raise ValueError(f"ordering is 'random', 'natural' or a permutation, not {self.ordering!r}")
            first = ordering.Ordering.natural(n_variables)
        elif isinstance(self.ordering, ordering.Ordering):
            first = self.ordering
        else:
            first = ordering.Ordering([int(i) for i in self.ordering])
        if first.n_variables != n_variables:
            raise ValueError(f"the ordering has {first.n_variables} variables, the data {n_variables}")
        if first.is_batch:
            raise ValueError(f"ordering is one permutation, not a batch of {len(first)}")
        if k is None:
            return first
        others = ordering.Ordering.random(n_variables, k, generator)
        return ordering.Ordering(torch.cat((first.order[None], others.order[1:])))


@dataclass(kw_only=True, eq=False, repr=False)
class OrderlessEstimator(NetEstimator):
    """Abstract estimator of a net for any ordering, trained on random prefixes; NaN = missing."""

    stratified: bool = True
    long_prefixes: bool = False
    patience: int | None = 30  # the validation score is an estimate: wait longer

    takes_missing: ClassVar[bool] = True

    def _model(self, net: nets.Net, family: families.Family, generator: torch.Generator) -> models.Model:
        self._ordering(net.n_variables, generator, k=self._n_orderings())  # checks the parameter `ordering`
        return models.Orderless(net, family, self.stratified, self.long_prefixes)  # type: ignore[arg-type]

    def orderings(self, k: int | Ordering | None = None) -> Ordering:
        """The first k orderings of this estimator's fixed random sequence of orderings.

        Args:
            k: their number, or a batch of orderings that is returned instead; None takes `n_orderings`.
        """
        n = self.model_.n_variables
        if isinstance(k, ordering.Ordering):
            if k.n_variables != n:
                raise ValueError(f"the orderings have {k.n_variables} variables, the data {n}")
            return k if k.is_batch else ordering.Ordering.trusted(k.order[None])
        generator = torch.Generator().manual_seed(self.seed_)
        return self._ordering(n, generator, self._n_orderings() if k is None else k)

    def disagreement(self, X: Any, k: int = 8) -> np.ndarray:
        """Standard deviation of each row's log p over k orderings, in nats: (N,); NaN for incomplete rows.

        Args:
            X: rows.
            k: number of random orderings.
        """
        return self._score_deviations(self._rows(X), k)

    def _score_deviations(self, rows: np.ndarray, k: int) -> np.ndarray:
        """`disagreement` of converted rows."""
        complete, deviations = ~np.isnan(rows).any(1), np.full(len(rows), np.nan)
        if complete.any():
            scores = evaluation.score_orderings(self._get_model(), rows[complete], self.orderings(k))
            deviations[complete] = scores.log_probs.std(1)
        return deviations
