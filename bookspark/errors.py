"""The errors that a user of Bookspark can catch.

Law: an error says what was wrong and what to do about it. Its class says where the cause lies: with the caller (bad input, wrong
password), with another client (fenced, changed metadata) or with the cluster (no replica answered, not enough bookies). The names
follow BookKeeper's ``BKException`` codes.

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
    """After a failed close: the ids of appends that were not confirmed. Each may be part of the ledger or not."""


class LedgerFencedError(BookKeeperError):
    """Another client fenced the ledger. The outcome of appends that were not acknowledged is unknown."""


class LedgerClosedError(BookKeeperError):
    """The handle or the ledger is closed; nothing more can be appended."""


class LedgerExistsError(BookKeeperError):
    """A ledger with this id exists already."""


class NoSuchClusterError(BookKeeperError):
    """There is no cluster at this place of the metadata store. The message names clusters that are near."""


class DuplicateEntryIdError(BookKeeperError):
    """An entry with this id was appended before; the first one counts."""


class NoSuchLedgerError(BookKeeperError):
    """The metadata store has no ledger of this id."""


class NoSuchEntryError(BookKeeperError):
    """Every bookie that could hold the entry answered explicitly that it does not."""


class DataLossError(BookKeeperError):
    """Entries that were asked for are gone: truncated, or deleted with their ledger or log."""


class ReadError(BookKeeperError):
    """The range lies beyond what may be read, or no replica gave a definite answer: the entry may well exist."""


class NotEnoughBookiesError(BookKeeperError):
    """Too few bookies can be used; the message names every candidate and why it was refused."""


class UnauthorizedAccessError(BookKeeperError):
    """The password is not the one that the ledger was created with."""


class DigestMismatchError(BookKeeperError):
    """An entry's bytes do not match the digest that its writer made."""


class MetadataVersionError(BookKeeperError):
    """A compare-and-set lost: somebody else changed the record first."""


class MetadataStoreError(BookKeeperError):
    """The metadata store could not be reached or gave no answer in time; the outcome of a write is unknown."""


class UnreadableRecordError(MetadataStoreError):
    """A record of the metadata store can't be decoded: it is damaged, or a newer version of Bookspark wrote it. It concerns only
    what the record describes. ``newer``: upgrade Bookspark to read it."""

    newer: bool = False


class LedgerRecoveryError(BookKeeperError):
    """Ledger recovery stopped without a decision; nothing was truncated and it can be tried again."""


class EntriesNotCopiedError(LedgerRecoveryError):
    """Some entries of a ledger could not be copied: the message says which, and what each bookie answered. All others were.

    ``entries`` has a ``protocol.repair.entry_copying.NotCopied`` for each range of ids."""

    def __init__(self, message: str, entries: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.entries = tuple(entries)


class AddTimeoutError(BookKeeperError):
    """A write did not end within its deadline; the message says which. After an append the outcome is unknown: no ack quorum
    acknowledged it. After a sync or a close the ledger is still open, and confirmed entries are kept."""


class EntryTooLargeError(BookKeeperError):
    """The payload is larger than a frame may be."""


class InvalidCookieError(BookKeeperError):
    """A bookie's directories are not the ones that its cookie names."""


class TooManyRequestsError(BookKeeperError):
    """A bookie has more requests in flight than it admits."""


class StorageError(BookKeeperError):
    """A bookie's disk failed, or holds bytes that were never written there."""


class BookieError(BookKeeperError):
    """A bookie process could not be started, adopted or stopped; the message has its last words."""


class ConfigurationError(BookKeeperError, ValueError):
    """An option is unknown or has a value that can't be used."""


class InvalidArgumentError(ConfigurationError, TypeError):
    """An argument or option is unknown, of another type, out of its bounds or none of the choices. Nothing was written or sent.

    It is a ConfigurationError, because its cause lies with the caller and not with the cluster. It is a ValueError and a
    TypeError as well, because Python's own functions raise these. ``argument`` is the argument's name."""

    def __init__(self, message: str, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument
