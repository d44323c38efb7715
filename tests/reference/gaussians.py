"""Dumb NumPy loops for Gaussians, their mixtures and factor analysers: one row, one component at a time."""

import numpy as np


def log_normal(x, mean, covariance):
    """log N(x; mean, covariance) of one row."""
    d = x - mean
    sign, log_det = np.linalg.slogdet(covariance)
    assert sign > 0
    return -0.5 * (d @ np.linalg.solve(covariance, d) + log_det + len(x) * np.log(2 * np.pi))


def log_mixture(x, weights, means, covariances):
    """log Σ_k w_k N(x; μ_k, Σ_k) of one row."""
    return np.logaddexp.reduce(
        [np.log(w) + log_normal(x, m, c) for w, m, c in zip(weights, means, covariances, strict=True)]
    )


def responsibilities(x, weights, means, covariances):
    """p(k | the values that x has) for every row, (N, K); NaN is a value it has not."""
    r = np.zeros((len(x), len(weights)))
    for n, row in enumerate(x):
        o = ~np.isnan(row)
        joint = [
            np.log(w) + log_normal(row[o], m[o], c[np.ix_(o, o)])
            for w, m, c in zip(weights, means, covariances, strict=True)
        ]
        r[n] = np.exp(joint - np.logaddexp.reduce(joint))
    return r


def completed(row, mean, covariance):
    """E[x] and Cov[x] of a whole row given the values it has, under one Gaussian."""
    o = ~np.isnan(row)
    gain = covariance[:, o] @ np.linalg.inv(covariance[np.ix_(o, o)])
    expected = mean + gain @ (row[o] - mean[o])
    return expected, covariance - gain @ covariance[o]


def em_gaussian_step(x, weights, means, covariances, floor=0.0):
    """One EM update of a mixture of Gaussians, rows with gaps (NaN) included (Ghahramani & Jordan, 1994)."""
    N, D = x.shape
    r = responsibilities(x, weights, means, covariances)
    new_w, new_m, new_c = np.zeros_like(weights), np.zeros_like(means), np.zeros_like(covariances)
    for k in range(len(weights)):
        filled = [completed(row, means[k], covariances[k]) for row in x]
        total = r[:, k].sum()
        new_w[k] = total / N
        new_m[k] = sum(r[n, k] * filled[n][0] for n in range(N)) / total
        for n in range(N):
            d = filled[n][0] - new_m[k]
            new_c[k] += r[n, k] * (np.outer(d, d) + filled[n][1]) / total
        new_c[k] += floor * np.eye(D)
    return new_w, new_m, new_c


def em_factors_step(x, weights, means, loadings, noise):
    """One EM update of a mixture of factor analysers (Ghahramani & Hinton, 1996), on loadings [Λ μ]."""
    N, D = x.shape
    K, _, Q = loadings.shape
    covariances = np.stack([loadings[k] @ loadings[k].T + np.diag(noise[k]) for k in range(K)])
    r = responsibilities(x, weights, means, covariances)
    new = [np.zeros_like(a) for a in (weights, means, loadings, noise)]
    for k in range(K):
        beta = loadings[k].T @ np.linalg.inv(covariances[k])
        xz, zz = np.zeros((D, Q + 1)), np.zeros((Q + 1, Q + 1))
        for n in range(N):
            s = beta @ (x[n] - means[k])
            aug = np.append(s, 1.0)
            second = np.outer(aug, aug)
            second[:Q, :Q] += np.eye(Q) - beta @ loadings[k]
            xz += r[n, k] * np.outer(x[n], aug)
            zz += r[n, k] * second
        both = xz @ np.linalg.inv(zz)
        total = r[:, k].sum()
        psi = sum(r[n, k] * np.outer(x[n], x[n]) for n in range(N)) - both @ xz.T
        new[0][k], new[1][k], new[2][k], new[3][k] = total / N, both[:, Q], both[:, :Q], np.diag(psi) / total
    return new
