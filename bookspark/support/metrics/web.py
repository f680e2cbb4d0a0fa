"""Pages of a process over HTTP, for Prometheus and for probes: a few paths, each a function that makes its page.

Law: a page changes nothing, and each is made in a thread of its own, so neither a slow peer nor a slow page delays others. A
stranger at the port costs the process little: ``_CONNECTIONS_MAX`` connections are served at once, each for
``_CONNECTION_SECONDS_MAX`` at most, and further ones are closed at once. The threads end with the process, not before.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

from bookspark.errors import BookieError
from bookspark.support.addresses import address_text

_CONNECTIONS_MAX = 8
_CONNECTION_SECONDS_MAX = 10.0
_PORT_MAX = 65535
PORTS = 64
"""Ports tried for ``metrics_port``: several processes of a host may share one setting."""

log = logging.getLogger(__name__)


class Page(NamedTuple):
    """An answer: HTTP's status, the content and its type."""

    status: int
    content: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers, by name."""


class Asked(NamedTuple):
    path: str
    query: str
    """The text after the path's ``?``, unchanged."""
    headers: Message


class WebServer:
    """Answers at ``host:port`` until ``close``. ``pages``: the function for each path, or one function for all paths."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Callable[[], Page]] | Callable[[Asked], Page],
        *,
        tries: int = 1,
        what: str = "metrics",
        option: str = "metrics_port",
    ) -> None:
        """Begin to answer. ``tries``: number of ports to try from ``port`` on; ``port`` 0 is any free port. For errors:
        ``what`` is served, and the ``option`` of the port. Raises BookieError if no address is available."""

        class Handler(_Handler):
            page_of = staticmethod(pages if callable(pages) else _by_path(pages))

        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._server = _first_free(_server(family), str(address[0]), port, tries, Handler)
        except OSError as error:
            raise BookieError(
                f"{what} can't be answered at {address_text(host, port)}: {error}; set {option} to another one, or to 0"
            ) from error
        self.port: int = self._server.server_address[1]
        """The port in use."""
        if port not in (0, self.port):
            at = address_text(host, self.port)
            log.warning("port %d is in use: %s and probes are answered at %s", port, what, at)
        self._thread = threading.Thread(target=self._server.serve_forever, name="web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = 64
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for an unused name, and may wait long for it.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A total time limit for a slow peer. A timeout of the socket would restart at each byte.
        deadline = threading.Timer(_CONNECTION_SECONDS_MAX, _end, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request from %s was not answered", client_address, exc_info=True)


def _server(family: int) -> type[_Server]:
    class Server(_Server):
        address_family = family

    return Server


def _first_free(server: type[_Server], host: str, port: int, tries: int, handler: type[_Handler]) -> _Server:
    """A server at the first free port. Raises OSError."""
    last = min(port + tries - 1, _PORT_MAX) if port else port
    for candidate in range(port, last):
        try:
            return server((host, candidate), handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return server((host, last), handler)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _by_path(pages: Mapping[str, Callable[[], Page]]) -> Callable[[Asked], Page]:
    def page_of(asked: Asked) -> Page:
        make = pages.get(asked.path)
        return Page(404, f"there is {', '.join(pages)}\n".encode()) if make is None else make()

    return page_of


class _Handler(BaseHTTPRequestHandler):
    page_of: Callable[[Asked], Page]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            page = self.page_of(Asked(path, query, self.headers))
        except Exception as error:
            log.warning("%s can't be answered: %s: %s", self.path, type(error).__name__, error)
            page = Page(503, f"{type(error).__name__}: {error}\n".encode())
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.content)))
        for name, value in page.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(page.content)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
