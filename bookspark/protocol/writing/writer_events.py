"""Events of a writer from its user, the clock and the bookies. Most answers to its actions are in ``protocol.ledger.actions``.

Law: an event is a plain value; it says what happened, not how to react.
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
    RecordFull,
    SyncAnswered,
)
from bookspark.protocol.ledger.responses import Response


# Not frozen, like the other values of every add (``actions``).
@dataclass(slots=True, unsafe_hash=True)
class Append:
    """``count`` more entries with ``byte_length`` payload bytes together."""

    count: int
    byte_length: int


@dataclass(frozen=True, slots=True)
class Close:
    """The user appends no more."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """The client can't go on with the ledger: it ends, or has a defect. ``error``: the reason."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class Sync:
    """The user wants everything appended so far confirmed: a LAC (last add confirmed) of the present ``last_add_pushed``."""


@dataclass(frozen=True, slots=True)
class TellLac:
    """The user wants an explicit LAC sent now."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The writer has rested for ``quiet_seconds``, and no caller waits. ``now``: seconds of a monotonic clock."""

    now: float
    quiet_seconds: float


@dataclass(frozen=True, slots=True)
class ExplicitLacAnswered:
    """A bookie answered ``SendLac``, or timed out. ``now`` as in ``Idle``."""

    bookie: str
    response: Response
    now: float


@dataclass(frozen=True, slots=True)
class BookieBack:
    """A bookie of the ensemble is reachable again. ``incarnation``: reported at the connection; 0 if unknown."""

    bookie: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """Bookies may exist by now for an ensemble change that was put off."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """The driver dropped adds held back for ``bookie``: the writer released them before the bookie could take them."""

    bookie: str


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Appends have waited too long for ``bookies``, the worst first, while others were quick."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BookiesLost:
    """``bookies`` have been without a registration for long."""

    bookies: tuple[str, ...]


WriterEvent = (
    Append
    | Close
    | Abandon
    | Sync
    | TellLac
    | Idle
    | ExplicitLacAnswered
    | BookieBack
    | BookiesChanged
    | PassedOver
    | HeldUp
    | BookiesLost
    | AddAnswered
    | SyncAnswered
    | BookiesChosen
    | NoBookies
    | DeadlinePassed
    | MetadataRead
    | MetadataWritten
    | MetadataConflict
    | RecordFull
    | MetadataFailed
)
