"""System tables of bookies and autorecovery: cookies and registrations, directories, and repairs.

Law: a bookie is known by its cookie or by its registration. A bookie with a cookie and without a registration is down; the tables
then have its cookie and its last known place.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookspark.errors import UnreadableRecordError
from bookspark.spark.tables.table import FLAG, INT, LONG, TEXT, TEXTS, TIME, Rows, SystemTable, each_bookie, once, time
from bookspark.store.cluster_view import known_bookies, with_homes
from bookspark.store.metadata.placement_rule import read_placement

if TYPE_CHECKING:
    from bookspark.protocol.bookie.cookie import Cookie
    from bookspark.store.client import BookKeeper
    from bookspark.store.metadata.records.versioned import Versioned
    from bookspark.store.metadata.store import MetadataStore

log = logging.getLogger(__name__)


# -- Disks and autorecovery: the condition of directories, known damage, and the time of the last search for it
#
# Law: as in ``table``. A missing search for damage does not prove its absence: ``checked_at`` is null then.


def _disk_rows(bookkeeper: BookKeeper, bookie_id: str, password: bytes) -> Rows:
    status = bookkeeper.bookie_status(bookie_id)
    checked = time(status.scrub_finished_ms) if status.scrub_finished_ms else None
    for path in sorted({*status.directories, *status.failed_directories}):
        why = status.failed_directories.get(path) or status.full_directories.get(path)
        state = "failed" if path in status.failed_directories else "full" if why else "writable"
        yield bookie_id, path, state, why, checked, status.lacking_ledgers


def _autorecovery_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata.underreplication
    yield store.enabled(), len(store.list_tasks())


DISKS = SystemTable(
    "disks",
    "One row per directory of a bookie that is up.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("directory", TEXT, "The directory"),
        ("state", TEXT, "writable; full: refuses some adds; failed: contents not held"),
        ("reason", TEXT, "Reason if not writable"),
        ("checked_at", TIME, "End of the bookie's last whole scrub"),
        ("lacking_ledgers", LONG, "Ledgers with entries that the bookie lost and lacks"),
    ),
    each_bookie,
    _disk_rows,
)

AUTORECOVERY = SystemTable(
    "autorecovery",
    "One row: state of autorecovery.",
    (
        ("enabled", FLAG, "Is autorecovery enabled?"),
        ("tasks", LONG, "Ledgers waiting for a repair"),
    ),
    once,
    _autorecovery_rows,
)


# -- The table ``underreplication``: the tasks of autorecovery and their workers
#
# Law: a task stays in the table until it is done, also while a worker does it. A task done since the listing is left out.


def _rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata.underreplication
    ledger_ids, holders = store.list_tasks(), store.holders()
    unreadable: dict[int, str] = {}
    for task in store.tasks(ledger_ids, unreadable):
        waits_until = time(task.not_before_ms) if task.not_before_ms else None
        marked = [(bookie_id, reason.value) for bookie_id, reason in sorted(task.bookies.items())]
        reasons: Sequence[tuple[str | None, str]] = marked or [(None, "few copies")]
        for bookie_id, reason in reasons:
            yield (
                task.ledger_id, bookie_id, reason, task.detail, time(task.marked_at_ms), task.marks,
                task.attempts, task.error or None, waits_until, holders.get(task.ledger_id),
            )  # fmt: skip
    for ledger_id, why in unreadable.items():
        yield ledger_id, None, None, why, None, None, None, "this task can't be decoded", None, holders.get(ledger_id)


UNDERREPLICATION = SystemTable(
    "underreplication",
    "One row per ledger to repair and bookie that is the reason.",
    (
        ("ledger_id", LONG, "The ledger"),
        ("bookie_id", TEXT, "The bookie; null: few copies"),
        (
            "reason",
            TEXT,
            "lost: replace the bookie; lacks: copy to it; misplaced: move its copies; few copies: add one",
        ),
        ("detail", TEXT, "Explanation"),
        ("marked_at", TIME, "Time of the first report"),
        ("marks", LONG, "Number of reports"),
        ("attempts", LONG, "Number of failed repairs"),
        ("error", TEXT, "Reason of the last failure"),
        ("not_before", TIME, "Earliest next repair; null: now"),
        ("holder", TEXT, "Worker at the repair"),
    ),
    once,
    _rows,
)


# -- The placement rule


def _placement_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    rule = read_placement(bookkeeper.metadata)
    yield rule.name, rule.racks_min


PLACEMENT = SystemTable(
    "placement",
    "One row: the cluster's placement rule.",
    (
        ("rule", TEXT, "rack_aware, random, one_per_host or one_per_<label>"),
        ("racks_min", LONG, "With rack_aware: fewest racks for the copies of an entry"),
    ),
    once,
    _placement_rows,
)


# -- Bookies and cookies


def _bookie_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata
    for bookie_id, bookie in with_homes(known_bookies(store), store).bookies.items():
        cookie, there = _cookie(store, bookie_id), bookie.registration
        directories = list(cookie.value.directories) if cookie else []
        labels = json.dumps(dict(sorted(bookie.labels.items())))
        if there is not None:
            state = "read_only" if there.read_only else "writable"
            yield bookie_id, state, there.address, there.host, there.rack, labels, there.pid, directories
        elif bookie.home is not None:
            yield bookie_id, "down", None, bookie.host, bookie.rack, labels, None, directories
        else:
            yield bookie_id, "down", None, None, None, None, None, directories


def _cookie(store: MetadataStore, bookie_id: str) -> Versioned[Cookie] | None:
    try:
        return store.read_cookie(bookie_id)
    except UnreadableRecordError as error:
        log.warning("%s", error)
        return None


def _cookie_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata
    for bookie_id in sorted(store.list_cookies()):
        record = _cookie(store, bookie_id)
        # None: the cookie was removed since the listing, or can't be decoded.
        if record is not None:
            cookie = record.value
            yield bookie_id, cookie.instance_id, cookie.nonce, list(cookie.directories), record.version


BOOKIES = SystemTable(
    "bookies",
    "One row per bookie with a cookie or a registration.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("state", TEXT, "writable, read_only or down (not registered)"),
        ("address", TEXT, "host:port; null while down"),
        ("host", TEXT, "Its last known host"),
        ("rack", TEXT, "Its last known rack"),
        ("labels", TEXT, "Its last known labels, a JSON object"),
        ("pid", LONG, "Its process id; null while down"),
        ("directories", TEXTS, "Its directories, from its cookie"),
    ),
    once,
    _bookie_rows,
)

COOKIES = SystemTable(
    "cookies",
    "One row per cookie: a bookie's identity and directories.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("instance_id", TEXT, "Its cluster"),
        ("nonce", TEXT, "Random value of the bookie with this id"),
        ("directories", TEXTS, "Its directories, in configured order"),
        ("version", INT, "Version of the cookie"),
    ),
    once,
    _cookie_rows,
)
