"""One system on one split of a table: fit, scores, gaps filled, samples, with times.

    python table_systems.py SYSTEM FOLDER [scores] [fill] [draws] [sample] [predict] [surprise]

It runs in the environment of the system; only the system of that name imports pynade. FOLDER has
train.npz, test.npz, planted.npz (test rows with planted errors), masks.npz (the cells that are hidden, and
those with errors) and facts.json, by `tables.py`.
Results go to FOLDER/SYSTEM: scores.npy (log-density of each test row, NaN where a system cannot score
it), scores-*.npy (of the rows with hidden cells), filled-*.npz (best guesses), draws-*.npz (DRAWS times),
sample.npz, predicted-*.npy, surprise.npy and facts.json; tables are saved as `Task.matrix` makes them.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd

DRAWS = 20
SEED = 0
PACKAGES = (
    "arfpy",
    "hyperimpute",
    "miceforest",
    "mostlyai-engine",
    "numpy",
    "pandas",
    "pomegranate",
    "pynade",
)
PACKAGES += ("scikit-learn", "sdv", "spflow", "tabpfn", "torch", "zuko")
LEAST = 1e-3  # of the probability of a level that a leaf of a forest has not seen


def spelled(value) -> str:
    """A level as text; numbers are spelled alike, whatever their type."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)
    return f"{value:.15g}" if number else str(value)


def level_codes(values: pd.Series, levels: list[str]) -> np.ndarray:
    """Codes of the values of a column of levels, -1 for missing or unknown ones."""
    place, gaps = {level: k for k, level in enumerate(levels)}, values.isna()
    codes = [-1 if gap else place.get(spelled(v), -1) for v, gap in zip(values, gaps, strict=True)]
    return np.array(codes, dtype=np.int32)


