"""The playground's page and the derivation of typed cells, served on loopback only."""

from __future__ import annotations

import json
import os
import sys
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

PAGE = Path(__file__).with_name("page.html")
LONGEST = 20_000  # bytes of a request
LOOPBACK = "127.0.0.1"
PORTS = 20  # how many ports are tried, one after the other


class Playground(ThreadingHTTPServer):
    """The playground on ``http://127.0.0.1:port/``; the next port if that one is in use.

    ``GET /`` is the page, ``POST /cell`` answers the text of a cell with its JavaScript, or with the library's
    message. Typed text is read by `longlag.cells.from_text` and never executed. Requests with another host's name
    (DNS rebinding) or from another origin (other sites) are refused.

    >>> from longlag.play import Playground
    >>> with Playground(0) as server:
    ...     server.address.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # on Windows, the option would let two servers share the port

    def __init__(self, port: int = 8971) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"Playground: port must be an int of 0..65535, got {port!r}")
        self.deriving = Lock()
        last = min(port + PORTS, 2**16) - 1 if port else 0
        for wanted in range(port, last + 1):
            try:
                super().__init__((LOOPBACK, wanted), Handler)
                return
            except OSError:
                if wanted == last:
                    raise
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes its connection is no error; anything else is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """Names that requests may use for this server."""
        return f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"

    @cached_property
    def page(self) -> bytes:
        """The page, marked as one where cells can be typed."""
        return PAGE.read_text(encoding="utf-8").replace('data-types="no"', 'data-types="yes"', 1).encode()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Playground  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 20  # seconds for a request to arrive
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The page."""
        if not self._ours():
            return
        path = self.path.partition("?")[0]
        if path in ("/", "/index.html"):
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif path == "/favicon.ico":
            self._answer(HTTPStatus.NO_CONTENT, "image/x-icon", b"")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"playground: no such page: {path}")

    def do_POST(self) -> None:
        """A typed cell."""
        length = self.headers.get("Content-Length", "")
        size = int(length) if length.isdecimal() and len(length) < 9 else LONGEST + 1
        body = self.rfile.read(size) if size <= LONGEST else None
        self.close_connection = self.close_connection or body is None
        if not self._ours(writes=True):
            return
        if self.path != "/cell":
            self._refuse(HTTPStatus.NOT_FOUND, f"playground: no such page: {self.path}")
        elif body is None:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"playground: a cell has at most {LONGEST} bytes of text")
        else:
            self._cell(body.decode("utf-8", errors="replace"))

    def _cell(self, text: str) -> None:
        from longlag import cells

        try:
            with self.server.deriving:
                source = cells.from_text(text).source("js")
        except (ValueError, TypeError) as error:
            self._refuse(HTTPStatus.OK, str(error))  # the request itself succeeded
        else:
            self._json(HTTPStatus.OK, {"source": source})

    def _ours(self, *, writes: bool = False) -> bool:
        """Whether a request is addressed to this server and, if it posts text, comes from the playground's own page."""
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        right = host in self.server.hosts and (origin == f"http://{host}" or (origin is None and not writes))
        if not right:
            self._refuse(HTTPStatus.FORBIDDEN, "playground: requests must come from the playground's own page")
        return right

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._json(status, {"error": message})

    def _json(self, status: HTTPStatus, data: dict[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(data).encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the page itself shows errors."""
