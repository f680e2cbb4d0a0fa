"""The writer of a ledger: pipelined adds, acknowledged in order, ensemble changes, and the close.

Law: an append is acknowledged once an ack quorum of its write set has it and every append before it is acknowledged. After the
first sign of a fence nothing is acknowledged. The LAC (last add confirmed) covers acknowledged and synced entries. The closed
ledger ends at the last confirmed entry, whichever client closed it, or ``close`` fails.

States (``TRANSITIONS`` lists the events of each, ``ANSWERS`` the answers of the metadata store and of placement)::

    OPEN ──Close──► CLOSING ──nothing pending──► WRITING ──compare-and-set──► CLOSED
      │                │                           │ conflict: read again; still OPEN → try again;
      ├── fenced, unauthorized, deadline ──► FAILED ◄─┘ CLOSED with our end → CLOSED; anything else → FAILED
      └── no bookies to go on with, or no room in the record for them (best effort) ──► WRITING ──► FAILED, closed at the LAC,
                             or FAILED and left open, if that would cut off what a VD ledger acknowledged

Parts: ``Adds`` sends entries; ``Cursors`` holds the progress; the policies ``replication`` (best effort, guaranteed) and
``Persistent`` or ``Volatile`` (PD, VD) differ from ledger to ledger; ``ensemble_change`` replaces bookies; ``ExplicitLac``
sends the LAC.

A silent bookie delays nothing as long as an ack quorum of each write set answers. When it is back (``BookieBack``), it gets the
entries still pending. Autorecovery copies the rest. A writer without appends replaces a lost bookie too (``BookiesLost``), so
that autorecovery need not fence it.

Sources: bookkeeper-overview, "Writing" and "Closing"; ``PendingAddOp`` and ``LedgerHandle`` of BookKeeper;
docs/decisions/traps.md, trap 3 for ensemble changes, trap 4 for the three outcomes of a close.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.actions import (
    Acknowledge,
    Action,
    AddAnswered,
    Confirm,
    Release,
    SendAdd,
    SendLac,
    SendSync,
    SyncAnswered,
    SyncReport,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState, LedgerType
from bookspark.protocol.ledger.responses import FINAL_REASONS, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment, assignment
from bookspark.protocol.ledger.transitions import LATE, TAKEN, IllegalEventError, Table, cell_of, row
from bookspark.protocol.writing.ensemble_change import NOBODY, ChangeMode, EnsembleChanges, quorum_lost
from bookspark.protocol.writing.replication import BestEffort, replication_of
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookieBack,
    BookiesChanged,
    BookiesLost,
    Close,
    ExplicitLacAnswered,
    HeldUp,
    Idle,
    PassedOver,
    Sync,
    TellLac,
    WriterEvent,
)

# -- Parts of a writer's state: its step on the way to the close, its open question, and its pending adds.
#
# Law: a writer has one open question to the metadata store or to placement. The ``acks`` of an append are members of its
# ``bookies``; its ids and length never change, its bookies only with the ensemble.


class State(Enum):
    """Drawn in ``writer``."""

    OPEN = auto()
    CLOSING = auto()
    """The user appends no more; adds are still pending."""
    WRITING = auto()
    """Nothing is pending; the record is being closed."""
    CLOSED = auto()
    FAILED = auto()

    # Each step looks a state up. This hash is in C; that of ``Enum`` is a call of Python code.
    __hash__ = object.__hash__


class Asked(Enum):
    """The open question to the metadata store or to placement."""

    NOTHING = auto()
    BOOKIES = auto()
    """``ChooseBookies``, for an ensemble change."""
    CHANGE_WRITE = auto()
    """``WriteMetadata`` with the new ensemble."""
    CHANGE_READ = auto()
    """``ReadMetadata``: the write of the new ensemble lost, or has an unknown outcome."""
    CLOSE_WRITE = auto()
    """``WriteMetadata`` with the closed record."""
    CLOSE_READ = auto()
    """``ReadMetadata``: the write of the closed record lost."""


@dataclass(slots=True)
class PendingAdd:
    """A run of entries with one write set, sent to ``bookies``; ``length``: the ledger's, in bytes, after its last entry."""

    first: int
    last: int
    length: int
    bookies: tuple[str, ...]
    acks: set[str] = field(default_factory=set)


# -- Durability of an add: at its ack on a PD ledger, at the sync that covers it on a VD ledger. One policy object for each.
#
# PD is persistent durability, VD volatile durability (BP-14). E is the ensemble size, WQ the write quorum, AQ the ack quorum.
#
# Law: the LAC (last add confirmed) covers only entries synced by an ack quorum of their write set. On a PD ledger an ack says
# so. On a VD ledger an ack is enough to acknowledge the append, but nothing for the LAC, which follows the bookies'
# LastAddSynced in each answer (``SyncReport``), entry by entry. The result equals ``quorum.last_add_confirmed_of`` for E = WQ,
# and is never less for striped ledgers.
#
# Additions to BP-14, which leaves these as future work (docs/decisions/relaxed-durability.md):
#
# * **Striping**: a bookie's cursor covers its assigned ids. Each request carries the assignment
#   (``sync_cursor.Assignment``).
# * **Ensemble change**: the new fragment starts after the last confirmed entry (on a guaranteed ledger, after the last
#   fully replicated one). The new bookie's cursor starts before it, and the bookie gets all unconfirmed entries. So an
#   entry that a lost bookie had acknowledged but not synced counts again only once the new bookie has synced it. A report
#   counts if its assignment is that of the bookie's present stay in the ensemble.
# * **Restart**: when a bookie's incarnation changes, its acks of unsynced entries are taken back, and these entries are
#   sent again.
# * **Missed entries**: entries that a bookie missed while away, and others have synced, are not sent to it. In its cursor
#   they would be a hole that never closes, so its assignment begins after the released entries.
# * **sync()** up to an id T: once T is acknowledged, each bookie is asked to sync, so the sync begins after the adds. A
#   bookie that acknowledges an entry later is asked again. The sync is done at LAC ≥ T. The writer itself syncs after each
#   ``sync_bytes``, so kept content is bounded. A bookie has at most one sync under way.
#
# An ack of an ended incarnation does not count. Incarnations are random numbers: the last one reported is the latest. So the
# driver must not hand in an answer of a connection after the ``BookieBack`` of the next one.


