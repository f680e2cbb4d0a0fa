"""The errors that a user of Bookspark can catch.

Law: an error gives the fault and the remedy. Its class shows where the cause lies: with the caller (bad input, wrong
password), with another client (fenced, changed metadata) or with the cluster (no replica answered, not enough bookies). The
names follow BookKeeper's ``BKException`` codes.

Example::

    from bookspark import errors
    try:
        ledger.append(b"one more")
    except errors.LedgerFencedError:
        ...  # another client recovered the ledger; create a new one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class BookKeeperError(Exception):
    """Base of every error that Bookspark raises on purpose."""

    unconfirmed: range = range(0)
    """After a failed close: the ids of unconfirmed appends. Each may be part of the ledger or not."""


class LedgerFencedError(BookKeeperError):
    """Another client fenced the ledger. The outcome of unacknowledged appends is unknown."""


class LedgerClosedError(BookKeeperError):
    """The client, handle, producer or reader is closed, or the ledger to appends."""


class LedgerExistsError(BookKeeperError):
    """A ledger with this id exists."""


class NoSuchClusterError(BookKeeperError):
    """No cluster at this place of the metadata store."""


class DuplicateEntryIdError(BookKeeperError):
    """An entry with this id exists; the first counts."""


class NoSuchLedgerError(BookKeeperError):
    """No ledger with this id exists."""


class NoSuchEntryError(BookKeeperError):
    """Every bookie that could hold the entry denied it explicitly."""


class DataLossError(BookKeeperError):
    """The entries are gone: truncated, or deleted with their ledger or log."""


class InvalidRowError(BookKeeperError):
    """An entry of a log is no row of it, or larger than a row may be. The message says how to go on behind it."""


class ReadError(BookKeeperError):
    """The range is beyond the readable entries, or no replica gave a definite answer: the entry may exist."""


class NotEnoughBookiesError(BookKeeperError):
    """Too few usable bookies."""


class RecordFullError(BookKeeperError):
    """The ledger's record has no room for another ensemble change, or for so many accepted losses."""


class UnauthorizedAccessError(BookKeeperError):
    """The password is not the ledger's."""


class DigestMismatchError(BookKeeperError):
    """An entry's bytes do not match its digest."""


class MetadataVersionError(BookKeeperError):
    """A compare-and-set lost: another client changed the record first."""


class MetadataStoreError(BookKeeperError):
    """The metadata store did not answer in time; the outcome of a write is unknown."""


class UnreadableRecordError(MetadataStoreError):
    """A metadata record can't be decoded: damaged, or of a newer Bookspark (``newer``: upgrade)."""

    newer: bool = False


class LedgerRecoveryError(BookKeeperError):
    """Ledger recovery stopped without a decision. It can be retried."""


class EntriesNotCopiedError(LedgerRecoveryError):
    """Some entries of a ledger could not be copied. ``entries`` has a ``protocol.repair.entry_copying.NotCopied`` for each
    range of ids.
    """

    def __init__(self, message: str, entries: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.entries = tuple(entries)


class AddTimeoutError(BookKeeperError):
    """A write missed its deadline. After an append the outcome is unknown; after a sync or a close the ledger is still open."""


class EntryTooLargeError(BookKeeperError):
    """The payload is larger than a frame."""


class InvalidCookieError(BookKeeperError):
    """A bookie's directories do not match its cookie."""


class TooManyRequestsError(BookKeeperError):
    """A bookie has too many requests in flight."""


class StorageError(BookKeeperError):
    """A bookie's disk failed, or holds bytes that were never written."""


class BookieError(BookKeeperError):
    """A bookie process could not be started, adopted or stopped."""


class ConfigurationError(BookKeeperError, ValueError):
    """An option is unknown or has a wrong value."""


class InvalidArgumentError(ConfigurationError, TypeError):
    """An argument or option is unknown, of another type, out of bounds or none of the choices. Nothing was sent. It is also a
    ValueError and a TypeError. ``argument``: its name."""

    def __init__(self, message: str, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument
