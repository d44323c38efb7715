"""The web application: one page, JSON endpoints, and what keeps them safe and bounded."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from functools import partial
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, RedirectResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise ImportError("the explorer needs further packages: pip install 'pynade[app]'") from error

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "pynade_token"
MOST_COLUMNS = 10_000  # of a table that is sent
PAGE = {"/": ("index.html", "text/html"), "/app.js": ("app.js", "text/javascript")}
PAGE |= {"/views.js": ("views.js", "text/javascript"), "/charts.js": ("charts.js", "text/javascript")}
PAGE |= {"/style.css": ("style.css", "text/css")}
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

        answer = self.refused(scope) or self.app
        await answer(scope, receive, with_headers)

    def refused(self, scope: Scope) -> Response | None:
        """The answer to a request that is not passed on."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, other = urlsplit(f"//{host}").hostname, urlsplit(origin or "").netloc
        except ValueError:
            return refusal(400, "the Host or Origin header is not valid")
        if self.hosts is not None and name not in self.hosts:
            return refusal(403, "this server answers only under its own name (Host header)")
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/"
        if foreign or (origin is not None and other != host):  # (the page itself may be linked to)
            return refusal(403, "requests of pages of other sites are refused")
        if self.token is None:
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._right(asked) and scope["path"] == "/":
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return refusal(400, "the Cookie header is not valid")
        cookie = cookies[COOKIE].value if COOKIE in cookies else ""
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._right(cookie) or self._right(bearer):
            return None
        return refusal(401, "a token is needed: open the address that `pynade explore` printed")

    def _right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), (self.token or "").encode())


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
    routes += [Route(f"/api/{name}", service.endpoint(work), methods=["GET"]) for name, work in READ.items()]
    routes += [
        Route(f"/api/{name}", service.endpoint(work, json_body), methods=["POST"])
        for name, work in ASKED.items()
    ]
    routes += [
        Route(f"/api/{name}", service.endpoint(work, table_body), methods=["POST"])
        for name, work in SENT.items()
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _failed})
    app.add_middleware(Guard, token=token, hosts=hosts)
    return app


def _page(name: str, kind: str, request: Request) -> Response:
    text = files("pynade.app").joinpath("page", name).read_text(encoding="utf-8")
    return Response(text, media_type=kind)


def _refused(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 400)
    known = {404: "there is no such page", 405: "this address takes another method"}
    return refusal(status, known.get(status, str(getattr(error, "detail", error))))


def _failed(request: Request, error: Exception) -> Response:
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
                    raw = await self._read(request)
                self.threads = self.threads or CapacityLimiter(self.limits.concurrent)
                return await to_thread.run_sync(
                    self._computed, work, parse, request, raw, limiter=self.threads
                )
            except TooMuch as error:
                return refusal(413, str(error))
            except TimeoutError:
                return refusal(408, f"the request was not sent within {self.limits.seconds:g} s")
            except ClientDisconnect:
                return refusal(400, "the request ended early")
            finally:
                self.busy -= 1

        return answer

    async def _read(self, request: Request) -> bytes:
        """The body of a request, within its limit."""
        too_large = TooMuch(f"a request may have {self.limits.bytes:,} bytes at most")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.limits.bytes:
            raise too_large
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > self.limits.bytes:
                raise too_large
        return b"".join(parts)

    def _computed(self, work: Callable[..., Any], parse: Any, request: Request, raw: bytes) -> Response:
        torch.set_num_threads(1)  # of this thread: questions are small, and several are computed at once
        try:
            asked = {} if parse is None else parse(self.explorer, request, raw)
            found = work(self.explorer, **asked)
            return Response(json.dumps(found, allow_nan=False), media_type="application/json")
        except TooMuch as error:
            return refusal(413, str(error))
        except (ValueError, TypeError, OverflowError, polars.exceptions.PolarsError) as error:
            log.info("refused: %s", error)
            return refusal(400, str(error))


def _no_constants(word: str) -> float:
    raise ValueError(f"the request has {word}, which is no JSON")


def _parsed(raw: bytes) -> dict[str, Any]:
    """The object of a JSON body."""
    try:
        found = json.loads(raw.decode("utf-8"), parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the request is no JSON text ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("the request must be a JSON object")
    return found


def json_body(explorer: Explorer, request: Request, raw: bytes) -> dict[str, Any]:
    """The arguments of a question."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise ValueError("a question is sent as application/json")
    return _parsed(raw)


def table_body(explorer: Explorer, request: Request, raw: bytes) -> dict[str, Any]:
    """The arguments of a question about a table that is sent: as CSV, or as JSON with rows or columns."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    asked: dict[str, Any] = dict(request.query_params)
    for name in asked:
        if not asked[name].isascii() or not asked[name].isdigit() or len(asked[name]) > 9:
            raise ValueError(f"{name:.40} must be a whole number")
        asked[name] = int(asked[name])
    if kind == "text/csv":
        widest = max(max(line.count(b","), line.count(b";")) for line in raw.split(b"\n"))
        if widest >= MOST_COLUMNS:
            raise TooMuch(f"a table may have {MOST_COLUMNS:,} columns at most")
        table = read_frame(Path("the table"), getattr(explorer.model, "missing", None), raw)
    elif kind == "application/json":
        table = _json_table(_parsed(raw))
    else:
        raise ValueError("a table is sent as text/csv or application/json")
    if table.height > explorer.limits.rows:
        raise TooMuch(f"a table may have {explorer.limits.rows:,} rows at most, not {table.height:,}")
    return asked | {"table": table}


def _json_table(found: dict[str, Any]) -> Any:
    """A frame from {"rows": [{column: value, …}, …]} or {"columns": {column: [value, …], …}}."""
    if (
        list(found) == ["rows"]
        and isinstance(found["rows"], list)
        and all(isinstance(r, dict) for r in found["rows"])
    ):
        names = {name: None for row in found["rows"] for name in row}
        columns: Any = {name: [row.get(name) for row in found["rows"]] for name in names}
    elif list(found) == ["columns"] and isinstance(found["columns"], dict):
        columns = found["columns"]
    else:
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


def _exactly(work: Callable[..., Any], *needed: str, **optional: Any) -> Callable[..., Any]:
    """A function of an explorer and the arguments of a request, which refuses unknown and missing ones."""

    def call(explorer: Explorer, **asked: Any) -> Any:
        for name in asked:
            if name not in needed and name not in optional:
                raise ValueError(f"there is no {name!r:.40} here; known: {', '.join([*needed, *optional])}")
        for name in needed:
            if name not in asked:
                raise ValueError(f"the request has no {name!r}")
        return work(explorer, **optional | asked)

    return call


def _fill(explorer: Explorer, table: Any, draws: int, seed: int) -> Any:
    """Best guesses, or so many draws."""
    return views.fill(explorer, table, views.whole(draws, "draws", 0, 20) or None, seed)


READ = {"model": _exactly(Explorer.about), "scores": _exactly(views.scores)}
ASKED = {
    "conditional": _exactly(Explorer.conditional, "asked", given={}),
    "spread": _exactly(Explorer.spread, "asked", given={}),
    "rows": _exactly(views.rows, start=0, n=25, lowest=True),
    "samples": _exactly(views.samples, n=1000, given={}, seed=0),
    "image": _exactly(views.image, row=None, hole=[], seed=0),
}
SENT = {"score": _exactly(views.score, "table"), "fill": _exactly(_fill, "table", draws=0, seed=0)}
