"""Questions about tables larger than memory, in CSV and Parquet files, answered in parts of some rows.

Each function takes a fitted model; a file, a folder of files or a pattern such as ``data/*.parquet`` (or a
polars frame); and an output: a ``.csv`` or ``.parquet`` file, or a folder for a file of each part. Memory is
constant, and the order of rows is kept. When a call that was killed is repeated, it continues after the parts
that are finished. Output files are written atomically.

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

from pynade.engines import import_ray
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
        out: The output; None computes only the mean.
        orderings: As in `score_samples`.
        density: As in `TabularNADE.score_samples`.
        rows: Most rows of a part; by default 65,536, or fewer for a table of more than 256 columns.
        progress: Called with the rows done and all rows (while column types are read: bytes, and "reading").
        engine: "local", or "ray" (extra ``ray``), with workers that see the files at the same paths. The
            answers are the same.
        workers: Number of parts at a time: by default one; on Ray the number of CPUs (or GPUs) there.
            A script must start several processes below ``if __name__ == "__main__":``.
    """
    options: Any = {"rows": rows, "progress": progress, "engine": engine, "workers": workers}
    return ask(model, "score", data, out, orderings=orderings, density=density, **options)


def impute(
    model: Any,
    data: Any,
    out: Place,
    *,
    draws: int | None = None,
    random_state: int = 0,
    particles: int = PARTICLES,
    **options: Any,
) -> Result:
    """The table with its missing cells filled, by best guesses or joint draws; `Result.gaps` counts them.

    Args:
        model, data, out, options: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        draws: Number of completions: each part is repeated for each of them, with a first column ``draw``.
        random_state: Seed of the draws.
        particles: As in `DeepNADE.impute`, for models with a fixed ordering.
    """
    options |= {"draws": draws, "random_state": random_state, "particles": particles}
    return ask(model, "impute", data, out, **options)


def predict(
    model: Any,
    data: Any,
    out: Place,
    target: str,
    *,
    proba: bool = False,
    **options: Any,
) -> Result:
    """Best guesses of a column of a mixed table, from the known cells of each row.

    Args:
        model, data, out, options: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        target: The column, which the table may lack.
        proba: Write the probabilities of its levels instead.
    """
    return ask(model, "predict", data, out, target=target, proba=proba, **options)


def surprise(
    model: Any,
    data: Any,
    out: Place | None = None,
    *,
    top: int | None = None,
    measure: str = "log_p",
    **options: Any,
) -> Result:
    """How surprising each cell of a mixed table is given the others of its row, or the most surprising cells.

    Args:
        model, data, out, options: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        top, measure: As in `TabularNADE.surprise`; `Result.cells` has the most surprising cells.
    """
    return ask(model, "surprise", data, out, top=top, measure=measure, **options)


def sample(
    model: Any,
    n: int,
    out: Place,
    *,
    random_state: int = 0,
    given: Mapping[Any, Any] | None = None,
    **options: Any,
) -> Result:
    """Exact draws.

    Args:
        model, out, options: As in `score`; `rows`, `progress`, `engine` and `workers` among them.
        n: Number of draws.
        random_state: As in `impute`.
        given: Known values by column.
    """
    return ask(model, "sample", n, out, random_state=random_state, given=given, **options)


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
    """Scores, imputations or predictions of a Ray data set, as a transformation of it (extra ``ray``).

    "score" and "predict" return the rows with the answer as a column (``log_prob``, the target), "impute"
    the rows with missing cells filled, "surprise" the surprise of each cell. Draws depend on the seed and on
    the rows of the batch, so that a repeated task returns the same. Ray keeps the order of rows if
    ``ray.data.DataContext.get_current().execution_options.preserve_order`` is set.

    Args:
        model: A fitted estimator, which is sent to every worker once.
        question: "score", "impute", "predict" or "surprise".
        dataset: With the columns of the model; other columns are kept, but dropped by models of arrays.
        rows: Most rows of a block that are answered together; by default 65,536.
        compute: A `ray.data.ActorPoolStrategy`; by default one worker, or more if the cluster has room.
        options: Options of the question, as for the function of this name.
        resources: Resources of each worker, such as ``num_gpus=1``, and other arguments of
            `Dataset.map_batches`.
    """
    cluster: Any = import_ray()
    if question not in (questions := [name for name in ANSWERS if name != "sample"]):
        raise ValueError(f"the question must be one of {', '.join(questions)}, not {question!r}")
    resources["compute"] = compute or cluster.data.ActorPoolStrategy(min_size=1)
    resources["fn_constructor_args"] = model, question, rows or AT_ONCE, dict(options or {})
    return dataset.map_batches(BatchAnswers, batch_size=None, batch_format="pyarrow", **resources)


@lru_cache(maxsize=4)
def load_once(path: Place) -> Any:
    """The model of a file, cached for the process: for functions that run on workers of Spark or Dask.

    Args:
        path: The file, as for `pynade.load`.
    """
    return load(Path(path))
