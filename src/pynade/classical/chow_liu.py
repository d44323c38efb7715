"""Chow–Liu trees (each binary variable depends on one other), mixtures of them, and how they are fitted."""

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
START_EPOCHS = 11  # of the mixture of Bernoullis whose responsibilities define the first trees


class ChowLiuTree(binary.BinaryMarginalisable):
    """p(x) = Π_d p(x_d | x_parent(d)), a tree or a forest over the variables.

    `parent` (D,) has the parent of each variable, -1 for a root; `logits` (D, 2) the logit of
    p(x_d = 1 | x_parent = z) in column z, and that of a root in column 0. Marginals and conditionals are
    computed by message passing, for rows with any observed cells together. `chow_liu` fits a tree.

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
        parents = torch.full((n_variables,), -1) if parent is None else torch.as_tensor(parent)
        self.register_buffer("parent", parents.clone())
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
        up, _ = self._upward_messages(x, observed)
        roots = self.parent < 0
        belief = up[:, roots] + self._log_table()[roots, 0]
        return torch.logaddexp(belief[..., 0], belief[..., 1]).sum(-1)

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        up, message = self._upward_messages(x, observed)
        log_p, belief = self._log_table(), torch.empty_like(up)  # belief: log p(x_i = v, all observed cells)
        for depth, level in enumerate(self.levels()):
            from_parent = log_p[level, 0]
            if depth:  # the parent's belief without the message of this child
                outside = (belief[:, self.parent[level]] - message[:, level]).unsqueeze(-1)
                from_parent = torch.logaddexp(*(outside + log_p[level]).unbind(-2))
            belief[:, level] = up[:, level] + from_parent
        return belief[..., 1] - belief[..., 0]

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """Joint draws (n, B, D): messages from the leaves to the roots, then samples from the roots down."""
        up, _ = self._upward_messages(x, observed)
        logit = (up[..., 1] - up[..., 0]).expand(n, -1, -1)  # infinite where observed
        table, out = self._table().double(), x.expand(n, -1, -1).double().clone()
        for level in self.levels():  # of a root both columns are equal
            from_parent = torch.where(out[..., self.parent[level]] > 0, table[level, 1], table[level, 0])
            out[..., level] = binary.draw_bernoulli(logit[..., level] + from_parent, generator)
        return out.to(x.dtype)

    def levels(self) -> list[Tensor]:
        """The variables of each depth, roots first; a ValueError if the parents do not form a forest."""
        parents, n = self.parent.cpu().numpy(), self.n_variables
        if parents.shape != (n,):
            raise ValueError(f"a tree of {n} variables has as many parents, not {parents.shape}")
        if parents.dtype.kind != "i" or parents.min() < -1 or parents.max() >= n:
            raise ValueError(f"parents are D integers from -1 (a root) to D - 1, not {parents.tolist()[:8]}")
        levels, level = [], np.flatnonzero(parents < 0)
        while len(level):
            levels.append(torch.as_tensor(level, device=self.parent.device))
            level = np.flatnonzero(np.isin(parents, level))
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

    def _upward_messages(self, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """log p(observed at and below i | x_i = v) and the message of i to its parent's value, (B, D, 2)."""
        value = torch.arange(2, device=x.device)
        impossible = observed.unsqueeze(-1) & (x.unsqueeze(-1) != value)
        up = torch.zeros(impossible.shape, dtype=torch.float64, device=x.device)
        up = up.masked_fill(impossible, -torch.inf)
        message, log_p = torch.zeros_like(up), self._log_table()
        for level in reversed(self.levels()[1:]):
            upward = torch.logaddexp(*(up[:, level].unsqueeze(-2) + log_p[level]).unbind(-1))
            message[:, level] = upward
            up.index_add_(1, self.parent[level], upward)
        return up, message


def _check_loaded(tree: ChowLiuTree, _: Any = None) -> None:
    """Raise a ValueError unless the parents, of the caller or a file, form a forest."""
    if not tree.parent.is_meta:
        tree.levels()


