"""Questions about tables larger than memory, in CSV and Parquet files, answered some rows at a time.

Each function takes a fitted model; a file, a folder of files or a pattern such as ``data/*.parquet`` (or a
polars frame); and where to write: a ``.csv`` or ``.parquet`` file, or a folder that gets a file for each
part. Memory is constant and the order is kept. A call that was killed goes on with what it has finished when
it is given again, and nothing half-written is ever at the place of the output.

Example:
    >>> import tempfile
    >>> import polars, pynade
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> table = polars.DataFrame({"a": [0, 1] * 50, "b": [1.5, 2.5] * 50})
    >>> (folder / "table").mkdir()
    >>> for k in range(3):
    ...     table.write_parquet(folder / "table" / f"{k}.parquet")
    >>> model = pynade.TabularNADE(hidden=8, epochs=1, random_state=0).fit(table)
    >>> pynade.stream.score(model, folder / "table", folder / "scores.csv", rows=40).scores.n
    300
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pynade.engines import imported_ray
from pynade.estimators import load
from pynade.estimators.questions import PARTICLES
from pynade.runs.answers import ANSWERS, BatchAnswers
from pynade.runs.stream import AT_ONCE, Progress, Result, ask
from pynade.tables.registry import Place

if TYPE_CHECKING:
    import ray.data


def score(
    model: Any,
    data: Any,
    out: Place | None = None,
    *,
    orderings: Any = None,
    density: bool = False,
    rows: int | None = None,
    progress: Progress = None,
    engine: str = "local",
    workers: int | None = None,
) -> Result:
    """Log p of every row, in nats, as the column ``log_prob``; `Result.scores` is their mean.

    Args:
        model: A fitted estimator.
        data: The table.
        out: Where to write; None only finds the mean.
        orderings: As in `score_samples`.
        density: As in `TabularNADE.score_samples`.
        rows: Of a part, at most; by default 65,536, or fewer of a table of more than 256 columns.
        progress: Called with the rows done and all rows (while types are found out: bytes, and "reading").
        engine: Where parts are answered: "local", or "ray" (extra ``ray``), by workers that see the files at
            the same paths. The answers are the same.
        workers: How many parts at a time: by default one, on Ray as many as the cluster has CPUs, or GPUs. A
            script that asks for several processes does so below ``if __name__ == "__main__":``.
    """
    how: Any = {"rows": rows, "progress": progress, "engine": engine, "workers": workers}
    return ask(model, "score", data, out, orderings=orderings, density=density, **how)


def impute(
    model: Any,
    data: Any,
    out: Place,
    *,
    draws: int | None = None,
    random_state: int = 0,
    particles: int = PARTICLES,
    **how: Any,
) -> Result:
    """The table with its gaps filled, by best guesses or by joint draws; `Result.gaps` counts them.

    Args:
        model, data, out, how: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        draws: A number of completions: each part has its rows so often, with a first column ``draw``.
        random_state: Seed of the draws of the first part, from which those of the others follow.
        particles: As in `DeepNADE.impute`, for models with a fixed ordering.
    """
    how |= {"draws": draws, "random_state": random_state, "particles": particles}
    return ask(model, "impute", data, out, **how)


def predict(
    model: Any,
    data: Any,
    out: Place,
    target: str,
    *,
    proba: bool = False,
    **how: Any,
) -> Result:
    """Best guesses of a column of a mixed table, from whatever else is known in each row.

    Args:
        model, data, out, how: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        target: The column, which may be absent.
        proba: Write the probabilities of its levels instead.
    """
    return ask(model, "predict", data, out, target=target, proba=proba, **how)


def surprise(
    model: Any,
    data: Any,
    out: Place | None = None,
    *,
    top: int | None = None,
    measure: str = "log_p",
    **how: Any,
) -> Result:
    """How odd every cell of a mixed table is given the others of its row, or the oddest cells of all parts.

    Args:
        model, data, out, how: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        top, measure: As in `TabularNADE.surprise`; `Result.cells` has the oddest cells.
    """
    return ask(model, "surprise", data, out, top=top, measure=measure, **how)


def sample(
    model: Any,
    n: int,
    out: Place,
    *,
    random_state: int = 0,
    given: Mapping[Any, Any] | None = None,
    **how: Any,
) -> Result:
    """Exact draws.

    Args:
        model, out, how: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        n: How many.
        random_state: As in `impute`.
        given: Known values by column.
    """
    return ask(model, "sample", n, out, random_state=random_state, given=given, **how)


def answer_dataset(
    model: Any,
    question: str,
    dataset: ray.data.Dataset,
    *,
    rows: int | None = None,
    compute: Any = None,
    options: Mapping[str, Any] | None = None,
    **resources: Any,
) -> ray.data.Dataset:
    """Scores, fillings or guesses of a data set of Ray, as a further step of it (extra ``ray``).

    "score" and "predict" give the rows with the answer as a column (``log_prob``, the target); "impute" gives
    the rows without gaps, "surprise" how odd each cell is. Draws depend on the seed and on the rows that are
    drawn for together, so that a task that is done again gives the same. Ray keeps the order of rows if
    ``ray.data.DataContext.get_current().execution_options.preserve_order`` is set.

    Args:
        model: A fitted estimator, which every worker gets once.
        question: "score", "impute", "predict" or "surprise".
        dataset: Of the columns that the model knows; others stay, or are left out by models of arrays.
        rows: How many of a block are answered together, at most; by default 65,536.
        compute: A `ray.data.ActorPoolStrategy`; by default from one worker to as many as there is place for.
        options: Of the question, as for the function of this name.
        resources: Of each worker, such as ``num_gpus=1``, and other arguments of `Dataset.map_batches`.
    """
    cluster: Any = imported_ray()
    if question not in (questions := [name for name in ANSWERS if name != "sample"]):
        raise ValueError(f"the question must be one of {', '.join(questions)}, not {question!r}")
    resources["compute"] = compute or cluster.data.ActorPoolStrategy(min_size=1)
    resources["fn_constructor_args"] = model, question, rows or AT_ONCE, dict(options or {})
    return dataset.map_batches(BatchAnswers, batch_size=None, batch_format="pyarrow", **resources)


@lru_cache(maxsize=4)
def load_once(path: Place) -> Any:
    """The model of a file, which a process reads once: for functions that run on workers of Spark or Dask.

    Args:
        path: The file, as for `pynade.load`.
    """
    return load(Path(path))
