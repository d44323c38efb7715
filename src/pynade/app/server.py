"""The web application: one page, JSON endpoints, and what keeps them safe and bounded."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars
import torch

from pynade.app import views
from pynade.app.code import Code
from pynade.app.explorer import Explorer
from pynade.app.limits import Limits, TooMuch
from pynade.tables.files import read_frame
from pynade.tables.frames import native_frame

try:
    from anyio import CapacityLimiter, fail_after, to_thread
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, HTTPConnection, Request
    from starlette.responses import JSONResponse, RedirectResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise ImportError("the explorer needs further packages: pip install 'pynade[app]'") from error

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "pynade_token"
MOST_COLUMNS = 10_000  # of a table that is sent
PAGE = {"/": ("index.html", "text/html"), "/style.css": ("style.css", "text/css")}
PAGE |= {f"/{name}.js": (f"{name}.js", "text/javascript") for name in ("app", "views", "charts")}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
POLICY += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
log = logging.getLogger("pynade")


def refusal(status: int, sentence: str) -> JSONResponse:
    """A refused request: a status and one sentence."""
    text = " ".join(sentence.split())[:1000].encode("utf-8", "replace").decode("utf-8")
    return JSONResponse({"error": text}, status)


class Guard:
    """Refuses requests of other hosts, of other pages and without the token; adds headers to all answers.

    Args:
        app: the application.
        token: what requests must bring, in a header (Authorization: Bearer …), once in the address
            (?token=…), and from then on in a cookie; None needs none.
        hosts: names of this server that are answered to; None answers to all.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: tuple[str, ...] | None) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self.check(scope) or self.app
        await answer(scope, receive, with_headers)

    def check(self, scope: Scope) -> Response | None:
        """The answer to a request that is not passed on; None passes it on."""
        request = HTTPConnection(scope)
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        try:
            host_name, origin_host = urlsplit(f"//{host}").hostname, urlsplit(origin or "").netloc
        except ValueError:
            return refusal(400, "the Host or Origin header is not valid")
        if self.hosts is not None and host_name not in self.hosts:
            return refusal(403, "this server answers only under its own name (Host header)")
        site, at_page = request.headers.get("sec-fetch-site"), scope["path"] == "/"
        foreign = site in ("cross-site", "same-site") and not at_page  # (the page itself may be linked to)
        if foreign or (origin is not None and origin_host != host):
            return refusal(403, "requests of pages of other sites are refused")
        if self.token is None:
            return None
        if at_page and self._is_token(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(request.cookies.get(COOKIE, "")) or self._is_token(bearer):
            return None
        return refusal(401, "a token is needed: open the address that `pynade explore` printed")

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), (self.token or "").encode())


def create(
    model: Any,
    data: Any = None,
    token: str | None = None,
    *,
    hosts: tuple[str, ...] | None = LOOPBACK,
    limits: Limits | None = None,
    run: str = "RUN",
    data_name: str | None = None,
    facts: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
) -> Starlette:
    """The explorer of a fitted model as a Starlette application, for uvicorn or any other ASGI server.

    Args:
        model: a fitted estimator.
        data: rows to show beside it, a frame or an array; None has none.
        token: a secret that every request must bring; None needs none, which is for loopback only.
        hosts: names under which requests are answered (Host header); None answers to any, where there is a
            token.
        limits: of one request; see `Limits`.
        run: the run folder or model file, as code on the page names it.
        data_name: the file or the name of the data, likewise.
        facts: saved with the model: image_shape, binarize.
        result: of the run (result.json): scores that need not be computed again.
    """
    if token is None and hosts is None:
        raise ValueError("a server that answers under any name needs a token")
    facts, limits = facts or {}, limits or Limits()
    code = Code(run, data_name, hasattr(model, "schema_"), facts.get("binarize"))
    explorer = Explorer(model, data, code, result or {}, facts.get("image_shape"), limits)
    service = Service(explorer)
    routes = [Route(path, partial(_page, *file), methods=["GET"]) for path, file in PAGE.items()]
    groups: tuple[Any, ...] = ((READ, "GET", None), (ASKED, "POST", json_body), (SENT, "POST", table_body))
    for works, method, parse in groups:
        for name, work in works.items():
            routes.append(Route(f"/api/{name}", service.endpoint(work, parse), methods=[method]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _server_error})
    app.add_middleware(Guard, token=token, hosts=hosts)
    return app


def _page(name: str, kind: str, request: Request) -> Response:
    text = files("pynade.app").joinpath("page", name).read_text(encoding="utf-8")
    return Response(text, media_type=kind)


def _http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 400)
    sentences = {404: "there is no such page", 405: "this address takes another method"}
    return refusal(status, sentences.get(status, str(getattr(error, "detail", error))))


def _server_error(request: Request, error: Exception) -> Response:
    return refusal(500, "this is a fault of pynade; the log of the server has more about it")