def pair_counts(x: Tensor, weights: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Counts of x_i = v and x_j = w in (weighted) binary rows x (N, D): (v, w, D, D), float64."""
    both = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    weights = x.new_ones(len(x), dtype=dtype) if weights is None else weights
    size = max(1, binary.CHUNK // x.shape[1])
    for part, weight in zip(x.split(size), weights.split(size), strict=True):
        rows = part.to(dtype)
        both += (rows.T @ (rows * weight[:, None].to(dtype))).double()
    both = (both + both.T) / 2
    ones, total = both.diagonal(), weights.sum(dtype=torch.float64)
    only_first = ones[:, None] - both  # x_i = 1 and x_j = 0
    neither = total - ones[:, None] - ones + both
    return torch.stack([neither, only_first.T, only_first, both]).clamp(min=0).unflatten(0, (2, 2))


def mutual_information(counts: Tensor, alpha: float = 0.0) -> Tensor:
    """I(x_i; x_j) in nats, (D, D), from `pair_counts` with `alpha` added to each of the four outcomes."""
    joint = counts + alpha
    joint = joint / joint.sum((0, 1))
    information = torch.special.xlogy(joint, joint).sum((0, 1))
    for marginal in (joint.sum(0), joint.sum(1)):
        information = information - torch.special.xlogy(marginal, marginal).sum(0)
    return information


def chow_liu(
    x: Array, alpha: float = 0.1, *, root: int = 0, dtype: torch.dtype = torch.float32
) -> ChowLiuTree:
    """The tree of maximum likelihood, its tables smoothed by `alpha` (the paper's "Chow–Liu").

    The structure is the spanning tree of largest mutual information, from unsmoothed training counts (as in
    the paper). The tables, the root's included, are p(x_d = 1 | z) = (count(1, z) + α) / (count(z) + 2α).

    Args:
        x: rows (N, D), values exactly 0 or 1.
        alpha: α > 0; 1e-20 approximates maximum likelihood with finite logits.
        root: the variable without a parent; it matters only because of the smoothing.
        dtype: of the tree's parameters.

    Example:
        >>> x = torch.tensor([[0, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]])
        >>> chow_liu(x).edges()  # 0 and 2 always agree
        [(0, 1), (0, 2)]
    """
    counts = pair_counts(binary.check_binary_rows(x)[0][0])
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
    """The tree with the best α for validation rows, and their mean log-likelihood (nats) for each α.

    Args:
        x: rows (N, D) for structure and counts.
        valid: validation rows (M, D).
        alphas: values of α to try.
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
    (train, _), valid_cells = binary.check_binary_rows(x, valid)
    assert valid_cells is not None
    counts = pair_counts(train)
    parent = spanning_tree(mutual_information(counts), root)
    scores = {}
    for alpha in alphas:
        tree = smoothed_tree(counts, parent, alpha, alpha, torch.float64)
        log_p = [tree.log_prob(part) for part in valid_cells[0].split(binary.CHUNK_ROWS)]
        scores[alpha] = float(torch.cat(log_p).mean())
    best = max(scores, key=scores.__getitem__)
    return smoothed_tree(counts, parent, best, best, dtype), scores


def spanning_tree(information: Tensor, root: int = 0) -> Tensor:
    """Parents (D,) of the spanning tree with the largest sum of `information` (D, D) and this root."""
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    if not 0 <= root < len(information):
        raise ValueError(f"root must be a variable from 0 to {len(information) - 1}, not {root}")
    # scipy takes zeros as missing edges, so that 1 is added for constant columns; rounding makes equal
    # edges tie on every machine
    cost = -(information.double().cpu().numpy().round(12) + 1)
    np.fill_diagonal(cost, 0)
    parent = breadth_first_order(minimum_spanning_tree(cost), root, directed=False)[1]
    return torch.as_tensor(np.maximum(parent, -1), dtype=torch.long, device=information.device)


@torch.no_grad()
def smoothed_tree(
    counts: Tensor, parent: Tensor, alpha: float, root_alpha: float, dtype: torch.dtype
) -> ChowLiuTree:
    """A tree with these parents (D,), with α added to the counts of each table, `root_alpha` to a root's."""
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0 (1e-20 is as good as none), not {alpha}")
    child = torch.arange(len(parent), device=parent.device)
    table = counts[:, :, child, parent.clamp(min=0)] + alpha  # (value, parent's value, D)
    logits = (table[1].log() - table[0].log()).T
    zeros, ones = (counts[v, v].diagonal() + root_alpha for v in (0, 1))
    root_logits = ones.log() - zeros.log()
    tree = ChowLiuTree(len(parent), parent).to(parent.device, dtype)
    tree.logits.copy_(torch.where((parent < 0)[:, None], root_logits[:, None], logits))
    return tree


class TreeMixture(binary.BinaryMixture):
    """p(x) = Σ_k w_k T_k(x), where each T_k is a tree with its own structure.

    Weights are the softmax of `log_weights` (K,). `em_trees` fits one.

    Args:
        components: the trees T_k.
        weights: positive numbers, which are normalised; None: equal weights.

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
        log_p = [t._log_prob(x) if observed is None else t._marginal(x, observed) for t in self.trees]
        return torch.stack(log_p, -1) + torch.log_softmax(self.log_weights.double(), 0)

    def _logits_given(self, x: Tensor, observed: Tensor, only: int | None = None) -> Tensor:
        weights = torch.log_softmax(self.component_log_probs(x, observed), -1)
        one = zero = torch.full(x.shape, -torch.inf, dtype=torch.float64, device=x.device)
        for tree, weight in zip(self.trees, weights.split(1, -1), strict=True):
            logits = tree._logits_given(x, observed)
            one = torch.logaddexp(one, weight + functional.logsigmoid(logits))
            zero = torch.logaddexp(zero, weight + functional.logsigmoid(-logits))
        return one - zero

    def _draw_given(self, x: Tensor, observed: Tensor, n: int, generator: Random) -> Tensor:
        """Draw a tree from its posterior, then the unobserved cells from it: (n, B, D)."""
        component = binary.draw_indexes(self.component_log_probs(x, observed), n, generator)  # (n, B)
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

    Each M-step fits a Chow–Liu tree for every component, from weighted counts. No iteration decreases
    Σ_n log p(x_n) plus a log-prior (`objective` in the history, per row). The prior is that of 4α imaginary
    rows per component, uniform over all states (and α for each weight): they add α to the counts of a table
    (2α to a root's) and enter the mutual information. EM starts from a mixture of Bernoullis.

    Args:
        x: training rows (N, D), values exactly 0 or 1.
        n_components: K; each iteration costs K products of X with its transpose.
        valid: validation rows, scored at every iteration; the best parameters are returned.
        alpha: α > 0.
        empty_below: a component responsible for fewer rows starts anew (once) from the N/K rows with the
            lowest likelihood; `history.messages` reports it.
        dtype: of the parameters and products; sums are in float64.
        options: see `EMOptions`; by default epochs=51, patience=5, tol=1e-6.

    Example:
        >>> x = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0]]).repeat(25, 1)
        >>> model, history = em_trees(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -1.45)  # the entropy is log 4 = 1.386
        True
    """
    train, valid_cells = binary.check_binary_rows(x, valid)
    start_options = EMOptions(epochs=START_EPOCHS, generator=options.get("generator"))
    start, _ = binary.em_bernoulli(train[0], n_components, dtype=dtype, **start_options)
    trees = [ChowLiuTree(train[0].shape[1]) for _ in range(n_components)]
    model = TreeMixture(trees).to(train[0].device, dtype)
    options = EMOptions(epochs=51, patience=5, tol=1e-6) | options
    learner = _TreeEM(model, train, valid_cells, alpha, empty_below, options)
    learner.start(start)
    return model, learner.run()[0]


class _TreeEM(binary.BinaryEM):
    mixture: TreeMixture

    def start(self, mixture: binary.BinaryMixture) -> None:
        """Fit the first trees with the responsibilities of another mixture."""
        chunks = (mixture.component_log_probs(x, o).softmax(-1) for _, x, o in self.chunks(self.train))
        self.weights = torch.cat(list(chunks))
        self._fit_trees()

    def expect(self) -> list[float | None]:
        for part, _, _, responsibilities in self.responsibilities():
            self.weights[part] = responsibilities
        return [float(self.log_p.mean())]

    def maximise(self) -> None:
        rows_each = max(1, len(self.x) // self.mixture.n_components)
        empty, worst = self.empty_components(self.weights.sum(0), rows_each)
        self.weights[worst] = 0.0
        self.weights[worst, empty.repeat_interleave(rows_each)] = 1.0
        self._fit_trees()

    def _fit_trees(self) -> None:
        alpha, dtype = self.strength, self.mixture.dtype
        rows = self.weights.sum(0) + alpha
        self.mixture.log_weights.copy_((rows / rows.sum()).log())
        for k, tree in enumerate(self.mixture.trees):
            counts = pair_counts(self.x, self.weights[:, k], dtype)
            parent = spanning_tree(mutual_information(counts, alpha))
            fitted = smoothed_tree(counts, parent, alpha, 2 * alpha, dtype)
            tree.parent.copy_(fitted.parent)
            tree.logits.copy_(fitted.logits)
