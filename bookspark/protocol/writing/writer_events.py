"""What the world tells a writer: its user's wishes, and news of bookies. Answers to its actions are in ``actions``.

Law: an event is a plain value; it says what happened, not what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    DeadlinePassed,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    SyncAnswered,
)


@dataclass(slots=True, unsafe_hash=True)  # as those of ``actions`` that every add has
class Append:
    """``count`` more entries with ``byte_length`` payload bytes together. They get the ids from ``next_entry_id``
    on."""

    count: int
    byte_length: int


@dataclass(frozen=True, slots=True)
class Close:
    """The user appends no more."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """The client can't go on with the ledger, and why: it ends, or has a defect."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class Sync:
    """The user wants all that was appended so far to be confirmed: done at LAC ≥ ``last_add_pushed`` of now."""


@dataclass(frozen=True, slots=True)
class TellLac:
    """It is time to tell the bookies the LAC without an entry, so that readers see the last one (explicit LAC)."""


@dataclass(frozen=True, slots=True)
class BookieBack:
    """A bookie of the ensemble can be reached again; ``incarnation`` as it told when it was connected to (0: not
    known)."""

    bookie: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """There may be bookies by now for an ensemble change that was put off for lack of them."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """What ``bookie`` had still to be sent was forgotten, as the writer was done with it before the bookie could take it
    in."""

    bookie: str


WriterEvent = (
    Append
    | Close
    | Abandon
    | Sync
    | TellLac
    | BookieBack
    | BookiesChanged
    | PassedOver
    | AddAnswered
    | SyncAnswered
    | BookiesChosen
    | NoBookies
    | DeadlinePassed
    | MetadataRead
    | MetadataWritten
    | MetadataConflict
    | MetadataFailed
)
