"""The CPU kernel of `rbm.softplus_table`: products of 1 + U L over variables, for many pairs of states."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from pynade.kernels.cpu_scalar import jit

TILE = 64  # inner states computed together: eight independent vectors of float64 hide the latency
UNROLL = 4  # variables for each load and store of a tile's products


@jit(allocates=True)
def products(outer, inner, table, first, last):
    """table[u, l] = Σ_g log Π_d (1 + outer[u, g, d] inner[l, g, d]) for outer states first … last - 1.

    Shapes: outer (2^high, groups, width), the width a multiple of UNROLL; inner (tiles, groups, width, TILE).
    """
    tiles, n_groups, width, _ = inner.shape
    product = np.empty(TILE)
    for t in range(tiles):
        for u in range(first, last):
            sums = table[u, t * TILE : (t + 1) * TILE]
            sums[:] = 0.0
            for g in range(n_groups):
                a, b = outer[u, g], inner[t, g]
                product[:] = 1.0
                for d in range(0, width, UNROLL):
                    u0, u1, u2, u3 = a[d], a[d + 1], a[d + 2], a[d + 3]
                    l0, l1, l2, l3 = b[d], b[d + 1], b[d + 2], b[d + 3]
                    for j in range(TILE):
                        left = (1.0 + u0 * l0[j]) * (1.0 + u1 * l1[j])
                        right = (1.0 + u2 * l2[j]) * (1.0 + u3 * l3[j])
                        product[j] *= left * right
                for j in range(TILE):
                    sums[j] += np.log(product[j])