SYNC_BYTES = 64 << 20
"""Default of ``sync_bytes``: a VD ledger is synced after this many bytes at the latest."""


class Persistent:
    """The policy of PD ledgers: an acknowledged entry is synced."""

    __slots__ = ()
    volatile = False

    def holders(self, add: PendingAdd, leaving: frozenset[str]) -> Set[str]:
        """The bookies with a synced copy of ``add``, without those ``leaving``."""
        return add.acks - leaving if leaving else add.acks

    # No-ops on a PD ledger; see ``Volatile``.

    def joined(self, metadata: LedgerMetadata, bookies: Iterable[str]) -> None:
        pass

    def back(self, bookie: str, incarnation: int, adds: Iterable[PendingAdd]) -> None:
        pass

    def passed_over(self, bookies: Iterable[str], done: int, adds: Collection[PendingAdd]) -> list[Action]:
        return []

    def appended(self, last: int, length: int) -> None:
        pass

    def want(self, last: int, length: int) -> None:
        pass

    def acknowledged(self, last: int) -> list[Action]:
        return []


class Member(NamedTuple):
    assignment: Assignment
    last_add_synced: int
    incarnation: int = 0
    """Incarnation of the bookie; 0 until known."""


class Volatile:
    """The policy of VD ledgers: an acknowledged entry is in the bookies' memory."""

    __slots__ = ("_ended", "_goal", "_members", "_requested_length", "_sync_bytes", "_syncing", "_targets")
    volatile = True

    def __init__(self, metadata: LedgerMetadata, sync_bytes: int) -> None:
        self._sync_bytes = sync_bytes
        self._requested_length = 0
        """Bytes up to the last id of a requested sync."""
        self._targets: tuple[int, ...] = ()
        """Last ids of requested syncs. Each waits until everything up to its id is acknowledged."""
        self._goal = NO_ENTRY
        """The last id of the sync under way."""
        self._syncing: frozenset[str] = frozenset()
        self._ended: frozenset[tuple[str, int]] = frozenset()
        self._members: dict[str, Member] = {}
        self.joined(metadata, metadata.last_fragment.ensemble)

    def holders(self, add: PendingAdd, leaving: frozenset[str]) -> Set[str]:
        """The bookies whose LastAddSynced covers ``add``, without those ``leaving``."""
        members, last = self._members, add.last
        return {b for b in add.bookies if members[b].last_add_synced >= last and b not in leaving}

    def grouped(self, bookies: Iterable[str]) -> list[tuple[Assignment, tuple[str, ...]]]:
        """``bookies`` by assignment, because one request carries one assignment."""
        groups: dict[Assignment, list[str]] = {}
        for bookie in bookies:
            groups.setdefault(self._members[bookie].assignment, []).append(bookie)
        return [(mine, tuple(group)) for mine, group in groups.items()]

    # -- members

    def joined(self, metadata: LedgerMetadata, bookies: Iterable[str]) -> None:
        """Members outside of the last ensemble of ``metadata`` are forgotten."""
        fragment, wanted = metadata.last_fragment, frozenset(bookies)
        members = {}
        for position, bookie in enumerate(fragment.ensemble):
            if bookie in wanted:
                first = fragment.first_entry_id
                mine = assignment(first, metadata.ensemble_size, metadata.write_quorum, position)
                members[bookie] = Member(mine, first - 1)
            else:
                members[bookie] = self._members[bookie]
        self._members = members
        self._syncing = self._syncing & (members.keys() - wanted)

    def heard(
        self, bookie: str, report: SyncReport, add: PendingAdd | None, adds: Iterable[PendingAdd]
    ) -> tuple[list[Action], bool]:
        """A member gave a positive answer; ``add``: the acknowledged add, if still pending. Returns the syncs that follow, and
        whether the bookie was restarted since its last answer."""
        member = self._members[bookie]
        if report.assignment == member.assignment and report.last_add_synced > member.last_add_synced:
            self._members[bookie] = member._replace(last_add_synced=report.last_add_synced)
        if (bookie, report.incarnation) in self._ended:
            return [], False
        restarted = self.back(bookie, report.incarnation, adds)
        if add is None or bookie not in add.bookies:
            return [], restarted
        add.acks.add(bookie)
        # The add may have arrived after the bookie's last sync began.
        return self.sync((bookie,)) if add.last <= self._goal else [], restarted

    def is_ahead(self, bookie: str, report: SyncReport, last_add_pushed: int) -> bool:
        """Does a report of the present assignment claim more than was sent? A cursor steps over ids of other bookies."""
        member = self._members.get(bookie)
        if member is None or report.assignment != member.assignment:
            return False
        return report.last_add_synced >= member.assignment.next_held(last_add_pushed + 1)

    def back(self, bookie: str, incarnation: int, adds: Iterable[PendingAdd]) -> bool:
        """A member answers as ``incarnation`` (0: unknown). True if it had another before: its unsynced entries may be gone, and
        its acks of them are taken back."""
        member = self._members[bookie]
        if incarnation in (0, member.incarnation):
            return False
        self._members[bookie] = member._replace(incarnation=incarnation)
        if not member.incarnation:
            return False
        self._ended = (self._ended | {(bookie, member.incarnation)}) - {(bookie, incarnation)}
        self._syncing -= {bookie}
        for add in adds:
            if member.last_add_synced < add.last:
                add.acks.discard(bookie)
        return True

    def passed_over(self, bookies: Iterable[str], done: int, adds: Collection[PendingAdd]) -> list[Action]:
        """``bookies`` may lack ids up to ``done``, which are released: move their cursors behind these."""
        actions: list[Action] = []
        for bookie in bookies:
            self.pass_over(bookie, done)
            actions += self.sync_rest(bookie, adds)
        return actions

    def pass_over(self, bookie: str, done: int) -> None:
        member = self._members[bookie]
        mine, synced = member.assignment, member.last_add_synced
        if mine.first_entry_id <= done:
            mine = mine._replace(first_entry_id=done + 1)
            self._members[bookie] = member._replace(assignment=mine, last_add_synced=max(synced, done))

    # -- syncs

    def appended(self, last: int, length: int) -> None:
        """``length``: the ledger's after the append. Asks for a sync after each ``sync_bytes``."""
        if length - self._requested_length >= self._sync_bytes:
            self.want(last, length)

    def want(self, last: int, length: int) -> None:
        self._requested_length = length
        if last > max(self._goal, *self._targets, NO_ENTRY):
            self._targets = (*self._targets, last)

    def acknowledged(self, last: int) -> list[Action]:
        """Returns the syncs that waited until everything up to ``last`` was acknowledged."""
        if not self._targets or last < self._targets[0]:
            return []
        while self._targets and last >= self._targets[0]:
            self._goal, self._targets = self._targets[0], self._targets[1:]
        return self.sync(self._members)

    def sync(self, bookies: Iterable[str]) -> list[Action]:
        """Ask those of ``bookies`` to sync that are behind the goal and not syncing."""
        members = self._members
        asked = [b for b in bookies if b not in self._syncing and members[b].last_add_synced < self._goal]
        self._syncing |= frozenset(asked)
        return [SendSync(group, mine) for mine, group in self.grouped(asked)]

    def sync_answered(self, bookie: str) -> None:
        self._syncing -= {bookie}

    def sync_rest(self, bookie: str, adds: Iterable[PendingAdd]) -> list[Action]:
        """Ask ``bookie`` to sync again, if it acknowledged an entry up to the goal that no sync has covered yet. While it lacks
        an earlier entry, its cursor waits, and so does this."""
        synced = self._members[bookie].last_add_synced
        first = next((add for add in adds if add.last > synced and bookie in add.bookies), None)
        if first is None or first.last > self._goal or bookie not in first.acks:
            return []
        return self.sync((bookie,))


