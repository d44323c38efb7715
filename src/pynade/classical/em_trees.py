"""EM for mixtures of trees (Meilă and Jordan, 2000)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pynade.classical.chow_liu import ChowLiuTree
from pynade.classical.chow_liu_learning import PairCounts, smoothed_tree, spanning_tree
from pynade.classical.em_bernoulli import em_bernoulli
from pynade.classical.em_binary import binary_rows, expectation_maximisation
from pynade.classical.em_history import EMCallback, EMHistory
from pynade.classical.tree_mixture import TreeMixture
from pynade.training.checkpoint import Keeper

CHUNK_ROWS = 4096
START_ITERATIONS = 10  # of a mixture of Bernoullis, whose responsibilities the trees start from


@torch.no_grad()
def em_trees(
    x_train: Tensor | np.ndarray,
    n_components: int,
    x_valid: Tensor | np.ndarray | None = None,
    *,
    iterations: int = 50,
    patience: int | None = 5,
    tolerance: float = 1e-6,
    alpha: float = 0.1,
    empty_below: float = 1e-3,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    callback: EMCallback | None = None,
    keeper: Keeper | None = None,
) -> tuple[TreeMixture, EMHistory]:
    """Fit a `TreeMixture`: each M-step is a Chow–Liu tree for every component, from weighted counts.

    Never decreases Σ_n log p(x_n) plus a log-prior: that of 4α imaginary rows per component, spread evenly
    over all states (and α for each weight). Its effect on the tables is the add-α rule of `chow_liu`, on a
    root add-2α; because these rows also enter the mutual information, structure and tables together
    maximise the same objective.

    Args:
        x_train: rows (N, D), values exactly 0 or 1.
        n_components: K; each iteration costs K products of X with its transpose.
        x_valid: rows for early stopping, scored at every iteration.
        iterations: M-steps at most.
        patience: M-steps without a better validation score before stopping.
        tolerance: stop when the objective rises by less, in nats per row.
        alpha: α > 0.
        empty_below: a component that explains fewer rows than this is seeded anew (once), from an equal share
            of the rows, those that the mixture explains worst; `history.messages` says so.
        generator: chooses the start, a mixture of Bernoullis after a few iterations of its own.
        device: where to compute; the rows' own device when not given.
        dtype: of the parameters and products; sums are in float64.
        callback: told of each iteration; one that returns True ends it.
        keeper: keeps the state, and gives it back where an interrupted EM goes on.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0]]).repeat(25, 1)
        >>> model, history = em_trees(x, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(model.log_prob(x).mean() > -1.45)  # the entropy is log 4 = 1.386
        True
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0 (1e-20 is as good as none), not {alpha}")
    train = binary_rows(x_train, "training")[0]
    device = train.device if device is None else torch.device(device)
    train = train.to(device)
    start, _ = em_bernoulli(
        train, n_components, iterations=START_ITERATIONS, generator=generator, dtype=dtype
    )
    share = torch.cat(
        [start.component_log_probs(part.to(dtype)).softmax(-1) for part in train.split(CHUNK_ROWS)]
    )
    log_p = train.new_zeros(len(train), dtype=torch.float64)
    seeded = torch.zeros(n_components, dtype=torch.bool, device=device)
    model = TreeMixture([ChowLiuTree(train.shape[1]) for _ in range(n_components)]).to(device, dtype)

    def seed_empty(iteration: int) -> list[str]:
        """Give the rows that are explained worst to components that explain none."""
        each = max(1, len(train) // n_components)
        empty = ((share.sum(0) < empty_below) & ~seeded).nonzero().squeeze(-1)[: len(train) // each]
        if not iteration or not len(empty):
            return []
        worst = log_p.topk(len(empty) * each, largest=False).indices
        share[worst] = 0.0
        share[worst, empty.repeat_interleave(each)] = 1.0
        seeded[empty] = True
        names = ", ".join(map(str, empty.tolist()))
        return [f"iteration {iteration}: components {names} were empty and start anew from {each} rows each"]

    def maximise(iteration: int) -> list[str]:
        messages = seed_empty(iteration)
        rows = share.sum(0) + alpha
        model.log_weights.copy_((rows / rows.sum()).log())
        for k, tree in enumerate(model.trees):
            counts = PairCounts.of(train, share[:, k], dtype)
            parent = spanning_tree(counts.mutual_information(alpha))
            fitted = smoothed_tree(counts, parent, alpha, root_alpha=2 * alpha, dtype=dtype)
            tree.parent.copy_(fitted.parent)
            tree.logits.copy_(fitted.logits)
        return messages

    def expect() -> tuple[float, float]:
        chunks = (t.split(CHUNK_ROWS) for t in (train, share, log_p))
        for part, responsibilities, own in zip(*chunks, strict=True):
            each = model.component_log_probs(part.to(dtype))
            own.copy_(torch.logsumexp(each, -1))
            responsibilities.copy_(each.softmax(-1))
        mean = float(log_p.mean())
        return mean + alpha * _log_prior(model) / len(train), mean

    validate = None
    if x_valid is not None:
        valid = binary_rows(x_valid, "validation", train.shape[1])[0].to(device, dtype)

        def validate() -> float:
            return float(torch.cat([model._log_prob(part) for part in valid.split(CHUNK_ROWS)]).mean())

    maximise(0)
    history = expectation_maximisation(
        model,
        expect,
        maximise,
        validate,
        iterations=iterations,
        patience=patience,
        tolerance=tolerance,
        callback=callback,
        keeper=keeper,
        seeded=seeded,
    )
    return model, history


def _log_prior(model: TreeMixture) -> float:
    """Σ_k log w_k + Σ_d,z,v log p_k(x_d = v | z); a root's two equal columns count it twice, as wanted."""
    total = torch.log_softmax(model.log_weights.double(), 0).sum()
    for tree in model.trees:
        table = tree._table().double()
        total = total + (functional.logsigmoid(table) + functional.logsigmoid(-table)).sum()
    return float(total)
