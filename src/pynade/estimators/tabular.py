"""TabularNADE: an exact density of a table of mixed columns, with gaps anywhere."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pynade.arguments import check_positive
from pynade.device import limit_threads, torch_device
from pynade.estimators.base import FitRequest
from pynade.estimators.modules import (
    evaluation,
    families,
    likelihood,
    models,
    nets,
    processes,
    torch,
    training,
)
from pynade.estimators.net import TRAINING_PARAMETERS
from pynade.estimators.parameters import documented
from pynade.estimators.questions import Orders
from pynade.estimators.table_questions import ROWS_PER_PASS, TableQuestions
from pynade.tables.frames import native_frame
from pynade.tables.large import FileTable, Progress
from pynade.tables.registry import Place
from pynade.tables.schema import Schema
from pynade.training.options import Gradient

SMALL, LARGE = 2000, 20_000  # rows from which a table has other defaults
#: Defaults by the number of rows, each for tables with fewer; chosen on tables that are in no benchmark.
DEFAULTS: dict[float, dict[str, Any]] = {  # batch_size and updates are the most
    SMALL: {"hidden": (128, 128), "members": 5, "dropout": 0.05, "n_orderings": 16}
    | {"batch_size": 128, "updates": 8_000, "work": 3.1e11},
    LARGE: {"hidden": (256, 256), "members": 3, "dropout": 0.0, "n_orderings": 4}
    | {"batch_size": 256, "updates": 12_000, "work": 3.4e12},
    float("inf"): {"hidden": (256, 256, 256), "members": 1, "dropout": 0.0, "n_orderings": 1}
    | {"batch_size": 512, "updates": 16_000, "work": 3.4e12},
}  # work: rows times weights at most; 1e11 take some twelve seconds of a core
SIMPLE = {"mean": 0.25, "cells": 100}  # prior of the weight of the mixture of Gaussians: mean, and its worth
MOST_NUMBERS = 256  # columns of numbers beyond which there is no mixture of Gaussians
LEAST_WEIGHT = 0.02  # below which the mixture is left out
SCORED = 60  # times that the validation rows are scored, by default
PREFIXES = 4000  # random prefixes that validation rows have together, about; a third of the work of training


@documented
class TabularNADE(TableQuestions):
    """Density of a table of mixed columns with gaps anywhere: one net for every ordering of the columns.

    `fit` finds out what each column is (`schema_`, which prints as a table): levels, integers and rounded
    numbers, whose cells have probabilities, or real numbers, whose cells have densities. A row's score is the
    sum of the logarithms of both. Everything is in the units of the table, and tables come back as the kind
    of frame that went in.

    Example:
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> kind = rng.choice(["cat", "dog"], 300)
        >>> weight = rng.normal(np.where(kind == "cat", 4, 20), 1).round(1)
        >>> table = pd.DataFrame({"kind": kind, "weight": weight})
        >>> model = TabularNADE(hidden=(32, 32), epochs=60, random_state=0).fit(table)
        >>> model.conditional("kind", given={"weight": 4.2}).mode()
        'cat'
        >>> gaps = pd.DataFrame({"kind": ["dog"], "weight": [None]})
        >>> bool(abs(model.impute(gaps)["weight"][0] - 20) < 1)
        True
    """

    hidden: int | Sequence[int] | None = None
    n_components: int = 10
    dropout: float | None = None
    members: int | None = None
    mixture: bool = True
    schema: Mapping[str, Any] | None = None
    missing: Sequence[str] | None = None
    drop: Sequence[str] = ()
    n_orderings: int | None = None
    epochs: int | None = None  # type: ignore[assignment]
    time_limit: float | None = None
    learning_rate: float = 0.003
    long_prefixes: bool = True
    batch_size: int | None = None  # type: ignore[assignment]
    weight_decay: float = 0.02
    patience: int | None = None
    stream_above: float = 1.0

    _defaults: ClassVar[dict[str, Any]] = {"optimizer": "adamw", "schedule": "cosine", "warm_up": 100}
    _defaults |= {"ema": 0.99, "clip": 1.0}
    _facts = ("schema_", "n_rows_", "independent_", "disagreement_", "mixture_weight_")

    def _rows(self, X: Any, **options: Any) -> np.ndarray:
        """Codes of a table; fitting finds out its schema."""
        fitting, columns = options.get("fitting", False), options.get("columns")
        streamed = isinstance(X, FileTable)
        X = X if streamed else self._check_table(X, fitting)
        if not fitting:
            return self.schema_.encode(X)[0]
        frame: Any = X if streamed else native_frame(X, columns)[0]
        n = self.n_rows_ = len(frame)
        self._streamed = streamed
        if n < 2:
            raise ValueError(f"a table needs at least 2 rows to fit a model, but has {n} (n_samples={n})")
        if streamed:
            self.schema_: Schema = X.schema(self.schema)
            X = frame = X.sample
        else:
            self.schema_ = Schema.inferred(X, self.schema, self.missing, self.drop, columns)
        kind = self.schema_.frame
        self._remember(len(frame.columns), None if kind == "numpy" else frame.columns, kind)
        for name, reason in self.schema_.ignored:
            if name not in self.drop:
                advice = "a kind in schema keeps it, its name in drop silences this"
                warnings.warn(f"column {name!r} is left out: {reason} ({advice})", UserWarning, stacklevel=4)
        return self.schema_.encode(X)[0]

    def _files(self, data: Place, progress: Progress = None, held: bool = True) -> FileTable:
        """A table in files, of which validation rows are held out or not."""
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be in [0, 1), not {self.validation_fraction}")
        if not self.stream_above >= 0:
            raise ValueError(f"stream_above must be at least 0 (GiB), not {self.stream_above}")
        fraction = self.validation_fraction if held else 0.0
        return FileTable(data, self.missing, self.drop, fraction, progress)

    @contextmanager
    def _open_data(self, X: Any, X_valid: Any, source: Any, folder: Path | None) -> Iterator[Any]:
        if isinstance(X, str | PathLike):
            X = self._files(X, held=X_valid is None)
            X = X.read() if X.fits(self.stream_above) else X
        if isinstance(X, FileTable):
            with X.codes(X.schema(self.schema), folder) as source:
                yield X, X.valid if X_valid is None else X_valid, source
        else:
            yield X, X_valid, source

    def options(self) -> Gradient:
        """All options of training; those that are None follow from the numbers of rows and columns."""
        own = {name: getattr(self, name) for name in TRAINING_PARAMETERS}
        training, n = asdict(self._training_options()), getattr(self, "n_rows_", 1000)
        if own["batch_size"] is None:
            most = self._default("batch_size")
            own["batch_size"] = int(np.clip(2 ** round(np.log2(max(n, 16) / 16)), 32, most))
        check_positive(batch_size=own["batch_size"])
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError(f"time_limit must be positive, not {self.time_limit}")
        updates = training["updates_per_epoch"] or -(-n // own["batch_size"])
        streamed = getattr(self, "_streamed", False)  # then the rows of an epoch are drawn together
        if streamed or own["epochs"] is None:
            affordable, scored = getattr(self, "_plan", None) or (float("inf"), SCORED)
            wanted = int(max(scored, min(self._n_updates(n, own["batch_size"]), affordable)))
            if training["updates_per_epoch"] is None and (streamed or updates < wanted // scored):
                training["updates_per_epoch"] = updates = wanted // scored
            own["epochs"] = max(2, wanted // updates) if own["epochs"] is None else own["epochs"]
        if own["patience"] is None:
            own["patience"] = max(20, own["epochs"] // 3)
        training["warm_up"] = min(training["warm_up"], own["epochs"] * updates // 4)
        held = max(1, round(self.validation_fraction * n))
        if training["valid_draws"] == Gradient.valid_draws:  # at most four times PREFIXES
            training["valid_draws"] = int(np.clip(PREFIXES // held, max(2, min(4, 4 * PREFIXES // held)), 32))
        return Gradient(**training, **own)

    def _default(self, name: str) -> Any:
        """A parameter, or where it is None its default for so many rows."""
        n, value = getattr(self, "n_rows_", 1000), getattr(self, name, None)
        return next(by[name] for rows, by in DEFAULTS.items() if n < rows) if value is None else value

    def _n_updates(self, n: int, batch_size: int) -> int:
        """Updates by default: 250 √n (more with more than ten columns), within limits and affordable work."""
        columns = self.schema_.columns if hasattr(self, "schema_") else ()
        wanted = np.clip(250 * np.sqrt(n * max(len(columns), 10) / 10), 500, self._default("updates"))
        hidden = np.atleast_1d(self._default("hidden"))  # units of each layer
        ends = sum(2 * c.n_levels or 8 + 3 * self.n_components for c in columns)  # inputs and outputs
        weights = self._default("members") * hidden[0] * (ends + hidden.sum())
        affordable = self._default("work") / weights - SCORED * PREFIXES / 3
        return int(max(500, min(wanted, affordable / batch_size)))

    def build(self, train: np.ndarray, seed: int) -> Any:
        """The untrained model for rows of codes; its output bias starts at their marginals."""
        generator, columns = torch.Generator().manual_seed(seed), self.schema_.columns
        lattice = [c.resolution > 0 for c in columns]
        ends = [(c.low, c.high) if c.resolution else (None, None) for c in columns]
        sizes = [c.n_levels for c in columns], lattice, ends, self.schema_.periods(), self.n_components
        family = families.PerColumn.fitted(train, *sizes)
        outputs = [size or 3 * self.n_components for size in family.levels]
        named: Any = {name: self._default(name) for name in ("hidden", "dropout", "members")}
        named |= {"n_features": family.n_features, "generator": generator}
        net = nets.TableNet(family.levels, family.n_params, outputs, **named)
        net.set_output_bias(family.eta_from_marginal(torch.as_tensor(train)))
        self._ordering(len(columns), generator, k=self._n_orderings())
        family = family.with_components(net.mixed_components or 1)
        return models.Orderless(net, family, self.stratified, self.long_prefixes)

    def _fit(self, train: np.ndarray, valid: np.ndarray | None, seed: int, request: Any) -> None:
        train = train[~np.isnan(train).all(1)]  # rows without any value say nothing
        valid = None if valid is None else valid[~np.isnan(valid).all(1)]
        valid = None if valid is None or len(valid) < 2 else valid
        self._plan: tuple[float, int] | None = None  # updates and scores within the time limit
        # in small products two threads gain little, and on a busy machine wait for each other mostly
        with limit_threads(1 if len(train) < SMALL else torch.get_num_threads()):
            if self.time_limit is not None:
                request = self._within(train, valid, seed, request)
            super()._fit(train, valid, seed, request)
            self.mixture_weight_ = 0.0
            if self.mixture and len(train) < LARGE and self.model_.family.levels.count(0) <= MOST_NUMBERS:
                self._blend(train, valid, seed)
            alone = models.Independent.fitted(self.model_.family, torch.as_tensor(train)).double()
            self.independent_ = alone.eta.detach().tolist()
            some = train if valid is None else valid
            few = int(np.clip(200_000 // some.shape[1] ** 2, 10, 500))  # a row takes D passes of D outputs
            apart = self._score_deviations(some[~np.isnan(some).any(1)][:few], 8)
            self.disagreement_ = float(apart.mean()) if len(apart) else None

    def _within(self, train: np.ndarray, valid: Any, seed: int, request: FitRequest) -> FitRequest:
        """Plan as many updates as fit into the time limit, and stop training when it is over."""
        began, limit = time.monotonic(), float(self.time_limit or 0)

        def cost(rows: np.ndarray | None) -> float:  # of four updates, and of scoring these rows
            options = replace(self.options(), epochs=3, updates_per_epoch=4, warm_up=0, patience=None)
            model = self.build(train, seed).to(torch_device(self.device))
            lines = training.fit(model, train, rows, options).epochs
            return (lines[2]["seconds"] - lines[0]["seconds"]) / 2

        update = max(1e-5, cost(None) / 4)
        scoring = max(0.0, cost(valid) - 4 * update) if valid is not None else 0.0
        left = 0.85 * (limit - (time.monotonic() - began))
        scored = int(np.clip(0.25 * left / max(scoring, 1e-9), 5, SCORED))
        self._plan = processes.value_of_first(((left - scored * scoring) / update, scored))

        def over(_: Any) -> str | bool:
            return time.monotonic() - began > 0.9 * limit and f"the time limit of {limit:g} s was reached"

        return replace(request, callbacks=(*request.callbacks, over))

    def _blend(self, train: np.ndarray, valid: np.ndarray | None, seed: int) -> None:
        """Average the nets' conditionals with those of a mixture of Gaussians; validation rows weight it."""
        from pynade.classical.table_em import em_table

        net, family = self.model_.net, self.model_.family
        numbers = {"n_features": family.n_features, "sigma_floor": family.sigma_floor, "seed": seed}

        def seen(codes: np.ndarray) -> np.ndarray:
            x = torch.as_tensor(codes)
            first = family.encode(family.fill(x, ~torch.isnan(x)))[..., 0]
            return first.masked_fill(torch.isnan(x), torch.nan).numpy()

        simple = em_table(seen(train), family.levels, **numbers)
        weight = SIMPLE["mean"]
        if valid is not None:
            weight = self._simple_weight(simple, torch.as_tensor(valid))
            rows = seen(np.concatenate([train, valid]))
            simple = em_table(rows, family.levels, simple.n_components, **numbers)
        if weight >= LEAST_WEIGHT:
            self.mixture_weight_ = float(weight)
            blend = nets.TableBlend([net, simple], [1 - weight, weight])
            family = family.with_components(sum(blend.sizes) or 1)
            self.model_ = models.Orderless(blend, family, self.stratified, self.long_prefixes)

    def _simple_weight(self, simple: Any, valid: Any) -> float:
        """The weight of the mixture that makes the validation cells most likely, drawn towards its prior."""
        model, cells, shares = self.model_.float(), [], []
        with torch.no_grad():
            for x, observed in likelihood.draw_prefixes(valid, self.options().valid_draws, seed=0):
                known = ~torch.isnan(x)
                filled, todo = model.family.fill(x, known).float(), known & ~observed
                features = model.family.encode(filled)
                ours, theirs = (
                    model.family.member_log_prob(
                        filled, net.conditionals(features, observed), net.mixed_components
                    )[todo].double()
                    for net in (model.net, simple)
                )
                cells.append(theirs - ours)
                share = known.sum(1) / todo.sum(1)  # as in the loss: rows count alike
                shares.append(share.unsqueeze(1).expand_as(todo)[todo].double())
        odds, weight, share = torch.cat(cells), SIMPLE["mean"], torch.cat(shares)
        share, n, prior = share / share.sum(), len(valid), SIMPLE["cells"] / valid.shape[1]
        for _ in range(200):
            mean = float((share * torch.sigmoid(odds + np.log(weight / (1 - weight)))).sum())
            weight = (n * mean + prior * SIMPLE["mean"]) / (n + prior)
        return weight

    def _n_orderings(self) -> int:
        return int(self._default("n_orderings"))

    def score_samples(self, X: Any, orderings: Orders | None = None, density: bool = False) -> np.ndarray:
        """Exact log p of the observed cells of each row, in nats: (N,), in the units of the table.

        Missing cells are marginalised: the row is scored along orderings that begin with its observed cells.
        That is exact for the ensemble of these orderings, which is not the marginal of the one that scores
        complete rows; more orderings bring them closer, and `disagreement` says how far orderings differ.

        Args:
            X: a table with the model's columns; others are passed over.
            orderings: a number K or a batch of orderings; None takes the model's own.
            density: everything as a density (probabilities over the resolution of their column), to compare
                with other tools.
        """
        codes, offsets = self.schema_.encode(self._check_table(X), density)
        return evaluation.exact_scores(self._get_model(), codes, self.orderings(orderings)) + offsets.sum(1)

    def gain(self, X: Any) -> np.ndarray:
        """How much better each row is scored than by independent columns, in nats: (N,).

        Args:
            X: a table with the model's columns.
        """
        return self.scores_and_gain(X)[1]

    def scores_and_gain(
        self, X: Any, orderings: Orders | None = None, density: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `score_samples` gives, and `gain` (along the model's own orderings), for the price of one.

        Args:
            X, orderings, density: as in `score_samples`.
        """
        codes, offsets = self.schema_.encode(self._check_table(X), density)
        model = self._get_model()
        own = exact = evaluation.exact_scores(model, codes, self.orderings(orderings))
        if orderings is not None:
            own = evaluation.exact_scores(model, codes, self.orderings())
        family, alone = copy.deepcopy(self.model_.family).double(), []
        eta = torch.tensor(self.independent_, dtype=torch.float64)
        for x in torch.as_tensor(codes).split(ROWS_PER_PASS):
            log_p = family.log_prob(x.nan_to_num(), eta.expand(len(x), -1, -1))
            alone.append(log_p.masked_fill(x.isnan(), 0.0).sum(1))
        return exact + offsets.sum(1), own - torch.cat(alone).numpy()