def durability_of(metadata: LedgerMetadata, sync_bytes: int) -> Persistent | Volatile:
    """The policy chosen at the ledger's creation."""
    return Volatile(metadata, sync_bytes) if metadata.ledger_type is LedgerType.VD_JOURNAL else Persistent()


# -- A writer's progress: its cursors, and its pending adds.
#
# Law: released ≤ LAC (last add confirmed) ≤ acknowledged ≤ pushed, and no cursor ever goes back. ``pending`` has the adds after
# *released*: their content may be needed again. On a best-effort PD (persistent durability) ledger the first three are equal. The
# policies ``durability`` and ``replication`` decide when an add passes each.
#
# Source: bookkeeper-overview, "Writing"; BP-14 for acknowledged entries that are not confirmed; "Guaranteeing write quorum" for
# LAFR (last add fully replicated).


class Cursors:
    """Ids are entry ids, ``NO_ENTRY`` before the first; lengths are the ledger's, in bytes of payload. ``durability`` is a
    parameter and no field, because the state of a machine is a tree."""

    __slots__ = (
        "_ack_quorum",
        "_copies",
        "_keeps_confirmed",
        "last_add_acknowledged",
        "last_add_confirmed",
        "last_add_fully_replicated",
        "last_add_pushed",
        "length",
        "pending",
        "pushed_length",
        "released",
    )

    def __init__(self, metadata: LedgerMetadata, replication: BestEffort) -> None:
        self._ack_quorum = metadata.ack_quorum
        self._copies = replication.copies(metadata)
        self._keeps_confirmed = replication.keeps_confirmed
        self.released = NO_ENTRY
        """The writer needs no entry up to this id any more."""
        self.last_add_confirmed = NO_ENTRY
        self.last_add_acknowledged = NO_ENTRY
        """The highest id acknowledged to the user; on a PD ledger, the LAC."""
        self.last_add_fully_replicated = NO_ENTRY
        """The LAFR; only guaranteed ledgers have one."""
        self.last_add_pushed = NO_ENTRY
        self.length = 0
        """Up to ``last_add_confirmed``."""
        self.pushed_length = 0
        self.pending: dict[int, PendingAdd] = {}
        """Adds not released, by their first id, ascending."""

    def push(self, count: int, byte_length: int, bookies: tuple[str, ...]) -> PendingAdd:
        first = self.last_add_pushed + 1
        self.last_add_pushed += count
        self.pushed_length += byte_length
        add = self.pending[first] = PendingAdd(first, self.last_add_pushed, self.pushed_length, bookies)
        return add

    def advance(self, durability: Persistent | Volatile, leaving: frozenset[str]) -> list[Action]:
        """Move all cursors as far as the answers allow, without copies on bookies ``leaving``."""
        pending, ack_quorum = self.pending, self._ack_quorum
        confirmed, released, acknowledged = self.last_add_confirmed, self.released, self.last_add_acknowledged
        while (add := pending.get(confirmed + 1)) and len(durability.holders(add, leaving)) >= ack_quorum:
            confirmed, self.length = add.last, add.length
        while (add := pending.get(released + 1)) and add.last <= confirmed:
            if self._keeps_confirmed and len(durability.holders(add, leaving)) < self._copies:
                break
            released = add.last
            del pending[add.first]
        acknowledged = max(acknowledged, confirmed)
        actions: list[Action] = []
        if durability.volatile:
            while (add := pending.get(acknowledged + 1)) and len(add.acks - leaving) >= ack_quorum:
                acknowledged = add.last
            if acknowledged > max(confirmed, self.last_add_acknowledged):
                actions.append(Acknowledge(acknowledged))
            actions += durability.acknowledged(acknowledged)
        if confirmed > self.last_add_confirmed:
            actions.append(Confirm(confirmed))
        if self._keeps_confirmed and released > self.released:
            self.last_add_fully_replicated = released
            actions.append(Release(released))
        self.last_add_acknowledged, self.last_add_confirmed, self.released = acknowledged, confirmed, released
        return actions

    def confirmed_holders(self, durability: Persistent | Volatile, leaving: frozenset[str]) -> Iterator[Set[str]]:
        """The holders, without those ``leaving``, of each confirmed entry not yet released."""
        add = self.pending.get(self.released + 1)
        while add and add.last <= self.last_add_confirmed:
            yield durability.holders(add, leaving)
            add = self.pending.get(add.last + 1)

    def missed(self, bookies: Collection[str]) -> Iterator[tuple[PendingAdd, tuple[str, ...]]]:
        """Each add not acknowledged by some of ``bookies``, with these bookies."""
        for add in self.pending.values():
            missing = tuple(b for b in add.bookies if b in bookies and b not in add.acks)
            if missing:
                yield add, missing

    def replace(self, bookies: Mapping[str, str]) -> None:
        """Replace bookies, old → new; acknowledgements of the old bookies are taken back."""
        for add in self.pending.values():
            add.bookies = tuple(bookies.get(bookie, bookie) for bookie in add.bookies)
            add.acks -= bookies.keys()


