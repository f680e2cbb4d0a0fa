"""The console: access check, routes, pages.

Law: ``Door`` checks each request first. Every answer, errors included, has ``HEADERS``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import parse_qsl

from msgspec import Meta

from bookspark.errors import ConfigurationError
from bookspark.operations.console import ledgers, logs, overview, pages, plots, readers, rows, what_if
from bookspark.operations.console.figures import HOUR_SECONDS, Point
from bookspark.operations.console.log_watch import LogWatch
from bookspark.operations.console.looks import PAGE_SECONDS, SOON_SECONDS, UNDER_WAY, Looks, Patience, unseen
from bookspark.operations.console.past.pages import VIEWS, WITHOUT, Past
from bookspark.operations.console.prometheus import Prometheus
from bookspark.operations.console.serving import Served
from bookspark.operations.console.watch import Watch
from bookspark.operations.why.gathering import DEADLINES, gather_ledger
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.settings import of_environment
from bookspark.store.wire.security import lines_of
from bookspark.support.addresses import address_text, is_loopback, names_this_host
from bookspark.support.arguments import Name, checks_arguments
from bookspark.support.extras import extra_needed
from bookspark.support.private_files import why_no_secret

with extra_needed("the console"):
    from anyio import CapacityLimiter, to_thread
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, QueryParams
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

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
        return readers.content(self._logs.kept(), None if names is None else len(names), query), "Readers and writers"

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
