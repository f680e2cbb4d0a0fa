"""System tables of bookies: which bookies there are, by cookies and registrations.

Law: a bookie is known by its cookie or by its registration. A bookie that has a cookie and is not registered is down. The table
then has only what the cookie tells.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from bookspark.errors import UnreadableRecordError
from bookspark.spark.tables.table import INT, LONG, TEXT, TEXTS, Rows, SystemTable, once

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.metadata.records.versioned import Versioned
    from bookspark.metadata.store import MetadataStore
    from bookspark.protocol.bookie.cookie import Cookie

log = logging.getLogger(__name__)


def _bookie_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata
    registered = store.bookies()
    for bookie_id in sorted({*registered, *store.list_cookies()}):
        cookie = _cookie(store, bookie_id)
        directories = list(cookie.value.directories) if cookie else []
        there = registered.get(bookie_id)
        if there is None:
            yield bookie_id, "down", None, None, None, None, None, directories
        else:
            state = "read_only" if there.read_only else "writable"
            labels = json.dumps(dict(sorted(there.labels.items())))
            yield bookie_id, state, there.address, there.host, there.rack, labels, there.pid, directories


def _cookie(store: MetadataStore, bookie_id: str) -> Versioned[Cookie] | None:
    try:
        return store.read_cookie(bookie_id)
    except UnreadableRecordError as error:
        log.warning("%s", error)
        return None


def _cookie_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata
    for bookie_id in sorted(store.list_cookies()):
        found = _cookie(store, bookie_id)
        # None: the cookie was removed since the listing, or can't be decoded.
        if found is not None:
            cookie = found.value
            yield bookie_id, cookie.instance_id, cookie.nonce, list(cookie.directories), found.version


BOOKIES = SystemTable(
    "bookies",
    "One row per bookie with a cookie or a registration.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("state", TEXT, "writable, read_only, or down (a cookie without a registration)"),
        ("address", TEXT, "host:port of its request server; null while the bookie is down"),
        ("host", TEXT, "Its host; null while the bookie is down"),
        ("rack", TEXT, "Its rack, empty if none; null while the bookie is down"),
        ("labels", TEXT, "Its other labels, a JSON object; null while the bookie is down"),
        ("pid", LONG, "Its process id; null while the bookie is down"),
        ("directories", TEXTS, "Its directories, from its cookie"),
    ),
    once,
    _bookie_rows,
)

COOKIES = SystemTable(
    "cookies",
    "One row per cookie in the metadata store: a bookie's identity and directories.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("instance_id", TEXT, "Its cluster"),
        ("nonce", TEXT, "A random value, different for another bookie with this id"),
        ("directories", TEXTS, "Its directories, in configured order"),
        ("version", INT, "Version of the cookie"),
    ),
    once,
    _cookie_rows,
)
