"""The interface of a metadata store, implemented by ZooKeeper and its in-memory twin.

Law: a record is changed by compare-and-set only. A listing is whole or raises (BookKeeper #870 deleted live ledgers after a
partial listing). A call with an unknown outcome raises ``MetadataStoreError``. Every call has a deadline. One behaviour suite,
``tests/store/metadata``, runs over every implementation.

The layout is BookKeeper's (bookkeeper-overview, "Ledger manager"): ``/ledgers/{LAYOUT,INSTANCEID,available,cookies,idgen,…}``.
``/bookspark/log_records`` holds the records of logs (docs/decisions/logs.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from bookspark.errors import InvalidCookieError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.metadata.autorecovery.auditors import Auditors
from bookspark.store.metadata.autorecovery.underreplication_tasks import Underreplication
from bookspark.store.metadata.documents.locks import ChangeLock
from bookspark.store.metadata.documents.sharing import Sharing
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.ledger_spans import LedgerSpan
from bookspark.store.metadata.records.versioned import (
    Record,
    RecordVersion,
    Versioned,
    VersionedLedger,
    compare_and_set,
)
from bookspark.store.metadata.store_clock import StoreClock


class MetadataStore(Protocol):
    """Ledgers, bookies, cookies and small records. Every method may raise ``MetadataStoreError``: the store could not be
    reached."""

    # -- cluster
    @property
    def instance_id(self) -> str:
        """The cluster's identity, a uuid, made together with the layout and part of every cookie."""

    @property
    def clock(self) -> StoreClock:
        """The cluster's time."""

    def close(self) -> None:
        """End the session, and with it the registrations of this store."""

    # -- ledgers
    def new_ledger_id(self) -> int:
        """A ledger id that was never assigned before. Ids start at 0 and may have gaps."""

    def last_ledger_id(self) -> int:
        """The last and highest id of ``new_ledger_id``; −1 if there is none."""

    def note_given_id(self, ledger_id: int) -> None:
        """Count the id in ``highest_ledger_id`` from now on, for ever. Called before a ledger with an id chosen by a user is
        created."""

    def highest_ledger_id(self) -> int:
        """An upper bound of all ledger ids ever assigned or chosen by a user; −1 if there are none."""

    def skip_ledger_ids(self, highest: int) -> None:
        """Let ``new_ledger_id`` skip all ids up to ``highest``. Takes about a second for 50,000 ids."""

    def create_ledger(self, metadata: LedgerMetadata) -> int:
        """Make the record of ``metadata.ledger_id`` and return its version. Raises LedgerExistsError.

        A record with the same ``c_token`` is no error: this call made it, and the answer to an earlier attempt was lost.
        """

    def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """The metadata of a ledger. Raises NoSuchLedgerError, and UnreadableRecordError if its record can't be decoded."""

    def read_ledgers(self, ledger_ids: Iterable[int], unreadable: dict[int, str]) -> Iterator[VersionedLedger]:
        """The metadata and version of many ledgers, read many at a time. Ledgers deleted meanwhile are left out. Reasons of
        undecodable records go into ``unreadable``: the caller must report them."""

    def write_ledger(self, metadata: LedgerMetadata, version: int, under: RecordVersion | None = None) -> int:
        """Compare-and-set; returns the new version. Raises MetadataVersionError, also if ``under`` has changed, and
        NoSuchLedgerError."""

    def delete_ledger(self, ledger_id: int) -> None:
        """Remove a ledger's record. Raises NoSuchLedgerError."""

    def list_ledgers(self) -> list[int]:
        """All ledger ids, ascending. The listing is whole or raises."""

    def ledger_spans(self) -> list[LedgerSpan]:
        """The spans of ids with ledgers, ascending, with approximate counts. It holds no ids."""

    def list_ledgers_between(self, first: int, last: int) -> Iterator[int]:
        """The ledger ids from ``first`` to ``last``, ascending, with about a span in memory at a time. Whole or raises."""

    def watch_ledger(self, ledger_id: int, changed: Callable[[], None]) -> None:
        """Call ``changed`` once, from a thread of the store's own, when the record is changed or deleted."""

    # -- bookies
    def register_bookie(
        self,
        registration: BookieRegistration,
        cookie: Cookie | None = None,
        replaced: Callable[[InvalidCookieError], None] | None = None,
    ) -> None:
        """Announce a bookie until ``unregister_bookie`` or ``close``. The registration is restored after the loss of a
        session, and after a deletion by others. It replaces a registration of the same id left by another session: the locks
        of the directories, not the metadata store, prevent two processes with one cookie.

        ``cookie``: the bookie's. The registration is made only while the store has this cookie, and is no longer restored once
        it has another or none: another host has become the bookie. Raises InvalidCookieError; after the call ``replaced`` gets
        that error instead, from a thread of the store's own, and must not block."""

    def unregister_bookie(self, bookie_id: str) -> None:
        """Remove the registration that this store made."""

    def bookies(self) -> dict[str, BookieRegistration]:
        """Every registered bookie by id, including read-only ones. An undecodable registration is a read-only bookie without
        an address."""

    def watch_bookies(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever the set of registered bookies changes, until ``close``."""

    # -- cookies
    def read_cookie(self, bookie_id: str) -> Versioned[Cookie] | None:
        """The cookie of a bookie; None if there is none."""

    def write_cookie(self, cookie: Cookie, version: int | None) -> int:
        """Create (version None) or compare-and-set. Raises MetadataVersionError."""

    def delete_cookie(self, bookie_id: str, version: int, under: RecordVersion | None = None) -> None:
        """Raises MetadataVersionError, also if ``under`` has changed, or InvalidCookieError if there is none."""

    def list_cookies(self) -> list[str]:
        """The bookie ids with a cookie."""

    # -- small records of other layers (log records, service records), each an opaque JSON document under a name. A version
    # never recurs, even after a deletion. A compare-and-set may also be refused after the deletion of another record of the
    # kind.
    def read_record(self, kind: str, name: str) -> Record | None:
        """The record ``name`` of this kind; None if there is none."""

    def read_records(self, kind: str, names: Iterable[str]) -> Iterator[Record | None]:
        """Each of many records by name, in order, many at a time."""

    def write_record(self, kind: str, name: str, value: bytes, version: int | None) -> int:
        """Create (version None) or compare-and-set. Raises MetadataVersionError."""

    def delete_record(self, kind: str, name: str, version: int | None = None) -> None:
        """Remove a record, at any version if ``version`` is None. Raises MetadataVersionError. An absent record is no error."""

    def list_records(self, kind: str) -> list[str]:
        """The names of all records of this kind, ascending."""

    def watch_record(self, kind: str, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` once when the record is created, changed or deleted. Returns a function that ends the watch: it never
        raises or waits, and a call under way may still come."""

    # -- readers of a group
    def sharing(self, path: str, name: str) -> Sharing:
        """The member ``name`` of the sharing at ``path``."""

    # -- autorecovery: each access returns a new object
    @property
    def underreplication(self) -> Underreplication:
        """The tasks of ledgers that lack copies."""

    @property
    def auditors(self) -> Auditors:
        """The auditor's election, requests to it, and its reports."""

    @property
    def change_lock(self) -> ChangeLock:
        """The lock of the process that applies a change of the cluster."""


def change_record(
    store: MetadataStore, kind: str, name: str, what: str, change: Callable[[bytes | None], bytes | None]
) -> None:
    """``compare_and_set`` for the document of a small record."""
    compare_and_set(what, partial(store.read_record, kind, name), change, partial(store.write_record, kind, name))
