"""Dumb loops for the binary baselines."""

import itertools

import numpy as np

from .loops import sigm


def bernoulli_mixture_em_step(x, weights, theta, smoothing):
    """One EM iteration with missing cells (NaN); returns log-likelihood before it, new weights, new means."""
    n, d = x.shape
    k = len(weights)
    counts, ones, seen = np.zeros(k), np.zeros((k, d)), np.zeros((k, d))
    log_likelihood = 0.0
    for row in x:
        p = np.array(weights, dtype=float)
        for j in range(k):
            for i in range(d):
                if not np.isnan(row[i]):
                    p[j] *= theta[j, i] if row[i] == 1 else 1 - theta[j, i]
        log_likelihood += np.log(p.sum())
        share = p / p.sum()
        counts += share
        for j in range(k):
            for i in range(d):
                if not np.isnan(row[i]):
                    seen[j, i] += share[j]
                    ones[j, i] += share[j] * row[i]
    new_weights = (counts + smoothing) / (n + k * smoothing)
    new_theta = (ones + smoothing) / (seen + 2 * smoothing)
    return log_likelihood, new_weights, new_theta


def tree_log_prob(x, parent, logits):
    """log Π_d p(x_d | x_parent), one factor after the other."""
    total = 0.0
    for d in range(len(x)):
        p = sigm(logits[d, 0 if parent[d] < 0 else int(x[parent[d]])])
        total += np.log(p if x[d] == 1 else 1 - p)
    return total


def mutual_information(x, i, j):
    """From counts of the four outcomes, one after the other."""
    total = 0.0
    for v, w in itertools.product((0, 1), repeat=2):
        p = np.mean((x[:, i] == v) & (x[:, j] == w))
        if p > 0:
            total += p * np.log(p / (np.mean(x[:, i] == v) * np.mean(x[:, j] == w)))
    return total


def lidstone(x, d, parent, z, alpha):
    """The paper's add-alpha rule for p(x_d = 1 | x_parent = z); parent None is a root."""
    rows = [row for row in x if parent is None or row[parent] == z]
    return (sum(row[d] for row in rows) + alpha) / (len(rows) + 2 * alpha)


def rbm_log_partition(W, b, c):
    """Log of the sum of exp(-E) over all states of both layers."""
    hidden, visible = W.shape
    terms = [
        np.dot(h, W @ np.array(x)) + np.dot(b, x) + np.dot(c, h)
        for h in itertools.product((0, 1), repeat=hidden)
        for x in itertools.product((0, 1), repeat=visible)
    ]
    return np.logaddexp.reduce(terms)


def contrastive_step(x, W, b, c, rate, k, uniforms, chains=None):
    """CD-k for one batch: units are drawn by comparing with given uniform numbers; as many chains as rows."""
    positive = np.zeros_like(W), np.zeros_like(b), np.zeros_like(c)
    negative = np.zeros_like(W), np.zeros_like(b), np.zeros_like(c)
    for r, row in enumerate(x):
        chain = row.copy() if chains is None else chains[r].copy()
        for step in range(k):
            h = (uniforms[step][0][r] < sigm(c + W @ chain)).astype(float)
            chain = (uniforms[step][1][r] < sigm(b + h @ W)).astype(float)
        for (dW, db, dc), v in ((positive, row), (negative, chain)):
            p = sigm(c + W @ v)
            dW += np.outer(p, v) / len(x)
            db += v / len(x)
            dc += p / len(x)
    return tuple(p + rate * (up - down) for p, up, down in zip((W, b, c), positive, negative, strict=True))
