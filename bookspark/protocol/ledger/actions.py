"""What the machines of the writer, the reader and the recoverer ask the world to do, and what the world tells them.

Law: a machine is stepped with one event and returns the actions that follow, in order; it does nothing itself. Bookies are named
by id, ids of entries are inclusive ranges, and ``entries`` is opaque: whatever carries the content (a batch frame in the client,
a value in the simulator) comes back in an action as it came in an event.

LAC is the last add confirmed, LAFR the last add fully replicated (of a guaranteed ledger). A VD ledger has volatile durability
(BP-14).

Actions and events are values, never changed. Those of every add are not frozen dataclasses, because a frozen one takes six times
as long to make.
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
    """Compare-and-set; answered by ``MetadataWritten``, ``MetadataConflict`` or ``MetadataFailed``."""

    metadata: LedgerMetadata
    version: int


# -- actions: bookies


@dataclass(slots=True, unsafe_hash=True)
class SendAdd:
    """Send ``first..last`` to each of ``bookies``; each is answered by ``AddAnswered``.

    ``entries``: only from a recoverer or a repair; those of a repair may have gaps between ``first`` and ``last``.
    ``last_add_fully_replicated``: only of a guaranteed ledger. ``assignment``: only of a VD ledger; it goes with the request, and
    with the answer into its ``SyncReport``.
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
    """Ask each of ``bookies`` to sync what it has of a VD ledger; each is answered by ``SyncAnswered``."""

    bookies: tuple[str, ...]
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class SendLac:
    """Tell each of ``bookies`` the LAC and the LAFR without an entry; each is answered by ``ExplicitLacAnswered``."""

    bookies: tuple[str, ...]
    last_add_confirmed: int
    last_add_fully_replicated: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class SendRead:
    """Read ``first..last`` from one bookie, as much as one answer holds; answered by ``ReadAnswered``. ``fence``: the bookie
    takes no more adds of the writer. ``sparse``: the bookie goes on behind entries that it does not hold."""

    bookie: str
    first: int
    last: int
    fence: bool = False
    sparse: bool = False


@dataclass(frozen=True, slots=True)
class SendReadLac:
    """Ask one bookie for its LAC; answered by ``LacAnswered``. ``fence``: the bookie takes no more adds of the writer. With
    ``wait_for`` the bookie holds the answer until its LAC is as high, or for a time that the driver sets (long poll), and may
    send that entry along."""

    bookie: str
    fence: bool = False
    wait_for: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class SendListHeld:
    """Ask one bookie which entries from ``first`` on it holds durably; answered by ``HeldAnswered``."""

    bookie: str
    first: int


# -- actions: the ensemble


@dataclass(frozen=True, slots=True)
class ChooseBookies:
    """Choose one bookie for each of ``replaced``, none of them in ``ensemble``; answered by ``BookiesChosen``,
    ``NoBookies``, or ``MetadataFailed`` if the store does not tell which there are."""

    ensemble: tuple[str, ...]
    replaced: tuple[str, ...]
    sound_only: bool = False
    """Those that are replaced are slow, and better than a bookie that failed a moment ago."""


@dataclass(frozen=True, slots=True)
class EnsembleChanged:
    """The ledger's record names another last ensemble now. From here on everything is sent to that."""

    metadata: LedgerMetadata
    version: int


# -- actions: the outcome


@dataclass(slots=True, unsafe_hash=True)
class Confirm:
    """The LAC rose: every append up to ``last_add_confirmed`` is acknowledged to the user, and may be read by anybody.
    The writer's driver may forget the content, unless the ledger is guaranteed (``Release``)."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every append up to ``last_add_acknowledged`` is acknowledged to the user. Only of a VD ledger, of which more can be
    acknowledged than is confirmed."""

    last_add_acknowledged: int


@dataclass(frozen=True, slots=True)
class Release:
    """Every entry up to ``last_add_fully_replicated`` is on its whole write set: its content may be forgotten. Only of
    a guaranteed ledger."""

    last_add_fully_replicated: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand ``first..last`` to the user; ``entries`` as they were read."""

    first: int
    last: int
    entries: Any


@dataclass(frozen=True, slots=True)
class Finish:
    """The machine has done what it was for. ``metadata`` and ``version`` are the ledger's, where they are of interest."""

    metadata: LedgerMetadata | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """The machine can't do what it was for. Everything that the user waits for fails with ``error``."""

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
    """Begin: the first event of a machine whose first action needs no answer. The machine's ``start`` steps it with this
    event."""


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """The ledger's record, and the version to change it by."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The compare-and-set was made, and the record has this version now."""

    version: int


@dataclass(frozen=True, slots=True)
class MetadataConflict:
    """Somebody else changed the record first."""


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """The store gave no answer within its own deadline, or said that the ledger is gone (NoSuchLedgerError); the
    outcome of a write is unknown."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a bookie tells with each positive answer about a VD ledger: ``last_add_synced`` for the ``assignment`` that came with
    the request, and the ``incarnation`` of its process."""

    last_add_synced: int
    incarnation: int
    assignment: Assignment


@dataclass(slots=True, unsafe_hash=True)
class AddAnswered:
    """A bookie answered an add, or did not in time. ``synced``: of a VD ledger, if the response is positive."""

    bookie: str
    first: int
    last: int
    response: Response
    synced: SyncReport | None = None


@dataclass(frozen=True, slots=True)
class SyncAnswered:
    """A bookie answered ``SendSync``, or did not in time. ``synced``: if the response is positive."""

    bookie: str
    response: Response
    synced: SyncReport | None = None


@dataclass(frozen=True, slots=True)
class BookiesChosen:
    """Placement chose one bookie for each that is to be replaced, in their order."""

    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoBookies:
    """There are not enough bookies; ``error`` names every candidate and why it was refused. A best-effort writer that has lost
    its ack quorum gives up at this, so a driver that expects bookies back soon may wait before it says so."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """A bookie answered a read, or did not in time.

    ``first..last`` came; ``last`` = ``first − 1`` if nothing did. ``following``: the bookie's answer for the id after that;
    Positive where the range or the size limit ended there. ``length``: the ledger's in bytes with entry ``last``. ``ahead``: what
    else came of a sparse read, each entry with its id.
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
    LAC ends with the answers so far, if one bookie told its LAC."""

    first: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class LacAnswered:
    """A bookie answered ``SendReadLac``, or did not in time. ``entries``: of a long poll, the entry that was waited for, if it
    came along."""

    bookie: str
    response: Response
    last_add_confirmed: int = NO_ENTRY
    last_add_fully_replicated: int = NO_ENTRY
    entries: Any = None


@dataclass(frozen=True, slots=True)
class HeldAnswered:
    """A bookie answered ``SendListHeld``, or did not in time. ``last``, if the response is positive: an id from ``first`` on that
    it holds, or ``first − 1`` if it holds none. There may be higher ones."""

    bookie: str
    first: int
    last: int
    response: Response


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time that the user gave is over."""


Event = (
    MetadataRead
    | MetadataWritten
    | MetadataConflict
    | MetadataFailed
    | AddAnswered
    | ReadAnswered
    | LacAnswered
    | HeldAnswered
    | BookiesChosen
    | NoBookies
    | DeadlinePassed
)
