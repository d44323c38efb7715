"""Estimators of nets, trained by gradient descent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pynade.device import torch_device
from pynade.estimators.base import DensityEstimator, FitRequest
from pynade.training.options import Gradient, Training

if TYPE_CHECKING:
    import torch

    from pynade.families import Family
    from pynade.models import Model
    from pynade.nets import Net
    from pynade.ordering import Ordering
    from pynade.training import History

#: Training parameters that every estimator of nets has itself; the others are in `training`.
OWN = ("epochs", "learning_rate", "batch_size", "weight_decay", "patience")


@dataclass(kw_only=True, eq=False, repr=False)
class NetEstimator(DensityEstimator):
    """Abstract estimator of a net with a fixed ordering; `OrderlessEstimator` is for any ordering."""

    ordering: str | Sequence[int] | Ordering = "random"
    epochs: int = 200
    learning_rate: float = 0.001
    batch_size: int = 100
    weight_decay: float = 0.0
    patience: int | None = 10
    training: Training | Mapping[str, Any] | None = None

    _options: ClassVar[type | None] = Training
    _net_class: ClassVar[str]  # a name in `pynade.nets`
    _small_output: ClassVar[bool] = False  # start with a tenth of the usual output weights

    @property
    def takes_missing(self) -> bool:
        """A fixed ordering needs complete rows."""
        return False

    def _net(self, n_variables: int, family: Family, generator: torch.Generator) -> Net:
        """The untrained net: `_net_class`, with the estimator's parameters that its constructor takes."""
        from pynade import nets

        kind = getattr(nets, self._net_class)
        known = inspect.signature(kind).parameters
        own = {name: value for name, value in self.get_params(deep=False).items() if name in known}
        sizes = {"n_params": family.n_params, "n_features": family.n_features, "generator": generator}
        net: Net = kind(n_variables, **own, **{name: size for name, size in sizes.items() if name in known})
        if self._small_output:  # distributions with exponentials start near the marginals
            net.get_parameter("output").data.mul_(0.1)
        return net

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Any:
        """The untrained model over the net."""
        from pynade.models import Autoregressive

        return Autoregressive(net, family, self._ordering(net.n_variables, generator))

    def options(self) -> Gradient:
        """All options of training."""
        return Gradient(**asdict(self._training_options()), **{name: getattr(self, name) for name in OWN})

    def build(self, train: np.ndarray, seed: int) -> Any:
        """The untrained model for rows like `train`; its output bias starts at their marginals."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        family = self._cells().family(train)
        net = self._net(train.shape[1], family, generator)
        net.set_output_bias(family.eta_from_marginal(torch.as_tensor(train)))
        return self._model(net, family, generator)

    def adopt(self, model: Model, history: History, seed: int) -> Self:
        """Take a trained model as this estimator's own."""
        self.model_: Any = model.cpu()
        self.history_ = history
        self.seed_ = seed
        self.n_iter_ = len(history.epochs)
        return self

    def _check(self, train: np.ndarray, valid: np.ndarray | None) -> None:
        self.options()
        self.build(train, seed=0)

    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: FitRequest) -> None:
        from pynade.training import fit

        model: Any = self.build(train, seed).to(torch_device(self.device))
        if not request.resume:
            model = self._pretrained(model, train, seed, request)
        history = fit(
            model,
            train if request.source is None else request.source,
            valid,
            self.options(),
            seed=seed,
            folder=request.folder,
            resume=request.resume,
            callbacks=request.callbacks,
        )
        self.adopt(model, history, seed)

    def _pretrained(self, model: Any, train: np.ndarray, seed: int, request: FitRequest) -> Any:
        """The model to start from."""
        return model

    def _ordering(self, n_variables: int, generator: torch.Generator, k: int | None = None) -> Ordering:
        """One ordering, or k of them: the first by the parameter `ordering`, the rest random."""
        import torch

        from pynade.ordering import Ordering

        if isinstance(self.ordering, Ordering):
            first = self.ordering
        elif isinstance(self.ordering, str):
            if self.ordering not in ("random", "natural"):
                raise ValueError(f"ordering is 'random', 'natural' or a permutation, not {self.ordering!r}")
            if self.ordering == "random":
                return Ordering.random(n_variables, k, generator)
            first = Ordering.natural(n_variables)
        else:
            first = Ordering([int(i) for i in self.ordering])
        if first.n_variables != n_variables:
            raise ValueError(f"the ordering has {first.n_variables} variables, the data {n_variables}")
        if first.is_batch:
            raise ValueError(f"ordering is one permutation, not a batch of {len(first)}")
        if k is None:
            return first
        others = Ordering.random(n_variables, k, generator)
        return Ordering(torch.cat((first.order[None], others.order[1:])))


@dataclass(kw_only=True, eq=False, repr=False)
class OrderlessEstimator(NetEstimator):
    """Abstract estimator of a net for every ordering, trained on random prefixes; NaN = missing."""

    stratified: bool = True
    patience: int | None = 30  # the validation score is an estimate: wait longer

    @property
    def takes_missing(self) -> bool:
        """An orderless model learns from rows with gaps."""
        return True

    def _model(self, net: Net, family: Family, generator: torch.Generator) -> Model:
        from pynade.models import Orderless

        self._ordering(net.n_variables, generator, k=self._n_orderings())  # refuses a bad parameter early
        return Orderless(net, family, self.stratified)  # type: ignore[arg-type]

    def _n_orderings(self) -> int:
        """Orderings averaged in scores, samples and answers."""
        return getattr(self, "n_orderings", 1)

    def orderings(self, k: int | Ordering | None = None) -> Ordering:
        """The first k of this estimator's random orderings; k orderings begin with the k-1 orderings."""
        import torch

        from pynade.ordering import Ordering

        if isinstance(k, Ordering):
            if k.n_variables != self.n_features_in_:
                raise ValueError(
                    f"the orderings have {k.n_variables} variables, the data {self.n_features_in_}"
                )
            return k if k.is_batch else Ordering.trusted(k.order[None])
        k = self._n_orderings() if k is None else k
        if k < 1:
            raise ValueError(f"the number of orderings must be at least 1, not {k}")
        return self._ordering(self.n_features_in_, torch.Generator().manual_seed(self.seed_), k)
