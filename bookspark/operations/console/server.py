"""The console: access check, routes, pages.

Law: ``Door`` checks each request first. Every answer, errors included, has ``HEADERS``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import parse_qsl

from msgspec import Meta

from bookspark.errors import BookieError, ConfigurationError
from bookspark.operations.console import ledgers, logs, overview, pages, plots, rows, what_if
from bookspark.operations.console.figures import HOUR_SECONDS, Point, Prometheus
from bookspark.operations.console.looks import PAGE_SECONDS, SOON_SECONDS, UNDER_WAY, Looks, Patience, unseen
from bookspark.operations.console.past.pages import VIEWS, WITHOUT, Past
from bookspark.operations.console.watch import LogWatch, Watch
from bookspark.operations.why.gathering import DEADLINES, gather_ledger
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.settings import of_environment
from bookspark.store.wire.security import lines_of
from bookspark.support.addresses import address_text, is_loopback, names_this_host, origin_of
from bookspark.support.arguments import Name, checks_arguments
from bookspark.support.extras import extra_needed
from bookspark.support.private_files import why_no_secret

with extra_needed("the console"):
    import h11
    import uvicorn
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, QueryParams
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)


# -- Access check and response headers


TOKEN_BYTES_MIN = 16
"""Shorter tokens could be guessed."""

HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


class Door:
    """Access check of a console that listens at ``host``.

    Law: off loopback every request needs a token, as the password of HTTP's Basic authentication (any name), so browsers ask for
    it and send it to this address only. A request with a foreign name in its Host header is refused, against DNS rebinding.
    ``HEADERS`` forbid framing and foreign content.
    """

    def __init__(self, host: str, token_file: str) -> None:
        """``token_file``: one token a line; "": no tokens. Raises ConfigurationError if the tokens are unreadable or too short,
        or missing while ``host`` is not loopback."""
        self._tokens = _tokens(token_file) if token_file else ()
        if any(len(one) < TOKEN_BYTES_MIN for one in self._tokens):
            raise ConfigurationError(
                f"token_file {token_file} has a token of fewer than {TOKEN_BYTES_MIN} characters; "
                f"make one: bookspark secret --file FILE"
            )
        if not self._tokens and not is_loopback(host):
            raise ConfigurationError(
                f"at {host} others could see the cluster: give --token-file FILE, or listen at 127.0.0.1 and come by a tunnel "
                "(ssh -L)"
            )
        self._host = host

    def refused(self, headers: Headers) -> Response | None:
        """The answer of a refusal; None: the request may pass."""
        if not names_this_host(headers.get("Host", ""), (self._host,)):
            return _words(HTTPStatus.MISDIRECTED_REQUEST, "this console has another name: ask for its address")
        if self._tokens and not self._knows(headers.get("Authorization", "")):
            ask = ("WWW-Authenticate", 'Basic realm="Bookspark console: the token is the password", charset="UTF-8"')
            return _words(HTTPStatus.UNAUTHORIZED, "which token? Any name, and the token as password", dict([ask]))
        return None

    def _knows(self, authorization: str) -> bool:
        kind, _, told = authorization.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            password = base64.b64decode(told.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
        # Every token is compared, so the duration leaks nothing.
        return sum(hmac.compare_digest(password, one) for one in self._tokens) > 0


def _tokens(file: str) -> tuple[bytes, ...]:
    try:
        found = lines_of(Path(file).read_bytes())
        if why := why_no_secret(file):
            log.warning("token_file %s: %s", file, why)
    except OSError as error:
        raise ConfigurationError(f"token_file {file} can't be read: {error.strerror}") from error
    if not found:
        raise ConfigurationError(
            f"token_file {file} is empty; put a token in it: bookspark secret --file FILE makes one"
        )
    return found


def _words(status: HTTPStatus, words: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{words}\n", status, headers)


# -- HTTP: an ASGI application, served by uvicorn in a thread of its own
#
# Law: a stranger at the port costs little, and keeps nobody out. A connection without a whole request, or with an answer that
# is not read, ends after ``_SECONDS_MAX``. Above ``_CONNECTIONS_MAX`` connections, the oldest one that waits for its peer
# gives way to a newcomer, of the address that has most. Every answer has the headers, also those of uvicorn.


_CONNECTIONS_MAX = 128
_SECONDS_MAX = 10.0
_HEAD_BYTES_MAX = 16 << 10
_KEEP_ALIVE_SECONDS = 5
_END_SECONDS_MAX = 10.0


class _Connection(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late: asyncio.TimerHandle | None = None
        self._plan()
        if len(self.connections) > _CONNECTIONS_MAX:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._plan()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # Its answer has gone already, before the end of its request.
            self.transport.abort()
            return
        headers = [*self.server_state.default_headers, (b"connection", b"close")]
        reply = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (reply, h11.Data(data=f"{msg}\n".encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def at_work(self) -> bool:
        """A page is being made for it, and its peer reads the earlier ones."""
        return self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused

    def _plan(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(_SECONDS_MAX, self._end)

    def _end(self) -> None:
        if self.at_work:
            self._plan()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, _Connection) and not one.at_work]
        of = {one: origin_of(one.client[0] if one.client else "") for one in waiting}
        [(most, _)] = Counter(of.values()).most_common(1)
        oldest = min(
            (one for one in waiting if of[one] == most), key=lambda one: one._late.when() if one._late else 0.0
        )
        oldest.transport.abort()


class Served:
    """Answers at ``host:port`` until ``close``."""

    def __init__(self, app: ASGIApp, host: str, port: int, headers: Sequence[tuple[str, str]]) -> None:
        """``port``: 0 is any free port. ``headers``: of every answer. Raises BookieError if the address can't be bound."""
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=_CONNECTIONS_MAX)
        except OSError as error:
            raise BookieError(
                f"the console can't be answered at {address_text(host, port)}: {error}; set the port to another one, or to 0"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=list(headers),
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="console web", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._server.server_state.connections)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(_END_SECONDS_MAX)
        self._socket.close()


