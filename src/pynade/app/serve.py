"""What `pynade explore` does: load a run and its data, and serve the page until it is stopped."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pynade.app.server import LOOPBACK, create
from pynade.estimators.base import DensityEstimator
from pynade.runs.run import in_memory, load_run, training_data
from pynade.runs.summary import read_result, read_spec
from pynade.tables.images import binarized


def explorer_of_run(run: Path, data: str | None = None, data_dir: Path | None = None, **options: Any) -> Any:
    """The application for a run folder or a model file, and a sentence about data that were not found.

    Args:
        run: the run folder or model file.
        data: a file or a data set; None takes the run's own, where it is there.
        data_dir: folder of the data sets.
        **options: of `pynade.app.create`.
    """
    model, facts = load_run(run, DensityEstimator)
    rows, note = None, ""
    name = data or (read_spec(run)["data"] if run.is_dir() else None)
    if name is not None:
        try:
            dataset = in_memory(training_data(model, name, data_dir))
            rows = binarized(dataset, facts.get("binarize")).split("all")
        except (ValueError, OSError) as error:
            if data is not None:
                raise
            note = f"without the data of the run: {error}"
    result = read_result(run) if (run / "result.json").is_file() else {}
    options |= {"run": str(run), "data_name": None if rows is None else name, "facts": facts}
    return create(model, rows, result=result, **options), note


def serve(
    run: Path,
    data: str | None,
    host: str,
    port: int,
    open_browser: bool,
    data_dir: Path | None,
    say: Callable[..., None],
    warn: Callable[..., None],
) -> None:
    """Serve the page of a run until Ctrl-C.

    Args:
        run, data, data_dir: as for `explorer_of_run`.
        host, port: where to listen; another host than loopback asks for a token.
        open_browser: open the page in the browser.
        say, warn: print a line to standard output and to standard error.
    """
    try:
        import uvicorn
    except ImportError:
        raise ImportError("the explorer needs further packages: pip install 'pynade[app]'") from None
    local = host in LOOPBACK
    token = None if local else secrets.token_urlsafe(24)
    app, note = explorer_of_run(run, data, data_dir, token=token, hosts=LOOPBACK if local else None)
    if note:
        warn(note)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # (with its protocol named, asyncio sends small answers at once)
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen()
        except OSError as error:
            raise OSError(f"cannot listen at {host}, port {port}: {error.strerror}; try --port 0") from None
        host_name = f"[{host}]" if ":" in host else host
        address = f"http://{host_name}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")
        say(f"{address}  (Ctrl-C stops it)", soft_wrap=True)
        if open_browser:
            webbrowser.open(address)
        settings = uvicorn.Config(app, log_level="warning", limit_concurrency=64, server_header=False)
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            uvicorn.Server(settings).run(sockets=[listening])
