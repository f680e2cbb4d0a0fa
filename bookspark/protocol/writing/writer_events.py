"""What the world tells a writer: its user's wishes, the time, and news of bookies. Most answers to its actions are in
``protocol.ledger.actions``.

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
from bookspark.protocol.ledger.responses import Response


# Not frozen, like the other values of every add (``actions``).
@dataclass(slots=True, unsafe_hash=True)
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
    """The client can't go on with the ledger: it ends, or it has a defect. ``error`` tells why."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class Sync:
    """The user wants everything that was appended so far to be confirmed. That is done once the LAC (last add confirmed) has
    reached the ``last_add_pushed`` of now."""


@dataclass(frozen=True, slots=True)
class TellLac:
    """The user wants the bookies to hear the LAC now, without an entry (explicit LAC)."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nobody waits for the writer, and its last progress was ``quiet_seconds`` ago. ``now``: seconds of a clock that never goes
    back."""

    now: float
    quiet_seconds: float


@dataclass(frozen=True, slots=True)
class ExplicitLacAnswered:
    """A bookie answered ``SendLac``, or did not in time. ``now`` as in ``Idle``."""

    bookie: str
    response: Response
    now: float


@dataclass(frozen=True, slots=True)
class BookieBack:
    """The writer can reach a bookie of the ensemble again. ``incarnation``: what the bookie told when it was connected to; 0 if
    that is not known."""

    bookie: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """There may be bookies by now for an ensemble change that was put off for lack of them."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """The driver had held back adds for ``bookie``, and dropped them: the writer was done with them before the bookie could take
    them in."""

    bookie: str


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Appends have waited too long for ``bookies``, the worst first, while others were quick."""

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
