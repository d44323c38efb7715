"""Densities of the real-valued families, one row and one component at a time."""

import math


def gaussian(x, mu, sigma):
    return math.exp(-((x - mu) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma**2)


def laplace(x, mu, b):
    return math.exp(-abs(x - mu) / b) / (2 * b)


def logistic(x, mu, s):
    return 1 / (s * (math.exp((x - mu) / (2 * s)) + math.exp(-(x - mu) / (2 * s))) ** 2)


def student_t(x, mu, sigma, nu):
    z = (x - mu) / sigma
    constant = math.gamma((nu + 1) / 2) / (math.gamma(nu / 2) * math.sqrt(nu * math.pi) * sigma)
    return constant * (1 + z * z / nu) ** (-(nu + 1) / 2)


def sinh_arcsinh(x, mu, sigma, eps, delta):
    """Jones & Pewsey: S is normal, and the density is φ(S) dS/dx."""
    y = (x - mu) / sigma
    S = math.sinh(delta * math.asinh(y) - eps)
    C = math.cosh(delta * math.asinh(y) - eps)
    return math.exp(-S * S / 2) / math.sqrt(2 * math.pi) * C * delta / math.sqrt(1 + y * y) / sigma


def mixture(component, x, eta):
    """Equations RNADE-outputs: eta = [logits | mu | log sigma], pi their softmax, sigma the exponential."""
    K = len(eta) // 3
    z_pi, mu, z_sigma = eta[:K], eta[K : 2 * K], eta[2 * K :]
    total = 0.0
    for c in range(K):
        pi = math.exp(z_pi[c]) / sum(math.exp(z) for z in z_pi)
        total += pi * component(x, mu[c], math.exp(z_sigma[c]))
    return total
