"""Actions and events: requests of the machines (writer, reader, recoverer) to the world, and its answers.

Law: a machine is stepped with one event and returns the actions that follow, in order; it does nothing itself. Bookies are named
by id, entry ids are inclusive ranges, and ``entries`` is opaque (a batch frame in the client, a value in the simulator).

LAC is the last add confirmed, LAFR the last add fully replicated (of a guaranteed ledger). A VD ledger has volatile durability
(BP-14). Actions and events never change. The classes made for every add are not frozen: a frozen dataclass takes six times as
long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.responses import Response
from bookspark.protocol.ledger.sync_cursor import Assignment

# -- actions: the metadata store


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the ledger's record; answered by ``MetadataRead`` or ``MetadataFailed``."""


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set; answered by ``MetadataWritten``, ``MetadataConflict``, ``RecordFull`` or ``MetadataFailed``."""

    metadata: LedgerMetadata
    version: int


# -- actions: bookies


@dataclass(slots=True, unsafe_hash=True)
class SendAdd:
    """Send ``first..last`` to each of ``bookies``; each is answered by ``AddAnswered``.

    ``entries``: only from a recoverer or a repair; a repair's may have gaps between ``first`` and ``last``.
    ``last_add_fully_replicated``: only of a guaranteed ledger. ``assignment``: only of a VD ledger; the bookie's ``SyncReport``
    repeats it.
    """

    bookies: tuple[str, ...]
    first: int
    last: int
    last_add_confirmed: int
    entries: Any = None
    last_add_fully_replicated: int = NO_ENTRY
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class SendSync:
    """Ask each of ``bookies`` to sync its entries of a VD ledger; each is answered by ``SyncAnswered``."""

    bookies: tuple[str, ...]
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class SendLac:
    """Send the LAC and the LAFR without an entry to each of ``bookies``; each is answered by ``ExplicitLacAnswered``."""

    bookies: tuple[str, ...]
    last_add_confirmed: int
    last_add_fully_replicated: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class SendRead:
    """Read ``first..last`` from one bookie, as much as one answer holds; answered by ``ReadAnswered``. ``fence``: the bookie
    refuses the writer's adds from then on. ``sparse``: the bookie skips entries that it does not hold."""

    bookie: str
    first: int
    last: int
    fence: bool = False
    sparse: bool = False


@dataclass(frozen=True, slots=True)
class SendReadLac:
    """Ask one bookie for its LAC; answered by ``LacAnswered``. ``fence``: the bookie refuses the writer's adds from then on.
    ``wait_for`` (long poll): the bookie holds its answer until its LAC is as high, or until the driver's time limit, and may send
    that entry along."""

    bookie: str
    fence: bool = False
    wait_for: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class SendListHeld:
    """Ask one bookie for its durable entries from ``first`` on; answered by ``HeldAnswered``."""

    bookie: str
    first: int


# -- actions: the ensemble


@dataclass(frozen=True, slots=True)
class ChooseBookies:
    """Choose one bookie for each of ``replaced``, none of them in ``ensemble``; answered by ``BookiesChosen``,
    ``NoBookies``, or ``MetadataFailed`` if the store can't list the bookies."""

    ensemble: tuple[str, ...]
    replaced: tuple[str, ...]
    sound_only: bool = False
    """The replaced bookies are only slow, so a bookie that failed a moment ago is no better choice."""
    refusing: tuple[str, ...] = ()
    """Bookies not to choose: they refused the ledger's password."""


@dataclass(frozen=True, slots=True)
class EnsembleChanged:
    """The ledger's record names another last ensemble. From here on everything goes to that ensemble."""

    metadata: LedgerMetadata
    version: int


# -- actions: the outcome


@dataclass(slots=True, unsafe_hash=True)
class Confirm:
    """The LAC rose: every append up to ``last_add_confirmed`` is acknowledged to the user and readable by all. The writer's
    driver may forget the content, unless the ledger is guaranteed (``Release``)."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every append up to ``last_add_acknowledged`` is acknowledged to the user. Only of a VD ledger, where acknowledged entries
    run ahead of confirmed ones."""

    last_add_acknowledged: int


