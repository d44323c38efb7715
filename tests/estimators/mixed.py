"""Small mixed tables and a small TabularNADE for them."""

import numpy as np
import pandas as pd

import pynade

SMALL = {
    "hidden": (8,),
    "n_components": 2,
    "n_orderings": 2,
    "epochs": 2,
    "batch_size": 32,
    "random_state": 0,
    "device": "cpu",
}


def tabular(**more):
    """An estimator that fits in a moment."""
    return pynade.TabularNADE(**SMALL | more)


def table(n=80, seed=0):
    """A column of every kind, without gaps; they depend on each other."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    city = np.where(z > 0.8, "Oslo", np.where(z < -0.8, "Rome", "Paris")).astype(object)
    city[:6] = ["Ulm", "Bonn", "Graz", "Ulm", "Metz", "Lyon"]  # rare
    grade = np.array(["low", "mid", "high"])[
        np.clip(np.round(z + 1 + 0.5 * rng.normal(size=n)), 0, 2).astype(int)
    ]
    return pd.DataFrame(
        {
            "flag": rng.random(n) < 1 / (1 + np.exp(-2 * z)),
            "city": city,
            "grade": pd.Categorical(grade, categories=["low", "mid", "high"], ordered=True),
            "children": np.append(rng.poisson(np.exp(1 + 0.5 * z))[:-1], 15) + np.arange(n) % 7,
            "price": np.round(2 * rng.gamma(2, 3, n)) / 2,
            "change": np.round(z + 0.3 * rng.normal(size=n), 1),
            "height": 170 + 10 * z + rng.normal(size=n) - 200,
            "income": np.exp(10 + z + 0.3 * rng.normal(size=n)),
            "share": 1 / (1 + np.exp(-z - 0.5 * rng.normal(size=n))),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 40, n), unit="D"),
        }
    )


KINDS = {
    "flag": "binary",
    "city": "category",
    "grade": "ordinal",
    "children": "integer",
    "price": "rounded",
    "change": "rounded",
    "height": "real",
    "income": "real",
    "share": "real",
    "day": "date",
}


def with_gaps(X, share=0.2, seed=1):
    """The table with missing cells, each column in a type that can have them."""
    holes = np.random.default_rng(seed).random(X.shape) < share
    out = X.copy()
    for k, name in enumerate(X):
        if out[name].dtype == bool:
            out[name] = out[name].astype("boolean")
        if out[name].dtype.kind in "iu" and not hasattr(out[name].dtype, "na_value"):
            out[name] = out[name].astype("Int64")
        out.loc[holes[:, k], name] = None
    return out