class Service:
    """Runs the work of requests in a few threads, and refuses more than may wait for them."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.limits, self.busy = explorer, explorer.limits, 0
        self.threads: CapacityLimiter | None = None  # made inside of the event loop

    def endpoint(
        self, work: Callable[..., Any], parse: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """The function of a route: reads the request, computes in a thread, answers with JSON."""

        async def answer(request: Request) -> Response:
            if self.busy >= self.limits.concurrent + self.limits.waiting:
                return refusal(429, "the server is busy with other requests: try again in a moment")
            self.busy += 1
            try:
                with fail_after(self.limits.seconds):  # a slow sender holds no place
                    body = await self._read(request)
                self.threads = self.threads or CapacityLimiter(self.limits.concurrent)
                return await to_thread.run_sync(
                    self._compute, work, parse, request, body, limiter=self.threads
                )
            except TooMuch as error:
                return refusal(413, str(error))
            except TimeoutError:
                return refusal(408, f"the request was not sent within {self.limits.seconds:g} s")
            except ClientDisconnect:
                return refusal(400, "the request ended early")
            except (ValueError, TypeError, OverflowError, polars.exceptions.PolarsError) as error:
                log.info("refused: %s", error)
                return refusal(400, str(error))
            finally:
                self.busy -= 1

        return answer

    async def _read(self, request: Request) -> bytes:
        """The body of a request, within its limit."""
        too_large = TooMuch(f"a request may have {self.limits.bytes:,} bytes at most")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.bytes:
            raise too_large
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > self.limits.bytes:
                raise too_large
        return b"".join(parts)

    def _compute(self, work: Callable[..., Any], parse: Any, request: Request, body: bytes) -> Response:
        torch.set_num_threads(1)  # of this thread: questions are small, and several are computed at once
        arguments = {} if parse is None else parse(self.explorer, request, body)
        check_arguments(work, arguments)
        answer = json.dumps(work(self.explorer, **arguments), allow_nan=False)
        return Response(answer, media_type="application/json")


def check_arguments(work: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Refuse arguments of a request that a function of an explorer does not know, and missing ones."""
    parameters = [*signature(work).parameters.values()][1:]
    names = [parameter.name for parameter in parameters]
    for name in arguments:
        if name not in names:
            raise ValueError(f"there is no {name!r:.40} here; known: {', '.join(names)}")
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in arguments:
            raise ValueError(f"the request has no {parameter.name!r}")


def _refuse_constant(word: str) -> float:
    raise ValueError(f"the request has {word}, which is no JSON")


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request is no JSON text ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("the request must be a JSON object")
    return value


def json_body(explorer: Explorer, request: Request, body: bytes) -> dict[str, Any]:
    """The arguments of a question."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise ValueError("a question is sent as application/json")
    return _json_object(body)


def table_body(explorer: Explorer, request: Request, body: bytes) -> dict[str, Any]:
    """The arguments of a question about a table that is sent: as CSV, or as JSON with rows or columns."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    arguments: dict[str, Any] = {}
    for name, text in request.query_params.items():
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise ValueError(f"{name:.40} must be a whole number")
        arguments[name] = int(text)
    if kind == "text/csv":
        widest = max(max(line.count(b","), line.count(b";")) for line in body.split(b"\n"))
        if widest >= MOST_COLUMNS:
            raise TooMuch(f"a table may have {MOST_COLUMNS:,} columns at most")
        table = read_frame(Path("the table"), getattr(explorer.model, "missing", None), body)
    elif kind == "application/json":
        table = _json_table(_json_object(body))
    else:
        raise ValueError("a table is sent as text/csv or application/json")
    if table.height > explorer.limits.rows:
        raise TooMuch(f"a table may have {explorer.limits.rows:,} rows at most, not {table.height:,}")
    return arguments | {"table": table}


def _json_table(body: dict[str, Any]) -> Any:
    """A frame from {"rows": [{column: value, …}, …]} or {"columns": {column: [value, …], …}}."""
    rows, columns = body.get("rows"), body.get("columns")
    if len(body) == 1 and isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        names = {name: None for row in rows for name in row}
        columns = {name: [row.get(name) for row in rows] for name in names}
    elif len(body) != 1 or not isinstance(columns, dict):
        raise ValueError('a table is {"rows": [{column: value}]} or {"columns": {column: [values]}}')
    if len(columns) > MOST_COLUMNS:
        raise TooMuch(f"a table may have {MOST_COLUMNS:,} columns at most")
    for name, values in columns.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"column {name!r:.60} must be a list of values")
        if not all(map(_is_cell, values)):
            raise ValueError(f"column {name!r:.60} has a cell that is no text, number, true, false or null")
    if not columns:
        raise ValueError("the table has no columns")
    return native_frame(columns)[0].to_native()


def _is_cell(value: Any) -> bool:
    number = isinstance(value, int | float)
    return abs(value) < 2**63 if number else value is None or isinstance(value, str)


READ = {"model": Explorer.about, "scores": views.scores}
ASKED = {
    "conditional": Explorer.conditional,
    "spread": Explorer.spread,
    "rows": views.rows,
    "samples": views.samples,
    "image": views.image,
}
SENT = {"score": views.score, "fill": views.fill}