class Task:
    """The rows of a split, and what their columns are.

    Numbers are float64; levels are codes in `matrix`, and texts in the frames. `step` is the resolution of a
    column of numbers, 0 for a continuous one: systems with densities learn from numbers with uniform noise of
    that width, added once, and are scored on such numbers.
    """

    def __init__(self, folder: Path, dates: bool) -> None:
        self.facts = json.loads((folder / "facts.json").read_text())
        self.dates = {c["name"]: pd.Timestamp(c["origin"]) for c in self.facts["columns"] if c["origin"]}

        self.with_dates, self.target = dates, self.facts["target"]
        self.train, self.test, self.planted = (
            self._read(folder / f"{part}.npz") for part in ("train", "test", "planted")
        )
        masks = np.load(folder / "masks.npz")
        self.marks = masks["planted"]
        self.gaps = {gap: self.test.mask(masks[gap]) for gap in masks.files if gap != "planted"}
        self.names = [c["name"] for c in self.facts["columns"]]
        self.levels = {c["name"]: c["levels"] for c in self.facts["columns"] if c["levels"]}
        self.numbers = [n for n in self.names if n not in self.levels]
        self.step = np.array([c["step"] for c in self.facts["columns"] if not c["levels"]])
        self.rng = np.random.default_rng(SEED)

    def _read(self, path: Path) -> pd.DataFrame:
        """A table with texts for levels, and with dates, or hours since the first one."""
        arrays, columns = np.load(path), {}
        for k, c in enumerate(self.facts["columns"]):
            values = arrays[str(k)]
            if c["levels"]:
                values = np.array([*c["levels"], None], dtype=object)[values]
            columns[c["name"]] = values
        frame = pd.DataFrame(columns)
        return frame if self.with_dates else self.plain(frame)

    @property
    def with_gaps(self) -> pd.DataFrame:
        """Training rows, and again with 30 % of their cells hidden: many imputers fill only such columns."""
        again = self.train.mask(np.random.default_rng(SEED).random(self.train.shape) < 0.3)
        return pd.concat([self.train, again], ignore_index=True)

    def plain(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with dates as hours."""
        hours = {
            n: (frame[n] - t) / pd.Timedelta(hours=1)
            for n, t in self.dates.items()
            if frame[n].dtype.kind == "M"
        }
        return frame.assign(**hours)

    def noisy(self, frame: pd.DataFrame) -> np.ndarray:
        """Numbers (N, n) with noise of the width of a step; NaN stays."""
        x = frame[self.numbers].to_numpy(np.float64)
        return x + self.step * (self.rng.random(x.shape) - 0.5)

    def codes(self, frame: pd.DataFrame) -> np.ndarray:
        """Codes (N, l) of levels, -1 for missing or unknown ones."""
        some = [level_codes(frame[name], of) for name, of in self.levels.items()]
        return np.stack(some, 1).astype(int) if some else np.zeros((len(frame), 0), int)

    def matrix(self, frame: pd.DataFrame) -> np.ndarray:
        """All columns as numbers, levels as codes, NaN for missing cells, in the order numbers, levels."""
        codes = self.codes(frame).astype(float)
        codes[codes < 0] = np.nan
        return np.hstack([self.plain(frame)[self.numbers].to_numpy(np.float64), codes])

    def frame(self, matrix: np.ndarray) -> pd.DataFrame:
        """A table from numbers and codes as in `matrix`; codes are rounded into their range."""
        out = pd.DataFrame(matrix[:, : len(self.numbers)], columns=self.numbers)
        for k, (name, of) in enumerate(self.levels.items()):
            code = np.clip(np.round(matrix[:, len(self.numbers) + k]), 0, len(of) - 1).astype(int)
            out[name] = np.asarray(of, dtype=object)[code]
        return out[self.names]

    def one_hot(self, frame: pd.DataFrame) -> np.ndarray:
        """Numbers and indicators, NaN for missing cells."""
        parts, codes = [frame[self.numbers].to_numpy(np.float64)], self.codes(frame)
        for k, of in enumerate(self.levels.values()):
            own = np.eye(len(of))[codes[:, k]]
            own[codes[:, k] < 0] = np.nan
            parts.append(own)
        return np.hstack(parts)

    def from_one_hot(self, matrix: np.ndarray) -> pd.DataFrame:
        """The table of filled numbers and indicators: the largest indicator is the level."""
        start, parts = len(self.numbers), [matrix[:, : len(self.numbers)]]
        for of in self.levels.values():
            parts.append(matrix[:, start : start + len(of)].argmax(1)[:, None])
            start += len(of)
        return self.frame(np.hstack(parts))


class Clock:
    """Seconds, CPU seconds and the largest memory of each stage."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}

    def run(self, stage, function):
        began, cpu = time.perf_counter(), time.process_time()
        found = function()
        self.stages[stage] = {
            "seconds": round(time.perf_counter() - began, 3),
            "cpu_seconds": round(time.process_time() - cpu, 3),
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        return found


# ------------------------------------------------------------------------------------- systems with a density


class Pynade:
    """TabularNADE with its defaults, or with a limit of its time."""

    def __init__(self, **options) -> None:
        self.options = options

    def fit(self, task):
        import pynade

        self.task = task
        self.model = pynade.TabularNADE(random_state=SEED, **self.options).fit(task.train)
        self.extra = {"disagreement": self.model.disagreement_, "mixture_weight": self.model.mixture_weight_}
        history = self.model.history_
        self.extra |= {"epochs": len(history.epochs), "best_epoch": history.best_epoch}

    def scores(self, frame):
        dates = frame[list(self.task.dates)].notna().sum(axis=1).to_numpy()  # densities by microsecond
        return self.model.score_samples(frame, density=True) + dates * np.log(3.6e9)

    def fill(self, frame):
        return self.model.impute(frame)

    def draws(self, frame):
        return self.model.impute(frame, n=DRAWS, random_state=SEED)

    def sample(self, n):
        return self.model.sample(n, random_state=SEED)

    def predict(self, frame):
        return self.model.predict(frame, self.task.target)

    def surprise(self, frame):
        return self.model.surprise(frame, measure="log_odds")[self.task.names].to_numpy(float)


class GaussianMixture:
    """scikit-learn's mixture with the number of components by BIC; levels independent within a component."""

    def __init__(self, sizes=(1, 2, 3, 5, 8, 12, 20)) -> None:
        self.sizes = sizes

    def fit(self, task):
        from sklearn.mixture import GaussianMixture as Mixture

        self.task = task
        x, codes = task.noisy(task.train), task.codes(task.train)
        self.mean, self.scale = np.nanmean(x, 0), np.nanstd(x, 0)
        z = np.where(np.isnan(x), 0, (x - self.mean) / self.scale)
        few = [k for k in self.sizes if 20 * k <= max(20, len(z))]
        models = [Mixture(k, reg_covar=1e-4, random_state=SEED).fit(z) for k in few]
        self.mixture = min(models, key=lambda m: m.bic(z))
        r = self.mixture.predict_proba(z)
        self.shares = []
        for k, of in enumerate(task.levels.values()):
            known = codes[:, k] >= 0
            cells = r[known].T @ np.eye(len(of))[codes[known, k]]
            overall = (cells.sum(0) + 1) / (cells.sum() + len(of))
            self.shares.append((cells + 2 * overall) / (cells.sum(1, keepdims=True) + 2))
        self.extra = {"n_components": int(self.mixture.n_components)}

    def _parts(self, x, codes):
        """Log joint (N, C), and by pattern of gaps what conditionals need."""
        z, m = (x - self.mean) / self.scale, self.mixture
        out = np.tile(np.log(m.weights_), (len(z), 1))
        known = ~np.isnan(z)
        for pattern in np.unique(known, axis=0):
            rows = np.flatnonzero((known == pattern).all(1))
            if pattern.any():
                for c in range(m.n_components):
                    cov = m.covariances_[c][np.ix_(pattern, pattern)]
                    e = z[np.ix_(rows, pattern)] - m.means_[c][pattern]
                    L = np.linalg.cholesky(cov)
                    y = np.linalg.solve(L, e.T)
                    out[rows, c] += -0.5 * (y**2).sum(0) - np.log(np.diag(L)).sum()
                out[rows] -= 0.5 * pattern.sum() * np.log(2 * np.pi) + np.log(self.scale[pattern]).sum()
        for k, share in enumerate(self.shares):
            there = codes[:, k] >= 0
            out[there] += np.log(share[:, codes[there, k]]).T
        return out

    def scores(self, frame):
        from scipy.special import logsumexp

        return logsumexp(self._parts(self.task.noisy(frame), self.task.codes(frame)), axis=1)

    def _conditional(self, frame, rng):
        """Filled numbers and codes; rng None: means and likeliest levels, else a joint draw."""
        from scipy.special import softmax

        x, codes, m = self.task.noisy(frame), self.task.codes(frame), self.mixture
        r = softmax(self._parts(x, codes), axis=1)
        z = (x - self.mean) / self.scale
        known = ~np.isnan(z)
        pick = None if rng is None else np.array([rng.choice(m.n_components, p=p) for p in r])
        filled = np.where(known, z, 0.0)
        for pattern in np.unique(known, axis=0):
            if pattern.all():
                continue
            rows = np.flatnonzero((known == pattern).all(1))
            for c in range(m.n_components):
                own = rows if rng is None else rows[pick[rows] == c]
                cov, mean = m.covariances_[c], m.means_[c]
                slope = (
                    np.linalg.solve(cov[np.ix_(pattern, pattern)], cov[np.ix_(pattern, ~pattern)])
                    if pattern.any()
                    else np.zeros((0, int((~pattern).sum())))
                )
                guess = mean[~pattern] + (z[np.ix_(own, pattern)] - mean[pattern]) @ slope
                if rng is None:
                    filled[np.ix_(own, ~pattern)] += r[own, c, None] * guess
                else:
                    left = cov[np.ix_(~pattern, ~pattern)] - cov[np.ix_(~pattern, pattern)] @ slope
                    L = np.linalg.cholesky(left + 1e-9 * np.eye(len(left)))
                    filled[np.ix_(own, ~pattern)] = guess + rng.normal(size=guess.shape) @ L.T
        for k, share in enumerate(self.shares):
            gap = codes[:, k] < 0
            p = r[gap] @ share if rng is None else share[pick[gap]]
            codes[gap, k] = p.argmax(1) if rng is None else [rng.choice(len(q), p=q / q.sum()) for q in p]
        return self.task.frame(np.hstack([self.mean + self.scale * filled, codes]))

    def fill(self, frame):
        return self._conditional(frame, None)

    def draws(self, frame):
        rng = np.random.default_rng(SEED)
        return [self._conditional(frame, rng) for _ in range(DRAWS)]

    def sample(self, n):
        empty = pd.DataFrame(
            {name: [np.nan if name in self.task.numbers else None] * n for name in self.task.names}
        )
        return self._conditional(empty, np.random.default_rng(SEED))

    def surprise(self, frame):
        rng, found = self.task.rng, []
        for name in self.task.names:
            self.task.rng = np.random.default_rng(SEED)  # the same noise with and without the cell
            whole = self.scores(frame)
            self.task.rng = np.random.default_rng(SEED)
            found.append(
                self.scores(frame.assign(**{name: None if name in self.task.levels else np.nan})) - whole
            )
        self.task.rng = rng
        return np.stack(found, 1)


class Forest:
    """Adversarial random forest (arfpy): densities from the parameters of its leaves."""

    def fit(self, task):
        from arfpy import arf

        np.random.seed(SEED)  # noqa: NPY002  (arfpy draws from the global generator)
        self.task = task
        x, codes = task.noisy(task.train), task.codes(task.train)
        filled = np.where(np.isnan(x), np.nanmedian(x, 0), x)
        frame = pd.DataFrame(filled, columns=[f"n{i}" for i in range(filled.shape[1])])
        for k, of in enumerate(task.levels.values()):
            most = np.bincount(codes[codes[:, k] >= 0, k]).argmax()
            texts = np.array([f"{c:05d}" for c in range(len(of))], dtype=object)
            frame[f"l{k}"] = texts[np.where(codes[:, k] < 0, most, codes[:, k])]
        self.columns = list(frame)
        self.model = arf.arf(frame, verbose=False, random_state=SEED)
        found = self.model.forde()
        self.leaves, self.extra = self._leaves(found), {}

    def _leaves(self, found):
        """Of every leaf: its weight, normal distributions cut at its bounds, log shares of levels."""
        cover = self.model.bnds[["tree", "nodeid", "cvg"]].drop_duplicates()
        index = pd.MultiIndex.from_frame(cover[["tree", "nodeid"]])
        weight = np.log(cover["cvg"].to_numpy() / self.model.num_trees)
        numbers = []
        for name in self.columns[: len(self.task.numbers)]:
            own = found["cnt"][found["cnt"]["variable"] == name].set_index(["tree", "nodeid"]).reindex(index)
            numbers.append(own[["mean", "sd", "min", "max"]].to_numpy(float))
        levels = []
        for k, of in enumerate(self.task.levels.values()):
            own = found["cat"][found["cat"]["variable"] == f"l{k}"]
            p = np.full((len(index), len(of)), LEAST)
            kinds = list(self.model.levels[f"l{k}"])
            place = index.get_indexer(pd.MultiIndex.from_frame(own[["tree", "nodeid"]]))
            code = np.array([int(kinds[int(v)]) for v in own["value"]])
            p[place[place >= 0], code[place >= 0]] = np.maximum(
                own["prob"].to_numpy(float)[place >= 0], LEAST
            )
            levels.append(np.log(p / p.sum(1, keepdims=True)))
        return weight, numbers, levels

    def scores(self, frame):
        from scipy.special import logsumexp
        from scipy.stats import truncnorm

        x, codes, (weight, numbers, levels) = self.task.noisy(frame), self.task.codes(frame), self.leaves
        out = np.empty(len(x))
        for start in range(0, len(x), 200):
            part = slice(start, start + 200)
            log_p = np.tile(weight, (len(x[part]), 1))
            for j, of in enumerate(numbers):
                mean, sd, low, high = of.T
                sd = np.where(
                    np.isnan(sd) | (sd <= 0), 1e-6 * np.nanstd(self.task.train[self.task.numbers[j]]), sd
                )
                own = truncnorm.logpdf(x[part, j, None], (low - mean) / sd, (high - mean) / sd, mean, sd)
                log_p += np.where(np.isnan(x[part, j, None]), 0, own)
            for k, of in enumerate(levels):
                code = codes[part, k]
                log_p += np.where(code[:, None] < 0, 0, of[:, np.maximum(code, 0)].T)
            out[part] = logsumexp(log_p, axis=1)
        return np.maximum(out, -1e3)  # a row outside all leaves has density 0; counted as -1000

    def sample(self, n):
        np.random.seed(SEED)  # noqa: NPY002
        drawn = self.model.forge(n)
        codes = [
            drawn[f"l{k}"].astype(str).astype(int).to_numpy()[:, None] for k in range(len(self.task.levels))
        ]
        numbers = drawn[self.columns[: len(self.task.numbers)]].to_numpy(float)
        return self.task.frame(np.hstack([numbers, *codes]))


class Flow:
    """zuko's neural spline flow on tables of numbers; early stopping on a tenth of the rows."""

    def fit(self, task):
        import torch
        import zuko

        if task.levels:
            raise NotImplementedError("a flow of real numbers takes no levels")
        torch.manual_seed(SEED)
        self.task = task
        x = task.noisy(task.train)
        x = x[~np.isnan(x).any(1)]
        self.mean, self.scale = x.mean(0), x.std(0)
        z = torch.as_tensor((x - self.mean) / self.scale, dtype=torch.float32)
        z = z[torch.randperm(len(z))]
        valid, train = z[: len(z) // 10], z[len(z) // 10 :]
        self.flow = zuko.flows.NSF(z.shape[1], transforms=3, hidden_features=(128, 128))
        optimizer = torch.optim.Adam(self.flow.parameters(), lr=1e-3)
        best, state, since = -np.inf, None, 0
        for _epoch in range(500):
            for batch in train[torch.randperm(len(train))].split(min(256, max(32, len(train) // 20))):
                optimizer.zero_grad()
                loss = -self.flow().log_prob(batch).mean()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.flow.parameters(), 5.0)
                optimizer.step()
            with torch.no_grad():
                score = float(self.flow().log_prob(valid).mean())
            if score > best:
                best, since = score, 0
                state = {k: v.clone() for k, v in self.flow.state_dict().items()}
            else:
                since += 1
                if since >= 20:
                    break
        self.flow.load_state_dict(state)
        self.extra = {}

    def scores(self, frame):
        import torch

        x = self.task.noisy(frame)
        with torch.no_grad():
            z = torch.as_tensor((x - self.mean) / self.scale, dtype=torch.float32)
            found = self.flow().log_prob(z).numpy() - np.log(self.scale).sum()
        return np.where(np.isnan(x).any(1), np.nan, found)

    def sample(self, n):
        import torch

        torch.manual_seed(SEED)
        with torch.no_grad():
            z = self.flow().sample((n,)).numpy()
        return self.task.frame(self.mean + self.scale * z)


class MostlyAI:
    """mostlyai-engine's TabularARGN with its defaults."""

    def fit(self, task):
        from mostlyai.engine import TabularARGN

        self.task = task
        self.model = TabularARGN(random_state=SEED, value_protection=False, verbose=0)
        self.model.fit(self._given(task.train))
        stats = json.loads(next(Path(self.model.workspace_dir).rglob("tgt-stats/stats.json")).read_text())
        kinds = {n: c["encoding_type"] for n, c in stats["columns"].items()}
        self.bins = {
            n: np.array(stats["columns"][n]["bins"], float) for n, k in kinds.items() if "BINNED" in k
        }
        self.extra = {"encoding": kinds}

    def _given(self, frame):
        whole = {
            n: "Int64" for n, s in zip(self.task.numbers, self.task.step, strict=True) if s and s == round(s)
        }
        return frame.astype(whole) if whole else frame

    def scores(self, frame):
        """Log-probabilities of what the encoding tells apart: values, or bins, whose widths count."""
        found = np.asarray(self.model.log_prob(self._given(frame)), float)
        for name, step in zip(self.task.numbers, self.task.step, strict=True):
            x = frame[name].to_numpy(float)
            if name in self.bins:
                edges = np.unique(self.bins[name])
                place = np.clip(np.searchsorted(edges, x, "right") - 1, 0, len(edges) - 2)
                width = np.where((x == edges[0]) | (x == edges[-1]), step or 1e-9, np.diff(edges)[place])
                found = found - np.where(np.isnan(x), 0, np.log(width))  # both ends are values of their own
            elif step:
                found = found - np.where(np.isnan(x), 0, np.log(step))
        complete = frame.notna().all(axis=1).to_numpy()  # a missing cell is a value of its own here
        return np.where(complete, found, np.nan)

    def fill(self, frame):
        return self._filled(frame)

    def draws(self, frame):
        return [self._filled(frame) for _ in range(DRAWS)]

    def _filled(self, frame):
        return pd.DataFrame(self.model.impute(self._given(frame)))[self.task.names]

    def sample(self, n):
        return pd.DataFrame(self.model.sample(n_samples=n))[self.task.names]


# ------------------------------------------------------------------------- systems that fill gaps, or sample


class Imputer:
    """An imputer of scikit-learn on numbers and codes of levels, or indicators of them.

    Regressions leave indicators at their means: those of a cell are all missing, and explain each other.
    """

    def __init__(self, make, posterior=None, indicators=False) -> None:
        self.make, self.posterior, self.indicators = make, posterior, indicators

    def _given(self, frame):
        return self.task.one_hot(frame) if self.indicators else self.task.matrix(frame)

    def fit(self, task):
        self.task, self.extra = task, {}
        x = self._given(task.with_gaps)
        self.mean, self.scale = np.nanmean(x, 0), np.nanstd(x, 0)
        self.scale[self.scale == 0] = 1
        self.model = self.make().fit((x - self.mean) / self.scale)
        self.drawing = self.posterior().fit((x - self.mean) / self.scale) if self.posterior else None

    def _filled(self, model, frame):
        x = (self._given(frame) - self.mean) / self.scale
        filled = model.transform(x) * self.scale + self.mean
        return self.task.from_one_hot(filled) if self.indicators else self.task.frame(filled)

    def fill(self, frame):
        return self._filled(self.model, frame)

    def draws(self, frame):
        if self.drawing is None:
            raise NotImplementedError("one guess, no draws")
        return [self._filled(self.drawing, frame) for _ in range(DRAWS)]


def knn():
    """scikit-learn's KNNImputer."""
    from sklearn.impute import KNNImputer

    return Imputer(lambda: KNNImputer(n_neighbors=10, keep_empty_features=True), indicators=True)


def ridge():
    """scikit-learn's IterativeImputer with BayesianRidge."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    def make(**options):
        return lambda: IterativeImputer(random_state=SEED, max_iter=10, keep_empty_features=True, **options)

    return Imputer(make(), make(sample_posterior=True))


def forests():
    """scikit-learn's IterativeImputer with random forests, as missForest."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    trees = RandomForestRegressor(50, min_samples_leaf=3, n_jobs=2, random_state=SEED)
    return Imputer(lambda: IterativeImputer(trees, max_iter=4, random_state=SEED, keep_empty_features=True))


class MiceForest:
    """miceforest, fitted to the training rows and applied to others."""

    def fit(self, task):
        import miceforest

        self.task, self.extra = task, {}
        self.kernel = miceforest.ImputationKernel(
            self._given(task.with_gaps), num_datasets=5, random_state=SEED
        )
        self.kernel.mice(3, num_threads=2)

    def _given(self, frame):
        frame = frame.reset_index(drop=True).copy()
        for name, of in self.task.levels.items():
            frame[name] = pd.Categorical(frame[name], categories=of)
        return frame

    def draws(self, frame):
        made = []
        for seed in range(DRAWS // 5):
            new = self.kernel.impute_new_data(self._given(frame), random_state=seed)
            made += [new.complete_data(k) for k in range(5)]
        return made

    def fill(self, frame):
        draws = self.draws(frame)
        matrices = np.stack([self.task.matrix(d) for d in draws])
        mean = matrices.mean(0)
        for k in range(len(self.task.numbers), mean.shape[1]):
            cells = matrices[:, :, k].astype(int)
            mean[:, k] = [np.bincount(column).argmax() for column in cells.T]
        return self.task.frame(mean)


class SDV:
    """A synthesizer of SDV."""

    def __init__(self, kind) -> None:
        self.kind = kind

    def fit(self, task):
        from sdv import single_table
        from sdv.metadata import Metadata

        self.task, self.extra = task, {}
        kinds = {n: {"sdtype": "categorical" if n in task.levels else "numerical"} for n in task.names}
        metadata = Metadata.load_from_dict({"tables": {"table": {"columns": kinds}}})
        self.model = getattr(single_table, self.kind)(metadata)
        self.model.fit({"table": task.train})

    def sample(self, n):
        return self.model.sample(n)["table"][self.task.names]


class Pomegranate:
    """pomegranate's mixture: normals and categories, independent within a component."""

    def fit(self, task):
        import torch
        from pomegranate.distributions import Categorical, IndependentComponents, Normal
        from pomegranate.gmm import GeneralMixtureModel

        torch.manual_seed(SEED)
        self.task, self.extra = task, {}
        x = self._given(task.train)
        x = x[~torch.isnan(x).any(1)]
        best = None
        for K in (2, 5, 10, 20):
            parts = []
            for _ in range(K):
                own = [Normal(covariance_type="diag", min_cov=1e-4) for _ in task.numbers]
                own += [Categorical(pseudocount=1.0) for of in task.levels.values()]
                parts.append(IndependentComponents(own))
            model = GeneralMixtureModel(parts, max_iter=100, random_state=SEED).fit(x[len(x) // 10 :])
            score = float(model.log_probability(x[: len(x) // 10]).mean())
            if best is None or score > best[0]:
                best = score, model
        self.model = best[1]

    def _given(self, frame):
        import torch

        x = self.task.noisy(frame)
        if not hasattr(self, "mean"):
            self.mean, self.scale = np.nanmean(x, 0), np.nanstd(x, 0)
        codes = self.task.codes(frame).astype(float)
        codes[codes < 0] = np.nan
        return torch.as_tensor(np.hstack([(x - self.mean) / self.scale, codes]), dtype=torch.float32)

    def scores(self, frame):
        import torch

        x = self._given(frame)
        complete = ~torch.isnan(x).any(1)
        out = np.full(len(x), np.nan)
        out[complete.numpy()] = self.model.log_probability(x[complete]).numpy() - np.log(self.scale).sum()
        return out


class SumProductNetwork:
    """SPFlow's LearnSPN on complete rows, with normal and categorical leaves."""

    def fit(self, task):
        import torch
        from spflow.learn.learn_spn import learn_spn
        from spflow.meta.data.scope import Scope
        from spflow.modules.leaves import Categorical, Normal

        torch.manual_seed(SEED)
        self.task, self.extra, n = task, {}, len(task.numbers)
        x = task.noisy(task.train)
        self.mean, self.scale = np.nanmean(x, 0), np.nanstd(x, 0)
        leaves = [Normal(scope=Scope(list(range(n))), out_channels=1)]
        sizes = [len(of) for of in task.levels.values()]
        leaves += [Categorical(scope=Scope([n + k]), out_channels=1, K=K) for k, K in enumerate(sizes)]
        rows, complete = self._given(task.train)
        self.model = learn_spn(rows[complete], leaves, min_instances_slice=max(20, len(x) // 20))

    def _given(self, frame):
        import torch

        codes = self.task.codes(frame).astype(float)
        codes[codes < 0] = np.nan
        rows = np.hstack([(self.task.noisy(frame) - self.mean) / self.scale, codes])
        return torch.as_tensor(rows, dtype=torch.float32), ~np.isnan(rows).any(1)

    def scores(self, frame):
        rows, complete = self._given(frame)
        found = np.full(len(rows), np.nan)
        log_p = self.model.log_likelihood(rows[complete]).detach().numpy()
        found[complete] = log_p.reshape(complete.sum(), -1)[:, 0] - np.log(self.scale).sum()
        return found


class HyperImpute:
    """HyperImpute's method of the same name."""

    def fit(self, task):
        from hyperimpute.plugins.imputers import Imputers

        self.task, self.extra = task, {}
        self.model = Imputers().get("hyperimpute", random_state=SEED)
        self.model.fit(pd.DataFrame(task.matrix(task.with_gaps)))

    def fill(self, frame):
        return self.task.frame(np.asarray(self.model.transform(pd.DataFrame(self.task.matrix(frame)))))


class TabPFN:
    """TabPFN's unsupervised model; its weights come from a hub."""

    def fit(self, task):
        from tabpfn import TabPFNClassifier, TabPFNRegressor
        from tabpfn_extensions.unsupervised import TabPFNUnsupervisedModel

        self.task, self.extra = task, {}
        self.model = TabPFNUnsupervisedModel(TabPFNClassifier(), TabPFNRegressor())
        self.model.fit(task.matrix(task.train))

    def fill(self, frame):
        return self.task.frame(np.asarray(self.model.impute(self.task.matrix(frame))))


class Boosting:
    """scikit-learn's gradient boosting, trained for the target of the table."""

    def fit(self, task):
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        self.task, self.extra = task, {}
        x, names = task.matrix(task.train), task.numbers + list(task.levels)
        i = self.column = names.index(task.target)
        few = [False] * len(task.numbers) + [len(of) <= 250 for of in task.levels.values()]
        learner = (
            HistGradientBoostingClassifier if task.target in task.levels else HistGradientBoostingRegressor
        )
        self.model = learner(categorical_features=few[:i] + few[i + 1 :], random_state=SEED)
        known = ~np.isnan(x[:, i])
        self.model.fit(np.delete(x[known], i, 1), x[known, i])

    def predict(self, frame):
        found = self.model.predict(np.delete(self.task.matrix(frame), self.column, 1))
        of = self.task.levels.get(self.task.target)
        return np.array(of, dtype=object)[found.astype(int)] if of else found


class Outliers:
    """A detector of odd rows of scikit-learn. A cell is odd if the row is odder than with a usual value."""

    def __init__(self, make) -> None:
        self.make = make

    def _given(self, frame):
        x = self.task.one_hot(frame)
        return (np.where(np.isnan(x), self.usual, x) - self.mean) / self.scale

    def fit(self, task):
        self.task, self.extra = task, {}
        x = task.one_hot(task.train)
        self.mean, self.scale = np.nanmean(x, 0), np.maximum(np.nanstd(x, 0), 1e-9)
        self.usual = np.append(np.nanmedian(x[:, : len(task.numbers)], 0), self.mean[len(task.numbers) :])
        self.model = self.make().fit(self._given(task.train))

    def surprise(self, frame):
        whole, found = self.model.score_samples(self._given(frame)), []
        for name in self.task.names:
            without = frame.assign(**{name: None if name in self.task.levels else np.nan})
            found.append(self.model.score_samples(self._given(without)) - whole)
        return np.stack(found, 1)


def isolation_forest():
    """scikit-learn's IsolationForest."""
    from sklearn.ensemble import IsolationForest

    return Outliers(lambda: IsolationForest(n_estimators=300, random_state=SEED, n_jobs=2))


def local_outlier_factor():
    """scikit-learn's LocalOutlierFactor, for new rows."""
    from sklearn.neighbors import LocalOutlierFactor

    return Outliers(lambda: LocalOutlierFactor(20, novelty=True))


class Marginals:
    """Independent columns: values of the training rows drawn one by one. The least that a model must beat."""

    def fit(self, task):
        self.task, self.extra, self.rng = task, {}, np.random.default_rng(SEED)

    def sample(self, n):
        known = {name: self.task.train[name].dropna() for name in self.task.names}
        return pd.DataFrame({name: self.rng.choice(cells, n) for name, cells in known.items()})

    def draws(self, frame):
        return [frame.reset_index(drop=True).fillna(self.sample(len(frame))) for _ in range(DRAWS)]

    def fill(self, frame):
        usual = {name: self.task.train[name].mean() for name in self.task.numbers}
        return frame.fillna(usual | {name: self.task.train[name].mode()[0] for name in self.task.levels})


class Bootstrap:
    """Training rows drawn again: the best that samples can look like."""

    def fit(self, task):
        self.task, self.extra = task, {}

    def sample(self, n):
        return self.task.train.sample(n, replace=True, random_state=SEED)


SYSTEMS = {
    "pynade": Pynade,
    "pynade-10s": lambda: Pynade(time_limit=10),
    "pynade-80s": lambda: Pynade(time_limit=80),
    "gaussian-mixture": GaussianMixture,
    "gaussian": lambda: GaussianMixture((1,)),
    "arfpy": Forest,
    "zuko": Flow,
    "mostlyai": MostlyAI,
    "pomegranate": Pomegranate,
    "spflow": SumProductNetwork,
    "knn": knn,
    "ridge": ridge,
    "forests": forests,
    "miceforest": MiceForest,
    "hyperimpute": HyperImpute,
    "tabpfn": TabPFN,
    "sdv-copula": lambda: SDV("GaussianCopulaSynthesizer"),
    "sdv-tvae": lambda: SDV("TVAESynthesizer"),
    "boosting": Boosting,
    "isolation-forest": isolation_forest,
    "local-outlier-factor": local_outlier_factor,
    "marginals": Marginals,
    "bootstrap": Bootstrap,
}


def main() -> None:
    name, folder, asked = sys.argv[1], Path(sys.argv[2]), ["fit", *sys.argv[3:]]
    task, system, clock, errors = Task(folder, dates=name.startswith("pynade")), SYSTEMS[name](), Clock(), {}
    out = folder / name
    out.mkdir(exist_ok=True)

    def stage(what, question, *arguments):
        if not hasattr(system, question) or question not in asked or "fit" in errors:
            return None
        try:
            return clock.run(what, lambda: getattr(system, question)(*arguments))
        except NotImplementedError as error:
            errors[what] = str(error)
        except Exception as error:  # of any system: it is listed with the results
            traceback.print_exc()
            errors[what] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return None

    stage("fit", "fit", task)
    if (found := stage("score", "scores", task.test)) is not None:
        np.save(out / "scores.npy", found)
    for gap, frame in task.gaps.items():
        if (found := stage(f"score-{gap}", "scores", frame)) is not None:
            np.save(out / f"scores-{gap}.npy", found)
        if (filled := stage(f"fill-{gap}", "fill", frame)) is not None:
            np.savez_compressed(out / f"filled-{gap}.npz", cells=task.matrix(pd.DataFrame(filled)))
    if (drawn := stage("sample", "sample", min(len(task.train), 5000))) is not None:
        np.savez_compressed(out / "sample.npz", cells=task.matrix(pd.DataFrame(drawn)))
    for gap, frame in (("complete", task.test), ("30", task.gaps["30"])):
        if (found := stage(f"predict-{gap}", "predict", frame)) is not None:
            of = task.levels.get(task.target)
            found = level_codes(pd.Series(found), of) if of else np.asarray(found, float)
            np.save(out / f"predicted-{gap}.npy", found)
    if (found := stage("surprise", "surprise", task.planted)) is not None:
        np.save(out / "surprise.npy", found)
    for gap, frame in task.gaps.items():  # last: some systems need long
        if (draws := stage(f"draws-{gap}", "draws", frame)) is not None:
            cells = np.stack([task.matrix(pd.DataFrame(d)).astype(np.float32) for d in draws])
            np.savez_compressed(out / f"draws-{gap}.npz", cells=cells)
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    versions = {p: installed[p] for p in PACKAGES if p in installed}
    facts = {"stages": clock.stages, "errors": errors, "versions": versions, **getattr(system, "extra", {})}
    (out / "facts.json").write_text(json.dumps(facts, default=str))


if __name__ == "__main__":
    main()