# -- Errors of a writer that ends without a close.
#
# Law: each message names the ledger, its progress, and the user's next step.


def refused_at(
    bookie: str, reason: UnknownReason | None, ledger_id: int, last_add_confirmed: int
) -> BookKeeperError | None:
    """The error that ends the writer when a bookie refuses it for ``reason``, or None."""
    if reason is UnknownReason.FENCED:
        return LedgerFencedError(
            f"ledger {ledger_id} was fenced at {bookie} by another client; whether entries after "
            f"{last_add_confirmed} are part of it is unknown until it is closed"
        )
    return None


def refused_by(bookies: Iterable[str], ledger_id: int) -> UnauthorizedAccessError:
    """These bookies refused the password, and no others can go on."""
    return UnauthorizedAccessError(f"{', '.join(sorted(bookies))} refused the password of ledger {ledger_id}")


def taken_over(found: LedgerMetadata, last_add_confirmed: int) -> LedgerFencedError:
    """Another client changed the record."""
    if found.closed:
        state = f"closed at entry {found.last_entry_id}"
    else:
        state = f"{found.state.value} with ensemble {', '.join(found.last_fragment.ensemble)}"
    return LedgerFencedError(
        f"ledger {found.ledger_id} is {state} by another client, this writer's last acknowledged entry is "
        f"{last_add_confirmed}; open it to see what it holds"
    )


def left_open(ledger_id: int, last_add_acknowledged: int, error: BookKeeperError) -> BookKeeperError:
    """No bookies to go on with. A close at the LAC would cut off acknowledged entries that are not synced; a recovery reads them
    from bookies that come back."""
    return type(error)(
        f"{error}. Ledger {ledger_id} was left open: entries up to {last_add_acknowledged} were acknowledged and are not all "
        "synced; open it to recover them when its bookies are back"
    )


def late(
    metadata: LedgerMetadata,
    cursors: Cursors,
    copies: int,
    durability: Persistent | Volatile,
    failed: Set[str],
) -> AddTimeoutError:
    """The error after the deadline: for unacknowledged appends, for the ``copies`` of each entry that a close waits for, or for
    the close itself."""
    ledger_id, pending = metadata.ledger_id, list(cursors.pending.values())
    if not pending:
        return AddTimeoutError(f"ledger {ledger_id}: the close was not answered in time; open it to recover it")
    last = pending[-1].last
    add = next((add for add in pending if add.last > cursors.last_add_acknowledged), None)
    if add is not None:
        waiting = ", ".join(bookie for bookie in add.bookies if bookie not in add.acks)
        return AddTimeoutError(
            f"ledger {ledger_id}: entries {add.first}..{last} were not acknowledged in time by "
            f"{metadata.ack_quorum} bookies (waiting for {waiting}); open the ledger to recover it"
        )
    held = durability.holders(pending[0], frozenset())
    waiting = ", ".join(bookie for bookie in pending[0].bookies if bookie not in held)
    why = f", {', '.join(sorted(failed))} failed" if failed else ""
    return AddTimeoutError(
        f"ledger {ledger_id}: all appends were acknowledged, but entries {pending[0].first}..{last} are not yet synced on "
        f"{copies} bookies (waiting for {waiting}{why}), so it was not closed; open it to recover it"
    )


def out_of_room(error: AddTimeoutError, full: BookKeeperError) -> AddTimeoutError:
    """``error``, with the reason why no other bookies took the place of the failed ones."""
    return AddTimeoutError(f"{error}. Its failed bookies were not replaced: {full}")


def missing_for_long(ledger_id: int, missing: int, seconds: float) -> AddTimeoutError:
    """Entries have waited for a lower id for ``seconds``."""
    return AddTimeoutError(
        f"ledger {ledger_id}: entry {missing} was not appended in {seconds:g} s, and later ones wait for it; entries up to "
        f"{missing - 1} may be part of the ledger: open it to recover it"
    )


# -- Explicit LAC: a writer sends the bookies its LAC (last add confirmed) without an entry, so that readers see the last entry of
# a pausing writer.
#
# Law: each entry carries the LAC of the moment when it was sent. An idle writer sends a newer LAC by itself, once, to all
# bookies of the ensemble. A bookie may have missed it: it did not acknowledge it, was away, or joined later. Such a bookie gets
# it again, but seldom, because it may be gone for long. The LAFR (last add fully replicated) of a guaranteed ledger goes along.
#
# Source: BookKeeper's ``ExplicitLacUpdateFlow``; "Guaranteeing write quorum" for the LAFR.


EXPLICIT_LAC_INTERVAL_SECONDS = 0.1
_AGAIN_INTERVALS = 10
"""Intervals until an unacknowledged explicit LAC is sent again."""