# -- Server


Port = Annotated[int, Meta(ge=0, le=65535)]
Query = QueryParams
_TABS = {
    "/log": "/logs",
    "/ledger": "/ledgers",
    "/time/ledgers": "/time",
    "/time/ledger": "/time",
    "/time/logs": "/time",
}
"""The tab of a page whose path is not its tab's."""
_AT_ONCE = 8
"""Pages that are made at once."""
_FIELDS_MAX = 1000


@checks_arguments
class WebConsole:
    """Serves the pages of one cluster until ``close``. Changes nothing."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        host: Name = "127.0.0.1",
        port: Port = 0,
        token_file: str = "",
        show_rows: bool = False,
        snapshots: str = "",
        prometheus: str = "",
    ) -> None:
        """Start the server. ``bookkeeper``: the caller closes it after the console. ``port``: 0 is any free port. ``token_file``:
        one token a line; "": no tokens, on loopback only. ``show_rows``: also show rows of logs. ``snapshots``: directory or URI
        of the cluster's snapshots; "": no pages of the past. ``prometheus``: address of a Prometheus, whose figures the
        overview's plots show, see ``prometheus.Prometheus``; "": those that the console saw since its start.

        Raises ConfigurationError for a host off loopback without tokens or unusable tokens or an unusable address of Prometheus,
        MissingExtraError if the reader of snapshots is not installed, BookieError if the address can't be bound."""
        self._door = Door(host, token_file)
        self._prometheus = Prometheus(prometheus) if prometheus else None
        self._past = Past(snapshots, bookkeeper.zookeeper) if snapshots else None
        self._bookkeeper, self._show_rows = bookkeeper, show_rows
        self._looks = Looks()
        self._watch = Watch(bookkeeper)
        self._logs = LogWatch(bookkeeper, self._looks)
        self._making: CapacityLimiter | None = None
        routes = [Route(path, self._shown(path, make)) for path, make in self._pages().items()]
        routes += [Route(path, self._answered(make)) for path, make in self._files().items()]
        app = Starlette(routes=routes, exception_handlers={HTTPStatus.NOT_FOUND: self._nothing})
        try:
            self._web = Served(self._guarded(app), host, port, HEADERS)
        except BaseException:
            self._end_looks()
            raise
        self.url: str = f"http://{address_text(host, self._web.port)}/"
        """The console's address for browsers."""

    def close(self) -> None:
        """Stop the server, the watches and all looks."""
        self._web.close()
        self._end_looks()

    def _end_looks(self) -> None:
        self._logs.close()
        self._watch.close()
        self._looks.close()
        if self._past is not None:
            self._past.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- requests

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            refused = self._door.refused(Headers(scope=scope))
            await (app if refused is None else refused)(scope, receive, send)

        return guard

    def _answered(self, make: Callable[[Query], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Each answer is made in a thread, of which there are ``_AT_ONCE``."""

        def made(asked: Request) -> Response:
            try:
                return make(QueryParams(parse_qsl(asked.url.query, max_num_fields=_FIELDS_MAX)))
            except Exception as error:
                log.warning("%s can't be shown: %s: %s", asked.url.path, type(error).__name__, error)
                return _words(
                    HTTPStatus.SERVICE_UNAVAILABLE, "this page can't be shown now; the console's log says why"
                )

        async def answer(asked: Request) -> Response:
            if self._making is None:
                self._making = CapacityLimiter(_AT_ONCE)
            return await to_thread.run_sync(made, asked, limiter=self._making)

        return answer

    def _shown(
        self, path: str, make: Callable[[Query], tuple[object, str]]
    ) -> Callable[[Request], Awaitable[Response]]:
        tab = _TABS.get(path, path)

        def page(query: Query) -> Response:
            content, title = make(query)
            shown = pages.page(self._bookkeeper.zookeeper, tab, content, title, heading=path != "/")
            return HTMLResponse(shown)

        return self._answered(page)

    async def _nothing(self, asked: Request, _: Exception) -> Response:
        told = pages.part(
            "nothing", ("There is no page ", asked.url.path, ". Begin at the ", pages.Text("overview", path="/"), ".")
        )
        shown = pages.page(self._bookkeeper.zookeeper, "", told, "There is no such page")
        return HTMLResponse(shown, HTTPStatus.NOT_FOUND)

    def _pages(self) -> dict[str, Callable[[Query], tuple[object, str]]]:
        """The function of each page: it returns the content and the title, "" for the tab's."""
        found: dict[str, Callable[[Query], tuple[object, str]]] = {
            "/": self._overview,
            "/logs": lambda query: (logs.list_content(self._logs.names(PAGE_SECONDS), self._logs.kept(), query), ""),
            "/log": lambda query: (self._log(query.get("name", ""), query), f"Log {query.get('name', '')}"),
            "/readers": self._readers,
            "/ledgers": lambda query: (
                ledgers.list_content(self._bookkeeper, self._looks, self._watch.seen(), query.get("from", "").strip()),
                "",
            ),
            "/ledger": lambda query: (self._ledger(query.get("id", "")), f"Ledger {query.get('id', '')}"),
            "/what-if": lambda query: (self._what_if(query), "What if these stop?"),
            "/time": lambda _: (pages.part("time", WITHOUT, still=True), ""),
        }
        if self._past is not None:
            for path in VIEWS:
                found[path] = partial(self._then, self._past, path)
        return found

    def _files(self) -> dict[str, Callable[[Query], Response]]:
        found: dict[str, Callable[[Query], Response]] = {
            path: partial(_static, path, kind) for path, kind in pages.STATIC.items()
        }
        return {**found, "/figures": self._figures, "/figures/log": self._log_figures}

    # -- pages

    def _overview(self, _: Query) -> tuple[object, str]:
        seen = self._watch.seen()
        hour = [Point(*values) for _, values in self._watch.track.last(HOUR_SECONDS, time.monotonic())]
        return overview.content(seen, self._logs.known(), hour), "Overview"

    def _readers(self, query: Query) -> tuple[object, str]:
        names = self._logs.names(SOON_SECONDS).found
        return logs.readers_content(
            self._logs.kept(), None if names is None else len(names), query
        ), "Readers and writers"

    def _then(self, past: Past, path: str, query: Query) -> tuple[object, str]:
        return past.content(path, query), ""

    def _ledger(self, asked: str) -> object:
        try:
            ledger_id = ledgers.ledger_id_of(asked)
        except ValueError as error:
            return pages.part("ledger", str(error))
        look = self._looks.of(("ledger", ledger_id), partial(ledgers.look_at, self._bookkeeper, ledger_id))
        content = ledgers.content(ledger_id, look)
        if look.found is None or look.found.metadata.closed:
            return content
        seen = self._watch.seen(SOON_SECONDS)
        if seen is None:
            return content + pages.part("why", unseen(UNDER_WAY), "Why it is not closed")
        why = self._looks.of(
            ("not closed", ledger_id), partial(gather_ledger, self._bookkeeper, ledger_id), SOON_SECONDS
        )
        return content + ledgers.not_closed(seen.facts, why)

    def _what_if(self, query: Query) -> object:
        seen = self._watch.seen()
        if seen is None:
            return pages.part("answer", unseen(UNDER_WAY))
        bookies, hosts = query.getlist("bookie"), query.getlist("host")
        form = what_if.form(seen.facts, bookies, hosts)
        try:
            stopped = what_if.chosen(seen.facts, bookies, hosts)
        except ValueError as error:
            return form + pages.part("answer", pages.Text(str(error), "bad"), "The answer")
        if not stopped:
            return form
        look = self._looks.of(
            ("what if", stopped), partial(what_if.look_at, self._bookkeeper, stopped, seen), SOON_SECONDS
        )
        return form + what_if.content(seen.facts, stopped, look)

    def _log(self, name: str, query: Query) -> object:
        patience = Patience()
        look = self._logs.look(name, patience.left)
        seen = self._watch.seen(SOON_SECONDS)
        content = logs.content(name, look, None if seen is None else seen.facts)
        if seen is None:
            content += pages.part("troubles", unseen(UNDER_WAY), "Troubles")
        if look.found is None or look.found.problem:
            return content
        if not self._show_rows:
            told = "The console was started without --show-rows, so it shows none."
            return content + pages.part("rows", told, "Rows")
        lanes = tuple(lane.name for lane in look.found.lanes)
        # A lane with rows, the one that was written last.
        first = max(look.found.lanes, key=lambda lane: (lane.rows > 0, lane.last_ms or 0)).name
        lane = query.get("lane", "") or first
        form = rows.form(name, lanes, query, lane)
        try:
            wanted = rows.wanted(query, lane)
            if wanted.lane not in lanes:
                raise ValueError(f"the log has no lane {wanted.lane!r}")
        except ValueError as error:
            return content + form + pages.part("rows", str(error), "Rows")
        found = self._looks.of(("rows", wanted), partial(rows.look_at, self._bookkeeper, wanted), patience.left)
        return content + form + rows.content(wanted, name, query.get("as", rows.FORMS[0]), found)

    # -- figures

    def _figures(self, query: Query) -> Response:
        try:
            seconds = plots.seconds_of(query.get("seconds", ""))
        except ValueError as error:
            return _words(HTTPStatus.BAD_REQUEST, str(error))
        source = "seen by this console since its start"
        if self._prometheus is not None:
            look = self._looks.of(("prometheus", seconds), partial(self._prometheus.points, seconds), PAGE_SECONDS)
            if look.found is not None:
                found = {one.key: plots.lines(one, look.found, 0.0) for one in overview.PLOTS}
                return _json(plots.answer(seconds, "from Prometheus", found))
            source = f"{source}; Prometheus did not answer: {look.problem or 'it is being asked'}"
        now = time.monotonic()
        points = self._watch.track.last(seconds, now)
        clock = time.time() - now
        return _json(
            plots.answer(seconds, source, {one.key: plots.lines(one, points, clock) for one in overview.PLOTS})
        )

    def _log_figures(self, query: Query) -> Response:
        try:
            seconds = plots.seconds_of(query.get("seconds", ""))
        except ValueError as error:
            return _words(HTTPStatus.BAD_REQUEST, str(error))
        kept, now = self._logs.kept().get(query.get("name", "")), time.monotonic()
        found = {}
        if kept is not None:
            points, clock = kept.track.last(seconds, now), time.time() - now
            shown = (*logs.PLOTS[:-1], logs.lag_plot(kept.readers))
            found = {one.key: plots.lines(one, points, clock) for one in shown}
        return _json(plots.answer(seconds, "seen by this console since its start", found))


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _static(path: str, kind: str, _: Query) -> Response:
    return Response(pages.static(path), media_type=kind)


@contextmanager
def shown(
    zookeeper: ConnectionString, host: Name, port: Port, token_file: str = "", snapshots: str = ""
) -> Iterator[str]:
    """Serve the cluster at ``zookeeper`` during the block, with the settings file of the environment. Yields the console's URL.
    Arguments and errors as WebConsole; MetadataStoreError if ZooKeeper does not answer."""
    options = {**of_environment("client"), **DEADLINES}
    with (
        BookKeeper(zookeeper, **options) as bookkeeper,
        WebConsole(bookkeeper, host, port, token_file, snapshots=snapshots) as console,
    ):
        yield console.url
