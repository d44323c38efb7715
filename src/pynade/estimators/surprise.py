"""Which cells of a table are odd given the rest of their row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pynade.tables.frames import build_frame, native_frame

if TYPE_CHECKING:
    from pynade.estimators.table_questions import TableQuestions


def surprising_cells(model: TableQuestions, X: Any, top: int | None) -> Any:
    """What `TabularNADE.surprise` gives."""
    schema, family = model._schema, model.model_.family
    codes, offsets = schema.encode(X)
    known, found, p_values = ~np.isnan(codes), np.full(codes.shape, np.nan), np.ones(codes.shape)
    for i, column in enumerate(schema.columns):
        without = known.copy()
        without[:, i] = False
        real = column.resolution == 0 and not column.n_levels  # the density of the code needs no offset
        for part, eta in model._passes(codes, without):
            x = torch.as_tensor(np.where(known[part, i], codes[part, i], 0.0))
            own, at = eta[:, i].cpu().double(), torch.tensor([i])
            log_p = family.log_prob(x, own, at).numpy()
            rest = offsets[part, i] * (not real)
            seen = np.where(known[part, i], log_p + rest, np.nan)
            odd = ~known[part, i] & (offsets[part, i] != 0)  # out of the range, or a level never seen
            found[part, i] = -np.where(odd, offsets[part, i] + real * math.log(column.unit), seen)
            if top is not None:
                p = np.where(known[part, i], family.p_value(x, own, at).numpy(), 1.0)
                p_values[part, i] = np.where(odd, 1 / (column.n + 1), p)
    kind = native_frame(X)[1]
    if top is not None:
        return _listed(model, codes, known, found, p_values, top, kind)
    made = build_frame({c.name: found[:, i] for i, c in enumerate(schema.columns)}, {}, kind)
    return made.set_axis(X.index, axis=0) if kind == "pandas" else made


def _listed(
    model: TableQuestions,
    codes: np.ndarray,
    known: np.ndarray,
    found: np.ndarray,
    p_values: np.ndarray,
    top: int,
    kind: str,
) -> Any:
    """The cells with the smallest p-values, with what was expected instead."""
    flat, order = found.ravel(), np.lexsort((-np.nan_to_num(found.ravel()), p_values.ravel()))
    places = [p for p in order[:top] if np.isfinite(flat[p])]
    names = ("row", "column", "value", "p_value", "surprise", "expected", "low", "high")
    lines: dict[str, list[Any]] = {name: [] for name in names}
    for place in places:
        row, i = divmod(int(place), found.shape[1])
        column = model._schema.columns[i]
        without = known[row : row + 1].copy()
        without[0, i] = False
        (_, eta), *_ = model._passes(codes[row : row + 1], without)
        eta, at = eta[:, i].cpu(), torch.tensor([i])
        expected = model._guess(i, model.model_.family, eta, at)[0]
        low = high = None
        if not column.n_levels:
            ends = model.model_.family.quantile(torch.tensor([0.05, 0.95]), eta.expand(2, -1), at.expand(2))
            low, high = column.decode(ends.double().numpy())
        value = column.decode(codes[row : row + 1, i])[0] if known[row, i] else "out of range or unseen"
        numbers = float(f"{p_values.ravel()[place]:.3g}"), round(float(flat[place]), 3)
        values = [row, column.name, value, *numbers, expected, low, high]
        for name, item in zip(lines, values, strict=True):
            shown = name in ("value", "expected", "low", "high")
            lines[name].append(_shown(column, item) if shown else item)
    columns = {name: np.array(items, dtype=object) for name, items in lines.items()}
    columns["row"] = columns["row"].astype(np.int64)
    columns |= {name: columns[name].astype(np.float64) for name in ("p_value", "surprise")}
    return build_frame(columns, {}, "polars" if kind == "numpy" else kind)


def _shown(column: Any, value: Any) -> str:
    """A value as text, since the values of different columns stand in one."""
    if value is None:
        return ""
    if column.kind == "date" and not isinstance(value, str):
        return str(np.datetime64(int(value), "us"))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