class ExplicitLac:
    """One writer's record of the cursors known to the bookies. ``now``: seconds of a monotonic clock."""

    __slots__ = ("_again_at", "_interval_seconds", "_told", "_untold")

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        """Time without progress after which a writer sends its LAC."""
        self._told = (NO_ENTRY, NO_ENTRY)
        """The LAC and the LAFR sent last."""
        self._untold = NOBODY
        """Bookies that may have missed ``_told``."""
        self._again_at = -math.inf
        """Earliest time of a repetition to ``_untold``."""

    def entry_told(self, last_add_confirmed: int, last_add_fully_replicated: int) -> None:
        """A new entry carries this LAC and this LAFR to the bookies."""
        self._told = last_add_confirmed, last_add_fully_replicated

    def missed(self, bookies: Iterable[str]) -> None:
        """These bookies may have missed the LAC and the LAFR."""
        self._untold = self._untold.union(bookies)

    def replace(self, swap: Mapping[str, str]) -> None:
        """The keys left the ensemble; the values joined and have no LAC yet."""
        self._untold = self._untold.difference(swap).union(swap.values())

    def owes(self, cursors: Cursors) -> bool:
        """May a bookie not know the cursors, so that an idle writer has to send them?"""
        return self._is_news(cursors) or (cursors.last_add_confirmed != NO_ENTRY and bool(self._untold))

    def _is_news(self, cursors: Cursors) -> bool:
        return self._told != (cursors.last_add_confirmed, cursors.last_add_fully_replicated)

    def idle(self, cursors: Cursors, ensemble: tuple[str, ...], now: float, quiet_seconds: float) -> list[SendLac]:
        """The LACs to send to bookies of ``ensemble`` after ``quiet_seconds`` without progress."""
        if quiet_seconds <= self._interval_seconds or not self.owes(cursors):
            return []
        if self._is_news(cursors):
            return self.tell(cursors, ensemble)
        if now < self._again_at:
            return []
        return self.tell(cursors, tuple(bookie for bookie in ensemble if bookie in self._untold))

    def tell(self, cursors: Cursors, bookies: tuple[str, ...]) -> list[SendLac]:
        self._told = cursors.last_add_confirmed, cursors.last_add_fully_replicated
        self._untold = self._untold.difference(bookies) or NOBODY
        return [SendLac(bookies, *self._told)]

    def answered(self, bookie: str, response: Response, now: float) -> None:
        """No repetition follows a final refusal: an unreachable bookie is ``missed`` once it is back."""
        if isinstance(response, Unknown) and response.reason not in FINAL_REASONS:
            self.missed((bookie,))
            self._again_at = now + _AGAIN_INTERVALS * self._interval_seconds


# -- Adds: sends, repetitions and syncs of entries. This part of a writer knows no metadata store.


NEVER_ASKED = "the bookie was never asked"
NOT_VOLATILE = "bookies are asked to sync a VD ledger, and no other"


@lru_cache(maxsize=256)
def _bookies_of(ensemble: tuple[str, ...]) -> frozenset[str]:
    """One shared set for all ledgers of an ensemble."""
    return frozenset(ensemble)


class Adds:
    """The adds of one writer. Bookies in arguments are in the ensemble.

    Law: a bookie gets again the pending entries that it has not acknowledged, and no others. An add carries the LAC (last add
    confirmed) of the moment, and the LAFR (last add fully replicated) of a guaranteed ledger."""

    __slots__ = ("cursors", "durability", "explicit_lac", "known")

    def __init__(
        self,
        metadata: LedgerMetadata,
        replication: BestEffort,
        sync_bytes: int,
        explicit_lac_interval_seconds: float,
    ) -> None:
        self.known = _bookies_of(metadata.last_fragment.ensemble)
        """Present and former bookies of the ensemble: all bookies ever asked."""
        self.cursors = Cursors(metadata, replication)
        self.durability = durability_of(metadata, sync_bytes)
        self.explicit_lac = ExplicitLac(explicit_lac_interval_seconds)

    def append(self, count: int, byte_length: int, write_set: tuple[str, ...], leaving: frozenset[str]) -> list[Action]:
        """Append the next ``count`` ids on ``write_set``; bookies ``leaving`` get nothing."""
        cursors = self.cursors
        self.explicit_lac.entry_told(cursors.last_add_confirmed, cursors.last_add_fully_replicated)
        add = cursors.push(count, byte_length, write_set)
        actions = self._send(add, tuple(b for b in write_set if b not in leaving) if leaving else write_set)
        self.durability.appended(add.last, add.length)
        return actions

    def _send(self, add: PendingAdd, bookies: tuple[str, ...]) -> list[Action]:
        lac, lafr = self.cursors.last_add_confirmed, self.cursors.last_add_fully_replicated
        if not isinstance(self.durability, Volatile):
            return [SendAdd(bookies, add.first, add.last, lac, None, lafr)]
        return [
            SendAdd(group, add.first, add.last, lac, None, lafr, mine)
            for mine, group in self.durability.grouped(bookies)
        ]

    def send_missed(self, bookies: Collection[str]) -> list[Action]:
        """Send ``bookies`` the pending entries that they have not acknowledged."""
        syncs = self._pass_over(bookies)
        sends = [send for add, missing in self.cursors.missed(bookies) for send in self._send(add, missing)]
        return sends + syncs

    def _pass_over(self, bookies: Iterable[str]) -> list[Action]:
        return self.durability.passed_over(bookies, self.cursors.released, self.cursors.pending.values())

    def dropped(self, bookie: str) -> list[Action]:
        """The driver dropped adds held back for ``bookie``, because they were released."""
        self.explicit_lac.missed((bookie,))
        return self._pass_over((bookie,))

    def send_again(self, bookie: str, incarnation: int) -> list[Action]:
        """``bookie`` is reachable again, and answers as ``incarnation`` (0: unknown)."""
        self.durability.back(bookie, incarnation, self.cursors.pending.values())
        return self.send_missed((bookie,))

    def replace(self, metadata: LedgerMetadata, swap: Mapping[str, str]) -> list[Action]:
        """The record names the new ensemble. ``swap``: old bookie → new bookie. Acks of the old ones are taken back, and the new
        ones get every pending entry."""
        self.known = self.known.union(swap.values())
        self.cursors.replace(swap)
        self.durability.joined(metadata, swap.values())
        self.explicit_lac.replace(swap)
        return self.send_missed(swap.values())

    def advance(self, leaving: frozenset[str]) -> list[Action]:
        """Move the cursors as far as the answers allow, without copies on bookies ``leaving``."""
        return self.cursors.advance(self.durability, leaving)

    # -- impossible content

    def misfit(self, event: AddAnswered) -> str | None:
        """The reason why ``event`` can't be an answer to an add, or None."""
        add = self.cursors.pending.get(event.first)
        sent = 0 <= event.first <= event.last <= self.cursors.released if add is None else event.last == add.last
        if not sent:
            return "these entries were not sent"
        if event.bookie not in self.known:
            return NEVER_ASKED
        if (event.synced is not None) is not (self.durability.volatile and isinstance(event.response, Positive)):
            return "an ack tells what is synced on a VD ledger, and nothing else does"
        return None if event.synced is None else self._misfit_report(event.bookie, event.synced)

    def misfit_sync(self, event: SyncAnswered) -> str | None:
        if not self.durability.volatile:
            return NOT_VOLATILE
        if event.bookie not in self.known:
            return NEVER_ASKED
        if (event.synced is not None) is not isinstance(event.response, Positive):
            return "a positive answer tells what is synced, and no other does"
        return None if event.synced is None else self._misfit_report(event.bookie, event.synced)

    def _misfit_report(self, bookie: str, report: SyncReport) -> str | None:
        """An id never sent can't be synced: such a report would confirm entries before any bookie has them."""
        return (
            "more is synced than was sent"
            if self.volatile.is_ahead(bookie, report, self.cursors.last_add_pushed)
            else None
        )

    # -- VD ledgers

    @property
    def volatile(self) -> Volatile:
        assert isinstance(self.durability, Volatile), "the ledger is a PD ledger"
        return self.durability

    def heard(self, bookie: str, report: SyncReport, add: PendingAdd | None) -> list[Action]:
        """A positive answer with ``report``; ``add``: the acknowledged add, if any. A restarted bookie gets its possibly lost
        entries again."""
        actions, restarted = self.volatile.heard(bookie, report, add, self.cursors.pending.values())
        return actions + self.send_missed((bookie,)) if restarted else actions

    def sync_rest(self, bookie: str) -> list[Action]:
        """Ask ``bookie`` to sync again if its last sync came too early for an entry."""
        return self.volatile.sync_rest(bookie, self.cursors.pending.values())

    def sync(self) -> list[Action]:
        self.durability.want(self.cursors.last_add_pushed, self.cursors.pushed_length)
        return self.durability.acknowledged(self.cursors.last_add_acknowledged)


