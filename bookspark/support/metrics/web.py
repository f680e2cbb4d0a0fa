"""Pages of a process over HTTP, for Prometheus and for probes: a few paths, each a function that makes its page.

Law: a page changes nothing, and each is made in a thread of its own, so neither a slow peer nor a slow page delays others. A
stranger at the port costs the process little: ``_CONNECTIONS_MAX`` connections are served at once, ``_OF_AN_ADDRESS_MAX`` of one
address, each for ``_CONNECTION_SECONDS_MAX`` at most and with ``_HEAD_BYTES_MAX``, and ``_MADE_AT_ONCE`` pages are made.

A newcomer without room takes the place of the oldest connection that waits for its peer (its request has not come, or its answer
is not read), of its own address if that has its number, else of the address with most; so slow peers keep nobody out. Without
such a connection the newcomer is closed. Every answer has the headers, also those of Python's library. The threads end with the
process, not before.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BufferedIOBase
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple, cast

from bookspark.errors import BookieError
from bookspark.support.addresses import address_text, names_this_host, origin_of

_CONNECTIONS_MAX = 32
_OF_AN_ADDRESS_MAX = 8
_MADE_AT_ONCE = 8
_HEAD_BYTES_MAX = 16 << 10
_CONNECTION_SECONDS_MAX = 10.0
_PORT_MAX = 65535
_TOLD_SECONDS = 5.0
HEADERS = (("X-Content-Type-Options", "nosniff"), ("Content-Security-Policy", "default-src 'none'"))
"""Headers of every answer."""
PORTS = 64
"""Ports tried for ``metrics_port``: several processes of a host may share one setting."""

log = logging.getLogger(__name__)


class Page(NamedTuple):
    """An answer: HTTP's status, the content and its type."""

    status: int
    content: bytes
    kind: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Page]]
"""The function of each path."""


class WebServer:
    """Answers at ``host:port`` until ``close``, with the page that ``pages`` has for a path then."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Pages,
        *,
        tries: int = 1,
        names: Sequence[str] = (),
    ) -> None:
        """Begin to answer. ``tries``: number of ports to try from ``port`` on; ``port`` 0 is any free port. ``names``: names of
        this host, besides its own name; a request for another name is refused. Raises BookieError if no address is available."""

        class Handler(_Handler):
            pages_of_host, names_of_host = pages, names

        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._server = _first_free(_server(family), str(address[0]), port, tries, Handler)
        except OSError as error:
            raise BookieError(
                f"metrics can't be answered at {address_text(host, port)}: {error}; set metrics_port to another one, or to 0"
            ) from error
        self.port: int = self._server.server_address[1]
        """The port in use."""
        if port not in (0, self.port):
            at = address_text(host, self.port)
            log.warning("port %d is in use: metrics and probes are answered at %s", port, at)
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
        self._lock = threading.Lock()
        self._served: dict[Any, str] = {}
        """Connection → ``origin_of`` its address, oldest first."""
        self._at_work: set[Any] = set()
        """Connections that wait for their page."""
        self._making = threading.BoundedSemaphore(_MADE_AT_ONCE)
        self.told_at = -math.inf
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for an unused name, and may wait long for it.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._take_place(request, origin_of(str(client_address[0]))):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _take_place(self, request: Any, origin: str) -> bool:
        with self._lock:
            crowd = [one for one, its in self._served.items() if its == origin]
            if len(crowd) < _OF_AN_ADDRESS_MAX and len(self._served) >= _CONNECTIONS_MAX:
                [(most, _)] = Counter(self._served.values()).most_common(1)
                crowd = [one for one, its in self._served.items() if its == most]
            elif len(crowd) < _OF_AN_ADDRESS_MAX:
                crowd = []
            oldest = next((one for one in crowd if one not in self._at_work), None)
            if crowd and oldest is None:
                return False
            if oldest is not None:
                del self._served[oldest]
                _end(oldest)
            self._served[request] = origin
            return True

    @contextmanager
    def at_work(self, request: Any) -> Iterator[None]:
        """Context in which a page is made: the connection is not ended for a newer one."""
        with self._lock:
            self._at_work.add(request)
        try:
            with self._making:
                yield
        finally:
            with self._lock:
                self._at_work.discard(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A total time limit for a slow peer. A timeout of the socket would restart at each byte.
        deadline = threading.Timer(_CONNECTION_SECONDS_MAX, _end, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            with self._lock:
                self._served.pop(request, None)

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


class _Head:
    """The start of a request. The library takes 100 lines of 64 KiB."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left = _HEAD_BYTES_MAX
        self.close = file.close

    def readline(self, size: int) -> bytes:
        line = self._file.readline(min(size, self._left))
        self._left -= len(line)
        if not self._left:
            raise OSError(f"a request of more than {_HEAD_BYTES_MAX} bytes")
        return line


class _Handler(BaseHTTPRequestHandler):
    pages_of_host: Pages
    names_of_host: Sequence[str]
    server: _Server
    server_version, sys_version = "Bookspark", ""
    # HTTP/0.9 has no headers.
    default_request_version = "HTTP/1.0"

    def setup(self) -> None:
        super().setup()
        self.rfile = cast(BufferedIOBase, _Head(self.rfile))

    def do_GET(self) -> None:
        with self.server.at_work(self.request):
            page = self._page(self.path.partition("?")[0])
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.content)))
        self.end_headers()
        self.wfile.write(page.content)

    def _page(self, path: str) -> Page:
        if not names_this_host(self.headers.get("Host", "127.0.0.1"), self.names_of_host):
            return Page(421, b"this host has another name: ask for its address\n")
        make = self.pages_of_host.get(path)
        if make is None:
            return Page(404, f"there is {', '.join(self.pages_of_host)}\n".encode())
        try:
            return make()
        except Exception as error:
            now = time.monotonic()
            if now - self.server.told_at >= _TOLD_SECONDS:
                self.server.told_at = now
                log.warning("%r can't be answered: %s: %s", path, type(error).__name__, error)
            return Page(503, f"{type(error).__name__}: {error}\n".encode())

    def end_headers(self) -> None:
        for name, value in HEADERS:
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
