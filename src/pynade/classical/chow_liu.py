"""Chow–Liu trees (binary variables, each of which depends on one other), mixtures of them, and their fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pynade.classical import binary
from pynade.classical.em import Array, EMOptions, Random
from pynade.models.density import check_components
from pynade.training.history import History

ALPHAS = (1e-20, 0.001, 0.01, 0.1, 1.0)  # the paper's grid, and 1, which its results need
START_EPOCHS = 11  # of a mixture of Bernoullis, whose responsibilities the trees start from


class ChowLiuTree(binary.BinaryMarginalisable):
    """p(x) = Π_d p(x_d | x_parent(d)), a tree or a forest over the variables.

    `parent` (D,) holds the parent of each variable, -1 for a root; `logits` (D, 2) the logit of
    p(x_d = 1 | x_parent = z) in column z. A root reads column 0 only. Marginals and conditionals go by
    messages, all rows at once whatever each has observed. `chow_liu` fits one.

    Args:
        n_variables: D.
        parent: D integers; None makes all variables roots, that is independent.

    Example:
        >>> chain = ChowLiuTree(3, parent=[-1, 0, 1])
        >>> round(chain.log_prob(torch.zeros(1, 3)).exp().item(), 6)
        0.125
    """

    parent: Tensor

    def __init__(self, n_variables: int, parent: Sequence[int] | Tensor | None = None) -> None:
        super().__init__(n_variables)
        given = torch.full((n_variables,), -1) if parent is None else torch.as_tensor(parent)
        self.register_buffer("parent", given.clone())
        self.logits = nn.Parameter(torch.zeros(n_variables, 2))
        self.register_load_state_dict_post_hook(_check_loaded)
        _check_loaded(self)

    def edges(self) -> list[tuple[int, int]]:
        """(parent, child) of every edge."""
        return [(int(p), d) for d, p in enumerate(self.parent) if p >= 0]

    def _log_prob(self, x: Tensor) -> Tensor:
        table = self._table()
        eta = torch.where(x[:, self.parent.clamp(min=0)] > 0, table[:, 1], table[:, 0])
        return self.family.log_prob(x, eta.unsqueeze(-1)).sum(-1, dtype=torch.float64)

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        up, _ = self._upward(x, observed)
        roots = self.parent < 0
        belief = up[:, roots] + self._log_table()[roots, 0]
        return torch.logaddexp(belief[..., 0], belief[..., 1]).sum(-1)

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        up, message = self._upward(x, observed)
        log_p, belief = self._log_table(), torch.empty_like(up)  # belief: log p(x_i = v, all observed cells)
        for depth, level in enumerate(self.levels()):
            own = log_p[level, 0]
            if depth:  # the parent's belief from everywhere but this child
                rest = (belief[:, self.parent[level]] - message[:, level]).unsqueeze(-1)
                own = torch.logaddexp(*(rest + log_p[level]).unbind(-2))
            belief[:, level] = up[:, level] + own
        return belief[..., 1] - belief[..., 0]

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """Joint draws by backward sampling: messages once, then from the roots down: (n, B, D)."""
        up, _ = self._upward(x, observed)
        logit = (up[..., 1] - up[..., 0]).expand(n, -1, -1)  # infinite where observed, so that cells keep x
        table, out = self._table().double(), x.expand(n, -1, -1).double().clone()
        for level in self.levels():  # of a root both columns are equal
            own = torch.where(out[..., self.parent[level]] > 0, table[level, 1], table[level, 0])
            out[..., level] = binary.bernoulli_draws(logit[..., level] + own, generator)
        return out.to(x.dtype)

    def levels(self) -> list[Tensor]:
        """The variables of each depth, roots first, or a ValueError where the parents are no forest."""
        above, n = self.parent.cpu().numpy(), self.n_variables
        if above.shape != (n,):
            raise ValueError(f"a tree of {n} variables has as many parents, not {above.shape}")
        if above.dtype.kind != "i" or above.min() < -1 or above.max() >= n:
            raise ValueError(f"parents are D integers from -1 (a root) to D - 1, not {above.tolist()[:8]}")
        levels, found = [], np.flatnonzero(above < 0)
        while len(found):
            levels.append(torch.as_tensor(found, device=self.parent.device))
            found = np.flatnonzero(np.isin(above, found))
        if sum(map(len, levels)) < n:
            raise ValueError("the parents of a tree must not run in a circle")
        return levels

    def config(self) -> dict[str, Any]:
        """Constructor arguments; the parents are saved as a tensor."""
        return {"n_variables": self.n_variables}

    def _table(self) -> Tensor:
        """Logits (D, 2) in which a root's columns are equal."""
        return torch.where((self.parent < 0)[:, None], self.logits[:, :1], self.logits)

    def _log_table(self) -> Tensor:
        """log p(x_d = v | x_parent = z), (D, z, v), float64."""
        table = self._table().double()
        return torch.stack([functional.logsigmoid(-table), functional.logsigmoid(table)], -1)

    def _upward(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """log p(observed at and below i | x_i = v) and the message of i to its parent's value, (B, D, 2)."""
        value = torch.arange(2, device=x.device)
        impossible = observed.unsqueeze(-1) & (x.unsqueeze(-1) != value)
        up = torch.zeros(impossible.shape, dtype=torch.float64, device=x.device)
        up = up.masked_fill(impossible, -torch.inf)
        message, log_p = torch.zeros_like(up), self._log_table()
        for level in reversed(self.levels()[1:]):
            sent = torch.logaddexp(*(up[:, level].unsqueeze(-2) + log_p[level]).unbind(-1))
            message[:, level] = sent
            up.index_add_(1, self.parent[level], sent)
        return up, message


def _check_loaded(tree: ChowLiuTree, _: Any = None) -> None:
    """Parents come from the caller or from a file: they must be a forest."""
    if not tree.parent.is_meta:
        tree.levels()


def pair_counts(x: Tensor, weights: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """How often x_i = v and x_j = w in (weighted) rows x (N, D) of zeros and ones: (v, w, D, D), float64."""
    both = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    weights = x.new_ones(len(x), dtype=dtype) if weights is None else weights
    size = max(1, binary.CHUNK // x.shape[1])
    for part, weight in zip(x.split(size), weights.split(size), strict=True):
        rows = part.to(dtype)
        both += (rows.T @ (rows * weight[:, None].to(dtype))).double()
    both = (both + both.T) / 2
    ones, total = both.diagonal(), weights.sum(dtype=torch.float64)
    only = ones[:, None] - both  # x_i = 1 and x_j = 0
    neither = total - ones[:, None] - ones + both
    return torch.stack([neither, only.T, only, both]).clamp(min=0).unflatten(0, (2, 2))


def mutual_information(counts: Tensor, alpha: float = 0.0) -> Tensor:
    """I(x_i; x_j) in nats, (D, D), of `pair_counts` with `alpha` added to each of the four outcomes."""
    joint = counts + alpha
    joint = joint / joint.sum((0, 1))
    each = torch.special.xlogy(joint, joint).sum((0, 1))
    for alone in (joint.sum(0), joint.sum(1)):
        each = each - torch.special.xlogy(alone, alone).sum(0)
    return each


def chow_liu(
    x: Array, alpha: float = 0.1, *, root: int = 0, dtype: torch.dtype = torch.float32
) -> ChowLiuTree:
    """The tree of maximum likelihood, its tables smoothed by `alpha` (the paper's "Chow–Liu").

    The structure is the spanning tree of largest mutual information, from plain training counts (as in the
    paper); then the tables are p(x_d = 1 | z) = (count(1, z) + α) / (count(z) + 2α), the root's alike.

    Args:
        x: rows (N, D), values exactly 0 or 1.
        alpha: α > 0; 1e-20 comes near maximum likelihood and is still finite.
        root: the variable without a parent; matters only through the smoothing.
        dtype: of the tree's parameters.

    Example:
        >>> x = torch.tensor([[0, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]])
        >>> chow_liu(x).edges()  # 0 and 2 always agree
        [(0, 1), (0, 2)]
    """
    counts = pair_counts(binary.binary_rows(x)[0][0])
    return smoothed_tree(counts, spanning_tree(mutual_information(counts), root), alpha, alpha, dtype)


@torch.no_grad()
def chow_liu_chosen(
    x: Array,
    valid: Array,
    alphas: Sequence[float] = ALPHAS,
    *,
    root: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[ChowLiuTree, dict[float, float]]:
    """A tree with the smoothing that suits the validation rows best, and the mean score (nats) for each α.

    Args:
        x: rows (N, D) that give structure and counts.
        valid: rows (M, D) on which α is chosen.
        alphas: what to choose from.
        root: as for `chow_liu`.
        dtype: of the tree's parameters.

    Example:
        >>> x = torch.eye(3, dtype=torch.uint8).repeat(9, 1)
        >>> tree, scores = chow_liu_chosen(x, x)
        >>> max(scores, key=scores.get)
        1e-20
    """
    if not len(alphas):
        raise ValueError("there is no alpha to choose from")
    (train, _), held = binary.binary_rows(x, valid)
    assert held is not None
    counts = pair_counts(train)
    parent = spanning_tree(mutual_information(counts), root)
    scores = {}
    for alpha in alphas:
        tree = smoothed_tree(counts, parent, alpha, alpha, torch.float64)
        each = [tree.log_prob(part) for part in held[0].split(binary.CHUNK_ROWS)]
        scores[alpha] = float(torch.cat(each).mean())
    best = max(scores, key=scores.__getitem__)
    return smoothed_tree(counts, parent, best, best, dtype), scores


def spanning_tree(information: Tensor, root: int = 0) -> Tensor:
    """Parents (D,) of the spanning tree with the largest sum of `information` (D, D), seen from `root`."""
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    if not 0 <= root < len(information):
        raise ValueError(f"root must be a variable from 0 to {len(information) - 1}, not {root}")
    # an entry of zero means "no edge" to scipy: a constant column would fall out of the tree without the 1;
    # rounded, because equal edges should tie on every machine
    cost = -(information.double().cpu().numpy().round(12) + 1)
    np.fill_diagonal(cost, 0)
    parent = breadth_first_order(minimum_spanning_tree(cost), root, directed=False)[1]
    return torch.as_tensor(np.maximum(parent, -1), dtype=torch.long, device=information.device)


@torch.no_grad()
def smoothed_tree(
    counts: Tensor, parent: Tensor, alpha: float, root_alpha: float, dtype: torch.dtype
) -> ChowLiuTree:
    """A tree with these parents (D,): α added to the counts of each table, `root_alpha` to a root's."""
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0 (1e-20 is as good as none), not {alpha}")
    child = torch.arange(len(parent), device=parent.device)
    table = counts[:, :, child, parent.clamp(min=0)] + alpha  # (value, parent's value, D)
    logits = (table[1].log() - table[0].log()).T
    zeros, ones = (counts[v, v].diagonal() + root_alpha for v in (0, 1))
    alone = ones.log() - zeros.log()
    tree = ChowLiuTree(len(parent), parent).to(parent.device, dtype)
    tree.logits.copy_(torch.where((parent < 0)[:, None], alone[:, None], logits))
    return tree


class TreeMixture(binary.BinaryMixture):
    """p(x) = Σ_k w_k T_k(x), each T_k a tree with a structure of its own.

    Weights are the softmax of `log_weights` (K,). `em_trees` fits one.

    Args:
        components: the trees T_k.
        weights: positive, normalised here; equal when not given.

    Example:
        >>> model = TreeMixture([ChowLiuTree(2, [-1, 0]), ChowLiuTree(2, [1, -1])], weights=[3, 1])
        >>> round(model.log_prob(torch.ones(1, 2)).exp().item(), 6)
        0.25
    """

    def __init__(self, components: Sequence[ChowLiuTree], weights: Sequence[float] | None = None) -> None:
        n_variables, log_weights = check_components(components, weights)
        super().__init__(n_variables)
        self.components, self.n_components = nn.ModuleList(components), len(components)
        self.log_weights = nn.Parameter(log_weights.to(components[0].logits))

    @property
    def trees(self) -> list[ChowLiuTree]:
        """The components."""
        return list(self.components)  # type: ignore[arg-type]

    @property
    def logits(self) -> Tensor:  # type: ignore[override]
        """Logits (K, D, 2) of all trees, a root's columns equal."""
        return torch.stack([tree._table() for tree in self.trees])

    def component_log_probs(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log w_k + log T_k(observed cells), (B, K), float64."""
        each = [t._log_prob(x) if observed is None else t._marginal(x, observed) for t in self.trees]
        return torch.stack(each, -1) + torch.log_softmax(self.log_weights.double(), 0)

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        weights = torch.log_softmax(self.component_log_probs(x, observed), -1)
        one = zero = torch.full(x.shape, -torch.inf, dtype=torch.float64, device=x.device)
        for tree, weight in zip(self.trees, weights.split(1, -1), strict=True):
            logits = tree._logits_given(x, observed)
            one = torch.logaddexp(one, weight + functional.logsigmoid(logits))
            zero = torch.logaddexp(zero, weight + functional.logsigmoid(-logits))
        return one - zero

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """A tree from its posterior, then the unobserved cells from it: (n, B, D)."""
        component = binary.choose(self.component_log_probs(x, observed), n, generator)  # (n, B)
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
    component, spread evenly over all states (and α for each weight), which add α to the counts of a table
    (2α to a root's) and enter the mutual information. It starts from a mixture of Bernoullis.

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
        >>> x = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0]]).repeat(25, 1)
        >>> model, history = em_trees(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -1.45)  # the entropy is log 4 = 1.386
        True
    """
    train, held = binary.binary_rows(x, valid)
    first = EMOptions(epochs=START_EPOCHS, generator=options.get("generator"))
    start, _ = binary.em_bernoulli(train[0], n_components, dtype=dtype, **first)
    trees = [ChowLiuTree(train[0].shape[1]) for _ in range(n_components)]
    model = TreeMixture(trees).to(train[0].device, dtype)
    options = EMOptions(epochs=51, patience=5, tol=1e-6) | options
    learner = _TreeEM(model, train, held, alpha, empty_below, options)
    learner.start(start)
    return model, learner.run()[0]


class _TreeEM(binary.BinaryEM):
    mixture: TreeMixture

    def start(self, start: binary.BinaryMixture) -> None:
        """Trees of the rows that each component of another mixture is responsible for."""
        each = [start.component_log_probs(x, o).softmax(-1) for _, x, o in self.chunks(self.train)]
        self.share = torch.cat(each)
        self._fit_trees()

    def expect(self) -> list[float | None]:
        for part, _, _, share in self.responsibilities():
            self.share[part] = share
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
            counts = pair_counts(self.x, self.share[:, k], dtype)
            parent = spanning_tree(mutual_information(counts, alpha))
            fitted = smoothed_tree(counts, parent, alpha, 2 * alpha, dtype)
            tree.parent.copy_(fitted.parent)
            tree.logits.copy_(fitted.logits)