# -- The machine: tables of states and answers, and the writer.


_ADDS = (act.AddAnswered, act.SyncAnswered, BookieBack, BookiesChanged, PassedOver, HeldUp, BookiesLost)
_OTHERS = (TellLac, Idle, ExplicitLacAnswered, Abandon, act.DeadlinePassed)

TRANSITIONS: Table[State] = {
    State.OPEN: row(taken=(Append, Sync, Close, *_ADDS, *_OTHERS)),
    # A Sync is late while closing: the close asks for that sync itself.
    State.CLOSING: row(taken=(*_ADDS, *_OTHERS), late=(Sync,), refused=(Append,)),
    # Every add is released or given up. A bookie may still refuse an add as fenced, after reading of this very close.
    State.WRITING: row(taken=_OTHERS, late=(Sync, *_ADDS), refused=(Append,)),
    State.CLOSED: row(late=(Sync, *_ADDS, *_OTHERS), refused=(Append,)),
    State.FAILED: row(late=(Sync, *_ADDS, *_OTHERS), refused=(Append,)),
}
"""All events but those of ``ANSWERS``. ``SyncAnswered`` has a cell on a VD ledger only."""

ANSWERS: Table[Asked] = {
    Asked.NOTHING: row(),
    Asked.BOOKIES: row(taken=(act.BookiesChosen, act.NoBookies, act.MetadataFailed)),
    Asked.CHANGE_WRITE: row(taken=(act.MetadataWritten, act.MetadataConflict, act.RecordFull, act.MetadataFailed)),
    Asked.CHANGE_READ: row(taken=(act.MetadataRead, act.MetadataFailed)),
    Asked.CLOSE_WRITE: row(taken=(act.MetadataWritten, act.MetadataConflict, act.RecordFull, act.MetadataFailed)),
    Asked.CLOSE_READ: row(taken=(act.MetadataRead, act.MetadataFailed)),
}
"""Answers of the metadata store and of placement, by question. They are LATE once the writer has failed."""

_ANSWER_TYPES = frozenset().union(*ANSWERS.values())


