"""One dumb NumPy loop for each equation: slow, obvious, and never used by the library."""

import numpy as np


def sigm(a):
    return 1 / (1 + np.exp(-a))


def nade_algorithm_1(x, order, W, V, b, c):
    """Algorithm 1 for one row: log p(x) and the gradients of -log p(x).

    Two misprints of the paper are mended: p(x) is a product of p^x (1-p)^(1-x), and the gradient of
    W[:, o_d] uses what came from the later steps only.

    Shapes as in the paper: W (H, D), V (D, H), b (D,), c (H,).
    """
    D, H = V.shape
    a = c.copy()
    log_p = 0.0
    hidden, p1 = [], []
    for d in range(D):
        i = order[d]
        h = sigm(a)
        p = sigm(V[i] @ h + b[i])
        log_p += x[i] * np.log(p) + (1 - x[i]) * np.log(1 - p)
        a = a + W[:, i] * x[i]
        hidden.append(h)
        p1.append(p)
    dW, dV, db, dc = np.zeros_like(W), np.zeros_like(V), np.zeros_like(b), np.zeros_like(c)
    da = np.zeros(H)
    for d in reversed(range(D)):
        i = order[d]
        db[i] = p1[d] - x[i]
        dV[i] = (p1[d] - x[i]) * hidden[d]
        dW[:, i] = da * x[i]
        dh = (p1[d] - x[i]) * V[i]
        da = da + dh * hidden[d] * (1 - hidden[d])
        dc = dc + dh * hidden[d] * (1 - hidden[d])
    return log_p, dW, dV, db, dc


def nade_eta(x, order, W, V, b, c, act):
    """Equations 2 and 3, each hidden layer from scratch: x (D, F), W (D, F, H), V (D, P, H) -> (D, P)."""
    eta = np.zeros(b.shape)
    for d, i in enumerate(order):
        a = c.copy()
        for j in order[:d]:
            for f in range(x.shape[1]):
                a = a + W[j, f] * x[j, f]
        for p in range(V.shape[1]):
            eta[i, p] = V[i, p] @ act(a) + b[i, p]
    return eta


def fvsbn_eta(x, order, W, b):
    """One (log-)linear model per variable: x (D, F), W (D, P, D, F) -> (D, P)."""
    eta = b.copy()
    for d, i in enumerate(order):
        for j in order[:d]:
            for p in range(b.shape[1]):
                eta[i, p] += W[i, p, j] @ x[j]
    return eta


def mean_field_pass(x, order, W, b, c):
    """One pass of mean-field inference in an RBM, started at mu = 0 (eqs. mf-hidden, mf-input).

    Returns mu_d(d) for every step: the approximate p(x_{o_d} = 1 | x_{o_<d}). W (H, D).
    """
    out = np.zeros(len(order))
    for d, i in enumerate(order):
        mu = np.zeros(len(order))
        for j in order[:d]:
            mu[j] = x[j]
        tau = sigm(c + W @ mu)
        out[i] = sigm(b[i] + tau @ W[:, i])
    return out


def bernoulli_mixture_average(log_ps):
    """Log of the average probability, the plain way."""
    return np.log(np.mean(np.exp(log_ps)))
