"""A small web server on this machine, with files that arrive well or badly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Site:
    """Files by path, and how many times each was asked for."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.files: dict[str, bytes] = {}
        self.cut_off: set[str] = set()
        self.asked: list[str] = []

    def address(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, content: bytes | str) -> str:
        self.files[name] = content.encode() if isinstance(content, str) else content
        return self.address(name)


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            home.asked.append(name)
            if name not in home.files:
                self.send_error(404)
                return
            body = home.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) * 2 if name in home.cut_off else len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    home = Site(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield home
    server.shutdown()
    server.server_close()
    thread.join()
