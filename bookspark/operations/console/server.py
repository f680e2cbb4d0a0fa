"""HTTP server of the console: access check, routing, pages.

Law: ``Door`` checks each request first. Every answer, errors included, has ``HEADERS``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import parse_qs, parse_qsl

from msgspec import Meta

from bookspark.errors import ConfigurationError
from bookspark.operations.console import ledgers, logs, overview, pages, rows, what_if
from bookspark.operations.console.looks import SOON_SECONDS, UNDER_WAY, Looks, Patience, unseen
from bookspark.operations.console.past.pages import WITHOUT, Past
from bookspark.operations.console.watch import Watch
from bookspark.operations.why.gathering import DEADLINES, gather_ledger
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.settings import of_environment
from bookspark.store.wire.security import lines_of
from bookspark.support.addresses import address_text, is_loopback, names_this_host
from bookspark.support.arguments import Name, checks_arguments
from bookspark.support.metrics.web import Asked, Page, WebServer
from bookspark.support.private_files import why_no_secret

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

    def refused(self, headers: Message) -> Page | None:
        """The page of a refusal; None: the request may pass."""
        if not names_this_host(headers.get("Host", ""), (self._host,)):
            return _words(HTTPStatus.MISDIRECTED_REQUEST, "this console has another name: ask for its address")
        if self._tokens and not self._knows(headers.get("Authorization", "")):
            ask = ("WWW-Authenticate", 'Basic realm="Bookspark console: the token is the password", charset="UTF-8"')
            return _words(HTTPStatus.UNAUTHORIZED, "which token? Any name, and the token as password", ask)
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


def _words(status: HTTPStatus, words: str, *headers: tuple[str, str]) -> Page:
    return Page(status, f"{words}\n".encode(), headers=headers)


# -- Server


Port = Annotated[int, Meta(ge=0, le=65535)]
_HTML, _TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_ASSETS = {
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.js": ("console.js", "text/javascript; charset=utf-8"),
}

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
    ) -> None:
        """Start the server. ``bookkeeper``: the caller closes it after the console. ``port``: 0 is any free port. ``token_file``:
        one token a line; "": no tokens, on loopback only. ``show_rows``: also show rows of logs. ``snapshots``: directory or URI
        of the cluster's snapshots; "": no pages of the past.

        Raises ConfigurationError for a host off loopback without tokens or unusable tokens, MissingExtraError if the reader of
        snapshots is not installed, BookieError if the address can't be bound."""
        self._door = Door(host, token_file)
        self._past = Past(snapshots, bookkeeper.zookeeper) if snapshots else None
        self._bookkeeper, self._show_rows = bookkeeper, show_rows
        self._looks = Looks()
        self._watch = Watch(bookkeeper)
        try:
            self._web = WebServer(
                host, port, self._answer, what="the console", option="the port", headers=HEADERS, names=None
            )
        except BaseException:
            self._end_looks()
            raise
        self.url: str = f"http://{address_text(host, self._web.port)}/"
        """The console's address for browsers."""

    def close(self) -> None:
        """Stop the server, the watch and all looks."""
        self._web.close()
        self._end_looks()

    def _end_looks(self) -> None:
        self._watch.close()
        self._looks.close()
        if self._past is not None:
            self._past.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _answer(self, asked: Asked) -> Page:
        refused = self._door.refused(asked.headers)
        if refused is not None:
            return refused
        try:
            return self._page(asked)
        except Exception as error:
            log.warning("%s can't be shown: %s: %s", asked.path, type(error).__name__, error)
            words = "this page can't be shown now; the console's log says why\n"
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, words.encode(), _TEXT)

    def _page(self, asked: Asked) -> Page:
        if asked.path in _ASSETS:
            name, kind = _ASSETS[asked.path]
            return Page(HTTPStatus.OK, pages.asset(name), kind)
        query = dict(parse_qsl(asked.query, max_num_fields=_FIELDS_MAX))
        if asked.path == "/":
            return self._shown("/", overview.content(self._watch.seen()))
        if asked.path == "/logs":
            return self._shown("/logs", logs.list_content(self._bookkeeper, self._looks, query.get("after", "")))
        if asked.path == "/log":
            return self._shown("/logs", self._log(query.get("name", ""), query), f"Log {query.get('name', '')}")
        if asked.path == "/ledgers":
            seen = self._watch.seen()
            return self._shown(
                "/ledgers", ledgers.list_content(self._bookkeeper, self._looks, seen, query.get("from", "").strip())
            )
        if asked.path == "/ledger":
            return self._shown("/ledgers", self._ledger(query.get("id", "")), f"Ledger {query.get('id', '')}")
        if asked.path == "/what-if":
            return self._shown("/what-if", self._what_if(parse_qs(asked.query, max_num_fields=_FIELDS_MAX)))
        then = self._then(asked.path, query)
        if then is not None:
            return self._shown("/time", then)
        return Page(HTTPStatus.NOT_FOUND, b"there is no such page; begin at /\n", _TEXT)

    def _then(self, path: str, query: Mapping[str, str]) -> str | None:
        if self._past is None:
            return WITHOUT if path == "/time" else None
        return self._past.content(path, query)

    def _shown(self, tab: str, content: str, title: str = "") -> Page:
        return Page(HTTPStatus.OK, pages.page(self._bookkeeper.zookeeper, tab, content, title), _HTML)

    def _ledger(self, asked: str) -> str:
        try:
            ledger_id = ledgers.ledger_id_of(asked)
        except ValueError as error:
            return pages.part("ledger", pages.text(error), "Ledger")
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

    def _what_if(self, query: Mapping[str, list[str]]) -> str:
        seen = self._watch.seen()
        if seen is None:
            return pages.part("answer", unseen(UNDER_WAY), "What if")
        bookies, hosts = query.get("bookie", []), query.get("host", [])
        form = what_if.form(seen.facts, bookies, hosts)
        try:
            stopped = what_if.chosen(seen.facts, bookies, hosts)
        except ValueError as error:
            return form + pages.part("answer", f'<p class="bad">{pages.text(error)}</p>', "The answer")
        if not stopped:
            return form
        look = self._looks.of(
            ("what if", stopped), partial(what_if.look_at, self._bookkeeper, stopped, seen), SOON_SECONDS
        )
        return form + what_if.content(seen.facts, stopped, look)

    def _log(self, name: str, query: Mapping[str, str]) -> str:
        patience = Patience()
        look = logs.log_look(self._bookkeeper, self._looks, name, patience)
        seen = self._watch.seen(SOON_SECONDS)
        content = logs.content(name, look, None if seen is None else seen.facts)
        if seen is None:
            content += pages.part("troubles", unseen(UNDER_WAY), "Troubles")
        if look.found is None or look.found.problem:
            return content
        if not self._show_rows:
            return content + pages.part(
                "rows", "<p>The console was started without --show-rows, so it shows none.</p>", "Rows"
            )
        lanes = tuple(lane.name for lane in look.found.lanes)
        try:
            wanted = rows.wanted(query, name)
            if wanted.lane not in lanes:
                raise ValueError(f"the log has no lane {wanted.lane!r}")
        except ValueError as error:
            return content + rows.form(name, lanes, query) + pages.part("rows", pages.text(error), "Rows")
        found = self._looks.of(("rows", wanted), partial(rows.look_at, self._bookkeeper, wanted), patience.left)
        shown = rows.content(wanted, name, query.get("as", rows.FORMS[0]), found)
        return content + rows.form(name, lanes, query) + shown


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