@dataclass(frozen=True, slots=True)
class Release:
    """Every entry up to ``last_add_fully_replicated`` is on its whole write set, so its content may be forgotten. Only of a
    guaranteed ledger."""

    last_add_fully_replicated: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand ``first..last`` to the user; ``entries`` as the bookie sent them."""

    first: int
    last: int
    entries: Any


@dataclass(frozen=True, slots=True)
class Finish:
    """The machine has reached its goal. ``metadata`` and ``version`` are the ledger's, where the caller needs them."""

    metadata: LedgerMetadata | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """The machine can't reach its goal. All pending requests of the user fail with ``error``."""

    error: BookKeeperError


Action = (
    ReadMetadata
    | WriteMetadata
    | SendAdd
    | SendSync
    | SendLac
    | SendRead
    | SendReadLac
    | SendListHeld
    | ChooseBookies
    | EnsembleChanged
    | Confirm
    | Acknowledge
    | Release
    | Deliver
    | Finish
    | Fail
)

# -- events


@dataclass(frozen=True, slots=True)
class Start:
    """Begin: the first event of a machine whose first action needs no answer (its ``start``)."""


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """The ledger's record, and its version for a compare-and-set."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The compare-and-set succeeded; the record has this version now."""

    version: int


@dataclass(frozen=True, slots=True)
class MetadataConflict:
    """Another client changed the record first."""


@dataclass(frozen=True, slots=True)
class RecordFull:
    """Nothing was written: the record would take the room kept for its later changes (``RecordFullError``)."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """The store timed out, or the ledger is gone (NoSuchLedgerError). The outcome of a write is unknown."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Part of each positive answer about a VD ledger: ``last_add_synced`` for the request's ``assignment``, and the
    ``incarnation`` of the bookie's process."""

    last_add_synced: int
    incarnation: int
    assignment: Assignment


@dataclass(slots=True, unsafe_hash=True)
class AddAnswered:
    """A bookie answered an add, or timed out. ``synced``: of a VD ledger, if the response is positive."""

    bookie: str
    first: int
    last: int
    response: Response
    synced: SyncReport | None = None


@dataclass(frozen=True, slots=True)
class SyncAnswered:
    """A bookie answered ``SendSync``, or timed out. ``synced``: if the response is positive."""

    bookie: str
    response: Response
    synced: SyncReport | None = None


@dataclass(frozen=True, slots=True)
class BookiesChosen:
    """Placement chose one bookie for each replaced one, in their order."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoBookies:
    """Too few bookies; ``error`` names every candidate and why it was refused. A best-effort writer without its ack quorum gives
    up at this, so a driver that expects bookies back soon may wait before it sends this event."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """A bookie answered a read, or timed out.

    ``first..last``: the entries in the answer; ``last`` = ``first − 1`` if there are none. ``following``: the bookie's answer for
    the next id; Positive where the range or the size limit ended there. ``length``: the ledger's, in bytes, up to and with entry
    ``last``. ``ahead``: further entries of a sparse read, each with its id.
    """

    bookie: str
    first: int
    last: int
    following: Response
    entries: Any = None
    length: int = 0
    ahead: tuple[tuple[int, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadIsLate:
    """An answer has taken long. For a read from ``first`` on, another replica is asked as well (speculative read). A read of the
    LAC ends with the answers so far, if one bookie has reported its LAC."""

    first: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class LacAnswered:
    """A bookie answered ``SendReadLac``, or timed out. ``entries``: the awaited entry of a long poll, if it came along."""

    bookie: str
    response: Response
    last_add_confirmed: int = NO_ENTRY
    last_add_fully_replicated: int = NO_ENTRY
    entries: Any = None


@dataclass(frozen=True, slots=True)
class HeldAnswered:
    """A bookie answered ``SendListHeld``, or timed out. ``last``, if the response is positive: an id from ``first`` on that the
    bookie holds, or ``first − 1`` if it holds none. Higher ones may exist."""

    bookie: str
    first: int
    last: int
    response: Response


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The user's time limit is over."""


Event = (
    MetadataRead
    | MetadataWritten
    | MetadataConflict
    | RecordFull
    | MetadataFailed
    | AddAnswered
    | ReadAnswered
    | LacAnswered
    | HeldAnswered
    | BookiesChosen
    | NoBookies
    | DeadlinePassed
)
