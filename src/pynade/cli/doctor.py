"""`pynade doctor`: what is installed, whether the compiled kernels are right, what was left behind."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from pynade._version import __version__
from pynade.atomic import LOCK, read_lock
from pynade.cli.arguments import DataDir
from pynade.cli.lazy import registry, torch
from pynade.cli.screen import console

Lines = Iterator[tuple[str, str]]  # "ok", "note" or "problem", and a sentence; of a problem, also what to do
LIBRARIES = ("torch", "numpy", "numba", "polars", "scikit-learn")
LIMITS = [f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")] + ["POLARS_MAX_THREADS"]
CLOSE = {"float32": 1e-4, "float64": 1e-10}  # differences allowed, as shares of the largest number
Runs = typer.Argument(metavar="[FOLDER]", help="Folder of run folders, for locks left behind.")


def doctor(folder: Annotated[Path, Runs] = Path("runs"), data_dir: DataDir = None) -> None:
    """Check this machine: versions, threads, compiled kernels, data files, locks left behind.

    Every line is ok, a note or a problem with what to do. The exit code is 1 if there is a problem.

    \b
    Examples:
      pynade doctor
      pynade doctor results/runs
    """
    problems, compiled = 0, (kernels("numba", "cpu"), kernels("triton", "cuda"))
    for check in (versions(), threads(), cache(), *compiled, data(data_dir), locks(folder)):
        try:
            for state, text in check:
                problems += state == "problem"
                console.print(f"{state:8} {text}", soft_wrap=True)
        except Exception as error:  # of a broken library, say; the other checks go on
            problems += 1
            text = f"{getattr(check, '__name__', '')}: {type(error).__name__}: {error}".partition("\n")[0]
            console.print(f"problem  {text}; install pynade and what it needs again", soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def versions() -> Lines:
    """Versions of pynade, Python and the libraries that compute."""
    yield "ok", f"pynade {__version__}, Python {platform.python_version()}, {platform.platform()}"
    for name in LIBRARIES:
        try:
            yield "ok", f"{name} {version(name)}"
        except PackageNotFoundError:
            yield "problem", f"{name} is not installed: pip install {name}"


def threads() -> Lines:
    """Threads of torch, which pynade's CPU kernels use too, those of numba, and variables that limit them."""
    import numba

    settings: Any = numba.config
    count = f"torch {torch.get_num_threads()}, numba {settings.NUMBA_NUM_THREADS}"
    yield "ok", f"threads: {count}; cores of this machine: {os.cpu_count()}"
    for name in filter(os.environ.get, LIMITS):
        yield "note", f"{name}={os.environ[name]} limits threads"


def cache() -> Lines:
    """Whether numba can write its cache; without it kernels are compiled in every process."""
    from pynade.kernels import cpu

    compiled: Any = cpu._walk
    folder = compiled.stats.cache_path  # None where numba found no folder that it could write to
    try:
        if folder is None:
            raise OSError("no folder can be written")
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
        yield "ok", f"numba's cache can be written: {folder}"
    except OSError as error:
        problem = f"numba cannot write its cache ({error.strerror or error}{f': {folder}' if folder else ''})"
        yield "problem", f"{problem}: set NUMBA_CACHE_DIR to a folder that can be written"


def kernels(kernel: str, device: str) -> Lines:
    """Values, gradients and samples by a compiled kernel, against the reference in float64."""
    if device == "cuda" and not torch.cuda.is_available():
        yield "note", "no GPU"
        return
    name = f"GPU ({torch.cuda.get_device_name()})" if device == "cuda" else "CPU"
    reference = _example("reference", "cpu", torch.float64)
    for dtype, most in CLOSE.items():
        results = _example(kernel, device, getattr(torch, dtype))
        errors = {}
        for part, exact in reference.items():
            errors[part] = float((results[part].double().cpu() - exact).abs().max() / exact.abs().max())
        worst = max(errors, key=lambda part: (errors[part] != errors[part], errors[part]))  # NaN first
        text = f"{name}: kernels of {kernel} in {dtype}"
        if errors[worst] <= most:
            yield "ok", f"{text} agree with the reference within {errors[worst]:.0e}"
        else:
            text += f" differ from the reference by {errors[worst]:.1e} in {worst}, so that results are wrong"
            yield "problem", f"{text}: clear their cache, try other versions of torch and {kernel}; report it"


def _example(kernel: str, device: str, dtype: Any) -> dict[str, Any]:
    """Conditionals of a small NADE by a kernel, their gradients by all inputs, and samples."""
    from pynade.kernels import recurrence, sample

    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (8, 12, 1), "W": (12, 1, 20), "c": (20,), "V": (12, 1, 20), "b": (12, 1)}
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) / 2 for shape in shapes.values()]
    leaves: list[Any] = [t.to(device, dtype).requires_grad_() for t in numbers]
    order = torch.randperm(12, generator=generator).to(device)
    x, W, c, V, b = leaves
    eta = recurrence(x, W, c, V, b, order, "sigmoid", kernel)
    eta.square().sum().backward()
    uniforms = torch.rand(8, 12, generator=generator, dtype=torch.float64).to(device, dtype)
    weights = [*(t.detach() for t in (W, c, V, b)), order]
    gradients = {f"gradients by {name}": t.grad for name, t in zip(shapes, leaves, strict=True)}
    drawn = sample(weights, uniforms, None, "sigmoid", kernel=kernel)
    return {"values": eta.detach(), "samples": drawn} | gradients


def data(data_dir: Path | None) -> Lines:
    """Whether the files of named data sets are those that were recorded: loading a set verifies it."""
    folder = registry.data_directory(data_dir)
    stored = [e for e in registry.entries().values() if e.addresses or e.by_hand]  # others are in packages
    names = [entry.name for entry in stored if entry.here(data_dir)]
    for name in names:
        try:
            registry.load(name, data_dir, download=False)
            yield "ok", f"data set {name} in {folder} is the recorded one"
        except (ValueError, OSError) as error:
            yield "problem", f"{error}: remove the file, then pynade data get {name}"
    if not names:
        yield "note", f"no data sets in {folder}"


def locks(folder: Path) -> Lines:
    """Locks of run folders: held by a process, or left behind by one that was killed."""
    runs = sorted(path.parent for path in folder.rglob(LOCK[0]))
    if not runs:
        yield "ok", f"no locks in {folder}"
    for run in runs:
        try:
            owner, in_use = read_lock(run)
        except OSError as error:
            yield "note", f"{run} has a lock that cannot be read: {error.strerror or error}"
            continue
        unfinished = (run / "spec.json").is_file() and not (run / "result.json").is_file()
        again = f"; to go on: pynade fit --resume {run}" if unfinished else ""
        local = owner.endswith(f" on {socket.gethostname()}")
        ended = "has ended" if local else "does not hold it on this host"
        stale = f"{run} has a stale lock of {owner}, which {ended}: the next command takes it over{again}"
        yield "note", f"{run} is in use by {owner}" if in_use else stale