class LedgerWriter:
    """One ledger's writer, from its creation on.

    ``sync_bytes``: a VD ledger is synced after this many bytes at the latest. ``replication``: replaces the ledger's own policy
    in the simulator, which takes protections away. ``explicit_lac_interval_seconds``: idle time before the writer sends its LAC.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        changes: ChangeMode = ChangeMode.OFF,
        sync_bytes: int = SYNC_BYTES,
        replication: BestEffort | None = None,
        explicit_lac_interval_seconds: float = EXPLICIT_LAC_INTERVAL_SECONDS,
    ) -> None:
        assert metadata.state is LedgerState.OPEN, "only the client that created a ledger writes it"
        self.metadata = metadata
        self.version = version
        self.state = State.OPEN
        self.asked = Asked.NOTHING
        self._replication = replication or replication_of(metadata)
        self._copies = self._replication.copies(metadata)
        self._adds = Adds(metadata, self._replication, sync_bytes, explicit_lac_interval_seconds)
        self._changes = EnsembleChanges(changes)
        self._given_up: BookKeeperError | None = None
        self._full: BookKeeperError | None = None
        """The record has no room for the ensemble change that was due."""

    @property
    def cursors(self) -> Cursors:
        return self._adds.cursors

    @property
    def ended(self) -> bool:
        return self.state is State.CLOSED or self.state is State.FAILED

    @property
    def owes_explicit_lac(self) -> bool:
        """Would ``Idle`` send the LAC?"""
        return not self.ended and self._adds.explicit_lac.owes(self.cursors)

    def step(self, event: WriterEvent) -> list[Action]:
        """Raises LedgerClosedError for an append to a ledger that is not open, and IllegalEventError for an event that the tables
        do not allow; then nothing has changed."""
        if TRANSITIONS[self.state].get(type(event)) is not TAKEN:
            return self._not_taken(event)
        match event:
            case act.AddAnswered():
                return self._answered(event)
            case Append():
                return self._append(event)
            case act.SyncAnswered():
                return self._sync_answered(event)
            case BookieBack():
                return self._back(event)
            case PassedOver():
                return self._adds.dropped(event.bookie) if event.bookie in self._ensemble else []
            case HeldUp():
                self._changes.held_up(self.metadata, event.bookies, self.cursors.last_add_pushed)
                return self._change_if_due()
            case BookiesLost():
                for bookie in set(event.bookies).intersection(self._ensemble):
                    self._changes.fail(bookie, self.cursors.last_add_pushed, stays_away=True)
                return self._change_if_due()
            case Sync():
                return self._adds.sync()
            case Close():
                self.state = State.CLOSING
                return [*self._adds.sync(), *self._close_when_idle()]
            case Abandon():
                return self._fail(event.error)
            case BookiesChanged():
                self._changes.news()
                return self._change_if_due()
            case act.DeadlinePassed():
                return self._late()
            case TellLac():
                return [*self._adds.explicit_lac.tell(self.cursors, self._ensemble)]
            case Idle():
                return [*self._adds.explicit_lac.idle(self.cursors, self._ensemble, event.now, event.quiet_seconds)]
            case ExplicitLacAnswered():
                if event.bookie not in self._adds.known:
                    raise IllegalEventError(self.state, event, NEVER_ASKED)
                if event.bookie in self._ensemble:
                    self._adds.explicit_lac.answered(event.bookie, event.response, event.now)
                return []
        raise AssertionError(f"{event!r} has a TAKEN cell and no code")

    def _not_taken(self, event: WriterEvent) -> list[Action]:
        """An event without a TAKEN cell in ``TRANSITIONS``."""
        if isinstance(event, act.SyncAnswered) and not self._adds.durability.volatile:
            raise IllegalEventError(self.state, event, NOT_VOLATILE)
        if type(event) not in _ANSWER_TYPES:
            if cell_of(TRANSITIONS, self.state, event) is LATE:
                return []
            raise LedgerClosedError(f"ledger {self.metadata.ledger_id} is closed; append to a new one")
        cell_of(ANSWERS, self.asked, event)
        return [] if self.ended else self._store_answered(event)

    @property
    def _ensemble(self) -> tuple[str, ...]:
        return self.metadata.last_fragment.ensemble

    def _ask(self, asked: Asked, question: Action) -> list[Action]:
        self.asked = asked
        return [question]

    def _store_answered(self, event: WriterEvent) -> list[Action]:
        asked = self.asked
        match event:
            case act.BookiesChosen():
                return self._bookies_chosen(event)
            case act.NoBookies():
                return self._no_bookies(event)
            case act.RecordFull() if asked is Asked.CHANGE_WRITE:
                self._full = event.error
                return self._go_on_without(event.error)
            case act.RecordFull():
                return self._store_failed(event.error)
            case act.MetadataConflict():
                read = Asked.CHANGE_READ if asked is Asked.CHANGE_WRITE else Asked.CLOSE_READ
                return self._ask(read, act.ReadMetadata())
            case act.MetadataWritten() if asked is Asked.CHANGE_WRITE:
                return self._changed(self._changes.written(event.version))
            case act.MetadataWritten():
                return self._closed(self._end(), event.version)
            case act.MetadataRead():
                if not event.metadata.is_same_ledger(self.metadata):
                    raise IllegalEventError(asked, event, f"it is not of ledger {self.metadata.ledger_id}")
                return self._change_read(event) if asked is Asked.CHANGE_READ else self._close_read(event)
            case act.MetadataFailed():
                return self._store_failed(event.error)
        raise AssertionError(f"{event!r} is an answer without code")

    def _store_failed(self, error: BookKeeperError) -> list[Action]:
        """The metadata store timed out. An ensemble change goes on once it answers, because appends have their own deadline. The
        writer fails if the ledger is gone, or in a close."""
        if self.asked is Asked.BOOKIES:
            return self._choose(self._changes.replaced | self._replaceable())
        if self.asked in (Asked.CHANGE_WRITE, Asked.CHANGE_READ) and not isinstance(error, NoSuchLedgerError):
            return self._ask(Asked.CHANGE_READ, act.ReadMetadata())
        self.asked = Asked.NOTHING
        return self._fail(error)

    # -- adds

    def _append(self, event: Append) -> list[Action]:
        m = self.metadata
        if event.count < 1 or (event.count > 1 and m.ensemble_size > m.write_quorum):
            raise IllegalEventError(self.state, event, "a run of entries has one write set")
        if event.byte_length < 0:
            raise IllegalEventError(self.state, event, "a ledger does not get shorter")
        write_set = m.write_set_of(self._adds.cursors.last_add_pushed + 1)
        return self._adds.append(event.count, event.byte_length, write_set, self._changes.replaced)

    def _answered(self, event: act.AddAnswered) -> list[Action]:
        if (why := self._adds.misfit(event)) is not None:
            raise IllegalEventError(self.state, event, why)
        if not isinstance(event.response, Positive):
            return self._refused(event.bookie, event.response, event.last)
        add, synced = self.cursors.pending.get(event.first), event.synced
        if self._changes.failed:
            self._changes.took(event.bookie, self.cursors.released)
        if synced is not None:
            heard = event.bookie in self._ensemble
            return self._adds.heard(event.bookie, synced, add) + self._advance() if heard else []
        if add is None or event.bookie not in add.bookies:
            return []
        add.acks.add(event.bookie)
        return self._advance() if len(add.acks) >= self.metadata.ack_quorum else []

    def _refused(self, bookie: str, response: Response, last: int) -> list[Action]:
        reason = response.reason if isinstance(response, Unknown) else None
        error = refused_at(bookie, reason, self.metadata.ledger_id, self.cursors.last_add_confirmed)
        if error is not None:
            return self._fail(error)
        # A bookie with too much to do has not failed: the driver tries again (``BookieBack``).
        if reason is UnknownReason.TOO_MANY_REQUESTS or bookie not in self._ensemble:
            return []
        refuses = reason is UnknownReason.UNAUTHORIZED
        if refuses and not self._changes.refuse(self.metadata, bookie):
            return self._fail(refused_by(self._changes.refusing, self.metadata.ledger_id))
        self._changes.fail(bookie, last, stays_away=refuses or reason is UnknownReason.READ_ONLY)
        return self._change_if_due()

    def _back(self, event: BookieBack) -> list[Action]:
        bookie, adds = event.bookie, self._adds
        if bookie not in self._ensemble:
            return []
        adds.explicit_lac.missed((bookie,))
        return adds.send_again(bookie, event.incarnation) if self._changes.back(bookie) else []

    def _advance(self) -> list[Action]:
        leaving, released = self._changes.replaced, self._adds.cursors.released
        if leaving and self._replication.withholds_adds:
            return []
        actions = self._adds.advance(leaving)
        if self._adds.cursors.released == released and not self._changes.failed:
            return actions
        # Pinned bookies may be replaced now: their entries have other copies, or are no longer awaited.
        return [*actions, *self._change_if_due(), *self._close_when_idle()]

    # -- VD ledgers

    def _sync_answered(self, event: act.SyncAnswered) -> list[Action]:
        if (why := self._adds.misfit_sync(event)) is not None:
            raise IllegalEventError(self.state, event, why)
        bookie = event.bookie
        if bookie not in self._ensemble:
            return []
        self._adds.volatile.sync_answered(bookie)
        if event.synced is None:
            return self._refused(bookie, event.response, self.cursors.last_add_pushed)
        return self._adds.heard(bookie, event.synced, None) + self._advance() + self._adds.sync_rest(bookie)

    # -- ensemble changes

    def _change_if_due(self) -> list[Action]:
        """Begin an ensemble change if one is due and none is under way."""
        if not self._changes.failed or self._changes.under_way or not (replaced := self._replaceable()):
            return []
        return self._choose(replaced)

    def _choose(self, replaced: frozenset[str]) -> list[Action]:
        return self._ask(Asked.BOOKIES, self._changes.choose(self.metadata, replaced))

    def _replaceable(self) -> frozenset[str]:
        if self.state not in (State.OPEN, State.CLOSING) or (self.state is State.CLOSING and not self.cursors.pending):
            return frozenset()
        due = self._changes.due(self.metadata, self._copies, self._gives_up)
        holders = self.cursors.confirmed_holders(self._adds.durability, self._changes.replaced)
        return self._replication.replaceable(due, holders, self.metadata)

    @property
    def _gives_up(self) -> bool:
        """Does the writer end without enough bookies? A writer with nothing to write waits for them."""
        return self._replication.gives_up and bool(self.cursors.pending)

    def _bookies_chosen(self, event: act.BookiesChosen) -> list[Action]:
        if (why := self._changes.misfit(self.metadata, event.bookies)) is not None:
            raise IllegalEventError(self.asked, event, why)
        # Others failed meanwhile. One metadata write replaces all.
        if more := self._replaceable():
            return self._choose(self._changes.replaced | more)
        write = self._changes.write(self.metadata, self.version, self.cursors.released + 1, event.bookies)
        return self._ask(Asked.CHANGE_WRITE, write)

    def _no_bookies(self, event: act.NoBookies) -> list[Action]:
        if self._changes.outdated:
            return self._choose(self._changes.replaced)
        if kept := self._changes.keep_slow():
            return [*self._adds.send_missed(kept), *self._choose(self._changes.replaced - kept)]
        return self._go_on_without(event.error)

    def _go_on_without(self, error: BookKeeperError) -> list[Action]:
        """There is no ensemble change: go on with the present ensemble, or end the ledger if that can't acknowledge."""
        self.asked = Asked.NOTHING
        lost = quorum_lost(self.metadata, self._changes.unusable, self.metadata.ack_quorum)
        if self._gives_up and lost:
            if refusing := self._changes.refusing.intersection(self._ensemble):
                return self._fail(refused_by(refusing, self.metadata.ledger_id))
            if self.cursors.last_add_acknowledged > self.cursors.last_add_confirmed:
                return self._fail(left_open(self.metadata.ledger_id, self.cursors.last_add_acknowledged, error))
            self._changes.abandon()
            self.cursors.pending.clear()
            self._given_up = error
            return self._write_end()
        stay = self._changes.abandon()
        return [*self._advance(), *self._adds.send_missed(stay), *self._close_when_idle()]

    def _change_read(self, event: act.MetadataRead) -> list[Action]:
        """The write of the new ensemble lost, or its outcome is unknown."""
        merged = self._changes.merge(self.metadata, event)
        if merged is None:
            self.asked = Asked.NOTHING
            return self._fail(taken_over(event.metadata, self.cursors.last_add_confirmed))
        return (
            self._changed(merged) if isinstance(merged, act.EnsembleChanged) else self._ask(Asked.CHANGE_WRITE, merged)
        )

    def _changed(self, change: act.EnsembleChanged) -> list[Action]:
        old = self._ensemble
        self.metadata, self.version, self.asked = change.metadata, change.version, Asked.NOTHING
        left = self._changes.finish()
        swap = {a: b for a, b in zip(old, self._ensemble, strict=True) if a in left}
        sends = self._adds.replace(self.metadata, swap)
        again = self._change_if_due()
        return [change, *sends, *again, *self._advance(), *self._close_when_idle()]

    # -- close

    def _close_when_idle(self) -> list[Action]:
        if self.state is not State.CLOSING or self.cursors.pending or self._changes.under_way:
            return []
        return self._write_end()

    def _write_end(self) -> list[Action]:
        self.state = State.WRITING
        return self._ask(Asked.CLOSE_WRITE, act.WriteMetadata(self._end(), self.version))

    def _end(self) -> LedgerMetadata:
        return self.metadata.close_at(self.cursors.last_add_confirmed, self.cursors.length)

    def _closed(self, metadata: LedgerMetadata, version: int) -> list[Action]:
        self.metadata, self.version, self.asked = metadata, version, Asked.NOTHING
        if self._given_up is not None:
            return self._fail(self._given_up)
        self.state = State.CLOSED
        return [act.Finish(metadata, version)]

    def _close_read(self, event: act.MetadataRead) -> list[Action]:
        """The write of the closed record lost."""
        found, cursors = event.metadata, self.cursors
        if found.state is LedgerState.OPEN:
            self.metadata, self.version = found, event.version
            return self._write_end()
        if found.closed and (found.last_entry_id, found.length) == (cursors.last_add_confirmed, cursors.length):
            return self._closed(found, event.version)
        self.asked = Asked.NOTHING
        return self._fail(taken_over(found, cursors.last_add_confirmed))

    # -- ends

    def _late(self) -> list[Action]:
        error = late(self.metadata, self.cursors, self._copies, self._adds.durability, self._changes.failed)
        return self._fail(self._given_up or (error if self._full is None else out_of_room(error, self._full)))

    def _fail(self, error: BookKeeperError) -> list[Action]:
        self.state = State.FAILED
        return [act.Fail(error)]
