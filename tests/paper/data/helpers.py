"""Small files in the published formats."""

from __future__ import annotations

import numpy as np


def libsvm_text(rows: np.ndarray) -> str:
    return "".join("-1 " + " ".join(f"{i + 1}:1" for i in np.flatnonzero(row)) + " \n" for row in rows)


def letter_line(pixels: np.ndarray, fold: int = 3) -> str:
    return "\t".join(["1", "a", "2", "1", "1", str(fold), *map(str, pixels), ""]) + "\n"
