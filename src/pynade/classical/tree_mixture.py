"""Mixtures of Chow–Liu trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.classical.bernoulli_mixture import BinaryEM, em_bernoulli
from pynade.classical.binary import CHUNK_ROWS, BinaryMixture, binary_rows, choose
from pynade.classical.chow_liu import ChowLiuTree, PairCounts, smoothed_tree, spanning_tree
from pynade.classical.em import Array, EMOptions, Random, run_em
from pynade.models.mixture import checked_components
from pynade.training.history import History

START_EPOCHS = 11  # of a mixture of Bernoullis, whose responsibilities the trees start from


class TreeMixture(BinaryMixture):
    """p(x) = Σ_k w_k T_k(x), each T_k a tree with a structure of its own.

    Weights are the softmax of `log_weights` (K,). `em_trees` fits one.

    Args:
        components: the trees T_k.
        weights: positive, normalised here; equal when not given.

    Example:
        >>> import torch
        >>> model = TreeMixture([ChowLiuTree(2, [-1, 0]), ChowLiuTree(2, [1, -1])], weights=[3, 1])
        >>> round(model.log_prob(torch.ones(1, 2)).exp().item(), 6)
        0.25
    """

    def __init__(self, components: Sequence[ChowLiuTree], weights: Sequence[float] | None = None) -> None:
        n_variables, log_weights = checked_components(components, weights)
        super().__init__(n_variables)
        self.components, self.n_components = nn.ModuleList(components), len(components)
        self.log_weights = nn.Parameter(log_weights.to(components[0].logits))

    @property
    def trees(self) -> list[ChowLiuTree]:
        """The components."""
        return list(self.components)  # type: ignore[arg-type]

    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log T_k(observed cells), (B, K), float64."""
        if observed is None:
            each = [tree._log_prob(x) for tree in self.trees]
        else:
            each = [tree._marginal(x, observed) for tree in self.trees]
        return torch.stack(each, -1) + torch.log_softmax(self.log_weights.double(), 0)

    def _logits_given(self, x: Tensor, observed: Tensor) -> Tensor:
        weights = torch.log_softmax(self.component_log_probs(x, observed), -1)
        one = zero = torch.full(x.shape, -torch.inf, dtype=torch.float64, device=x.device)
        for k, tree in enumerate(self.trees):
            logits, weight = tree._logits_given(x, observed), weights[:, k : k + 1]
            one = torch.logaddexp(one, weight + functional.logsigmoid(logits))
            zero = torch.logaddexp(zero, weight + functional.logsigmoid(-logits))
        return one - zero

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """A tree from its posterior, then the unobserved cells from it: (n, B, D)."""
        component = choose(self.component_log_probs(x, observed), n, generator)  # (n, B)
        out = x.expand(n, -1, -1).clone()
        for k, tree in enumerate(self.trees):
            draw, row = (component == k).nonzero(as_tuple=True)
            if len(row):
                out[draw, row] = tree.sample_given(x[row], observed[row], 1, generator)[0]
        return out

    def config(self) -> dict[str, Any]:
        """Constructor arguments; the weights are saved as a tensor."""
        return {"components": self.trees}


@torch.no_grad()
def em_trees(
    x: Array,
    n_components: int,
    valid: Array | None = None,
    *,
    alpha: float = 0.1,
    empty_below: float = 1e-3,
    dtype: torch.dtype = torch.float32,
    **options: Unpack[EMOptions],
) -> tuple[TreeMixture, History]:
    """Fit a `TreeMixture` by EM (Meilă and Jordan, 2000), on the device of the rows.

    Each M-step is a Chow–Liu tree for every component, from weighted counts. It never decreases
    Σ_n log p(x_n) plus a log-prior (`objective` in the history, per row): that of 4α imaginary rows per
    component, spread evenly over all states (and α for each weight). Its effect on the tables is the add-α
    rule of `chow_liu`, on a root add-2α; because these rows also enter the mutual information, structure and
    tables together maximise the same objective. It starts from a mixture of Bernoullis.

    Args:
        x: training rows (N, D), values exactly 0 or 1.
        n_components: K; each iteration costs K products of X with its transpose.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        alpha: α > 0.
        empty_below: a component that explains fewer rows than this is placed again (once), from an equal
            share of the rows, those that the mixture explains worst; `history.messages` says so.
        dtype: of the parameters and products; sums are in float64.
        options: see `EMOptions`; by default epochs=51, patience=5, tol=1e-6.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0]]).repeat(25, 1)
        >>> model, history = em_trees(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -1.45)  # the entropy is log 4 = 1.386
        True
    """
    train, held = binary_rows(x, valid)
    generator = options.get("generator")
    start, _ = em_bernoulli(train[0], n_components, epochs=START_EPOCHS, generator=generator, dtype=dtype)
    trees = [ChowLiuTree(train[0].shape[1]) for _ in range(n_components)]
    model = TreeMixture(trees).to(train[0].device, dtype)
    options = EMOptions(epochs=51, patience=5, tol=1e-6) | options
    learner = _TreeEM(model, train, held, alpha, empty_below, options)
    learner.start(start)
    return model, run_em(learner, options)[0]


class _TreeEM(BinaryEM):
    mixture: TreeMixture
    rows_at_once = CHUNK_ROWS

    def start(self, start: BinaryMixture) -> None:
        """Trees of the rows that each component of another mixture is responsible for."""
        each = [start.component_log_probs(*part).softmax(-1) for part in self.chunks(self.train)]
        self.share = torch.cat(each)
        self._fit_trees()

    def tables(self) -> Sequence[Tensor]:
        return [tree._table() for tree in self.mixture.trees]  # a root's two equal columns count twice

    def expect(self) -> list[float | None]:
        chunks = (t.split(CHUNK_ROWS) for t in (self.share, self.log_p))
        for (part, _), share, log_p in zip(self.chunks(self.train), *chunks, strict=True):
            each = self.mixture.component_log_probs(part)
            log_p.copy_(torch.logsumexp(each, -1))
            share.copy_(each.softmax(-1))
        return [float(self.log_p.mean())]

    def maximise(self) -> None:
        each = max(1, len(self.x) // self.mixture.n_components)
        empty, worst = self.empty(self.share.sum(0), each)
        self.share[worst] = 0.0
        self.share[worst, empty.repeat_interleave(each)] = 1.0
        self._fit_trees()

    def _fit_trees(self) -> None:
        alpha, dtype = self.strength, self.mixture.dtype
        rows = self.share.sum(0) + alpha
        self.mixture.log_weights.copy_((rows / rows.sum()).log())
        for k, tree in enumerate(self.mixture.trees):
            counts = PairCounts.of(self.x, self.share[:, k], dtype)
            parent = spanning_tree(counts.mutual_information(alpha))
            fitted = smoothed_tree(counts, parent, alpha, 2 * alpha, dtype)
            tree.parent.copy_(fitted.parent)
            tree.logits.copy_(fitted.logits)
