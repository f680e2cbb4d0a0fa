"""Durability of an add: at its ack on a PD ledger, at the sync that covers it on a VD ledger. One policy object for each.

PD is persistent durability, VD volatile durability (BP-14). E is the ensemble size, WQ the write quorum, AQ the ack quorum.

Law: the LAC (last add confirmed) covers only entries synced by an ack quorum of their write set. On a PD ledger an ack says so.
On a VD ledger an ack is enough to acknowledge the append, but nothing for the LAC, which follows the bookies' LastAddSynced in
each answer (``SyncReport``), entry by entry. The result equals ``quorum.last_add_confirmed_of`` for E = WQ, and is never less for
striped ledgers.

Additions to BP-14, which leaves these as future work (docs/decisions/relaxed-durability.md):

* **Striping**: a bookie's cursor covers its assigned ids. Each request carries the assignment (``sync_cursor.Assignment``).
* **Ensemble change**: the new fragment starts after the last confirmed entry (on a guaranteed ledger, after the last fully
  replicated one). The new bookie's cursor starts before it, and the bookie gets all unconfirmed entries. So an entry that a lost
  bookie had acknowledged but not synced counts again only once the new bookie has synced it. A report counts if its assignment is
  that of the bookie's present stay in the ensemble.
* **Restart**: when a bookie's incarnation changes, its acks of unsynced entries are taken back, and these entries are sent again.
* **Missed entries**: entries that a bookie missed while away, and others have synced, are not sent to it. In its cursor they
  would be a hole that never closes, so its assignment begins after the released entries.
* **sync()** up to an id T: once T is acknowledged, each bookie is asked to sync, so the sync begins after the adds. A bookie that
  acknowledges an entry later is asked again. The sync is done at LAC ≥ T. The writer itself syncs after each ``sync_bytes``, so
  kept content is bounded. A bookie has at most one sync under way.

An ack of an ended incarnation does not count. Incarnations are random numbers: the last one reported is the latest. So the driver
must not hand in an answer of a connection after the ``BookieBack`` of the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import NamedTuple

from bookspark.protocol.ledger.actions import Action, SendSync, SyncReport
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType
from bookspark.protocol.ledger.sync_cursor import Assignment, assignment
from bookspark.protocol.writing.writer_state import PendingAdd

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
    """0 until it is known."""


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
        # It may have come after the bookie's last sync began.
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
