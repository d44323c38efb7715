"""Engines that do jobs: this process, several processes of this machine, or a cluster of Ray.

The same jobs give the same results whatever the engine; what differs is where they run. Ray takes the cluster
that ``ray.init()`` finds (by ``RAY_ADDRESS``, or one that runs on this machine), or else starts one of this
machine's cores.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import suppress
from itertools import islice
from multiprocessing import active_children, get_context
from typing import Any

ENGINES = ("local", "ray")
TRIES = 4  # of a job on Ray whose worker ends in the middle

Job = tuple[Any, ...]  # the arguments of a call
Results = Generator[tuple[int, Any], None, None]


def run_jobs(
    work: Callable[..., Any],
    jobs: Sequence[Job],
    engine: str = "local",
    workers: int | None = None,
    device: str = "cpu",
) -> Results:
    """Call a function for each job; yields the number of a job and its result, when it is done.

    In this process jobs are done in order, elsewhere in any order. A job whose worker ends in the middle is
    done again on Ray, so it has to be one that may be done twice. An exception of a job ends all.

    Args:
        work: The function; for other processes it is pickled once for each of them.
        jobs: The arguments of the calls.
        engine: "local" or "ray".
        workers: How many jobs at a time. By default one, in this process; on Ray one for each of its CPUs, or
            GPUs.
        device: Where jobs compute, "auto", "cpu" or "cuda": if not on CPUs, each worker of Ray gets one of
            the GPUs of the cluster, if there are any.
    """
    check_engine(engine, workers)
    if engine == "ray" and jobs:
        return _by_ray(work, jobs, workers, device)
    if workers in (None, 1) or not jobs:
        return ((number, work(*job)) for number, job in enumerate(jobs))
    return _by_processes(work, jobs, workers)


def check_engine(engine: str, workers: int | None) -> None:
    """Raise an error if there is no such engine, or not here.

    Args:
        engine, workers: As for `run_jobs`.
    """
    if engine not in ENGINES:
        raise ValueError(f"the engine must be {' or '.join(ENGINES)}, not {engine!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"the number of workers must be at least 1, not {workers}")
    if engine == "ray":
        import_ray()


def import_ray() -> Any:
    """The module, or an error that says how to get it."""
    try:
        import ray
    except ImportError:
        raise ImportError("the engine ray needs further packages: pip install 'pynade[ray]'") from None
    return ray


_work: Callable[..., Any]  # the function that a process started by `_by_processes` calls for its jobs


def _start(work: Callable[..., Any]) -> None:
    global _work
    import torch

    torch.set_num_threads(1)
    _work = work


def _call(job: Job) -> Any:
    return _work(*job)


def _by_processes(work: Callable[..., Any], jobs: Sequence[Job], workers: int | None) -> Results:
    earlier = set(active_children())
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (work,))
    try:
        running = {pool.submit(_call, job): number for number, job in enumerate(jobs)}
        for future in as_completed(running):
            yield running[future], future.result()
    except BaseException as error:
        for process in set(active_children()) - earlier:
            process.terminate()  # it gets Ctrl-C too, but not a signal to this process alone
        if isinstance(error, BrokenExecutor):
            raise ConnectionError("a worker process has ended before its job was done") from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Actor:
    """A worker of Ray, in the folder of the process that it works for, so that paths mean the same."""

    def __init__(self, work: Callable[..., Any], folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        self.work = work

    def do(self, job: Job) -> Any:
        return self.work(*job)


def _by_ray(work: Callable[..., Any], jobs: Sequence[Job], workers: int | None, device: str) -> Results:
    ray = import_ray()
    if not ray.is_initialized():
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(log_to_driver=False, logging_level="ERROR")
        with suppress(ValueError):  # (not the main thread)
            signal.signal(signal.SIGTERM, handler)  # Ray would end the process; commands take it as Ctrl-C
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if device != "cpu" else 0
    options = {"num_cpus": 1, "num_gpus": min(gpus, 1), "max_restarts": -1, "max_task_retries": TRIES - 1}
    actor_class, shared_work = ray.remote(**options)(_Actor), ray.put(work)
    count = workers or gpus or max(1, int(resources.get("CPU", 1)))
    waiting, running = iter(enumerate(jobs)), {}
    try:
        for number, job in islice(waiting, count):
            actor = actor_class.remote(shared_work, os.getcwd())
            running[actor.do.remote(job)] = number, actor
        while running:
            (task,), _ = ray.wait([*running], num_returns=1)
            number, actor = running.pop(task)
            try:
                result = ray.get(task)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                reason = f"{TRIES} tries at most: {type(error).__name__}: {error}".partition("\n")[0]
                raise ConnectionError(f"a job on Ray was given up, after {reason}") from None
            for next_number, job in islice(waiting, 1):
                running[actor.do.remote(job)] = next_number, actor
            del actor  # one without a job makes place for one that could not start yet
            yield number, result
    finally:
        for _, actor in running.values():
            ray.kill(actor)
