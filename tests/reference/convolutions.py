"""ConvNADE's equations as loops over every pixel and every weight (eqs. convnade:input to last-hidden)."""

import numpy as np


def valid(maps, filters):
    """Complete windows only: maps (I, H, W), filters (J, I, h, w) -> (J, H - h + 1, W - w + 1)."""
    J, inputs, h, w = filters.shape
    _, H, W = maps.shape
    out = np.zeros((J, H - h + 1, W - w + 1))
    for j in range(J):
        for y in range(H - h + 1):
            for x in range(W - w + 1):
                for i in range(inputs):
                    for dy in range(h):
                        for dx in range(w):
                            out[j, y, x] += maps[i, y + dy, x + dx] * filters[j, i, dy, dx]
    return out


def padded(maps, top, bottom, left, right):
    """Maps with a frame of zeros."""
    n, H, W = maps.shape
    out = np.zeros((n, top + H + bottom, left + W + right))
    out[:, top : top + H, left : left + W] = maps
    return out


def full(maps, filters):
    """Every window that touches the map: (J, H + h - 1, W + w - 1)."""
    h, w = filters.shape[2:]
    return valid(padded(maps, h - 1, h - 1, w - 1, w - 1), filters)


def same(maps, filters):
    """As many windows as pixels; the odd zero of an even filter is on the right and at the bottom."""
    h, w = filters.shape[2:]
    return valid(padded(maps, (h - 1) // 2, h // 2, (w - 1) // 2, w // 2), filters)


def pool(maps, h, w):
    """Largest value of each tile."""
    n, H, W = maps.shape
    out = np.zeros((n, H // h, W // w))
    for i in range(n):
        for y in range(H // h):
            for x in range(W // w):
                out[i, y, x] = max(maps[i, y * h + dy, x * w + dx] for dy in range(h) for dx in range(w))
    return out


def up(maps, h, w):
    """Every value h × w times."""
    n, H, W = maps.shape
    out = np.zeros((n, H * h, W * w))
    for i in range(n):
        for y in range(H * h):
            for x in range(W * w):
                out[i, y, x] = maps[i, y // h, x // w]
    return out


def masked_conv_eta(x, observed, layers, weights, hidden_bias, bias, flags=True):
    """Eta (C, H, W, P) of one image x (C, H, W, F) of which `observed` (C, H, W) is seen; ReLU inside.

    layers: ("valid" | "same" | "full",) or ("pool" | "up", h, w) in turn. Input maps are feature by
    feature and, within one, channel by channel; output maps are parameter by parameter.
    """
    C, F = len(x), x.shape[-1]
    maps = [np.where(observed[c], x[c, :, :, f], 0.0) for f in range(F) for c in range(C)]
    if flags:
        maps += [observed[c].astype(float) for c in range(C)]
    h, n = np.stack(maps), 0
    for kind, *size in layers:
        if kind in ("pool", "up"):
            h = {"pool": pool, "up": up}[kind](h, *size)
            continue
        h = {"valid": valid, "same": same, "full": full}[kind](h, weights[n])
        if n < len(hidden_bias):
            h = np.maximum(h + hidden_bias[n][:, None, None], 0)
        n += 1
    eta = np.zeros(bias.shape)
    for c in range(C):
        for p in range(bias.shape[-1]):
            eta[c, :, :, p] = h[p * C + c] + bias[c, :, :, p]
    return eta
